"""Intervals, tests and corrections against published cases, other code, and by simulation."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from experiments import statistics


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0),
    ],
)
def test_wilson_against_published_values(successes, trials, low, high):
    interval = statistics.wilson(successes, trials)
    np.testing.assert_allclose(interval, (low, high), atol=6e-5)
    reference = scipy.stats.binomtest(successes, trials).proportion_ci(method="wilson")
    np.testing.assert_allclose(interval, (reference.low, reference.high), atol=1e-12)


@given(st.integers(1, 3000), st.data())
def test_wilson_holds_the_ratio_and_mirrors(trials, data):
    successes = data.draw(st.integers(0, trials))
    low, high = statistics.wilson(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    mirrored = statistics.wilson(trials - successes, trials)
    np.testing.assert_allclose((1 - high, 1 - low), mirrored, atol=1e-12)
    assert statistics.wilson(0, 0) == (0, 1)


def test_what_is_significant_after_the_correction():
    values = np.random.default_rng(4).normal(size=6)
    low, high = scipy.stats.ttest_1samp(values, 0).confidence_interval()
    least = statistics.minimum_detectable_difference((high - low) / 2, 6, 7)
    for factor, significant in ((1.001, True), (0.999, False)):
        moved = scipy.stats.ttest_1samp(values - values.mean() + factor * least, 0)
        adjusted = statistics.holm([float(moved.pvalue), *[0.9] * 6])
        assert (adjusted[0] < 0.05) == significant


def test_corrections_by_hand():
    # Sorted .005 .01 .03 .04 times 4 3 2 1: .02 .03 .06 .04, and never falling: .02 .03 .06 .06.
    np.testing.assert_allclose(statistics.holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.6, 0.7]) == [1.0, 1.0]
    assert statistics.holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_corrections(p_values):
    holm = np.array(statistics.holm(p_values))
    hochberg = scipy.stats.false_discovery_control(p_values)
    assert ((np.array(p_values) <= hochberg + 1e-15) & (hochberg <= holm + 1e-15)).all()
    assert (holm <= np.minimum(1, np.array(p_values) * len(p_values)) + 1e-15).all()


def test_more_successes_than_trials_are_refused():
    with pytest.raises(ValueError, match="successes=3"):
        statistics.wilson(3, 2)


def test_differences_without_any_spread_are_not_certain():
    same = statistics.paired({0: 0.1 + 0.3, 1: 0.4}, {0: 0.1, 1: 0.1, 2: 0.5})
    assert same["mean"] == pytest.approx(0.3)
    assert (same["low"], same["high"], same["p"]) == (None, None, None)
    nothing = statistics.paired({0: 0.7, 1: 0.2}, {0: 0.7, 1: 0.2})
    assert (nothing["low"], nothing["high"], nothing["p"]) == (0, 0, 1)
    assert statistics.paired({4: 0.1, 5: 0.1}, {4: 0.0})["p"] is None
    apart = statistics.paired({0: 0.5, 1: 0.6, 2: 0.8}, {0: 0.4, 1: 0.4, 2: 0.4})
    expected = scipy.stats.ttest_1samp([0.1, 0.2, 0.4], 0)
    assert apart["p"] == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval()
    assert (apart["low"], apart["high"]) == pytest.approx((low, high))


def test_several_differences_are_corrected_together():
    other = {0: 0.4, 1: 0.4, 2: 0.4}
    pairs = {
        "alike": ({0: 0.5, 1: 0.5}, other),  # It has no p-value.
        "apart": ({0: 0.5, 1: 0.6, 2: 0.8}, other),
        "further": ({0: 0.5, 1: 0.51, 2: 0.52}, other),
    }
    found = statistics.paired_together(pairs)
    assert found["alike"]["p_holm"] is None
    tested = [found[name] for name in ("apart", "further")]
    assert [one["p"] for one in tested] == [
        statistics.paired(*pairs[n])["p"] for n in ("apart", "further")
    ]
    assert [one["p_holm"] for one in tested] == statistics.holm([one["p"] for one in tested])


def test_effective_trials_of_clusters():
    """As many as give the standard error of simulated clusters; between clusters and all trials."""
    rng = np.random.default_rng(0)
    rates = rng.beta(0.5, 1.5, size=(4000, 100))
    outcomes = rng.random((4000, 100, 4)) < rates[..., None]
    expected = 0.25 * 0.75 / outcomes.mean(axis=(1, 2)).var()
    found = np.mean([statistics.effective_trials(x) for x in outcomes])
    assert found == pytest.approx(expected, rel=0.05)
    independent = rng.random((2000, 4)) < 0.3
    assert statistics.effective_trials(independent) == pytest.approx(8000, rel=0.1)
    assert statistics.effective_trials(np.repeat(independent[:, :1], 4, axis=1)) == 2000
    assert statistics.effective_trials(np.zeros((5, 3), bool)) == 5
    assert statistics.effective_trials(np.array([[True], [False]])) == 2
