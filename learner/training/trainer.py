"""On-policy training on a `Task`: choose problems, sample, score, update; one step at a time.

The weights are those of training, on the same mesh: there is nothing to synchronise. While it
samples, a step holds a decoding copy of them besides (`learner.sampling.decoding.decoding_params`).
A step depends on its arguments alone (state, task state, key, step number): a run that is killed
and resumed from a checkpoint goes on with bitwise the same weights on the same machine.
"""

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from learner import checks, tokens
from learner.chat import Completion
from learner.devices import distributed, sharding
from learner.qwen3 import placement
from learner.qwen3.config import Qwen3Config
from learner.sampling.completer import Completer
from learner.sampling.sampler import SamplingParams
from learner.training import grpo, lora, metrics
from learner.training.completion_rows import CompletionRows, completion_logprobs, pack_rows
from learner.training.lora import LoraConfig
from learner.training.rollout import Rollout
from learner.training.task import Scores, Task, prompt_indices
from learner.training.train_state import (
    OptimizerConfig,
    TrainState,
    abstract_train_state,
    create_train_state,
)
from learner.training.update import NonFiniteError, Updater, UpdateResult, not_finite

DegenerateGroups = Literal["drop", "resample", "keep"]

# What the key is folded with; `prompt_indices` folds it with 0.
_SAMPLING, _RESAMPLING, _ADAPTERS = 1, 2, 3
_LENGTHS_PER_DOUBLING = 4


@dataclasses.dataclass(frozen=True)
class GRPOConfig:
    """How a policy is trained on a task.

    Attributes:
      prompts_per_step: P, problems sampled from in one step.
      group_size: G, completions to each; at least 2.
      epochs: passes over the task's problems; may be a fraction.
      updates_per_step: optimizer updates on the completions of one step, each on its share of the
        groups, so every completion is used once. (mu in DeepSeekMath, arXiv 2402.03300, is another
        thing: it goes over all completions so many times.) 1 is strictly on-policy.
      micro_batch_rows: rows that go through the model at once; a multiple of data * fsdp of the
        mesh. It changes memory and speed, never the result.
      completions_per_row: completions to one prompt that share a row, and so one pass over the
      prompt.
        Pays where completions are not much longer than prompts: attention grows with the square of
        the row. It changes memory and speed, never the result.
      length_multiple: rows are padded to a multiple of this many tokens, long ones to one of four
        lengths between a power of two and the next; see `row_shape`. Each shape that occurs is
        compiled once. Rows are sorted by length first, so short ones stay short.
      max_new_tokens: budget of a completion, stop token included.
      thinking: let the chat template open the model's thinking, which then counts as completion.
      sampling_rows: completions sampled at a time, at least one for each row shard of the mesh;
        bounds the memory of the key/value cache. Larger groups are sampled in parts.
      temperature: of sampling and of the policy that is optimised; > 0.
      objective: the loss.
      optimizer: the optimizer.
      mask_truncated: leave completions that ran out of budget out of the loss. Their rewards still
        count in their group's mean.
      degenerate_groups: what becomes of groups whose rewards are all equal (dynamic sampling, DAPO,
        arXiv 2503.14476). "drop" leaves them out of the batch, and so out of every normaliser:
        the batch gets smaller. "resample" samples from `prompts_per_step` further problems, up to
        `max_resamples` times, until so many groups have a signal; those of the last draw that are
        too many are not used. "keep" lets them take part with advantage 0. Where they are left
        out they lose the KL and entropy terms too.
      max_resamples: see `degenerate_groups`.
      lora: adapters to train in place of all parameters; off by default.

    Raises:
      ValueError: a field is out of its range.
    """

    prompts_per_step: int = 32
    group_size: int = 8
    epochs: float = 1.0
    updates_per_step: int = 1
    micro_batch_rows: int = 8
    completions_per_row: int = 1
    length_multiple: int = 32
    max_new_tokens: int = 1024
    thinking: bool = False
    sampling_rows: int = 512
    temperature: float = 1.0
    objective: grpo.ObjectiveConfig = dataclasses.field(default_factory=grpo.ObjectiveConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mask_truncated: bool = False
    degenerate_groups: DegenerateGroups = "drop"
    max_resamples: int = 2
    lora: LoraConfig = dataclasses.field(default_factory=LoraConfig)

    def __post_init__(self) -> None:
        checks.integers(
            self,
            prompts_per_step=1,
            group_size=2,
            updates_per_step=1,
            micro_batch_rows=1,
            completions_per_row=1,
            length_multiple=1,
            max_new_tokens=1,
            sampling_rows=1,
            max_resamples=1,
        )
        checks.positive(self, "epochs", "temperature")
        checks.choices(self, degenerate_groups=get_args(DegenerateGroups))
        if self.updates_per_step > self.prompts_per_step:
            raise ValueError(
                f"updates_per_step={self.updates_per_step}: allowed are 1 to "
                f"prompts_per_step={self.prompts_per_step}"
            )

    def num_steps(self, num_prompts: int) -> int:
        """Steps that `epochs` passes over so many problems take.

        The problems of all epochs follow each other in one stream that is cut into steps of
        `prompts_per_step`; a last step that is not full takes the beginning of the next pass, or of
        several where a step holds more prompts than there are problems.
        """
        # The small number keeps 1.1 * 100 / 10, which is 11.000000000000002, at 11.
        return math.ceil(self.epochs * num_prompts / self.prompts_per_step - 1e-9)

    def row_shape(self, longest_row: int, longest_completion: int) -> tuple[int, int]:
        """The length and the window of a micro-batch: few pairs, as each is compiled once.

        Args:
          longest_row: tokens of the longest row, prompt and completions.
          longest_completion: tokens of the longest completion in any row.

        Returns:
          The tokens that rows are padded to, and the tokens that completions are padded to where
          their log-probabilities are computed: a quarter, a half or all of `max_new_tokens`. Both
          grow with the arguments.
        """
        length = tokens.geometric_bucket(longest_row, self.length_multiple, _LENGTHS_PER_DOUBLING)
        windows = [
            min(
                self.max_new_tokens,
                tokens.bucket(-(-self.max_new_tokens // n), self.length_multiple),
            )
            for n in (4, 2, 1)
        ]
        return length, tokens.bucket(longest_completion, windows)

    def prompt_capacity(self, length: int, longest_prompt: int) -> int:
        """Tokens that hold a shared prompt: an eighth, a quarter, a half or all of a row.

        All of it where every completion has a row of its own.
        """
        if self.completions_per_row == 1:
            return length
        return tokens.bucket(longest_prompt, [-(-length // n) for n in (8, 4, 2, 1)])


@dataclasses.dataclass(frozen=True)
class StepResult:
    """What one step gives back.

    Attributes:
      step: its number.
      state: the state after it; the next step donates it, so copy what has to outlive that.
      metrics: figures for the log; those of the update are absent if no completion had a signal.
        Those that begin with `metrics.MACHINE` depend on the machine and its load.
      indices: i64[N], the problem of every completion, prompt-major (N = P * G, or a multiple of
      that
        after resampling).
      completions: N completions.
      scores: what the task said; of several draws the rewards and records follow each other, and
        each metric is the mean of its values.
    """

    step: int
    state: TrainState
    metrics: dict[str, float]
    indices: np.ndarray
    completions: Sequence[Completion]
    scores: Scores


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _MicroBatch:
    """R rows of A completions.

    `sampled_logprobs` and `weights` are f32[R, A, M], `advantages` f32[R, A]. `old_logprobs` are
    f32[R, A, M] by the trainer, or None where the sampler's or the current ones stand for them.
    """

    rows: CompletionRows
    sampled_logprobs: jax.Array
    advantages: jax.Array
    weights: jax.Array
    old_logprobs: jax.Array | None = None


class GRPOTrainer:
    """Compiled functions for one configuration, model and mesh; holds no training state.

    Args:
      config: how to train.
      model_config: the model.
      mesh: of `sharding.make_mesh`.
      tokenizer: encodes the problems and decodes the completions.
      reference_params: parameters of the reference model, with the shardings of the policy's;
        needed if `config.objective.kl_coef` > 0 and refused otherwise. They must not be the
        arrays of the state, which are donated.
      base_params: the frozen parameters that `config.lora` adapts; needed if its rank is not 0
        and refused otherwise. They may be the reference as well: the same arrays.

    Raises:
      ValueError: `micro_batch_rows` does not divide over the mesh, or `reference_params` and
        `kl_coef`, or `base_params` and `lora.rank`, do not go together.
    """

    def __init__(
        self,
        config: GRPOConfig,
        model_config: Qwen3Config,
        mesh: Mesh,
        tokenizer: Any,
        reference_params: Any = None,
        base_params: Any = None,
    ) -> None:
        shards = sharding.num_row_shards(mesh)
        if config.micro_batch_rows % shards:
            raise ValueError(
                f"micro_batch_rows={config.micro_batch_rows}: allowed are multiples of {shards} "
                "(data * fsdp of the mesh)"
            )
        for name, given, field, value in (
            ("reference_params", reference_params, "kl_coef", config.objective.kl_coef),
            ("base_params", base_params, "lora.rank", config.lora.rank),
        ):
            if (value > 0) != (given is not None):
                raise ValueError(
                    f"{name} {'missing' if given is None else 'given'}: they "
                    f"are for {field} > 0 only, and {field}={value}"
                )
        self.config = config
        self._model_config = model_config
        self._mesh = mesh
        self._extra = {"reference": reference_params, "base": base_params}
        self._pad_id = tokens.pad_id(tokenizer)
        vocab_size = min(tokens.vocab_size(tokenizer), model_config.vocab_size)
        self._completer = Completer(
            model_config,
            mesh,
            tokenizer,
            SamplingParams(temperature=config.temperature, max_new_tokens=config.max_new_tokens),
            config.sampling_rows,
            config.thinking,
        )
        objective = config.objective
        corrected = objective.importance_correction != "none"
        # With one update the old policy is the current one; no pass of its own is needed.
        self._needs_old = corrected and config.updates_per_step > 1

        def forward(params: Any, batch: _MicroBatch) -> tuple[jax.Array, jax.Array]:
            return completion_logprobs(
                params,
                model_config,
                batch.rows,
                batch.weights.shape[-1],
                temperature=config.temperature,
                vocab_size=vocab_size,
                entropy_gradient=objective.entropy_coef > 0,
            )

        def full(params: Any, base: Any) -> Any:
            return params if base is None else lora.merge(base, params, config.lora)

        def loss(params: Any, batch: _MicroBatch, extra: Any) -> Any:
            logprobs, entropies = forward(full(params, extra["base"]), batch)
            old_logprobs = batch.old_logprobs
            if corrected and old_logprobs is None:
                old_logprobs = jax.lax.stop_gradient(logprobs)
            reference_logprobs = None
            if extra["reference"] is not None:
                reference_logprobs, _ = forward(extra["reference"], batch)
            return grpo.objective(
                objective,
                logprobs,
                entropies,
                batch.sampled_logprobs,
                batch.advantages,
                grpo.completion_mask(batch.rows.completion_lengths, logprobs.shape[-1]),
                batch.weights,
                reference_logprobs,
                old_logprobs,
            )

        def weights(lengths: jax.Array) -> jax.Array:
            return grpo.token_weights(
                grpo.completion_mask(lengths, config.max_new_tokens),
                objective.loss_normalization,
                objective.constant_length,
            )

        self._weights = jax.jit(weights)
        self._advantages = jax.jit(
            functools.partial(
                grpo.group_advantages, normalization=objective.advantage_normalization
            )
        )
        self._merge = jax.jit(full, out_shardings=placement.param_shardings(model_config, mesh))
        rows = sharding.batch_sharding(mesh)
        self._score = jax.jit(lambda params, batch: forward(params, batch)[0], out_shardings=rows)
        self._update = Updater(
            loss,
            grpo.ObjectiveSums.merge,
            model_config,
            config.optimizer,
            mesh,
            config.lora,
        )

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

        What to sample from, validate and export. Without adapters these are the arrays of the
        state, which the next step donates; with adapters they are a new copy.
        """
        if not self.config.lora.rank:
            return state.params
        return self._merge(state.params, self._extra["base"])

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
          NonFiniteError: a log-probability, a reward, the loss, the gradient or any other figure
            was NaN or infinite. The last finite state and the completions are in the error. A
            figure that does not exist (a mean of nothing) has to be left out by the task.
          ValueError: the task returned rewards of a wrong shape.
        """
        config = self.config
        clock = metrics.Clock()
        params = self.policy_params(state)
        draws: list[Rollout] = []
        all_scores: list[Scores] = []
        for attempt in range(1 + config.max_resamples * (config.degenerate_groups == "resample")):
            rollout, scores = self._draw(state, params, task, key, step, attempt, clock)
            draws.append(rollout)
            all_scores.append(scores)
            if sum(int(draw.signal.sum()) for draw in draws) >= config.prompts_per_step:
                break
        del params
        drawn = Rollout.concatenate(draws)
        # Groups with a signal first, in the order they were drawn; always the same number.
        chosen = np.argsort(~drawn.signal, kind="stable")[: config.prompts_per_step]
        batch = drawn.take(np.sort(chosen))

        with clock.measure("update"):
            updates, state = self.update(state, batch)
        scores = _merge_scores(all_scores)
        seconds = clock.seconds
        update_tokens = sum(float(update.sums.tokens) for update in updates)
        figures = {
            **_rollout_metrics(drawn),
            "draws": float(len(draws)),
            "groups_used": float(batch.signal.sum()),
            **{f"task/{name}": float(value) for name, value in scores.metrics.items()},
            **_update_metrics(updates),
            **metrics.machine(seconds),
            **metrics.rate("sample", float(drawn.lengths.sum()), seconds),
            **metrics.rate("update", update_tokens, seconds),
        }
        if updates and not updates[-1].finite:
            raise NonFiniteError(step, not_finite(figures), figures, state, batch)
        name = metrics.first_not_finite(figures)
        if name is not None:
            what = f"{name} {figures[name]} is not finite"
            raise NonFiniteError(step, what, figures, state, batch, weights_kept=not updates)
        indices = np.repeat(drawn.problems, config.group_size)
        return StepResult(step, state, figures, indices, drawn.completions, scores)

    def lower_sampling(self, prompt_length: int) -> dict[str, jax.stages.Lowered]:
        """The programs of sampling, ready to compile without any arrays: `learner.plan`.

        Args:
          prompt_length: tokens of the longest prompt.
        """
        config = self.config
        state = abstract_train_state(self._model_config, config.optimizer, self._mesh)
        return self._completer.sampler.lower(
            state.params, config.prompts_per_step, config.group_size, prompt_length
        )

    def lower_update(self, prompt_length: int) -> dict[str, jax.stages.Lowered]:
        """The programs of an update with the longest rows, ready to compile without any arrays.

        `reference_params` and `base_params` of the trainer may be `jax.ShapeDtypeStruct`s with
        shardings here.

        Args:
          prompt_length: tokens of the longest prompt.
        """
        config = self.config
        rows, window = (config.micro_batch_rows, config.completions_per_row), config.max_new_tokens
        length, _ = config.row_shape(prompt_length + config.completions_per_row * window, window)
        prompt_capacity = config.prompt_capacity(length, prompt_length)

        def integers(*shape: int) -> Any:
            return jax.ShapeDtypeStruct(shape, np.int32)

        numbers: Any = jax.ShapeDtypeStruct((*rows, window), np.float32)
        batch = _MicroBatch(
            rows=CompletionRows(
                integers(rows[0], length), integers(rows[0]), integers(*rows), prompt_capacity
            ),
            sampled_logprobs=numbers,
            advantages=numbers.update(shape=rows),
            weights=numbers,
            old_logprobs=numbers if self._needs_old else None,
        )
        state = abstract_train_state(self._model_config, config.optimizer, self._mesh, config.lora)
        return self._update.lower(state, batch, self._extra)

    def _draw(
        self,
        state: TrainState,
        params: Any,
        task: Task,
        key: jax.Array,
        step: int,
        attempt: int,
        clock: metrics.Clock,
    ) -> tuple[Rollout, Scores]:
        """Samples and scores `prompts_per_step` groups; `attempt` is 0, or counts the resamples."""
        config = self.config
        number = step
        if attempt:
            # A second endless stream, so that the first one keeps its passes over all problems.
            key = jax.random.fold_in(key, _RESAMPLING)
            number = step * config.max_resamples + attempt - 1
        problems = prompt_indices(key, number, config.prompts_per_step, len(task))
        key = jax.random.fold_in(jax.random.fold_in(key, _SAMPLING), number)
        with clock.measure("sample"):
            chats = [task.messages(int(i)) for i in problems]
            prompts, samples, completions = self._completer.sample(
                params, chats, key, config.group_size
            )
        with clock.measure("score"):
            scores = task.score(np.repeat(problems, config.group_size), completions)
        rewards = np.asarray(scores.rewards, np.float32)
        if rewards.shape != (len(completions),):
            raise ValueError(
                f"rewards: the task returned {rewards!r} at step {step}; one number for "
                f"each of {len(completions)} completions is needed"
            )
        rollout = Rollout(
            problems=problems,
            prompts=prompts,
            tokens=samples.tokens,
            logprobs=samples.logprobs,
            lengths=samples.lengths,
            truncated=~samples.stopped,
            completions=completions,
            rewards=rewards,
        )
        for what, values in (
            ("a reward", rewards),
            ("a log-probability of the sampler", samples.logprobs),
        ):
            if not np.all(np.isfinite(values)):
                raise NonFiniteError(step, f"{what} is not finite", {}, state, rollout)
        return rollout, scores

    def update(self, state: TrainState, batch: Rollout) -> tuple[list[UpdateResult], TrainState]:
        """The updates of one step on a rollout; stops after one that is not finite.

        Args:
          state: whose policy gave the completions; donated.
          batch: `prompts_per_step` groups, with or without signal.
        """
        config = self.config
        advantages = np.asarray(self._advantages(batch.groups)).reshape(-1)
        keep = np.repeat(batch.signal | (config.degenerate_groups == "keep"), config.group_size)
        if config.mask_truncated:
            keep &= ~batch.truncated
        group_of_row = np.arange(len(batch.completions)) // config.group_size
        shares = [
            share
            for u in range(config.updates_per_step)
            if (share := np.flatnonzero(keep & (group_of_row % config.updates_per_step == u))).size
        ]
        if not shares:
            return [], _count_step(state)
        work: list[Any] = [self._micro_batches(batch, advantages, share) for share in shares]
        if self._needs_old:
            # Before any update: without adapters these are the arrays that the first one donates.
            params = self.policy_params(state)
            work = [[self._with_old(params, micro) for micro in micros] for micros in work]
        updates: list[UpdateResult] = []
        for u, micro_batches in enumerate(work):
            last = u == len(work) - 1
            state, result = self._update(state, micro_batches, self._extra, count_step=last)
            updates.append(jax.device_get(result))
            if not updates[-1].finite:
                break
        return updates, state

    def _with_old(self, params: Any, batch: _MicroBatch) -> _MicroBatch:
        batch = distributed.put(batch, sharding.batch_sharding(self._mesh))
        with sharding.use(self._mesh):
            return dataclasses.replace(batch, old_logprobs=self._score(params, batch))

    def _micro_batches(
        self, batch: Rollout, advantages: np.ndarray, share: np.ndarray
    ) -> Iterator[_MicroBatch]:
        """The completions `share` of one update in rows, sorted by length, cut into micro-batches.

        The weights are those of all completions of the update together, whatever the cuts.
        """
        config = self.config
        used = np.zeros_like(batch.lengths)
        used[share] = batch.lengths[share]
        # Over all N completions, those left out being empty: one shape, so compiled once.
        weights = np.asarray(self._weights(used))
        rows: list[np.ndarray] = []
        for prompt in range(len(batch.prompts)):
            of_prompt = share[share // config.group_size == prompt]
            cuts = range(0, len(of_prompt), config.completions_per_row)
            rows += [of_prompt[first : first + config.completions_per_row] for first in cuts]
        totals = [
            len(batch.prompts[row[0] // config.group_size]) + batch.lengths[row].sum()
            for row in rows
        ]
        rows = [rows[i] for i in np.argsort(totals, kind="stable")]
        for first in range(0, len(rows), config.micro_batch_rows):
            chosen = rows[first : first + config.micro_batch_rows]
            yield self._micro_batch(chosen, batch, advantages, weights)

    def _micro_batch(
        self,
        rows: Sequence[np.ndarray],
        batch: Rollout,
        advantages: np.ndarray,
        weights: np.ndarray,
    ) -> _MicroBatch:
        """One micro-batch; each of `rows` holds the indices of the completions of one row."""
        config = self.config
        lengths = batch.lengths
        chosen = [batch.prompts[row[0] // config.group_size] for row in rows]
        completions = [[batch.tokens[i, : lengths[i]] for i in row] for row in rows]
        totals = [
            len(prompt) + sum(map(len, given))
            for prompt, given in zip(chosen, completions, strict=True)
        ]
        longest = max(int(lengths[row].max()) for row in rows)
        length, window = config.row_shape(max(totals), longest)
        # Index N stands for a completion that is not there.
        index = np.full((config.micro_batch_rows, config.completions_per_row), len(lengths))
        for i, row in enumerate(rows):
            index[i, : len(row)] = row

        def gather(values: np.ndarray) -> Any:
            return np.concatenate([values, np.zeros_like(values[:1])])[index]

        return _MicroBatch(
            rows=pack_rows(
                chosen,
                completions,
                config.micro_batch_rows,
                config.completions_per_row,
                length,
                self._pad_id,
                config.prompt_capacity(length, max(map(len, chosen))),
            ),
            sampled_logprobs=gather(batch.logprobs[:, :window]),
            advantages=gather(advantages),
            weights=gather(weights[:, :window]),
        )


def _count_step(state: TrainState) -> TrainState:
    step = distributed.put(np.asarray(state.step) + np.int32(1), state.step.sharding)
    return dataclasses.replace(state, step=step)


def _merge_scores(parts: Sequence[Scores]) -> Scores:
    """Those of several draws as one; see `StepResult`."""
    if len(parts) == 1:
        return parts[0]
    names = {name: None for part in parts for name in part.metrics}
    return Scores(
        rewards=np.concatenate([part.rewards for part in parts]),
        metrics={
            name: float(np.mean([part.metrics[name] for part in parts if name in part.metrics]))
            for name in names
        },
        records=[record for part in parts for record in part.records],
    )


def _rollout_metrics(drawn: Rollout) -> dict[str, float]:
    """Figures of everything that was sampled in a step."""
    lengths, ended = drawn.lengths, drawn.lengths[~drawn.truncated]
    low, middle, high = np.percentile(lengths, (10, 50, 90))
    return {
        "reward": float(drawn.rewards.mean()),
        "reward_std": float(drawn.rewards.std()),
        "reward_std_in_groups": float(drawn.groups.std(axis=1).mean()),
        "nondegenerate_fraction": float(drawn.signal.mean()),
        "completion_tokens_mean": float(lengths.mean()),
        "completion_tokens_min": float(lengths.min()),
        "completion_tokens_p10": float(low),
        "completion_tokens_p50": float(middle),
        "completion_tokens_p90": float(high),
        "completion_tokens_max": float(lengths.max()),
        **({"completion_tokens_mean_ended": float(ended.mean())} if ended.size else {}),
        "truncated_fraction": float(drawn.truncated.mean()),
    }


def _update_metrics(updates: Sequence[UpdateResult]) -> dict[str, float]:
    """Figures of the updates of one step, token sums over all of them; empty without any."""
    if not updates:
        return {"updates": 0.0}
    sums = updates[0].sums
    for update in updates[1:]:
        sums = sums.merge(update.sums)
    count = max(float(sums.tokens), 1.0)
    first = updates[0].sums
    return {
        "updates": float(len(updates)),
        "loss": float(np.mean([update.loss for update in updates])),
        "grad_norm": float(np.mean([update.grad_norm for update in updates])),
        "learning_rate": float(updates[-1].learning_rate),
        "entropy": float(sums.entropy) / count,
        "kl": float(sums.kl_old) / count,
        "kl_reference": float(sums.kl_reference) / count,
        "clip_low": float(sums.clip_low) / count,
        "clip_high": float(sums.clip_high) / count,
        "clip_dual": float(sums.clip_dual) / count,
        "ratio_min": float(sums.ratio_min),
        "ratio_max": float(sums.ratio_max),
        # Before the first update the trainer's policy is the sampler's; the rest is rounding.
        "mismatch_mean": float(first.mismatch) / max(float(first.tokens), 1.0),
        "mismatch_max": float(first.mismatch_max),
        "importance_weight_mean": float(sums.importance_weight) / count,
        "update_tokens": float(sums.tokens),
    }
