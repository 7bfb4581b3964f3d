"""The reward against the formulas, number by number."""

import types

import numpy as np
import pytest

from mapf_jax.answer_reward import RewardConfig, accuracy_reward, length_reward, reward_weights


def test_accuracy():
    # (valid, gap, optimum) -> 1 - 0.7 c / (2 optimum), 0.3 beyond c = 2 optimum, 0 if not valid.
    cases = [
        ((True, 0, 6), 1.0),
        ((True, 3, 6), 1 - 0.7 * 3 / 12),
        ((True, 12, 6), 0.3),
        ((True, 13, 6), 0.3),
        ((True, 400, 6), 0.3),
        ((False, 0, 6), 0.0),
        ((False, 1 << 20, 6), 0.0),
    ]
    valid, gap, optimum = (np.array(column) for column in zip(*(c for c, _ in cases), strict=True))
    verdict = types.SimpleNamespace(valid=valid, gap=gap)
    expected = [reward for _, reward in cases]
    np.testing.assert_allclose(accuracy_reward(verdict, optimum), expected, rtol=1e-6)


def test_length():
    config = RewardConfig(short_length=1500, long_length=4096)
    tokens = np.array([1, 1500, 1501, 2798, 4096, 9000])
    expected = [0, 0, -1 / 2596, -0.5, -1, -1]
    np.testing.assert_allclose(length_reward(tokens, config), expected, atol=1e-6)


def test_weights():
    for short, accuracy in ((0.0, 0.5), (0.49, 0.5), (0.5, 0.5), (0.7, 0.65), (0.9, 0.8), (1, 0.8)):
        assert reward_weights(short) == pytest.approx((accuracy, 1 - accuracy))


def test_bad_values_are_named():
    with pytest.raises(ValueError, match="long_length=10: allowed are integers above"):
        RewardConfig(short_length=10, long_length=10)
    with pytest.raises(ValueError, match="average_decay=1"):
        RewardConfig(average_decay=1.0)
