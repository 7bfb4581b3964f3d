"""Hugging Face safetensors in and out, by one table that is read in both directions.

Reading holds one tensor of the checkpoint on the host at a time: a process reads the part that it
needs and casts, transposes and stores it on its devices. Writing holds one file.
"""

import functools
import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from learner import checks
from learner.decoder.config import DTYPES, DecoderConfig
from learner.decoder.model import Params, abstract_params, param_shardings
from learner.devices import sharding

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GENERATION_FILE = "generation_config.json"
_FILE_DTYPES = ("F32", "F16", "BF16")
# What names of tensors say of checkpoints that cannot be read, in the order of these.
_OTHER_CHECKPOINTS = {
    r"\.(qweight|qzeros)$": "of 4 or 8 bits (GPTQ or AWQ); needed are those of the original model",
    r"\.weight_scale(_inv)?$": "of 8 bits (FP8); needed are those of the original model",
    r"lora_[AB]\.": "a PEFT adapter; merge it into its model first (merge_and_unload)",
    r"^_orig_mod\.": "of a compiled torch module, whose names begin with _orig_mod.; save the "
    "module that was compiled",
    r"^layers\.": "of a model without its output layer, such as an embedding model; their names "
    "lack model.",
}
# Of old checkpoints of Llama; the numbers follow from `config.json`.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
_MOST_SHOWN = 10
_LM_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"

# For every layer: the tensor's name in a checkpoint, and the path of the parameter. Norms of heads
# and biases are there if the architecture has them.
_BLOCK = {
    "input_layernorm.weight": ("input_norm", "scale"),
    "self_attn.q_proj.weight": ("attention", "q_proj", "kernel"),
    "self_attn.k_proj.weight": ("attention", "k_proj", "kernel"),
    "self_attn.v_proj.weight": ("attention", "v_proj", "kernel"),
    "self_attn.o_proj.weight": ("attention", "o_proj", "kernel"),
    "self_attn.q_norm.weight": ("attention", "q_norm", "scale"),
    "self_attn.k_norm.weight": ("attention", "k_norm", "scale"),
    "post_attention_layernorm.weight": ("post_attention_norm", "scale"),
    "self_attn.q_proj.bias": ("attention", "q_proj", "bias"),
    "self_attn.k_proj.bias": ("attention", "k_proj", "bias"),
    "self_attn.v_proj.bias": ("attention", "v_proj", "bias"),
    "mlp.gate_proj.weight": ("mlp", "gate_proj", "kernel"),
    "mlp.up_proj.weight": ("mlp", "up_proj", "kernel"),
    "mlp.down_proj.weight": ("mlp", "down_proj", "kernel"),
}


@dataclass(frozen=True)
class Tensor:
    """One tensor of a checkpoint: a parameter of ours, or one layer of a stack of them.

    Attributes:
        path: of the parameter.
        layer: the index along its first axis, or None if it is not stacked.
        transpose: torch's Linear keeps [out, in], we keep [in, out].
        shape: in the checkpoint.
    """

    path: tuple[str, ...]
    layer: int | None
    transpose: bool
    shape: tuple[int, ...]


def tensors_of(config: DecoderConfig) -> dict[str, Tensor]:
    """Name -> tensor of a checkpoint, layer after layer; tied embeddings have no output matrix."""
    places: dict[str, tuple[tuple[str, ...], int | None]] = {_EMBEDDING: (("embedding",), None)}
    abstract = flatten_dict(abstract_params(config))
    for index in range(config.num_hidden_layers):
        for name, path in _BLOCK.items():
            if ("layers", *path) in abstract:
                places[f"model.layers.{index}.{name}"] = (("layers", *path), index)
    places["model.norm.weight"] = (("final_norm", "scale"), None)
    if not config.tie_word_embeddings:
        places[_LM_HEAD] = (("unembedding",), None)

    tensors = {}
    for name, (path, layer) in places.items():
        transpose = path[-1] in ("kernel", "unembedding")
        shape = abstract[path].shape[0 if layer is None else 1 :]
        tensors[name] = Tensor(path, layer, transpose, shape[::-1] if transpose else shape)
    return tensors


# Reading ---------------------------------------------------------------------


def load(folder: str | Path, config: DecoderConfig, mesh: Mesh | None = None) -> Params:
    """Read a checkpoint straight onto the mesh, tensor by tensor.

    This process reads only the slices of each tensor that its devices hold, each once. So besides
    the parameters it takes memory for about one tensor of the checkpoint on the host, and for one
    slice of it on every device.

    Args:
        folder: has `model.safetensors`, or `model.safetensors.index.json` and its files.
        config: of the model; values are cast to `config.param_dtype`.
        mesh: where `param_shardings` places the parameters; None means the first device.

    Raises:
        ValueError: there are no weights, a file is cut off or not of the format, or a tensor is
            missing, unknown, of another shape or of no known dtype, or an output matrix differs
            from the embedding it is tied to. All tensors concerned are named. Or a value is NaN
            or infinite.
    """
    shardings = flatten_dict(param_shardings(config, mesh or sharding.make_mesh()))
    abstract = flatten_dict(abstract_params(config))
    params: dict[tuple[str, ...], jax.Array] = {}
    with ExitStack() as stack:
        files = _open(Path(folder), stack)
        _check(files, config, str(folder))
        for name, tensor in tensors_of(config).items():
            leaf, where = abstract[tensor.path], shardings[tensor.path]
            convert, insert = _programs(tensor.transpose, leaf.dtype, where)
            value = _read(files[name], _file_sharding(tensor, where))
            if tensor.layer is None:
                params[tensor.path] = convert(value)
                continue
            if not tensor.layer:
                empty = jax.jit(jnp.zeros, static_argnums=(0, 1), out_shardings=where)
                params[tensor.path] = empty(leaf.shape, leaf.dtype)
            stacked = insert(params[tensor.path], value, jnp.int32(tensor.layer))
            # Waiting keeps tensors from piling up on the host, ahead of slow devices.
            params[tensor.path] = jax.block_until_ready(stacked)
    if broken := [".".join(path) for path, value in params.items() if not _is_finite(value)]:
        raise ValueError(f"weights in {folder} hold NaN or infinity: {', '.join(broken)}")
    return unflatten_dict(params)


@jax.jit
def _is_finite(value: jax.Array) -> jax.Array:
    return jnp.isfinite(value).all()


def _file_sharding(tensor: Tensor, where: NamedSharding) -> NamedSharding:
    """How a tensor is split in the file's order of axes, given where its parameter lives."""
    stacked = tensor.layer is not None
    axes = tuple(where.spec) + (None,) * (len(tensor.shape) + stacked - len(where.spec))
    axes = axes[1:] if stacked else axes
    return NamedSharding(where.mesh, P(*(axes[::-1] if tensor.transpose else axes)))


@functools.cache
def _programs(transpose: bool, dtype: Any, where: NamedSharding) -> tuple[Any, Any]:
    """Compiled once for all loads: convert a tensor, and insert one into a stack of layers."""

    def convert(tensor: jax.Array) -> jax.Array:
        return (tensor.T if transpose else tensor).astype(dtype)

    def insert(whole: jax.Array, tensor: jax.Array, layer: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(whole, convert(tensor), layer, 0)

    compiled = functools.partial(jax.jit, out_shardings=where)
    return compiled(convert), compiled(insert, donate_argnums=0)


def _open(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Every tensor by name; indexing one with slices reads it."""
    tensors: dict[str, Any] = {}
    for file_name in _weight_files(folder):
        path = folder / file_name
        try:
            file = stack.enter_context(safetensors.safe_open(path, "numpy"))
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is cut off or no safetensors file: {error}") from error
        for name in file.keys():  # noqa: SIM118
            if _DERIVED.fullmatch(name):
                continue
            if name in tensors:
                raise ValueError(f"{name} is in {file_name} and in another file of {folder}")
            tensors[name] = file.get_slice(name)
    return tensors


def _read(tensor: Any, where: NamedSharding) -> jax.Array:
    """A tensor as stored in its file, every slice read once and placed."""
    parts: dict[Any, np.ndarray] = {}

    def part(index: Any) -> np.ndarray:
        key = tuple((s.start, s.stop) for s in index)
        if key not in parts:
            parts[key] = tensor[index]
        return parts[key]

    return jax.make_array_from_callback(tuple(tensor.get_shape()), where, part)


def _weight_files(folder: Path) -> list[str]:
    """The single file if there is one, as in transformers: an index beside it is left over."""
    if (folder / SINGLE_FILE).is_file():
        return [SINGLE_FILE]
    index = folder / INDEX_FILE
    if not index.is_file():
        raise ValueError(f"folder {str(folder)!r} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    files = checks.json_object(index).get("weight_map")
    if not (isinstance(files, dict) and all(isinstance(name, str) for name in files.values())):
        raise ValueError(f"{index} has no weight_map from names of tensors to names of files")
    names = sorted(set(files.values()))
    for name in names:
        if Path(name).name != name:
            raise ValueError(f"{INDEX_FILE} names {name!r}; allowed are files of its own folder")
        if not (folder / name).is_file():
            raise ValueError(f"{INDEX_FILE} names {name}, which is not in {str(folder)!r}")
    return names


def _check(tensors: Mapping[str, Any], config: DecoderConfig, folder: str) -> None:
    """Compare tensors with what `config` asks for; report all differences at once."""
    wanted = {name: tensor.shape for name, tensor in tensors_of(config).items()}
    found = {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
    problems = [
        f"{name} has dtype {tensor.get_dtype()}, supported are {', '.join(_FILE_DTYPES)}"
        for name, tensor in tensors.items()
        if tensor.get_dtype() not in _FILE_DTYPES
    ]
    # Some writers store the matrix of a tied model twice.
    twice = config.tie_word_embeddings and found.pop(_LM_HEAD, ()) != ()
    if twice and _EMBEDDING in found and not _equal(tensors[_LM_HEAD], tensors[_EMBEDDING]):
        problems.append(
            f"{_LM_HEAD} differs from {_EMBEDDING}; with tie_word_embeddings true it must be "
            "equal or absent"
        )
    problems += [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} is unknown" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {found[name]}, expected {shape}"
        for name, shape in wanted.items()
        if found.get(name, shape) != shape
    ]
    if not problems:
        return
    for pattern, what in _OTHER_CHECKPOINTS.items():
        if any(re.search(pattern, name) for name in found):
            raise ValueError(f"weights in {folder} are {what}")
    shown, more = "; ".join(problems[:_MOST_SHOWN]), len(problems) - _MOST_SHOWN
    shown += f"; and {more} more" if more > 0 else ""
    raise ValueError(f"weights in {folder} do not fit the configuration: {shown}")


def _equal(a: Any, b: Any) -> bool:
    """Whether two tensors are equal, read some rows at a time."""
    if a.get_shape() != b.get_shape():
        return False
    count, rows = a.get_shape()[0], 8192
    parts = [slice(start, min(start + rows, count)) for start in range(0, count, rows)]
    return all(np.array_equal(a[part], b[part]) for part in parts)


# Writing ---------------------------------------------------------------------


def save(
    folder: str | Path,
    params: Params,
    config: DecoderConfig,
    tokenizer: Any = None,
    *,
    dtype: str | None = None,
    generation_config: Mapping[str, Any] | None = None,
    max_file_bytes: int = 5 * 10**9,
) -> None:
    """Write a checkpoint that transformers loads and inference servers serve.

    Weights (tied embeddings once), `config.json`, `generation_config.json`, tokenizer files. The
    files get their names when all are written, so an interrupted call leaves the weights that were
    there before, or none.

    Args:
        folder: made if it does not exist; weights in it are replaced.
        params: with several processes, all call this, and the first one writes.
        tokenizer: a Hugging Face tokenizer to save too, or None.
        dtype: "float32", "bfloat16" or "float16" of the file; None is that of `params`.
        generation_config: the contents of `generation_config.json`, such as sampling options
            (`read_generation_config` of the model this one came from); None states the special
            ids of `config` and nothing else.
        max_file_bytes: weights beyond this go to several files with an index; one of them is on
            the host at a time.

    Raises:
        ValueError: the parameters are not those of `config` (merge adapters first, by
            `learner.training.lora.merge`), or `dtype` is unknown.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    folder = Path(folder)
    found, expected = (
        {name: jnp.shape(x) for name, x in flatten_dict(tree, sep=".").items()}
        for tree in (params, abstract_params(config))
    )
    for name in sorted(found.keys() | expected.keys()):
        one, other = found.get(name, "nothing"), expected.get(name, "nothing")
        if one != other:
            raise ValueError(f"params.{name} is {one}; by the configuration it is {other}")
    dtype = dtype or str(params["embedding"].dtype)
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r}: allowed are {DTYPES}")

    itemsize = jnp.dtype(dtype).itemsize
    tensors = tensors_of(config)
    split = split_state_dict_into_shards_factory(
        {name: math.prod(tensor.shape) * itemsize for name, tensor in tensors.items()},
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_file_bytes,
    )
    writes = jax.process_index() == 0
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob("model*.safetensors.part"):
            unfinished.unlink()
    values = flatten_dict(params)
    for file, names in split.filename_to_tensors.items():
        contents = {}
        for name in names:  # All processes take part, as `_extract` may gather.
            tensor, value = tensors[name], values[tensors[name].path]
            # If other processes hold the rest of it, all get a whole copy.
            split_up = not value.is_fully_addressable
            whole = sharding.replicated(value.sharding.mesh) if split_up else None
            layer = None if tensor.layer is None else jnp.int32(tensor.layer)
            array = _extract(value, layer, tensor.transpose, dtype, whole)
            if writes:
                contents[name] = np.ascontiguousarray(array)
        if writes:
            safetensors.numpy.save_file(contents, folder / f"{file}.part", {"format": "pt"})
    if not writes:
        return
    for old in folder.glob("model*.safetensors*"):
        if old.suffix != ".part":
            old.unlink()
    for file in split.filename_to_tensors:
        os.replace(folder / f"{file}.part", folder / file)
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        _write_json(folder / INDEX_FILE, index)
    fields = config.to_hf() | {"torch_dtype": dtype}
    _write_json(folder / "config.json", fields)
    if generation_config is None:
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        generation_config = {name: fields[name] for name in ids if fields[name] is not None}
    _write_json(folder / GENERATION_FILE, dict(generation_config))
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))


def read_generation_config(folder: str | Path) -> dict[str, Any] | None:
    """The contents of a model's `generation_config.json`; None without one.

    Raises:
        ValueError: it is not a JSON object.
    """
    path = Path(folder) / GENERATION_FILE
    return checks.json_object(path) if path.is_file() else None


# What changes no sampled token here, or is an option of the caller or read with the tokenizer.
_NOT_OF_SAMPLING = frozenset(
    """
    _commit_hash _from_model_config assistant_confidence_threshold assistant_lookbehind
    bos_token_id cache_config cache_implementation compile_config disable_compile do_sample
    eos_token_id low_memory max_cache_len max_matching_ngram_size num_assistant_tokens
    num_assistant_tokens_schedule output_attentions output_hidden_states output_logits output_scores
    pad_token_id prefill_chunk_size prompt_lookup_num_tokens return_dict_in_generate
    target_lookbehind temperature top_k top_p transformers_version use_cache
    """.split()  # noqa: SIM905
)
# Values beside null, false and empty ones that ask for nothing.
_NEUTRAL = dict.fromkeys(
    """
    diversity_penalty encoder_no_repeat_ngram_size epsilon_cutoff eta_cutoff
    frequency_penalty min_length min_new_tokens min_p no_repeat_ngram_size penalty_alpha
    presence_penalty
    """.split(),  # noqa: SIM905
    0,
) | dict.fromkeys(
    """
    encoder_repetition_penalty guidance_scale length_penalty num_beam_groups num_beams
    num_return_sequences repetition_penalty typical_p
    """.split(),  # noqa: SIM905
    1,
)


def unused_generation_config(contents: Mapping[str, Any] | None, *used: str) -> str | None:
    """A line that names the fields of `generation_config.json` that ask for what is not done.

    Args:
        contents: as of `read_generation_config`.
        used: fields that the caller uses beside `do_sample`, `temperature`, `top_k` and `top_p`.

    Returns:
        None where there is no such field.
    """
    unused = [
        f"{name}={checks.shortened(value)}"
        for name, value in (contents or {}).items()
        if name not in _NOT_OF_SAMPLING.union(used)
        and value is not False
        and value not in (None, "", [], {}, _NEUTRAL.get(name))
    ]
    return (
        f"of its {GENERATION_FILE}, not used in sampling: {', '.join(unused)}" if unused else None
    )


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _extract(
    value: jax.Array,
    layer: jax.Array | None,
    transpose: bool,
    dtype: str,
    where: NamedSharding | None,
) -> jax.Array:
    """A tensor of a checkpoint from its parameter: one program for all layers of a stack."""
    part = value if layer is None else value[layer]
    part = (part.T if transpose else part).astype(dtype)
    return part if where is None else jax.lax.with_sharding_constraint(part, where)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
