"""The evidence of finished rounds, from the files in a run's folder."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from engineer.evidence import Evidence, FailureBreakdown, Shortfall, TrainingEvidence
from engineer.record import RoundRecord, RunRecord
from engineer.space import Configuration
from experiments.families import Family, Problem, Record
from experiments.run.store import RunStore
from experiments.settings import Settings
from experiments.text.templates import paragraphs
from learner.training.trainer import StepResult

T = TypeVar("T")

_MOST_LINES, _MOST_CHARACTERS = 20, 160
_LEAST_SIGNAL = 0.2  # Fraction of groups below which a round is remarked on.
FAILURES_DRAWN = 4
"""Failures drawn for each round, from training and from validation each."""


def run_record(store: RunStore, settings: Settings, family: Family, index: int) -> RunRecord:
    """The record that round `index` is designed from."""
    history = tuple(
        RoundRecord(
            round=past,
            config=store.read(store.round(past) / "environment.yaml", Configuration.from_dict),
            evidence=round_evidence(store, family, past),
            cold_start=past < settings.engineer.kept_rounds,
            summary=_explanation(store, past),
        )
        for past in range(index)
    )
    return RunRecord(
        history=history,
        round=index,
        total_rounds=settings.loop.rounds,
        epochs_per_round=settings.training.epochs,
        summary=history[-1].summary,
        training=training_texts(settings, family),
        initial=store.read(store.root / "initial" / "validation.json", FailureBreakdown.from_dict),
    )


def round_evidence(store: RunStore, family: Family, index: int) -> Evidence:
    """The evidence of a round whose validation is finished; computed once."""
    folder = store.round(index)

    def gathered() -> dict[str, Any]:
        problems = {p["id"]: p for p in store.read(store.root / "validation" / "instances.jsonl")}
        answers = store.read(folder / "answers.jsonl")
        held_out = drawn_failures(
            family,
            answers,
            [problems[answer["id"]] for answer in answers],
            [answer["text"] for answer in answers],
            True,
        )
        return {
            "validation": store.read(
                folder / "validation.json", FailureBreakdown.from_dict
            ).to_dict(),
            "training": dataclasses.asdict(_training_evidence(store, folder)),
            "failures": [*store.read(folder / "train_failures.json"), *held_out],
        }

    return Evidence.from_dict(store.kept(folder / "evidence.json", gathered))


def _training_evidence(store: RunStore, folder: Path) -> TrainingEvidence:
    """Rewards, valid rates and achieved configuration of the round in `folder`."""
    lines = store.read(folder / "train.jsonl")
    generated = store.read(folder / "generated.json")
    rows = generated["rows"]
    asked = store.read(folder / "environment.yaml")

    def mean(name: str, of: Sequence[Mapping[str, float]] = lines) -> float:
        return round(float(np.mean([line[name] for line in of])), 4)

    drawn = {row: [line for line in lines if f"task/valid_{row}" in line] for row in rows}
    return TrainingEvidence(
        steps=len(lines),
        reward=mean("reward"),
        reward_last=mean("reward", lines[-max(1, len(lines) // 4) :]),
        nondegenerate_fraction=mean("nondegenerate_fraction"),
        valid_rate={row: mean(f"task/valid_{row}", of) for row, of in drawn.items() if of},
        asked={str(name): numbers for name, numbers in asked.items()},
        achieved={name: row["achieved"] for name, row in rows.items()},
        # Older runs lack this field.
        shortfalls=tuple(map(Shortfall.from_dict, generated.get("shortfalls", ()))),
    )


def training_texts(settings: Settings, family: Family) -> dict[str, str]:
    """Objective, reward and schedule in words, for the full form of module T."""
    cost = f", less {family.token_cost:g} for each token" if family.token_cost else ""
    objective, schedule = paragraphs(
        "training_details.md",
        training=settings.training,
        num_instances=settings.environment.num_instances,
    )
    return {"objective": objective, "reward": family.reward + cost, "schedule": schedule}


def outcome_metrics(found: FailureBreakdown, prefix: str = "") -> dict[str, float]:
    """Rates under a prefix: valid and optimal overall and by group as in `valid_3`, and truncated
    by group where it is known."""
    metrics = {f"{prefix}valid": found.valid_rate, f"{prefix}optimal": found.optimal_rate}
    for row in found.by_group:
        metrics[f"{prefix}valid_{row.name}"] = row.valid_rate
        metrics[f"{prefix}optimal_{row.name}"] = row.optimal_rate
        if row.truncated is not None:
            metrics[f"{prefix}truncated_{row.name}"] = row.truncated_rate
    return metrics


def faint_signal(steps: Sequence[Mapping[str, float]]) -> str:
    """A remark on a round's training steps if few groups had rewards that differ, else "".

    Only such groups have advantages other than 0. In the others the problem was too easy or too
    hard, so every answer earned the same.
    """
    differ = float(np.mean([step["nondegenerate_fraction"] for step in steps])) if steps else 1.0
    if differ >= _LEAST_SIGNAL:
        return ""
    percent = f"{100 * differ:.0f} %"
    return f"rewards differed in {percent} of the groups of answers; the others taught nothing"


def training_failures(
    family: Family, problems: Sequence[Problem], result: StepResult
) -> list[dict[str, Any]]:
    """`drawn_failures` of a training step."""
    chosen = [problems[i] for i in result.indices.tolist()]
    texts = [completion.text for completion in result.completions]
    records = [
        {**record, "truncated": completion.truncated}
        for record, completion in zip(result.scores.records, result.completions, strict=True)
    ]
    return drawn_failures(family, records, chosen, texts, False)


def drawn_failures(
    family: Family,
    records: Sequence[Record],
    problems: Sequence[Problem],
    texts: Sequence[str],
    held_out: bool,
) -> list[dict[str, Any]]:
    """Some failures among N verified completions, as `DrawnFailure.to_dict` gives them.

    Args:
      records: N records with `truncated`, as many as problems and texts.
      held_out: whether the problems are of the validation set.
    """
    failed = [i for i, record in enumerate(records) if not record["valid"]]
    chosen = one_of_each_kind(failed, lambda i: tuple(records[i]["failed"]), FAILURES_DRAWN)
    return [
        {
            "name": str(records[i]["group"]),
            "failed": [
                *records[i]["failed"],
                *(["truncated"] if records[i]["truncated"] else []),
            ],
            "text": family.text(problems[i], texts[i]),
            "held_out": held_out,
        }
        for i in chosen
    ]


def example(store: RunStore, family: Family, folder: Path) -> list[str]:
    """Lines that show one problem of a validation with its answer and the verdict, for people.

    It is always the same sample of the same problem, the first that the model failed before
    training, so that answers can be compared from round to round.
    """
    before = store.read(store.root / "initial" / "answers.jsonl")
    chosen = next((i for i, one in enumerate(before) if not one["valid"]), 0)
    answer = store.read(folder / "answers.jsonl")[chosen]
    problems = store.read(store.root / "validation" / "instances.jsonl")
    problem = next(problem for problem in problems if problem["id"] == answer["id"])
    outcome = ", ".join(map(family.failure, answer["failed"])) or "valid"
    cut = ", truncated" if answer["truncated"] else ""
    shown = family.example(problem, answer["text"]).splitlines()
    lines = [line[:_MOST_CHARACTERS] for line in shown if line.strip()]
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        lines = [*lines[:half], "[...]", *lines[-half:]]
    lines.append(f"verdict: {outcome}{cut}")
    return [
        f"for example {family.texts.label} {answer['group']}:",
        *(f"  {line}" for line in lines),
    ]


def one_of_each_kind(items: Sequence[T], kind: Callable[[T], Any], count: int) -> list[T]:
    """At most `count` items, one of each kind before a second of any."""
    firsts: dict[Any, int] = {}
    for i, item in enumerate(items):
        firsts.setdefault(kind(item), i)
    rest = [i for i in range(len(items)) if i not in firsts.values()]
    return [items[i] for i in [*firsts.values(), *rest][:count]]


def _explanation(store: RunStore, index: int) -> str | None:
    """The engineer's explanation of the configuration that round `index` was trained on."""
    if index == 0:
        return None
    if store.read(store.round(index) / "generated.json")["note"]:
        return _explanation(store, index - 1)  # The design was not used.
    return store.read(store.round(index - 1) / "design" / "design.json")["summary"] or None
