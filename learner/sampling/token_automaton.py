"""A finite automaton over token ids: which tokens a completion may have next, on the device.

The tables are arrays, so a decoding loop masks logits and changes state without the host. The
log-probabilities of masked completions are those of the masked distribution.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from learner.tokens import ThinkingBudget

Table = Array | np.ndarray


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenAutomaton:
    """Q states with up to K listed tokens each; a completion begins in state 0.

    A state is either free or not. One that is not allows its listed tokens alone; one whose
    listed tokens are all stop tokens thereby ends the completion. A free one allows every token.
    Make one with `create`, which checks the tables.

    Attributes:
        tokens: i32[Q, K], listed token ids of each state, padded with -1.
        targets: i32[Q, K], the state that each leads to.
        free: bool[Q].
        otherwise: i32[Q], the state that tokens not listed lead to from a free state.
    """

    tokens: Table
    targets: Table
    free: Table
    otherwise: Table

    @classmethod
    def create(
        cls,
        tokens: Any,
        targets: Any,
        free: Any = None,
        otherwise: Any = None,
        vocab_size: int | None = None,
    ) -> Self:
        """An automaton from checked tables, which stay on the host until they are used.

        Args:
            tokens, targets, free, otherwise: see the class. Targets of padding are ignored. No
                `free` means that no state is free, and `otherwise` is then not needed.
            vocab_size: token ids must be below it, if given.

        Raises:
            ValueError: a token or target is out of range, a state lists a token twice, or a state
                is neither free nor lists a token.
            AssertionError: shapes or dtypes are others.
        """
        tokens, targets = np.asarray(tokens), np.asarray(targets)
        chex.assert_rank(tokens, 2)
        Q = len(tokens)
        free = np.zeros(Q, bool) if free is None else np.asarray(free)
        otherwise = np.zeros(Q, np.int32) if otherwise is None else np.asarray(otherwise)
        chex.assert_type([tokens, targets, otherwise, free], [int, int, int, bool])
        chex.assert_shape([targets, free, otherwise], [tokens.shape, (Q,), (Q,)])
        listed = tokens != -1
        _in_range("tokens", tokens, listed, vocab_size)
        _in_range("targets", targets, listed, Q)
        _in_range("otherwise", otherwise, free, Q)
        if dead := np.flatnonzero(~free & ~listed.any(axis=1)).tolist():
            raise ValueError(
                f"states {dead[:8]} are dead ({len(dead)} in all); "
                "a state must be free or list a token"
            )
        ordered = np.sort(tokens, axis=1)
        twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != -1)
        if twice.any():
            state, column = np.argwhere(twice)[0]
            raise ValueError(f"state {state} lists token {ordered[state, column]} twice")
        targets = np.where(listed, targets, 0).astype(np.int32)
        otherwise = np.where(free, otherwise, 0).astype(np.int32)
        return cls(tokens.astype(np.int32), targets, free, otherwise)

    @classmethod
    def forcing(cls, ids: Sequence[int]) -> Self:
        """Exactly these tokens; then anything.

        Raises:
            ValueError: there is no token, or one is negative.
        """
        if not len(ids):
            raise ValueError("ids is empty; at least one token is needed")
        return cls.create(
            tokens=[[token] for token in ids] + [[-1]],
            targets=[[state + 1] for state in range(len(ids))] + [[0]],
            free=np.arange(len(ids) + 1) == len(ids),
            otherwise=np.full(len(ids) + 1, len(ids)),
        )

    @classmethod
    def thinking(cls, budget: ThinkingBudget, then: Self | None = None) -> Self:
        """Free thought within the budget; then a completion in `then`, or anything.

        State i counts i tokens of thought. `then` begins after `</think>`.
        """
        N = budget.max_tokens
        rest = cls.forcing(budget.closing_ids)  # its last state is free for ever
        completion = N + len(budget.closing_ids)
        if then is not None:
            rest = rest._before(then)
        K = rest.tokens.shape[1]
        tokens = np.full((N, K), -1, np.int32)
        tokens[:, 0] = budget.end_id
        return cls.create(
            tokens=np.concatenate([tokens, rest.tokens]),
            targets=np.concatenate([np.full((N, K), completion), np.asarray(rest.targets) + N]),
            free=np.concatenate([np.ones(N, bool), rest.free]),
            otherwise=np.concatenate([np.arange(1, N + 1), np.asarray(rest.otherwise) + N]),
        )

    def _before(self, then: Self) -> Self:
        """This automaton with `then` in place of its last state."""
        last = len(self.tokens) - 1
        K = max(self.tokens.shape[1], then.tokens.shape[1])

        def wide(table: Table, fill: int) -> np.ndarray:
            table = np.asarray(table)
            return np.pad(table, ((0, 0), (0, K - table.shape[1])), constant_values=fill)

        return type(self)(
            tokens=np.concatenate([wide(self.tokens, -1)[:last], wide(then.tokens, -1)]),
            targets=np.concatenate([wide(self.targets, 0)[:last], wide(then.targets, 0) + last]),
            free=np.concatenate([np.asarray(self.free)[:last], then.free]),
            otherwise=np.concatenate(
                [np.asarray(self.otherwise)[:last], np.asarray(then.otherwise) + last]
            ),
        )

    def mask(self, states: Array, logits: Array) -> Array:
        """Logits f32[..., V] in states i32[...], -inf for tokens that are not allowed."""
        V = logits.shape[-1]
        listed = jnp.asarray(self.tokens)[states].reshape(states.size, -1)
        rows = jnp.arange(states.size)[:, None]
        columns = jnp.where(listed < 0, V, listed)  # padding falls outside and is dropped
        allowed = jnp.zeros((states.size, V), bool).at[rows, columns].set(True, mode="drop")
        free = jnp.asarray(self.free)[states][..., None]
        return jnp.where(free | allowed.reshape(*states.shape, V), logits, -jnp.inf)

    def advance(self, states: Array, token: Array) -> Array:
        """The states i32[...] after one allowed token i32[...] each."""
        hit = jnp.asarray(self.tokens)[states] == token[..., None]
        target = jnp.max(jnp.where(hit, jnp.asarray(self.targets)[states], 0), axis=-1)
        return jnp.where(jnp.any(hit, axis=-1), target, jnp.asarray(self.otherwise)[states])

    def final(self, stop_token_ids: Sequence[int]) -> Array:
        """bool[Q]: the states that allow nothing but to stop."""
        tokens = jnp.asarray(self.tokens)
        stops = jnp.isin(tokens, jnp.array(stop_token_ids, jnp.int32)) | (tokens < 0)
        return jnp.all(stops, axis=-1) & ~jnp.asarray(self.free)


def _in_range(name: str, array: np.ndarray, used: np.ndarray, bound: int | None) -> None:
    wrong = used & ((array < 0) | (array >= (2**31 - 1 if bound is None else bound)))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        allowed = "from 0 up" if bound is None else f"0..{bound - 1}"
        raise ValueError(f"{name}{list(at)} is {array[at]}; allowed are {allowed}")
