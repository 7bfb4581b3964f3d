"""Results of a study whose variants branch from one run (`experiments.study.variants.Branches`).

`study.json` has the fields of `experiments.study.results`, without `budget`, and:

    branches        {rounds, horizons, bound}, as in `Branches`
    runs            one object for each variant and seed: variant, seed, folder (of its first
                    branch), status, error, seconds and cpu_seconds (of all its branches), shared
                    (null), and
      branches      one for each branch, rounds first: {round, horizon, folder, cpu_seconds,
                    design: the configuration of the designed round or null, test: {answers, valid,
                    by_row: {row: valid rate}} or null, fall: the largest fall of a mastered row
                    from the validation before the branch to its end, or null}
    metrics         for each horizon H, as means over the rounds: valid_H (valid answers to the test
                    set), valid_worst_H (in the worst row, whose rate is such a mean), valid_fall_H;
                    valid_1_after_R for each round R alone; cpu_seconds of a branch of one round
    designs         [{variant, designs, distinct}]: numbers of designs over seeds and rounds
    primary         [{variant, other, ...}]: `experiments.statistics.paired_together` of valid_1
    blocks          [{changes, seeds, primary}] where options differ between seeds: those options,
                    the seeds that share them, and `experiments.statistics.paired` of the pairs of
                    `primary` over them, {variant, other, ...}
    equivalent      {variant, other, bound, mean, low, high, p, ...}: the difference in valid_1, and
                    p of `experiments.statistics.equivalent`; null if none is asked for

The unit is a seed: its value is the mean over the rounds after which it branches.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments import statistics
from experiments.measurements import Table
from experiments.run import store as files
from experiments.run.reading import read_run
from experiments.settings import Settings
from experiments.study import provenance, results
from experiments.study.results import ERROR, FINISHED
from experiments.study.variants import Branches, Study
from experiments.text.templates import counted, estimate, p_value, render


def branch_folder(variant: str, seed: int, index: int, horizon: int) -> Path:
    """The folder of a branch after round `index`, relative to the study's."""
    return Path("branches") / variant / f"seed-{seed}" / f"after-{index}" / f"rounds-{horizon}"


def write(
    root: Path, study: Study, of: Branches, settings: Mapping[str, Mapping[int, Settings]]
) -> dict[str, Any]:
    """Writes `study.json` and `comparison.md` from the branches so far.

    Args:
      settings: of `Study.settings`.

    Returns:
      The content of `study.json`.
    """
    pairs = itertools.product(study.variants, study.seeds)
    runs = [_run(root, of, variant.name, seed) for variant, seed in pairs]
    rows = next(
        (list(t["by_row"]) for run in runs for b in run["branches"] if (t := b["test"])), []
    )
    found = {
        **results.common(root, study, settings, runs),
        "rows": rows,
        "branches": {
            name: value
            for name, value in dataclasses.asdict(of).items()
            if name in ("rounds", "horizons", "bound")
        },
        **compare(study, of, runs),
    }
    files.write_file(root / "study.json", found)
    files.write_file(root / "comparison.md", markdown(found))
    return found


def _run(root: Path, of: Branches, variant: str, seed: int) -> dict[str, Any]:
    """The branches of a variant and seed, as in `study.json`."""
    pairs = list(itertools.product(of.rounds, of.horizons_of(variant)))
    folders = [branch_folder(variant, seed, *pair) for pair in pairs]
    errors = [root / folder / ERROR for folder in folders if (root / folder / ERROR).exists()]
    finished = all((root / folder / FINISHED).exists() for folder in folders)
    times = [results.times(root / folder) for folder in folders]
    return {
        "variant": variant,
        "seed": seed,
        "folder": str(folders[0]),
        "status": "finished" if finished else "failed" if errors else "missing",
        "error": errors[0].read_text(encoding="utf-8").strip() if errors else None,
        **{name: round(sum(one[name] for one in times), 1) for name in times[0]},
        "shared": None,
        "branches": [
            {
                "round": index,
                "horizon": horizon,
                "folder": str(folder),
                "cpu_seconds": time["cpu_seconds"],
                **_branch(root / folder, index, horizon),
            }
            for (index, horizon), folder, time in zip(pairs, folders, times, strict=True)
        ],
    }


def _branch(folder: Path, index: int, horizon: int) -> dict[str, Any]:
    """Design and outcome of a branch."""
    finished = (folder / FINISHED).exists()
    rounds = read_run(folder).rounds[index : index + horizon + 1] if finished else ()
    if not rounds or rounds[-1].test is None:
        return {"design": None, "test": None, "fall": None}
    config, test = rounds[1].config, rounds[-1].test.breakdown
    seen = [one.validation.breakdown.by_group for one in rounds if one.validation]
    return {
        "design": config and config.to_dict(),
        "test": {
            "answers": test.answers,
            "valid": sum(row.valid for row in test.by_group),
            "by_row": {row.name: row.valid_rate for row in test.by_group},
        },
        "fall": results.largest_fall(np.array([[row.valid_rate for row in of] for of in seen])),
    }


def compare(study: Study, of: Branches, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`metrics`, `comparison`, `designs`, `primary` and `equivalent` of what is finished.

    Args:
      runs: as in `study.json`.
    """
    labels = _labels(of)
    values: dict[str, dict[str, dict[int, float]]] = {
        name: {variant.name: {} for variant in study.variants} for name in labels
    }
    for run in runs:
        for name, value in _scores(of, run).items():
            values[name][run["variant"]][run["seed"]] = value
    first = values["valid_1"]
    pairs = {pair: (first[pair[0]], first[pair[1]]) for pair in of.pairs}
    tested = statistics.paired_together({pair: pairs[pair] for pair in of.primary})
    equivalent = None
    if of.equivalent:
        one, other = of.equivalent
        found = statistics.paired(*pairs[of.equivalent])
        found["p"] = statistics.equivalent(*pairs[of.equivalent], of.bound)
        equivalent = {"variant": one, "other": other, "bound": of.bound, **found}
    return {
        "metrics": [{"name": name, "label": label} for name, label in labels.items()],
        "comparison": [
            {"metric": name, "variant": variant, **result}
            for name, of_variants in values.items()
            for variant, result in statistics.compare(of_variants, study.reference).items()
        ],
        "designs": [_designs(variant.name, runs) for variant in study.variants],
        "primary": [
            {"variant": one, "other": other, **result} for (one, other), result in tested.items()
        ],
        "blocks": [
            {
                "changes": changes,
                "seeds": seeds,
                "primary": [
                    {"variant": one, "other": other, **statistics.paired(*_of(seeds, *both))}
                    for (one, other), both in pairs.items()
                    if (one, other) in of.primary
                ],
            }
            for changes, seeds in _blocks(study)
        ],
        "equivalent": equivalent,
    }


def _blocks(study: Study) -> list[tuple[dict[str, Any], list[int]]]:
    """The options that differ between seeds, and the seeds that share them; empty if none do."""
    found: list[tuple[dict[str, Any], list[int]]] = []
    for seed in study.seeds if study.blocks else ():
        changes = dict(study.blocks.get(seed, {}))
        seeds = next((seeds for known, seeds in found if known == changes), None)
        if seeds is None:
            found.append((changes, [seed]))
        else:
            seeds.append(seed)
    return found


def _of(seeds: Sequence[int], *values: Mapping[int, float]) -> Iterator[dict[int, float]]:
    """Values by seed, of some seeds alone."""
    for of_seed in values:
        yield {seed: value for seed, value in of_seed.items() if seed in seeds}


def _labels(of: Branches) -> dict[str, str]:
    """The label of every metric."""
    labels = {}
    for horizon in of.horizons:
        after = f"{counted(horizon, 'round')} after a branch"
        labels[f"valid_{horizon}"] = f"valid on the test set, {after}"
        labels[f"valid_worst_{horizon}"] = f"valid in the worst row of the test set, {after}"
        labels[f"valid_fall_{horizon}"] = f"largest fall of a row after it was mastered, {after}"
    for index in of.rounds:
        labels[f"valid_1_after_{index}"] = f"valid on the test set, 1 round after rounds/{index}"
    return labels | {"cpu_seconds": "processor seconds of a branch of 1 round"}


def _scores(of: Branches, run: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a run at the horizons at which all its branches are finished."""
    found: dict[str, float] = {}
    for horizon in of.horizons_of(run["variant"]):
        done = [branch for branch in run["branches"] if branch["horizon"] == horizon]
        if not all(branch["test"] for branch in done):
            continue
        rates = [branch["test"]["valid"] / branch["test"]["answers"] for branch in done]
        rows = np.array([list(branch["test"]["by_row"].values()) for branch in done])
        found[f"valid_{horizon}"] = float(np.mean(rates))
        found[f"valid_worst_{horizon}"] = float(rows.mean(axis=0).min())
        found[f"valid_fall_{horizon}"] = float(np.mean([branch["fall"] for branch in done]))
        if horizon == 1:
            named = zip(of.rounds, rates, strict=True)
            found |= {f"valid_1_after_{index}": rate for index, rate in named}
            found["cpu_seconds"] = float(np.mean([branch["cpu_seconds"] for branch in done]))
    return found


def _designs(variant: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    designs = [
        str(branch["design"])
        for run in runs
        for branch in run["branches"]
        if run["variant"] == variant and branch["horizon"] == 1 and branch["design"]
    ]
    return {"variant": variant, "designs": len(designs), "distinct": len(set(designs))}


def markdown(found: Mapping[str, Any]) -> str:
    """`comparison.md`, from the content of `study.json`."""
    labels = results.labels(found)
    hypotheses = [
        (f"{labels[one['variant']]} minus {labels[one['other']]}", *_tested(one, "p_holm"))
        for one in found["primary"]
    ]
    head = ["difference", "points (95 %)"]
    tables = []
    if hypotheses:
        tables.append(Table("Primary hypotheses", [*head, "p", "p (Holm)"], hypotheses))
    if one := found["equivalent"]:
        title = f"{labels[one['variant']]} minus {labels[one['other']]}"
        within = f"p ({100 * one['bound']:g} points)"
        tables.append(Table("Equivalence", [*head, within], [(title, *_tested(one))]))
    if blocks := found["blocks"]:
        of_block = ["; ".join(f"{k}={v}" for k, v in one["changes"].items()) for one in blocks]
        lines = [
            (name, text, *_tested(one))
            for text, block in zip(of_block, blocks, strict=True)
            for (name, *_), one in zip(hypotheses, block["primary"], strict=True)
        ]
        tables.append(Table("Blocks of seeds", [head[0], "seeds with", head[1], "p"], lines))
    tables += results.compared(found)
    designs = [
        (labels[one["variant"]], one["designs"], one["distinct"]) for one in found["designs"]
    ]
    tables.append(Table("Designs", ("variant", "designs", "distinct"), designs))
    return render(
        "branches.md",
        found=found,
        labels=labels,
        provenance=provenance.sentences(found),
        tables=tables,
    )


def _tested(one: Mapping[str, Any], *further: str) -> tuple[str, ...]:
    return (estimate(one, "+"), *(p_value(one[name]) for name in ("p", *further)))
