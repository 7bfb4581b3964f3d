"""On-policy training on a `Task`: choose prompts, sample, score, update; one step at a time.

Sampling uses the weights of training on the same devices: there is nothing to synchronise. While
it samples, a step also holds a decoding copy of them (`learner.sampling.decoding.decoding_params`).
A step depends on its arguments alone (state, task state, key, step number, scores of prompts): a
run that is killed and resumed from a checkpoint goes on with bitwise the same weights on the same
machine.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from learner import tokens
from learner.chat import Completion
from learner.decoder import hub, weights
from learner.decoder.config import DecoderConfig
from learner.devices import distributed, sharding
from learner.sampling.completer import Completer
from learner.sampling.sampler import SamplingParams
from learner.training import grpo, lora, metrics
from learner.training.batches.packed_sequences import (
    PackedSequences,
    micro_batches,
    packed_logprobs,
)
from learner.training.batches.packing import Shape
from learner.training.curriculum import PromptScores, replay_indices
from learner.training.grpo_config import GRPOConfig as GRPOConfig
from learner.training.rollout import Rollout
from learner.training.task import Scores, Task, prompt_indices
from learner.training.train_state import TrainState, abstract_train_state, create_train_state
from learner.training.update import NonFiniteError, Updater, UpdateResult, check

# Folded into the key; `prompt_indices` uses 0, `replay_indices` 4.
_SAMPLING, _RESAMPLING, _ADAPTERS = 1, 2, 3


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The result of one step.

    Attributes:
      step: its number.
      state: the state after it; the next step donates it, so copy what has to outlive that.
      metrics: numbers for the log; those of the update are absent without one. Those that begin
        with `metrics.MACHINE` depend on the machine and its load.
      indices: i64[N], the prompt of every completion (N = P * G, or a multiple of that after
        resampling or with candidates), prompt-major.
      completions: N completions.
      scores: the task's scores; `Scores.concatenate` joins those of several draws.
      prompt_scores: scores of all prompts after the step, which the next step needs; None unless
        prompts are replayed.
    """

    step: int
    state: TrainState
    metrics: dict[str, float]
    indices: np.ndarray
    completions: Sequence[Completion]
    scores: Scores
    prompt_scores: PromptScores | None = None


def frozen_params(config: GRPOConfig, params: Any) -> Any:
    """What training leaves as it is of a model's parameters, for `GRPOTrainer`; None if nothing."""
    if config.lora.rank:
        return params
    # A copy, as training donates the first arrays.
    return jax.tree.map(jnp.copy, params) if config.objective.kl_coef > 0 else None


class GRPOTrainer:
    """Compiled functions for one configuration, model and mesh; holds no training state.

    Args:
      mesh: of `sharding.make_mesh`.
      tokenizer: encodes prompts and decodes the completions.
      frozen_params: parameters that training leaves as they are, with the shardings of the
        policy's: what `config.lora` adapts, if its rank is not 0, and the reference model, if
        `config.objective.kl_coef` > 0. Refused if there is neither. They must not be the arrays of
        the state, which are donated.

    Attributes:
      config: as given.
      sampler: of completions.

    Raises:
      ValueError: `micro_batch_size` does not divide over the mesh, or `frozen_params` are missing
        or of no use.
    """

    def __init__(
        self,
        config: GRPOConfig,
        model_config: DecoderConfig,
        mesh: Mesh,
        tokenizer: Any,
        frozen_params: Any = None,
    ) -> None:
        sharding.check_batch_size("micro_batch_size", config.micro_batch_size, mesh)
        kl_coef, rank = config.objective.kl_coef, config.lora.rank
        if (kl_coef > 0 or rank > 0) != (frozen_params is not None):
            raise ValueError(
                f"frozen_params {'missing' if frozen_params is None else 'given'}: they are for "
                f"kl_coef > 0 or lora.rank > 0, and kl_coef={kl_coef}, lora.rank={rank}"
            )
        self.config = config
        self._model_config = model_config
        self._mesh = mesh
        self._frozen = frozen_params
        self._pad_id = tokens.pad_id(tokenizer)
        vocab_size = min(tokens.vocab_size(tokenizer), model_config.vocab_size)
        self._thinking = tokens.thinking_budget(
            tokenizer, config.thinking_tokens, config.max_new_tokens
        )
        self._completer = Completer(
            model_config,
            mesh,
            tokenizer,
            SamplingParams(
                temperature=config.temperature,
                max_new_tokens=config.max_new_tokens,
                thinking=self._thinking,
            ),
            config.sampling_slots,
            config.thinking_tokens > 0,
            cache_fraction=config.cache_fraction,
        )
        self.sampler = self._completer.sampler
        objective = config.objective
        # With one update the old policy is the current one; no pass of its own is needed.
        corrected = objective.importance_correction != "none"
        self._needs_old = corrected and config.updates_per_step > 1

        self._programs = _programs(config, model_config, mesh, vocab_size)
        # On TPUs, with a folder that keeps compiled programs, an update compiles for all shapes of
        # sequences while the first completions are sampled. On a CPU, compiling would take the
        # cores that sample; on a GPU, it tries kernels out in the memory that sampling fills.
        self._compiles_ahead = jax.default_backend() == "tpu"
        self._ahead: futures.Future[None] | None = None

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        config: GRPOConfig,
        key: jax.Array,
        mesh: Mesh | None = None,
        **compute: Any,
    ) -> tuple["GRPOTrainer", TrainState]:
        """A trainer of a model, and the state to start from.

        Args:
          model: a checkpoint's folder, or its name on the Hugging Face hub.
          key: a typed JAX key, of the adapters if there are any.
          mesh: by default all devices along `fsdp`.
          compute: fields of `DecoderConfig`, such as `dtype="bfloat16"`.

        Raises:
          ValueError: there is no such model, or it is not supported.
        """
        folder, mesh = hub.model_folder(model), mesh or sharding.make_mesh(fsdp=jax.device_count())
        architecture = DecoderConfig.from_folder(folder, **compute)
        tokenizer = tokens.load_tokenizer(folder)
        params = weights.load(folder, architecture, mesh)
        trainer = cls(config, architecture, mesh, tokenizer, frozen_params(config, params))
        return trainer, trainer.init_state(params, key)

    def init_state(self, params: Any, key: jax.Array) -> TrainState:
        """The state at the start: of all parameters, or of fresh adapters.

        Args:
          params: the model's parameters. The state takes their arrays over (and training donates
            them), unless adapters are trained.
          key: a typed JAX key, of the adapters.
        """
        config = self.config
        if config.lora.rank:
            key = jax.random.fold_in(key, _ADAPTERS)
            params = lora.init(key, config.lora, self._model_config)
        return create_train_state(
            params, self._model_config, config.optimizer, self._mesh, config.lora
        )

    def policy_params(self, state: TrainState) -> Any:
        """The parameters of the policy: those of the state itself, or the base with its adapters.

        What to sample from and validate; to export, `lora.merge` them. Their arrays are those of
        the state, which the next step donates, and those of the base.
        """
        return lora.attach(self._frozen, state.params, self.config.lora)

    def run(
        self,
        state: TrainState,
        task: Task,
        key: jax.Array,
        start_step: int,
        num_steps: int,
        sampling: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        prompt_scores: PromptScores | None = None,
    ) -> Iterator[StepResult]:
        """Steps `start_step` to `num_steps` - 1, each yielded as soon as it is done.

        The caller keeps checkpoints and logs between the steps. To resume, restore the state, the
        task's state and the scores of prompts as they were after step k - 1 and start at k.

        Args:
          state: where to start from; donated.
          key: a typed JAX key of the whole run on this task.
          start_step: the first step, from 0.
          num_steps: steps of the whole run, those before `start_step` included; see
            `GRPOConfig.num_steps`.
          sampling: a context in which completions are sampled and scored. What it raises ends the
            run, and `state` is still whole.
          prompt_scores: `StepResult.prompt_scores` of the step before; None before the first.
        """
        for step in range(start_step, num_steps):
            result = self.step(state, task, key, step, sampling, prompt_scores)
            state, prompt_scores = result.state, result.prompt_scores
            yield result

    def step(
        self,
        state: TrainState,
        task: Task,
        key: jax.Array,
        step: int,
        sampling: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        prompt_scores: PromptScores | None = None,
    ) -> StepResult:
        """One step; see `run`.

        Raises:
          NonFiniteError: a log-probability, a reward, the loss, the gradient, a parameter or any
            other metric was NaN or infinite. The state and the completions are in the error. A task
            must leave out a metric that does not exist (a mean of nothing).
          ValueError: the task returned no `Scores`, or rewards of a wrong shape, or a prompt cannot
            be sampled from; the message lists the step's prompts by their numbers in the task.
        """
        config = self.config
        seconds: dict[str, float] = {}
        draws: list[tuple[Rollout, Scores]] = []
        method = config.curriculum.method
        if method == "replay" and prompt_scores is None:
            prompt_scores = PromptScores.unknown(len(task))
        with sampling():
            params = self.policy_params(state)
            for attempt in range(config.most_draws):
                draws.append(self._draw(params, task, key, step, attempt, seconds, prompt_scores))
                signals = sum(int(rollout.signal.sum()) for rollout, _ in draws)
                if attempt + 1 >= config.candidates and signals >= config.prompts_per_step:
                    break
            del params
        rollouts, scored = zip(*draws, strict=True)
        drawn, scores = Rollout.concatenate(rollouts), Scores.concatenate(scored)
        given = {"a reward": drawn.rewards, "a log-probability of the sampler": drawn.logprobs}
        for what, values in given.items():
            if not np.isfinite(values).all():
                raise NonFiniteError(step, f"{what} is not finite", {}, state, drawn)
        # Groups with a signal first, in the order they were drawn; always the same number. Or the
        # most learnable ones.
        first = -drawn.learnability if method == "learnability" else ~drawn.signal
        chosen = np.argsort(first, kind="stable")[: config.prompts_per_step]
        batch = drawn.take(np.sort(chosen))
        replayed = {}
        if prompt_scores is not None:
            sampled_before = prompt_scores.steps[drawn.indices] >= 0
            replayed = {"replayed_fraction": float(sampled_before.mean())}
            prompt_scores = prompt_scores.updated(step, drawn.indices, drawn.learnability)

        with metrics.timed(seconds, "update"):
            updates, state = self.update(state, batch)
        of_update = _update_metrics(updates)
        sampled = float(drawn.lengths.sum())
        used = {"sample": sampled, "update": of_update.get("update_tokens", 0.0)}
        kept = self._kept(batch)
        prompts = np.repeat(list(map(len, batch.prompts)), batch.group_size)
        flops = metrics.update_flops(
            self._model_config, prompts[kept], batch.lengths[kept], config.lora.rank > 0
        )
        logged = {
            **drawn.metrics(),
            **replayed,
            "draws": float(len(draws)),
            "groups_used": float(batch.signal.sum()),
            **{f"task/{name}": float(value) for name, value in scores.metrics.items()},
            **of_update,
            **metrics.machine(seconds, used, {"update": flops / self._mesh.size}),
        }
        if updates:
            check(step, updates[-1], logged, state, batch)
        for name, value in logged.items():
            if not np.isfinite(value):
                what = f"{name} {value} is not finite"
                raise NonFiniteError(step, what, logged, state, batch, weights_kept=not updates)
        indices = np.repeat(drawn.indices, config.group_size)
        return StepResult(step, state, logged, indices, drawn.completions, scores, prompt_scores)

    def memory(self) -> dict[str, int]:
        """Bytes of one device: what a step keeps there, activations and short-lived copies aside.

        Returns:
          "state" (parameters, moments, what is not trained), "gradients" while it updates;
          "weights" and "cache" for the longest completions while it samples; "device", its
          capacity, 0 if it does not report it.
        """
        config = self.config
        params = abstract_train_state(self._model_config, config.optimizer, self._mesh).params
        # They add up in float32, whatever the parameters are.
        gradients = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding),
            self._programs.state.params,
        )
        return {
            "state": sharding.device_bytes((self._programs.state, self._frozen)),
            "gradients": sharding.device_bytes(gradients),
            **self.sampler.memory(params, config.prompts_per_step, config.group_size),
            "device": (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", 0),
        }

    def lower_update(self, prompt_length: int) -> dict[str, jax.stages.Lowered]:
        """The programs of an update with the longest sequences, ready to compile without arrays.

        `frozen_params` of the trainer may be `jax.ShapeDtypeStruct`s with shardings here.

        Args:
          prompt_length: tokens of the longest prompt.
        """
        return self._lower_update(self._sequence_shapes(prompt_length)[0])

    def longest_sequences(self, prompt_length: int) -> PackedSequences:
        """A full micro-batch of the longest sequences, each with one completion of the longest.

        All tokens are 0, weights and advantages 1.
        """
        batch = self._empty_sequences(self._sequence_shapes(prompt_length)[0])
        completion = np.zeros(self.config.max_new_tokens, np.int32)
        for sequence in range(len(batch.tokens)):
            _, (there,) = batch.add(sequence, 0, [0] * prompt_length, [completion])
            batch.weights[sequence, there] = batch.advantages[sequence, there] = 1
        return batch

    def _sequence_shapes(self, longest_prompt: int) -> list[Shape]:
        return self.config.sequence_shapes(longest_prompt, sharding.num_batch_shards(self._mesh))

    def _empty_sequences(self, shape: Shape) -> PackedSequences:
        batch = PackedSequences.empty(*shape, self._pad_id)
        old = np.zeros_like(batch.weights) if self._needs_old else None
        return dataclasses.replace(batch, old_logprobs=old)

    def _lower_update(self, shape: Shape) -> dict[str, jax.stages.Lowered]:
        return self._programs.update.lower(
            self._programs.state, self._empty_sequences(shape), self._frozen
        )

    def _draw(
        self,
        params: Any,
        task: Task,
        key: jax.Array,
        step: int,
        attempt: int,
        seconds: dict[str, float],
        prompt_scores: PromptScores | None,
    ) -> tuple[Rollout, Scores]:
        """Samples and scores `prompts_per_step` groups; `attempt` counts the step's draws."""
        config, number = self.config, step * self.config.candidates + attempt
        count = config.prompts_per_step
        if attempt >= config.candidates:
            # A second endless stream, so that the first one keeps its passes over all prompts.
            key = jax.random.fold_in(key, _RESAMPLING)
            number = step * config.max_resamples + attempt - 1
        if prompt_scores is None:
            indices = prompt_indices(key, number, count, len(task))
        else:
            indices = replay_indices(config.curriculum, key, step, count, prompt_scores)
        key = jax.random.fold_in(jax.random.fold_in(key, _SAMPLING), number)
        with metrics.timed(seconds, "sample"):
            chats = [task.messages(int(i)) for i in indices]
            kept = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
            if self._compiles_ahead and kept:
                self._compiles_ahead = False
                self._compile_ahead(max(map(len, self._completer.encode(chats))))
            try:
                prompts, samples, completions = self._completer.sample(
                    params, chats, key, config.group_size
                )
            except ValueError as error:  # It counts the prompts of this draw.
                raise ValueError(f"prompts {indices.tolist()} of the task: {error}") from error
        with metrics.timed(seconds, "score"):
            scores = task.score(np.repeat(indices, config.group_size), completions)
        if not isinstance(scores, Scores):
            raise ValueError(f"score: the task returned a {type(scores).__name__}, not `Scores`")
        rewards = np.asarray(scores.rewards, np.float32)
        if rewards.shape != (len(completions),):
            raise ValueError(
                f"rewards: the task returned {rewards!r} at step {step}; one number for "
                f"each of {len(completions)} completions is needed"
            )
        rollout = Rollout(
            indices=indices,
            prompts=prompts,
            tokens=samples.tokens,
            logprobs=samples.logprobs,
            lengths=samples.lengths,
            lost=samples.lost,
            truncated=~samples.stopped,
            completions=completions,
            rewards=rewards,
        )
        return rollout, scores

    def update(self, state: TrainState, batch: Rollout) -> tuple[list[UpdateResult], TrainState]:
        """The updates of one step on a rollout; stops after one that is not finite.

        Args:
          state: whose policy gave the completions; donated.
          batch: `prompts_per_step` groups, with or without signal.
        """
        config = self.config
        advantages = np.asarray(self._programs.advantages(batch.groups)).reshape(-1)
        keep = self._kept(batch)
        sampled = np.arange(batch.tokens.shape[1]) < batch.lengths[:, None]
        if self._thinking is not None:  # The model did not choose tokens that are forced.
            sampled &= ~self._thinking.forced(batch.tokens)
        update_of_completion = np.arange(len(keep)) // config.group_size % config.updates_per_step
        parts = [
            np.flatnonzero(keep & (update_of_completion == u))
            for u in range(config.updates_per_step)
        ]
        work: list[Any] = []
        shapes = self._sequence_shapes(max(map(len, batch.prompts)))
        for chosen in filter(len, parts):
            # Over all N completions, with those left out empty, so that one shape is compiled.
            used = np.zeros_like(sampled)
            used[chosen] = sampled[chosen]
            weights = np.asarray(self._programs.weights(used))
            work.append(micro_batches(batch, chosen, advantages, weights, shapes, self._pad_id))
        if not work:
            step = distributed.put(np.asarray(state.step) + np.int32(1), state.step.sharding)
            return [], dataclasses.replace(state, step=step)
        if self._needs_old:
            # Before any update: these are the arrays that the first one donates.
            params = self.policy_params(state)
            work = [[self._with_old(params, micro) for micro in micros] for micros in work]
        if self._ahead is not None:
            # If it failed, the update compiles again and, if that fails too, says why.
            futures.wait([self._ahead])
            self._ahead = None
        updates: list[UpdateResult] = []
        for u, micros in enumerate(work):
            last = u == len(work) - 1
            state, result = self._programs.update(state, micros, self._frozen, count_step=last)
            updates.append(jax.device_get(result))
            if not (updates[-1].finite and updates[-1].params_finite):
                break
        return updates, state

    def _kept(self, batch: Rollout) -> np.ndarray:
        """bool[N], which completions an update is computed from."""
        keep = batch.signal | (self.config.degenerate_groups == "keep")
        keep = np.repeat(keep, self.config.group_size)
        return keep & ~batch.truncated if self.config.mask_truncated else keep

    def _compile_ahead(self, prompt_length: int) -> None:
        """Begins to compile an update for all shapes of sequences, for JAX's persistent cache."""

        def compiled() -> None:
            for number, shape in enumerate(self._sequence_shapes(prompt_length)):
                lowered = self._lower_update(shape)
                lowered["gradients"].compile()
                if not number:
                    lowered["optimizer"].compile()

        self._ahead = futures.ThreadPoolExecutor(1).submit(compiled)

    def _with_old(self, params: Any, batch: PackedSequences) -> PackedSequences:
        batch = distributed.put(batch, sharding.batch_sharding(self._mesh))
        with sharding.use(self._mesh):
            return dataclasses.replace(batch, old_logprobs=self._programs.score(params, batch))


def _update_metrics(updates: Sequence[UpdateResult]) -> dict[str, float]:
    """Metrics of the updates of one step, token sums over all of them; empty without any."""
    if not updates:
        return {"updates": 0.0}
    means = grpo.token_means(functools.reduce(grpo.merge_sums, [u.sums for u in updates]))
    # Before the first update the trainer's policy is the sampler's; the rest is rounding.
    first = grpo.token_means(updates[0].sums)
    return {
        "update_tokens": means.pop("tokens"),
        **means,
        "mismatch_mean": first["mismatch_mean"],
        "mismatch_max": first["mismatch_max"],
        "updates": float(len(updates)),
        "loss": float(np.mean([update.loss for update in updates])),
        "grad_norm": float(np.mean([update.grad_norm for update in updates])),
        "learning_rate": float(updates[-1].learning_rate),
    }


class _Programs(NamedTuple):
    """Jitted functions, and where the leaves of the state they work on live."""

    state: TrainState
    update: Updater
    weights: Callable[[Any], jax.Array]
    advantages: Callable[[Any], jax.Array]
    score: Callable[[Any, PackedSequences], jax.Array]


@functools.lru_cache(maxsize=8)
def _programs(
    config: GRPOConfig, model_config: DecoderConfig, mesh: Mesh, vocab_size: int
) -> _Programs:
    """Shared by trainers with the same arguments: each would trace and compile the same again."""
    objective, kl_coef = config.objective, config.objective.kl_coef

    def forward(params: Any, batch: PackedSequences) -> tuple[jax.Array, jax.Array]:
        return packed_logprobs(
            params,
            model_config,
            batch,
            temperature=config.temperature,
            vocab_size=vocab_size,
            entropy_gradient=objective.entropy_coef > 0,
        )

    def loss(params: Any, batch: PackedSequences, frozen: Any) -> Any:
        logprobs, entropies = forward(lora.attach(frozen, params, config.lora), batch)
        reference_logprobs = forward(frozen, batch)[0] if kl_coef > 0 else None
        return grpo.objective(
            objective,
            logprobs,
            entropies,
            batch.sampled_logprobs,
            batch.advantages,
            batch.weights > 0,  # The tokens in the loss.
            batch.weights,
            reference_logprobs,
            batch.old_logprobs,
            batch.completions,
        )

    state = abstract_train_state(model_config, config.optimizer, mesh, config.lora)
    return _Programs(
        state,
        Updater(loss, state, config.optimizer, mesh, model_config.dtype),
        jax.jit(
            lambda mask: grpo.token_weights(
                mask, objective.loss_normalization, config.max_new_tokens
            )
        ),
        jax.jit(lambda rewards: grpo.group_advantages(rewards, objective.advantage_normalization)),
        jax.jit(
            lambda params, batch: forward(params, batch)[0],
            out_shardings=sharding.batch_sharding(mesh),
        ),
    )
