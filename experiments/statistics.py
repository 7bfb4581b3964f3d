"""Intervals for what a few runs or a few thousand answers show."""

import math
from statistics import NormalDist


def wilson(successes: float, trials: float, level: float = 0.95) -> tuple[float, float]:
    """The score interval of a share (Wilson, "Probable inference", 1927).

    Args:
      successes: of the trials, from 0 to `trials`; not necessarily whole, so that an effective
        number of trials may be given.
      trials: at least 0; with none the interval is all of [0, 1].
      level: of confidence, in (0, 1).

    Returns:
      (low, high), both in [0, 1].

    Raises:
      ValueError: an argument is out of its range.
    """
    if not 0 <= successes <= trials or not math.isfinite(trials):
        raise ValueError(
            f"successes={successes}, trials={trials}: allowed are 0 <= successes <= trials"
        )
    if not 0 < level < 1:
        raise ValueError(f"level={level}: allowed are numbers in (0, 1)")
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    share, shrink = successes / trials, 1 + z * z / trials
    middle = share + z * z / (2 * trials)
    reach = z * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    # At the ends the two terms are equal up to rounding.
    low = 0.0 if successes == 0 else (middle - reach) / shrink
    high = 1.0 if successes == trials else (middle + reach) / shrink
    return low, high
