"""Statistics of runs over seeds: intervals, paired tests, and Holm's correction.

A study has few seeds, often five. Two variants with the same seeds give one difference per seed,
and Student's interval of their mean is used. For normal differences its coverage is exact at any
number of seeds; with mild skew or heavy tails it stays close. A bootstrap over five seeds does not:
the nominal 95 % percentile interval covers some 83 %, and so does BCa.
`docs/studies/README.md` has the simulation.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy  # Each of its packages is loaded at its first use; `stats` takes long.

LEVEL = 0.95
"""Confidence level of all intervals."""
ROUNDING = 1e-12
"""Values that differ by less are equal."""


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def wilson(successes: float, trials: float) -> Interval:
    """The 95 % score interval of a proportion (Wilson, "Probable inference", 1927).

    Unlike SciPy's, it also takes an effective number of trials, which need not be whole.

    Args:
      successes: from 0 to `trials`.
      trials: at least 0; the interval of 0 trials is [0, 1].

    Returns:
      Both ends in [0, 1].

    Raises:
      ValueError: `successes` is not between 0 and `trials`.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes={successes}: allowed are numbers from 0 to trials={trials}")
    if trials == 0:
        return Interval(0.0, 1.0)
    z = float(scipy.special.ndtri(0.975))
    ratio, shrink = successes / trials, 1 + z * z / trials
    middle = ratio + z * z / (2 * trials)
    reach = z * math.sqrt(ratio * (1 - ratio) / trials + (z / (2 * trials)) ** 2)
    # At the ends the two terms are equal up to rounding.
    low = 0.0 if successes == 0 else (middle - reach) / shrink
    high = 1.0 if successes == trials else (middle + reach) / shrink
    return Interval(low, high)


def effective_trials(outcomes: np.ndarray) -> float:
    """The number of independent trials whose proportion varies as much as that of clusters does.

    Its standard error is that of the clusters' means (Miller, "Adding Error Bars to Evals", arXiv
    2411.00640).

    Args:
      outcomes: bool[N, k], k trials of each of N clusters, such as answers to one problem.

    Returns:
      From N, where all trials of a cluster agree, to N * k.
    """
    clusters, each = outcomes.shape
    ratio = outcomes.mean()
    if each == 1:
        return float(outcomes.size)
    if clusters == 1 or ratio in (0, 1):
        return float(clusters)
    variance = np.var(outcomes.mean(axis=1), ddof=1) / clusters
    effective = ratio * (1 - ratio) / variance if variance else math.inf
    return float(np.clip(effective, clusters, outcomes.size))


def minimum_detectable_difference(half_width: float, seeds: int, comparisons: int) -> float:
    """The smallest mean difference that is significant among m comparisons, by Holm's correction.

    The smallest of m p-values has to be below (1 - LEVEL) / m, so this is the corresponding
    quantile of Student's distribution times the standard error.

    Args:
      half_width: half of Student's interval of the difference.
      seeds: number of differences, at least 2.
      comparisons: m.
    """
    single, corrected = scipy.special.stdtrit(
        seeds - 1, [(1 + LEVEL) / 2, 1 - (1 - LEVEL) / (2 * comparisons)]
    )
    return float(half_width * corrected / single)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for the family-wise error (Holm 1979), in the order given.

    The i-th smallest of m becomes the largest of (m - j + 1) p_j over j <= i, at most 1.
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    factors = np.arange(len(p), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted.tolist()


def student(values: Mapping[Any, float]) -> dict[str, Any]:
    """The mean of one value per seed, with Student's interval.

    Returns:
      values (by seed, as JSON holds them), mean, sd, low and high; None where there are too few.
    """
    array = np.array(list(values.values()))
    result: dict[str, Any] = {
        "values": {str(seed): value for seed, value in values.items()},
        **dict.fromkeys(("mean", "sd", "low", "high")),
    }
    if len(array):
        result["mean"] = float(array.mean())
    if len(array) > 1:
        half = scipy.stats.t.ppf((1 + LEVEL) / 2, len(array) - 1) * scipy.stats.sem(array)
        result["sd"] = float(array.std(ddof=1))
        result["low"], result["high"] = float(array.mean() - half), float(array.mean() + half)
    return result


def paired(one: Mapping[Any, float], other: Mapping[Any, float]) -> dict[str, Any]:
    """Student's interval and test of the mean of `one - other` over their common seeds.

    Equal differences other than 0, which occur with few seeds because fractions are counts, have
    neither an interval nor a p-value: with no spread, any such difference would look certain.

    Returns:
      values, mean, low and high as in `student`, and p of the paired t-test.
    """
    differences = {seed: value - other[seed] for seed, value in one.items() if seed in other}
    result = {**student(differences), "p": None}
    del result["sd"]
    values = np.array(list(differences.values()))
    if len(values) < 2:
        return result
    if not values.any():
        return {**result, "p": 1.0}
    if np.ptp(values) < ROUNDING:
        return {**result, "low": None, "high": None}
    return {**result, "p": float(scipy.stats.ttest_1samp(values, 0).pvalue)}


def equivalent(one: Mapping[Any, float], other: Mapping[Any, float], bound: float) -> float | None:
    """The p-value of two one-sided paired t-tests that the mean of `one - other` is within a bound.

    Schuirmann's procedure (1987): the larger p-value of the tests that the mean is above -`bound`
    and below `bound`.

    Args:
      bound: above 0.

    Returns:
      It; None for fewer than two common seeds or equal differences, which have no spread.
    """
    values = np.array([value - other[seed] for seed, value in one.items() if seed in other])
    if len(values) < 2 or np.ptp(values) < ROUNDING:
        return None
    sides = ((-bound, "greater"), (bound, "less"))
    return max(
        float(scipy.stats.ttest_1samp(values, end, alternative=side).pvalue) for end, side in sides
    )


def compare(values: Mapping[str, Mapping[Any, float]], reference: str) -> dict[str, dict[str, Any]]:
    """Means over seeds of several variants, and their differences from the reference.

    Args:
      values: by name and seed.
      reference: name of the variant that the others are compared with.

    Returns:
      By name the fields of `student`, and `difference`: the fields of `paired` with `p_holm`, after
      Holm's correction over all names; None for the reference.
    """
    against = values.get(reference, {})
    pairs = {name: (own, against) for name, own in values.items() if name != reference}
    differences = paired_together(pairs)
    return {
        name: {**student(own), "difference": differences.get(name)} for name, own in values.items()
    }


def paired_together(
    pairs: Mapping[Any, tuple[Mapping[Any, float], Mapping[Any, float]]],
) -> dict[Any, dict[str, Any]]:
    """`paired` of each pair, with `p_holm` after Holm's correction over all that have a p-value."""
    found = {name: {**paired(*pair), "p_holm": None} for name, pair in pairs.items()}
    tested = [difference for difference in found.values() if difference["p"] is not None]
    adjusted = holm([difference["p"] for difference in tested])
    for difference, p in zip(tested, adjusted, strict=True):
        difference["p_holm"] = p
    return found
