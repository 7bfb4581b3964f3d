"""Supervised lessons in design from the run's own past, so that the checkpoint keeps reading.

Off by default and beyond the publication. Training on problems erodes how a checkpoint reads its
evidence (docs/studies/designers_sums). After a round the run knows which rows of the space had a
training signal. So each past context becomes a lesson: its answer is the design that was used, with
the set divided as hindsight suggests.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from engineer.context import Message, fitted
from engineer.controls import exchanged, with_rows_renamed
from engineer.curricula import TARGET_FLOOR, explored
from engineer.designers import projected
from engineer.proposal import render_config
from engineer.record import RunRecord
from engineer.space import Configuration, ConfigurationSpace
from experiments.families import Family
from experiments.run.policy import Policy
from experiments.settings import Settings
from learner import tokens
from learner.training import sft
from learner.training.train_state import TrainState

LESSONS = 32
"""Lessons in a step."""
_TINY = 1e-9  # Added to changes, so that they may all be 0.


def best_in_hindsight(
    record: RunRecord, index: int, space: ConfigurationSpace, by: str = "signal"
) -> Configuration:
    """The configuration of round `index`, with the set divided as the round turned out.

    Let p and q be a row's valid rates before and after the round. Its weight is

    - by "signal": the mean of p (1 - p) and q (1 - q), plus 0.05, so that no row vanishes:
      that of `engineer.curricula.targeted`, which the warm start demonstrates, over two
      validations;
    - by "learning_progress": |q - p|, the reward of teacher-student curriculum learning (arXiv
      1707.00183); a fifth of the set is divided equally, as in
      `engineer.curricula.progress_bandit`, and all of it if no rate changed.

    Args:
      record: of a run that has finished the round.
      index: of the round, at least 1.
      space: the rows and bounds.
      by: "signal" or "learning_progress".
    """
    before, after = record.history[index - 1 : index + 1]
    p, q = (
        np.array(list(past.breakdown.valid_rates(space.rows).values())) for past in (before, after)
    )
    if by == "signal":
        weights = ((p * (1.0 - p) + q * (1.0 - q)) / 2 + TARGET_FLOOR).tolist()
    else:
        weights = explored(np.abs(q - p) + _TINY)
    return projected(space, after.config.cells() | space.divided(weights), "hindsight").config


class Hindsight:
    """Trains a state on designs corrected in hindsight.

    Args:
      settings: of the run.
      family: of the problems.
      policy: the model, its tokenizer and mesh.
      fits: whether the model's window holds a chat and a design.
    """

    def __init__(
        self,
        settings: Settings,
        family: Family,
        policy: Policy,
        fits: Callable[[Sequence[Message]], bool],
    ) -> None:
        self._settings, self._family, self._policy, self._fits = settings, family, policy, fits
        training, tokenizer = settings.training, policy.tokenizer
        config = sft.SFTConfig(
            batch_size=LESSONS,
            micro_batch_size=training.micro_batch_size,
            max_completion_tokens=settings.engineer.max_new_tokens,
            optimizer=training.optimizer,
        )
        self._trainer = sft.SFTTrainer(config, policy.config, policy.mesh, tokens.pad_id(tokenizer))

    def __call__(
        self, state: TrainState, record: RunRecord, key: jax.Array
    ) -> tuple[TrainState, list[dict[str, Any]]]:
        """The state after `engineer.training.hindsight_steps`, and each step's metrics, JSON-able.

        The state is unchanged if only one round is finished or no context fits.

        Args:
          state: the initial state; donated.
          record: of the run so far.
          key: a typed JAX key of this round's lessons.

        Raises:
          NonFiniteError: loss or gradient was NaN or infinite.
        """
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        lessons, steps = self._lessons(record, rng), []
        for step in range(self._settings.engineer.training.hindsight_steps):
            examples = list(itertools.islice(lessons, LESSONS))
            if not examples:
                break
            state, metrics = self._trainer.step(state, examples, step)
            steps.append({"step": step, "metrics": metrics})
        return state, steps

    def _lessons(self, record: RunRecord, rng: np.random.Generator) -> Iterator[sft.Example]:
        """An endless stream of lessons from all past designs; empty if there are none.

        In half of them the rows of context and answer are permuted at random, so that outcomes
        decide, not names.
        """
        engineer, space = self._settings.engineer, self._family.space
        texts, tokenizer = self._family.texts, self._policy.tokenizer
        while len(record.history) > 1:
            seen = record
            if rng.random() < 0.5:
                seen = with_rows_renamed(record, exchanged(space, rng), configs=True)
            index = int(rng.integers(1, len(record.history)))
            config = best_in_hindsight(seen, index, space, engineer.training.hindsight)
            shown = dataclasses.replace(
                seen, history=seen.history[:index], round=seen.history[index].round
            )
            found = fitted(engineer.spec, shown, texts, self._fits)
            if found is None:
                return
            yield from sft.encode_examples(tokenizer, [(found[0], render_config(config, space))])
