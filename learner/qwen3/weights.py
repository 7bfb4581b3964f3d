"""Hugging Face safetensors in and out, by one table that is read in both directions.

One tensor of the checkpoint is on the host at a time, both ways: what a process needs of it is
read, goes to its devices, and is cast, transposed and put into its place there.
"""

import functools
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
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
# Names of dtypes in safetensors files -> NumPy's.
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
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
    mesh = mesh or sharding.make_mesh()
    shardings = placement.param_shardings(config, mesh)
    abstract = abstract_params(config)
    params: Params = {}
    with ExitStack() as stack:
        checkpoint = _Checkpoint(Path(folder), stack)
        _check(checkpoint, config, abstract, str(folder))
        for entry in table(config):
            value = _load_entry(
                checkpoint, entry, _get(abstract, entry.path), _get(shardings, entry.path)
            )
            node = params
            for key in entry.path[:-1]:
                node = node.setdefault(key, {})
            node[entry.path[-1]] = value
    return params


def _load_entry(
    checkpoint: "_Checkpoint", entry: Entry, leaf: jax.ShapeDtypeStruct, where: NamedSharding
) -> jax.Array:
    """One parameter of ours, from one tensor or from one of every layer."""
    axes = tuple(where.spec) + (None,) * (len(leaf.shape) - len(where.spec))
    axes = axes[1:] if entry.stacked else axes
    source = NamedSharding(where.mesh, P(*(axes[::-1] if entry.transpose else axes)))

    convert, zeros, insert = _programs(entry.transpose, leaf.dtype, where)
    if not entry.stacked:
        return convert(checkpoint.read(entry.name, source))
    value = zeros(leaf.shape)
    for layer in range(leaf.shape[0]):
        tensor = checkpoint.read(entry.name.format(layer), source)
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


@dataclass(frozen=True)
class _Tensor:
    """What the header of a file says about a tensor; its bytes are counted from the header on."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


class _Checkpoint:
    """The tensors of one or several files; nothing but headers is read until asked for.

    Attributes:
        tensors: name -> `_Tensor`.
        problems: what is wrong with the files themselves, each with the name of a tensor.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        files = _weight_files(folder)
        self.tensors: dict[str, _Tensor] = {}
        self.problems: list[str] = []
        for file in files:
            self._read_header(folder, file)
        if not self.problems:
            self._opened = {file: stack.enter_context(_open(folder / file)) for file in files}

    def _read_header(self, folder: Path, file_name: str) -> None:
        """Add the tensors of one file.

        Format: the length of the header in eight bytes, little-endian; the header, JSON of name ->
        dtype, shape and first and last byte in what follows; the data (safetensors' README).
        """
        path = folder / file_name
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise ValueError(f"{path} is cut off in its header, or is no safetensors file")
            try:
                header = json.loads(file.read(length))
                header.pop("__metadata__", None)
                tensors = {
                    name: _Tensor(
                        file_name,
                        about["dtype"],
                        tuple(about["shape"]),
                        *(int(offset) for offset in about["data_offsets"]),
                    )
                    for name, about in header.items()
                }
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ValueError(f"{path} has no readable header: {error!r}") from error
        there = size - 8 - length
        for name, tensor in tensors.items():
            if name in self.tensors:
                self.problems.append(f"{name} is in {self.tensors[name].file} and in {file_name}")
            if tensor.end > there:
                lacking = tensor.end - there
                self.problems.append(f"{name} is cut off: {file_name} lacks {lacking} bytes")
            if tensor.dtype not in _DTYPES:
                self.problems.append(
                    f"{name} has dtype {tensor.dtype}, supported are {', '.join(_DTYPES)}"
                )
            elif tensor.nbytes != math.prod(tensor.shape) * _itemsize(_DTYPES[tensor.dtype]):
                self.problems.append(f"{name} has {tensor.nbytes} bytes, not those of its shape")
            self.tensors[name] = tensor

    def slices(self, name: str) -> Any:
        """The tensor, to be indexed with slices; that reads."""
        return self._opened[self.tensors[name].file].get_slice(name)

    def read(self, name: str, where: NamedSharding) -> jax.Array:
        """A tensor as it is in its file, every slice read once and placed."""
        slices = self.slices(name)
        parts: dict[Any, np.ndarray] = {}

        def part(index: Any) -> np.ndarray:
            key = tuple((s.start, s.stop) for s in index)
            if key not in parts:
                parts[key] = slices[index]
            return parts[key]

        return jax.make_array_from_callback(self.tensors[name].shape, where, part)


def _open(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, "numpy")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error


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


def _check(checkpoint: _Checkpoint, config: Qwen3Config, abstract: Params, folder: str) -> None:
    """Compare names and shapes with what `config` asks for; report all differences at once."""
    wanted = _file_shapes(config, abstract)
    found = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    problems = list(checkpoint.problems)
    if config.tie_word_embeddings and _LM_HEAD in found:
        # Some writers store the matrix of a tied model twice.
        if not problems and not _same(checkpoint, _LM_HEAD, _EMBEDDING):
            problems.append(
                f"{_LM_HEAD} differs from {_EMBEDDING}; with tie_word_embeddings true it must be "
                "equal or absent"
            )
        del found[_LM_HEAD]
    problems += [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} is unknown" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {found[name]}, expected {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if problems:
        raise ValueError(f"weights in {folder} do not fit the configuration: {'; '.join(problems)}")


def _same(checkpoint: _Checkpoint, a: str, b: str, rows: int = 8192) -> bool:
    """Whether two tensors are equal, read some rows at a time."""
    shape = checkpoint.tensors[a].shape
    if b not in checkpoint.tensors or checkpoint.tensors[b].shape != shape:
        return False
    parts = [slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]
    first, second = checkpoint.slices(a), checkpoint.slices(b)
    return all(np.array_equal(first[part], second[part]) for part in parts)


def _file_shapes(config: Qwen3Config, abstract: Params) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a checkpoint, layer after layer."""
    shapes = {}
    for name, (entry, _) in _tensors(config).items():
        shape = _get(abstract, entry.path).shape
        shape = shape[1:] if entry.stacked else shape
        shapes[name] = shape[::-1] if entry.transpose else shape
    return shapes


def _tensors(config: Qwen3Config) -> dict[str, tuple[Entry, int]]:
    """Name of every tensor of a checkpoint -> its entry and layer, in the order of the layers."""
    entries = table(config)
    first = next(i for i, entry in enumerate(entries) if entry.stacked)
    blocks = [entry for entry in entries if entry.stacked]
    before, after = entries[:first], entries[first + len(blocks) :]
    layers = range(config.num_hidden_layers)
    return {
        **{entry.name: (entry, 0) for entry in before},
        **{entry.name.format(i): (entry, i) for i in layers for entry in blocks},
        **{entry.name: (entry, 0) for entry in after},
    }


def _itemsize(dtype: str) -> int:
    return jnp.dtype(dtype).itemsize


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

    Weights (tied embeddings once), `config.json`, `generation_config.json`, tokenizer files. One
    tensor is on the host at a time. The files get their names when all are written, so an
    interrupted call leaves the weights that were there before, or none.

    Args:
        folder: made if it does not exist; weights in it are replaced.
        params: in several processes, all call this, and the first one writes.
        tokenizer: a Hugging Face tokenizer to save beside, or None.
        dtype: "float32" or "bfloat16" of the file; None is that of `params`.
        generation_config: the contents of `generation_config.json`, such as sampling options
            (`read_generation_config` of the model this one came from); None states the special
            ids of `config` and nothing else.
        max_file_bytes: weights beyond this go to several files with an index.

    Raises:
        ValueError: the parameters are not those of `config`, or `dtype` is unknown.
    """
    folder = Path(folder)
    shapes = jax.tree.map(jnp.shape, params)
    abstract = abstract_params(config)
    expected = jax.tree.map(jnp.shape, abstract)
    if shapes != expected:
        raise ValueError(f"params have shapes {shapes}; the configuration has {expected}")
    dtype = dtype or str(params["embedding"].dtype)
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; allowed are {DTYPES}")

    tensor_shapes = _file_shapes(config, abstract)
    sizes = {name: math.prod(shape) * _itemsize(dtype) for name, shape in tensor_shapes.items()}
    file_of = _assign_files(sizes, max_file_bytes)
    writes = jax.process_index() == 0
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.glob("model*.safetensors.part"):
            unfinished.unlink()
    values = _export(params, config, dtype)
    files = list(dict.fromkeys(file_of.values()))
    for file in files:
        names = [name for name in tensor_shapes if file_of[name] == file]
        parts = (next(values) for _ in names)
        if writes:
            shapes_here = {name: tensor_shapes[name] for name in names}
            _write_safetensors(folder / f"{file}.part", shapes_here, dtype, parts)
        else:
            for _ in parts:  # The gathering takes all processes.
                pass
    if not writes:
        return
    for old in folder.glob("model*.safetensors*"):
        if old.suffix != ".part":
            old.unlink()
    for file in files:
        os.replace(folder / f"{file}.part", folder / file)
    if len(files) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": file_of}
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


def _export(params: Params, config: Qwen3Config, dtype: str) -> Iterator[np.ndarray]:
    """The value of every tensor, in the order of `_tensors`."""
    for entry, layer in _tensors(config).values():
        value = _get(params, entry.path)
        whole = None
        if not value.is_fully_addressable:
            # Other processes have the rest of it: a whole copy for everybody.
            whole = NamedSharding(value.sharding.mesh, P())
        index = jnp.int32(layer) if entry.stacked else None
        yield np.ascontiguousarray(_extract(value, index, entry.transpose, dtype, whole))


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


def _write_safetensors(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str,
    values: Iterator[np.ndarray],
) -> None:
    """One file, tensor by tensor; safetensors' own writer wants all of them at once."""
    name_of_dtype = next(name for name, known in _DTYPES.items() if known == dtype)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + math.prod(shape) * _itemsize(dtype)
        header[name] = {"dtype": name_of_dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # The data begin at a multiple of eight bytes.
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for value in values:
            file.write(value.reshape(-1).view(np.uint8).data)


def _assign_files(sizes: dict[str, int], limit: int) -> dict[str, str]:
    """Tensor name -> file name: consecutive tensors share a file up to `limit` bytes."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    if len(groups) == 1:
        return dict.fromkeys(groups[0], SINGLE_FILE)
    return {
        name: f"model-{i:05d}-of-{len(groups):05d}.safetensors"
        for i, group in enumerate(groups, 1)
        for name in group
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
