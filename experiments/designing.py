"""The engineer of a run: who designs, how its designs are sampled, and what is kept of them."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from engineer import analysis, controls, curricula, designers, grammar
from engineer.context import Message
from engineer.designers import Designer, Generate, NoAnswerError
from engineer.endpoint import Endpoint, RefusedError, Server
from engineer.proposal import render_config
from engineer.record import RunRecord
from engineer.space import Configuration, ConfigurationSpace
from experiments.errors import UserError
from experiments.families import Family
from experiments.policy import Policy
from experiments.settings import EngineerSettings, Settings
from experiments.store import RunStore
from learner import tokens
from learner.devices import distributed
from learner.sampling.completer import Completer, Ending
from learner.sampling.sampler import SamplingParams
from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import ThinkingBudget

MODEL_DESIGNERS = ("current", "base")
"""Designers that answer with the run's own sampler."""
PROBING_DESIGNERS = ("oracle", "adversary")
"""Designers that try configurations out before they choose one."""
_PROBE: Sequence[Message] = [{"role": "user", "content": "Answer with the word: ready"}]
_BY_RULE: Mapping[str, Designer] = {
    "fixed": designers.fixed,
    "random": designers.random,
    "failures": curricula.failure_proportional,
    "learnability": curricula.learnability_proportional,
    "progress": curricula.progress_bandit,
}


def design_completer(settings: Settings, family: Family, policy: Policy) -> Completer:
    """How designs are sampled.

    Raises:
      ValueError: the model does not think in the way that is asked for, or a design under the
        grammar may not fit the budget.
    """
    engineer = settings.engineer
    automaton, ending = design_automaton(settings, family, policy)
    sampling = SamplingParams(
        max_new_tokens=engineer.max_new_tokens,
        temperature=engineer.temperature,
        top_p=engineer.top_p,
        top_k=engineer.top_k,
        thinking=_budget(engineer, policy),
    )
    return policy.completer(
        sampling,
        settings.training.sampling_rows,
        thinking=engineer.thinking,
        automaton=automaton,
        ending=ending,
    )


def design_automaton(
    settings: Settings, family: Family, policy: Policy
) -> tuple[TokenAutomaton | None, Ending | None]:
    """The grammar of designs over the policy's tokens, and the end of answers that stop early.

    Both are None if designs are not under the grammar. A stop token in the midst of the reasoning
    ends an answer for the sampler; it is then finished with the trigger and a configuration.

    Raises:
      ValueError: a design may not fit the budget.
    """
    engineer = settings.engineer
    if engineer.decoding != "grammar":
        return None, None
    found = grammar.build(
        family.space,
        functools.partial(policy.tokenizer.encode, add_special_tokens=False),
        tokens.stop_token_ids(policy.tokenizer),
        exact_fractions=engineer.exact_fractions,
        # Where the automaton begins after the thought, a blank line does: models write it so.
        opening="\n\n" if engineer.thinking else "",
    )
    automaton, limit = TokenAutomaton.create(found.tokens, found.targets), _budget(engineer, policy)
    longest = found.longest + (limit.max_tokens + len(limit.closing_ids) if limit else 0)
    if longest > engineer.max_new_tokens:
        raise ValueError(
            f"engineer.max_new_tokens={engineer.max_new_tokens}: a design under the grammar takes "
            f"up to {longest} tokens, so many are needed"
        )
    return automaton, Ending(limit.trigger, automaton, found.longest) if limit else None


def _budget(engineer: EngineerSettings, policy: Policy) -> ThinkingBudget | None:
    """The limit on what comes before a configuration: the model's thought, or reasoning."""
    if engineer.trigger:
        trigger = policy.tokenizer.encode(engineer.trigger, add_special_tokens=False)
        return ThinkingBudget(engineer.reasoning_tokens, tuple(trigger), len(trigger))
    if not engineer.thinking_tokens:
        return None
    try:
        return tokens.thinking_budget(policy.tokenizer, engineer.thinking_tokens)
    except ValueError as error:
        raise ValueError(f"engineer.thinking_tokens: {error}") from error


def make_designer(
    settings: Settings,
    family: Family,
    generate: Generate,
    fits: Callable[[Sequence[Message]], bool],
    progress: Callable[[Configuration], float],
) -> Designer:
    """The designer of a run.

    Args:
      generate: answers chats, for `MODEL_DESIGNERS`.
      fits: whether the model's window holds a chat.
      progress: what a configuration teaches in a short training, for `PROBING_DESIGNERS`.

    Raises:
      ValueError: a file that the settings name holds no configuration of the space.
    """
    engineer, name = settings.engineer, settings.engineer.designer
    designer: Designer
    if name in (*MODEL_DESIGNERS, "endpoint"):
        if name == "endpoint":
            generate = _asked_once(
                engineer.endpoint,
                max_tokens=engineer.max_new_tokens,
                temperature=engineer.temperature,
            )
        greedy = name != "endpoint" and engineer.temperature == 0
        designer = designers.ModelDesigner(
            generate,
            engineer.texts(family.texts),
            engineer.spec,
            tries=1 if greedy else engineer.tries,
            trigger=engineer.trigger,
            source=name,
            fits=fits,
        )
    elif name in PROBING_DESIGNERS:
        designer = controls.Probed(progress, worst=name == "adversary")
    elif name == "staged":
        stages: tuple[Configuration, ...] = ()
        if engineer.stages:
            stages = curricula.read_stages(_yaml("stages", engineer.stages))
            for stage in stages:
                family.space.check(stage)
        designer = curricula.StagedCurriculum(stages, engineer.stage_threshold)
    else:
        designer = _BY_RULE[name]
    if engineer.shuffle_evidence:
        designer = controls.Shuffled(designer)
    margin = engineer.rollback_margin
    return designer if margin is None else designers.AcceptanceTest(designer, margin)


def make_judge(settings: Settings) -> Generate | None:
    """The model that judges designs, or None if there is to be none.

    Raises:
      ValueError: the address of its server is none.
    """
    judge = settings.engineer.judge
    return _asked_once(judge) if judge.url else None


def ask_servers(settings: Settings) -> list[str]:
    """Asks each server of a run for a word, so that a refusal does not come hours later.

    Returns:
      A line for each server that does not answer now; it may when it is needed.

    Raises:
      RefusedError: a server refuses what it is asked.
    """
    engineer, lines = settings.engineer, []
    asked = {"engineer.endpoint": engineer.endpoint, "engineer.judge": engineer.judge}
    if engineer.designer != "endpoint":
        del asked["engineer.endpoint"]
    for name, server in asked.items():
        if server.url and settings.loop.rounds > 1:
            try:
                _asked_once(dataclasses.replace(server, tries=1))(_PROBE, settings.seed)
            except NoAnswerError as error:
                lines.append(f"{name}: {error}")
            except RefusedError as error:
                raise RefusedError(f"{name}: {error}") from error
    return lines


def design_round(
    settings: Settings,
    store: RunStore,
    folder: Path,
    designer: Designer,
    record: RunRecord,
    space: ConfigurationSpace,
    seed: int,
) -> None:
    """Designs the next configuration and keeps how it came about; `design.json` comes last.

    Raises:
      UserError: a server refuses what it is asked.
    """
    judge = make_judge(settings)
    try:
        design = designer(record, space, seed)
        context = "\n\n".join(message["content"] for message in design.context_messages)
        answers = "\n\n---\n\n".join(design.raw_texts)
        if judge is not None and design.raw_texts:
            made = f"{answers}\n\nUsed next:\n{render_config(design.config, space)}"
            judgement = analysis.judge_design(judge, context, made, seed)
            store.write(folder / "judgement.json", judgement)
    except RefusedError as error:
        raise UserError(f"engineer: {error}; started again, the run goes on from here") from error
    store.write(folder / "context.md", context + "\n")
    store.write(folder / "answers.md", answers + "\n")
    store.write(folder / "record.json", record.to_dict())
    measures = analysis.analyse(record, design.config, space)
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in measures.items()}
    store.write(folder / "analysis.json", rounded)
    store.write(folder / "design.json", design.to_dict())


def _asked_once(server: Server, **options: Any) -> Generate:
    """Of several processes the first asks the server, and tells the others what it said."""
    endpoint = Endpoint(**dataclasses.asdict(server), **options)

    def generate(chat: Sequence[Message], seed: int) -> str:
        return distributed.on_first(lambda: endpoint(chat, seed))

    return generate


def start_config(settings: Settings, space: ConfigurationSpace, seed: int) -> Configuration:
    """The configuration of round 0.

    Raises:
      ValueError: the file that it is to be read from holds none of the space.
    """
    start = settings.engineer.start
    if start == "random":
        return space.random(seed)
    if start == "uniform":
        return space.uniform()
    config = Configuration.from_dict(_yaml("start", start))
    try:
        space.check(config)
    except ValueError as error:
        raise ValueError(f"engineer.start={start!r}: {error}") from error
    return config


def _yaml(name: str, path: str) -> Any:
    try:
        return yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"engineer.{name}={path!r}: {error}") from error
