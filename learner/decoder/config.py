"""Dense Qwen3 models: the sizes of published ones, and options of how they are computed."""

import dataclasses
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from learner import checks

DTYPES = ("float32", "bfloat16", "float16")

#: What the backward pass keeps of a block; the rest is computed again. See `DecoderConfig.remat`.
REMAT = ("none", "dots", "outputs", "full", "offload")

#: Implementations of self-attention; see `learner.decoder.attention`.
ATTENTION = ("auto", "reference", "cudnn", "splash")

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
)
# What config.json must state; rope_theta has two places there.
_REQUIRED = (*_SIZES, "rope_theta")
_COMPUTE = ("dtype", "param_dtype", "remat", "scan_unroll", "attention")
_POSITIVE = (*_SIZES, "head_dim", "max_position_embeddings", "scan_unroll")

# The published dense models (Qwen3 technical report, arXiv 2505.09388, table 1), by name, as in
# `Qwen/<name>/config.json` on the Hugging Face hub.
_PUBLISHED = checks.json_object(Path(__file__).with_name("published.json"))
NAMES = tuple(_PUBLISHED)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The architecture, field by field as in a Hugging Face `config.json`, and compute options.

    Hashable, so it can be a static argument of `jax.jit`. Invalid values raise `ValueError`. The
    compute options, from `dtype` on, are never read from or written to `config.json`.

    Attributes:
        vocab_size: rows of the embedding; may exceed the number of ids the tokenizer knows.
        hidden_size: width D of the residual stream.
        intermediate_size: width of the SwiGLU hidden layer.
        num_hidden_layers: number of blocks.
        num_attention_heads: query heads; a multiple of `num_key_value_heads`.
        num_key_value_heads: key and value heads, each shared by a group of query heads.
        head_dim: width of one head; independent of `hidden_size`.
        rms_norm_eps: added to the mean square in every RMSNorm.
        rope_theta: base of the rotary frequencies.
        tie_word_embeddings: the output projection is the transposed embedding.
        max_position_embeddings: the longest supported sequence, in tokens.
        initializer_range: standard deviation of fresh weights.
        bos_token_id, eos_token_id, pad_token_id: as the file states them.
        dtype: "float32", "bfloat16" or, for GPUs without it, "float16", of activations and matrix
            products. Norms, softmax and log-probabilities are float32 always.
        param_dtype: of the stored parameters; one of the same.
        remat: what is kept of every block for the backward pass, from the most memory to the
            least: "none" all of it (nothing is computed twice); "dots" the outputs of the seven
            projections; "outputs" those of attention and feed-forward layer; "full" only its
            input; "offload" its input too, but in the memory of the host.
        scan_unroll: blocks per iteration of the scan over layers. `num_hidden_layers` unrolls
            it wholly, which is faster on CPUs and slower to compile.
        attention: "auto" chooses by platform; the others force one (`learner.decoder.attention`).
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 128
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1_000_000.0
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 32_768
    initializer_range: float = 0.02
    bos_token_id: int | None = None
    eos_token_id: int | tuple[int, ...] | None = None
    pad_token_id: int | None = None

    dtype: str = "float32"
    param_dtype: str = "float32"
    remat: str = "none"
    scan_unroll: int = 1
    attention: str = "auto"

    def __post_init__(self) -> None:
        checks.integers(self, **dict.fromkeys(_POSITIVE, 1))
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
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim}: allowed are even numbers")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads}: allowed are multiples of "
                f"num_key_value_heads={self.num_key_value_heads}"
            )

    @property
    def residual_dtype(self) -> str:
        """Dtype of the residual stream; float16 lacks the range and precision for it."""
        return "float32" if self.dtype == "float16" else self.dtype

    @classmethod
    def from_hf(cls, mapping: Mapping[str, Any], **compute: Any) -> Self:
        """Read the contents of a Hugging Face `config.json`.

        Args:
            mapping: the parsed file. `rope_theta` is read at the top level (files on the hub)
                and inside `rope_parameters` (files written by transformers 5). Other fields that
                are left out have the defaults of transformers' own `Qwen3Config`.
            compute: compute options.

        Raises:
            ValueError: a field is missing, invalid, or asks for what is not implemented.
        """
        rope = mapping.get("rope_parameters") or mapping.get("rope_scaling") or {}
        if not isinstance(rope, Mapping):
            raise ValueError(
                f"rope_scaling={checks.shortened(rope)}: allowed are null and an object"
            )
        _refuse_unsupported(mapping, rope)
        mapping = {**mapping, "rope_theta": rope.get("rope_theta", mapping.get("rope_theta"))}
        if missing := [name for name in _REQUIRED if mapping.get(name) is None]:
            raise ValueError(f"the configuration lacks {', '.join(missing)}")
        if unknown := set(compute) - set(_COMPUTE):
            raise ValueError(f"compute option {sorted(unknown)}; allowed: {sorted(_COMPUTE)}")
        values = {
            field.name: mapping[field.name]
            for field in dataclasses.fields(cls)
            if field.name not in _COMPUTE and mapping.get(field.name) is not None
        }
        checks.positive(types.SimpleNamespace(**values), "rope_theta")
        values["rope_theta"] = float(values["rope_theta"])
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
        try:
            return cls.from_hf(contents, **compute)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def to_hf(self) -> dict[str, Any]:
        """The contents of a `config.json` that transformers 4 and 5 both read."""
        values = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in dataclasses.asdict(self).items()
            if name not in _COMPUTE
        }
        return values | {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "use_sliding_window": False,
            "use_cache": True,
            "torch_dtype": self.param_dtype,
        }


def _refuse_unsupported(mapping: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a field that asks for arithmetic that is not implemented."""
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    layer_types = mapping.get("layer_types") or []
    if isinstance(layer_types, list) and set(map(str, layer_types)) == {"full_attention"}:
        layer_types = []
    fields: tuple[tuple[str, Any, tuple[Any, ...], str], ...] = (
        ("model_type", mapping.get("model_type"), ("qwen3",), "'qwen3' (dense)"),
        ("attention_bias", mapping.get("attention_bias"), (None, False), "false"),
        ("use_sliding_window", mapping.get("use_sliding_window"), (None, False), "false"),
        ("layer_types", layer_types, ([],), "'full_attention' only"),
        ("rope_scaling.rope_type", rope_type, ("default",), "'default'"),
        ("hidden_act", mapping.get("hidden_act", "silu"), ("silu",), "'silu'"),
        ("num_experts", mapping.get("num_experts"), (None, 0), "none (dense)"),
    )
    found = [
        f"{name}={checks.shortened(value)}: supported is {text}"
        for name, value, allowed, text in fields
        if value not in allowed
    ]
    if found:
        raise ValueError("; ".join(found))


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
