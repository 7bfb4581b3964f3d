"""Measures whether a model reads its evidence, before a run relies on its designs.

    python -m experiments.reading --config=smollm2

Of two designs, the model should find the one likelier that matches the evidence in its context. The
contexts are made up, for the model, family and context of a configuration: as they are in its runs,
and under two controls for copying. See `engineer.reading`.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from engineer import reading
from engineer.context import ContextSpec, Message
from engineer.curricula import BY_RULE
from engineer.reading import CONTROLS, Control, Question, Reading, Scorer
from engineer.texts import FamilyTexts
from experiments import settings as settings_lib
from experiments.families import Family, demonstrations
from experiments.run import policy, process
from experiments.run.policy import Policy
from experiments.settings import Settings, command_line
from experiments.statistics import Interval, wilson
from experiments.text.errors import (
    UserError,
    ended_in_one_line,
    memory_errors,
    user_errors,
)
from learner import tokens
from learner.decoder.config import DecoderConfig
from learner.training import sft
from learner.training.completion_rows import MicroBatch, completion_logprobs, pack_rows

_CONFIG = command_line.define_config()
_RULE = flags.DEFINE_enum(
    "rule",
    "target",
    ("target", "mastery", "learnability", "failures"),
    "Whose designs match the evidence; by target (or mastery) experiments.warm_start teaches.",
)
_QUESTIONS = flags.DEFINE_integer("questions", 200, "Pairs of contexts of a kind.", lower_bound=1)

CHANCE = 0.5

_CONTROLS: dict[Control, str] = {
    "plain": "as in runs",
    "order": "rows in another order",
    "names": "letters for rows",
}
_ROWS, _LENGTH_MULTIPLE, _LENGTHS = 8, 32, 8


def scorer(model: Policy, params: Any) -> Scorer:
    """The log-likelihood of answers, stop token included, under a model.

    Raises:
      UserError: (by the scorer) a chat with its answer is longer than the model's window.
    """
    pad_id = tokens.pad_id(model.tokenizer)

    def score(pairs: Sequence[tuple[Sequence[Message], Sequence[str]]]) -> list[list[float]]:
        examples = [
            [sft.encode_example(model.tokenizer, chat, answer) for answer in answers]
            for chat, answers in pairs
        ]
        longest = [max(len(e.prompt) + len(e.completion) for e in row) for row in examples]
        if max(longest) > (window := model.config.max_position_embeddings):
            raise UserError(
                f"a context with its design takes {max(longest)} tokens, the model has {window}; "
                "allowed are a shorter engineer.context and families with fewer rows"
            )
        scores: list[list[float]] = [[] for _ in pairs]
        order = sorted(range(len(pairs)), key=lambda i: len(examples[i][0].prompt))
        for first in range(0, len(order), _ROWS):
            chosen = order[first : first + _ROWS]
            found = _log_likelihoods(params, model.config, [examples[i] for i in chosen], pad_id)
            for i, one in zip(chosen, found.tolist(), strict=True):
                scores[i] = one
        return scores

    return score


def _log_likelihoods(
    params: Any, config: DecoderConfig, rows: Sequence[Sequence[sft.Example]], pad_id: int
) -> np.ndarray:
    """f64[R, A] for R rows of A examples with the same prompt, in nats."""

    def bucket(length: int) -> int:
        return tokens.geometric_bucket(length, _LENGTH_MULTIPLE, _LENGTHS)

    prompt = max(len(row[0].prompt) for row in rows)
    completions = [[example.completion for example in row] for row in rows]
    whole = max(
        len(row[0].prompt) + sum(map(len, of)) for row, of in zip(rows, completions, strict=True)
    )
    window = bucket(max(len(one) for of in completions for one in of))
    length = max(bucket(whole), bucket(prompt) + window)
    packed = pack_rows(
        [row[0].prompt for row in rows],
        completions,
        _ROWS,
        len(rows[0]),
        length,
        pad_id,
        bucket(prompt),
    )
    logprobs = np.asarray(_logprobs(params, config, packed, window), np.float64)
    mask = np.arange(window) < packed.completion_lengths[:, :, None]
    return np.where(mask, logprobs, 0.0).sum(axis=2)[: len(rows)]


@functools.partial(jax.jit, static_argnums=(1, 3))
def _logprobs(params: Any, config: DecoderConfig, rows: MicroBatch, window: int) -> jax.Array:
    return completion_logprobs(params, config, jax.tree.map(jnp.asarray, rows), window)[0]


def questions(
    family: Family,
    texts: FamilyTexts,
    spec: ContextSpec,
    rule: str,
    count: int,
    control: Control,
) -> Iterator[Question]:
    """Yields `count` questions about made-up runs; those about which a rule has none are skipped.

    Args:
      texts: of the family, as its contexts have them.

    Raises:
      UserError: the rule makes the same design of hardly any evidence and its permutation.
    """
    made = 0
    for seed in range(10 * count):
        record = demonstrations.random_record(seed, family.space, texts, climbing=rule == "mastery")
        one = reading.question(record, family.space, texts, spec, BY_RULE[rule], seed, control)
        if one is not None:
            made += 1
            yield one
        if made == count:
            return
    raise UserError(
        f"--rule={rule}: only {made} of {10 * count} made-up contexts have two designs; allowed "
        "are families with more rows, and other rules"
    )


def interval(found: Reading) -> Interval:
    """The 95 % score interval of the fraction of questions that are followed."""
    return wilson(found.follows, found.questions)


def verdict(found: dict[Control, Reading]) -> str:
    """A line on whether a run can rely on the model, and on what else if it cannot."""
    reads = {control: interval(one).low > CHANCE for control, one in found.items()}
    instead = (
        "use a rule (--config.engineer.designer=learnability), an endpoint, or a model that was "
        "warm-started on designs"
    )
    if not reads["plain"]:
        return f"reading is at chance: {instead}"
    lost = [_CONTROLS[control] for control, one in reads.items() if not one]
    if lost:
        return f"reads contexts as they are in runs, but is at chance with {' and '.join(lost)}"
    return "reads: its designs follow the evidence"


def table(found: dict[Control, Reading]) -> Iterator[str]:
    """Yields the lines of a table of the readings."""
    width = max(map(len, _CONTROLS.values()))
    yield f"{'contexts'.ljust(width)}  matching likelier  follows evidence (95 %)  gain, nats"
    for control, one in found.items():
        low, high = interval(one)
        follows = f"{one.follows / one.questions:.0%} ({low:.0%} to {high:.0%})"
        cells = f"{one.likelier:>15.0%}  {follows:>23}  {one.margin:>10.2f}"
        yield f"{_CONTROLS[control].ljust(width)}    {cells}"


def measure(settings: Settings, rule: str, count: int) -> dict[Control, Reading]:
    """Reads `count` questions of each kind with the model of a configuration.

    Raises:
      UserError: an option, the family or the model is wrong, or the rule makes too few questions.
    """
    with user_errors():
        family = settings.load_family()
        model = policy.load_policy(settings)
        params = policy.load_params(settings, model)
    texts, spec = family.texts, settings.engineer.spec
    score = scorer(model, params)
    return {
        control: reading.read(questions(family, texts, spec, rule, count, control), score)
        for control in CONTROLS
    }


def main(argv: Sequence[str]) -> None:
    """Runs the command; user errors end it with one line."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected arguments {argv[1:]}; options look like --name=value")
    process.quieten()
    less = "--config.model.dtype=bfloat16 and a shorter --config.engineer.context need less"
    with ended_in_one_line(), memory_errors(less):
        with user_errors():
            settings = settings_lib.from_config(_CONFIG.value)
        found = measure(settings, _RULE.value, _QUESTIONS.value)
    print(
        f"{settings.model.path} on {settings.family}: {_QUESTIONS.value} pairs of contexts "
        f"{settings.engineer.context}, designs by {_RULE.value}; without reading 50 %"
    )
    print("\n".join(table(found)))
    print(verdict(found))


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
