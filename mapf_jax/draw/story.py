"""What a plan does on a lake, computed once for all kinds of pictures."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from mapf_jax.types import INFINITE_COST, Instance, Plan, Solution, ViolationKind, as_plan
from mapf_jax.verify import verify, violation_kinds

_kinds = jax.jit(violation_kinds)


@dataclasses.dataclass(frozen=True)
class Mark:
    """A broken rule and the cells (row, column) it concerns; `agent` counts the story's agents."""

    agent: int
    kind: ViolationKind
    before: np.ndarray
    after: np.ndarray


@dataclasses.dataclass(frozen=True)
class Story:
    """An instance and what a plan does on it, for the active agents only.

    Attributes:
      blocked: bool[N, N], the holes of the lake.
      agents: int[agents], their numbers.
      starts: int[agents, 2].
      goals: int[agents, 2].
      positions: int[steps + 1, agents, 2]; empty without a plan that can be drawn.
      kinds: int[steps + 1, agents], `ViolationKind`s.
      captions: (text, colour of `shapes.PALETTE`) of the lines below the picture.
    """

    blocked: np.ndarray
    agents: np.ndarray
    starts: np.ndarray
    goals: np.ndarray
    positions: np.ndarray
    kinds: np.ndarray
    captions: Sequence[tuple[str, str]] = ()

    def marks(self, time: int) -> list[Mark]:
        """Every rule that is broken at a time."""
        marks = []
        for agent in np.nonzero(self.kinds[time])[0]:
            kind = ViolationKind(int(self.kinds[time, agent]))
            before, after = self.positions[max(time - 1, 0), agent], self.positions[time, agent]
            if kind == ViolationKind.WRONG_START:
                before = self.starts[agent]
            if kind == ViolationKind.GOAL_MISSED:
                before, after = after, self.goals[agent]
            marks.append(Mark(int(agent), kind, before, after))
        return marks


def tell(instance: Instance, plan: Plan | Solution | None = None) -> Story:
    """The story of a single plan, valid or not, of a single instance."""
    instance.check_single()
    size, agents = int(instance.size), np.nonzero(instance.active)[0]
    story = Story(
        blocked=np.asarray(instance.blocked)[:size, :size],
        agents=agents,
        starts=np.asarray(instance.starts)[agents].astype(int),
        goals=np.asarray(instance.goals)[agents].astype(int),
        positions=np.zeros((0, len(agents), 2), int),
        kinds=np.zeros((0, len(agents)), int),
    )
    if plan is None:
        return story
    plan = as_plan(instance, plan)
    if not plan.parsable:
        return dataclasses.replace(story, captions=[("No plan could be read.", "bad")])
    if plan.num_agents != len(agents):
        text = f"The plan is for {int(plan.num_agents)} agents, the lake has {len(agents)}."
        return dataclasses.replace(story, captions=[(text, "bad")])
    steps = int(plan.num_steps) + 1
    story = dataclasses.replace(
        story,
        positions=np.asarray(plan.positions)[:steps, agents].astype(int),
        kinds=np.asarray(_kinds(instance, plan))[:steps, agents],
    )
    verdict = jax.tree.map(
        lambda leaf: np.asarray(leaf)[0],
        verify(*jax.tree.map(lambda leaf: np.asarray(leaf)[None], (instance, plan))),
    )
    if verdict.valid:
        text = f"Valid: cost {verdict.cost}, makespan {verdict.makespan}"
        if verdict.gap < INFINITE_COST:
            text += ", optimal" if verdict.optimal else f", {verdict.gap} above the optimum"
        return dataclasses.replace(story, captions=[(text, "ink")])
    time = int(verdict.violation_time)
    marks = story.marks(time)
    first = next(mark for mark in marks if agents[mark.agent] == verdict.violation_agent)
    captions = [(f"t = {time}: {_sentence(first, marks, agents)}", "bad")]
    others = int(np.count_nonzero(story.kinds)) - len(_involved(first, marks))
    if others:
        captions.append((f"and {others} more broken rule{'s' * (others > 1)}", "soft"))
    return dataclasses.replace(story, captions=captions)


def _involved(first: Mark, marks: Sequence[Mark]) -> list[Mark]:
    """The marks of the same event."""
    if first.kind == ViolationKind.VERTEX:
        return [mark for mark in marks if np.array_equal(mark.after, first.after)]
    if first.kind == ViolationKind.SWAP:
        back = (first.after, first.before)
        return [m for m in marks if m is first or np.array_equal((m.before, m.after), back)]
    return [first]


def _sentence(first: Mark, marks: Sequence[Mark], agents: np.ndarray) -> str:
    """What went wrong, in words."""
    before, after = (f"({int(r)},{int(c)})" for r, c in (first.before, first.after))
    numbers = [str(agents[mark.agent]) for mark in _involved(first, marks)]
    together = ", ".join(numbers[:-1]) + f" and {numbers[-1]}"
    all_or_both = "all" if len(numbers) > 2 else "both"
    return {
        ViolationKind.ILLEGAL_MOVE: f"agent {numbers[0]} jumps from {before} to {after}",
        ViolationKind.OUT_OF_BOUNDS: f"agent {numbers[0]} leaves the lake, to {after}",
        ViolationKind.HOLE: f"agent {numbers[0]} enters the hole {after}",
        ViolationKind.VERTEX: f"agents {together} are {all_or_both} in {after}",
        ViolationKind.SWAP: f"agents {together} exchange {before} and {after}",
        ViolationKind.WRONG_START: f"agent {numbers[0]} starts on {after}, not on {before}",
        ViolationKind.GOAL_MISSED: f"agent {numbers[0]} ends on {before}, not on its goal {after}",
    }[first.kind]
