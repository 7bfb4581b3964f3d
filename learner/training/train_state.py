"""Weights and optimizer as one explicit value, every leaf of it placed on the mesh."""

import dataclasses
import re
import warnings
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from learner import checks
from learner.decoder import model
from learner.decoder.config import DecoderConfig
from learner.devices import distributed, sharding
from learner.training import eight_bit, lora
from learner.training.lora import LoraConfig

Decay = Literal["constant", "linear", "cosine"]
MOMENT_DTYPES = ("float32", "bfloat16", "int8")


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) with a learning-rate schedule.

    The schedule counts optimizer updates, not training steps: steps without an update (no
    completion with a signal) do not move it.

    Attributes:
      learning_rate: the highest one, > 0.
      warmup_steps: updates of linear warm-up; update u of them runs at (u + 1) / (warmup + 1).
      decay: after the warm-up "constant", or "linear" or "cosine" down to 0 at `total_steps`.
      total_steps: updates, warm-up included; only used, and then needed, by a decay.
      weight_decay: decoupled decay, on everything but scales of norms and biases.
      b1, b2: decay rates of the two moments, in [0, 1).
      eps: added to the denominator, > 0.
      max_grad_norm: larger gradients are scaled down to this global norm; 0 turns that off.
      moment_dtype: "float32", "bfloat16" or "int8". "bfloat16" is for the first moment only: with
        b2 near 1 the second changes by less than it can hold. "int8" is for both, quantised in
        blocks (`learner.training.eight_bit`): a quarter of the memory.

    Raises:
      ValueError: a field is out of its range.
    """

    learning_rate: float = 1e-6
    warmup_steps: int = 0
    decay: Decay = "constant"
    total_steps: int | None = None
    weight_decay: float = 0.0
    b1: float = 0.9
    b2: float = 0.95
    eps: float = 1e-8
    max_grad_norm: float = 1.0
    moment_dtype: str = "float32"

    def __post_init__(self) -> None:
        checks.positive(self, "learning_rate", "eps")
        checks.not_negative(self, "weight_decay", "max_grad_norm")
        checks.below_one(self, "b1", "b2")
        checks.integers(self, warmup_steps=0)
        checks.choices(self, decay=get_args(Decay), moment_dtype=MOMENT_DTYPES)
        if self.decay != "constant" and (
            type(self.total_steps) is not int or self.total_steps <= self.warmup_steps
        ):
            raise ValueError(
                f"total_steps={self.total_steps!r}: decay={self.decay!r} needs an integer above "
                f"warmup_steps={self.warmup_steps}"
            )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that training changes.

    Attributes:
      step: i32[], training steps taken, with or without an update of the weights.
      updates: i32[], optimizer updates applied; what the learning-rate schedule counts.
      params: what is trained: the model's parameters, or adapters to them
        (`learner.training.lora`).
      opt_state: the optimizer's state.
    """

    step: jax.Array
    updates: jax.Array
    params: Any
    opt_state: Any


def learning_rate_schedule(config: OptimizerConfig) -> Callable[[Any], Any]:
    """The learning rate as a function of the number of updates already applied."""
    peak, warmup = config.learning_rate, config.warmup_steps
    steps = (config.total_steps or 0) - warmup
    if config.decay == "constant":
        after = optax.constant_schedule(peak)
    elif config.decay == "linear":
        after = optax.linear_schedule(peak, 0.0, steps)
    else:
        after = optax.cosine_decay_schedule(peak, steps)
    if not warmup:
        return after
    rising = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
    return optax.join_schedules([rising, after], [warmup])


def in_float32(tree: Any) -> Any:
    """The leaves in float32: of gradients and parameters, wherever the optimizer sees them.

    In 16 bits the square of a small gradient, and eps, would be 0, and their ratio NaN.
    """
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)


def make_optimizer(config: OptimizerConfig) -> optax.GradientTransformation:
    """Global-norm clipping followed by AdamW, for trees of `in_float32`."""
    if config.moment_dtype == "int8":
        adam = eight_bit.scale_by_adam(config.b1, config.b2, config.eps)
    else:
        dtype = jnp.dtype(config.moment_dtype)
        adam = optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=dtype)

    def decays(params: Any) -> Any:  # Matrices: neither scales of norms nor biases.
        return jax.tree_util.tree_map_with_path(
            lambda path, _: not re.search("norm|bias", jax.tree_util.keystr(path).lower()), params
        )

    adamw = optax.chain(
        adam,
        optax.add_decayed_weights(config.weight_decay, decays),
        optax.scale_by_learning_rate(learning_rate_schedule(config)),
    )
    if config.max_grad_norm == 0:
        return adamw
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), adamw)


def create_train_state(
    params: Any,
    config: DecoderConfig,
    optimizer: OptimizerConfig,
    mesh: Mesh,
    adapters: LoraConfig | None = None,
) -> TrainState:
    """A fresh state around existing parameters.

    Args:
      params: what is trained; moved to its shardings on `mesh` where it is not yet. The state
        takes the arrays over: training steps donate them, so a caller that needs the parameters
        afterwards passes a copy.
      mesh: of `sharding.make_mesh`.
      adapters: if their rank is not 0, `params` are adapters of `lora.init`.

    Returns:
      A state whose every leaf carries a NamedSharding of `mesh`; moments are sharded like the
      parameters they belong to. Adapters, which are small, are whole on every device.
    """
    if config.param_dtype != "float32" and not (adapters and adapters.rank):
        warnings.warn(
            f"param_dtype={config.param_dtype!r}: an update that is small beside its parameter is "
            "rounded away; 'float32' keeps it",
            stacklevel=2,
        )
    abstract = abstract_train_state(config, optimizer, mesh, adapters)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    params = distributed.put(params, shardings.params)
    init = make_optimizer(optimizer).init
    moments = jax.jit(lambda params: init(in_float32(params)), out_shardings=shardings.opt_state)
    return TrainState(
        # Two zeros, not one: every buffer of the state is donated once.
        step=distributed.put(np.int32(0), shardings.step),
        updates=distributed.put(np.int32(0), shardings.updates),
        params=params,
        opt_state=moments(params),
    )


def abstract_train_state(
    config: DecoderConfig,
    optimizer: OptimizerConfig,
    mesh: Mesh,
    adapters: LoraConfig | None = None,
) -> TrainState:
    """Shapes, dtypes and shardings of a state, without any memory: what a restore needs."""
    whole = sharding.replicated(mesh)
    places = model.param_shardings(config, mesh)
    shapes = model.abstract_params(config)
    if adapters is not None and adapters.rank:
        shapes = lora.abstract(adapters, config)
        places = jax.tree.map(lambda _: whole, shapes)

    def placed(leaf: Any, where: Any = whole) -> Any:
        try:
            where.shard_shape(leaf.shape)
        except ValueError:  # 8-bit moments may have too few blocks to split the last axis.
            where = NamedSharding(mesh, PartitionSpec(*where.spec[: leaf.ndim - 1]))
        return leaf.update(sharding=where)

    transform = make_optimizer(optimizer)
    count = placed(jax.ShapeDtypeStruct((), jnp.int32))
    opt_state = optax.tree_map_params(
        transform,
        placed,
        jax.eval_shape(lambda params: transform.init(in_float32(params)), shapes),
        places,
        transform_non_params=placed,
    )
    return TrainState(count, count, jax.tree.map(placed, shapes, places), opt_state)
