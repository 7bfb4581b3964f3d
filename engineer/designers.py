"""Who designs the next training environment: language models and the baselines."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from engineer import proposal
from engineer.context import ContextSpec, Message, fitted
from engineer.evidence import JsonValue
from engineer.record import RunRecord
from engineer.space import Cell, Configuration, ConfigurationSpace
from engineer.texts import FamilyTexts

Generate = Callable[[Sequence[Message], int], str]
"""Answers one chat: (messages, seed) -> text."""


class NoAnswerError(Exception):
    """A model gave no answer, for the stated reason; asking again may help."""


@dataclasses.dataclass(frozen=True)
class Design(JsonValue):
    """A configuration for the next round and where it comes from.

    Attributes:
      config: the configuration, always one of the space.
      source: name of the designer.
      context_messages: the chat that was sent; empty if no model was asked.
      raw_texts: the answers in order, one for each try.
      repairs: every change made to shorten the context and to read and project the answer.
      kept_previous: True if the latest configuration is used again, because none was proposed (it
        may still be clipped to the bounds of the space; see `repairs`).
      reason: why it was kept; empty if it was not.
      nothing: why a model that was asked designed nothing, whatever `config` is: no answer, none
        that can be read, or `proposal.designs_nothing`; empty if it designed something.
      summary: the explanation that a context with module S carries forward; empty if the context
        did not ask for one.
    """

    config: Configuration
    source: str
    context_messages: tuple[Mapping[str, str], ...] = ()
    raw_texts: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    kept_previous: bool = False
    reason: str = ""
    nothing: str = ""
    summary: str = ""


Designer = Callable[[RunRecord, ConfigurationSpace, int], Design]
"""Designs the configuration of round `record.round`: (record, space, seed) -> the design.

It is deterministic given its arguments (and the model, if one is asked).
"""


@dataclasses.dataclass(frozen=True)
class ModelDesigner:
    """A language model designs: the current checkpoint, the base model, an endpoint.

    Attributes:
      generate: answers chats.
      family: texts of the environment family.
      spec: the modules of the context.
      tries: most samples drawn until one can be read, at least 1, each with its own seed.
      trigger: text that precedes the configuration in an answer, if any.
      source: name under which the designs are recorded.
      fits: whether a chat fits the model's window; `context.fitted` shortens contexts that do not.
    """

    generate: Generate
    family: FamilyTexts
    spec: ContextSpec
    tries: int = 3
    trigger: str = ""
    source: str = "current"
    fits: Callable[[Sequence[Message]], bool] = lambda chat: True

    def __call__(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The first readable answer, projected; the previous configuration if none can be read.

        Raises:
          NoAnswerError: there was no answer at all, at any try.
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
                if not texts and attempt + 1 == self.tries:
                    raise
                reasons.append(f"try {attempt}: {error}")
                continue
            texts.append(text)
            read = proposal.parse(text, space, self.trigger)
            if isinstance(read, proposal.Unreadable):
                reasons.append(f"try {attempt}: {read.reason}")
                continue
            config, repairs = proposal.project(read, space)
            return Design(
                config=config,
                source=self.source,
                context_messages=tuple(messages),
                raw_texts=tuple(texts),
                repairs=(*left_out, *repairs),
                nothing=proposal.designs_nothing(read, config, record.config, space),
                summary=read.explanation if self.spec.summary else "",
            )
        return dataclasses.replace(
            keep(record, space, self.source, "; ".join(reasons)),
            context_messages=tuple(messages),
            raw_texts=tuple(texts),
            nothing="no answer could be read" if texts else "no answer",
            summary=(self.spec.summary and record.summary) or "",  # Of the kept configuration.
        )


def fixed(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """The baseline without an engineer: every round keeps the previous configuration."""
    return keep(record, space, "fixed", "this designer changes nothing")


def first(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """The configuration of the oldest round known, which in a run is round 0, again."""
    return projected(space, record.history[0].config.cells(), "first")


def random(record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
    """Domain randomisation: a new draw of `ConfigurationSpace.random` from seed and round."""
    drawn = space.random(np.random.SeedSequence([seed, record.round]))
    return Design(config=drawn, source="random")


def keep(record: RunRecord, space: ConfigurationSpace, source: str, reason: str) -> Design:
    """The latest configuration, with the repairs of clipping it."""
    kept = projected(space, record.config.cells(), source)
    return dataclasses.replace(kept, kept_previous=True, reason=reason)


def divided(
    record: RunRecord, space: ConfigurationSpace, weights: Sequence[float], source: str
) -> Design:
    """The current configuration with fractions in proportion to the weights of the rows."""
    return projected(space, record.config.cells() | space.divided(weights), source)


def projected(space: ConfigurationSpace, cells: Mapping[Cell, float], source: str) -> Design:
    """The configuration of these cells, projected on the space."""
    config, repairs = proposal.project(proposal.Proposal.from_cells(cells), space)
    return Design(config=config, source=source, repairs=repairs)
