"""The engineer of a run: makes its designer, samples its designs and records them."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import yaml

from engineer import analysis, controls, curricula, designers, grammar
from engineer.context import Message
from engineer.designers import Design, Designer, Generate, NoAnswerError
from engineer.endpoint import Endpoint, RefusedError, Server
from engineer.proposal import TRIGGER
from engineer.record import RunRecord
from engineer.space import Configuration, ConfigurationSpace
from experiments.families import Family
from experiments.run.policy import Policy
from experiments.run.store import RunStore, read_yaml
from experiments.settings import EngineerSettings, Settings
from experiments.text.errors import UserError
from learner import tokens
from learner.devices import distributed
from learner.sampling.completer import Completer, Ending
from learner.sampling.sampler import SamplingParams
from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import ThinkingBudget

USAGE = "usage.jsonl"
"""Tokens of the replies of its servers, in a run's folder."""
MODEL_DESIGNERS = ("current", "local", "base")
"""Designers that use the run's own sampler."""
_PROBE: Sequence[Message] = [{"role": "user", "content": "Answer with the word: ready"}]


def design_completer(settings: Settings, family: Family, policy: Policy) -> Completer:
    """Makes the completer that samples designs.

    Under the grammar, an answer whose reasoning ends with a stop token is completed with the
    trigger and a configuration.

    Raises:
      ValueError: the model does not support the requested thinking, or a design under the grammar
        may not fit the budget.
    """
    engineer, limit = settings.engineer, _budget(settings.engineer, policy)
    options: dict[str, Any] = {"thinking": engineer.thinking_tokens > 0}
    if engineer.decoding != "parsed":
        found = grammar.build(
            family.space,
            functools.partial(policy.tokenizer.encode, add_special_tokens=False),
            tokens.stop_token_ids(policy.tokenizer),
            exact_fractions=engineer.decoding == "grammar",
            # Models write a blank line between their thought and the configuration.
            opening="\n\n" if engineer.thinking_tokens else "",
        )
        longest = found.longest + (limit.max_tokens + len(limit.closing_ids) if limit else 0)
        if longest > engineer.max_new_tokens:
            raise ValueError(
                f"engineer.max_new_tokens={engineer.max_new_tokens}: a design under the grammar "
                f"takes up to {longest} tokens, so many are needed"
            )
        automaton = options["automaton"] = TokenAutomaton.create(found.tokens, found.targets)
        options["ending"] = Ending(limit.trigger, automaton, found.longest) if limit else None
    sampling = SamplingParams(
        max_new_tokens=engineer.max_new_tokens,
        temperature=engineer.temperature,
        top_p=engineer.top_p,
        top_k=engineer.top_k,
        thinking=limit,
    )
    return policy.completer(sampling, settings.training, **options)


def _budget(engineer: EngineerSettings, policy: Policy) -> ThinkingBudget | None:
    """The limit on the thinking or the reasoning before a configuration."""
    if engineer.reasoning_tokens:
        trigger = policy.tokenizer.encode(TRIGGER, add_special_tokens=False)
        return ThinkingBudget(engineer.reasoning_tokens, tuple(trigger), len(trigger))
    try:
        return tokens.thinking_budget(
            policy.tokenizer, engineer.thinking_tokens, engineer.max_new_tokens
        )
    except ValueError as error:
        raise ValueError(f"engineer.{error}") from error


def make_designer(
    settings: Settings,
    family: Family,
    completer: Completer | None = None,
    params: Any = None,
    usage: Path | None = None,
) -> Designer:
    """Makes the designer of a run.

    Args:
      completer, params: of the model, for `MODEL_DESIGNERS`.
      usage: see `Endpoint`.

    Raises:
      ValueError: an option of the server of "endpoint" is not allowed.
    """
    engineer, name = settings.engineer, settings.engineer.designer

    def complete(chat: Sequence[Message], seed: int) -> str:
        assert completer is not None
        (completion,) = completer(params, [chat], jax.random.key(seed))
        return completion.text

    designer: Designer
    if name in (*MODEL_DESIGNERS, "endpoint"):
        generate: Generate = complete
        if name == "endpoint":
            generate = _asked_once(
                engineer.endpoint,
                usage=usage,
                max_tokens=engineer.max_new_tokens,
                temperature=engineer.temperature,
            )
        greedy = name != "endpoint" and engineer.temperature == 0
        designer = designers.ModelDesigner(
            generate,
            family.texts,
            engineer.spec,
            tries=1 if greedy else engineer.tries,
            trigger=TRIGGER if engineer.reasoning_tokens else "",
            source=name,
            fits=(lambda chat: True) if completer is None else completer.fits,
        )
        if name == "local":
            designer = controls.local(designer)
    else:
        designer = curricula.BY_RULE[name]
    return controls.shuffled(designer) if engineer.shuffle_evidence else designer


def ask_server(settings: Settings) -> str | None:
    """Sends the server of a run a short request, so that a refusal does not come hours later.

    Returns:
      A line if it does not answer now; it may later.

    Raises:
      RefusedError: it refuses the request.
    """
    engineer, name = settings.engineer, "engineer.endpoint"
    if engineer.designer == "endpoint" and settings.loop.rounds > 1:
        try:
            _asked_once(dataclasses.replace(engineer.endpoint, tries=1))(_PROBE, settings.seed)
        except NoAnswerError as error:
            return f"{name}: {error}"
        except RefusedError as error:
            raise RefusedError(f"{name}: {error}") from error
    return None


def design_round(
    store: RunStore,
    folder: Path,
    designer: Designer,
    record: RunRecord,
    space: ConfigurationSpace,
    seed: int,
) -> Design:
    """Designs the next configuration and writes its files; `design.json` comes last.

    Raises:
      UserError: a server refuses a request, or the designer's gives no answer at any try.
    """
    try:
        design = designer(record, space, seed)
    except (NoAnswerError, RefusedError) as error:  # All is saved, so the run can go on.
        raise UserError(f"engineer: {error}; started again, the run goes on from here") from error
    context = "\n\n".join(message["content"] for message in design.context_messages)
    store.write(folder / "context.md", context + "\n")
    store.write(folder / "answers.md", "\n\n---\n\n".join(design.raw_texts) + "\n")
    store.write(folder / "record.json", record.to_dict())
    measures = analysis.analyse(record, design.config, space)
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in measures.items()}
    store.write(folder / "analysis.json", rounded)
    store.write(folder / "design.json", design.to_dict())
    return design


def _asked_once(server: Server, **options: Any) -> Generate:
    """A `Generate` that asks the server on the first process and broadcasts the reply."""
    endpoint = Endpoint(**dataclasses.asdict(server), **options)

    def generate(chat: Sequence[Message], seed: int) -> str:
        return distributed.on_first(lambda: endpoint(chat, seed))

    return generate


def start_config(settings: Settings, space: ConfigurationSpace, seed: int) -> Configuration:
    """The configuration of round 0.

    Raises:
      ValueError: its file holds no configuration of the space.
    """
    start = settings.engineer.start
    if start == "random":
        return space.random(seed)
    if start == "uniform":
        return space.uniform()
    try:
        config = Configuration.from_dict(read_yaml(Path(start).read_text(encoding="utf-8")))
        cells = config.cells()
        if cells.keys() == set(space.cells):  # In any order.
            config = Configuration.from_cells({cell: cells[cell] for cell in space.cells})
        space.check(config)
    except (OSError, yaml.YAMLError, ValueError) as error:
        raise ValueError(f"engineer.start={start!r}: {error}") from error
    return config
