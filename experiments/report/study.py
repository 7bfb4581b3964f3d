"""The page of a study: renders `experiments/templates/study.html` from `study.json`.

`experiments.study.results` describes the fields of that file. Measures of designs and drawn answers
come from the folders of the runs, if they exist.
"""

import dataclasses
import functools
import itertools
import math
import operator
import statistics as plain
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.families import Family
from experiments.pages import render
from experiments.report import answers, style
from experiments.report.charts import Estimates, Gallery, Lines, Series, on_one_scale
from experiments.run_reading import Run, is_run, read_json, read_run
from experiments.settings import family_of
from experiments.statistics import minimum_detectable_difference, paired_together
from experiments.study import provenance
from experiments.study import results as study_results
from experiments.study.results import rate, rate_of

FILE = "study.json"
BENCHMARK = "benchmark/results.md"  # Of `experiments.reproduce`.
_OF_ROWS = ("valid_worst", "valid_fall", "valid_test")  # No rates of the whole validation.
_DRAWN_VARIANTS, _DRAWN_ANSWERS = 2, 3

Found = Mapping[str, Any]
"""Part of the content of `study.json`."""


@dataclasses.dataclass(frozen=True)
class _Study:
    """A study, with the data that several parts of its page share.

    Attributes:
      found: the content of `study.json`.
      family: the family of all runs.
      runs: the finished runs whose folders exist, by variant and seed.
    """

    found: Found
    family: Family
    runs: Mapping[tuple[str, int], Run]

    @property
    def labels(self) -> dict[str, str]:
        """The label of each variant by name."""
        return study_results.labels(self.found)

    @property
    def finished(self) -> dict[str, list[Found]]:
        """The finished runs by variant, without variants that have none."""
        runs = [run for run in self.found["runs"] if run["status"] == "finished"]
        by_variant = {name: [r for r in runs if r["variant"] == name] for name in self.labels}
        return {name: done for name, done in by_variant.items() if done}

    @property
    def label(self) -> str:
        """The label of a row of a configuration."""
        return self.family.texts.label

    @property
    def starts(self) -> list[Found]:
        """The validations before training."""
        return [run["points"][0] for run in self.found["runs"] if run["points"]]

    def rows(self, metric: Found) -> list[Found]:
        """The rows of the comparison in one metric, one per variant."""
        return [row for row in self.found["comparison"] if row["metric"] == metric["name"]]


def page(root: Path, gallery: Gallery) -> str:
    """The page; its charts go to the gallery.

    Raises:
      ValueError: the file of the study, or one of a run, is damaged or of another version.
    """
    path = root / FILE
    found = read_json(path)
    if not isinstance(found, dict) or found.get("schema") != study_results.SCHEMA:
        raise ValueError(
            f"{path}: schema {study_results.SCHEMA} is needed; make it anew with experiments.study"
        )
    runs = {
        (run["variant"], run["seed"]): read_run(root / run["folder"])
        for run in found["runs"]
        if run["status"] == "finished" and is_run(root / run["folder"])
    }
    study = _Study(found, family_of(found["base"]), runs)
    comparison = list(_comparison(study, gallery))
    compared = [row for row in comparison[0]["rows"] if row["difference"]]
    tested = [row for row in compared if row["difference"]["p_holm"] is not None]
    measured = _measured(study)
    return render(
        "study.html",
        style=style,
        title=f"Study {found['name']}",
        study=found,
        labels=study.labels,
        level=f"{100 * found['level']:.0f}\N{NO-BREAK SPACE}%",
        alpha=1 - found["level"],
        finished=study.finished,
        label=study.label,
        labelled=[f"{study.label} {name}" for name in found["rows"]],
        before=[rate(point, "valid") for point in study.starts],
        comparison=comparison,
        tested=tested,
        detectable=_detectable(tested) if tested else None,
        short=study_results.shortfalls(found),
        provenance=provenance.sentences(found),
        learning=[list(map(gallery.add, of(study))) for of in (_mean_curves, _single_curves)],
        configurations=list(map(gallery.add, _configurations(study))),
        parameters=study.family.space.names,
        measured=measured,
        failures=list(map(study.family.failure, found["checks"])),
        last=_last,
        total=_total(found),
        mean=_mean,
        rate=rate,
        examples=list(_examples(study)),
        benchmark=BENCHMARK if (root / BENCHMARK).exists() else None,
        files=gallery.names,
    )


def _mean(values: Sequence[float]) -> float | None:
    return plain.fmean(values) if values else None


def _last(runs: Sequence[Found], *path: str) -> float:
    """The number at `path` in the last validation of each run, averaged over runs."""
    return plain.fmean(functools.reduce(operator.getitem, path, r["points"][-1]) for r in runs)


def _total(found: Found) -> float:
    """Total seconds of all runs; a shared beginning counts once."""
    shared = {run["shared"]["folder"]: run["shared"] for run in found["runs"] if run["shared"]}
    return sum(each["seconds"] for each in (*found["runs"], *shared.values()))


# Comparison


def _detectable(tested: Sequence[Found]) -> float:
    """The minimum detectable difference, as the median over the tested variants."""
    differences = [row["difference"] for row in tested]
    return plain.median(
        minimum_detectable_difference(
            (one["high"] - one["low"]) / 2, len(one["values"]), len(tested)
        )
        for one in differences
    )


def _comparison(study: _Study, gallery: Gallery) -> Iterator[dict[str, Any]]:
    """Yields the rows, charts and pairs of each metric; charts of rates share one scale."""
    metrics = study.found["metrics"]
    means = on_one_scale([_means(study, metric) for metric in metrics])
    differences = on_one_scale([_differences(study, metric) for metric in metrics])
    for metric, *charts in zip(metrics, means, differences, strict=True):
        rows = study.rows(metric)
        remark = "".join(f"Dotted: before training, {start:.1f}%." for start in charts[0].begins)
        yield {
            "label": metric["label"],
            "scale": 100 if rate_of(metric) else 1,
            "rows": rows,
            "drawn": [gallery.add(charts[0], remark), gallery.add(charts[1])],
            "pairs": _pairs(study, rows) if len(study.labels) > 2 and rate_of(metric) else None,
        }


def _means(study: _Study, metric: Found) -> Estimates:
    kind, starts = rate_of(metric), study.starts
    before = []
    if kind and starts and metric["name"] not in _OF_ROWS:
        before = [100 * plain.fmean(rate(start, kind) for start in starts)]
    rows, unit = _estimates(study, metric), "percent" if kind else metric["label"]
    return Estimates(metric["name"], metric["label"], "what", unit, rows, begins=before)


def _differences(study: _Study, metric: Found) -> Estimates:
    rows = _estimates(study, metric, "difference")
    unit = "points" if rate_of(metric) else f"difference in {metric['label']}"
    title = f"minus {study.labels[study.found['reference']]}"
    return Estimates(f"{metric['name']}_difference", title, "what", unit, rows, begins=[0.0])


def _estimates(study: _Study, metric: Found, part: str | None = None) -> list[Series]:
    """The mean of each variant, or a part of its row such as its difference, with its seeds."""
    scale, lines = 100 if rate_of(metric) else 1, []
    for i, row in enumerate(study.rows(metric)):
        if found := row[part] if part else row:
            mean, low, high = (
                None if found[key] is None else scale * found[key]
                for key in ("mean", "low", "high")
            )
            seeds = {f"seed {seed}": scale * value for seed, value in found["values"].items()}
            names, values = ["mean", *seeds], [mean, *seeds.values()]
            lines.append(Series(study.labels[row["variant"]], names, values, [low], [high], i))
    return lines


def _pairs(study: _Study, rows: Sequence[Found]) -> dict[str, Any] | None:
    """Pairwise comparisons of all variants, with p-values corrected over all pairs."""
    ranked = sorted((row for row in rows if row["mean"] is not None), key=lambda row: -row["mean"])
    together = paired_together(
        {
            (one["variant"], other["variant"]): (one["values"], other["values"])
            for one, other in itertools.combinations(ranked, 2)
            if one["values"].keys() & other["values"].keys()
        }
    )
    tested = [pair for pair in together.values() if pair["p_holm"] is not None]
    if not tested:
        return None
    alpha = 1 - study.found["level"]
    return {
        "header": ["variant", "mean", *(study.labels[row["variant"]] for row in ranked)],
        "ranked": ranked,
        "found": together,
        "tested": len(tested),
        "significant": sum(pair["p_holm"] < alpha for pair in tested),
    }


# Learning curves


def _mean_curves(study: _Study) -> list[Lines]:
    """Charts of valid and optimal answers with the means of all variants, on one scale."""
    looks = {variant: i for i, variant in enumerate(study.labels)}
    charts = [
        Lines(
            f"learning_{kind}",
            f"{kind} answers, means over seeds",
            "training steps, a point after every round",
            "percent",
            [
                _curve(study.labels[variant], runs, kind, looks[variant])
                for variant, runs in study.finished.items()
            ],
        )
        for kind in ("valid", "optimal")
    ]
    points = [point for runs in study.finished.values() for run in runs for point in run["points"]]
    # Older studies lack them.
    if all(point.get("processor_seconds") is not None for point in points):
        curves = [
            _curve(study.labels[variant], runs, "valid", looks[variant], over="processor_seconds")
            for variant, runs in study.finished.items()
        ]
        title = "valid answers by what they cost, means over seeds"
        charts.append(Lines("learning_cost", title, "processor seconds", "percent", curves))
    return on_one_scale(charts) if study.finished else []


def _single_curves(study: _Study) -> list[Lines]:
    """A chart of each variant with its seeds, all on one scale."""
    finished, reference, charts = study.finished, study.found["reference"], []
    for look, (variant, label) in enumerate(study.labels.items()):
        if runs := finished.get(variant):
            lines = [_curve(f"seed {run['seed']}", [run], "valid", look, "-") for run in runs]
            lines.append(_curve("mean", runs, "valid", look))
            if variant != reference and reference in finished:
                name = f"mean of {study.labels[reference]}"
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


def _configurations(study: _Study) -> Iterator[Lines]:
    """A chart of each variant: the fractions of its training set by round."""
    parameter = study.family.space.fraction_parameter
    curves: dict[str, list[Series]] = {}
    for variant, runs in study.finished.items():
        rounds = list(zip(*(run["points"][1:] for run in runs), strict=True))
        curves[variant] = [
            Series(
                f"{study.label} {row}",
                [str(number) for number in range(1, len(rounds) + 1)],
                [plain.fmean(p["config"][row][parameter] for p in points) for points in rounds],
                look=i,
            )
            for i, row in enumerate(study.found["rows"])
        ]
    highest = max(
        (ratio or 0 for lines in curves.values() for line in lines for ratio in line.y), default=1
    )
    for variant, lines in curves.items():
        yield Lines(
            f"{parameter}_{variant}",
            study.labels[variant],
            "round",
            f"{parameter}, mean over seeds",
            lines,
            (0, math.ceil(10 * highest) / 10),
        )


# Designs, failures and answers


def _measured(study: _Study) -> dict[str, list[Mapping[str, Any]]]:
    """The measures of all designs by the label of their variant."""
    measured: dict[str, list[Mapping[str, Any]]] = {label: [] for label in study.labels.values()}
    for (variant, _), run in study.runs.items():
        measured[study.labels[variant]] += run.measures.values()
    return {label: found for label, found in measured.items() if found}


def _examples(study: _Study) -> Iterator[tuple[str, dict[str, Any]]]:
    """Drawn answers of the reference and of the best other variant, first seed of each."""
    found, runs = study.found, study.runs
    rows = study.rows(found["metrics"][0])
    known = [row for row in rows if row["mean"] is not None]
    known.sort(key=lambda row: (row["variant"] != found["reference"], -row["mean"]))
    for row in known[:_DRAWN_VARIANTS]:
        seeds = [seed for variant, seed in runs if variant == row["variant"]]
        drawn = answers.of_run(runs[row["variant"], min(seeds)], _DRAWN_ANSWERS) if seeds else None
        if drawn is not None:
            yield f"{study.labels[row['variant']]}, seed {min(seeds)}", drawn
