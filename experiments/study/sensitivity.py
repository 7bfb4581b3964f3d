"""Measures how much the configuration of the training set matters, by fixed configurations.

A comparison of designers only makes sense if configurations matter. Every fixed configuration
trains from the same checkpoint with the same budget and seeds; an analysis of variance with seeds
as blocks then estimates the effect of the configuration, and what a comparison of designers could
detect.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.special
import scipy.stats

from engineer.analysis import expected_signal
from engineer.space import Configuration, ConfigurationSpace
from experiments.families import Family
from experiments.run import store as files
from experiments.statistics import LEVEL, ROUNDING
from experiments.study.results import rate
from experiments.text.errors import UserError
from experiments.text.templates import paragraphs

REFERENCE = "validation"
"""The configuration of the validation set."""
SEEDS = 5
"""Seeds of the comparison of designers whose minimum detectable difference is reported."""
ENOUGH = 3.0
"""A regime is flat if best and worst differ by fewer minimum detectable differences."""
_POWER = 0.8
_MOST_SEEDS = 1000


def configurations(family: Family, random: int) -> dict[str, Configuration]:
    """The fixed configurations, by name.

    That of the validation set; all data in each row; every other parameter at either end of its
    random range, in all rows; and `random` random ones.
    """
    space, reference = family.space, family.validation.cells()
    changes = {
        f"only_{row.lower()}": space.divided([float(row == one) for one in space.rows])
        for row in space.rows
    }
    for name in space.names:
        if name != space.fraction_parameter:
            for end, side in enumerate(("low", "high")):
                bound = {(row, name): space.random_bounds(row, name)[end] for row in space.rows}
                changes[f"{name.lower()}_{side}"] = bound
    changed = {name: Configuration.from_cells(reference | c) for name, c in changes.items()}
    drawn = {f"random_{seed}": space.random(seed) for seed in range(random)}
    return {REFERENCE: family.validation, **changed, **drawn}


def analyse(found: Mapping[str, Any], space: ConfigurationSpace) -> dict[str, Any]:
    """Analyses finished runs of fixed configurations in the metric `valid_final`.

    Only seeds that every configuration has finished count.

    Args:
      found: the content of `study.json`; each variant has one round.
      space: of the configurations.

    Returns:
      A dictionary with these keys.

      * `seeds`: those counted.
      * `configurations`: `{name: {mean, values: {seed: value}, greedy, signal, nondegenerate}}`,
        best first: valid rate after training, its mean over greedy answers, `expected_signal` from
        the rates before it, and the fraction of non-degenerate groups.
      * `start`: valid rate before training.
      * `explained`: fraction of the variance of single runs that the configuration explains, by
        components of variance.
      * `p`: of the F test that all configurations are equal.
      * `best_minus_worst`: `{values: {seed: value}, mean}`; best and worst are chosen on the other
        seeds to avoid selection bias. The values share that choice, so they give no interval.
      * `detectable`: the difference of two designers that `SEEDS` seeds detect with a power of 0.8,
        if their runs vary as these do.
      * `ratio`: `best_minus_worst / detectable`.
      * `seeds_for_best`, `seeds_for_half`: seeds to detect, with a power of 0.8, a designer that
        reaches the best configuration or half its lead over the reference; null above 1,000,
        without a lead and where the reference has failed.
      * `signal_correlation`: Spearman's correlation of `signal` and `mean`; null if one of them is
        constant.

    Raises:
      ValueError: fewer than two seeds, or fewer than two configurations, are finished.
    """
    points = {
        (run["variant"], run["seed"]): run["points"]
        for run in found["runs"]
        if run["status"] == "finished"
    }
    names = [variant["name"] for variant in found["variants"]]
    names = [name for name in names if any(variant == name for variant, _ in points)]
    seeds = [seed for seed in found["seeds"] if all((name, seed) in points for name in names)]
    if len(names) < 2 or len(seeds) < 2:
        raise ValueError(
            f"{len(names)} configurations over {len(seeds)} common seeds are finished; at least "
            "two of each are needed"
        )
    ends = [[points[name, seed][-1] for seed in seeds] for name in names]
    values = np.array([[rate(end, "valid") for end in over_seeds] for over_seeds in ends])
    first = points[names[0], seeds[0]][0]
    rates = {row: at["valid"] / at["answers"] for row, at in first["by_row"].items()}
    signal = [
        expected_signal(rates, Configuration.from_dict(end["config"]), space) for end, *_ in ends
    ]
    means = values.mean(1)
    order = np.argsort(-means, kind="stable")
    residual, explained, p = variance(values)
    detectable = detectable_difference(residual, SEEDS)
    gaps = held_out_gap(values)
    gap = float(np.mean(gaps))
    reference = found["reference"]
    lead = means[order[0]] - means[names.index(reference)] if reference in names else 0.0
    correlation = None
    if np.ptp(signal) and np.ptp(means):
        correlation = float(scipy.stats.spearmanr(signal, means).statistic)
    return {
        "seeds": seeds,
        "configurations": {
            names[i]: {
                "mean": float(means[i]),
                "values": dict(zip(map(str, seeds), values[i].tolist(), strict=True)),
                "greedy": float(np.mean([rate(end, "greedy") for end in ends[i]])),
                "signal": round(signal[i], 4),
                "nondegenerate": float(
                    np.mean([end["training"]["nondegenerate_fraction"] for end in ends[i]])
                ),
            }
            for i in order
        },
        "start": rate(first, "valid"),
        "explained": explained,
        "p": p,
        "best_minus_worst": {"values": dict(zip(map(str, seeds), gaps, strict=True)), "mean": gap},
        "detectable": detectable,
        "ratio": gap / detectable if detectable else None,
        "seeds_for_best": seeds_needed(lead, residual),
        "seeds_for_half": seeds_needed(lead / 2, residual),
        "signal_correlation": correlation,
    }


def variance(values: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Analysis of variance of f64[configurations, seeds] without replicates, seeds as blocks.

    Returns:
      (mean square of the residuals; fraction of the variance of a single run that configurations
      explain, by components of variance; p-value of the F test for configurations).
    """
    k, n = values.shape
    of_configuration, of_seed = values.mean(1, keepdims=True), values.mean(0, keepdims=True)
    rest = values - of_configuration - of_seed + values.mean()
    rest[np.abs(rest) < ROUNDING] = 0  # Else equal values would leave a residual.
    residual = float((rest**2).sum() / ((k - 1) * (n - 1)))
    between, blocks = n * of_configuration.var(ddof=1), k * of_seed.var(ddof=1)
    configuration = max(0.0, (between - residual) / n)
    total = configuration + max(0.0, (blocks - residual) / k) + residual
    if residual:
        p = scipy.stats.f.sf(between / residual, k - 1, (k - 1) * (n - 1))
    else:
        p = between < ROUNDING**2
    return residual, configuration / total if total else 0.0, float(p)


def held_out_gap(values: npt.NDArray[np.float64]) -> list[float]:
    """Best minus worst of f64[configurations, seeds] for each seed, chosen on the others."""
    gaps = []
    for seed in range(values.shape[1]):
        others = np.delete(values, seed, axis=1).mean(1)
        gaps.append(float(values[others.argmax(), seed] - values[others.argmin(), seed]))
    return gaps


def seeds_needed(difference: float, residual: float) -> int | None:
    """Seeds for a paired t-test to detect a difference with a power of 0.8; None above 1,000.

    Args:
      difference: of two means.
      residual: variance of a run that configuration and seed do not explain.
    """
    if difference <= 0:
        return None
    enough = (
        n for n in range(2, _MOST_SEEDS + 1) if difference >= detectable_difference(residual, n)
    )
    return next(enough, None)


def detectable_difference(residual: float, seeds: int) -> float:
    """The difference of two means that a paired t-test detects with a power of 0.8.

    Args:
      residual: variance of a run that configuration and seed do not explain.
      seeds: of the comparison, at least 2.
    """
    critical = scipy.special.stdtrit(seeds - 1, (1 + LEVEL) / 2)
    effect = scipy.special.nctdtrinc(seeds - 1, 1 - _POWER, critical)
    return float(effect * np.sqrt(2 * residual / seeds))


def verdict(result: Mapping[str, Any]) -> str:
    """The result in one sentence."""
    return paragraphs(
        "verdict.md", result=result, flat=is_flat(result), seeds=SEEDS, enough=ENOUGH
    )[0]


def is_flat(result: Mapping[str, Any]) -> bool:
    """Whether best and worst differ by too little for a comparison of designers."""
    gap = result["best_minus_worst"]["mean"]
    return gap <= 0 or gap < ENOUGH * result["detectable"]


def refuse_flat(folder: Path) -> None:
    """Raises a UserError unless a measured sensitivity says that designers can differ."""
    path = folder / "sensitivity.json"
    if not path.is_file():
        raise UserError(f"sensitivity={folder}: there is no {path.name}")
    result = files.read_file(path)
    if is_flat(result):
        raise UserError(f"sensitivity={folder}: {verdict(result)}")
