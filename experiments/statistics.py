"""Statistics of runs: intervals, tests between paired arms, corrections for many comparisons.

A study has few seeds, often five. That decides what is used as the main interval:

* Two arms that ran with the same seeds give one difference a seed. `mean_interval` is Student's
  interval of their mean. It assumes about normal differences, and then it covers what it says at
  any number of seeds; with mild skew or heavy tails it stays close.
* `bootstrap` resamples the seeds. With five of them the percentile interval covers some 83 % where
  95 % are asked for, and so does BCa: both are here for studies of many seeds and for comparison.
  The tests hold these figures.
* `crossed_bootstrap` resamples seeds and validation instances at once. It knows of the instances,
  which Student's interval takes as fixed, and has the bootstrap's fault at few seeds; it is
  reported beside the main interval.
* `sign_flip` assumes only that the differences are symmetric if the arms are alike. With n seeds
  its p-value cannot be below 2 / 2**n: 0.0625 at five, which is never significant at 0.05.

Nothing here but NumPy; sources of the formulas stand with the functions.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MOST_FLIPPED = 20
"""Largest number of differences of which `sign_flip` tries all patterns of signs."""

_NORMAL = NormalDist()


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


class MeanInterval(NamedTuple):
    """Student's inference about a mean; arrays of the shape that precedes the values' last axis.

    Attributes:
      mean: f64[...].
      low: f64[...], end of the interval.
      high: f64[...], the other end.
      p: f64[...], two-sided p-value of the hypothesis that the mean is 0.
    """

    mean: Floats
    low: Floats
    high: Floats
    p: Floats


def wilson(successes: float, trials: float, level: float = 0.95) -> Interval:
    """The score interval of a share (Wilson, "Probable inference", 1927).

    Args:
      successes: of the trials, from 0 to `trials`; not necessarily whole, so that an effective
        number of trials may be given.
      trials: at least 0; with none the interval is all of [0, 1].
      level: of confidence, in (0, 1).

    Returns:
      Both ends in [0, 1].

    Raises:
      ValueError: an argument is out of its range.
    """
    if not 0 <= successes <= trials or not math.isfinite(trials):
        raise ValueError(
            f"successes={successes}, trials={trials}: allowed are 0 <= successes <= trials"
        )
    _check_level(level)
    if trials == 0:
        return Interval(0.0, 1.0)
    z = _NORMAL.inv_cdf((1 + level) / 2)
    share, shrink = successes / trials, 1 + z * z / trials
    middle = share + z * z / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    # At the ends the two terms are equal up to rounding.
    low = 0.0 if successes == 0 else (middle - reach) / shrink
    high = 1.0 if successes == trials else (middle + reach) / shrink
    return Interval(low, high)


def student_cdf(t: npt.ArrayLike, degrees: int) -> Floats:
    """Student's distribution with a whole number of degrees of freedom.

    A finite sum for each (Abramowitz and Stegun, 26.7.3 and 26.7.4): with theta =
    atan(t / sqrt(degrees)), the probability of lying between -t and t is for even degrees
    sin(theta) (1 + 1/2 cos^2 + 1*3 / (2*4) cos^4 + ...), and for odd ones
    2 / pi (theta + sin(theta) (cos + 2/3 cos^3 + 2*4 / (3*5) cos^5 + ...)), up to the power
    degrees - 2.

    Args:
      t: [...].
      degrees: at least 1.

    Returns:
      f64[...], the probability of at most t.
    """
    if degrees < 1:
        raise ValueError(f"degrees={degrees}: allowed are integers from 1 up")
    theta = np.arctan(np.asarray(t, np.float64) / math.sqrt(degrees))
    cosine, sine = np.cos(theta), np.sin(theta)
    odd = degrees % 2
    term = cosine if odd else np.ones_like(theta)
    total = np.zeros_like(theta)
    for power in range(odd, degrees - 1, 2):
        total = total + term
        term = term * cosine**2 * (power + 1) / (power + 2)
    within = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return (1 + within) / 2


def student_quantile(p: float, degrees: int) -> float:
    """The inverse of `student_cdf`, by bisection, for p in (0, 1)."""
    if not 0 < p < 1:
        raise ValueError(f"p={p}: allowed are numbers between 0 and 1")
    if p < 0.5:
        return -student_quantile(1 - p, degrees)
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < p:
        high *= 2
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if student_cdf(middle, degrees) < p:
            low = middle
        else:
            high = middle


def mean_interval(values: npt.ArrayLike, level: float = 0.95) -> MeanInterval:
    """Student's interval and test of a mean; of paired differences the paired t-test.

    Args:
      values: [..., n], independent along the last axis; n at least 2.
      level: of the interval.

    Returns:
      All of shape [...]. Where all values are equal the interval is a point, and p is 1 if they are
      0 and 0 otherwise.

    Raises:
      ValueError: there are fewer than two values.
    """
    _check_level(level)
    array = _values(values)
    n = array.shape[-1]
    mean = array.mean(-1)
    error = array.std(-1, ddof=1) / math.sqrt(n)
    half = student_quantile((1 + level) / 2, n - 1) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(mean == 0, 0.0, np.abs(mean) / error)
    return MeanInterval(mean, mean - half, mean + half, 2 * student_cdf(-t, n - 1))


def bootstrap(
    values: npt.ArrayLike,
    rng: np.random.Generator,
    *,
    method: str = "percentile",
    level: float = 0.95,
    resamples: int = 10_000,
) -> tuple[Floats, Floats]:
    """Bootstrap interval of a mean.

    "percentile" takes the quantiles of the resampled means. "bca" (Efron 1987) moves them for bias
    and skew: with z0 the normal quantile of the share of resampled means below the mean, and a the
    acceleration, sum(d^3) / (6 sum(d^2)^1.5) with d the distances from the mean, the quantile
    asked for at z is the one at z0 + (z0 + z) / (1 - a (z0 + z)).

    Args:
      values: [..., n], independent along the last axis; n at least 2.
      rng: of the resampling; all of [...] are resampled alike.
      method: "percentile" or "bca".
      level: of the interval.
      resamples: how many.

    Returns:
      The two ends, f64[...] each.

    Raises:
      ValueError: the method is unknown, or there are fewer than two values.
    """
    _check_level(level)
    if method not in ("percentile", "bca"):
        raise ValueError(f"method={method!r}: allowed are 'percentile' and 'bca'")
    array = _values(values)
    n = array.shape[-1]
    weights = rng.multinomial(n, np.full(n, 1 / n), size=resamples) / n
    means = np.sort(array @ weights.T, axis=-1)
    z = _NORMAL.inv_cdf((1 + level) / 2)
    if method == "percentile":
        low, high = np.quantile(means, [_NORMAL.cdf(-z), _NORMAL.cdf(z)], axis=-1)
        return low, high
    distance = array - array.mean(-1, keepdims=True)
    spread = (distance**2).sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        acceleration = np.where(spread > 0, (distance**3).sum(-1) / (6 * spread**1.5), 0.0)
    centre = array.mean(-1, keepdims=True)
    tiny = 1e-12 * np.abs(array).max(-1, keepdims=True)  # Equal up to rounding counts by half.
    below = (means < centre - tiny).mean(-1)
    equal = (np.abs(means - centre) <= tiny).mean(-1)
    bias = _normal_quantile(np.clip(below + equal / 2, 0.5 / resamples, 1 - 0.5 / resamples))
    ends = []
    for sign in (-1, 1):
        moved = bias + (bias + sign * z) / (1 - acceleration * (bias + sign * z))
        index = np.rint(_normal_cdf(moved) * (resamples - 1)).astype(int)
        ends.append(np.take_along_axis(means, index[..., None], -1)[..., 0])
    return ends[0], ends[1]


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
      values: [seeds, instances].
      rng: of the resampling.
      level: of the interval.
      resamples: how many.

    Raises:
      ValueError: the values are not a table of at least two rows and two columns.
    """
    _check_level(level)
    table = np.asarray(values, np.float64)
    if table.ndim != 2 or min(table.shape) < 2:
        raise ValueError(
            f"values of shape {table.shape}: a table of at least 2 seeds x 2 instances is needed"
        )
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


def sign_flip(differences: npt.ArrayLike) -> Floats:
    """Exact p-value of the paired permutation test, two-sided.

    If both arms are alike, every difference is as likely as its negative. The p-value is the share
    of all 2**n patterns of signs whose mean is at least as far from 0 as the observed one; the
    smallest there is, is 2 / 2**n (1 for differences that are all 0).

    Args:
      differences: [..., n], with n from 1 to `MOST_FLIPPED`.

    Returns:
      f64[...].

    Raises:
      ValueError: there are too few or too many differences.
    """
    array = np.asarray(differences, np.float64)
    n = array.shape[-1] if array.ndim else 0
    if not 1 <= n <= MOST_FLIPPED:
        raise ValueError(f"{n} differences: allowed are 1 to {MOST_FLIPPED}")
    observed = np.abs(array.sum(-1))
    # What differs by rounding alone is equal.
    least = observed - 1e-12 * np.abs(array).sum(-1)
    reached = np.zeros(array.shape[:-1], np.int64)
    # The negative of a pattern is as far from 0: half of them, with one sign held, are enough.
    half = 1 << (n - 1)
    for begin in range(0, half, 1 << 12):
        patterns = np.arange(begin, min(begin + (1 << 12), half))
        signs = 1.0 - 2.0 * (patterns[:, None] >> np.arange(n) & 1)
        reached += (np.abs(array @ signs.T) >= least[..., None]).sum(-1)
    return reached / half


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for the family-wise error (Holm 1979), in the order given.

    The i-th smallest of m becomes the largest of (m - j + 1) p_j over j <= i, at most 1.
    """
    p, order = _sorted(p_values)
    factors = np.arange(len(p), 0, -1)
    return _unsorted(np.minimum(np.maximum.accumulate(p * factors), 1.0), order)


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for the false discovery rate (Benjamini and Hochberg 1995).

    The i-th smallest of m becomes the smallest of m p_j / j over j >= i.
    """
    p, order = _sorted(p_values)
    scaled = p * len(p) / np.arange(1, len(p) + 1)
    return _unsorted(np.minimum.accumulate(scaled[::-1])[::-1], order)


def _sorted(p_values: Sequence[float]) -> tuple[Floats, npt.NDArray[np.int64]]:
    p = np.asarray(p_values, np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p_values={p_values}: allowed are lists of numbers in [0, 1]")
    order = np.argsort(p, kind="stable")
    return p[order], order


def _unsorted(adjusted: Floats, order: npt.NDArray[np.int64]) -> list[float]:
    result = np.empty_like(adjusted)
    result[order] = adjusted
    return result.tolist()


def _values(values: npt.ArrayLike) -> Floats:
    array = np.asarray(values, np.float64)
    if array.ndim < 1 or array.shape[-1] < 2:
        raise ValueError(f"values of shape {array.shape}: at least two are needed")
    return array


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level}: allowed are numbers in (0, 1)")


def _normal_cdf(z: Floats) -> Floats:
    return np.vectorize(_NORMAL.cdf, otypes=[np.float64])(z)


def _normal_quantile(p: Floats) -> Floats:
    return np.vectorize(_NORMAL.inv_cdf, otypes=[np.float64])(p)
