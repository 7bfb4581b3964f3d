"""Low-rank adapters (LoRA, arXiv 2106.09685) for the matrices of the blocks.

A matrix W [in, out] of the frozen base becomes W + alpha / rank * A B, with A [in, rank] and
B [rank, out] trained. An update multiplies by W and by A and B, as
`learner.decoder.model.Projection` does: the base stays in the dtype it is stored in, and gradients
and moments are those of the adapters.
(Existing libraries adapt modules from outside, which does not reach into a scan over stacked
layers.)

Sampling adds A B to W. It copies W into separate layers anyway (`decoding_params`), so the sum
takes no further memory. A and B on their own would, and would cost two more products for every
matrix and token.
"""

import dataclasses
import functools
import zlib
from typing import Any

import jax
import jax.numpy as jnp

from learner import checks
from learner.decoder import model
from learner.decoder.config import DecoderConfig

#: The matrices of a block that can be adapted, with the module they belong to.
MATRICES = dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj"), "attention") | dict.fromkeys(
    ("gate_proj", "up_proj", "down_proj"), "mlp"
)


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Which matrices get adapters, and how large.

    Attributes:
      rank: columns of A; 0 trains all parameters and no adapters.
      alpha: the product is scaled by alpha / rank; > 0.
      targets: names out of `MATRICES`.

    Raises:
      ValueError: a field is out of its range.
    """

    rank: int = 0
    alpha: float = 32.0
    targets: tuple[str, ...] = tuple(MATRICES)

    def __post_init__(self) -> None:
        checks.integers(self, rank=0)
        checks.positive(self, "alpha")
        known, given = tuple(MATRICES), self.targets
        if not (isinstance(given, list | tuple) and given and all(x in known for x in given)):
            raise ValueError(f"targets={given!r}: allowed are some of {known}")
        object.__setattr__(self, "targets", tuple(given))


def init(key: jax.Array, lora: LoraConfig, config: DecoderConfig) -> Any:
    """Fresh adapters: A normal with deviation in ** -0.5, B zero, so that the policy is the base.

    Returns:
      {module: {matrix: {"a": f32[L, in, rank], "b": f32[L, rank, out]}}} under "layers".
    """
    layers = model.abstract_params(config)["layers"]
    tree: dict[str, dict[str, Any]] = {}
    for name in lora.targets:
        depth, rows, columns = layers[MATRICES[name]][name]["kernel"].shape
        # By name: the others stay as they are if a target is added.
        own_key = jax.random.fold_in(key, zlib.crc32(name.encode()))
        a = jax.random.normal(own_key, (depth, rows, lora.rank)) * rows**-0.5
        b = jnp.zeros((depth, lora.rank, columns))
        tree.setdefault(MATRICES[name], {})[name] = {"a": a, "b": b}
    return {"layers": tree}


@functools.cache
def abstract(lora: LoraConfig, config: DecoderConfig) -> Any:
    """The adapters as a tree of `jax.ShapeDtypeStruct`; takes no memory."""
    return jax.eval_shape(lambda key: init(key, lora, config), jax.random.key(0))


def attach(base: Any, trained: Any, lora: LoraConfig) -> model.Params:
    """The arrays of `base`, with adapters beside its matrices; at rank 0 what is trained itself."""
    if not lora.rank:
        return trained
    layers = {module: dict(matrices) for module, matrices in base["layers"].items()}
    for module, matrices in trained["layers"].items():
        for name, pair in matrices.items():
            scaled = {"a": pair["a"], "b": pair["b"] * (lora.alpha / lora.rank)}
            layers[module][name] = {**layers[module][name], **scaled}
    return {**base, "layers": layers}


def merge(params: model.Params, dtype: str | None = None) -> model.Params:
    """Plain parameters to export, from those of `attach`; without adapters they are unchanged.

    Args:
      dtype: of the matrices that have adapters, such as that of the files to write; by default
        their own.
    """
    if "a" in params:
        return _merge(params, dtype)
    return {k: merge(v, dtype) if isinstance(v, dict) else v for k, v in params.items()}


@functools.partial(jax.jit, static_argnums=1)
def _merge(matrix: model.Params, dtype: str | None) -> model.Params:
    """A layer at a time, as the sums are float32."""
    return jax.lax.map(functools.partial(model.merged, dtype=dtype), matrix)
