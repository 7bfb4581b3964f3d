"""Hugging Face safetensors in and out, by one table that is read in both directions."""

import functools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from jax.sharding import Mesh

from learner import sharding
from learner.qwen3.config import Qwen3Config
from learner.qwen3.model import Params, abstract_params

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
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
    """Read a checkpoint, every shard straight to its device.

    Each device's part is read by itself (`get_slice`), so the host holds one part of one
    parameter at a time.

    Args:
        folder: has `model.safetensors`, or `model.safetensors.index.json` and its files.
        config: of the model; values are cast to `config.param_dtype`.
        mesh: the parameters are placed by `sharding.param_shardings`; None means one device, the
            first.

    Raises:
        ValueError: there are no weights, or a tensor is missing, unknown, of another shape, or an
            output matrix differs from the embedding it is tied to. All names are listed.
    """
    mesh = mesh or sharding.make_mesh()
    shardings = sharding.param_shardings(config, mesh)
    abstract = abstract_params(config)
    params: Params = {}
    with ExitStack() as stack:
        tensors = _open(Path(folder), stack)
        _check(tensors, config, abstract, str(folder))
        for entry in table(config):
            leaf = _get(abstract, entry.path)
            value = jax.make_array_from_callback(
                leaf.shape,
                _get(shardings, entry.path),
                functools.partial(_read, tensors, entry, leaf),
            )
            node = params
            for key in entry.path[:-1]:
                node = node.setdefault(key, {})
            node[entry.path[-1]] = value
    return params


def _open(folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Tensor name -> lazy slice, over one file or several."""
    if (folder / INDEX_FILE).is_file():
        with open(folder / INDEX_FILE, encoding="utf-8") as file:
            weight_map: dict[str, str] = json.load(file)["weight_map"]
        names = sorted(set(weight_map.values()))
    elif (folder / SINGLE_FILE).is_file():
        names = [SINGLE_FILE]
    else:
        raise ValueError(f"folder {str(folder)!r} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    tensors: dict[str, Any] = {}
    for name in names:
        if not (folder / name).is_file():
            raise ValueError(f"{INDEX_FILE} names {name}, which is not in {str(folder)!r}")
        opened = stack.enter_context(safetensors.safe_open(folder / name, framework="numpy"))
        tensors |= {key: opened.get_slice(key) for key in opened.keys()}  # noqa: SIM118
    return tensors


def _check(tensors: dict[str, Any], config: Qwen3Config, abstract: Params, folder: str) -> None:
    """Compare names and shapes with what `config` asks for; report all differences at once."""
    wanted = {}
    for entry in table(config):
        shape = _get(abstract, entry.path).shape
        shape = shape[1:] if entry.stacked else shape
        for name in _names(entry, config):
            wanted[name] = shape[::-1] if entry.transpose else shape
    found = {name: tuple(tensor.get_shape()) for name, tensor in tensors.items()}
    if config.tie_word_embeddings and _LM_HEAD in found:
        # Some writers store the matrix of a tied model twice.
        if not _same(tensors[_LM_HEAD], tensors.get(_EMBEDDING)):
            raise ValueError(
                f"{_LM_HEAD} in {folder} differs from {_EMBEDDING}; with tie_word_embeddings true "
                "it must be equal or absent"
            )
        del found[_LM_HEAD]
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} is unknown" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {found[name]}, expected {shape}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if problems:
        raise ValueError(f"weights in {folder} do not fit the configuration: {'; '.join(problems)}")


def _same(a: Any, b: Any, rows: int = 8192) -> bool:
    """Whether two tensors are equal, read some rows at a time."""
    if b is None or a.get_shape() != b.get_shape():
        return False
    total = a.get_shape()[0]
    starts = range(0, total, rows)
    parts = [slice(start, min(start + rows, total)) for start in starts]
    return all(np.array_equal(a[part], b[part]) for part in parts)


def _names(entry: Entry, config: Qwen3Config) -> list[str]:
    layers = range(config.num_hidden_layers)
    return [entry.name.format(i) for i in layers] if entry.stacked else [entry.name]


def _read(
    tensors: dict[str, Any], entry: Entry, leaf: jax.ShapeDtypeStruct, index: tuple[slice, ...]
) -> np.ndarray:
    """The part `index` of a parameter, in our layout and dtype."""

    def part(name: str, within: tuple[slice, ...]) -> np.ndarray:
        value = tensors[name][within[::-1]] if entry.transpose else tensors[name][within]
        return np.asarray(value.T if entry.transpose else value).astype(leaf.dtype)

    bounds = [s.indices(n) for s, n in zip(index, leaf.shape, strict=True)]
    whole = tuple(slice(start, stop) for start, stop, _ in bounds)
    if not entry.stacked:
        return part(entry.name, whole)
    layers = range(whole[0].start, whole[0].stop)
    return np.stack([part(entry.name.format(layer), whole[1:]) for layer in layers])


# Writing ---------------------------------------------------------------------


def save(
    folder: str | Path,
    params: Params,
    config: Qwen3Config,
    tokenizer: Any = None,
    max_file_bytes: int = 5 * 10**9,
) -> None:
    """Write a checkpoint that transformers reads: weights, `config.json`, tokenizer files.

    Values keep the dtype of `params`. Tied embeddings are written once.

    Args:
        folder: made if it does not exist.
        params: all shards must be addressable from this process.
        tokenizer: a Hugging Face tokenizer to save beside, or None.
        max_file_bytes: weights beyond this go to several files with an index.

    Raises:
        ValueError: the parameters are not those of `config`.
    """
    folder = Path(folder)
    shapes = jax.tree.map(jnp.shape, params)
    expected = jax.tree.map(jnp.shape, abstract_params(config))
    if shapes != expected:
        raise ValueError(f"params have shapes {shapes}; the configuration has {expected}")
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("model*.safetensors*"):
        old.unlink()

    sizes = {
        name: _get(params, entry.path).nbytes // len(_names(entry, config))
        for entry in table(config)
        for name in _names(entry, config)
    }
    files = _assign_files(sizes, max_file_bytes)
    pending: dict[str, dict[str, np.ndarray]] = {file: {} for file in files.values()}
    counts = {file: list(files.values()).count(file) for file in pending}
    for name, value in _export(params, config):
        group = pending[files[name]]
        group[name] = value
        if len(group) == counts[files[name]]:
            safetensors.numpy.save_file(group, folder / files[name], metadata={"format": "pt"})
            group.clear()
    if len(pending) > 1:
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": files}
        _write_json(folder / INDEX_FILE, index)
    dtype = str(_get(params, ("embedding",)).dtype)
    _write_json(folder / "config.json", config.to_hf() | {"torch_dtype": dtype})
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))


def _export(params: Params, config: Qwen3Config) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of every tensor, parameter by parameter in the order of the table."""
    for entry in table(config):
        value = np.asarray(jax.device_get(_get(params, entry.path)))
        for name, part in zip(
            _names(entry, config), value if entry.stacked else [value], strict=True
        ):
            yield name, np.ascontiguousarray(part.T if entry.transpose else part)


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
