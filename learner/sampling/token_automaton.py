"""A finite automaton over token ids: which tokens a completion may have next, on the device.

The tables are arrays, so a decoding loop masks logits and changes state without the host. The
log-probabilities of masked completions are those of the masked distribution.
"""

import dataclasses
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

    A free state allows every token, any other its listed tokens alone; one whose listed tokens are
    all stop tokens thereby ends the completion. Every state that is not free lists a token, and
    none lists one twice.

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
    def create(cls, tokens: Any, targets: Any) -> Self:
        """An automaton without free states from tables, which stay on the host until they are used.

        Args:
            tokens: see the class.
            targets: see the class; those of padding are ignored.

        Raises:
            AssertionError: a table has the wrong shape or dtype.
        """
        tokens, targets = np.asarray(tokens), np.asarray(targets)
        chex.assert_rank(tokens, 2)
        chex.assert_type([tokens, targets], int)
        chex.assert_equal_shape([tokens, targets])
        targets = np.where(tokens != -1, targets, 0).astype(np.int32)
        nowhere = np.zeros(len(tokens), np.int32)
        return cls(tokens.astype(np.int32), targets, nowhere.astype(bool), nowhere)

    @classmethod
    def thinking(cls, budget: ThinkingBudget, then: Self | None = None) -> Self:
        """Free thought within the budget; then a completion in `then`, or anything.

        A state counts the tokens of thought, and how many tokens of the trigger they end with (as
        in Knuth-Morris-Pratt matching). After these states come the forced closing tokens, less the
        part of the trigger that is there already. `then` begins after the trigger.
        """
        if then is None:
            then = dataclasses.replace(cls.create([[-1]], [[0]]), free=np.ones(1, bool))
        length, closing, trigger = budget.trigger_length, budget.closing_ids, budget.trigger
        listed = tuple(dict.fromkeys(trigger))

        def matched(before: int, token: int) -> int:
            seen = (*trigger[:before], token)
            return max(k for k in range(len(seen) + 1) if seen[len(seen) - k :] == trigger[:k])

        ends = np.array([[matched(before, token) for token in listed] for before in range(length)])
        times = np.arange(1, budget.max_tokens + 1)[:, None, None]
        skipped = (len(closing) - length) * ((times == budget.max_tokens) & (ends > 0))
        forced = budget.max_tokens * length
        begin = forced + len(closing)
        after = np.where(ends == length, begin, times * length + ends + skipped)

        tokens = np.full((begin, max(len(listed), then.tokens.shape[1])), -1, np.int32)
        targets = np.zeros_like(tokens)
        tokens[:forced, : len(listed)] = listed
        targets[:forced, : len(listed)] = after.reshape(forced, len(listed))
        tokens[forced:, 0], targets[forced:, 0] = closing, np.arange(forced + 1, begin + 1)
        wider = ((0, 0), (0, tokens.shape[1] - then.tokens.shape[1]))
        otherwise = np.repeat(times.ravel() * length, length).astype(np.int32)
        return cls(
            tokens=np.concatenate([tokens, np.pad(then.tokens, wider, constant_values=-1)]),
            targets=np.concatenate([targets, np.pad(then.targets + begin, wider)]),
            free=np.concatenate([np.arange(begin) < forced, then.free]),
            otherwise=np.concatenate(
                [otherwise, np.zeros(len(closing), np.int32), then.otherwise + begin]
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
