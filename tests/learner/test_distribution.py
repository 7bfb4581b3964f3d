"""The filters against their definitions in float64, and draws against the filtered distribution."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from learner.sampling.distribution import SamplingParams, _invert, draw, filter_logits, logprob
from learner.sampling.token_automaton import TokenAutomaton

RNG = np.random.default_rng(0)
FILTERS = [
    {"temperature": 0.8},
    {"top_k": 5},
    {"top_p": 0.6},
    {"min_p": 0.1},
    {"top_k": 9, "top_p": 0.8, "min_p": 0.05, "temperature": 1.3},
    {"top_k": 1},
    {"top_p": 0.02},
    {"top_k": 5, "top_p": 1e-50},  # 0 in float32
    {"min_p": 1.0},
]


def defined(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """One row's distribution, straight from the definitions."""
    logits = logits.astype(np.float64) / temperature
    order = np.argsort(-logits)[: top_k or None]
    probs = np.exp(logits[order] - logits.max())
    probs /= probs.sum()
    kept = np.searchsorted(np.cumsum(probs), top_p) + 1 if top_p < 1 else len(order)
    kept = min(kept, int((probs >= min_p * probs[0] * (1 - 1e-9)).sum()))
    result = np.zeros(len(logits))
    result[order[:kept]] = probs[:kept] / probs[:kept].sum()
    return result


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_filters_equal_their_definitions(filters, scale):
    logits = RNG.normal(size=(40, 50)).astype(np.float32) * scale - 5
    logits[0, 3:] = -1e30  # ids that the tokenizer does not know
    sampling = SamplingParams(max_new_tokens=1, **filters)
    got = jax.jit(lambda x: jax.nn.softmax(filter_logits(x, sampling)))(logits)
    for row, one in zip(np.asarray(got), logits, strict=True):
        np.testing.assert_allclose(row, defined(one, **filters), atol=1e-5)


@pytest.mark.parametrize("filters", [*FILTERS[:5], "automaton"])
def test_draws_pass_a_chi_square_test(filters):
    """100,000 draws; what the filters exclude is never drawn."""
    n, size = 100_000, 60
    logits = RNG.normal(size=size).astype(np.float32) * 1.5
    if filters == "automaton":
        allowed = [3, 17, 18, 40, 59]
        automaton = TokenAutomaton.create([allowed], [[0] * 5])
        masked = automaton.mask(jnp.zeros(1, jnp.int32), jnp.asarray(logits)[None])[0]
        want = np.where(np.isin(np.arange(size), allowed), np.exp(logits.astype(np.float64)), 0)
        want /= want.sum()
    else:
        masked = filter_logits(jnp.asarray(logits), SamplingParams(max_new_tokens=1, **filters))
        want = defined(logits, **filters)
    keys = jax.random.split(jax.random.key(5), n)
    tokens = np.asarray(jax.jit(draw)(keys, jnp.broadcast_to(masked, (n, size))))
    counts = np.bincount(tokens, minlength=size)
    possible = want > 0
    assert counts[~possible].sum() == 0
    assert stats.chisquare(counts[possible], n * want[possible]).pvalue > 1e-3
    np.testing.assert_allclose(
        logprob(jnp.broadcast_to(masked, (n, size)), jnp.asarray(tokens)),
        np.log(want[tokens]),
        atol=1e-5,
    )


def test_a_certain_token_is_always_drawn_in_a_large_vocabulary():
    logits = jnp.full((200, 5000), -jnp.inf).at[jnp.arange(200), jnp.arange(200) * 25].set(3.0)
    keys = jax.random.split(jax.random.key(0), 200)
    np.testing.assert_array_equal(draw(keys, logits), np.arange(200) * 25)


@pytest.mark.parametrize("cumsum", [jnp.cumsum, "scan"])
def test_a_weight_of_zero_is_never_chosen_where_rounding_lifts_its_end(cumsum, monkeypatch):
    """Uniform numbers inside the gaps that rounding opens at weights of zero, and at the end."""
    if cumsum == "scan":  # what other platforms than CPUs make of a cumulative sum
        cumsum = functools.partial(jax.lax.associative_scan, jnp.add)
        monkeypatch.setattr(jnp, "cumsum", cumsum)
    rng = np.random.default_rng(3)
    weights = (rng.random((400, 390)) * (rng.random((400, 390)) < 0.5)).astype(np.float32)
    weights[:, -3:] = 0
    ends = np.asarray(cumsum(weights, axis=-1))
    rows, places = np.nonzero((weights[:, 1:] == 0) & (ends[:, 1:] > ends[:, :-1]))
    assert len(rows) > 100
    low, high, total = ends[rows, places], ends[rows, places + 1], ends[rows, -1]
    inside = ((low.astype(np.float64) + high) / 2 / total).astype(np.float32)
    for uniform in (low / total, inside, np.full_like(low, 1 - 2.0**-24), 0 * low):
        uniform = np.minimum(uniform, np.float32(1 - 2.0**-24))
        index, rest = (np.asarray(x) for x in _invert(weights[rows], uniform))
        assert (weights[rows, index] > 0).all()
        assert ((rest >= 0) & (rest < 1)).all()
        # The right weight, to rounding: its share of the exact sums holds the uniform number.
        exact = np.cumsum(weights[rows].astype(np.float64), axis=-1)
        end = exact[np.arange(len(rows)), index] / exact[:, -1]
        begin = end - weights[rows, index] / exact[:, -1]
        assert ((begin - 1e-5 < uniform) & (uniform < end + 1e-5)).all()


def test_ties_at_the_edge_are_kept():
    logits = jnp.array([[2.0, 1.0, 1.0, 0.0]])
    for filters in ({"top_k": 2}, {"top_p": 0.7}):
        got = filter_logits(logits, SamplingParams(max_new_tokens=1, **filters))
        np.testing.assert_array_equal(np.isfinite(got), [[True, True, True, False]])


@pytest.mark.parametrize("temperature", [1e-4, 1e-8, 1e-12, 1e-30])
def test_nearly_no_temperature_takes_the_likeliest(temperature):
    logits = 5 * jax.random.normal(jax.random.key(0), (64, 50))
    sampling = SamplingParams(max_new_tokens=1, temperature=temperature)

    @jax.jit
    def drawn(logits):
        filtered = filter_logits(logits, sampling)
        tokens = draw(jax.random.split(jax.random.key(1), 64), filtered)
        return tokens, logprob(filtered, tokens)

    tokens, logprobs = drawn(logits)
    np.testing.assert_array_equal(tokens, logits.argmax(-1))
    np.testing.assert_array_equal(logprobs, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_new_tokens", 0),
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", 9e-31),
        ("stop_token_ids", 5),
        ("stop_token_ids", ("a",)),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -0.1),
    ],
)
def test_sampling_params_are_checked(field, value):
    with pytest.raises(ValueError, match=f"{field}="):
        SamplingParams(**({"max_new_tokens": 1} | {field: value}))
