"""Statistics of runs that SciPy has not: intervals, an exact paired test, Holm's correction.

A study has few seeds, often five. That decides what is used as the main interval:

* Two variants that ran with the same seeds give one difference a seed, and Student's interval of
  their mean is the main one. It assumes about normal differences, and then it covers what it says
  at any number of seeds; with mild skew or heavy tails it stays close.
* A bootstrap over the seeds is not used: with five of them its percentile interval covers some 83 %
  where 95 % are asked for, and so does BCa. The tests hold these numbers.
* `crossed_bootstrap` resamples seeds and validation instances at once. It knows of the instances,
  which Student's interval takes as fixed, and has the bootstrap's fault at few seeds; it is
  reported beside the main interval.
* `sign_flip` assumes only that the differences are symmetric if the variants are alike. With n
  seeds its p-value cannot be below 2 / 2**n: 0.0625 at five, which is never significant at 0.05.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.special
import scipy.stats

MOST_FLIPPED = 20
"""Largest number of differences of which `sign_flip` tries all patterns of signs."""


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def wilson(successes: float, trials: float, level: float = 0.95) -> Interval:
    """The score interval of a proportion (Wilson, "Probable inference", 1927).

    SciPy's takes whole numbers only; this one also an effective number of trials.

    Args:
      successes: of the trials, from 0 to `trials`.
      trials: at least 0; with none the interval is all of [0, 1].
      level: of confidence, in (0, 1).

    Returns:
      Both ends in [0, 1].

    Raises:
      ValueError: there are more successes than trials, or fewer than none.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"successes={successes}: allowed are numbers from 0 to trials={trials}")
    if trials == 0:
        return Interval(0.0, 1.0)
    z = float(scipy.special.ndtri((1 + level) / 2))
    ratio, shrink = successes / trials, 1 + z * z / trials
    middle = ratio + z * z / (2 * trials)
    reach = z * math.sqrt(ratio * (1 - ratio) / trials + (z / (2 * trials)) ** 2)
    # At the ends the two terms are equal up to rounding.
    low = 0.0 if successes == 0 else (middle - reach) / shrink
    high = 1.0 if successes == trials else (middle + reach) / shrink
    return Interval(low, high)


def minimum_detectable_difference(
    half_width: float, seeds: int, comparisons: int, level: float = 0.95
) -> float:
    """The smallest mean difference that is significant among m comparisons, by Holm's correction.

    The smallest of m p-values has to be below (1 - level) / m: the difference is the quantile of
    Student's distribution for that, times the standard error.

    Args:
      half_width: half of Student's interval of the difference.
      seeds: values that it was computed from, at least 2.
      comparisons: m.
      level: of the interval; 1 - level is the error allowed to all comparisons together.
    """
    single, corrected = scipy.special.stdtrit(
        seeds - 1, [(1 + level) / 2, 1 - (1 - level) / (2 * comparisons)]
    )
    return float(half_width * corrected / single)


def crossed_bootstrap(
    values: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Percentile interval of a mean over two crossed factors, both resampled independently.

    Every seed answers the same validation instances, so instances are not nested in seeds: what is
    hard for one seed tends to be hard for all. The pigeonhole bootstrap (Owen 2007, arXiv
    0712.1111) resamples rows and columns; as an estimate of the variance it is mildly
    conservative.

    Args:
      values: [seeds, instances], at least 2 of each.
    """
    table = np.asarray(values, np.float64)
    means = np.empty(resamples)
    rows, columns = table.shape
    part = max(1, (1 << 22) // columns)
    for begin in range(0, resamples, part):
        count = min(part, resamples - begin)
        of_rows = rng.multinomial(rows, np.full(rows, 1 / rows), size=count)
        of_columns = rng.multinomial(columns, np.full(columns, 1 / columns), size=count)
        means[begin : begin + count] = ((of_rows @ table) * of_columns).sum(1) / table.size
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def sign_flip(differences: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Exact p-value of the paired permutation test, two-sided.

    If both variants are alike, every difference is as likely as its negative. The p-value is the
    fraction of all 2**n patterns of signs whose mean is at least as far from 0 as the observed one;
    the smallest there is, is 2 / 2**n (1 for differences that are all 0).

    Args:
      differences: [..., n], with n from 1 to `MOST_FLIPPED`.

    Returns:
      f64[...].
    """
    array = np.asarray(differences, np.float64)
    scale = np.abs(array).max(-1, keepdims=True)
    test = scipy.stats.permutation_test(
        (array / np.where(scale > 0, scale, 1.0),),
        # What differs by rounding alone is equal.
        lambda x, axis: np.abs(x.mean(axis)).round(12),
        permutation_type="samples",  # Of a single sample: of its signs.
        alternative="greater",
        n_resamples=1 << MOST_FLIPPED,  # No fewer than there are: then it takes them all.
        batch=1 << 12,
        axis=-1,
    )
    return np.asarray(test.pvalue)


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
