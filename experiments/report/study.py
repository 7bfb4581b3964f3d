"""The figures of a study, from its `study.json`.

`experiments.study.results` describes the fields of that file and writes the tables beside it,
`comparison.md`.
"""

import math
import statistics as plain
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.families import Family
from experiments.report.charts import Estimates, Lines, Series, on_one_scale
from experiments.settings import family_of
from experiments.study.results import labels, rate, rate_of, read

_OF_ROWS = ("valid_worst", "valid_fall", "valid_test")  # No rates of the whole validation.

Found = Mapping[str, Any]
"""Part of the content of `study.json`."""


def figures(root: Path) -> Iterator[Estimates | Lines]:
    """The charts of a study: its comparison, learning curves and configurations.

    Raises:
      UserError: as `read` of `experiments.study.results`.
    """
    found = read(root)
    family = family_of(found["base"])
    for draw in (_means, _differences):  # Those of rates share one scale.
        yield from on_one_scale([draw(found, metric) for metric in found["metrics"]])
    yield from _mean_curves(found)
    yield from _single_curves(found)
    yield from _configurations(found, family)


def _finished(study: Found) -> dict[str, list[Found]]:
    """The finished runs by variant, without variants that have none."""
    runs = [run for run in study["runs"] if run["status"] == "finished"]
    by_variant = {name: [r for r in runs if r["variant"] == name] for name in labels(study)}
    return {name: done for name, done in by_variant.items() if done}


# Comparison


def _means(study: Found, metric: Found) -> Estimates:
    kind, starts = rate_of(metric), [run["points"][0] for run in study["runs"] if run["points"]]
    before = []
    if kind and starts and metric["name"] not in _OF_ROWS:
        before = [100 * plain.fmean(rate(start, kind) for start in starts)]
    estimates, unit = _estimates(study, metric), "percent" if kind else metric["label"]
    return Estimates(metric["name"], metric["label"], "what", unit, estimates, begins=before)


def _differences(study: Found, metric: Found) -> Estimates:
    estimates = _estimates(study, metric, "difference")
    unit = "points" if rate_of(metric) else f"difference in {metric['label']}"
    title = f"minus {labels(study)[study['reference']]}"
    return Estimates(f"{metric['name']}_difference", title, "what", unit, estimates, begins=[0.0])


def _estimates(study: Found, metric: Found, part: str | None = None) -> list[Series]:
    """The mean of each variant, or a part of its entry such as its difference, with its seeds."""
    scale, lines = 100 if rate_of(metric) else 1, []
    entries = [one for one in study["comparison"] if one["metric"] == metric["name"]]
    for i, entry in enumerate(entries):
        if found := entry[part] if part else entry:
            mean, low, high = (
                None if found[key] is None else scale * found[key]
                for key in ("mean", "low", "high")
            )
            seeds = {f"seed {seed}": scale * value for seed, value in found["values"].items()}
            names, values = ["mean", *seeds], [mean, *seeds.values()]
            lines.append(Series(labels(study)[entry["variant"]], names, values, [low], [high], i))
    return lines


# Learning curves


def _mean_curves(study: Found) -> list[Lines]:
    """Charts of valid and optimal answers with the means of all variants, on one scale."""
    named, finished = labels(study), _finished(study)
    looks = {variant: i for i, variant in enumerate(named)}
    charts = [
        Lines(
            f"learning_{kind}",
            f"{kind} answers, means over seeds",
            "training steps, a point after every round",
            "percent",
            [
                _curve(named[variant], runs, kind, looks[variant])
                for variant, runs in finished.items()
            ],
        )
        for kind in ("valid", "optimal")
    ]
    points = [point for runs in finished.values() for run in runs for point in run["points"]]
    # Older studies lack them.
    if all(point.get("processor_seconds") is not None for point in points):
        curves = [
            _curve(named[variant], runs, "valid", looks[variant], over="processor_seconds")
            for variant, runs in finished.items()
        ]
        title = "valid answers by what they cost, means over seeds"
        charts.append(Lines("learning_cost", title, "processor seconds", "percent", curves))
    return on_one_scale(charts) if finished else []


def _single_curves(study: Found) -> list[Lines]:
    """A chart of each variant with its seeds, all on one scale."""
    named, finished, reference, charts = labels(study), _finished(study), study["reference"], []
    for look, (variant, label) in enumerate(named.items()):
        if runs := finished.get(variant):
            lines = [_curve(f"seed {run['seed']}", [run], "valid", look, "-") for run in runs]
            lines.append(_curve("mean", runs, "valid", look))
            if variant != reference and reference in finished:
                name = f"mean of {named[reference]}"
                lines.append(_curve(name, finished[reference], "valid", None))
            title = f"learning_valid_{variant}"
            charts.append(Lines(title, label, "training steps", "percent valid", lines))
    return on_one_scale(charts)


def _curve(
    name: str,
    runs: Sequence[Found],
    kind: str,
    look: int | None,
    faint: str = "",
    over: str = "steps",
) -> Series:
    """Percent valid or optimal after every round, means over runs."""
    rounds = list(zip(*(run["points"] for run in runs), strict=True))
    places = [plain.fmean(point[over] for point in points) for points in rounds]
    rates = [plain.fmean(100 * rate(point, kind) for point in points) for points in rounds]
    return Series(name, places, rates, look=look, faint=faint)


# Configurations


def _configurations(study: Found, family: Family) -> Iterator[Lines]:
    """A chart of each variant: the fractions of its training set by round."""
    parameter = family.space.fraction_parameter
    curves: dict[str, list[Series]] = {}
    for variant, runs in _finished(study).items():
        rounds = list(zip(*(run["points"][1:] for run in runs), strict=True))
        curves[variant] = [
            Series(
                f"{family.texts.label} {row}",
                [str(number) for number in range(1, len(rounds) + 1)],
                [plain.fmean(p["config"][row][parameter] for p in points) for points in rounds],
                look=i,
            )
            for i, row in enumerate(study["rows"])
        ]
    highest = max(
        (ratio or 0 for lines in curves.values() for line in lines for ratio in line.y), default=1
    )
    for variant, lines in curves.items():
        yield Lines(
            f"{parameter}_{variant}",
            labels(study)[variant],
            "round",
            f"{parameter}, mean over seeds",
            lines,
            (0, math.ceil(10 * highest) / 10),
        )
