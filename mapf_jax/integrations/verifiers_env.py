"""MAPF-FrozenLake as an environment of `verifiers` before 0.4: a `SingleTurnEnv` with a `Rubric`.

From 0.4 on `verifiers` has tasksets instead: `verifiers_taskset`.
"""

from collections.abc import Iterable
from typing import Any

import verifiers as vf
from datasets import Dataset

from mapf_jax.answer_reward import RewardConfig, reward_weights
from mapf_jax.integrations import dataset
from mapf_jax.integrations.scoring import FIELDS, score, text_of


def load_environment(
    num_instances: int = 1000,
    num_eval_instances: int = 200,
    sizes: Iterable[int] = range(3, 11),
    hole_ratio: float = 0.2,
    wait_ratio: float = 0.5,
    num_agents: int = 2,
    seed: int = 0,
    list_holes: bool = False,
    short_share: float = 1.0,
    short_length: int = RewardConfig.short_length,
    long_length: int = RewardConfig.long_length,
    **options: Any,
) -> vf.SingleTurnEnv:
    """Makes distinct instances for training and for evaluation, and their environment.

    The reward is that of `mapf_jax.answer_reward`; its weights do not move but follow from
    `short_share`. The answers to an instance are judged in one batch. Where a server does not say
    how many tokens an answer has, `num_tokens` is 0 and length costs nothing.

    Args:
      num_instances: of the training set.
      num_eval_instances: of the evaluation set, at least 1.
      sizes: lake sizes, in equal shares.
      hole_ratio: share of holes.
      wait_ratio: share of the instances that need a wait.
      num_agents: 2 to 5.
      seed: equal seeds give equal instances.
      list_holes: also list the cells of the holes in the prompts.
      short_share: share of short answers from which the weights follow; from 0.9 on they are
        (0.8, 0.2).
      short_length: L1, tokens up to which length costs nothing.
      long_length: L2, tokens from which length costs most.
      **options: handed to `SingleTurnEnv`, such as `system_prompt`.

    Raises:
      ValueError: an argument is out of range, or there are not so many instances.
    """
    if min(num_instances, num_eval_instances) < 1:
        raise ValueError(
            f"num_instances={num_instances}, num_eval_instances={num_eval_instances}: at least 1 "
            "each is needed"
        )
    total = num_instances + num_eval_instances
    records = dataset.made_records(total, sizes, hole_ratio, wait_ratio, num_agents, seed)
    if len(records) < total:
        raise ValueError(f"num_instances: only {len(records)} of {total} instances were found")
    rows = [
        {
            "prompt": row["prompt"],
            "answer": row["answer"],
            "info": {field: row[field] for field in ("id", *FIELDS)},
        }
        for row in dataset.dataset_rows(records, list_holes=list_holes)
    ]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows[:num_instances]),
        eval_dataset=Dataset.from_list(rows[num_instances:]),
        rubric=_rubric(short_share, RewardConfig(short_length, long_length)),
        **options,
    )


def _rubric(short_share: float, config: RewardConfig) -> vf.Rubric:
    """The parts of the reward with their weights, and metrics of weight 0."""

    def function(name: str) -> Any:
        def component(completions: list[Any], infos: list[Any], states: list[Any]) -> list[float]:
            if "mapf" not in states[0]:  # The first function judges for all of them.
                texts = [text_of(completion) for completion in completions]
                tokens = [_num_tokens(state) for state in states]
                scores = score(infos, texts, tokens, short_share, config)
                for i, state in enumerate(states):
                    state["mapf"] = scores.components(i)
            return [state["mapf"][name] for state in states]

        component.__name__ = name
        return component

    w_accuracy, w_length = reward_weights(short_share)
    weights = {
        "reward_accuracy": w_accuracy,
        "reward_length": w_length,
        "valid": 0.0,
        "optimal": 0.0,
        "num_tokens": 0.0,
    }
    return vf.Rubric([function(name) for name in weights], list(weights.values()))


def _num_tokens(state: Any) -> int:
    step = state["trajectory"][-1]
    if step["tokens"] is not None:
        return len(step["tokens"]["completion_ids"])
    usage = step["response"].usage
    return 0 if usage is None else usage.completion_tokens
