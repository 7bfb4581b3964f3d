"""Who designs the next training environment."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from engineer import proposal
from engineer.context import DEFAULT_VARIANT, ContextSpec, Message, compose, variant
from engineer.evidence import RunRecord
from engineer.space import ConfigurationSpace, share_cents, two_decimals
from mapf_jax.environment_config import EnvironmentConfig

Generate = Callable[[Sequence[Sequence[Message]], int], Sequence[str]]
"""Answers chats: (one list of messages for each chat, seed) -> one text for each chat."""

MAX_RANDOM_HOLE_RATIO = 0.5
"""Cap on the random hole ratio. In denser lakes two random cells are seldom connected (on a
10 x 10 lake half of holes about one pair of agents in seven can reach its goals), so a generator
would hardly fill its set; the benchmark of the publication stops at 0.5 as well."""


@dataclasses.dataclass(frozen=True)
class Design:
    """A configuration for the next round and where it comes from.

    Attributes:
      config: the configuration, always one of the space.
      source: name of the designer.
      context_messages: the chat that was asked; empty if no model was asked.
      raw_texts: the answers in the order in which they were tried.
      repairs: every change that reading and projecting the accepted answer took.
      kept_previous: True if the configuration is the previous one because nobody proposed
        another (which may still be clipped to the bounds of the space; see `repairs`).
      reason: why the previous configuration was kept; empty if it was not.
      summary: the explanation that a context with module S carries forward; empty if the
        context did not ask for one.
    """

    config: EnvironmentConfig
    source: str
    context_messages: tuple[Mapping[str, str], ...] = ()
    raw_texts: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    kept_previous: bool = False
    reason: str = ""
    summary: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A mapping ready for JSON."""
        return {
            "config": self.config.to_dict(),
            "source": self.source,
            "context_messages": [dict(message) for message in self.context_messages],
            "raw_texts": list(self.raw_texts),
            "repairs": list(self.repairs),
            "kept_previous": self.kept_previous,
            "reason": self.reason,
            "summary": self.summary,
        }


class Designer(Protocol):
    """Designs the configuration of round `record.round`."""

    def design(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The design; deterministic in its arguments (and the model, where one is asked).

        Args:
          record: the run so far; its latest configuration has the sizes of the space.
          space: the sizes and bounds to choose from.
          seed: at least 0.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ModelDesigner:
    """A language model designs: the current checkpoint, the base model, an endpoint.

    Attributes:
      generate: answers chats.
      spec: which modules the model is shown.
      tries: how often the model is asked until an answer can be read, at least 1. Every try has
        its own seed.
      source: name under which the designs are recorded.
      fits: whether the model's window holds a chat. As long as it does not, the oldest round of
        the history is left out of the context.
    """

    generate: Generate
    spec: ContextSpec = dataclasses.field(default_factory=lambda: variant(DEFAULT_VARIANT))
    tries: int = 3
    source: str = "current"
    fits: Callable[[Sequence[Message]], bool] = lambda chat: True

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise ValueError(f"tries={self.tries}: must be at least 1")

    def design(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The first readable answer, projected; without one the previous configuration.

        Raises:
          ValueError: `generate` does not return exactly one text.
        """
        messages, left_out = self._context(record)
        if not self.fits(messages):
            return dataclasses.replace(
                _keep(record, space, self.source, "the context does not fit the model's window"),
                context_messages=tuple(messages),
            )
        texts: list[str] = []
        reasons: list[str] = []
        for attempt in range(self.tries):
            seed_of_try = int(np.random.SeedSequence([seed, attempt]).generate_state(1)[0]) >> 1
            answers = self.generate([messages], seed_of_try)
            if len(answers) != 1:
                raise ValueError(f"generate: {len(answers)} texts for one chat, allowed: 1")
            texts.append(answers[0])
            reading = proposal.parse(answers[0], space.sizes)
            if isinstance(reading, proposal.Unreadable):
                reasons.append(f"try {attempt}: {reading.reason}")
                continue
            config, repairs = proposal.project(reading, record.config, space)
            return Design(
                config=config,
                source=self.source,
                context_messages=tuple(messages),
                raw_texts=tuple(texts),
                repairs=(*left_out, *repairs),
                summary=reading.explanation if self.spec.summary else "",
            )
        # The configuration stays, and so does its explanation.
        kept = _keep(record, space, self.source, "; ".join(reasons))
        return dataclasses.replace(
            kept,
            context_messages=tuple(messages),
            raw_texts=tuple(texts),
            summary=(record.summary or "") if self.spec.summary else "",
        )

    def _context(self, record: RunRecord) -> tuple[list[Message], tuple[str, ...]]:
        """The longest context that fits, and a note if rounds had to be left out of it."""
        history = record.history
        for first in range(len(history)):
            shortened = dataclasses.replace(record, history=history[first:])
            messages = compose(self.spec, shortened)
            if self.fits(messages):
                break
        note = f"context: the {first} oldest rounds were left out, to fit the model's window"
        return messages, (note,) if first else ()


@dataclasses.dataclass(frozen=True)
class FixedDesigner:
    """The baseline without an engineer: every round has the configuration of the one before."""

    source: str = "fixed"

    def design(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """The previous configuration."""
        del seed
        return _keep(record, space, self.source, "this designer changes nothing")


@dataclasses.dataclass(frozen=True)
class RandomDesigner:
    """Domain randomisation: every round has a new random configuration."""

    source: str = "random"

    def design(self, record: RunRecord, space: ConfigurationSpace, seed: int) -> Design:
        """A draw of `random_config` that depends on the seed and the round."""
        drawn = random_config(np.random.SeedSequence([seed, record.round]), space)
        return Design(config=drawn, source=self.source)


DESIGNERS = ("current", "fixed", "random")
"""Names that `make_designer` knows: the checkpoint being trained, nobody, a new draw each round."""


def make_designer(
    name: str,
    *,
    generate: Generate | None = None,
    spec: ContextSpec | str = DEFAULT_VARIANT,
    tries: int = 3,
    fits: Callable[[Sequence[Message]], bool] = lambda chat: True,
) -> Designer:
    """The designer of that name.

    Args:
      name: one of `DESIGNERS`.
      generate: answers chats; needed by "current", not used by the others, as are the rest.
      spec: the modules that the model is shown, or the name of a variant.
      tries: how often the model is asked until an answer can be read.
      fits: whether the model's window holds a chat.

    Raises:
      ValueError: the name is unknown, or "current" is asked for without `generate`.
    """
    if name == "fixed":
        return FixedDesigner()
    if name == "random":
        return RandomDesigner()
    if name == "current":
        if generate is None:
            raise ValueError(
                f"generate=None: designer {name!r} needs a function that answers chats"
            )
        spec = variant(spec) if isinstance(spec, str) else spec
        return ModelDesigner(generate=generate, spec=spec, tries=tries, source=name, fits=fits)
    raise ValueError(f"designer={name!r} is unknown, allowed: {DESIGNERS}")


def random_config(
    seed: int | np.random.SeedSequence | np.random.Generator, space: ConfigurationSpace
) -> EnvironmentConfig:
    """A random configuration of the space, with two decimals: the cold start of a run.

    The data ratios are Dirichlet(1, ..., 1), so every division of the set is equally likely; hole
    and wait ratios are uniform within their bounds, the hole ratio at most
    `MAX_RANDOM_HOLE_RATIO` unless its lower bound is above that.
    """
    rng = np.random.default_rng(seed)
    shares = share_cents(rng.dirichlet(np.ones(len(space.sizes))).tolist())
    holes = []
    for low, high in space.hole_bounds:
        high = max(low, min(high, MAX_RANDOM_HOLE_RATIO))
        holes.append(two_decimals(float(rng.uniform(low, high)), (low, high)))
    waits = [two_decimals(float(rng.uniform(*bounds)), bounds) for bounds in space.wait_bounds]
    return EnvironmentConfig(
        sizes=space.sizes, data_ratio=shares, hole_ratio=tuple(holes), wait_ratio=tuple(waits)
    )


def _keep(record: RunRecord, space: ConfigurationSpace, source: str, reason: str) -> Design:
    rows = {int(size): row for size, row in record.config.to_dict().items()}
    config, repairs = proposal.project(proposal.Proposal(rows), record.config, space)
    return Design(config=config, source=source, repairs=repairs, kept_previous=True, reason=reason)
