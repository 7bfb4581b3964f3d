"""Times of a plan's programs, run on the devices at hand with random weights.

What runs is what was compiled. As the predictions assume, every cache is full and every sequence is
of the greatest length.
"""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from learner.decoder import model
from learner.decoder.config import DecoderConfig
from learner.devices import sharding
from learner.plan.programs import Program, abstract_trainer
from learner.sampling.slots import RUNNING, Sequences
from learner.training import lora
from learner.training.batches.packed_sequences import PackedSequences
from learner.training.train_state import TrainState, create_train_state
from learner.training.trainer import GRPOConfig

_REPEATS = 5


def measure(
    programs: list[Program],
    config: DecoderConfig,
    training: GRPOConfig,
    mesh: Mesh,
    prompt_length: int,
) -> list[Program]:
    """The programs with `measured`: the median of some runs, after one that is not counted.

    Memory holds what it does in a run: the state, and weights and caches while sampling.

    Args:
        programs: of `learner.plan.programs.compiled` with the other arguments; all compile.
        config: the model.
        training: how it is trained and sampled.
        mesh: devices of this process, and all it has.
        prompt_length: tokens of the longest prompt.
    """
    run = {program.name: program.executable for program in programs}
    places = model.param_shardings(config, mesh)
    init = jax.jit(lambda key: model.init_params(key, config), out_shardings=places)
    key, adapters = jax.random.key(0), training.lora.rank > 0
    frozen = init(key) if adapters or training.objective.kl_coef > 0 else None
    trained = lora.init(key, training.lora, config) if adapters else init(key)
    state = create_train_state(trained, config, training.optimizer, mesh, training.lora)
    trainer = abstract_trainer(config, training, mesh)

    params = frozen if adapters else state.params
    steps = trainer.sampler.segment_tokens
    seconds = _sampling(run, params, prompt_length, training.max_new_tokens, steps)
    del params, trained
    batch = jax.device_put(trainer.longest_sequences(prompt_length), sharding.batch_sharding(mesh))
    seconds |= _update(run, state, batch, frozen)
    return [dataclasses.replace(p, measured=seconds[p.name]) for p in programs]


def _sampling(
    run: dict[str, Any], params: Any, prompt_length: int, max_new_tokens: int, steps: int
) -> dict[str, float]:
    """Seconds of each program of sampling; of a segment, for one of its steps."""
    seconds = {}
    seconds["prepare"], weights = _timed(lambda old: _anew(old, run["prepare"], params))
    prompts, tokens, slots = _zeros(run["prefill"], 1, 2, 3)
    slots = _like(slots, np.arange(len(slots)))
    seconds["prefill"], prompts = _timed(
        lambda prompts: run["prefill"](weights, prompts, tokens, slots), prompts
    )
    if "resize" in run:
        (smaller,) = _zeros(run["resize"], 0)
        seconds["resize"], larger = _timed(lambda old: _anew(old, run["resize"], smaller))
        del smaller, larger
    cache, sequences, floor = _zeros(run["segment"], 2, 3, 5)
    pages = cache.keys[0].shape[:2]
    sequences = _full(sequences, prompt_length - 1, max_new_tokens, pages, steps)
    segment, _ = _timed(
        lambda cache: run["segment"](weights, prompts, cache, sequences, None, floor)[0], cache
    )
    return {**seconds, "segment": segment / steps}


def _update(
    run: dict[str, Any], state: TrainState, batch: PackedSequences, frozen: Any
) -> dict[str, float]:
    """Seconds of each program of an update."""
    total, scale = _zeros(run["gradients"], 0, 4)
    scale = jax.tree.map(jnp.ones_like, scale)
    gradients, total = _timed(
        lambda total: run["gradients"](total, state.params, batch, frozen, scale), total
    )
    optimizer, _ = _timed(lambda state: run["optimizer"](state, total, jnp.int32(1))[0], state)
    return {"gradients": gradients, "optimizer": optimizer}


def _timed(step: Callable[[Any], Any], carried: Any = None) -> tuple[float, Any]:
    """Repeats a step on what it returned, which may take over its memory.

    Returns:
        Seconds of one step, and what the last one returned.
    """
    times = []
    for _ in range(1 + _REPEATS):
        start = time.perf_counter()
        carried = jax.block_until_ready(step(carried))
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:]), carried


def _anew(old: Any, program: Any, *args: Any) -> Any:
    """What a program returns, in place of what it returned before."""
    for array in jax.tree.leaves(old):
        array.delete()
    return program(*args)


def _zeros(executable: jax.stages.Compiled, *numbers: int) -> list[Any]:
    """Zeros for some of a program's arguments, where it needs them."""
    infos, places = executable.args_info[0], executable.input_shardings[0]

    def zeros(info: Any, place: Any) -> jax.Array:
        return jnp.zeros(info.shape, info.dtype, device=place)

    return [jax.tree.map(zeros, infos[n], places[n]) for n in numbers]


def _like(array: jax.Array, values: Any) -> jax.Array:
    """The values, broadcast, with shape, dtype and place of an array."""
    return jax.device_put(np.broadcast_to(values, array.shape).astype(array.dtype), array.sharding)


def _full(
    idle: Sequences, prompt_length: int, max_new_tokens: int, pages: tuple[int, int], steps: int
) -> Sequences:
    """Slots full of completions that a segment brings to their end.

    Args:
        idle: of the right shapes.
        prompt_length: of every prompt, without its last token.
        max_new_tokens: of every completion at its end.
        pages: batch shards, and pages of each, that of idle slots included.
        steps: tokens of a segment.
    """
    sequence_slots = idle.pages.shape[1]
    shards, number = pages
    own = np.arange(math.prod(idle.pages.shape) // shards)
    # With less than the whole cache, completions share pages.
    table = np.tile(1 + own % max(1, number - 1), shards)
    return idle._replace(
        counts=_like(idle.counts, max_new_tokens - steps),
        budgets=_like(idle.budgets, max_new_tokens),
        samples=_like(idle.samples, np.arange(sequence_slots)),
        parents=_like(idle.parents, np.arange(sequence_slots) % idle.prompt_lengths.shape[1]),
        finish=_like(idle.finish, RUNNING),
        prompt_lengths=_like(idle.prompt_lengths, prompt_length),
        pages=_like(idle.pages, table.reshape(idle.pages.shape)),
    )
