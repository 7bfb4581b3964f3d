"""Results of a study: `study.json` for programs, `comparison.md` for people.

`study.json` is one object. Rates are in [0, 1]; unknown values are null.

    schema          1
    name            of the study's folder
    question        of the study
    reference       name of the variant that the others are compared with
    seeds           [0, 1, ...]
    level           confidence level of all intervals, 0.95
    state           {planned, finished, failed, missing}: numbers of runs
    variants        [{name, label, changes: {option: value}, budget: {...}}], in order
    budget          {equal: {part: value}, differs: {part: {variant: value}}}; the parts are those
                    of `experiments.study.variants.Budget`
    base            all options of the reference variant's first seed, as in a run's `config.json`
    versions        of the first finished run, as in its `versions.json`; null if there is none
    provenance      as in `experiments.study.provenance`, without texts; null in older files
    rows            names of the rows of a configuration, ["3", "4", "5"]
    checks          names of the checks
    runs            one object for each variant and seed, variants first:
      variant, seed, folder (relative to the study's), status: "finished", "failed" or "missing"
      error         one line, null unless it failed
      seconds, cpu_seconds   of this run's own processes so far
      shared        {folder, seconds, cpu_seconds} of the beginning (validation before training,
                    round 0) that several variants share and that was computed once; null if the
                    run computed everything itself
      used          {instances_asked, instances, steps, updates, answers}: actual use
      points        validation before training and after each finished round, in order:
        round       null before training, then 0, 1, ...
        steps, updates, instances   up to here, over all rounds
        answers, valid, optimal     numbers
        greedy, greedy_answers      number of greedy answers that are valid, and of all
        failed      {check: answers that fail it}
        by_row      {row: {answers, valid, optimal, failed: {check: number}}}
        config      {row: {parameter: number}} of this round's training set; null before training,
                    like the next three
        achieved    the same for the generated set
        processor_seconds  of the run's first process up to the last step before this validation;
                    null where a step did not record it
        training    {reward, valid, nondegenerate_fraction}: means over the round's steps
        design      how `config` was made: {source, kept_previous, reason, repairs (number), tries
                    (answers received)}; null for round 0 as well
        test        {answers, valid} on the test set, before training and after the last round of
                    a run that has one; otherwise null
        follows     Pearson's correlation, over rows, of the fractions of `config` with p (1 - p),
                    where p is a row's valid rate in the previous validation; null for round 0, and
                    if all rows are equal in one of the two
    metrics         [{name, label}]: valid_final, greedy_final and optimal_final (fraction of the
                    validation answers after the last round); valid_last3 (its mean over the last
                    three validations, as one checkpoint is noisy); valid_area, ... (its mean over
                    training: area under the curve over training steps, by trapezoids); valid_worst
                    (the lowest rate of a row, each over the last three validations); valid_fall
                    (see `largest_fall`); cpu_seconds (of the run and its shared beginning); and
                    reading, the mean of `follows` over all rounds but the first, null counting as
                    0; valid_test (fraction of the answers to the test set after the last round)
                    if all finished runs have one; older files have fewer
    comparison      one object for each metric and variant, metrics first:
      metric, variant
      values        {seed: value} of finished runs
      mean, sd      over seeds
      low, high     Student's interval of the mean
      difference    from the reference variant over the seeds that both finished; null for the
                    reference itself: {values: {seed: value}, mean, low, high (Student's interval
                    of paired differences), p (its t-test), p_holm (p after Holm's correction over
                    the variants of this metric)}; older files have more fields, which are ignored

Intervals and p-values are null where fewer than two seeds are finished, and where
`experiments.statistics.paired` gives none.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engineer.curricula import MASTERED
from engineer.space import Configuration
from experiments import statistics
from experiments.measurements import Table
from experiments.run import store as files
from experiments.run.reading import Run, Validation, read_run
from experiments.settings import Settings
from experiments.study import provenance
from experiments.study.variants import Budget, Study
from experiments.text.errors import UserError
from experiments.text.templates import render
from learner.training.trainer import GRPOConfig

FILE, SCHEMA = "study.json", 1
METRICS = {
    "valid_final": "valid after the last round",
    "valid_last3": "valid, mean of the last three validations",
    "valid_area": "valid, mean over training",
    "greedy_final": "valid after the last round, greedy",
    "optimal_final": "optimal after the last round",
    "optimal_area": "optimal, mean over training",
    "valid_worst": "valid in the worst row, mean of the last three validations",
    "valid_fall": "largest fall of a row after it was mastered",
    "cpu_seconds": "processor seconds of a run",
    "reading": "correlation of designs with p (1 - p)",
    "valid_test": "valid after the last round, on the test set",
}
RATES = ("valid", "greedy", "optimal")
"""Rates of answers, by the name of their count in a point of `study.json`."""
_LAST = 3  # Validations in the mean of the last ones.
_TRAINED = ("instances", "steps", "updates")
# Means over the steps of a round, with the names of the metrics.
_TRAINING = {
    "reward": "reward",
    "valid": "task/valid",
    "nondegenerate_fraction": "nondegenerate_fraction",
}

FINISHED = "finished.json"
"""Marks the folder of a complete run."""
LOG = "log.txt"
"""What the processes of a run print."""
ERROR = "error.txt"
"""One line in a run's folder on why its last process failed."""


def run_folder(variant: str, seed: int) -> Path:
    """The folder of one run, relative to the study's."""
    return Path("runs") / variant / f"seed-{seed}"


def write(
    root: Path,
    study: Study,
    settings: Mapping[str, Mapping[int, Settings]],
    shared: Mapping[tuple[str, int], Path],
) -> dict[str, Any]:
    """Writes both files from the runs so far.

    Args:
      settings: of `Study.settings`.
      shared: folder of the shared beginning, relative to `root`, of the runs that have one.

    Returns:
      The content of `study.json`.
    """
    fraction = settings[study.reference][study.seeds[0]].load_family().space.fraction_parameter
    runs = [
        _run(root, variant.name, seed, settings[variant.name][seed].training, fraction, shared)
        for variant in study.variants
        for seed in study.seeds
    ]
    budgets = {name: Budget.of(of[study.seeds[0]])._asdict() for name, of in settings.items()}
    parts = {
        part: {name: budget[part] for name, budget in budgets.items()} for part in Budget._fields
    }
    differs = {part: values for part, values in parts.items() if len(set(values.values())) > 1}
    equal = {p: value for p, value in budgets[study.reference].items() if p not in differs}
    points = [point for run in runs for point in run["points"]]
    comparison = compare(study, runs)
    compared = dict.fromkeys(entry["metric"] for entry in comparison)
    found = {
        **common(root, study, settings, runs),
        "variants": [
            {**dataclasses.asdict(variant), "budget": budgets[variant.name]}
            for variant in study.variants
        ],
        "budget": {"equal": equal, "differs": differs},
        "rows": list(points[0]["by_row"]) if points else [],
        "checks": list(points[0]["failed"]) if points else [],
        "metrics": [{"name": name, "label": METRICS[name]} for name in compared],
        "comparison": comparison,
    }
    files.write_file(root / FILE, found)
    files.write_file(root / "comparison.md", markdown(found))
    return found


def read(root: Path) -> dict[str, Any]:
    """The content of `study.json`, for what compares the runs of variants.

    Raises:
      UserError: the file is damaged, of another version, or of a study of branches.
    """
    path = root / FILE
    found = files.read_file(path)
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UserError(f"{path}: schema {SCHEMA} is needed; make it anew with experiments.study")
    if "branches" in found:
        raise UserError(
            f"{path}: a study of branches has no figures and no benchmark; its comparison.md has "
            "tables"
        )
    return found


def common(
    root: Path,
    study: Study,
    settings: Mapping[str, Mapping[int, Settings]],
    runs: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The fields of `study.json` that do not depend on what is compared."""
    statuses = [run["status"] for run in runs]
    versions = [
        path
        for run in runs
        if run["status"] == "finished" and (path := root / run["folder"] / "versions.json").exists()
    ]
    return {
        "schema": SCHEMA,
        "name": root.name,
        "question": study.question,
        "reference": study.reference,
        "seeds": list(study.seeds),
        "level": statistics.LEVEL,
        "state": {
            "planned": len(runs),
            **{name: statuses.count(name) for name in ("finished", "failed", "missing")},
        },
        "variants": [dataclasses.asdict(variant) for variant in study.variants],
        "base": settings[study.reference][study.seeds[0]].to_dict(),
        "versions": files.read_file(versions[0]) if versions else None,
        "provenance": provenance.of_study(root),
        "runs": runs,
    }


# One run


def _run(
    root: Path,
    variant: str,
    seed: int,
    training: GRPOConfig,
    fraction: str,
    shared: Mapping[tuple[str, int], Path],
) -> dict[str, Any]:
    folder, start = root / run_folder(variant, seed), shared.get((variant, seed))
    status, error = "missing", None
    if (folder / FINISHED).exists():
        status = "finished"
    elif (folder / ERROR).exists():
        status, error = "failed", (folder / ERROR).read_text(encoding="utf-8").strip()
    points, used = _points(read_run(folder), training, fraction)
    return {
        "variant": variant,
        "seed": seed,
        "folder": str(run_folder(variant, seed)),
        "status": status,
        "error": error,
        **times(folder),
        "used": used,
        "points": points,
        "shared": start and {"folder": str(start), **times(root / start)},
    }


def times(folder: Path) -> dict[str, float]:
    """Wall and processor time of all processes of a run, in seconds."""
    lines = files.read_log(folder / files.TIMES)
    return {
        name: round(sum(line[name] for line in lines), 1) for name in ("seconds", "cpu_seconds")
    }


def _points(
    run: Run, training: GRPOConfig, fraction: str
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """`points` and `used` of a run, as in `study.json`."""
    used = collections.Counter(dict.fromkeys(("instances_asked", *_TRAINED, "answers"), 0))
    if run.before.validation is None:
        return [], used
    untrained = dict.fromkeys(("config", "achieved", "training", "design", "follows"))
    processor, first = 0.0, _validated(run.before.validation, used)
    first |= {"processor_seconds": processor, "test": _tested(run.before.test)}
    points = [{"round": None, **first, **untrained}]
    batch = training.prompts_per_step * training.group_size
    design: Mapping[str, Any] | None = None
    for each in run.rounds:
        if each.validation is None or each.config is None or each.generated is None:
            break
        used.update(
            instances_asked=each.generated["asked"],
            instances=each.generated["made"],
            steps=len(each.steps),
            updates=int(sum(step["updates"] for step in each.steps)),
            answers=batch * int(sum(step["draws"] for step in each.steps)),
        )
        # Older runs lack it.
        processor += sum(step.get("machine/processor_seconds", np.nan) for step in each.steps)
        means = {
            name: round(float(np.mean([step[key] for step in each.steps])), 4)
            for name, key in _TRAINING.items()
        }
        achieved = {name: row["achieved"] for name, row in each.generated["rows"].items()}
        points.append(
            {
                "round": each.index,
                **_validated(each.validation, used),
                "processor_seconds": None if np.isnan(processor) else round(processor, 1),
                "test": _tested(each.test),
                "config": each.config.to_dict(),
                "achieved": achieved,
                "training": means,
                "design": design and _design(design, each.generated["note"]),
                "follows": follows(points[-1]["by_row"], each.config, fraction) if design else None,
            }
        )
        design = each.design
    return points, used


def _validated(validation: Validation, used: Mapping[str, int]) -> dict[str, Any]:
    """Use up to a validation, and its counts over all rows and by row."""
    found, names = validation.breakdown, ("answers", "valid", "optimal")
    return {
        **{name: used[name] for name in _TRAINED},
        **{name: sum(getattr(row, name) for row in found.by_group) for name in names},
        "greedy": sum(row.valid for row in validation.greedy.by_group),
        "greedy_answers": validation.greedy.answers,
        "failed": {check: found.failures(check) for check in found.checks},
        "by_row": {
            row.name: {**{name: getattr(row, name) for name in names}, "failed": dict(row.failed)}
            for row in found.by_group
        },
    }


def _tested(found: Validation | None) -> dict[str, int] | None:
    """`test` of a point."""
    if found is None:
        return None
    rows = found.breakdown.by_group
    return {"answers": found.breakdown.answers, "valid": sum(row.valid for row in rows)}


def _design(design: Mapping[str, Any], note: str) -> dict[str, Any]:
    """`design` of a point; a note means that the design could not be used."""
    return {
        "source": design["source"],
        "kept_previous": design["kept_previous"] or bool(note),
        "reason": design["reason"] or note,
        "repairs": len(design["repairs"]),
        "tries": len(design["raw_texts"]),
    }


def follows(
    by_row: Mapping[str, Mapping[str, Any]], config: Configuration, fraction: str
) -> float | None:
    """`follows` of a point: how a configuration's fractions follow the previous validation.

    Args:
      by_row: of the point before.
      fraction: name of the parameter.
    """
    rates = [of["valid"] / of["answers"] for of in by_row.values()]
    signals = [rate * (1.0 - rate) for rate in rates]
    fractions = [config[row, fraction] for row in by_row]
    if min(np.ptp(signals), np.ptp(fractions)) < statistics.ROUNDING:
        return None
    return round(float(np.corrcoef(fractions, signals)[0, 1]), 4)


# Comparison


def compare(study: Study, runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`comparison` of all finished runs.

    Args:
      runs: as in `study.json`.
    """
    scores: dict[str, dict[int, dict[str, float]]] = {
        variant.name: {} for variant in study.variants
    }
    for run in runs:
        if run["status"] == "finished":
            scores[run["variant"]][run["seed"]] = _scores(run)
    comparison = []
    known = [of for of_seed in scores.values() for of in of_seed.values()]
    for metric in METRICS:
        if not all(metric in score for score in known):
            continue
        values = {
            name: {seed: score[metric] for seed, score in of_seed.items()}
            for name, of_seed in scores.items()
        }
        for name, found in statistics.compare(values, study.reference).items():
            comparison.append({"metric": metric, "variant": name, **found})
    return comparison


def rate(point: Mapping[str, Any], name: str) -> float:
    """A fraction of the answers of a validation; `name` is one of `RATES`."""
    # Older studies lack this field: they had one sampled answer for each greedy one.
    greedy = point.get("greedy_answers", point["answers"])
    return point[name] / (greedy if name == "greedy" else point["answers"])


def _scores(run: Mapping[str, Any]) -> dict[str, float]:
    """Every metric of a finished run, as in `study.json`."""
    points = run["points"]
    steps = [point["steps"] for point in points]
    result = {}
    for name in RATES:
        rates = [rate(point, name) for point in points]
        result[f"{name}_final"] = rates[-1]
        result[f"{name}_area"] = float(np.trapezoid(rates, steps) / (steps[-1] - steps[0]))
    result["valid_last3"] = float(np.mean([rate(point, "valid") for point in points[-_LAST:]]))
    by_row = np.array([[rate(row, "valid") for row in p["by_row"].values()] for p in points])
    result["valid_worst"] = float(by_row[-_LAST:].mean(axis=0).min())
    result["valid_fall"] = largest_fall(by_row)
    shared = run["shared"]["cpu_seconds"] if run["shared"] else 0.0
    result["cpu_seconds"] = run["cpu_seconds"] + shared
    if tested := points[-1].get("test"):
        result["valid_test"] = rate(tested, "valid")
    # Older studies lack this field.
    result["reading"] = float(np.mean([p.get("follows") or 0.0 for p in points[2:]] or [0.0]))
    return result


def largest_fall(rates: np.ndarray) -> float:
    """The largest fall of a row's valid rate below its highest so far, once that is `MASTERED`.

    Args:
      rates: f64[V, R], of R rows in V validations, in order.

    Returns:
      It in [0, 1]; 0 if no row was mastered or none fell.
    """
    highest = np.maximum.accumulate(rates, axis=0)
    return float(np.where(highest >= MASTERED, highest - rates, 0.0).max())


# For people


def markdown(found: Mapping[str, Any]) -> str:
    """`comparison.md`, from the content of `study.json`."""
    return render(
        "comparison.md",
        found=found,
        labels=labels(found),
        shortfalls=shortfalls(found),
        seconds=seconds(found),
        provenance=provenance.sentences(found),
        tables=compared(found),
        detectable=_detectable(found),
    )


def compared(found: Mapping[str, Any]) -> list[Table]:
    """A table for each metric of `study.json`."""
    named, tables = labels(found), []
    for metric in found["metrics"]:
        entries = {
            named[entry["variant"]]: entry
            for entry in found["comparison"]
            if entry["metric"] == metric["name"]
        }
        title = metric["label"][0].upper() + metric["label"][1:]
        scale = 100 if rate_of(metric) else 1
        tables.append(Table.compared(title, entries, named[found["reference"]], scale))
    return tables


def _detectable(found: Mapping[str, Any]) -> float | None:
    """The minimum detectable difference in the first metric, if none there is significant.

    It is the median over the variants that are tested; None if none is.
    """
    first = found["metrics"][0]["name"]
    entries = [one for one in found["comparison"] if one["metric"] == first and one["difference"]]
    tested = [one["difference"] for one in entries if one["difference"]["p_holm"] is not None]
    if not tested or any(one["p_holm"] < 1 - statistics.LEVEL for one in tested):
        return None
    detectable = [
        statistics.minimum_detectable_difference(
            (one["high"] - one["low"]) / 2, len(one["values"]), len(tested)
        )
        for one in tested
    ]
    return float(np.median(detectable))


def seconds(found: Mapping[str, Any]) -> dict[str, float]:
    """Mean seconds of the finished runs of each variant, their shared beginnings included."""
    of_variant: dict[str, list[float]] = {}
    for run in found["runs"]:
        if run["status"] == "finished":
            shared = run["shared"]["seconds"] if run["shared"] else 0.0
            of_variant.setdefault(run["variant"], []).append(run["seconds"] + shared)
    return {name: float(np.mean(values)) for name, values in of_variant.items()}


def rate_of(metric: Mapping[str, Any]) -> str | None:
    """The rate behind a metric, which is shown in percent; None if there is none."""
    name = metric["name"].partition("_")[0]
    return name if name in RATES else None


def labels(found: Mapping[str, Any]) -> dict[str, str]:
    """Labels of the variants, by name."""
    return {variant["name"]: variant["label"] for variant in found["variants"]}


def shortfalls(found: Mapping[str, Any]) -> list[str]:
    """A sentence for each variant with runs that trained on less than their budget.

    The generator may find too few instances, which then repeat, and a step whose groups are all
    degenerate makes no update.
    """
    sentences = []
    for variant in found["variants"]:
        short = {
            run["seed"]: run["used"]
            for run in found["runs"]
            if run["variant"] == variant["name"]
            and run["status"] == "finished"
            and any(run["used"][part] < variant["budget"][part] for part in _TRAINED)
        }
        if short:
            listed = ", ".join(
                f"seed {seed}: " + ", ".join(f"{used[part]:,} {part}" for part in _TRAINED)
                for seed, used in short.items()
            )
            sentences.append(f"{variant['label']} trained on less than its budget: {listed}.")
    return sentences
