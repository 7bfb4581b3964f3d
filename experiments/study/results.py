"""What a study found: `study.json` for programs, `comparison.csv` and `comparison.md` for people.

`study.json` is one object. Rates are in [0, 1]; what is not known is null.

    schema          1
    name            of the study's folder
    question        what was asked
    reference       name of the variant that the others are compared with
    seeds           [0, 1, ...]
    level           of all intervals, 0.95
    state           {planned, finished, failed, missing}: numbers of runs
    variants        [{name, label, changes: {option: value}, budget: {...}}], in their order
    budget          {equal: {part: value}, differs: {part: {variant: value}}}; the parts are those
                    of `experiments.study.variants.Budget`: what a run may use, over all rounds
    base            all options of the reference variant's first seed, as `config.json` of a run
    versions        of the first finished run, as `versions.json` of a run; null if there is none
    rows            names of the lake sizes, ["3", "4", "5"]
    checks          names of the checks
    runs            one object for each variant and seed, variants first:
      variant, seed, folder (relative to the study's), status: "finished", "failed" or "missing"
      error         one line, null unless it failed
      seconds, cpu_seconds   of this run's own process or processes so far
      shared        {folder, seconds, cpu_seconds} of the common beginning (validation before
                    training, round 0), which several variants share and which was computed once;
                    null if the run computed all of itself
      used          {instances_asked, instances, steps, updates, answers}: what it really trained on
      points        validation before training and after each finished round, in order:
        round       null before training, then 0, 1, ...
        steps, updates, instances   up to here, over all rounds
        answers, valid, optimal     numbers
        failed      {check: answers that fail it}
        by_row      {row: {answers, valid, optimal, failed: {check: number}}}
        config      {row: {data_ratio, hole_ratio, wait_ratio}} of this round's training set; null
                    before training, and so are the next three
        achieved    the same, as the generator could make it
        training    {reward, valid, nondegenerate_fraction}: means over the round's steps
        design      how `config` came about: {source, kept_previous, reason, repairs (number),
                    tries (answers read)}; null for round 0 as well
    metrics         [{name, label}]: valid_final and optimal_final (share of the validation answers
                    after the last round), valid_area and optimal_area (mean of that share over
                    training: area under the curve over training steps, by trapezoids)
    comparison      one object for each metric and variant, metrics first:
      metric, variant
      values        {seed: value} of finished runs
      mean, sd      over seeds
      low, high     Student's interval of the mean
      difference    from the reference variant over the seeds that both finished; null for the
                    reference itself: {values: {seed: value}, mean, low, high (Student's interval
                    of paired differences), p (its t-test), p_holm and p_fdr (p corrected over the
                    variants of this metric, Holm's and Benjamini and Hochberg's way), p_exact (sign
                    flips), crossed_low, crossed_high (bootstrap over seeds and instances)}

Intervals and p-values are null where fewer than two seeds are finished. So are those of differences
that are all equal and not 0, which happens with few seeds, as shares are counts: without any spread
Student's interval would be a point, and any such difference certain.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from experiments import statistics
from experiments import store as files
from experiments.answer_log import read_log
from experiments.evidence import training_evidence
from experiments.settings import Settings
from experiments.study.variants import Budget, Study
from learner.training.trainer import GRPOConfig
from mapf_jax import formats

SCHEMA = 1
LEVEL = 0.95
METRICS = {
    "valid_final": "valid after the last round",
    "optimal_final": "optimal after the last round",
    "valid_area": "valid, mean over training",
    "optimal_area": "optimal, mean over training",
}
RESAMPLES = 4000
"""Of the bootstrap over seeds and instances."""

_ROUNDING = 1e-12
_CROSSED = ("crossed_low", "crossed_high")
_P_VALUES = ("p", "p_holm", "p_fdr", "p_exact")

TIMES = files.TIMES
"""In a run's folder: one line for each process that worked on it, with its seconds."""
FINISHED = "finished.json"
"""In a run's folder, once it is complete."""
ERROR = "error.txt"
"""In a run's folder, if its last process failed: why."""


def run_folder(variant: str, seed: int) -> Path:
    """Of one run, relative to the study's."""
    return Path("runs") / variant / f"seed-{seed}"


def write_error(folder: Path, error: str) -> str:
    """Notes in the folder of a run why its last process failed; returns it as one line."""
    line = " ".join(error.split())
    files.write_text(folder / ERROR, line + "\n")
    return line


def write(
    root: Path,
    study: Study,
    settings: Mapping[str, Mapping[int, Settings]],
    shared: Mapping[tuple[str, int], Path],
) -> dict[str, Any]:
    """Writes the three files from what the runs have left so far.

    Args:
      root: the study's folder.
      study: what was asked.
      settings: of `Study.settings`.
      shared: folder of the common beginning, relative to `root`, of the runs that have one.

    Returns:
      What `study.json` holds.
    """
    found = gather(root, study, settings, shared)
    files.write_json(root / "study.json", found)
    files.write_text(root / "comparison.csv", _csv(found))
    files.write_text(root / "comparison.md", markdown(found))
    return found


def gather(
    root: Path,
    study: Study,
    settings: Mapping[str, Mapping[int, Settings]],
    shared: Mapping[tuple[str, int], Path],
) -> dict[str, Any]:
    """What `study.json` holds; arguments as of `write`."""
    runs = [
        _run(
            root, variant.name, seed, settings[variant.name][seed], shared.get((variant.name, seed))
        )
        for variant in study.variants
        for seed in study.seeds
    ]
    statuses = [run["status"] for run in runs]
    first = settings[study.reference][study.seeds[0]]
    budgets = {
        variant.name: Budget.of(settings[variant.name][study.seeds[0]])
        for variant in study.variants
    }
    points = [point for run in runs for point in run["points"]]
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
        "level": LEVEL,
        "state": {
            "planned": len(runs),
            **{name: statuses.count(name) for name in ("finished", "failed", "missing")},
        },
        "variants": [
            {
                "name": variant.name,
                "label": variant.label,
                "changes": dict(variant.changes),
                "budget": budgets[variant.name]._asdict(),
            }
            for variant in study.variants
        ],
        "budget": _compared(budgets),
        "base": first.to_dict(),
        "versions": files.read_json(versions[0]) if versions else None,
        "rows": [str(size) for size in first.environment.sizes],
        "checks": list(points[0]["failed"]) if points else [],
        "runs": runs,
        "metrics": [{"name": name, "label": label} for name, label in METRICS.items()],
        "comparison": compare(root, study, runs),
    }


def _compared(budgets: Mapping[str, Budget]) -> dict[str, Any]:
    equal: dict[str, int] = {}
    differs: dict[str, dict[str, int]] = {}
    for part in Budget._fields:
        values = {name: getattr(budget, part) for name, budget in budgets.items()}
        if len(set(values.values())) == 1:
            equal[part] = next(iter(values.values()))
        else:
            differs[part] = values
    return {"equal": equal, "differs": differs}


# One run


def _run(
    root: Path, variant: str, seed: int, settings: Settings, shared: Path | None
) -> dict[str, Any]:
    folder = root / run_folder(variant, seed)
    error = folder / ERROR
    if (folder / FINISHED).exists():
        status = "finished"
    else:
        status = "failed" if error.exists() else "missing"
    points = _points(folder, settings.training)
    used = points[-1]["used"] if points else _NOTHING
    for point in points:
        point.update({name: point["used"][name] for name in ("steps", "updates", "instances")})
        del point["used"]
    return {
        "variant": variant,
        "seed": seed,
        "folder": str(run_folder(variant, seed)),
        "status": status,
        "error": error.read_text().strip() if status == "failed" else None,
        **_times(folder),
        "shared": None if shared is None else {"folder": str(shared), **_times(root / shared)},
        "used": used,
        "points": points,
    }


_TRAINED = ("instances", "steps", "updates")
_NOTHING = {"instances_asked": 0, "instances": 0, "steps": 0, "updates": 0, "answers": 0}


def _times(folder: Path) -> dict[str, float]:
    lines = read_log(folder / TIMES)
    return {
        name: round(sum(line[name] for line in lines), 1) for name in ("seconds", "cpu_seconds")
    }


def _points(folder: Path, training: GRPOConfig) -> list[dict[str, Any]]:
    """Of a run: validation before training, and what each finished round was and led to."""
    answers = training.prompts_per_step * training.group_size
    initial = folder / "initial" / "validation.json"
    if not initial.exists():
        return []
    nothing = dict.fromkeys(("config", "achieved", "training", "design"))
    used: dict[str, int] = dict(_NOTHING)
    points = [{"round": None, "used": used, **_outcome(initial), **nothing}]
    while True:
        index = len(points) - 1
        here = folder / "rounds" / str(index)
        if not (here / "evidence.json").exists():
            return points
        lines = [json.loads(line) for line in (here / "train.jsonl").read_text().splitlines()]
        generated = files.read_json(here / "generated.json")
        evidence = training_evidence(here)
        used = {
            "instances_asked": used["instances_asked"] + generated["asked"],
            "instances": used["instances"] + generated["made"],
            "steps": used["steps"] + len(lines),
            "updates": used["updates"] + int(sum(line["updates"] for line in lines)),
            "answers": used["answers"] + answers * int(sum(line["draws"] for line in lines)),
        }
        points.append(
            {
                "round": index,
                "used": used,
                **_outcome(here / "validation.json"),
                "config": {
                    str(row): numbers
                    for row, numbers in yaml.safe_load(
                        (here / "environment.yaml").read_text()
                    ).items()
                },
                "achieved": {row: dict(numbers) for row, numbers in evidence.achieved.items()},
                "training": {
                    "reward": evidence.reward,
                    "valid": round(float(np.mean([line["task/valid"] for line in lines])), 4),
                    "nondegenerate_fraction": evidence.nondegenerate_fraction,
                },
                "design": _design(folder / "rounds" / str(index - 1), here) if index else None,
            }
        )


def _outcome(path: Path) -> dict[str, Any]:
    """The counts of one validation, over all rows and by row."""
    names = ("answers", "valid", "optimal")
    (table,) = (value for key, value in files.read_json(path).items() if key.startswith("by_"))
    rows = {
        row: {**{name: values[name] for name in names}, "failed": values["failed"]}
        for row, values in table.items()
    }
    checks = next(iter(rows.values()))["failed"]
    return {
        **{name: sum(row[name] for row in rows.values()) for name in names},
        "failed": {check: sum(row["failed"][check] for row in rows.values()) for check in checks},
        "by_row": rows,
    }


def _design(before: Path, here: Path) -> dict[str, Any]:
    design = files.read_json(before / "design" / "design.json")
    # A design without any solvable instance was not used.
    note = files.read_json(here / "generated.json")["note"]
    return {
        "source": design["source"],
        "kept_previous": design["kept_previous"] or bool(note),
        "reason": design["reason"] or note,
        "repairs": len(design["repairs"]),
        "tries": len(design["raw_texts"]),
    }


# Comparison


def compare(root: Path, study: Study, runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The comparison of all finished runs, as `study.json` has it.

    Args:
      root: the study's folder.
      study: its variants and seeds.
      runs: as `study.json` has them.
    """
    scores: dict[str, dict[int, dict[str, np.ndarray]]] = {
        variant.name: {} for variant in study.variants
    }
    for run in runs:
        if run["status"] == "finished":
            scores[run["variant"]][run["seed"]] = _scores(root / run["folder"], run["points"])
    table = []
    for metric in METRICS:
        rows = [
            {
                "metric": metric,
                "variant": variant.name,
                **_mean(
                    {seed: float(s[metric].mean()) for seed, s in scores[variant.name].items()}
                ),
                "difference": (
                    None
                    if variant.name == study.reference
                    else _difference(metric, scores[variant.name], scores[study.reference])
                ),
            }
            for variant in study.variants
        ]
        tested = [row["difference"] for row in rows if row["difference"]]
        tested = [difference for difference in tested if difference["p"] is not None]
        p_values = [difference["p"] for difference in tested]
        for name, correct in (
            ("p_holm", statistics.holm),
            ("p_fdr", statistics.benjamini_hochberg),
        ):
            for difference, p in zip(tested, correct(p_values), strict=True):
                difference[name] = p
        table += rows
    return table


def _scores(folder: Path, points: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """By metric f64[instances]: every validation instance's part in it, whose mean it is."""
    paths = [folder / "initial", *(folder / "rounds" / str(i) for i in range(len(points) - 1))]
    answers = [list(formats.read_jsonl(path / "answers.jsonl")) for path in paths]
    steps = np.array([point["steps"] for point in points], np.float64)
    # Trapezoids: half of each stretch counts for either end.
    stretch = np.diff(steps) / (steps[-1] - steps[0])
    weights = (np.append(stretch, 0) + np.insert(stretch, 0, 0)) / 2
    result = {}
    for name in ("valid", "optimal"):
        outcomes = np.array([[row[name] for row in rows] for rows in answers], np.float64)
        result[f"{name}_final"] = outcomes[-1]
        result[f"{name}_area"] = weights @ outcomes
    return result


def _mean(values: Mapping[int, float]) -> dict[str, Any]:
    several = len(values) >= 2
    found = statistics.mean_interval(list(values.values()), LEVEL) if several else None
    return {
        "values": {str(seed): value for seed, value in values.items()},
        "mean": float(np.mean(list(values.values()))) if values else None,
        "sd": float(np.std(list(values.values()), ddof=1)) if several else None,
        "low": float(found.low) if found else None,
        "high": float(found.high) if found else None,
    }


def _difference(
    metric: str,
    variant: Mapping[int, Mapping[str, np.ndarray]],
    reference: Mapping[int, Mapping[str, np.ndarray]],
) -> dict[str, Any]:
    seeds = [seed for seed in variant if seed in reference]
    tables = {seed: variant[seed][metric] - reference[seed][metric] for seed in seeds}
    means = {seed: float(table.mean()) for seed, table in tables.items()}
    result = {**dict.fromkeys((*_CROSSED, *_P_VALUES)), **paired(means)}
    if len(seeds) < 2:
        return result
    values = list(means.values())
    crossed = statistics.crossed_bootstrap(
        np.stack(list(tables.values())),
        np.random.default_rng(0),  # The same resamples for all variants, and at every call.
        level=LEVEL,
        resamples=RESAMPLES,
    )
    exact = float(statistics.sign_flip(values)) if len(values) <= statistics.MOST_FLIPPED else None
    return {
        **result,
        "p_exact": exact,
        "crossed_low": crossed.low,
        "crossed_high": crossed.high,
    }


def paired(differences: Mapping[int, float]) -> dict[str, Any]:
    """Student's inference about the mean of differences by seed.

    Returns:
      values, mean, low, high and p, as the `difference` of `study.json` has them.
    """
    result = _mean(differences)
    del result["sd"]
    values = list(differences.values())
    if len(values) < 2:
        return {**result, "p": None}
    if any(values) and np.ptp(values) < _ROUNDING:
        return {**result, "low": None, "high": None, "p": None}
    return {**result, "p": float(statistics.mean_interval(values, LEVEL).p)}


# For people


def _csv(found: Mapping[str, Any]) -> str:
    text = io.StringIO()
    rows = [_flat(row) for row in found["comparison"]]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _flat(row: Mapping[str, Any]) -> dict[str, str]:
    difference = row["difference"] or {}
    figures = {
        **{name: row[name] for name in ("mean", "sd", "low", "high")},
        "difference": difference.get("mean"),
        "difference_low": difference.get("low"),
        "difference_high": difference.get("high"),
        **{name: difference.get(name) for name in (*_CROSSED, *_P_VALUES)},
    }
    return {
        "metric": row["metric"],
        "variant": row["variant"],
        "seeds": str(len(row["values"])),
        **{name: _number(value) for name, value in figures.items()},
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def markdown(found: Mapping[str, Any]) -> str:
    """`comparison.md`, from what `study.json` holds."""
    labels = {variant["name"]: variant["label"] for variant in found["variants"]}
    state, equal = found["state"], found["budget"]["equal"]
    lines = [
        f"# {found['name']}",
        "",
        found["question"],
        "",
        f"{state['finished']} of {state['planned']} runs are finished; seeds "
        f"{', '.join(map(str, found['seeds']))}. Every run was allowed the same "
        + ", ".join(f"{part.replace('_', ' ')} {value:,}" for part, value in equal.items())
        + ".",
    ]
    for part, values in found["budget"]["differs"].items():
        told = ", ".join(f"{labels[variant]} {value:,}" for variant, value in values.items())
        lines.append(f"What differs on purpose is {part.replace('_', ' ')}: {told}.")
    short = [f"- {sentence}" for sentence in shortfalls(found)]
    lines += [*(["", *short] if short else []), *_failed(found, labels)]
    level = f"{found['level']:.0%}"
    for metric in found["metrics"]:
        rows = [row for row in found["comparison"] if row["metric"] == metric["name"]]
        lines += [
            "",
            f"## {metric['label'][0].upper()}{metric['label'][1:]}",
            "",
            f"| variant | seeds | mean ({level}) | minus {labels[found['reference']]} ({level}) "
            "| with instances | p | p (Holm) | p (exact) |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for row in rows:
            d = row["difference"] or {}
            cells = (
                labels[row["variant"]],
                str(len(row["values"])),
                _percent(row["mean"], row["low"], row["high"]),
                "reference"
                if row["variant"] == found["reference"]
                else _points_apart(d.get("mean"), d.get("low"), d.get("high")),
                _points_apart(None, d.get("crossed_low"), d.get("crossed_high")),
                *(_p(d.get(name)) for name in ("p", "p_holm", "p_exact")),
            )
            lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Means over seeds with Student's interval; differences, in points, are paired by seed, "
        "with Student's interval and the paired t-test. *With instances* is the interval of the "
        "bootstrap over seeds and validation instances, which at few seeds is too narrow. Holm's "
        "correction is over the variants of one table. The exact test flips signs; with n seeds "
        "its p-value is at least 2 / 2^n.",
    ]
    return "\n".join(lines) + "\n"


def shortfalls(found: Mapping[str, Any]) -> list[str]:
    """A sentence for each variant some of whose runs trained on less than their budget.

    The generator may find fewer instances than it is asked for, which makes fewer steps, and a step
    whose answers are all worth the same makes no update.
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
            told = ", ".join(
                f"seed {seed}: " + ", ".join(f"{used[part]:,} {part}" for part in _TRAINED)
                for seed, used in short.items()
            )
            sentences.append(f"{variant['label']} trained on less than its budget: {told}.")
    return sentences


def _failed(found: Mapping[str, Any], labels: Mapping[str, str]) -> list[str]:
    lines = [
        f"- {labels[run['variant']]}, seed {run['seed']} is {run['status']}"
        + (f": {run['error']}" if run["error"] else "")
        for run in found["runs"]
        if run["status"] != "finished"
    ]
    return ["", *lines] if lines else []


def _percent(mean: float | None, low: float | None, high: float | None) -> str:
    if mean is None:
        return ""
    told = f"{100 * mean:.1f} %"
    return told if low is None or high is None else f"{told} ({100 * low:.1f} to {100 * high:.1f})"


def _points_apart(mean: float | None, low: float | None, high: float | None) -> str:
    between = "" if low is None or high is None else f"{100 * low:+.1f} to {100 * high:+.1f}"
    if mean is None:
        return between
    return f"{100 * mean:+.1f}" + (f" ({between})" if between else "")


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
