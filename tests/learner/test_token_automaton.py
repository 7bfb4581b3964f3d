"""Automata against a walk through their tables in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from learner.sampling.token_automaton import TokenAutomaton
from learner.tokens import ThinkingBudget

V = 12


def allowed(automaton, state):
    """The tokens that state allows, and where each leads."""
    listed = {
        int(token): int(target)
        for token, target in zip(automaton.tokens[state], automaton.targets[state], strict=True)
        if token >= 0
    }
    if automaton.free[state]:
        return dict.fromkeys(range(V), int(automaton.otherwise[state])) | listed
    return listed


def walk(automaton, tokens):
    """States before each token; fails where one is not allowed."""
    states = [0]
    for token in tokens:
        states.append(allowed(automaton, states[-1])[token])
    return states


def test_masks_and_moves_equal_the_tables():
    rng = np.random.default_rng(0)
    Q, K = 9, 4
    tokens = np.stack([rng.permutation(V)[:K] for _ in range(Q)])
    tokens[rng.random((Q, K)) < 0.3] = -1
    free = rng.random(Q) < 0.4
    tokens[~free & (tokens < 0).all(axis=1), 0] = 5
    automaton = TokenAutomaton(tokens, rng.integers(0, Q, (Q, K)), free, rng.integers(0, Q, Q))
    states = jnp.arange(Q).reshape(3, 3)
    logits = jnp.asarray(rng.normal(size=(3, 3, V)), jnp.float32)
    masked = np.asarray(jax.jit(automaton.mask)(states, logits)).reshape(Q, V)
    for state in range(Q):
        table = allowed(automaton, state)
        np.testing.assert_array_equal(np.flatnonzero(np.isfinite(masked[state])), sorted(table))
        for token, target in table.items():
            assert int(automaton.advance(jnp.array([state]), jnp.array([token]))[0]) == target
    kept = np.isfinite(masked)
    np.testing.assert_array_equal(masked[kept], np.asarray(logits).reshape(Q, V)[kept])


def test_thinking_ends_by_itself_or_is_ended():
    budget = ThinkingBudget(max_tokens=3, closing_ids=(4, 5, 10))
    then = TokenAutomaton.create([[1, 2], [11, -1]], [[1, 0], [1, 0]])
    both = TokenAutomaton.thinking(budget, then)
    # Ended by the model: no closing tokens, and `then` begins at once.
    states = walk(both, [0, 10])
    assert sorted(allowed(both, states[-1])) == [1, 2]
    # Ended by the budget: exactly the closing tokens, then `then`.
    states = walk(both, [0, 1, 7, 4, 5, 10, 2, 2, 1, 11])
    assert [sorted(allowed(both, s)) for s in states[3:7]] == [[4], [5], [10], [1, 2]]
    assert sorted(allowed(both, states[-1])) == [11]
    # Without `then`, the completion is free.
    alone = TokenAutomaton.thinking(budget)
    assert sorted(allowed(alone, walk(alone, [10])[-1])) == list(range(V))
    assert sorted(allowed(alone, walk(alone, [0, 1, 7, 4, 5, 10, 6, 6])[-1])) == list(range(V))
    none = TokenAutomaton.thinking(ThinkingBudget(max_tokens=0, closing_ids=(10,)))
    assert sorted(allowed(none, 0)) == [10]


@pytest.mark.parametrize(
    "changes",
    [
        {"targets": [[1], [0]]},
        {"tokens": [1, 2]},
        {"tokens": [[1.5, 2], [0, -1]]},
        {"targets": [[1, 1], [0, 9.5]]},
    ],
)
def test_shapes_and_dtypes_of_tables_are_checked(changes):
    fields = {"tokens": [[1, 2], [0, -1]], "targets": [[1, 1], [0, 9]]} | changes
    with pytest.raises(AssertionError, match="Chex"):
        TokenAutomaton.create(**fields)


def test_thinking_budget_is_checked():
    with pytest.raises(ValueError, match="max_tokens of thinking is -1"):
        ThinkingBudget(max_tokens=-1, closing_ids=(1,))
