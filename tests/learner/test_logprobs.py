"""Chunked log-probabilities against the whole array of logits."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from learner.decoder import logprobs
from learner.decoder.logprobs import token_logprobs
from learner.devices import sharding
from learner.plan.hlo import COLLECTIVES, Module

RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(3, 7, 5)).astype(np.float32)
OUTPUT = RNG.normal(size=(5, 11)).astype(np.float32)
TARGETS = RNG.integers(0, 9, (3, 7)).astype(np.int32)


def reference(hidden, output, targets, temperature=1.0, vocab_size=None):
    logits = (hidden.astype(np.float64) @ output)[..., :vocab_size] / temperature
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    chosen = np.take_along_axis(logp, targets[..., None], -1)[..., 0]
    return chosen, -(np.exp(logp) * logp).sum(-1)


@pytest.mark.parametrize("chunk", [1, 6, 9, 10_000])
@pytest.mark.parametrize(("temperature", "vocab_size"), [(1.0, None), (0.7, 9)])
def test_equals_the_whole_softmax(chunk, temperature, vocab_size):
    options = {"temperature": temperature, "vocab_size": vocab_size}
    logp, entropy = token_logprobs(HIDDEN, OUTPUT, TARGETS, chunk=chunk, **options)
    want_logp, want_entropy = reference(HIDDEN, OUTPUT, TARGETS, **options)
    np.testing.assert_allclose(logp, want_logp, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(entropy, want_entropy, rtol=1e-5, atol=1e-5)
    flat, _ = token_logprobs(HIDDEN[0], OUTPUT, TARGETS[0], chunk=chunk, **options)
    np.testing.assert_allclose(flat, want_logp[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("most_kept", "products"), [(1 << 25, 3), (0, 4)])
def test_gradients_equal_those_of_the_whole_softmax(most_kept, products, monkeypatch):
    """Of logits that are kept, and of those that are computed again."""
    monkeypatch.setattr(logprobs, "_KEPT", most_kept)
    weight = RNG.normal(size=(2, 3, 7)).astype(np.float32)

    def chunked(hidden, output):
        logp, entropy = token_logprobs(hidden, output, TARGETS, chunk=6, vocab_size=9)
        return jnp.sum(weight[0] * logp + weight[1] * entropy)

    def whole(hidden, output):
        logp = jax.nn.log_softmax((hidden @ output)[..., :9])
        chosen = jnp.take_along_axis(logp, TARGETS[..., None], -1)[..., 0]
        return jnp.sum(weight[0] * chosen - weight[1] * jnp.sum(jnp.exp(logp) * logp, -1))

    got = jax.grad(chunked, argnums=(0, 1))(HIDDEN, OUTPUT)
    want = jax.grad(whole, argnums=(0, 1))(HIDDEN, OUTPUT)
    for a, b in zip(got, want, strict=True):
        assert np.isfinite(a).all()
        np.testing.assert_allclose(a, b, atol=1e-5)
    program = str(jax.make_jaxpr(jax.grad(chunked, argnums=(0, 1)))(HIDDEN, OUTPUT))
    assert program.count("dot_general") == products


@pytest.mark.parametrize(
    ("most_kept", "unrolled", "loops"), [(1 << 25, 8, 0), (1 << 25, 2, 2), (0, 8, 2)]
)
def test_few_kept_chunks_are_in_no_loop(most_kept, unrolled, loops, monkeypatch):
    """A loop gathers their logits in one array."""
    monkeypatch.setattr(logprobs, "_KEPT", most_kept)
    monkeypatch.setattr(logprobs, "_UNROLLED", unrolled)

    def loss(hidden, output):
        return jnp.sum(token_logprobs(hidden, output, TARGETS, chunk=6)[0])

    program = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(HIDDEN, OUTPUT).as_text()
    assert program.count("stablehlo.while") == loops


def test_only_chunks_with_needed_tokens_are_computed():
    """Two tokens of each sequence at a time: three are needed at most, so two of four chunks."""
    needed = np.array([[0, 0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 1], [0] * 7], bool)
    weight = needed * RNG.normal(size=(2, 3, 7)).astype(np.float32)

    def loss(hidden, output, needed):
        both = token_logprobs(hidden, output, TARGETS, chunk=6, needed=needed)
        return jnp.sum(weight * jnp.stack(both)), both

    (_, got), gradient = jax.value_and_grad(loss, (0, 1), True)(HIDDEN, OUTPUT, needed)
    (_, want), wanted = jax.value_and_grad(loss, (0, 1), True)(HIDDEN, OUTPUT, None)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a[needed], b[needed], rtol=1e-6)
        assert (np.sum(a != 0, axis=1) == 4).all()
        assert np.all(b != 0)
    for a, b in zip(gradient, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_no_gradient_through_reported_entropies():
    def loss(hidden, entropy_gradient):
        logp, entropy = token_logprobs(
            hidden, OUTPUT, TARGETS, chunk=6, entropy_gradient=entropy_gradient
        )
        return jnp.sum(jnp.sin(logp)) + jnp.sum(entropy)

    def without(hidden):
        return jnp.sum(jnp.sin(token_logprobs(hidden, OUTPUT, TARGETS, chunk=6)[0]))

    got = jax.grad(loss)(HIDDEN, False)
    np.testing.assert_allclose(got, jax.grad(without)(HIDDEN), atol=1e-6)
    assert np.abs(got - jax.grad(loss)(HIDDEN, True)).max() > 0.1


def test_bfloat16_model_keeps_float32_statistics():
    """The matrix products are rounded, the softmax is not; the gradient has the weights' dtype."""
    hidden = jnp.asarray(HIDDEN, jnp.bfloat16)
    rounded = jnp.asarray(OUTPUT, jnp.bfloat16).astype(jnp.float32)
    logp, _ = token_logprobs(hidden, OUTPUT, TARGETS, chunk=6)
    want, _ = reference(np.asarray(hidden, np.float32), np.asarray(rounded), TARGETS)
    np.testing.assert_allclose(logp, want, rtol=1e-5, atol=1e-5)

    def loss(hidden, output):
        return jnp.sum(token_logprobs(hidden, output, TARGETS, chunk=6)[0])

    exact = jax.grad(loss, argnums=(0, 1))(hidden.astype(jnp.float32), rounded)
    got = jax.grad(loss, argnums=(0, 1))(hidden, jnp.asarray(OUTPUT))
    assert [g.dtype for g in got] == [jnp.bfloat16, jnp.float32]
    for a, b in zip(got, exact, strict=True):
        np.testing.assert_allclose(a.astype(jnp.float32), b, atol=0.04)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_memory_at_the_size_of_qwen3_4b(dtype):
    """Width 2,560 and 151,936 ids, by the compiler's own count, from shapes alone."""
    sequences, length, width, vocab, chunk = 8, 4096, 2560, 151_936, 1024

    def loss(hidden, output, targets):
        logp, entropy = token_logprobs(hidden, output, targets, chunk=chunk)
        return jnp.sum(logp) + jnp.sum(entropy)

    def compiled(length):
        return (
            jax.jit(jax.grad(loss, argnums=(0, 1)))
            .lower(
                jax.ShapeDtypeStruct((sequences, length, width), dtype),
                jax.ShapeDtypeStruct((width, vocab), jnp.float32),
                jax.ShapeDtypeStruct((sequences, length), jnp.int32),
            )
            .compile()
            .memory_analysis()
            .temp_size_in_bytes
        )

    matrix, logits_of_chunk = 4 * width * vocab, 4 * chunk * vocab
    hidden = 4 * sequences * length * width
    all_logits = 4 * sequences * length * vocab
    assert all_logits > 19e9
    # The gradient of the matrix; its cast copy (and the CPU's way back to float32) in bfloat16; a
    # few copies of one chunk's logits; the hidden states cut into chunks and their gradient.
    matrices = 1 if dtype == "float32" else 3
    assert compiled(length) < matrices * matrix + 2.5 * logits_of_chunk + 3 * hidden
    # What grows with the number of tokens are the hidden states and no logits.
    assert compiled(2 * length) - compiled(length) < 3 * hidden


def collectives(text):
    """(operation, elements, how often it runs) of the collectives of a compiled program."""
    return [
        (each.opcode.removesuffix("-start"), math.prod(shape.dims), times)
        for each, times in Module.parse(text).visits()
        if each.opcode.removesuffix("-start") in COLLECTIVES
        for shape in each.shapes
    ]


@pytest.mark.parametrize("layout", [(8, 1, 1), (1, 8, 1), (1, 1, 2), (2, 2, 2)])
def test_a_mesh_adds_up_the_gradient_of_the_matrix_once(layout, monkeypatch):
    """Chunks are counted for each device, and no loop holds a collective of the matrix's size."""
    monkeypatch.setattr(logprobs, "_UNROLLED", 0)
    sequences, length, width, vocab, chunk = 16, 12, 16, 512, 8
    hidden = RNG.normal(size=(sequences, length, width)).astype(np.float32)
    output = RNG.normal(size=(width, vocab)).astype(np.float32)
    targets = RNG.integers(0, 500, (sequences, length)).astype(np.int32)
    weight = RNG.normal(size=(2, sequences, length)).astype(np.float32)

    def loss(hidden, output):
        logp, entropy = token_logprobs(hidden, output, targets, chunk=chunk, vocab_size=500)
        return jnp.sum(weight[0] * logp + weight[1] * entropy), (logp, entropy)

    gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
    (_, want_values), want = jax.jit(gradient)(hidden, output)
    mesh = sharding.make_mesh(*layout)
    places = sharding.batch_sharding(mesh), NamedSharding(mesh, P("fsdp", "tensor"))
    with sharding.use(mesh):
        placed = jax.device_put((hidden, output), places)
        compiled = jax.jit(gradient, out_shardings=(None, places)).lower(*placed).compile()
        (_, values), got = compiled(*placed)
    for a, b in zip((*values, *got), (*want_values, *want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=5e-5)

    found = collectives(compiled.as_text())
    sequences_of_one = sequences // sharding.num_batch_shards(mesh)
    steps = -(-length // max(1, chunk // sequences_of_one))
    visits = Module.parse(compiled.as_text()).visits()
    assert [each.iterations for each, _ in visits if each.opcode == "while"] == [steps] * 2
    # In the loops only what belongs to a chunk's tokens: hidden states, statistics, gradients.
    allowed = sequences_of_one * max(1, chunk // sequences_of_one) * width * layout[1]
    assert all(size <= allowed for _, size, times in found if times > 1)
    # No device gets more than its part of the matrix; the gradient is summed once.
    part = width * vocab // layout[1] // layout[2]
    assert all(size <= max(part, allowed) for _, size, _ in found)
    sums = [name for name, size, _ in found if name == "all-reduce" and size >= part]
    assert len(sums) == (layout[0] > 1)


@pytest.mark.parametrize(
    ("layout", "conditions"), [((2, 1, 1), True), ((1, 2, 1), False), ((1, 1, 2), False)]
)
def test_nothing_is_exchanged_under_a_condition(layout, conditions):
    """Devices of a CPU might exchange something else first, and wait for each other for ever."""
    targets = jnp.zeros((4, 8), jnp.int32)

    def loss(hidden, output):
        needed = jnp.arange(8) < jnp.array([[3], [1], [0], [2]])
        return jnp.sum(token_logprobs(hidden, output, targets, chunk=4, needed=needed)[0])

    with sharding.use(sharding.make_mesh(*layout, devices=jax.devices()[:2])):
        lowered = jax.jit(jax.grad(loss, (0, 1))).lower(jnp.ones((4, 8, 6)), jnp.ones((6, 8)))
    assert ("stablehlo.case" in lowered.as_text()) == conditions


def test_a_vocabulary_that_fsdp_does_not_divide():
    hidden = RNG.normal(size=(8, 3, 16)).astype(np.float32)
    output, targets = RNG.normal(size=(16, 97)).astype(np.float32), np.zeros((8, 3), np.int32)
    gradient = jax.grad(lambda *x: jnp.sum(token_logprobs(*x, targets)[0]), argnums=(0, 1))
    mesh = sharding.make_mesh(fsdp=8)
    with sharding.use(mesh):
        got = jax.jit(gradient)(hidden, output)
    chex.assert_trees_all_close(got, gradient(hidden, output), rtol=1e-4, atol=5e-5)


def test_bad_arguments():
    with sharding.use(sharding.make_mesh(8)), pytest.raises(ValueError, match="multiples of 8"):
        token_logprobs(HIDDEN, OUTPUT, TARGETS)
