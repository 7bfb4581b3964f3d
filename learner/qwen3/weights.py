"""Hugging Face safetensors in and out, by one table that is read in both directions.

Reading has one tensor of the checkpoint on the host at a time: what a process needs of it is read,
goes to its devices, and is cast, transposed and put into its place there. Writing has one file.
"""

import functools
import json
import math
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from learner import checks
from learner.devices import sharding
from learner.qwen3 import placement
from learner.qwen3.config import DTYPES, Qwen3Config
from learner.qwen3.model import Params, abstract_params

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GENERATION_FILE = "generation_config.json"
_FILE_DTYPES = ("F32", "F16", "BF16")
_LM_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"


@dataclass(frozen=True)
class Entry:
    """One parameter. `{}` in `name` is the layer, which is the first axis of ours (`stacked`)."""

    name: str
    path: tuple[str, ...]
    transpose: bool  # torch's Linear keeps [out, in], we keep [in, out]

    @property
    def stacked(self) -> bool:
        return "{}" in self.name


def _block_entry(name: str, *path: str) -> Entry:
    return Entry(f"model.layers.{{}}.{name}.weight", ("layers", *path), path[-1] == "kernel")


_TABLE = (
    Entry(_EMBEDDING, ("embedding",), False),
    _block_entry("input_layernorm", "input_norm", "scale"),
    _block_entry("self_attn.q_proj", "attention", "q_proj", "kernel"),
    _block_entry("self_attn.k_proj", "attention", "k_proj", "kernel"),
    _block_entry("self_attn.v_proj", "attention", "v_proj", "kernel"),
    _block_entry("self_attn.o_proj", "attention", "o_proj", "kernel"),
    _block_entry("self_attn.q_norm", "attention", "q_norm", "scale"),
    _block_entry("self_attn.k_norm", "attention", "k_norm", "scale"),
    _block_entry("post_attention_layernorm", "post_attention_norm", "scale"),
    _block_entry("mlp.gate_proj", "mlp", "gate_proj", "kernel"),
    _block_entry("mlp.up_proj", "mlp", "up_proj", "kernel"),
    _block_entry("mlp.down_proj", "mlp", "down_proj", "kernel"),
    Entry("model.norm.weight", ("final_norm", "scale"), False),
    Entry(_LM_HEAD, ("unembedding",), True),
)


def table(config: Qwen3Config) -> tuple[Entry, ...]:
    """The parameters of this configuration; tied embeddings have no output matrix."""
    return tuple(e for e in _TABLE if not (e.name == _LM_HEAD and config.tie_word_embeddings))


def _get(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


# Reading ---------------------------------------------------------------------


def load(folder: str | Path, config: Qwen3Config, mesh: Mesh | None = None) -> Params:
    """Read a checkpoint straight onto the mesh, tensor by tensor.

    Of every tensor this process reads the slices that its devices hold, each once, and nothing
    else. So beside the parameters themselves it takes the memory of about one tensor of the
    checkpoint on the host, and of one slice of it on every device.

    Args:
        folder: has `model.safetensors`, or `model.safetensors.index.json` and its files.
        config: of the model; values are cast to `config.param_dtype`.
        mesh: the parameters are placed by `placement.param_shardings`; None means one device, the
            first.

    Raises:
        ValueError: there are no weights, a file is cut off or not of the format, or a tensor is
            missing, unknown, of another shape or of no known dtype, or an output matrix differs
            from the embedding it is tied to. All tensors concerned are named.
    """
    shardings = placement.param_shardings(config, mesh or sharding.make_mesh())
    abstract = abstract_params(config)
    params: Params = {}
    with ExitStack() as stack:
        tensors = _open(Path(folder), stack)
        _check(tensors, config, str(folder))
        for entry in table(config):
            value = _load_entry(
                tensors, entry, _get(abstract, entry.path), _get(shardings, entry.path)
            )
            node = params
            for key in entry.path[:-1]:
                node = node.setdefault(key, {})
            node[entry.path[-1]] = value
    return params


def _load_entry(
    tensors: Mapping[str, Any], entry: Entry, leaf: jax.ShapeDtypeStruct, where: NamedSharding
) -> jax.Array:
    """One parameter of ours, from one tensor or from one of every layer."""
    axes = tuple(where.spec) + (None,) * (len(leaf.shape) - len(where.spec))
    axes = axes[1:] if entry.stacked else axes
    source = NamedSharding(where.mesh, P(*(axes[::-1] if entry.transpose else axes)))

    convert, zeros, insert = _programs(entry.transpose, leaf.dtype, where)
    if not entry.stacked:
        return convert(_read(tensors[entry.name], source))
    value = zeros(leaf.shape)
    for layer in range(leaf.shape[0]):
        tensor = _read(tensors[entry.name.format(layer)], source)
        # Waiting keeps tensors from piling up on the host, ahead of slow devices.
        value = jax.block_until_ready(insert(value, tensor, jnp.int32(layer)))
    return value


@functools.cache
def _programs(transpose: bool, dtype: Any, where: NamedSharding) -> tuple[Any, Any, Any]:
    """Compiled once for all loads: a tensor as ours, an empty stack, a tensor into a stack."""

    def convert(tensor: jax.Array) -> jax.Array:
        return (tensor.T if transpose else tensor).astype(dtype)

    def insert(whole: jax.Array, tensor: jax.Array, layer: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(whole, convert(tensor), layer, 0)

    def zeros(shape: tuple[int, ...]) -> jax.Array:
        return jnp.zeros(shape, dtype)

    return (
        jax.jit(convert, out_shardings=where),
        jax.jit(zeros, out_shardings=where, static_argnums=0),
        jax.jit(insert, out_shardings=where, donate_argnums=0),
    )


def _open(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Every tensor by name, to be indexed with slices: that reads."""
    tensors: dict[str, Any] = {}
    for file_name in _weight_files(folder):
        path = folder / file_name
        try:
            file = stack.enter_context(safetensors.safe_open(path, "numpy"))
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is cut off or no safetensors file: {error}") from error
        for name in file.keys():  # noqa: SIM118
            if name in tensors:
                raise ValueError(f"{name} is in {file_name} and in another file of {folder}")
            tensors[name] = file.get_slice(name)
    return tensors


def _read(tensor: Any, where: NamedSharding) -> jax.Array:
    """A tensor as it is in its file, every slice read once and placed."""
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
        if not (folder / name).is_file():
            raise ValueError(f"{INDEX_FILE} names {name}, which is not in {str(folder)!r}")
    return names


def _check(tensors: Mapping[str, Any], config: Qwen3Config, folder: str) -> None:
    """Compare tensors with what `config` asks for; report all differences at once."""
    wanted = _file_shapes(config)
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
    if problems:
        raise ValueError(f"weights in {folder} do not fit the configuration: {'; '.join(problems)}")


def _equal(a: Any, b: Any, rows: int = 8192) -> bool:
    """Whether two tensors are equal, read some rows at a time."""
    if a.get_shape() != b.get_shape():
        return False
    count = a.get_shape()[0]
    parts = [slice(start, min(start + rows, count)) for start in range(0, count, rows)]
    return all(np.array_equal(a[part], b[part]) for part in parts)


def _file_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a checkpoint, layer after layer."""
    shapes = {}
    for name, (entry, _) in _tensors(config).items():
        shape = _get(abstract_params(config), entry.path).shape
        shape = shape[1:] if entry.stacked else shape
        shapes[name] = shape[::-1] if entry.transpose else shape
    return shapes


def _tensors(config: Qwen3Config) -> dict[str, tuple[Entry, int]]:
    """Name of every tensor of a checkpoint -> its entry and layer, in the order of the layers."""
    entries = table(config)
    blocks = [
        (entry.name.format(layer), (entry, layer))
        for layer in range(config.num_hidden_layers)
        for entry in entries
        if entry.stacked
    ]
    first, *last = [(entry.name, (entry, 0)) for entry in entries if not entry.stacked]
    return dict([first, *blocks, *last])


# Writing ---------------------------------------------------------------------


def save(
    folder: str | Path,
    params: Params,
    config: Qwen3Config,
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
        params: in several processes, all call this, and the first one writes.
        tokenizer: a Hugging Face tokenizer to save beside, or None.
        dtype: "float32" or "bfloat16" of the file; None is that of `params`.
        generation_config: the contents of `generation_config.json`, such as sampling options
            (`read_generation_config` of the model this one came from); None states the special
            ids of `config` and nothing else.
        max_file_bytes: weights beyond this go to several files with an index; one of them is on
            the host at a time.

    Raises:
        ValueError: the parameters are not those of `config`, or `dtype` is unknown.
    """
    from huggingface_hub import split_state_dict_into_shards_factory

    folder = Path(folder)
    shapes, expected = (jax.tree.map(jnp.shape, tree) for tree in (params, abstract_params(config)))
    if shapes != expected:
        raise ValueError(f"params have shapes {shapes}; the configuration has {expected}")
    dtype = dtype or str(params["embedding"].dtype)
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; allowed are {DTYPES}")

    itemsize = jnp.dtype(dtype).itemsize
    split = split_state_dict_into_shards_factory(
        {name: math.prod(shape) * itemsize for name, shape in _file_shapes(config).items()},
        get_storage_size=lambda size: size,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_file_bytes,
    )
    writes = jax.process_index() == 0
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob("model*.safetensors.part"):
            unfinished.unlink()
    of_name = _tensors(config)
    for file, names in split.filename_to_tensors.items():
        tensors = {}
        for name in names:  # The gathering takes all processes.
            tensor = _export(params, *of_name[name], dtype)
            if writes:
                tensors[name] = np.ascontiguousarray(tensor)
        if writes:
            safetensors.numpy.save_file(tensors, folder / f"{file}.part", {"format": "pt"})
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
    contents = config.to_hf() | {"torch_dtype": dtype}
    _write_json(folder / "config.json", contents)
    if generation_config is None:
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        generation_config = {name: contents[name] for name in ids if contents[name] is not None}
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


def _export(params: Params, entry: Entry, layer: int, dtype: str) -> jax.Array:
    """The value of one tensor of a checkpoint."""
    value = _get(params, entry.path)
    whole = None
    if not value.is_fully_addressable:
        # Other processes have the rest of it: a whole copy for everybody.
        whole = NamedSharding(value.sharding.mesh, P())
    index = jnp.int32(layer) if entry.stacked else None
    return _extract(value, index, entry.transpose, dtype, whole)


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _extract(
    value: jax.Array,
    layer: jax.Array | None,
    transpose: bool,
    dtype: str,
    where: NamedSharding | None,
) -> jax.Array:
    """A tensor of the file, on the devices; a layer of the parameter if there is a layer."""
    part = value if layer is None else value[layer]
    part = (part.T if transpose else part).astype(dtype)
    return part if where is None else jax.lax.with_sharding_constraint(part, where)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
