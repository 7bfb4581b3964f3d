"""Contexts for the engineer: ordered modules, as the variants V1 to V6 or any other combination.

F failure breakdown, G guideline, H history, S summary and T training details are those of "From
Trainee to Trainer" (arXiv 2606.17682). D validation details, R training results and E examples of
failures are additions.
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from engineer.record import RoundRecord, RunRecord
from engineer.space import ordered_rows
from engineer.texts import NO_HISTORY, NO_SUMMARY, SUMMARY_REQUEST, FamilyTexts, macros

Message = dict[str, str]
"""One chat message: {"role": .., "content": ..}."""


@dataclasses.dataclass(frozen=True)
class ContextSpec:
    """A combination of modules. Module F, the evidence of failures, is always included.

    Attributes:
      guideline: show module G.
      neutral: module G explains what the numbers do but gives no advice. Not in the publication.
      history: module H: "none", "designed" (without the rounds on the first configuration, which
        nobody designed), or "all".
      summary: show module S, and ask for the explanation that it carries forward.
      training: module T: "none", "bookkeeping" or "full".
      current: show the configuration to be replaced if module H does not. Not in the publication.
      details: show module D, statistics of the validation beyond counts. Not in the publication.
      results: show module R, the results of training. Not in the publication.
      examples: number of failures drawn by module E, from training and never from validation. Not
        in the publication.
    """

    guideline: bool = False
    history: Literal["none", "designed", "all"] = "none"
    summary: bool = False
    training: Literal["none", "bookkeeping", "full"] = "none"
    current: bool = False
    details: bool = False
    results: bool = False
    examples: int = 0
    neutral: bool = False

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


def context_spec(text: str) -> ContextSpec:
    """Reads a variant and what is added to it, such as "V6" or "V4+current+training=full".

    Raises:
      ValueError: a part is unknown; the message says what is allowed.
    """
    variant, *parts = text.split("+")
    if variant not in VARIANTS:
        raise ValueError(
            f"context={text!r}: allowed are {', '.join(VARIANTS)}, alone or with modules added as "
            "in 'V4+current+training=full'"
        )
    allowed: dict[str, Any] = {}
    for name, kind in typing.get_type_hints(ContextSpec).items():
        if kind is bool:
            allowed[name] = (name, True)
        elif kind is not int:
            choices = typing.get_args(kind)[1:]  # Without "none".
            allowed.update({f"{name}={choice}": (name, choice) for choice in choices})
    added: dict[str, Any] = {}
    for part in parts:
        examples = re.fullmatch(r"examples=(\d{1,3})", part)
        if part not in allowed and not examples:
            raise ValueError(
                f"context={text!r}: {part!r} is unknown; allowed are {', '.join(allowed)} and "
                "examples=N"
            )
        name, value = ("examples", int(examples[1])) if examples else allowed[part]
        added[name] = value
    return dataclasses.replace(VARIANTS[variant], **added)


TRAINING_DETAILS = ("objective", "reward", "schedule")
"""Parts of the full form of module T; `RunRecord.training` holds a text for each."""


def module(name: str, *arguments: Any) -> str:
    """The text of one module.

    Args:
      name: its macro in `modules.txt`, which documents what the module shows.
      arguments: of the macro, such as the record of the run and the texts of the family.
    """
    return getattr(_MODULES, name)(*arguments).removesuffix("\n")


def shown_history(record: RunRecord, cold_start: bool) -> tuple[RoundRecord, ...]:
    """The rounds that module H shows, with or without the cold start."""
    return tuple(past for past in record.history if cold_start or not past.cold_start)


def blocks(spec: ContextSpec, record: RunRecord, family: FamilyTexts) -> list[str]:
    """The texts of a context in order: instruction, modules, rows, output format.

    Raises:
      ValueError: module T is "full", and `record.training` lacks one of `TRAINING_DETAILS`.
    """
    full = spec.training == "full"
    if full and (
        missing := [one for one in TRAINING_DETAILS if one not in (record.training or {})]
    ):
        raise ValueError(f"training: {missing} missing, needed: {TRAINING_DETAILS}")
    shown = shown_history(record, spec.history == "all") if spec.history != "none" else ()
    current = spec.current and record.history[-1] not in shown
    latest = record.history[-1].evidence.training
    short = latest is not None and bool(latest.shortfalls)
    texts: list[str | Literal[False]] = [
        family.instruction,
        spec.guideline and (family.neutral_guideline if spec.neutral else family.guideline),
        spec.history != "none" and module("history", record, family, spec.history == "all"),
        current and module("current", record, family),
        module("failures", record, family),
        short and module("shortfalls", record, family),
        spec.details and module("details", record, family),
        spec.results and module("training_results", record, family),
        spec.examples > 0 and module("examples", record, spec.examples),
        spec.summary and module("summary", record),
        spec.training != "none" and module("training", record, full),
        module("rows", record, family),
        family.output_format,
        spec.summary and SUMMARY_REQUEST,
    ]
    return [text for text in texts if text is not False]


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

    Parts are left out one by one until the rest fits: the rounds of the history, oldest first; the
    rest of module H; the drawn examples, last first; modules R and D; the full form of module T
    (the bookkeeping stays); the explanation of module S; the current configuration; the guideline.
    The instruction, module F, what the generator could not make and the output format always stay,
    and no module is truncated.

    Returns:
      The chat and one line for each part left out; None if even the shortest does not fit.
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
        for past in shown_history(record, spec.history == "all")[:-1]:
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
        ("current", False, "the current configuration"),
        ("guideline", False, "the guideline"),
    )
    for field, less, note in reductions:
        if getattr(spec, field) not in (less, "none"):
            spec = dataclasses.replace(spec, **{field: less})
            yield spec, record, note


_MODULES = macros(
    "modules.txt",
    NO_HISTORY=NO_HISTORY,
    NO_SUMMARY=NO_SUMMARY,
    failing=lambda row, checks: sum(row.failed[check] for check in checks),
    ordered_rows=ordered_rows,
    shown_history=shown_history,
)
