"""The tasks of an environment of verifiers (0.4 and later) as a family (docs/extending.md)."""

import asyncio
import json
import os

import verifiers.v1 as vf

from experiments import families

# As `vf-eval` has them: {"id": "my_taskset", "my_option": 3}.
CONFIG = {"taskset": json.loads(os.environ["TASKSET"])}
TASKS = list(vf.load_environment(vf.SingleAgentEnvConfig.model_validate(CONFIG)).taskset)
LOOP = asyncio.new_event_loop()  # A verifier may not open what it needs; imports may.
LEVEL = "size"  # The field of a task's data that tells easy ones from hard ones.
RIGHT = 0.75  # The reward from which an answer is right.


class Tasks(families.DataSet):
    """One prompt and one answer each, scored without a runtime."""

    def prompt(self, problem):
        """The prompt of the task."""
        return TASKS[problem["index"]].data.prompt_text

    def verify(self, problem, text):
        """The rewards of the task, added up."""
        task = TASKS[problem["index"]]
        reply = vf.MessageNode(message=vf.AssistantMessage(content=text), sampled=True)
        kind = vf.TraceTask(type=type(task).__name__, data=task.data)
        trace = vf.Trace(task=kind, agent=vf.AgentInfo(config=vf.AgentConfig()), nodes=[reply])
        LOOP.run_until_complete(task.score(trace))
        return {"failed": [] if trace.reward >= RIGHT else ["right"], "reward": trace.reward}


problems = [{"group": str(getattr(task.data, LEVEL))} for task in TASKS]
family = Tasks(problems, label=LEVEL, task="to solve tasks", checks=["right"])
