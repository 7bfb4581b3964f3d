"""The page of a study: variants that differ in a few options, over the same seeds and budget.

It is made from `study.json`, whose fields `experiments.study.results` describes. Where the folders
of the runs are there too, measures of their designs and drawn answers come from them.
"""

import itertools
import json
import math
import statistics as plain
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engineer.space import Configuration
from experiments import store as files
from experiments.report import answers, measures, published_fractions
from experiments.report.charts import Estimate, Estimates, Gallery, Lines, Series
from experiments.report.page import (
    DASH,
    NOTHING,
    Content,
    Heat,
    Html,
    Section,
    bullets,
    charts,
    code,
    document,
    duration,
    element,
    files_section,
    fold,
    heading,
    join,
    number,
    paragraph,
    percent,
    table,
    text_block,
    tiles,
)
from experiments.report.reading import Run, failure, is_run, read_run
from experiments.statistics import holm, minimum_detectable_difference
from experiments.study import results as study_results

_FILE = "study.json"
_SCHEMA = 1
_DRAWN_VARIANTS = 2
_PAIRS = "Every variant against every other"
_BUDGET = {
    "rounds": "rounds",
    "instances": "training instances",
    "steps": "training steps",
    "updates": "updates",
    "answers": "answers sampled in training",
    "validated": "answers in validation",
    "engineer_steps": "steps of training as engineer",
}


def is_study(root: Path) -> bool:
    """Whether a folder is that of a study."""
    return (root / _FILE).is_file()


def page(root: Path, gallery: Gallery) -> Html:
    """The page; its charts go to the gallery.

    Raises:
      ValueError: the file of the study, or one of a run, is damaged or of another version.
    """
    path = root / _FILE
    try:
        found = files.read_json(path)
    except ValueError as error:
        raise ValueError(f"{path}: damaged: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != _SCHEMA:
        raise ValueError(f"{path}: schema {_SCHEMA} is needed; make it anew with experiments.study")
    runs = _runs(root, found)
    sections = [
        Section("comparison", "Comparison", _comparison(found, gallery)),
        Section("set-up", "What was compared", _set_up(found)),
        Section("learning", "Learning curves", _learning(found, gallery)),
        Section("configurations", "Configurations", _configurations(found, gallery)),
        Section("designs", "Designs", _designs(found, runs)),
        Section("failures", "What fails", _failures(found)),
        Section("answers", "Answers, drawn", _answers(found, runs)),
        Section("cost", "Cost and runs", _cost(found)),
        Section("limits", "What the numbers do not show", _limits(found)),
        Section("files", "Files", files_section(gallery.names)),
    ]
    return document(f"Study {found['name']}", _introduction(found), sections)


def _runs(root: Path, found: Mapping[str, Any]) -> dict[tuple[str, int], Run]:
    """The finished runs whose folders are there, by variant and seed."""
    return {
        (run["variant"], run["seed"]): read_run(root / run["folder"])
        for run in found["runs"]
        if run["status"] == "finished" and is_run(root / run["folder"])
    }


def _labels(found: Mapping[str, Any]) -> dict[str, str]:
    return {variant["name"]: variant["label"] for variant in found["variants"]}


def _finished(found: Mapping[str, Any], variant: str) -> list[Mapping[str, Any]]:
    return [
        run for run in found["runs"] if run["variant"] == variant and run["status"] == "finished"
    ]


def _level(found: Mapping[str, Any]) -> str:
    return f"{100 * found['level']:.0f}\N{NO-BREAK SPACE}%"


# The top of the page


def _introduction(found: Mapping[str, Any]) -> Html:
    labels, state = _labels(found), found["state"]
    metric = found["metrics"][0]
    rows = [row for row in found["comparison"] if row["metric"] == metric["name"]]
    known = [row for row in rows if row["mean"] is not None]
    reference = next((row for row in known if row["variant"] == found["reference"]), None)
    facts: list[tuple[Content, Content, Content]] = [
        (
            "runs finished",
            f"{state['finished']} of {state['planned']}",
            f"{len(found['variants'])} variants, {len(found['seeds'])} seeds",
        )
    ]
    starts = [run["points"][0] for run in found["runs"] if run["points"]]
    before = [point["valid"] / point["answers"] for point in starts]
    if before:
        remark = "the same in all runs" if len(set(before)) == 1 else "mean over all runs"
        facts.append(("valid before training", percent(_mean(before)), remark))
    if reference is not None:
        facts.append(
            (
                f"reference: {labels[found['reference']]}",
                percent(reference["mean"]),
                metric["label"],
            )
        )
    if known:
        best = max(known, key=lambda row: row["mean"])
        remark = "the reference itself"
        if best["difference"]:
            remark = (
                f"minus the reference: {_difference_text(best['difference'], found)}; the best of "
                f"{len(known)} is picked, so this flatters it"
            )
        facts.append((f"highest mean: {labels[best['variant']]}", percent(best["mean"]), remark))
    short = study_results.shortfalls(found)
    return join(
        [
            paragraph(found["question"]),
            tiles(facts),
            _verdict(found, rows),
            *([paragraph(element("b", "Not all used their budget."))] if short else []),
            bullets(short),
        ]
    )


def _difference_text(difference: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if difference["mean"] is None:
        return "no common seed"
    told = f"{100 * difference['mean']:+.1f} points"
    between = _interval(difference["low"], difference["high"], "+")
    return f"{told} ({_level(found)}: {between})" if between else told


def _verdict(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Html:
    """Which variants are told from the reference in the first metric, in words."""
    labels = _labels(found)
    tested = [row for row in rows if row["difference"] and row["difference"]["p_holm"] is not None]
    if not tested:
        return paragraph(
            element("b", "Nothing can be compared yet: "),
            "two seeds of a variant and of the reference have to be finished.",
        )
    alpha = 1 - found["level"]
    told = [row for row in tested if row["difference"]["p_holm"] < alpha]
    name = found["metrics"][0]["label"]
    against = labels[found["reference"]]
    if not told:
        low, high = (
            pick(row["difference"][end] for row in tested)
            for pick, end in ((min, "low"), (max, "high"))
        )
        return paragraph(
            element("b", "No difference is shown. "),
            f"In “{name}” no other variant is told from {against} at "
            f"{100 * alpha:.0f} % after Holm's correction. That is no proof that they are equal: "
            f"the {_level(found)} intervals of the differences reach from {100 * low:+.1f} to "
            f"{100 * high:+.1f} points, and what lies within a variant's own interval remains "
            "possible. With this many variants and seeds, and this spread between seeds, a variant is "
            "told from the reference only if its mean differs by about "
            f"{100 * _told_from(found, tested):.1f} points or more.",
        )
    sentences = [
        f"{labels[row['variant']]} {_difference_text(row['difference'], found)}" for row in told
    ]
    return join(
        [
            paragraph(
                element("b", f"Told from {against} "),
                f"in “{name}” at {100 * alpha:.0f} % after Holm's correction: {len(told)} of "
                f"{len(tested)} other variants.",
            ),
            bullets(sentences),
        ]
    )


def _told_from(found: Mapping[str, Any], tested: Sequence[Mapping[str, Any]]) -> float:
    """How large a mean difference has to be, by the median of the variants' intervals."""
    differences = [row["difference"] for row in tested]
    return plain.median(
        minimum_detectable_difference(
            (one["high"] - one["low"]) / 2, len(one["values"]), len(tested), found["level"]
        )
        for one in differences
    )


# Comparison


def _comparison(found: Mapping[str, Any], gallery: Gallery) -> Html:
    labels, level = _labels(found), _level(found)
    against = labels[found["reference"]]
    starts = [run["points"][0] for run in found["runs"] if run["points"]]
    parts: list[Content] = []
    for metric in found["metrics"]:
        rows = [row for row in found["comparison"] if row["metric"] == metric["name"]]
        means = [_estimate(labels[row["variant"]], row, i) for i, row in enumerate(rows)]
        kind = metric["name"].partition("_")[0]
        before = _mean([100 * point[kind] / point["answers"] for point in starts])
        differences = [
            _estimate(labels[row["variant"]], row["difference"], i)
            for i, row in enumerate(rows)
            if row["difference"]
        ]
        parts += [
            heading(f"{metric['label'][0].upper()}{metric['label'][1:]}"),
            charts(
                gallery.add(
                    Estimates(
                        metric["name"],
                        metric["label"],
                        f"Mean over seeds of every variant with its {level} interval; the dotted line "
                        "is the share before training.",
                        "percent",
                        tuple(means),
                        before,
                    ),
                    None if before is None else f"Dotted: {kind} before training, {before:.1f}%.",
                ),
                gallery.add(
                    Estimates(
                        f"{metric['name']}_difference",
                        f"minus {against}",
                        f"Difference of every variant from {against}, paired by seed, with its "
                        f"{level} interval.",
                        "points",
                        tuple(differences),
                        0.0,
                    )
                ),
            ),
            _comparison_table(found, rows),
        ]
        pairs = _pairs(found, rows) if len(labels) > 2 else []
        if metric is found["metrics"][0]:
            parts += [*([heading(_PAIRS)] if pairs else []), *pairs]
        elif pairs:
            parts.append(fold(_PAIRS, *pairs))
    return join(
        [
            *parts,
            paragraph(
                "Small dots are seeds. Means have Student's interval over seeds. Differences are "
                "paired by seed, with Student's interval and the p-value of the paired t-test; "
                "Holm's correction of it and that of Benjamini and Hochberg (FDR) are over the "
                "variants of one table; the first table is the main one. The exact test "
                f"flips signs and cannot fall below 2 / 2^n for n seeds. Intervals hold {level} of "
                "the time for one variant alone, not for all variants together. “With instances” is the "
                "bootstrap over seeds and validation instances, which at few seeds is too narrow.",
                class_="note",
            ),
        ]
    )


def _pairs(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Html]:
    """Every variant against every other one, with p-values corrected over all pairs."""
    labels, alpha = _labels(found), 1 - found["level"]
    ranked = sorted((row for row in rows if row["mean"] is not None), key=lambda row: -row["mean"])
    pairs = {}
    for one, other in itertools.combinations(ranked, 2):
        common = {
            int(seed): value - other["values"][seed]
            for seed, value in one["values"].items()
            if seed in other["values"]
        }
        if common:
            pairs[one["variant"], other["variant"]] = study_results.paired(common)
    tested = [pair for pair in pairs.values() if pair["p"] is not None]
    if not tested:
        return []
    for pair, p in zip(tested, holm([pair["p"] for pair in tested]), strict=True):
        pair["holm"] = p
    matrix, listed = [], []
    for one in ranked:
        cells: list[Content] = [labels[one["variant"]], percent(one["mean"])]
        for other in ranked:
            key = (one["variant"], other["variant"])
            compared = pairs.get(key) or pairs.get(key[::-1])
            if compared is None:
                cells.append(DASH)
                continue
            mark = "*" if compared.get("holm", 1) < alpha else ""
            sign = 1 if key in pairs else -1
            points = 100 * sign * compared["mean"] + 0.0  # 0.0 makes -0.0 a zero without a sign.
            cells.append(f"{points:+.1f}{mark}")
        matrix.append(cells)
    for (one_variant, other_variant), pair in pairs.items():
        listed.append(
            (
                f"{labels[one_variant]} minus {labels[other_variant]}",
                len(pair["values"]),
                _with_interval(pair["mean"], pair["low"], pair["high"], "+", ""),
                _p_value(pair["p"]),
                _p_value(pair.get("holm")),
            )
        )
    apart = sum(pair["holm"] < alpha for pair in tested)
    return [
        paragraph(
            f"Points by which the variant of a row is above that of a column, best mean first. "
            f"After Holm's correction over all {len(tested)} pairs "
            + (f"{apart} of them are told apart (*)." if apart else "none of them is told apart.")
        ),
        table(
            _PAIRS,
            ("variant", "mean", *(labels[row["variant"]] for row in ranked)),
            matrix,
        ),
        fold(
            f"All {len(pairs)} pairs",
            table(
                "All pairs of variants",
                ("pair", "seeds", f"difference ({_level(found)})", "p", "Holm, all pairs"),
                listed,
            ),
        ),
    ]


def _estimate(name: str, found: Mapping[str, Any], look: int) -> Estimate:
    """A mean or a difference of `study.json`, in percent."""
    mean, low, high = (
        None if found[key] is None else 100 * found[key] for key in ("mean", "low", "high")
    )
    points = {f"seed {seed}": 100 * value for seed, value in found["values"].items()}
    return Estimate(name, mean, low, high, points, look)


def _comparison_table(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Html:
    labels, level = _labels(found), _level(found)
    written: list[tuple[Content, ...]] = []
    for row in rows:
        difference = row["difference"] or {}
        written.append(
            (
                labels[row["variant"]],
                _with_interval(row["mean"], row["low"], row["high"], "", "%"),
                "reference"
                if row["difference"] is None
                else _with_interval(
                    difference["mean"], difference["low"], difference["high"], "+", ""
                ),
                *(_p_value(difference.get(name)) for name in ("p_holm", "p", "p_fdr", "p_exact")),
                _interval(difference.get("crossed_low"), difference.get("crossed_high"), "+")
                or DASH,
                percent(row["sd"]),
                len(row["values"]),
            )
        )
    header = (
        "variant",
        f"mean ({level})",
        f"minus {labels[found['reference']]} ({level})",
        "p, Holm",
        "p, alone",
        "p, FDR",
        "p, exact",
        "with instances",
        "sd of seeds",
        "seeds",
    )
    return table("Comparison of the variants", header, written)


def _with_interval(
    mean: float | None, low: float | None, high: float | None, sign: str, unit: str
) -> str:
    if mean is None:
        return DASH
    between = _interval(low, high, sign)
    return f"{100 * mean:{sign}.1f}{unit}" + (f" ({between})" if between else "")


def _interval(low: float | None, high: float | None, sign: str) -> str:
    if low is None or high is None:
        return ""
    return f"{100 * low:{sign}.1f} to {100 * high:{sign}.1f}"


def _p_value(value: float | None) -> str:
    if value is None:
        return DASH
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


# What was compared


def _set_up(found: Mapping[str, Any]) -> Html:
    differs = found["budget"]["differs"]
    variants = []
    for variant in found["variants"]:
        name = variant["label"] + (" (reference)" if variant["name"] == found["reference"] else "")
        changes = [
            join([code(path), f" = {json.dumps(value)}"])
            for path, value in variant["changes"].items()
        ]
        budget = ", ".join(f"{v[variant['name']]:,} {_BUDGET[part]}" for part, v in differs.items())
        variants.append((name, bullets(changes) if changes else "none", budget or "the common one"))
    equal = [f"{value:,} {_BUDGET[part]}" for part, value in found["budget"]["equal"].items()]
    versions = found["versions"] or {}
    facts = [
        ("seeds", ", ".join(str(seed) for seed in found["seeds"])),
        ("budget of every run", ", ".join(equal)),
        ("model", str(found["base"]["model"]["path"])),
        ("devices of a run", str(versions.get("devices", "not recorded"))),
    ]
    others = [(name, str(value)) for name, value in versions.items() if name != "devices"]
    return join(
        [
            table("What all variants have in common", ("what", "value"), facts, text=True),
            table(
                "The variants",
                ("variant", "options of its own", "budget of its own"),
                variants,
                text=True,
            ),
            fold(
                "All options of the reference, first seed",
                text_block(json.dumps(found["base"], indent=1)),
            ),
            fold("Versions and machine", table("Versions", ("what", "version"), others, text=True)),
        ]
    )


# Learning curves


def _mean(values: Sequence[float]) -> float | None:
    return plain.fmean(values) if values else None


def _learning(found: Mapping[str, Any], gallery: Gallery) -> Html:
    labels = _labels(found)
    finished = {variant: runs for variant in labels if (runs := _finished(found, variant))}
    if not finished:
        return paragraph("No run has finished yet.")
    figures = []
    for kind in ("valid", "optimal"):
        lines = tuple(
            Series(label, *_curve(finished[variant], kind), look=i)
            for i, (variant, label) in enumerate(labels.items())
            if variant in finished
        )
        figures.append(
            gallery.add(
                Lines(
                    f"learning_{kind}",
                    f"{kind} answers, means over seeds",
                    f"Mean share of {kind} validation answers of every variant over training.",
                    "training steps, a point after every round",
                    "percent",
                    lines,
                )
            )
        )
    shares = [
        share for runs in finished.values() for run in runs for share in _curve([run], "valid")[1]
    ]
    single = []
    for i, (variant, label) in enumerate(labels.items()):
        if variant not in finished:
            continue
        lines = tuple(
            Series(f"seed {run['seed']}", *_curve([run], "valid"), look=i, faint=True)
            for run in finished[variant]
        )
        lines += (Series("mean", *_curve(finished[variant], "valid"), look=i),)
        if variant != found["reference"] and found["reference"] in finished:
            name = f"mean of {labels[found['reference']]}"
            lines += (Series(name, *_curve(finished[found["reference"]], "valid"), look=None),)
        single.append(
            gallery.add(
                Lines(
                    f"learning_valid_{variant}",
                    label,
                    f"Share of valid validation answers of every seed over training: {label}.",
                    "training steps",
                    "percent valid",
                    lines,
                    y_range=(min(shares), max(shares) + 1),
                )
            )
        )
    return join(
        [charts(*figures), heading("Valid answers of every seed (thin lines)"), charts(*single)]
    )


def _curve(runs: Sequence[Mapping[str, Any]], kind: str) -> tuple[list[float], list[float]]:
    """(training steps, percent of the validation answers) after every round, means over runs."""
    steps, shares = [], []
    for points in zip(*(run["points"] for run in runs), strict=True):
        steps.append(plain.fmean(point["steps"] for point in points))
        shares.append(plain.fmean(100 * point[kind] / point["answers"] for point in points))
    return steps, shares


# Configurations


def _configurations(found: Mapping[str, Any], gallery: Gallery) -> Html:
    labels = _labels(found)
    curves: dict[str, list[Series]] = {}
    for variant in labels:
        points = [
            (float(point["round"]), Configuration.from_dict(point["config"]))
            for run in _finished(found, variant)
            for point in run["points"]
            if point["config"] is not None
        ]
        rounds = sorted({index for index, _ in points})
        if rounds:
            curves[variant] = [
                Series(
                    f"{size}x{size}",
                    rounds,
                    [
                        plain.fmean(
                            config[size, "data_ratio"] for at, config in points if at == index
                        )
                        for index in rounds
                    ],
                    look=i,
                )
                for i, size in enumerate(found["rows"])
            ]
    if not curves:
        return paragraph("No run has finished yet.")
    highest = max(share or 0 for lines in curves.values() for line in lines for share in line.y)
    figures = []
    for variant, lines in curves.items():
        figures.append(
            gallery.add(
                Lines(
                    f"shares_{variant}",
                    labels[variant],
                    f"Mean share of the training set of every lake size by round: {labels[variant]}.",
                    "round",
                    "data_ratio, mean over seeds",
                    tuple(lines),
                    {index: f"{index:g}" for index in lines[0].x},
                    (0, math.ceil(10 * highest) / 10),
                )
            )
        )
    return join(
        [
            paragraph(
                "Share of the training set by lake size and round. Every variant of a seed begins with "
                "the same configuration unless its options say otherwise."
            ),
            charts(*figures),
            heading("What the last round asked for"),
            paragraph(
                "Share of the set / ratio of holes / ratio of waits by lake size, means over seeds."
            ),
            table(
                "Configurations of the last round",
                ("variant", *(f"{size}x{size}" for size in found["rows"])),
                _last_configurations(found),
            ),
            heading("The published shares"),
            charts(published_fractions.chart(gallery, 0.2)),
            paragraph(published_fractions.REMARK, class_="note"),
        ]
    )


def _last_configurations(found: Mapping[str, Any]) -> list[tuple[Content, ...]]:
    rows: list[tuple[Content, ...]] = []
    for variant, label in _labels(found).items():
        last = [
            Configuration.from_dict(r["points"][-1]["config"]) for r in _finished(found, variant)
        ]
        if last:
            means = (
                (plain.fmean(config[size, name] for config in last) for name in last[0].parameters)
                for size in found["rows"]
            )
            rows.append((label, *(" / ".join(f"{mean:.2f}" for mean in cell) for cell in means)))
    return rows


# Designs


def _designs(found: Mapping[str, Any], runs: Mapping[tuple[str, int], Run]) -> Html:
    labels = _labels(found)
    rows = []
    for variant, label in labels.items():
        designs = [
            point["design"]
            for run in _finished(found, variant)
            for point in run["points"]
            if point["design"] is not None
        ]
        if designs:
            rows.append(
                (
                    label,
                    len(designs),
                    sum(design["kept_previous"] for design in designs),
                    number(_mean([design["repairs"] for design in designs])),
                    number(_mean([design["tries"] for design in designs])),
                )
            )
    measured = {
        label: [
            each.design.measures
            for (name, _), run in runs.items()
            if name == variant
            for each in run.rounds
            if each.design is not None and each.design.measures is not None
        ]
        for variant, label in labels.items()
    }
    measured = {label: found for label, found in measured.items() if found}
    header = ("variant", "designs", "earlier one kept", "repairs a design", "answers read a design")
    return join(
        [
            table("Designs of every variant", header, rows)
            if rows
            else paragraph("There are none yet."),
            *(
                [
                    heading("What the designs did with their evidence"),
                    measures.of_variants(measured),
                ]
                if measured
                else []
            ),
        ]
    )


# Failures


def _failures(found: Mapping[str, Any]) -> Html:
    labels = _labels(found)
    checks = found["checks"]
    by_check: list[tuple[Content | Heat, ...]] = []
    by_size = []
    for variant, label in labels.items():
        last = [run["points"][-1] for run in _finished(found, variant)]
        if not last:
            continue
        by_check.append(
            (
                label,
                *(
                    Heat(_mean([point["failed"][check] / point["answers"] for point in last]))
                    for check in checks
                ),
            )
        )
        rows = [[point["by_row"][size] for point in last] for size in found["rows"]]
        by_size.append(
            (
                label,
                *(
                    f"{percent(_mean([row['valid'] / row['answers'] for row in each]))} / "
                    f"{percent(_mean([row['optimal'] / row['answers'] for row in each]))}"
                    for each in rows
                ),
            )
        )
    if not by_check:
        return paragraph("No run has finished yet.")
    return join(
        [
            paragraph(
                "Share of the answers of the last validation that fail in each way, mean over "
                "seeds. An answer may fail in several; one that is not readable, or has a wrong "
                "number of agents, counts there alone."
            ),
            table(
                "Failures by variant",
                ("variant", *(failure(check) for check in checks)),
                by_check,
            ),
            heading("Valid / optimal by lake size"),
            table(
                "Valid and optimal by variant and size",
                ("variant", *(f"{size}x{size}" for size in found["rows"])),
                by_size,
            ),
        ]
    )


# Answers


def _answers(found: Mapping[str, Any], runs: Mapping[tuple[str, int], Run]) -> Html:
    labels = _labels(found)
    metric = found["metrics"][0]["name"]
    means = {
        row["variant"]: row["mean"]
        for row in found["comparison"]
        if row["metric"] == metric and row["mean"] is not None
    }
    others = sorted(
        (variant for variant in means if variant != found["reference"]),
        key=lambda variant: -means[variant],
    )
    parts: list[Content] = []
    for variant in [found["reference"], *others][:_DRAWN_VARIANTS]:
        seeds = [seed for name, seed in runs if name == variant]
        drawn = answers.of_run(runs[variant, min(seeds)], 3, f"{len(parts)}") if seeds else None
        if drawn is not None:
            parts += [heading(f"{labels[variant]}, seed {min(seeds)}"), drawn]
    if not parts:
        return paragraph("The folders of the runs are not there, or no run has finished yet.")
    return join([paragraph(answers.LEGEND), answers.PAUSE, *parts])


# Cost


def _cost(found: Mapping[str, Any]) -> Html:
    labels = _labels(found)
    by_variant, by_run = [], list[tuple[Content, ...]]()
    for variant, label in labels.items():
        done = _finished(found, variant)
        if done:
            used = [
                number(_mean([run["used"][part] for run in done]), 0)
                for part in ("instances", "steps", "updates", "answers")
            ]
            own = [
                duration(plain.fmean([run[part] for run in done]))
                for part in ("seconds", "cpu_seconds")
            ]
            shared = [run["shared"]["seconds"] for run in done if run["shared"]]
            by_variant.append(
                (label, *used, *own, duration(plain.fmean(shared)) if shared else DASH)
            )
    for run in found["runs"]:
        first, last = (run["points"][0], run["points"][-1]) if run["points"] else (None, None)
        by_run.append(
            (
                f"{labels[run['variant']]}, seed {run['seed']}",
                run["status"],
                DASH if first is None else percent(first["valid"] / first["answers"]),
                DASH if last is None else percent(last["valid"] / last["answers"]),
                DASH if last is None else percent(last["optimal"] / last["answers"]),
                duration(run["seconds"]),
                code(run["folder"]),
                run["error"],
            )
        )
    shared_folders = {
        run["shared"]["folder"]: run["shared"]["seconds"] for run in found["runs"] if run["shared"]
    }
    total = sum(run["seconds"] for run in found["runs"]) + sum(shared_folders.values())
    return join(
        [
            table(
                "What a run of every variant used",
                (
                    "variant, mean of its runs",
                    "instances",
                    "steps",
                    "updates",
                    "answers sampled",
                    "time",
                    "CPU time",
                    "time of the common beginning",
                ),
                by_variant,
            )
            if by_variant
            else NOTHING,
            paragraph(
                f"All runs together took {duration(total)} of wall time on the machine above, "
                "those that ran at the same time counted one by one. Where variants begin alike, "
                "validation before training and round 0 were computed once for all of them.",
                class_="note",
            ),
            fold(
                f"All runs ({len(by_run)})",
                table(
                    "All runs",
                    (
                        "run",
                        "status",
                        "valid at the start",
                        "valid at the end",
                        "optimal at the end",
                        "time",
                        "folder",
                        "error",
                    ),
                    by_run,
                ),
            ),
        ]
    )


def _limits(found: Mapping[str, Any]) -> Html:
    seeds = len(found["seeds"])
    state = found["state"]
    items: list[Content] = [
        f"There are {seeds} seeds. Student's interval supposes that the results of seeds are "
        "spread normally, which so few cannot show; effects smaller than the intervals are wide "
        "would go unseen.",
        "All seeds answer the same validation instances, so the means are about these. Designers "
        "that read results read those of this very set.",
        "Variants are equal in the parts of the budget that are named, not in all things: a designer "
        "that is a model also spends answers on designs, and harder lakes have longer answers.",
        "p-values are corrected within one table. Whoever picks the best of four metrics after "
        "looking has tested more than that.",
        "What holds for this model and these lake sizes need not hold for larger ones.",
    ]
    if found["base"]["model"]["path"] == "tiny":
        items.append(
            "The model has about a million parameters and was prepared on the solver's plans and "
            "on demonstrations of one simple rule of design. A current checkpoint that designs "
            "well here does so by that rule, not by insight."
        )
    if state["finished"] < state["planned"]:
        items.append(
            f"{state['planned'] - state['finished']} runs are missing or have failed. If they "
            "failed because of how their variant behaves, the means of the others flatter it."
        )
    if found["budget"]["differs"]:
        items.append("The variants differ in their budget on purpose: see What was compared.")
    return bullets(items)
