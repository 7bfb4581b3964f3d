"""The engineer of a run: who designs, how its designs are sampled, what it is told of training."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from engineer import curricula, designers, grammar
from engineer.choice import MoveLimits
from engineer.context import Message
from engineer.designers import Designer, Generate
from engineer.endpoint import Endpoint
from engineer.space import Configuration, ConfigurationSpace
from experiments.families.lakes import texts as lakes
from experiments.policy import Policy
from experiments.settings import EngineerSettings, Settings
from learner import tokens
from learner.devices import distributed
from learner.sampling.completer import Completer, Ending
from learner.sampling.sampler import SamplingParams
from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import ThinkingBudget

MODEL_DESIGNERS = ("current", "base")
"""Designers that answer with the run's own sampler."""


def design_responder(settings: Settings, policy: Policy) -> Completer:
    """How designs are sampled.

    Raises:
      ValueError: the model does not think in the way that is asked for, or a design under the
        grammar may not fit the budget.
    """
    engineer = settings.engineer
    sampling = SamplingParams(
        max_new_tokens=engineer.max_new_tokens,
        temperature=engineer.temperature,
        top_p=engineer.top_p,
        top_k=engineer.top_k,
        thinking=_thinking_budget(engineer, policy),
    )
    automaton, ending = design_automaton(settings, policy)
    return policy.completer(
        sampling,
        settings.training.sampling_rows,
        thinking=engineer.thinking,
        automaton=automaton,
        ending=ending,
    )


def design_automaton(
    settings: Settings, policy: Policy
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
    tokenizer = policy.tokenizer

    def tokenize(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    def tables(reasoning_tokens: int) -> grammar.TokenTables:
        return grammar.build(
            settings.environment.space(),
            tokenize,
            tokens.stop_token_ids(tokenizer),
            exact_fractions=engineer.exact_fractions,
            reasoning_tokens=reasoning_tokens,
            trigger=engineer.trigger,
            # Where the automaton begins after the thought, a blank line does: models write it so.
            opening="\n\n" if engineer.thinking else "",
        )

    def automaton(found: grammar.TokenTables) -> TokenAutomaton:
        return TokenAutomaton.create(
            found.tokens, found.targets, found.free, found.otherwise, policy.config.vocab_size
        )

    whole, alone = tables(engineer.reasoning_tokens), tables(0)
    thought = int(engineer.thinking)  # Its last token, at least.
    if limit := _thinking_budget(engineer, policy):
        thought = limit.max_tokens + len(limit.closing_ids)
    if whole.longest + thought > engineer.max_new_tokens:
        raise ValueError(
            f"engineer.max_new_tokens={engineer.max_new_tokens}: a design under the grammar takes "
            f"up to {whole.longest + thought} tokens, so many are needed"
        )
    trigger = engineer.trigger or (tokens.THINK_END if engineer.thinking else "")
    if not trigger:
        return automaton(whole), None
    return automaton(whole), Ending(tuple(tokenize(trigger)), automaton(alone), alone.longest)


def _thinking_budget(engineer: EngineerSettings, policy: Policy) -> ThinkingBudget | None:
    if not engineer.thinking_tokens:
        return None
    try:
        return tokens.thinking_budget(policy.tokenizer, engineer.thinking_tokens)
    except ValueError as error:
        raise ValueError(f"engineer.thinking_tokens: {error}") from error


def make_designer(
    settings: Settings, generate: Generate | None, fits: Callable[[Sequence[Message]], bool]
) -> Designer:
    """The designer of a run.

    Args:
      settings: of the run.
      generate: answers chats; needed by `MODEL_DESIGNERS` alone.
      fits: whether the model's window holds a chat.

    Raises:
      ValueError: a file that the settings name holds no configuration of the space.
    """
    designer = _plain_designer(settings, generate, fits)
    margin = settings.engineer.rollback_margin
    return designer if margin is None else designers.AcceptanceTest(designer, margin)


def _plain_designer(
    settings: Settings, generate: Generate | None, fits: Callable[[Sequence[Message]], bool]
) -> Designer:
    engineer = settings.engineer
    name = engineer.designer
    if name in (*MODEL_DESIGNERS, "endpoint"):
        if name == "endpoint":
            generate = _asked_once(
                Endpoint(
                    **dataclasses.asdict(engineer.endpoint),
                    max_tokens=engineer.max_new_tokens,
                    temperature=engineer.temperature,
                )
            )
        assert generate is not None
        greedy = name != "endpoint" and engineer.temperature == 0
        return designers.ModelDesigner(
            generate,
            lakes.TEXTS,
            engineer.spec,
            tries=1 if greedy else engineer.tries,
            proposals=engineer.proposals,
            choice=engineer.choice,
            limits=MoveLimits(
                fraction=_or_infinite(engineer.largest_fraction_move),
                value=_or_infinite(engineer.largest_value_move),
            ),
            trigger=engineer.trigger,
            source=name,
            fits=fits,
        )
    if name == "staged":
        stages: tuple[Configuration, ...] = ()
        if engineer.stages:
            stages = curricula.read_stages(_yaml("stages", engineer.stages))
            for stage in stages:
                settings.environment.space().check(stage)
        return curricula.StagedCurriculum(stages, engineer.stage_threshold)
    return {
        "fixed": designers.FixedDesigner,
        "random": designers.RandomDesigner,
        "failures": curricula.FailureProportional,
        "learnability": curricula.LearnabilityProportional,
        "progress": curricula.ProgressBandit,
    }[name]()


def make_reader(settings: Settings) -> Generate | None:
    """The model that judges designs, or None if there is to be none.

    Raises:
      ValueError: the address of its server is none.
    """
    reader = settings.engineer.reader
    return _asked_once(Endpoint(**dataclasses.asdict(reader))) if reader.url else None


def _asked_once(endpoint: Generate) -> Generate:
    """Of several processes the first asks the server, and tells the others what it said."""

    def generate(chat: Sequence[Message], count: int, seed: int) -> Sequence[str]:
        return distributed.on_first(lambda: endpoint(chat, count, seed))

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


def training_texts(settings: Settings) -> dict[str, str]:
    """Objective, reward and schedule in words, for the full form of module T."""
    training, reward, optimizer = settings.training, settings.reward, settings.training.optimizer
    objective = training.objective
    return {
        "objective": (
            f"GRPO with {training.group_size} answers to each of {training.prompts_per_step} "
            f"instances a step, advantages normalised by {objective.advantage_normalization}, "
            f"ratios clipped at {1 - objective.clip_low:g} and {1 + objective.clip_high:g}, "
            f"KL weight {objective.kl_coef:g}"
        ),
        "reward": (
            "w_acc times accuracy plus w_len times length; accuracy is 0 for an answer that is "
            "not valid and 1 - 0.7 gap / (2 optimum), at least 0.3, for a valid one; length is 0 "
            f"up to {reward.short_length} tokens and falls to -1 at {reward.long_length}; the "
            "weights go from 0.5 and 0.5 to 0.8 and 0.2 as answers get short"
        ),
        "schedule": (
            f"{training.epochs:g} epochs over {settings.environment.num_instances} instances a "
            f"round, learning rate {optimizer.learning_rate:g}, {optimizer.warmup_steps} steps of "
            f"warm-up, then {optimizer.decay}"
        ),
    }


def _or_infinite(limit: float | None) -> float:
    return math.inf if limit is None else limit


def _yaml(name: str, path: str) -> Any:
    try:
        return yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"engineer.{name}={path!r}: {error}") from error
