"""Dense decoders, their configuration and weights, against the torch models of transformers."""

import contextlib
import dataclasses
import functools

import chex
import forward_pass
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax._src.ad_checkpoint import saved_residuals
from jax._src.cudnn import fused_attention_stablehlo
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from learner.decoder import attention, heads_tpu, model, rotary, weights
from learner.decoder.config import REMAT, DecoderConfig, published
from learner.devices import sharding
from learner.sampling.sampler import Sampler, SamplingParams

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def variant(heads, key_heads, theta, **more):
    """Arguments of `torch_model`."""
    return {"num_attention_heads": heads, "num_key_value_heads": key_heads, "theta": theta, **more}


TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
WIDE = {"head_dim": 16, "rms_norm_eps": 1e-5}
DEEP = {"hidden_size": 64, "intermediate_size": 40, "num_hidden_layers": 5}
# Tied and untied, four ways to share heads, widths that are and are not heads times head_dim;
# other architectures, and rotations for longer contexts.
VARIANTS = {
    "tied-gqa-theta5e6": variant(4, 2, 5e6, **TIED),
    "untied-mqa": variant(6, 1, 1e4, **UNTIED),
    "untied-mha": variant(4, 4, 1e6, **UNTIED),
    "tied-gqa-wide": variant(8, 4, 1e6, **TIED, **WIDE),
    "untied-gqa-deep": variant(8, 2, 5e5, **UNTIED, **DEEP),
    "llama-tied": variant(8, 2, 1e5, model_type="llama", **TIED),
    "llama3-rope": variant(4, 2, 500.0, model_type="llama", rope=LLAMA3_ROPE),
    "mistral": variant(4, 1, 1e4, model_type="mistral", sliding_window=None),
    "qwen2": variant(4, 2, 1e6, model_type="qwen2", head_dim=None),
    "qwen3-yarn": variant(4, 2, 1e4, rope=YARN_ROPE),
}
# Divides over each of these; data x fsdp x tensor.
SPLIT_VARIANT = "tied-gqa-wide"
LAYOUTS = [(2, 2, 2), (8, 1, 1), (1, 8, 1), (1, 2, 4)]
PROMPTS = [list(map(int, np.random.default_rng(2).integers(5, 96, n))) for n in (5, 1, 13, 9)]
PUBLISHED_4B = published("Qwen3-4B").to_hf()


def torch_model(theta, model_type="qwen3", rope=None, **changes):
    """A small random model whose logits spread over about one nat and whose norms are not one."""
    sizes = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "head_dim": 8,
    }
    sizes = {name: size for name, size in (sizes | changes).items() if size is not None}
    if model_type == "mistral":
        sizes["sliding_window"] = None
    config = AutoConfig.for_model(
        model_type,
        **sizes,
        rope_parameters=(rope or {"rope_type": "default"}) | {"rope_theta": theta},
        max_position_embeddings=128,
        initializer_range=0.2,
        eos_token_id=[3, 4],
    )
    torch.manual_seed(0)
    reference = AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "bias" in name:
                parameter.normal_(0.0, 0.1)
    return reference


# The others are tied and untied, of one key head and of several, each with a theta of its own.
SLOW = ("tied-gqa-theta5e6", "untied-gqa-deep", "untied-mha", "mistral", "qwen3-yarn")


@pytest.fixture(
    scope="module",
    params=[pytest.param(n, marks=pytest.mark.slow if n in SLOW else (), id=n) for n in VARIANTS],
)
def checkpoint(request, tmp_path_factory):
    """A torch model and the folder it was saved to."""
    return save_torch_model(request.param, tmp_path_factory)


@pytest.fixture(scope="module")
def split_checkpoint(tmp_path_factory):
    """The one that divides over eight devices, and its greedy tokens."""
    reference, folder = save_torch_model(SPLIT_VARIANT, tmp_path_factory)
    return reference, folder, torch_greedy(reference)


def save_torch_model(variant, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    reference = torch_model(**VARIANTS[variant])
    reference.save_pretrained(folder)
    return reference, folder


@pytest.fixture
def batch():
    """Rows without padding, with a little, some and much of it."""
    tokens = np.random.default_rng(0).integers(0, 96, (4, 11)).astype(np.int32)
    valid = np.ones((4, 11), bool)
    valid[1, 9:] = False
    valid[2, 6:] = False
    valid[3, 2:] = False
    positions = np.maximum(np.cumsum(valid, axis=1) - 1, 0).astype(np.int32)
    return tokens, positions, valid


def torch_logits(reference, tokens, positions, valid):
    with torch.no_grad():
        return reference(
            torch.tensor(tokens, dtype=torch.long),
            attention_mask=torch.tensor(valid, dtype=torch.long),
            position_ids=torch.tensor(positions, dtype=torch.long),
        ).logits.numpy()


def torch_greedy(reference, num_tokens=64):
    """transformers' own generation, all prompts in one left-padded batch; nothing ends it early."""
    longest = max(map(len, PROMPTS))
    padding = [longest - len(prompt) for prompt in PROMPTS]
    ids = [[0] * n + prompt for n, prompt in zip(padding, PROMPTS, strict=True)]
    mask = [[0] * n + [1] * (longest - n) for n in padding]
    with torch.no_grad():
        out = reference.generate(
            torch.tensor(ids),
            attention_mask=torch.tensor(mask),
            do_sample=False,
            max_new_tokens=num_tokens,
            eos_token_id=-1,
            pad_token_id=0,
        )
    return out[:, longest:].numpy()


def greedy(params, config, mesh, num_tokens=64):
    sampling = SamplingParams(temperature=0.0, max_new_tokens=num_tokens)
    sampler = Sampler(config, mesh, sampling, 0)
    return sampler(params, PROMPTS, jax.random.split(jax.random.key(0), len(PROMPTS))).tokens


def test_equal_to_torch_after_load_and_after_save(checkpoint, batch, tmp_path):
    """Logits to 1e-4, and the same 64 greedy tokens; of what transformers reads back, too."""
    reference, folder = checkpoint
    config = DecoderConfig.from_folder(folder)
    assert config.rope_theta == reference.config.rope_parameters["rope_theta"]
    assert config.eos_token_id == (3, 4)
    params = weights.load(folder, config)
    valid = batch[2]
    want = torch_logits(reference, *batch)
    got = np.asarray(jax.jit(forward_pass.logits, static_argnums=1)(params, config, *batch[:2]))
    assert want[valid].std() > 0.3
    assert np.abs(got - want)[valid].max() < 1e-4

    # Several files with an index, as large checkpoints have; then one file again.
    for name, limit in (("many", 20_000), ("one", 10**9)):
        out = tmp_path / name
        weights.save(out, params, config, max_file_bytes=limit)
        assert (out / weights.INDEX_FILE).exists() == (name == "many")
        assert DecoderConfig.from_folder(out) == config
        back, info = AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
        back = back.eval()
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        np.testing.assert_array_equal(torch_logits(back, *batch)[valid], want[valid])
        jax.tree.map(np.testing.assert_array_equal, weights.load(out, config), params)

    want = torch_greedy(reference)
    one_device = sharding.make_mesh(devices=jax.devices()[:1])
    np.testing.assert_array_equal(greedy(params, config, one_device), want)
    np.testing.assert_array_equal(torch_greedy(back), want)
    assert len(np.unique(want)) > 8  # Else equality would show little.


@pytest.mark.parametrize(
    "axes",
    [(2, 2, 2), *(pytest.param(axes, marks=pytest.mark.slow) for axes in LAYOUTS[1:])],
    ids=lambda axes: "x".join(map(str, axes)),
)
def test_eight_devices_are_equal_to_torch(split_checkpoint, batch, axes, tmp_path):
    """The bound on logits is 2e-4: sums over split axes are taken in another order."""
    reference, folder, wanted_tokens = split_checkpoint
    config = DecoderConfig.from_folder(folder)
    mesh = sharding.make_mesh(*axes)
    params = weights.load(folder, config, mesh)
    batch = tuple(np.concatenate([x, x]) for x in batch)  # A row for every device.
    with sharding.use(mesh):
        forward = jax.jit(forward_pass.logits, static_argnums=1)
        got = forward(params, config, *jax.device_put(batch[:2], sharding.batch_sharding(mesh)))
    valid = batch[2]
    want = torch_logits(reference, *batch)
    assert np.abs(np.asarray(got) - want)[valid].max() < 2e-4

    np.testing.assert_array_equal(greedy(params, config, mesh), wanted_tokens)
    weights.save(tmp_path, params, config)
    back = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    np.testing.assert_array_equal(torch_logits(back, *batch)[valid], want[valid])


@pytest.mark.parametrize("remat", [name for name in REMAT if name != "none"])
def test_rematerialised_gradient_is_the_same(batch, remat):
    """And that of layers that are not scanned; what is kept gets less from policy to policy."""
    config = DecoderConfig.from_hf(torch_model(**VARIANTS["tied-gqa-theta5e6"]).config.to_dict())
    params = model.init_params(jax.random.key(0), config)
    unroll = 3 if remat == "full" else 1
    other = dataclasses.replace(config, remat=remat, scan_unroll=unroll)

    def total(params, config):
        out = forward_pass.logits(params, config, *batch[:2])
        return jnp.sum(jnp.where(batch[2][..., None], jnp.sin(out), 0.0))

    value, grad = jax.jit(jax.value_and_grad(total), static_argnums=1)(params, config)
    value2, grad2 = jax.jit(jax.value_and_grad(total), static_argnums=1)(params, other)
    np.testing.assert_allclose(value, value2, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), grad, grad2)


def test_each_remat_policy_keeps_less_than_the_one_before():
    """Elements of a block that the forward pass keeps for the backward pass, as JAX lists them."""
    config = DecoderConfig.from_hf(PUBLISHED_4B | {"num_hidden_layers": 2, "vocab_size": 64})
    ids = jnp.zeros((1, 16), jnp.int32)
    kept = {}
    for remat in REMAT[:-1]:
        c = dataclasses.replace(config, remat=remat)
        forward = functools.partial(
            lambda c, params: jnp.sum(model.hidden_states(params, c, ids, ids)), c
        )
        saved = saved_residuals(forward, model.abstract_params(config))
        kept[remat] = sum(x.size for x, source in saved if "argument" not in source)
    sizes = list(kept.values())
    assert sizes == sorted(sizes, reverse=True), kept
    assert len(set(sizes)) == len(sizes), kept
    # The input of each of two blocks, and what is outside of them.
    assert kept["full"] < 4 * 16 * config.hidden_size + 4 * 16 * config.head_dim, kept


@pytest.mark.usefixtures("optimised")
def test_layers_that_are_not_scanned_share_the_angles():
    config = DecoderConfig.from_hf(torch_model(**VARIANTS["tied-gqa-theta5e6"]).config.to_dict())
    config = dataclasses.replace(config, scan_unroll=config.num_hidden_layers)
    ids = jnp.zeros((2, 16), jnp.int32)

    def total(params):
        return jnp.sum(model.hidden_states(params, config, ids, ids) ** 2)

    program = jax.jit(jax.grad(total)).lower(model.abstract_params(config)).compile().as_text()
    assert program.count(" cosine(") == 1


def test_bfloat16_stays_close_and_returns_float32(checkpoint, batch):
    reference, folder = checkpoint
    config = DecoderConfig.from_folder(folder, dtype="bfloat16")
    got = forward_pass.logits(weights.load(folder, config), config, *batch[:2])
    want = torch_logits(reference, *batch)
    assert got.dtype == jnp.float32
    error = np.abs(np.asarray(got) - want)[batch[2]]
    assert 1e-4 < error.mean() < 0.05  # bfloat16 has 8 bits: not exact, not far


# Attention -------------------------------------------------------------------


def random_qkv(B, T, H, K, h, dtype=jnp.float32):
    rng = np.random.default_rng(1)
    return [jnp.asarray(rng.normal(size=(B, T, n, h)), dtype) for n in (H, K, K)]


def output_and_gradient(attend, *qkv):
    out, vjp = jax.vjp(attend, *qkv)
    return [out, *vjp(jnp.sin(out))]


def test_rotation_by_a_product_is_the_same():
    """To the bit in bfloat16; the gradient's two parts are rounded before they are added."""
    config = published("Qwen3-0.6B")
    x = jax.random.normal(jax.random.key(0), (3, 7, 2, config.head_dim), jnp.bfloat16)
    rope = rotary.rope_angles(jnp.broadcast_to(jnp.arange(7), (3, 7)), config)

    def run(by_product):
        out, vjp = jax.vjp(lambda x: rotary.rotate(x, rope, by_product), x)
        return out, *vjp(x)

    (out, gradient), (want, want_gradient) = run(True), run(False)
    chex.assert_trees_all_equal(out, want)
    chex.assert_trees_all_close(gradient, want_gradient, atol=0.02, rtol=0.01)


@pytest.mark.parametrize(
    ("length", "heads", "dtype", "axes"),
    [
        (160, 12, "float32", None),
        (512, 2, "bfloat16", None),
        (130, 4, "bfloat16", {"fsdp": 2, "tensor": 2}),
    ],
)
def test_heads_of_the_tpu_kernel_are_those_of_the_reference(length, heads, dtype, axes):
    """Norm, rotation, order and factor; lengths of no whole tiles, several blocks of heads."""
    config = published("Qwen3-0.6B", dtype=dtype)
    x, g = jax.random.normal(jax.random.key(0), (2, 2, length, heads, 128), dtype)
    scale = 1 + jax.random.normal(jax.random.key(1), (128,)) / 8
    positions = jnp.broadcast_to(jnp.arange(length), (2, length))
    cos, sin = rotary.whole_heads(rotary.rope_angles(positions, config))

    def run(function):
        def both(x, scale):
            out, vjp = jax.vjp(lambda *a: function(*a, 1e-6, cos, sin, 128**-0.5), x, scale)
            return out, *vjp(g.transpose(0, 2, 1, 3))

        return jax.jit(both)(x, scale)

    want = run(heads_tpu.reference)
    with sharding.use(sharding.make_mesh(**axes)) if axes else contextlib.nullcontext():
        got = run(functools.partial(heads_tpu.heads_first, interpret=True))
    eps = float(jnp.finfo(dtype).eps)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == theirs.dtype
        error = np.abs(np.asarray(mine, np.float32) - np.asarray(theirs, np.float32))
        # The reference rounds on its way back, too.
        assert error.max() <= 4 * eps * np.abs(np.asarray(theirs, np.float32)).max()


def test_reference_attention_equals_that_of_jax_in_blocks_too(monkeypatch):
    """Plain rows and shared prompts; whole rows and blocks that do not divide."""
    qkv = random_qkv(2, 7, 6, 2, 8)
    # Completions of unequal length, one of them empty; rooms that have space to spare or none.
    owner = np.array([[0, 0, 0, 1, 1, 3, -1], [0, 2, 2, 2, 3, -1, -1]])
    lengths = np.stack([(owner == n).sum(1) for n in (1, 2, 3)], 1)
    prompts = (owner == 0).sum(1)
    starts = prompts[:, None] + np.cumsum(lengths, 1) - lengths
    packed = attention.Segments(jnp.asarray(owner >= 0, jnp.int32), jnp.asarray(owner))
    for layout in (
        None,
        attention.SharedPrompt(prompts, starts, lengths, 3, 3),
        attention.SharedPrompt(prompts, starts, lengths, 7, 7),
        packed,
    ):
        causal = np.tril(np.ones((7, 7), bool))
        if layout is None:
            valid, mask = np.ones((2, 7), bool), causal[None]
        else:
            valid = owner >= 0
            same = owner[:, :, None] == owner[:, None, :]
            mask = causal & ((owner == 0)[:, None, :] | same)

        def want(q, k, v, mask=mask, valid=valid):
            out = jax.nn.dot_product_attention(q, k, v, mask=jnp.asarray(mask)[:, None])
            return jnp.where(valid[..., None, None], out, 0)

        def got(q, k, v, layout=layout, valid=valid):
            out = attention.self_attention(q, k, v, "reference", layout)
            # A number that is not finite in the padding would show up in the gradient.
            return jnp.where(valid[..., None, None], out, 0)

        wanted = jax.jit(functools.partial(output_and_gradient, want))(*qkv)
        for block, bands in ((512, 8), (2, 8), (2, 2)):  # One band; four; two of two blocks.
            monkeypatch.setattr(attention, "_QUERY_BLOCK", block)
            monkeypatch.setattr(attention, "_BANDS", bands)
            results = jax.jit(functools.partial(output_and_gradient, got))(*qkv)
            for a, b in zip(results, wanted, strict=True):
                np.testing.assert_allclose(a, b, atol=2e-5)


@pytest.mark.parametrize(
    ("axes", "length"), [(None, 256), ({"data": 2, "tensor": 2}, 256), (None, 160)]
)
def test_flash_attention_equals_the_reference(axes, length, monkeypatch):
    """The TPU kernel, its steps run one by one on the CPU, alone and split over a mesh."""
    called = []

    def flash(*args):
        called.append(args[0].shape)
        return kernel(*args, interpret=True)

    kernel = attention._flash
    monkeypatch.setitem(attention._KERNELS, "flash", flash)
    qkv = random_qkv(2, length, 4, 2, 128)
    # Completions to a prompt, padded behind it; the second one of the first row is empty.
    prompts, lengths = jnp.array([21, 40]), jnp.array([[50, 0], [30, 60]])
    starts = prompts[:, None] + jnp.cumsum(lengths, 1) - lengths
    shared = attention.SharedPrompt(prompts, starts, lengths, 40, 60)
    inside = jnp.arange(length) < (prompts + lengths.sum(1))[:, None]
    # Two prompts of different lengths, each with one completion, and padding.
    slots, second = jnp.arange(length)[None], jnp.array([[50], [77]])
    numbers = jnp.where(slots < second, 1, jnp.where(slots < 140, 2, 0))
    completion = jnp.where(slots < second, slots > 9, slots > second + 20)
    segments = attention.Segments(numbers, jnp.where(completion, numbers, 0))

    def run(implementation):
        def attend(q, k, v):
            plain = attention.self_attention(q, k, v, implementation)
            cut = attention.self_attention(q, k, v, implementation, shared)
            packed = attention.self_attention(q, k, v, implementation, segments)
            cut = jnp.where(inside[..., None, None], cut, 0)
            return plain + cut + jnp.where(numbers[..., None, None] > 0, 2 * packed, 0)

        return jax.jit(functools.partial(output_and_gradient, attend))(*qkv)

    want = run("reference")
    with sharding.use(sharding.make_mesh(**axes)) if axes else contextlib.nullcontext():
        got = run("flash")
    assert called
    assert any(shape[1] == 60 for shape in called)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "platform", "kernel"),
    [("flash", "tpu", "tpu_custom_call"), ("cudnn", "cuda", "__cudnn$fmhaSoftmaxBackward")],
)
def test_kernels_lower_for_their_platform(name, platform, kernel, monkeypatch):
    """No such device here: that the program for it holds the kernel is all that is shown."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91000)
    config = DecoderConfig.from_hf(PUBLISHED_4B | {"num_hidden_layers": 2, "vocab_size": 64})
    config = dataclasses.replace(config, dtype="bfloat16", attention=name, remat="full")
    ids = jax.ShapeDtypeStruct((2, 128), jnp.int32)

    def program(layout=None):
        def loss(params, tokens):
            hidden = model.hidden_states(params, config, tokens, tokens, layout)
            return jnp.sum(hidden.astype(jnp.float32))

        traced = jax.jit(jax.grad(loss)).trace(model.abstract_params(config), ids)
        return traced.lower(lowering_platforms=(platform,)).as_text()

    assert kernel in program()
    # Prompts that completions share go through the kernel too.
    two = jnp.array([[64, 96], [64, 96]])
    shared = attention.SharedPrompt(two[:, 0], two, jnp.full((2, 2), 32), 64, 32)
    assert kernel in program(shared)
    # So do rows of several prompts.
    ones = jnp.ones((2, 128), jnp.int32)
    masked = kernel.replace("fmha", "fmhaScaleBias")
    assert masked in program(attention.Segments(ones, ones))


def test_choice_of_attention_says_why(monkeypatch):
    choose = attention.choose.__wrapped__
    config = DecoderConfig.from_hf(PUBLISHED_4B, dtype="bfloat16")
    assert choose(config) == attention.Choice("reference", "there is no kernel for platform cpu")
    assert choose(dataclasses.replace(config, attention="flash")).name == "flash"
    assert "needs dtype" in choose(dataclasses.replace(config, dtype="float32"), "gpu").reason
    small = dataclasses.replace(config, head_dim=64, num_attention_heads=4, num_key_value_heads=2)
    assert "head_dim that 128 divides" in choose(small, "tpu").reason
    with pytest.raises(ValueError, match=r"attention is 'flash', but .* head_dim"):
        choose(dataclasses.replace(small, attention="flash"))

    # A kernel is tried before it is chosen, here with stand-ins for those of a GPU.
    stand_ins = {
        "works": attention._reference,
        "is wrong": lambda q, k, v, valid=None: attention._reference(q, k, v),
        "is not there": attention._KERNELS["cudnn"],
        "has no message": lambda *_: next(iter(())),
    }
    chosen = {}
    for case, kernel in stand_ins.items():
        monkeypatch.setitem(attention._KERNELS, "cudnn", kernel)
        with sharding.use(sharding.make_mesh(data=4)):  # As when a program is being traced.
            jax.eval_shape(lambda case=case: chosen.update({case: choose(small, "gpu")}))
    assert chosen["works"].name == "cudnn"
    assert chosen["is wrong"].name == chosen["is not there"].name == "reference"
    assert "differs from the reference" in chosen["is wrong"].reason
    assert "cuDNN is not detected" in chosen["is not there"].reason
    assert chosen["has no message"].reason == "cudnn failed when tried: StopIteration: "


# Configuration ---------------------------------------------------------------


def test_published_4b_file_gives_the_published_number_of_parameters():
    config = DecoderConfig.from_hf(PUBLISHED_4B)
    assert config.rope_theta == 1e6
    assert config.head_dim * config.num_attention_heads != config.hidden_size
    sizes = [x.size for x in jax.tree.leaves(model.abstract_params(config))]
    # 4.0 billion, 3.6 without the embedding, as the model card states.
    assert sum(sizes) == 4_022_468_096
    assert round((sum(sizes) - config.vocab_size * config.hidden_size) / 1e9, 1) == 3.6
    assert DecoderConfig.from_hf(config.to_hf()) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"head_dim": 127}, "head_dim=127"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps=-1.0"),
        # Where the width of heads follows from their number.
        (
            {"model_type": "llama", "head_dim": None, "num_attention_heads": "32"},
            "num_attention_heads='32'",
        ),
    ],
)
def test_unsupported_configurations_are_refused_by_field(changes, message):
    with pytest.raises(ValueError, match=message):
        DecoderConfig.from_hf(PUBLISHED_4B | changes)


@pytest.mark.parametrize("rope", [LLAMA3_ROPE, YARN_ROPE], ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("changes", [{}, {"factor": 32.0}])
def test_scaled_frequencies_are_those_of_transformers(rope, changes):
    rope = {**rope, **changes, "original_max_position_embeddings": 8192}
    parts = {"rope_parameters": rope | {"rope_theta": 5e5}, "rope_theta": None}
    config = DecoderConfig.from_hf(PUBLISHED_4B | parts)
    theirs = AutoConfig.for_model("qwen3", head_dim=config.head_dim, **parts)
    wanted, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](theirs, "cpu")
    got, own_factor = rotary.scaled_frequencies(config, config.rope_scaling)
    np.testing.assert_allclose(got, wanted.numpy(), rtol=2e-6)
    assert own_factor == pytest.approx(factor)


def test_compute_options_are_checked():
    with pytest.raises(ValueError, match=r"dtype='float64'.*bfloat16"):
        DecoderConfig.from_hf(PUBLISHED_4B, dtype="float64")
    with pytest.raises(ValueError, match="hidden_size"):
        DecoderConfig.from_hf(PUBLISHED_4B, hidden_size=4)
