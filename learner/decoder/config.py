"""Dense decoders, field by field as in `config.json`, and options of how they are computed."""

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from learner import checks

DTYPES = ("float32", "bfloat16", "float16")
#: Of the KV cache; "" is that of activations.
CACHE_DTYPES = ("", "float8_e4m3fn")

#: What the backward pass keeps of a block; the rest is computed again. See `DecoderConfig.remat`.
REMAT = ("none", "dots", "attention", "outputs", "full", "offload")

#: Implementations of self-attention; see `learner.decoder.attention`.
ATTENTION = ("auto", "reference", "cudnn", "flash")


@dataclasses.dataclass(frozen=True)
class Architecture:
    """What distinguishes one `model_type` of dense decoders from another.

    Attributes:
        name: of the class in transformers.
        qk_norm: queries and keys of every head are normalised before the rotation.
        qkv_bias: the projections to queries, keys and values have a bias.
        head_dim: where `config.json` leaves it out; None is `hidden_size` by heads.
        rope_theta: where `config.json` leaves it out, as in transformers; None requires it.
    """

    name: str
    qk_norm: bool = False
    qkv_bias: bool = False
    head_dim: int | None = None
    rope_theta: float | None = 10_000.0


#: By `model_type`: Qwen3 (arXiv 2505.09388), Qwen2 and 2.5 (2407.10671), Llama (2407.21783) and
#: what has its form (SmolLM2, 2502.02737), Mistral without a sliding window (2310.06825).
ARCHITECTURES = {
    "qwen3": Architecture("Qwen3ForCausalLM", qk_norm=True, head_dim=128, rope_theta=None),
    "qwen2": Architecture("Qwen2ForCausalLM", qkv_bias=True),
    "llama": Architecture("LlamaForCausalLM"),
    "mistral": Architecture("MistralForCausalLM"),
}

# More than any decoder has: beyond, shapes alone take all memory.
_MOST = {
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 1 << 10,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12,
    "max_position_embeddings": 1 << 30,
}
# What config.json must state; rope_theta has two places there.
_REQUIRED = (*(name for name in _MOST if name != "max_position_embeddings"), "rope_theta")
_COMPUTE = ("dtype", "param_dtype", "cache_dtype", "remat", "scan_unroll", "attention")

# The published dense models (Qwen3 technical report, arXiv 2505.09388, table 1), by name, as in
# `Qwen/<name>/config.json` on the Hugging Face hub.
_PUBLISHED = checks.json_object(Path(__file__).with_name("published.json"))
NAMES = tuple(_PUBLISHED)


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are changed for contexts longer than those of pretraining.

    Attributes:
        kind: "llama3" (arXiv 2407.21783) or "yarn" (arXiv 2309.00071).
        factor: by which slow frequencies are divided.
        original_max_position_embeddings: the longest sequence of pretraining, in tokens.
        low_freq_factor, high_freq_factor: of llama3: rotations within that length below which
            frequencies are divided, and above which they are kept.
        beta_fast, beta_slow: the same bounds of yarn, the upper one first.
        attention_factor: of yarn, multiplies cosines and sines; None is 0.1 ln(factor) + 1.
        truncate: of yarn, whether the bounds are rounded to whole dimensions.
    """

    kind: str
    factor: float
    original_max_position_embeddings: int
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        checks.choices(self, kind=("llama3", "yarn"))
        checks.integers(self, original_max_position_embeddings=1)
        checks.positive(
            self, "factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"
        )
        if self.attention_factor is not None:
            checks.positive(self, "attention_factor")
        if not isinstance(self.truncate, bool):
            raise ValueError(
                f"truncate={checks.shortened(self.truncate)}: allowed are true and false"
            )
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor={self.high_freq_factor}: allowed are numbers above "
                f"low_freq_factor={self.low_freq_factor}"
            )

    @classmethod
    def from_hf(cls, rope: Mapping[str, Any]) -> Self:
        """Read `rope_scaling` or `rope_parameters` of a `config.json`."""
        names = {field.name for field in dataclasses.fields(cls)} - {"kind"}
        known = names | {"rope_type", "type", "rope_theta"}
        if unknown := sorted(set(map(str, rope)) - known):
            raise ValueError(
                f"rope_scaling has {checks.shortened(unknown)}: known are {sorted(known)}"
            )
        values = {name: rope[name] for name in names if rope.get(name) is not None}
        for name in ("factor", "original_max_position_embeddings"):
            if name not in values:
                raise ValueError(f"rope_scaling lacks {name}")
        return cls(_rope_type(rope), **values)

    def to_hf(self) -> dict[str, Any]:
        """Its entries in `rope_parameters`, those of its kind alone."""
        others = (
            ("beta_fast", "beta_slow", "attention_factor", "truncate")
            if self.kind == "llama3"
            else ("low_freq_factor", "high_freq_factor")
        )
        values = dataclasses.asdict(self)
        kind = values.pop("kind")
        kept = {k: v for k, v in values.items() if k not in others and v is not None}
        return {"rope_type": kind} | kept


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The architecture, field by field as in a Hugging Face `config.json`, and compute options.

    Hashable, so it can be a static argument of `jax.jit`. Invalid values raise `ValueError`. The
    compute options, from `dtype` on, are never read from or written to `config.json`.

    Attributes:
        model_type: one of `ARCHITECTURES`.
        vocab_size: rows of the embedding; may exceed the number of ids the tokenizer knows.
        hidden_size: width D of the residual stream.
        intermediate_size: width of the SwiGLU hidden layer.
        num_hidden_layers: number of blocks.
        num_attention_heads: query heads; a multiple of `num_key_value_heads`.
        num_key_value_heads: key and value heads, each shared by a group of query heads.
        head_dim: width of one head; independent of `hidden_size`.
        rms_norm_eps: added to the mean square in every RMSNorm.
        rope_theta: base of the rotary frequencies.
        rope_scaling: their change for longer contexts, or None.
        tie_word_embeddings: the output projection is the transposed embedding.
        max_position_embeddings: the longest supported sequence, in tokens.
        initializer_range: standard deviation of fresh weights.
        bos_token_id, eos_token_id, pad_token_id: as the file states them.
        dtype: "float32", "bfloat16" or, for GPUs without it, "float16", of activations and matrix
            products. Norms, softmax and log-probabilities are float32 always.
        param_dtype: of the stored parameters; one of the same. To train all of them it should be
            float32: in bfloat16 an update below 1/256 of a parameter is rounded away.
        cache_dtype: of the KV cache: "" is `dtype`; "float8_e4m3fn" takes half the memory of 16
            bits, and its three bits of mantissa make sampling differ from training.
        remat: what is kept of every block for the backward pass, from the most memory to the
            least: "none" all of it (nothing is computed twice); "dots" the outputs of the seven
            projections; "attention" what enters attention's output projection; "outputs" what
            leaves attention and feed-forward layer; "full" only its input; "offload" its input
            too, but in the memory of the host. With the first three the forward kernel of TPUs
            for attention runs once.
        scan_unroll: blocks per iteration of the scan over layers. `num_hidden_layers` unrolls
            it wholly, which is faster on CPUs and slower to compile.
        attention: "auto" chooses by platform; the others force one (`learner.decoder.attention`).
    """

    model_type: str = "qwen3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    rope_scaling: RopeScaling | None = None
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 32_768
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None

    dtype: str = "float32"
    param_dtype: str = "float32"
    cache_dtype: str = ""
    remat: str = "none"
    scan_unroll: int = 1
    attention: str = "auto"

    def __post_init__(self) -> None:
        checks.choices(self, model_type=tuple(ARCHITECTURES))
        checks.integers(self, **dict.fromkeys((*_MOST, "scan_unroll"), 1))
        for name, most in _MOST.items():
            if getattr(self, name) > most:
                value = checks.shortened(getattr(self, name))
                raise ValueError(f"{name}={value}: allowed are integers up to {most}")
        checks.positive(self, "rms_norm_eps", "rope_theta")
        checks.not_negative(self, "initializer_range")
        if not isinstance(self.tie_word_embeddings, bool):
            tied = checks.shortened(self.tie_word_embeddings)
            raise ValueError(f"tie_word_embeddings={tied}: allowed are true and false")
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(self, name)
            several = isinstance(value, tuple) and name == "eos_token_id"
            for one in value if several else () if value is None else (value,):
                checks.integers(types.SimpleNamespace(**{name: one}), **{name: 0})
        checks.choices(self, dtype=DTYPES, param_dtype=DTYPES, remat=REMAT, attention=ATTENTION)
        checks.choices(self, cache_dtype=CACHE_DTYPES)
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim}: allowed are even numbers")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads}: allowed are multiples of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )

    @property
    def architecture(self) -> Architecture:
        """What its `model_type` says."""
        return ARCHITECTURES[self.model_type]

    @property
    def kv_dtype(self) -> str:
        """Dtype of the KV cache."""
        return self.cache_dtype or self.dtype

    @property
    def residual_dtype(self) -> str:
        """Dtype of the residual stream; float16 lacks the range and precision for it."""
        return "float32" if self.dtype == "float16" else self.dtype

    @classmethod
    def from_hf(cls, mapping: Mapping[str, Any], **compute: Any) -> Self:
        """Read the contents of a Hugging Face `config.json`.

        Args:
            mapping: the parsed file. `rope_theta` is read at the top level (files on the hub)
                and inside `rope_parameters` (files written by transformers 5). `rope_scaling`
                comes before `rope_parameters`, as in transformers. Where they are left out,
                `head_dim` and `rope_theta` have the defaults of their model type there, and other
                fields those of Qwen3.
            compute: compute options.

        Raises:
            ValueError: a field is missing, invalid, unknown, or asks for what is not implemented.
        """
        parts = _rope_parts(mapping)
        rope = {key: value for part in parts.values() for key, value in part.items()}
        _refuse_unsupported(mapping, parts, rope)
        architecture = ARCHITECTURES[mapping["model_type"]]
        values = {
            field.name: mapping[field.name]
            for field in dataclasses.fields(cls)
            if field.name not in _COMPUTE and mapping.get(field.name) is not None
        }
        heads = values.get("num_attention_heads")
        if mapping["model_type"] == "llama":
            values.setdefault("num_key_value_heads", heads)
        if architecture.head_dim is not None:
            values.setdefault("head_dim", architecture.head_dim)
        elif "hidden_size" in values and heads is not None:
            sizes = types.SimpleNamespace(**values)
            checks.integers(sizes, hidden_size=1, num_attention_heads=1)
            values.setdefault("head_dim", values["hidden_size"] // heads)
        theta = rope.get("rope_theta", mapping.get("rope_theta"))
        values["rope_theta"] = architecture.rope_theta if theta is None else theta
        if missing := [name for name in _REQUIRED if values.get(name) is None]:
            raise ValueError(f"the configuration lacks {', '.join(missing)}")
        if unknown := set(compute) - set(_COMPUTE):
            raise ValueError(f"compute option {sorted(unknown)}; allowed: {sorted(_COMPUTE)}")
        checks.positive(types.SimpleNamespace(**values), "rope_theta")
        values["rope_theta"] = float(values["rope_theta"])
        scaled = _rope_type(rope) != "default"
        values["rope_scaling"] = RopeScaling.from_hf(rope) if scaled else None
        if isinstance(values.get("eos_token_id"), list):
            values["eos_token_id"] = tuple(values["eos_token_id"])
        return cls(**values, **compute)

    @classmethod
    def from_folder(cls, folder: str | Path, **compute: Any) -> Self:
        """Read `folder/config.json`; see `from_hf`.

        Raises:
            ValueError: there is no such file, or `from_hf` refuses what it says.
        """
        path = Path(folder) / "config.json"
        if not path.is_file():
            raise ValueError(f"model folder {str(folder)!r} has no config.json; it must hold one")
        contents = checks.json_object(path)
        if "model" in contents and "model_type" not in contents:
            raise ValueError(
                f"{folder}: this is a run; its models are in rounds/R/weights if "
                "checkpoint.of_rounds kept them, and python -m experiments.export writes others"
            )
        try:
            return cls.from_hf(contents, **compute)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """The contents of a `config.json` that transformers 4 and 5 both read."""
        values = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
            if name not in (*_COMPUTE, "rope_scaling")
        }
        scaling = self.rope_scaling.to_hf() if self.rope_scaling else {"rope_type": "default"}
        of_type: dict[str, Any] = {"attention_bias": False}
        if self.model_type == "llama":
            of_type["mlp_bias"] = False
        elif self.model_type == "mistral":
            of_type = {"sliding_window": None}
        else:
            of_type["use_sliding_window"] = False
        if self.rope_scaling:
            values["rope_scaling"] = scaling  # Where transformers 4 looks for it.
        return values | {
            "architectures": [self.architecture.name],
            "rope_parameters": scaling | {"rope_theta": self.rope_theta},
            "hidden_act": "silu",
            "attention_dropout": 0.0,
            "use_cache": True,
            "torch_dtype": self.param_dtype,
            **of_type,
        }


def _rope_type(rope: Mapping[str, Any]) -> Any:
    return rope.get("rope_type", rope.get("type", "default"))


def _rope_parts(mapping: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What describes the rotation, each with a `rope_type`; the last wins."""
    parts = {}
    for name in ("rope_parameters", "rope_scaling"):
        part = mapping.get(name)
        if not isinstance(part, Mapping | None):
            raise ValueError(f"{name}={checks.shortened(part)}: allowed are null and an object")
        if part:
            parts[name] = {**part, "rope_type": _rope_type(part)}
    return parts


# Fields that ask for arithmetic, and the values that are implemented.
_ARITHMETIC: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("quantization_config", (None,), "none: weights of 8 or 4 bits are not read from safetensors"),
    ("attention_bias", (None, False), "false"),
    ("mlp_bias", (None, False), "false"),
    ("use_sliding_window", (None, False), "false"),
    ("hidden_act", (None, "silu"), "'silu'"),
    ("num_experts", (None, 0), "none (dense)"),
    ("rope_interleaved", (None, False), "false"),
    ("use_mrope", (None, False), "false"),
    ("partial_rotary_factor", (None, 1, 1.0), "1"),
    ("pretraining_tp", (None, 1), "1"),
    ("is_encoder_decoder", (None, False), "false"),
    ("scale_embedding", (None, False), "false"),
)
# Fields that change nothing here: names, versions, training of others, generation.
_WITHOUT_EFFECT = frozenset(
    """
    _attn_implementation_autoset _name_or_path add_cross_attention architectures
    attention_dropout auto_map bad_words_ids bos_token chunk_size_feed_forward
    cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping encoder_no_repeat_ngram_size eos_token exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id id2label initializer_range
    is_decoder is_llama_config label2id length_penalty max_length max_window_layers min_length
    model_max_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences
    output_attentions output_hidden_states output_scores pad_token prefix problem_type
    pruned_heads remove_invalid_values repetition_penalty resid_pdrop return_dict
    return_dict_in_generate rope_parameters rope_scaling rope_theta sep_token_id suppress_tokens
    task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k
    top_p torch_dtype torchscript transformers.js_config transformers_version typical_p
    unk_token unsloth_fixed unsloth_version use_bfloat16 use_cache
    """.split()  # noqa: SIM905
)


# What an unscaled rotation may state beside its kind and theta, and the only value of each.
_ROPE_NEUTRAL = {"factor": 1, "partial_rotary_factor": 1}


def _refuse_unsupported(
    mapping: Mapping[str, Any],
    rope_parts: Mapping[str, Mapping[str, Any]],
    rope: Mapping[str, Any],
) -> None:
    """Raise `ValueError` for a field that asks for arithmetic that is not implemented."""
    kind = mapping.get("model_type")
    layer_types = mapping.get("layer_types") or []
    if isinstance(layer_types, list) and set(map(str, layer_types)) == {"full_attention"}:
        layer_types = []
    window = mapping.get("sliding_window")
    if kind == "mistral":
        # transformers' default is a window of 4,096 tokens.
        window = mapping.get("sliding_window", 4096)
    elif mapping.get("use_sliding_window") in (None, False):
        window = None  # Qwen's files name a width that is not used.
    fields: list[tuple[str, Any, tuple[Any, ...], str]] = [
        ("model_type", kind, tuple(ARCHITECTURES), f"{', '.join(ARCHITECTURES)} (dense)"),
        ("layer_types", layer_types, ([],), "'full_attention' only"),
        ("sliding_window", window, (None,), "null"),
        (
            "rope_scaling.rope_type",
            _rope_type(rope),
            ("default", "llama3", "yarn"),
            "'default', 'llama3', 'yarn'",
        ),
        *((name, mapping.get(name), allowed, text) for name, allowed, text in _ARITHMETIC),
    ]
    unscaled = [
        (
            f"{name}.{key}"[:80],
            value,
            (None, _ROPE_NEUTRAL.get(key)),
            "none where rope_type is 'default'",
        )
        for name, part in rope_parts.items()
        if part["rope_type"] == "default"
        for key, value in part.items()
        if key not in ("rope_type", "type", "rope_theta")
    ]
    fields += unscaled
    found = [
        f"{name}={checks.shortened(value)}: supported is {text}"
        for name, value, allowed, text in fields
        if value not in allowed
    ]
    known = {field.name for field in dataclasses.fields(DecoderConfig)} - set(_COMPUTE)
    known |= {"layer_types", "sliding_window", *(name for name, *_ in _ARITHMETIC)}
    unknown = sorted(set(map(str, mapping)) - known - _WITHOUT_EFFECT)
    if not found and unknown:
        found.append(
            f"{', '.join(unknown[:10])}: not known here, and what is not known may change the "
            "arithmetic; take it out of config.json if it does not"
        )
    if found:
        raise ValueError("; ".join(found[:10]))


def published(name: str, **compute: object) -> DecoderConfig:
    """The configuration of a published model.

    Args:
        name: one of `NAMES`, with or without "Qwen/" before it.
        compute: compute options, as of `DecoderConfig.from_hf`.

    Raises:
        ValueError: there is no such model, or an option is invalid.
    """
    if name.removeprefix("Qwen/") not in _PUBLISHED:
        raise ValueError(f"name is {name!r}; published are {NAMES}")
    return DecoderConfig.from_hf(_PUBLISHED[name.removeprefix("Qwen/")], **compute)
