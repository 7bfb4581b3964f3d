"""The fixed validation set, and a checkpoint's answers to it."""

import dataclasses
from typing import Any

import jax
import numpy as np

import mapf_jax
from experiments.mapf_task import Judgement, judge
from experiments.policy import Policy, Responder
from experiments.settings import Settings
from learner.task import Answer


def validation_config(settings: Settings) -> mapf_jax.EnvironmentConfig:
    """Equal shares of every size."""
    return mapf_jax.EnvironmentConfig.uniform(
        settings.environment.sizes,
        settings.validation.hole_ratio,
        settings.validation.wait_ratio,
    )


def validation_set(settings: Settings) -> tuple[mapf_jax.Instance, mapf_jax.GenerationReport]:
    """The instances; they depend on the validation settings and the sizes alone."""
    return mapf_jax.generate(
        jax.random.key(settings.validation.seed),
        validation_config(settings),
        settings.validation.num_instances,
        settings.environment.num_agents,
        max_candidates=settings.environment.max_candidates,
    )


@dataclasses.dataclass(frozen=True)
class ValidationResult:
    """Answers to the whole set, with what the verifier says of them."""

    answers: list[Answer]
    judgement: Judgement


class Validator:
    """Validates parameters of one policy on one set.

    Args:
      settings: of the run.
      policy: the model.
      instances: of `validation_set`.
    """

    def __init__(self, settings: Settings, policy: Policy, instances: mapf_jax.Instance) -> None:
        self._instances = instances
        self._key = jax.random.key(settings.validation.seed)
        self._respond = Responder(
            policy, settings.validation.max_new_tokens, settings.validation.temperature
        )
        self._chats = [
            [
                {
                    "role": "user",
                    "content": mapf_jax.prompt(instances[i], settings.environment.list_holes),
                }
            ]
            for i in range(len(instances))
        ]

    def __call__(self, params: Any) -> ValidationResult:
        """Answers every instance once; the same key for every checkpoint."""
        answers = self._respond(params, self._chats, self._key)
        indices = np.arange(len(self._instances))
        return ValidationResult(
            answers, judge(self._instances, indices, [answer.text for answer in answers])
        )
