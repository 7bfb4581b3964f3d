"""One optimizer update from any number of micro-batches of any widths.

One compiled function adds the gradients of a micro-batch to a sum that it writes into (donated),
and another one applies the sum. The sum starts at zero: a function of its own for the first
micro-batch would double the time to compile. So even a single micro-batch needs memory for a sum
besides its own gradients.

The host loops over micro-batches. A scan would need all sequences padded to the widest, and a
program for every number of micro-batches, which changes with the number of non-degenerate groups.
Here each width has one program for gradients, and calls are asynchronous: the devices do not wait
for the host.

In float16 the gradients of most tokens would underflow: the loss is multiplied by a large number,
and the gradients are divided by it in float32 (loss scaling, arXiv 1710.03740). If one overflows,
the update is tried again with a smaller number. Every update begins with the largest number, so
that it depends on its arguments alone.
"""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from learner.devices import distributed, sharding
from learner.training import grpo
from learner.training.train_state import (
    OptimizerConfig,
    TrainState,
    in_float32,
    learning_rate_schedule,
    make_optimizer,
)

# Powers of two, which round nothing.
_LOSS_SCALES = (2.0**16, 2.0**12, 2.0**8, 2.0**4, 1.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class UpdateResult:
    """What one update reports.

    Attributes:
      loss: f32[], summed over the micro-batches.
      grad_norm: f32[], global norm before clipping.
      learning_rate: f32[], the one used.
      finite: bool[], False if loss or gradient was not finite; then the weights are unchanged.
      params_finite: bool[], False if a parameter is not finite afterwards.
      sums: the sums of the loss function over all micro-batches.
    """

    loss: jax.Array
    grad_norm: jax.Array
    learning_rate: jax.Array
    finite: jax.Array
    params_finite: jax.Array
    sums: grpo.Sums


class Updater:
    """Compiled functions of one loss, one optimizer and one mesh; holds no training state.

    Args:
      loss: (params, micro_batch, extra) -> (f32[] loss, sums). Losses and gradients of the
        micro-batches of one update are added, so normalisation has to be in the loss.
      state: of `train_state.abstract_train_state`; where its leaves live.
      optimizer: the optimizer.
      mesh: the mesh; sequences of micro-batches are split over ("data", "fsdp").
      dtype: of the backward pass.
    """

    def __init__(
        self,
        loss: Callable[[Any, Any, Any], tuple[jax.Array, grpo.Sums]],
        state: TrainState,
        optimizer: OptimizerConfig,
        mesh: Mesh,
        dtype: str = "float32",
    ) -> None:
        self._mesh = mesh
        self._scales = _LOSS_SCALES if dtype == "float16" else (None,)
        transform = make_optimizer(optimizer)
        schedule = learning_rate_schedule(optimizer)
        state_shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
        replicated = sharding.replicated(mesh)

        def zero(params: Any, names: tuple[str, ...]) -> Any:
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), params)
            return zeros, jnp.float32(0), grpo.no_sums(names)

        def accumulate(total: Any, params: Any, batch: Any, extra: Any, scale: Any) -> Any:
            def scaled(params: Any) -> Any:
                value, sums = loss(params, batch, extra)
                return value if scale is None else value * scale, (value, sums)

            (_, (value, sums)), gradients = jax.value_and_grad(scaled, has_aux=True)(params)
            gradients = in_float32(gradients)
            if scale is not None:
                gradients = jax.tree.map(lambda x: x / scale, gradients)
            return (
                jax.tree.map(jnp.add, total[0], gradients),
                total[1] + value,
                grpo.merge_sums(total[2], sums),
            )

        def apply(state: TrainState, total: Any, steps: jax.Array) -> Any:
            gradients, value, sums = total
            norm = optax.global_norm(gradients)
            finite = jnp.isfinite(norm) & jnp.isfinite(value)
            wide = in_float32(state.params)
            changes, opt_state = transform.update(gradients, state.opt_state, wide)
            params = optax.apply_updates(state.params, changes)

            def keep(new: Any, old: Any) -> Any:
                # Leaf by leaf, so that it fuses into the update and needs no second copy.
                return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

            new_state = TrainState(
                step=state.step + steps * finite,
                updates=state.updates + finite,
                params=keep(params, state.params),
                opt_state=keep(opt_state, state.opt_state),
            )
            # Apart from `finite`: whether to keep them cannot wait for all of them.
            flags = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(new_state.params)]
            sound = jnp.all(jnp.stack(flags))
            result = UpdateResult(value, norm, schedule(state.updates), finite, sound, sums)
            return new_state, result

        total_shardings = (state_shardings.params, replicated, replicated)
        self._loss = loss
        self._names: tuple[str, ...] = ()
        self._zero = jax.jit(zero, static_argnums=1, out_shardings=total_shardings)
        self._accumulate = jax.jit(accumulate, out_shardings=total_shardings, donate_argnums=0)
        self._apply = jax.jit(apply, out_shardings=(state_shardings, replicated), donate_argnums=0)

    def __call__(
        self,
        state: TrainState,
        micro_batches: Iterable[Any],
        extra: Any = None,
        count_step: bool = True,
    ) -> tuple[TrainState, UpdateResult]:
        """One update.

        Args:
          state: donated: it cannot be used afterwards.
          micro_batches: at least one pytree of host or device arrays with sequences leading.
          extra: arrays handed to the loss with every micro-batch (a reference model, say), or None.
          count_step: whether this update completes a training step.

        Returns:
          The new state and the result; if that is not finite, the new state is the old one.
        """
        split = sharding.batch_sharding(self._mesh)
        if len(self._scales) > 1:
            micro_batches = list(micro_batches)
        for scale in self._scales:
            with sharding.use(self._mesh):
                total = None
                for micro_batch in micro_batches:
                    batch = distributed.put(micro_batch, split)
                    if total is None:
                        total = self._zero(state.params, self._sums(state.params, batch, extra))
                    total = self._accumulate(total, state.params, batch, extra, scale)
                state, result = self._apply(state, total, np.int32(count_step))
            if scale is not None and result.finite:
                break
        return state, result

    def lower(
        self, state: TrainState, micro_batch: Any, extra: Any = None
    ) -> dict[str, jax.stages.Lowered]:
        """The programs of an update, ready to compile without any arrays: `learner.plan`.

        Args:
          state: `jax.ShapeDtypeStruct`s with shardings, of `train_state.abstract_train_state`.
          micro_batch: arrays of any values with sequences leading.
          extra: as in `__call__`, arrays or `jax.ShapeDtypeStruct`s with shardings.
        """
        split = sharding.batch_sharding(self._mesh)
        batch = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=split), micro_batch
        )
        with sharding.use(self._mesh):
            total = self._zero.eval_shape(state.params, self._sums(state.params, batch, extra))
            steps = jax.ShapeDtypeStruct((), jnp.int32)
            gradients = self._accumulate.lower(total, state.params, batch, extra, self._scales[0])
            return {"gradients": gradients, "optimizer": self._apply.lower(state, total, steps)}

    def _sums(self, params: Any, batch: Any, extra: Any) -> tuple[str, ...]:
        """The names of the loss's sums, for which it is traced once and not for each width."""
        if not self._names:
            self._names = tuple(jax.eval_shape(self._loss, params, batch, extra)[1])
        return self._names


class NonFiniteError(RuntimeError):
    """Training stopped because one of its numbers was NaN or infinite.

    Attributes:
      step: the training step.
      metrics: the metrics of the step, as far as they are known.
      state: that before the update, or after it if the update was finite
        and another metric of the step, or a parameter, was not.
      rollout: what the step trained on (`learner.training.rollout.Rollout`), None in supervised
        training.
    """

    def __init__(
        self,
        step: int,
        what: str,
        metrics: dict[str, float],
        state: TrainState,
        rollout: Any = None,
        weights_kept: bool = True,
    ) -> None:
        after = "; the weights were left as they were" if weights_kept else ""
        super().__init__(f"step {step}: {what}{after}")
        self.step = step
        self.metrics = metrics
        self.state = state
        self.rollout = rollout


def check(
    step: int,
    result: UpdateResult,
    metrics: dict[str, float],
    state: TrainState,
    rollout: Any = None,
) -> None:
    """Checks an update and the state after it, which no checkpoint may have otherwise.

    Raises:
      NonFiniteError: loss, gradient or a parameter is not finite; arguments as there.
    """
    if not result.finite:
        numbers = f"loss {metrics.get('loss')} or gradient norm {metrics.get('grad_norm')}"
        raise NonFiniteError(step, f"{numbers} is not finite", metrics, state, rollout)
    if not result.params_finite:
        what = "a parameter is not finite after the update"
        raise NonFiniteError(step, what, metrics, state, rollout, weights_kept=False)
