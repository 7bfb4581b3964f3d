"""Trains the current checkpoint as engineer: designs as answers, learning progress as reward.

Off by default and beyond the publication. The same trainer that teaches plans teaches designs: a
group of designs is sampled from one context, a copy of the weights is trained for a few steps
under each, and the rise of its mean reward on a probe set is the design's reward.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import mapf_jax
from engineer.context import fitted
from engineer.design_task import DesignTask
from engineer.record import RunRecord
from engineer.space import Configuration
from experiments import store as files
from experiments.families.lakes import texts as lakes
from experiments.families.lakes.task import MapfTask, judge
from experiments.policy import Policy
from experiments.settings import Settings
from experiments.validation import validation_config
from learner.devices import distributed, sharding
from learner.sampling.completer import Completer
from learner.training.task import Completion, Message, Scores
from learner.training.train_state import TrainState
from learner.training.trainer import GRPOTrainer
from learner.training.update import NonFiniteError
from mapf_jax.answer_reward import accuracy_reward

# What the key of a round's engineer training is folded with.
_JUDGE, _DESIGNS, _STEPS = range(3)
# What the key of a step is folded with.
_PROBE_SET, _PROBE, _ANSWERS = range(3)
WORST = -1.0
"""Reward of a design that cannot be read, has no solvable instance, or breaks training."""


class EngineerTrainer:
    """Trains a state on designing, one round at a time.

    Args:
      settings: of the run.
      policy: the model.
      trainer: of the plans; the probes use it.
      respond: how plans are sampled for the probe set.
      exclude: fingerprints of validation instances, of which no probe may have any.
      fits: whether the model's window holds a chat and a design.
      reference: parameters of the reference model, as the trainer has them.
      base: parameters under the adapters, as the trainer has them.
      pause: called after every step under a design, a point that all processes reach; what it
        raises ends the training.

    Raises:
      ValueError: the settings of training do not go with groups of designs.
    """

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        trainer: GRPOTrainer,
        respond: Completer,
        exclude: set[bytes],
        fits: Callable[[Sequence[Message]], bool],
        reference: Any = None,
        base: Any = None,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        options, training = settings.engineer.training, settings.training
        shards = sharding.num_row_shards(policy.mesh)
        config = dataclasses.replace(
            training,
            prompts_per_step=1,
            group_size=options.group_size,
            updates_per_step=1,
            micro_batch_rows=shards,
            completions_per_row=1,
            max_new_tokens=settings.engineer.max_new_tokens,
            thinking=settings.engineer.thinking,
            temperature=settings.engineer.temperature,
            degenerate_groups="drop",
        )
        self._designs = GRPOTrainer(
            config, policy.config, policy.mesh, policy.tokenizer, reference, base
        )
        self._settings = settings
        self._plans = trainer
        self._respond = respond
        self._exclude = exclude
        self._fits = fits
        self._pause = pause
        self._space = settings.environment.space()

    def judge_set(self, key: jax.Array, trained: set[bytes]) -> mapf_jax.Instance:
        """The probe set of a round.

        Args:
          key: as of `__call__`.
          trained: fingerprints of the training sets so far, of which it has none.

        Raises:
          NoInstanceError: no instance can be made.
        """
        environment = self._settings.environment
        judged, _ = mapf_jax.generate(
            jax.random.fold_in(key, _JUDGE),
            validation_config(self._settings),
            self._settings.engineer.training.judge_instances,
            environment.num_agents,
            exclude=self._exclude | trained,
            max_candidates=environment.max_candidates,
            spread=distributed.sharded_map,
        )
        return judged

    def __call__(
        self,
        state: TrainState,
        record: RunRecord,
        judged: mapf_jax.Instance,
        key: jax.Array,
        log: Path,
    ) -> TrainState:
        """The state after training on the design that `record` asks for.

        It is the same state if no context fits the model's window, as no design can be made then.

        Args:
          state: where to start from; donated.
          record: the run so far.
          judged: the probe set, of `judge_set`.
          key: a typed JAX key of this round's training.
          log: a JSON lines file, one line a step with every design and its progress; written anew.

        Raises:
          NonFiniteError: loss or gradient of the training on designs was NaN or infinite.
        """
        engineer = self._settings.engineer
        lines: list[dict[str, Any]] = []
        whether = fitted(engineer.spec, record, lakes.TEXTS, self._fits) is not None
        for step in range(engineer.training.steps if whether else 0):
            step_key = jax.random.fold_in(jax.random.fold_in(key, _STEPS), step)
            probe = _Probe(self, state, judged, step_key)
            task = _LearnerTask(
                DesignTask(
                    [record],
                    engineer.spec,
                    lakes.TEXTS,
                    self._space,
                    probe,
                    WORST,
                    trigger=engineer.trigger,
                    fits=self._fits,
                )
            )
            result = self._designs.step(state, task, jax.random.fold_in(key, _DESIGNS), step)
            state = result.state
            lines.append(
                {
                    "step": step,
                    "metrics": result.metrics,
                    "answers": [
                        {"text": answer.text, "reward": float(reward), **scored}
                        for answer, reward, scored in zip(
                            result.completions,
                            result.scores.rewards,
                            result.scores.records,
                            strict=True,
                        )
                    ],
                }
            )
        if distributed.is_first():
            files.write_jsonl(log, lines)
        return state

    def _reward(self, params: Any, judged: mapf_jax.Instance, key: jax.Array) -> float:
        """Mean accuracy reward of one answer to every instance of the probe set."""
        chats = [
            [
                {
                    "role": "user",
                    "content": mapf_jax.prompt(judged[i], self._settings.environment.list_holes),
                }
            ]
            for i in range(len(judged))
        ]
        texts = [answer.text for answer in self._respond(params, chats, key)]
        judgement = judge(judged, np.arange(len(judged)), texts)
        return float(np.mean(accuracy_reward(judgement.verdict, judgement.optimum)))


class _Probe:
    """How much a short training under a design teaches the state as it is now."""

    def __init__(
        self, owner: EngineerTrainer, state: TrainState, judged: mapf_jax.Instance, key: jax.Array
    ) -> None:
        self._owner, self._state, self._judged, self._key = owner, state, judged, key
        self._before: float | None = None

    def __call__(self, config: Configuration) -> float:
        owner = self._owner
        settings, options = owner._settings, owner._settings.engineer.training
        answers_key = jax.random.fold_in(self._key, _ANSWERS)
        if self._before is None:
            params = owner._plans.policy_params(self._state)
            self._before = owner._reward(params, self._judged, answers_key)
        try:
            instances, _ = mapf_jax.generate(
                jax.random.fold_in(self._key, _PROBE_SET),
                mapf_jax.EnvironmentConfig.from_dict(config.to_dict()),
                options.probe_instances,
                settings.environment.num_agents,
                exclude=owner._exclude | set(mapf_jax.fingerprints(self._judged)),
                max_candidates=settings.environment.max_candidates,
                spread=distributed.sharded_map,
            )
            task = MapfTask(instances, settings.reward, settings.environment.list_holes)
            state = jax.tree.map(jnp.copy, self._state)  # Training donates what it is given.
            for result in owner._plans.run(
                state, task, jax.random.fold_in(self._key, _PROBE), 0, options.probe_steps
            ):
                state = result.state
                owner._pause()
        except (mapf_jax.NoInstanceError, NonFiniteError):
            return WORST
        after = owner._reward(owner._plans.policy_params(state), self._judged, answers_key)
        return after - self._before


class _LearnerTask:
    """A `DesignTask` as the learner's `Task`, which it knows nothing of."""

    def __init__(self, task: DesignTask) -> None:
        self._task = task

    def __len__(self) -> int:
        return len(self._task)

    def messages(self, index: int) -> Sequence[Message]:
        return self._task.messages(index)

    def score(self, indices: np.ndarray, answers: Sequence[Completion]) -> Scores:
        scores = self._task.score(indices, answers)
        return Scores(scores.rewards, scores.metrics, scores.records)

    def state(self) -> dict[str, Any]:
        return self._task.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._task.restore(state)
