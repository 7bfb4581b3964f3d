"""The fixed validation set, and a checkpoint's answers to it."""

import dataclasses
from typing import Any

import jax
import numpy as np

import mapf_jax
from experiments.families.lakes.task import Judgement, judge
from experiments.policy import Policy
from experiments.settings import Settings
from learner import tokens
from learner.devices import distributed
from learner.sampling.completer import Completer
from learner.sampling.sampler import SamplingParams
from learner.training.task import Completion

_ANSWERS = 1 << 20


def validation_config(settings: Settings) -> mapf_jax.EnvironmentConfig:
    """Equal shares of every size."""
    return mapf_jax.EnvironmentConfig.uniform(
        settings.environment.sizes,
        settings.validation.hole_ratio,
        settings.validation.wait_ratio,
    )


def validation_set(settings: Settings) -> tuple[mapf_jax.Instance, mapf_jax.GenerationReport]:
    """The instances.

    They depend on the settings of the validation, and on the sizes, number of agents and candidate
    budget of the environment, but not on the seed of the run.

    Raises:
      ValueError: no instance of some size can be made.
    """
    instances, report = mapf_jax.generate(
        jax.random.key(settings.validation.seed),
        validation_config(settings),
        settings.validation.num_instances,
        settings.environment.num_agents,
        max_candidates=settings.environment.max_candidates,
        spread=distributed.sharded_map,
    )
    empty = [row.size for row in report.sizes if not row.made]
    if empty:
        raise ValueError(
            f"validation: no instance of sizes {empty} could be made; allowed are a smaller "
            f"hole_ratio than {settings.validation.hole_ratio} and more than "
            f"{settings.validation.num_instances} instances or "
            f"{settings.environment.max_candidates} candidates"
        )
    return instances, report


@dataclasses.dataclass(frozen=True)
class ValidationResult:
    """Answers to the whole set, with what the verifier says of them."""

    answers: list[Completion]
    judgement: Judgement


def validation_responder(settings: Settings, policy: Policy) -> Completer:
    """How validation answers are sampled; with thinking where training has it.

    Raises:
      ValueError: thinking is limited, and the tokenizer has no token that ends it.
    """
    validation = settings.validation
    limit = validation.thinking_tokens
    return policy.completer(
        SamplingParams(
            max_new_tokens=validation.max_new_tokens,
            temperature=validation.temperature,
            thinking=tokens.thinking_budget(policy.tokenizer, limit) if limit else None,
        ),
        settings.training.sampling_rows,
        thinking=settings.training.thinking,
    )


class Validator:
    """Validates parameters of one policy on one set.

    Args:
      settings: of the run.
      respond: of `validation_responder`.
      instances: of `validation_set`.
    """

    def __init__(
        self, settings: Settings, respond: Completer, instances: mapf_jax.Instance
    ) -> None:
        self._instances = instances
        # Another key than the one that the set was made with.
        self._key = jax.random.fold_in(jax.random.key(settings.validation.seed), _ANSWERS)
        self._respond = respond
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
