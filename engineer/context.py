"""Which modules an engineer is shown, and in which order: the variants V1 to V6."""

import dataclasses
from typing import Literal

from engineer import modules
from engineer.evidence import RunRecord

Message = dict[str, str]
"""One chat message: {"role": .., "content": ..}."""

HISTORY = ("none", "designed", "all")
TRAINING = ("none", "bookkeeping", "full")


@dataclasses.dataclass(frozen=True)
class ContextSpec:
    """A combination of modules. Module F, the evidence of failures, is always there.

    Attributes:
      guideline: show module G.
      history: module H: "none", "designed" (without the rounds that nobody designed, that is
        the random round 0), or "all".
      summary: show module S, and ask for the explanation that it carries forward.
      training: module T: "none", "bookkeeping" or "full".

    Raises:
      ValueError: `history` or `training` has another value.
    """

    guideline: bool = False
    history: Literal["none", "designed", "all"] = "none"
    summary: bool = False
    training: Literal["none", "bookkeeping", "full"] = "none"

    def __post_init__(self) -> None:
        if self.history not in HISTORY:
            raise ValueError(f"history={self.history!r} is unknown, allowed: {HISTORY}")
        if self.training not in TRAINING:
            raise ValueError(f"training={self.training!r} is unknown, allowed: {TRAINING}")


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


def variant(name: str) -> ContextSpec:
    """The variant of that name.

    Raises:
      ValueError: there is none; the message lists those there are.
    """
    if name not in VARIANTS:
        raise ValueError(f"variant={name!r} is unknown, allowed: {tuple(VARIANTS)}")
    return VARIANTS[name]


def blocks(spec: ContextSpec | str, record: RunRecord) -> list[str]:
    """The texts of a context in order: instruction, modules, sizes, output format."""
    if isinstance(spec, str):
        spec = variant(spec)
    texts = [modules.INSTRUCTION]
    if spec.guideline:
        texts.append(modules.guideline(record))
    if spec.history != "none":
        texts.append(modules.history(record, cold_start=spec.history == "all"))
    texts.append(modules.failures(record))
    if spec.summary:
        texts.append(modules.summary(record))
    if spec.training == "bookkeeping":
        texts.append(modules.bookkeeping(record))
    elif spec.training == "full":
        texts.append(modules.training_details(record))
    texts.append(modules.sizes(record))
    texts.append(modules.OUTPUT_FORMAT)
    if spec.summary:
        texts.append(modules.SUMMARY_REQUEST)
    return texts


def compose(spec: ContextSpec | str, record: RunRecord) -> list[Message]:
    """The chat that asks for the next configuration: one user message.

    Args:
      spec: a combination of modules, or the name of a variant.
      record: the record of the run.

    Raises:
      ValueError: the name is unknown, or the record lacks what a module shows.
    """
    return [{"role": "user", "content": "\n\n".join(blocks(spec, record))}]
