"""Reading by likelihood: is the design that matches the evidence the likelier one?

A model that cannot write a design yet, or one under a grammar, always gives some configuration.
Here it only has to find one of two designs likelier than the other, in contexts that differ in
their evidence alone, so that what it reads can be measured before a run relies on it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

import numpy as np

from engineer import context
from engineer.context import ContextSpec, Message
from engineer.controls import exchanged, with_rows_renamed
from engineer.designers import Designer
from engineer.proposal import render_config
from engineer.record import RunRecord
from engineer.space import ConfigurationSpace
from engineer.texts import FamilyTexts

Control = Literal["plain", "order", "names"]
"""How contexts are written: as in runs; with the rows of every table in another order, which a
model that copies by position does not survive; or with letters for the names of the rows, in which
a model that knows its rows by heart finds nothing."""

CONTROLS: tuple[Control, ...] = get_args(Control)

Scorer = Callable[[Sequence[tuple[Sequence[Message], Sequence[str]]]], Sequence[Sequence[float]]]
"""From chats with possible answers to the log-likelihood of each answer, in nats."""

_PERMUTATIONS = 20
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclasses.dataclass(frozen=True)
class Question:
    """Two contexts that differ in their evidence alone.

    Attributes:
      contexts: two chats; in the second the rows have exchanged their outcomes.
      answers: the design that matches each context, as an engineer writes it.
    """

    contexts: tuple[Sequence[Message], Sequence[Message]]
    answers: tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Reading:
    """What a model makes of N questions.

    Attributes:
      questions: N.
      likelier: fraction of the 2 N contexts in which the matching design is the likelier one.
        Without reading it is 1/2: a design that is likelier anyway is right in one of two contexts.
      follows: questions in which exchanging the evidence moves the likelihoods of the two designs
        the right way, whichever of them is likelier anyway; about N/2 without reading.
      margin: mean log-likelihood, in nats, that a design gains where it matches.
    """

    questions: int
    likelier: float
    follows: int
    margin: float


def question(
    record: RunRecord,
    space: ConfigurationSpace,
    family: FamilyTexts,
    spec: ContextSpec,
    rule: Designer,
    seed: int,
    control: Control = "plain",
) -> Question | None:
    """Makes a question of a record.

    Args:
      record: of a run, made up or not.
      space: its rows and bounds.
      family: its texts.
      spec: the modules of the contexts.
      rule: whose designs match; it must read the evidence that `spec` shows.
      seed: of all that is random.
      control: how the contexts are written.

    Returns:
      The question; None if the rule makes the same design of all exchanged evidence that was tried.
    """
    rng = np.random.default_rng(seed)
    if control == "names":
        names = rng.permutation(_row_names(space))[: len(space.rows)].tolist()
        record = with_rows_renamed(record, dict(zip(space.rows, names, strict=True)), True)
        space = dataclasses.replace(space, rows=tuple(names))
    matching = render_config(rule(record, space, seed).config, space)
    for _ in range(_PERMUTATIONS):
        other = with_rows_renamed(record, exchanged(space, rng))
        answer = render_config(rule(other, space, seed).config, space)
        if answer != matching:
            break
    else:
        return None
    first, second = (context.compose(spec, one, family) for one in (record, other))
    if control == "order":
        order = rng.permutation(len(space.rows)).tolist()
        first, second = (_reordered(chat, family.label, order) for chat in (first, second))
    return Question((first, second), (matching, answer))


def _row_names(space: ConfigurationSpace) -> list[str]:
    """At least 26 names that no parameter has: a to z, and where these are too few aa, ab, ..."""
    words = (word for n in itertools.count(1) for word in itertools.product(_LETTERS, repeat=n))
    taken = {name.lower() for name in space.names}
    free = (name for name in map("".join, words) if name not in taken)
    return list(itertools.islice(free, max(len(_LETTERS), len(space.rows))))


def _reordered(chat: Sequence[Message], label: str, order: Sequence[int]) -> list[Message]:
    """A chat in which the lines of every table with a line for each row come in another order."""

    def text(content: str) -> str:
        lines = content.split("\n")
        starts = [i for i, line in enumerate(lines) if line.startswith(f"{label} ")]
        for first in starts:
            table = range(first, first + len(order))
            if first - 1 not in starts and set(table) <= set(starts):
                lines[first : table.stop] = [lines[first + i] for i in order]
        return "\n".join(lines)

    return [{**message, "content": text(message["content"])} for message in chat]


def read(questions: Iterable[Question], score: Scorer) -> Reading:
    """Scores both designs in both contexts of at least one question."""
    asked = list(questions)
    pairs = [(chat, one.answers) for one in asked for chat in one.contexts]
    scores = np.asarray(score(pairs), np.float64).reshape(-1, 2, 2)  # Question, context, answer.
    of_first = scores[:, :, 0] - scores[:, :, 1]
    gains = of_first[:, 0] - of_first[:, 1]
    likelier = np.stack([of_first[:, 0] > 0, of_first[:, 1] < 0])
    return Reading(
        len(asked), float(likelier.mean()), int((gains > 0).sum()), float(gains.mean() / 2)
    )
