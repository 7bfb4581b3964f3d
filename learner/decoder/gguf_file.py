"""GGUF files, the format of llama.cpp, as folders of Hugging Face checkpoints.

A file holds everything: sizes, weights, often of 4 or 8 bits, tokenizer and chat template. Weights
are dequantized, to float32 if they were quantized: those of 16 bits keep their dtype.
(transformers reads GGUF too, but knows no pre-tokenizer but Llama's and Qwen's, so that numbers are
split otherwise than in training, and it needs torch.)
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from learner import checks
from learner.decoder import rotary, weights
from learner.decoder.config import DecoderConfig, RopeScaling

_FILE_BYTES = 2 * 10**9

# Names of llama.cpp's tensors; those of a block follow "blk.N.".
_WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# The factors by which Llama 3.1 and later divide rotary frequencies, as a tensor.
_FREQUENCIES = "rope_freqs.weight"

# How text is cut before byte-pair encoding, by `tokenizer.ggml.pre` (llama.cpp's names): a pattern,
# or None for that of GPT-2.
_DIGITS = {"qwen2": r"\p{N}", "llama-bpe": r"\p{N}{1,3}"}
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRE_TOKENIZERS: dict[str, str | None] = {
    **{name: _WORDS.format(digits=digits) for name, digits in _DIGITS.items()},
    "smollm": None,
    "gpt-2": None,
    "default": None,
}
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


def convert(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file to a folder that `weights.load` and `load_tokenizer` read.

    Args:
        path: the file.
        folder: made when all is written, so an interrupted call leaves none.

    Raises:
        ValueError: the package gguf is missing, the file is damaged or lacks a tensor, or it holds
            an architecture, a quantization or a tokenizer that is not supported, by name.
    """
    try:
        import gguf
    except ModuleNotFoundError as error:
        text = "a GGUF file needs gguf; in a clone of the project: pip install -e '.[gguf]'"
        raise ValueError(text) from error

    class Reader(gguf.GGUFReader):
        """Stops at the end of the file, where the original reads nothing as often as it is told."""

        def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **named: Any) -> Any:
            found = super()._get(offset, dtype, count, *order, **named)
            if len(found) < count:
                raise ValueError(f"it ends at a count of {count}")
            return found

    try:
        file = Reader(path)
        fields = {name: field.contents() for name, field in file.fields.items()}
    except Exception as error:  # Whatever its parser meets in a damaged file.
        raise ValueError(f"{path} is cut off or no GGUF file: {error}") from error
    tensors = {tensor.name: tensor for tensor in file.tensors}
    try:
        config = _config(fields, tensors)
        tokenizer = _tokenizer(fields)
        named = {_name(name): name for name in tensors if name != _FREQUENCIES}
    except KeyError as error:
        raise ValueError(f"{path} lacks {error.args[0]}") from error
    except Exception as error:  # Whatever numbers and types of fields lead to.
        raise ValueError(f"{path}: {error}") from error
    if lacking := sorted(weights.tensors_of(config).keys() - named.keys()):
        raise ValueError(f"{path} lacks {len(lacking)} tensors: {checks.shortened(lacking)}")

    folder.parent.mkdir(parents=True, exist_ok=True)
    # Within, as a temporary folder is for its owner alone.
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as temporary:
        unfinished = Path(temporary, folder.name)
        unfinished.mkdir()
        _write_weights(unfinished, _arrays(named, tensors, config, path))
        _write_json(unfinished / "config.json", config.to_hf())
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        known = {name: getattr(config, name) for name in ids if getattr(config, name) is not None}
        _write_json(unfinished / "generation_config.json", known)
        tokenizer.save_pretrained(str(unfinished))
        unfinished.rename(folder)


def _config(fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> DecoderConfig:
    kind = fields["general.architecture"]
    if kind not in ("llama", "qwen2", "qwen3"):
        raise ValueError(
            f"general.architecture is {kind!r}: supported are llama (Mistral's too), qwen2, qwen3"
        )
    scaling = fields.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        raise ValueError(f"{kind}.rope.scaling.type is {scaling!r}: supported is none")

    def field(name: str) -> Any:
        return fields[f"{kind}.{name}"]

    width, heads = field("embedding_length"), field("attention.head_count")
    embedding = tensors["token_embd.weight"]
    values = {
        "model_type": kind,
        "vocab_size": int(embedding.shape[-1]),
        "hidden_size": width,
        "intermediate_size": field("feed_forward_length"),
        "num_hidden_layers": field("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.get(f"{kind}.attention.head_count_kv", heads),
        "head_dim": fields.get(f"{kind}.attention.key_length", width // heads),
        "rms_norm_eps": float(field("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(fields.get(f"{kind}.rope.freq_base", 10_000.0)),
        "max_position_embeddings": field("context_length"),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }
    config = DecoderConfig.from_hf(values)
    if _FREQUENCIES not in tensors:
        return config
    return DecoderConfig.from_hf({**values, "rope_scaling": _llama3(config, tensors).to_hf()})


def _llama3(config: DecoderConfig, tensors: Mapping[str, Any]) -> RopeScaling:
    """The scaling whose factors a file holds; llama.cpp keeps only these."""
    factors = np.asarray(tensors[_FREQUENCIES].data, np.float32).reshape(-1)
    scaling = RopeScaling("llama3", float(factors.max()), 8192)
    frequencies = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    if not np.allclose(frequencies / rotary.scaled_frequencies(config, scaling)[0], factors, 1e-3):
        raise ValueError(f"{_FREQUENCIES} are not the factors of Llama 3.1 to 3.3")
    return scaling


def _name(name: str) -> str:
    """The name of a tensor in a Hugging Face checkpoint."""
    if name in _WHOLE:
        return _WHOLE[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _BLOCK:
        raise ValueError(f"tensor {name!r} is not known")
    return f"model.layers.{match[1]}.{_BLOCK[match[2]]}.{match[3]}"


def _arrays(
    named: Mapping[str, str], tensors: Mapping[str, Any], config: DecoderConfig, path: Path
) -> Iterator[tuple[str, np.ndarray]]:
    import gguf

    for name, theirs in named.items():
        tensor = tensors[theirs]
        if tensor.tensor_type in (
            gguf.GGMLQuantizationType.F32,
            gguf.GGMLQuantizationType.F16,
        ):
            array = np.asarray(tensor.data)
        elif tensor.tensor_type == gguf.GGMLQuantizationType.BF16:
            array = np.asarray(tensor.data).view(jnp.dtype("bfloat16"))
        else:
            try:
                array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            except NotImplementedError as error:
                raise ValueError(
                    f"{path}: {theirs} is quantized as {tensor.tensor_type.name}, which the "
                    "package gguf cannot dequantize"
                ) from error
        heads = {
            "q_proj": config.num_attention_heads,
            "k_proj": config.num_key_value_heads,
        }.get(name.split(".")[-2])
        if config.model_type == "llama" and heads:
            # llama.cpp rotates neighbours, transformers the halves of a head.
            pairs = array.reshape(heads, -1, 2, *array.shape[1:])
            array = pairs.swapaxes(1, 2).reshape(array.shape)
        yield name, np.ascontiguousarray(array)


def _write_weights(folder: Path, arrays: Iterator[tuple[str, np.ndarray]]) -> None:
    """Files of at most some 2 GB with an index, so that one of them is in memory at a time."""
    import safetensors.numpy

    files: dict[str, str] = {}
    contents: dict[str, np.ndarray] = {}

    def flush() -> None:
        name = f"model-{len(set(files.values())) + 1:05d}.safetensors"
        safetensors.numpy.save_file(contents, folder / name, {"format": "pt"})
        files.update(dict.fromkeys(contents, name))
        contents.clear()

    for name, array in arrays:
        if contents and sum(x.nbytes for x in contents.values()) + array.nbytes > _FILE_BYTES:
            flush()
        contents[name] = array
    flush()
    _write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": files})


def _tokenizer(fields: Mapping[str, Any]) -> Any:
    """The byte-pair tokenizer of a file, with its chat template."""
    kind = fields["tokenizer.ggml.model"]
    if kind != "gpt2":
        raise ValueError(f"tokenizer.ggml.model is {kind!r}: supported is gpt2 (byte-pair)")
    pre = fields.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE_TOKENIZERS:
        raise ValueError(f"tokenizer.ggml.pre is {pre!r}: supported are {list(_PRE_TOKENIZERS)}")
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
    from tokenizers import pre_tokenizers as cut
    from transformers import PreTrainedTokenizerFast

    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    core = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=pre == "llama-bpe"))
    pattern = _PRE_TOKENIZERS[pre]
    if pattern is None:
        steps: list[Any] = [cut.Digits(individual_digits=True)] if pre == "smollm" else []
        steps.append(cut.ByteLevel(add_prefix_space=False))
    else:
        steps = [cut.Split(Regex(pattern), "isolated")]
        steps.append(cut.ByteLevel(add_prefix_space=False, use_regex=False))
    core.pre_tokenizer = cut.Sequence(steps)
    if pre == "qwen2":
        core.normalizer = normalizers.NFC()
    core.decoder = decoders.ByteLevel()
    for text, type_of_text in zip(tokens, types, strict=True):
        if type_of_text in (_CONTROL, _USER_DEFINED):
            special = type_of_text == _CONTROL
            added = AddedToken(text, normalized=False, special=special)
            core.add_special_tokens([added]) if special else core.add_tokens([added])

    def token(name: str) -> str | None:
        index = fields.get(f"tokenizer.ggml.{name}_token_id")
        return None if index is None else tokens[index]

    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=token("bos"),
        eos_token=token("eos"),
        pad_token=token("padding"),
        chat_template=fields.get("tokenizer.chat_template"),
    )


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
