"""On-policy training on a `Task`: choose problems, sample, score, update; one step at a time.

The sampler reads the very arrays that the update writes, so there is nothing to synchronise. A
step depends on its arguments alone (state, task state, key, step number): a run that is killed and
resumed from a checkpoint goes on with bitwise the same weights on the same machine.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from learner import grpo, sharding, tokens
from learner.answers import AnswerRows, answer_logprobs, pack_rows
from learner.qwen3.config import Qwen3Config
from learner.sampler import Sampler, SamplingParams
from learner.task import Answer, Scores, Task, problem_indices
from learner.train_state import OptimizerConfig, TrainState
from learner.update import NonFiniteUpdateError, Updater, UpdateResult

# What the key is folded with; `problem_indices` folds it with 0.
_SAMPLING = 1


@dataclasses.dataclass(frozen=True)
class GRPOConfig:
    """How a policy is trained on a task.

    Attributes:
      prompts_per_step: P, problems sampled from in one step.
      group_size: G, answers to each; at least 2.
      epochs: passes over the task's problems; may be a fraction.
      updates_per_step: optimizer updates on the answers of one step, each on its share of the
        groups (mu in DeepSeekMath, arXiv 2402.03300). 1 is strictly on-policy.
      micro_batch_rows: rows that go through the model at once; a multiple of data * fsdp of the
        mesh. It changes memory and speed, never the result.
      answers_per_row: answers to one prompt that share a row, and so one pass over the prompt.
        Pays where answers are not much longer than prompts: attention grows with the square of
        the row. It changes memory and speed, never the result.
      length_multiple: rows are padded to a multiple of this many tokens; each multiple that
        occurs is compiled once. Rows are sorted by length first, so short ones stay short.
      max_new_tokens: budget of an answer, stop token included.
      sampling_rows: answers sampled at a time, at least `group_size` for each row shard of the
        mesh; bounds the memory of the key/value cache.
      temperature: of sampling and of the policy that is optimised; > 0.
      objective: the loss.
      optimizer: the optimizer.
      mask_truncated: leave answers that ran out of budget out of the loss. Their rewards still
        count in their group's mean.
      drop_no_signal: leave groups whose rewards are all equal out of the batch, and so out of
        every normaliser (dynamic sampling, DAPO, arXiv 2503.14476). They are dropped and not
        drawn anew: the batch gets smaller. With a KL term they lose that term too. If False,
        they take part with advantage 0.

    Raises:
      ValueError: a field is out of its range.
    """

    prompts_per_step: int = 32
    group_size: int = 8
    epochs: float = 1.0
    updates_per_step: int = 1
    micro_batch_rows: int = 8
    answers_per_row: int = 1
    length_multiple: int = 32
    max_new_tokens: int = 1024
    sampling_rows: int = 512
    temperature: float = 1.0
    objective: grpo.ObjectiveConfig = dataclasses.field(default_factory=grpo.ObjectiveConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mask_truncated: bool = False
    drop_no_signal: bool = True

    def __post_init__(self) -> None:
        for name, least in (
            ("prompts_per_step", 1),
            ("group_size", 2),
            ("updates_per_step", 1),
            ("micro_batch_rows", 1),
            ("answers_per_row", 1),
            ("length_multiple", 1),
            ("max_new_tokens", 1),
            ("sampling_rows", 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name}={value!r}: allowed are integers from {least} up")
        if self.sampling_rows < self.group_size:
            raise ValueError(
                f"sampling_rows={self.sampling_rows}: allowed are integers from "
                f"group_size={self.group_size} up"
            )
        for name in ("epochs", "temperature"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name}={value!r}: allowed are finite numbers above 0")
        if self.updates_per_step > self.prompts_per_step:
            raise ValueError(
                f"updates_per_step={self.updates_per_step}: allowed are 1 to "
                f"prompts_per_step={self.prompts_per_step}"
            )

    def num_steps(self, num_problems: int) -> int:
        """Steps that `epochs` passes over so many problems take.

        The problems of all epochs follow each other in one stream that is cut into steps of
        `prompts_per_step`; a last step that is not full takes the beginning of the next pass, or of
        several where a step holds more prompts than there are problems.
        """
        # The small number keeps 1.1 * 100 / 10, which is 11.000000000000002, at 11.
        return math.ceil(self.epochs * num_problems / self.prompts_per_step - 1e-9)


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What one step gives back.

    Attributes:
      step: its number.
      state: the state after it; the next step donates it, so copy what has to outlive that.
      metrics: figures for the log; those of the update are absent if no answer had a signal.
      indices: i64[N], the problem of every answer, prompt-major (N = P * G).
      answers: N answers.
      scores: what the task said.
    """

    step: int
    state: TrainState
    metrics: dict[str, float]
    indices: np.ndarray
    answers: list[Answer]
    scores: Scores


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _MicroBatch:
    """R rows of A answers; `old_logprobs` and `weights` f32[R, A, M], `advantages` f32[R, A]."""

    rows: AnswerRows
    old_logprobs: jax.Array
    advantages: jax.Array
    weights: jax.Array


class GRPOTrainer:
    """Compiled functions for one configuration, model and mesh; holds no training state.

    Args:
      config: how to train.
      model_config: the model.
      mesh: of `sharding.make_mesh`.
      tokenizer: encodes the problems and decodes the answers.
      reference_params: parameters of the reference model, with the shardings of the policy's;
        needed if `config.objective.kl_coef` > 0 and refused otherwise. They must not be the
        arrays of the state, which are donated.

    Raises:
      ValueError: `micro_batch_rows` does not divide over the mesh, or `reference_params` and
        `kl_coef` do not go together.
    """

    def __init__(
        self,
        config: GRPOConfig,
        model_config: Qwen3Config,
        mesh: Mesh,
        tokenizer: Any,
        reference_params: Any = None,
    ) -> None:
        shards = sharding.num_row_shards(mesh)
        if config.micro_batch_rows % shards:
            raise ValueError(
                f"micro_batch_rows={config.micro_batch_rows}: allowed are multiples of {shards} "
                "(data * fsdp of the mesh)"
            )
        if (config.objective.kl_coef > 0) != (reference_params is not None):
            raise ValueError(
                f"reference_params {'missing' if reference_params is None else 'given'}: they "
                f"are for kl_coef > 0 only, and kl_coef={config.objective.kl_coef}"
            )
        self.config = config
        self._tokenizer = tokenizer
        self._reference = reference_params
        self._pad_id = tokens.pad_id(tokenizer)
        vocab_size = min(tokens.vocab_size(tokenizer), model_config.vocab_size)
        self._sampler = Sampler(
            model_config,
            mesh,
            SamplingParams(
                temperature=config.temperature,
                max_new_tokens=config.max_new_tokens,
                stop_token_ids=tokens.stop_token_ids(tokenizer),
            ),
            self._pad_id,
            max_rows=config.sampling_rows,
            vocab_size=vocab_size,
        )
        forward = functools.partial(
            answer_logprobs, temperature=config.temperature, vocab_size=vocab_size
        )

        def loss(params: Any, batch: _MicroBatch, reference: Any) -> Any:
            window = batch.weights.shape[-1]
            logprobs, entropies = forward(params, model_config, batch.rows, window)
            reference_logprobs = None
            if reference is not None:
                reference_logprobs, _ = forward(reference, model_config, batch.rows, window)
            return grpo.objective(
                config.objective,
                logprobs,
                entropies,
                batch.old_logprobs,
                batch.advantages,
                grpo.answer_mask(batch.rows.answer_lengths, window),
                batch.weights,
                reference_logprobs,
            )

        def weights(lengths: jax.Array) -> jax.Array:
            return grpo.token_weights(
                grpo.answer_mask(lengths, config.max_new_tokens),
                config.objective.loss_normalization,
                config.objective.constant_length,
            )

        self._weights = jax.jit(weights)
        self._advantages = jax.jit(
            functools.partial(
                grpo.group_advantages, normalization=config.objective.advantage_normalization
            )
        )
        self._update = Updater(
            loss,
            grpo.ObjectiveSums.zero,
            grpo.ObjectiveSums.merge,
            model_config,
            config.optimizer,
            mesh,
        )

    def run(
        self, state: TrainState, task: Task, key: jax.Array, start_step: int, num_steps: int
    ) -> Iterator[StepResult]:
        """Steps `start_step` to `num_steps` - 1, each yielded as soon as it is done.

        The caller keeps checkpoints and logs between the steps. To resume, restore the state and
        the task's state as they were after step k - 1 and start at k.

        Args:
          state: where to start from; donated.
          task: what to train on.
          key: a typed JAX key of the whole run on this task.
          start_step: the first step, from 0.
          num_steps: steps of the whole run, those before `start_step` included; see
            `GRPOConfig.num_steps`.
        """
        for step in range(start_step, num_steps):
            result = self.step(state, task, key, step)
            state = result.state
            yield result

    def step(self, state: TrainState, task: Task, key: jax.Array, step: int) -> StepResult:
        """One step; see `run`.

        Raises:
          NonFiniteUpdateError: loss or gradient was NaN or infinite. The weights from before
            that update are in the error.
          ValueError: the task returned rewards of a wrong shape, or not finite ones.
        """
        config = self.config
        begin = time.perf_counter()
        problems = problem_indices(key, step, config.prompts_per_step, len(task))
        prompts = [tokens.encode_chat(self._tokenizer, task.messages(int(i))) for i in problems]
        step_key = jax.random.fold_in(jax.random.fold_in(key, _SAMPLING), step)
        keys = jax.random.split(step_key, len(prompts))
        samples = self._sampler(state.params, prompts, keys, num_samples=config.group_size)
        sampled, logprobs, lengths = samples.tokens, samples.logprobs, samples.lengths
        truncated = ~samples.stopped
        sample_seconds = time.perf_counter() - begin

        begin = time.perf_counter()
        answers = [
            Answer(tokens.decode(self._tokenizer, ids[:n].tolist()), int(n), bool(cut))
            for ids, n, cut in zip(sampled, lengths, truncated, strict=True)
        ]
        indices = np.repeat(problems, config.group_size)
        scores = task.score(indices, answers)
        rewards = np.asarray(scores.rewards, np.float32)
        if rewards.shape != (len(answers),) or not np.all(np.isfinite(rewards)):
            raise ValueError(
                f"rewards: the task returned {rewards!r} at step {step}; one finite number for "
                f"each of {len(answers)} answers is needed"
            )
        score_seconds = time.perf_counter() - begin

        begin = time.perf_counter()
        groups = rewards.reshape(-1, config.group_size)
        signal = np.asarray(grpo.has_signal(jnp.asarray(groups)))
        advantages = np.asarray(self._advantages(groups)).reshape(-1)
        metrics = {
            "reward": float(rewards.mean()),
            "reward_std": float(rewards.std()),
            "signal_share": float(signal.mean()),
            "answer_tokens_mean": float(lengths.mean()),
            "answer_tokens_max": float(lengths.max()),
            "truncated_share": float(truncated.mean()),
            **{f"task/{name}": float(value) for name, value in scores.metrics.items()},
        }

        keep = np.repeat(signal | (not config.drop_no_signal), config.group_size)
        if config.mask_truncated:
            keep &= ~truncated
        group_of_row = np.arange(len(answers)) // config.group_size
        updates: list[UpdateResult] = []
        shares = [
            share
            for u in range(config.updates_per_step)
            if (share := np.flatnonzero(keep & (group_of_row % config.updates_per_step == u))).size
        ]
        for u, share in enumerate(shares):
            batches = self._micro_batches(prompts, sampled, lengths, logprobs, advantages, share)
            last = u == len(shares) - 1
            state, result = self._update(state, batches, self._reference, count_step=last)
            updates.append(jax.device_get(result))
            if not updates[-1].finite:
                break
        if not shares:
            state = _count_step(state)
        metrics |= _update_metrics(updates)
        metrics["sample_seconds"] = sample_seconds
        metrics["score_seconds"] = score_seconds
        metrics["update_seconds"] = time.perf_counter() - begin
        if updates and not updates[-1].finite:
            raise NonFiniteUpdateError(step, metrics, state)
        return StepResult(step, state, metrics, indices, answers, scores)

    def _micro_batches(
        self,
        prompts: Sequence[Sequence[int]],
        sampled: np.ndarray,
        lengths: np.ndarray,
        logprobs: np.ndarray,
        advantages: np.ndarray,
        share: np.ndarray,
    ) -> Iterator[_MicroBatch]:
        """The answers `share` of one update in rows, sorted by length, cut into micro-batches.

        The weights are those of all answers of the update together, whatever the cuts.
        """
        config = self.config
        used = np.zeros_like(lengths)
        used[share] = lengths[share]
        # Over all N answers, those left out being empty: one shape, so compiled once.
        weights = np.asarray(self._weights(used))
        rows: list[np.ndarray] = []
        for prompt in range(len(prompts)):
            of_prompt = share[share // config.group_size == prompt]
            cuts = range(0, len(of_prompt), config.answers_per_row)
            rows += [of_prompt[first : first + config.answers_per_row] for first in cuts]
        totals = [len(prompts[row[0] // config.group_size]) + lengths[row].sum() for row in rows]
        rows = [rows[i] for i in np.argsort(totals, kind="stable")]
        for first in range(0, len(rows), config.micro_batch_rows):
            yield self._micro_batch(
                rows[first : first + config.micro_batch_rows],
                prompts,
                sampled,
                lengths,
                logprobs,
                advantages,
                weights,
            )

    def _micro_batch(
        self,
        rows: Sequence[np.ndarray],
        prompts: Sequence[Sequence[int]],
        sampled: np.ndarray,
        lengths: np.ndarray,
        logprobs: np.ndarray,
        advantages: np.ndarray,
        weights: np.ndarray,
    ) -> _MicroBatch:
        """One micro-batch; each of `rows` holds the indices of the answers of one row."""
        config = self.config
        chosen = [prompts[row[0] // config.group_size] for row in rows]
        answers = [[sampled[i, : lengths[i]] for i in row] for row in rows]
        totals = [
            len(prompt) + sum(map(len, given))
            for prompt, given in zip(chosen, answers, strict=True)
        ]
        longest = max(int(lengths[row].max()) for row in rows)
        length = tokens.bucket(max(totals), config.length_multiple)
        window = min(config.max_new_tokens, tokens.bucket(longest, config.length_multiple))
        # Index N stands for an answer that is not there.
        index = np.full((config.micro_batch_rows, config.answers_per_row), len(lengths))
        for i, row in enumerate(rows):
            index[i, : len(row)] = row

        def gather(values: np.ndarray) -> Any:
            return np.concatenate([values, np.zeros_like(values[:1])])[index]

        return _MicroBatch(
            rows=pack_rows(
                chosen,
                answers,
                config.micro_batch_rows,
                config.answers_per_row,
                length,
                self._pad_id,
            ),
            old_logprobs=gather(logprobs[:, :window]),
            advantages=gather(advantages),
            weights=gather(weights[:, :window]),
        )


def _count_step(state: TrainState) -> TrainState:
    step = jax.device_put(np.asarray(state.step) + np.int32(1), state.step.sharding)
    return dataclasses.replace(state, step=step)


def _update_metrics(updates: Sequence[UpdateResult]) -> dict[str, float]:
    """Figures of the updates of one step, token sums over all of them; empty without any."""
    if not updates:
        return {"updates": 0.0}
    sums = updates[0].sums
    for update in updates[1:]:
        sums = sums.merge(update.sums)
    tokens_used = max(float(sums.tokens), 1.0)
    return {
        "updates": float(len(updates)),
        "loss": float(np.mean([update.loss for update in updates])),
        "grad_norm": float(np.mean([update.grad_norm for update in updates])),
        "learning_rate": float(updates[-1].learning_rate),
        "entropy": float(sums.entropy) / tokens_used,
        "kl": float(sums.kl_old) / tokens_used,
        "kl_reference": float(sums.kl_reference) / tokens_used,
        "clip_low": float(sums.clip_low) / tokens_used,
        "clip_high": float(sums.clip_high) / tokens_used,
        "ratio_min": float(sums.ratio_min),
        "ratio_max": float(sums.ratio_max),
        "update_tokens": float(sums.tokens),
    }
