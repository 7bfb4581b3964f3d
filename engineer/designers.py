"""Who designs the next training environment: language models and the baselines."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from engineer import proposal
from engineer.context import ContextSpec, Message, fitted
from engineer.evidence import JsonValue
from engineer.record import RunRecord
from engineer.space import Configuration, ConfigurationSpace
from engineer.texts import FamilyTexts

Generate = Callable[[Sequence[Message], int], str]
"""Answers one chat: (messages, seed) -> text."""


class NoAnswerError(Exception):
    """A model could not be asked, for the stated reason; asking again may help."""


@dataclasses.dataclass(frozen=True)
class Design(JsonValue):
    """A configuration for the next round and where it comes from.

    Attributes:
      config: the configuration, always one of the space.
      source: name of the designer.
      context_messages: the chat that was asked; empty if no model was asked.
      raw_texts: the answers in the order in which they were given, one for each try.
      repairs: every change that shortening the context, reading and projecting the answer took.
      kept_previous: True if the configuration is an earlier one because nobody proposed another
        or the last one was not accepted (it may still be clipped to the bounds of the space; see
        `repairs`).
      reason: why an earlier configuration was kept; empty if none was.
      summary: the explanation that a context with module S carries forward; empty if the
        context did not ask for one.
    """

    config: Configuration
    source: str
    context_messages: tuple[Mapping[str, str], ...] = ()
    raw_texts: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    kept_previous: bool = False
    reason: str = ""
    summary: str = ""


Designer = Callable[[RunRecord, ConfigurationSpace, int], Design]
"""Designs the configuration of round `record.round`: (record, space, seed) -> the design.

It is deterministic in its arguments (and the model, where one is asked).
"""


@dataclasses.dataclass(frozen=True)
class ModelDesigner:
    """A language model designs: the current checkpoint, the base model, an endpoint.

    Attributes:
      generate: answers chats.
      family: of the environment family.
      spec: which modules the model is shown.
      tries: how often the model is asked until an answer can be read, at least 1. Every try has
        its own seed.
      trigger: text after which the configuration stands, if the answers have one.
      source: name under which the designs are recorded.
      fits: whether the model's window holds a chat. As long as it does not, parts are left out of
        the context in the order that `context.fitted` states.
    """

    generate: Generate
    family: FamilyTexts
    spec: ContextSpec
    tries: int = 3
    trigger: str = ""
    source: str = "current"
    fits: Callable[[Sequence[Message]], bool] = lambda chat: True

    def __call__(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The first answer that can be read, projected.

        Without a readable answer it is the previous configuration.
        """
        found = fitted(self.spec, record, self.family, self.fits)
        messages, left_out = found or ([], ())
        texts: list[str] = []
        reasons = [] if found else ["the context does not fit the model's window"]
        for attempt in range(self.tries if found else 0):
            seed_of_try = int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0]) >> 1
            try:
                text = self.generate(messages, seed_of_try)
            except NoAnswerError as error:
                reasons.append(f"try {attempt}: {error}")
                continue
            texts.append(text)
            read = proposal.parse(text, space, self.trigger)
            if isinstance(read, proposal.Unreadable):
                reasons.append(f"try {attempt}: {read.reason}")
                continue
            config, repairs = proposal.project(read, record.config, space)
            return Design(
                config=config,
                source=self.source,
                context_messages=tuple(messages),
                raw_texts=tuple(texts),
                repairs=(*left_out, *repairs),
                summary=read.explanation if self.spec.summary else "",
            )
        return dataclasses.replace(
            keep(record, space, self.source, "; ".join(reasons)),
            context_messages=tuple(messages),
            raw_texts=tuple(texts),
            summary=(self.spec.summary and record.summary) or "",  # That of what is kept.
        )


def fixed(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """The baseline without an engineer: every round has the configuration of the one before."""
    return keep(record, space, "fixed", "this designer changes nothing")


def random(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """Domain randomisation: every round has a new random configuration.

    It is a draw of `ConfigurationSpace.random` that depends on the seed and the round.
    """
    drawn = space.random(np.random.SeedSequence([seed, record.round]))
    return Design(config=drawn, source="random")


@dataclasses.dataclass(frozen=True)
class AcceptanceTest:
    """Takes a design back after the fact: a designer around any other one.

    Where the latest round's validation is worse than that of the round before by more than
    `margin`, the next configuration is that of the round before, and the inner designer is not
    asked. The weights are not taken back, only the environment. It does not fire twice in a row:
    a configuration that was restored is given the chance to be improved on.

    Attributes:
      inner: who designs otherwise.
      margin: fall of the valid rate over all rows, in [0, 1], that is still accepted.
    """

    inner: Designer
    margin: float

    def __call__(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The inner design, or the configuration of the round before the latest."""
        if len(record.history) >= 2:
            before, latest = record.history[-2:]
            fall = before.breakdown.valid_rate - latest.breakdown.valid_rate
            restored = len(record.history) >= 3 and record.history[-3].config == latest.config
            if fall > self.margin and before.config != latest.config and not restored:
                reason = (
                    f"the valid rate fell by {fall:.3f} in round {latest.round}, more than "
                    f"{self.margin:g}: back to the configuration of round {before.round}"
                )
                kept = keep(record, space, "rollback", reason, before.config)
                return dataclasses.replace(kept, summary=before.summary or "")
        return self.inner(record, space, seed)


def keep(
    record: RunRecord,
    space: ConfigurationSpace,
    source: str,
    reason: str,
    config: Configuration | None = None,
) -> Design:
    """An earlier configuration (the latest if none is given), clipped to the space aloud."""
    earlier = record.config if config is None else config
    unchanged = proposal.Proposal.from_cells(earlier.cells())
    kept, repairs = proposal.project(unchanged, record.config, space)
    return Design(config=kept, source=source, repairs=repairs, kept_previous=True, reason=reason)
