"""Which modules an engineer is shown, and in which order: the variants V1 to V6 and any other."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from engineer import modules
from engineer.record import RunRecord
from engineer.texts import SUMMARY_REQUEST, FamilyTexts

Message = dict[str, str]
"""One chat message: {"role": .., "content": ..}."""


@dataclasses.dataclass(frozen=True)
class ContextSpec:
    """A combination of modules. Module F, the evidence of failures, is always there.

    Attributes:
      guideline: show module G.
      history: module H: "none", "designed" (without the rounds that nobody designed, that is
        the random round 0), or "all".
      summary: show module S, and ask for the explanation that it carries forward.
      training: module T: "none", "bookkeeping" or "full".
      details: show module D, statistics of the validation beyond counts. Not in the publication.
      results: show module R, what training showed. Not in the publication.
      examples: number of failures drawn by module E, of training and never of validation. Not in
        the publication.
    """

    guideline: bool = False
    history: Literal["none", "designed", "all"] = "none"
    summary: bool = False
    training: Literal["none", "bookkeeping", "full"] = "none"
    details: bool = False
    results: bool = False
    examples: int = 0

    def __post_init__(self) -> None:
        if self.examples < 0:
            raise ValueError(f"examples={self.examples}: must be at least 0")


VARIANTS = {
    "V1": ContextSpec(),
    "V2": ContextSpec(guideline=True),
    "V3": ContextSpec(guideline=True, history="all"),
    "V4": ContextSpec(guideline=True, history="designed"),
    "V5": ContextSpec(guideline=True, history="designed", summary=True),
    "V6": ContextSpec(guideline=True, history="designed", training="bookkeeping"),
}
"""The variants of "From Trainee to Trainer" (arXiv 2606.17682) by name."""

DEFAULT_VARIANT = "V6"


def blocks(spec: ContextSpec, record: RunRecord, family: FamilyTexts) -> list[str]:
    """The texts of a context in order: instruction, modules, rows, output format.

    Raises:
      ValueError: the record lacks what a module shows.
    """
    texts = [family.instruction]
    if spec.guideline:
        texts.append(family.guideline)
    if spec.history != "none":
        texts.append(modules.block("history", record, family, spec.history == "all"))
    texts.append(modules.block("failures", record, family))
    if spec.details:
        texts.append(modules.block("details", record, family))
    if spec.results:
        texts.append(modules.block("training_results", record, family))
    if spec.examples:
        texts.append(modules.block("examples", record, spec.examples))
    if spec.summary:
        texts.append(modules.block("summary", record))
    if spec.training != "none":
        texts.append(modules.block("training", record, spec.training == "full"))
    texts += [modules.block("rows", record, family), family.output_format]
    return [*texts, SUMMARY_REQUEST] if spec.summary else texts


def compose(spec: ContextSpec, record: RunRecord, family: FamilyTexts) -> list[Message]:
    """The chat that asks for the next configuration: one user message of all blocks."""
    return [{"role": "user", "content": "\n\n".join(blocks(spec, record, family))}]


def fitted(
    spec: ContextSpec,
    record: RunRecord,
    family: FamilyTexts,
    fits: Callable[[Sequence[Message]], bool],
) -> tuple[list[Message], tuple[str, ...]] | None:
    """The longest context that fits, and what was left out of it.

    Left out are, each only if all before it were not enough: the rounds of the history, oldest
    first; the rest of module H; the drawn examples, last first; modules R and D; the full form of
    module T, of which the bookkeeping stays; the explanation of module S; the guideline. The
    instruction, module F and the output format are never cut, and no module is cut within.

    Returns:
      The chat and one line for each thing left out; None if even the shortest does not fit.
    """
    notes: list[str] = []
    for shorter, shown, note in _shortenings(spec, record):
        if note:
            notes.append(f"context: {note} left out, to fit the model's window")
        chat = compose(shorter, shown, family)
        if fits(chat):
            return chat, tuple(notes)
    return None


def _shortenings(
    spec: ContextSpec, record: RunRecord
) -> Iterator[tuple[ContextSpec, RunRecord, str]]:
    yield spec, record, ""
    if spec.history != "none":
        for past in modules.shown_history(record, spec.history == "all")[:-1]:
            kept = tuple(r for r in record.history if r.round > past.round)
            record = dataclasses.replace(record, history=kept)
            yield spec, record, f"round {past.round} of the history"
        spec = dataclasses.replace(spec, history="none")
        yield spec, record, "the history"
    while spec.examples:
        spec = dataclasses.replace(spec, examples=spec.examples - 1)
        yield spec, record, f"example {spec.examples + 1}"
    reductions: tuple[tuple[str, Any, str], ...] = (
        ("results", False, "the results of training"),
        ("details", False, "the details of the validation"),
        ("training", "bookkeeping", "the training details"),
        ("summary", False, "the explanation"),
        ("guideline", False, "the guideline"),
    )
    for field, less, note in reductions:
        if getattr(spec, field) not in (less, "none"):
            spec = dataclasses.replace(spec, **{field: less})
            yield spec, record, note
