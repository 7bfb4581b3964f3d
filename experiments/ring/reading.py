"""Whether the engineer reads its evidence, measured before a run relies on its designs.

Of two designs, the model should find the one likelier that matches the evidence in its context
(`engineer.reading`). The contexts are made up, for the family and the context of a run, and are the
same in every round, so that readings of one model in training compare.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

from engineer import reading
from engineer.context import ContextSpec, Message
from engineer.curricula import BY_RULE
from engineer.reading import Control, Question, Reading, Scorer
from experiments import name_of
from experiments.families import Family, demonstrations
from experiments.run.policy import Policy
from experiments.settings import Settings
from experiments.statistics import Interval, wilson
from experiments.text.errors import UserError
from learner import tokens
from learner.decoder.config import DecoderConfig
from learner.devices import distributed, sharding
from learner.training import sft
from learner.training.batches.packed_sequences import OnePart, PackedSequences, packed_logprobs

CHANCE = 0.5
RULES = ("target", "mastery")
"""Whose designs match the evidence in a run: the rules by which `experiments.warm_start` teaches. A
model that was taught one may be at chance by the other."""
INSTEAD = (
    "use a rule (--config.engineer.designer=learnability), an endpoint, or a model that was "
    "warm-started on designs"
)
_QUESTIONS, _LENGTH_MULTIPLE, _LENGTHS = 8, 32, 2


def scorer(model: Policy, params: Any) -> Scorer:
    """The log-likelihood of answers, stop token included, under a model.

    Raises:
      UserError: (by the scorer) a chat with its answer is longer than the model's window.
    """
    pad_id = tokens.pad_id(model.tokenizer)

    def score(pairs: Sequence[tuple[Sequence[Message], Sequence[str]]]) -> list[list[float]]:
        flat = [(chat, answer) for chat, answers in pairs for answer in answers]
        encoded = iter(sft.encode_examples(model.tokenizer, flat))
        examples = [[next(encoded) for _ in answers] for _, answers in pairs]
        longest = [
            max(len(e.prompt) + len(e.completion) for e in question) for question in examples
        ]
        if max(longest) > (window := model.config.max_position_embeddings):
            raise UserError(
                f"a context with its design takes {max(longest)} tokens, the model has {window}; "
                "allowed are a shorter engineer.context and families with fewer rows"
            )
        scores: list[list[float]] = [[] for _ in pairs]
        order = sorted(range(len(pairs)), key=lambda i: len(examples[i][0].prompt))
        shards = sharding.num_batch_shards(model.mesh)
        size = -(-_QUESTIONS // shards) * shards
        for first in range(0, len(order), size):
            chosen = order[first : first + size]
            found = _log_likelihoods(params, model, [examples[i] for i in chosen], size, pad_id)
            for i, one in zip(chosen, found.tolist(), strict=True):
                scores[i] = one
        return scores

    return score


def _log_likelihoods(
    params: Any, model: Policy, asked: Sequence[Sequence[sft.Example]], size: int, pad_id: int
) -> np.ndarray:
    """f64[Q, A] for Q questions of A examples with the same prompt, in nats; padded to `size`."""

    def bucket(length: int) -> int:
        return tokens.geometric_bucket(length, _LENGTH_MULTIPLE, _LENGTHS)

    prompt = max(len(question[0].prompt) for question in asked)
    completions = [[example.completion for example in question] for question in asked]
    whole = max(
        len(question[0].prompt) + sum(map(len, of))
        for question, of in zip(asked, completions, strict=True)
    )
    window = bucket(max(len(one) for of in completions for one in of))
    length = max(bucket(whole), bucket(prompt) + window)
    parts = [
        (question[0].prompt, list(map(np.array, of)))
        for question, of in zip(asked, completions, strict=True)
    ]
    bounds = OnePart(len(asked[0]), bucket(prompt), window)
    packed, slots = PackedSequences.of_parts(parts, size, length, pad_id, bounds)
    packed.weights[packed.completions > 0] = 1
    with sharding.use(model.mesh):
        batch = distributed.put(packed, sharding.batch_sharding(model.mesh))
        logprobs = np.asarray(_logprobs(params, model.config, batch), np.float64)
    return np.array([[logprobs[i, at].sum() for at in of] for i, of in enumerate(slots)])


@functools.partial(jax.jit, static_argnums=1)
def _logprobs(params: Any, config: DecoderConfig, batch: PackedSequences) -> jax.Array:
    logprobs, _ = packed_logprobs(params, config, batch)
    return jax.lax.with_sharding_constraint(logprobs, PartitionSpec())  # Every process reads it.


def questions(
    family: Family, spec: ContextSpec, rule: str, count: int, control: Control
) -> Iterator[Question]:
    """Yields `count` questions about made-up runs; those about which a rule has none are skipped.

    Raises:
      UserError: the rule makes the same design of hardly any evidence and its permutation.
    """
    made, texts = 0, family.texts
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


def measure(settings: Settings, family: Family, model: Policy, params: Any) -> dict[str, Reading]:
    """Reads the questions of a run by each of `RULES`, those left out by which none fit.

    Raises:
      UserError: of the `scorer`.
    """
    engineer, score, found = settings.engineer, scorer(model, params), {}
    for rule in RULES:
        count = engineer.reading_questions
        try:
            asked = list(questions(family, engineer.spec, rule, count, "plain"))
        except UserError:
            continue
        found[rule] = reading.read(asked, score)
    return found


def summary(found: Mapping[str, Reading]) -> str:
    """A line on how often a model follows evidence, from its readings by rule, at least one."""
    parts = []
    for rule, one in found.items():
        low, high = interval(one)
        parts.append(
            f"in {one.follows} of {one.questions} cases by the rule {rule} "
            f"(95 %: {low:.0%} to {high:.0%})"
        )
    return f"designs follow made-up evidence {', '.join(parts)}; 50 % is chance"


def advice(found: Mapping[str, Reading]) -> list[str]:
    """A line on what to use instead of a model that is at chance by all rules; none otherwise."""
    if any(interval(one).low > CHANCE for one in found.values()):
        return []
    return [f"it may not read: ask more with {name_of('reading')}, or {INSTEAD}"]
