"""Demonstrations of the engineer's task, for the supervised warm start of a small model.

A small model cannot discover the form of a configuration, or sensible content, by itself. The rule
here reads only what the context shows, so that a model can learn it from (context, answer) pairs;
reinforcement learning then continues from there.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from engineer import context
from engineer.context import ContextSpec, Message
from engineer.curricula import mastery_weights, targeted
from engineer.evidence import Evidence, FailureBreakdown
from engineer.proposal import render_config
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration, ConfigurationSpace
from engineer.texts import FamilyTexts

_DEFAULT = context.VARIANTS[context.DEFAULT_VARIANT]

By = Literal["rule", "mastery", "random"]
"""How designs are made: by `rule_design`, with the fractions of `curricula.mastery`, or at random,
so that only the form can be learned."""


def rule_design(
    record: RunRecord, space: ConfigurationSpace, spec: ContextSpec = _DEFAULT
) -> Configuration:
    """`engineer.curricula.targeted` of what a context shows, with the decimals of each parameter.

    Rates have two decimals, 0.5 for a row that was not validated. The configuration to change is
    the last one shown; there is none where the context shows none.

    Args:
      record: the run so far.
      space: the rows and bounds.
      spec: the modules, which decide which configurations are shown.
    """
    past = () if spec.history == "none" else context.shown_history(record, spec.history == "all")
    current = past[-1].config if past else None
    return targeted(_shown_rates(record, space), current, space)


def _shown_rates(record: RunRecord, space: ConfigurationSpace) -> dict[str, float]:
    """The latest valid rates as contexts write them."""
    return {row: round(rate, 2) for row, rate in record.valid_rates(space.rows).items()}


def demonstration(
    seed: int | np.random.SeedSequence,
    spec: ContextSpec,
    space: ConfigurationSpace,
    family: FamilyTexts,
    training: Mapping[str, str] | None = None,
    by: By = "rule",
) -> tuple[list[Message], str]:
    """A context from a random plausible run, and a design for it.

    Args:
      seed: of everything random.
      spec: the modules of the context.
      space: the rows and bounds.
      family: its texts.
      training: texts for the full form of module T; placeholders if not given.
      by: how the design is made. By mastery, the run is one that climbs.

    Returns:
      The chat (one user message) and the answer: the configuration as `render_config` writes it,
      after the family's explanation where the context asks for one.
    """
    record = random_record(seed, space, family, climbing=by == "mastery")
    if training is not None:
        record = dataclasses.replace(record, training=training)
    if by == "random":
        config = space.random(np.random.default_rng(seed).spawn(1)[0])
    else:
        config = rule_design(record, space, spec)
    if by == "mastery":
        weights = mastery_weights(list(_shown_rates(record, space).values()))
        config = Configuration.from_cells(config.cells() | space.divided(weights))
    answer = render_config(config, space)
    if spec.summary:
        answer = f"{family.explanation}\n{answer}"
    return context.compose(spec, record, family), answer


def random_record(
    seed: int | np.random.SeedSequence,
    space: ConfigurationSpace,
    family: FamilyTexts,
    climbing: bool = False,
) -> RunRecord:
    """A run of one to three finished rounds with consistent, plausible outcomes.

    Valid rates cover the whole range, tend to fall from row to row and change from round to round.
    Round 0 is a random draw; later configurations come from `rule_design` or are random too. Every
    invalid answer fails at least one check. In a climbing run rates fall more steeply, from any row
    on with equal probability.
    """
    rng = np.random.default_rng(seed)
    finished = int(rng.integers(1, 4))
    answers = rng.integers(10, 401, size=len(space.rows))
    slope = (3.0 if climbing else 1.0) * rng.uniform(0.0, 1.5)
    skill = rng.normal(0.0, 1.5) - slope * np.arange(len(space.rows))
    if climbing:
        skill = skill + slope * rng.uniform(0.0, len(space.rows))
    skill = skill + rng.normal(0.0, 1.2, size=len(space.rows))
    epochs, total_rounds = int(rng.integers(1, 5)), finished + int(rng.integers(1, 4))
    explained = bool(rng.random() < 0.5)
    past: tuple[RoundRecord, ...] = ()
    for index in range(finished):
        if past and rng.random() < 0.5:
            config = rule_design(_record(past, total_rounds, epochs, None), space)
        else:
            config = space.random(rng)
        rates = 1.0 / (1.0 + np.exp(-skill))
        breakdown = _random_breakdown(rng, space, family, answers.tolist(), rates.tolist())
        past = (*past, RoundRecord(index, config, Evidence(breakdown), cold_start=index == 0))
        skill = skill + rng.normal(0.3, 0.4, size=len(space.rows))
    return _record(past, total_rounds, epochs, family.explanation if explained else None)


def _record(
    past: tuple[RoundRecord, ...], total_rounds: int, epochs: int, summary: str | None
) -> RunRecord:
    return RunRecord(
        history=past,
        round=len(past),
        total_rounds=total_rounds,
        epochs_per_round=epochs,
        summary=summary,
        training=dict.fromkeys(context.TRAINING_DETAILS, "as in every round"),
    )


def _random_breakdown(
    rng: np.random.Generator,
    space: ConfigurationSpace,
    family: FamilyTexts,
    answers: Sequence[int],
    rates: Sequence[float],
) -> FailureBreakdown:
    checks = family.checks
    row_of = np.repeat(np.asarray(space.rows), answers)
    rate_of = np.repeat(np.asarray(rates), answers)
    count = row_of.size
    valid = rng.random(count) < rate_of
    optimal = valid & (rng.random(count) < rng.uniform(0.5, 1.0))
    # One check always fails, others occasionally.
    main = rng.choice(len(checks), size=count, p=rng.dirichlet(np.ones(len(checks))))
    fails = (rng.random((len(checks), count)) < 0.1) | (np.arange(len(checks))[:, None] == main)
    fails &= ~valid
    records = [
        {
            "group": str(row_of[i]),
            "valid": bool(valid[i]),
            "optimal": bool(optimal[i]),
            "failed": [check for check, failed in zip(checks, fails[:, i], strict=True) if failed],
        }
        for i in range(count)
    ]
    return FailureBreakdown.from_records(
        records, checks=checks, label=space.label, alone=family.alone
    )
