"""The fixed validation set, and the validation of a checkpoint."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from engineer.evidence import FailureBreakdown
from experiments.families import Family, Generated, NoProblemError, Problem
from experiments.ring.outcomes import outcome_metrics
from experiments.run.policy import Policy
from experiments.run.store import RunStore
from experiments.settings import Settings
from experiments.statistics import effective_trials
from experiments.text.errors import UserError
from learner import tokens
from learner.chat import Completion
from learner.sampling.completer import Completer
from learner.sampling.sampler import SamplingParams
from learner.training.task import Scores, Task

# Folded into the key of the set for the key of its completions.
_COMPLETIONS = 1 << 20
_TEST = 1 << 21  # The same for the test set.


def validation_set(settings: Settings, family: Family) -> Generated:
    """Generates the problems from the options of validation and family, not the run's seed.

    Raises:
      UserError: some row gets no problem.
    """
    validation = settings.validation
    key = jax.random.key(validation.seed)
    generated = family.validation_set(key, validation.num_instances)
    _check_rows(generated, family, "num_instances", validation.num_instances)
    return generated


def test_set(settings: Settings, family: Family, exclude: Sequence[Problem]) -> Generated:
    """As `validation_set`, of `validation.test_instances` problems that are not in `exclude`."""
    validation = settings.validation
    key = jax.random.fold_in(jax.random.key(validation.seed), _TEST)
    try:
        generated = family.validation_set(key, validation.test_instances, exclude)
    except NoProblemError as error:
        raise UserError(
            f"validation.test_instances={validation.test_instances}: {error}"
        ) from error
    _check_rows(generated, family, "test_instances", validation.test_instances)
    return generated


def _check_rows(generated: Generated, family: Family, option: str, count: int) -> None:
    config, made = family.validation, {name for name, row in generated.rows.items() if row.made}
    fraction = family.space.fraction_parameter
    if empty := [row for row in config.rows if config[row, fraction] and row not in made]:
        raise UserError(
            f"validation.{option}={count}: no problem of {family.texts.label} {', '.join(empty)} "
            "could be made; allowed are easier ones, or more in all"
        )


def validation_completers(settings: Settings, policy: Policy) -> tuple[Completer, Completer]:
    """The completers of sampled and of greedy validation, with thinking as in training.

    At temperature 0 both are the same object.

    Raises:
      ValueError: the model does not support the requested thinking.
    """
    validation = settings.validation
    sampled, greedy = (
        policy.completer(
            SamplingParams(
                max_new_tokens=validation.max_new_tokens,
                temperature=temperature,
                thinking=tokens.thinking_budget(
                    policy.tokenizer, validation.thinking_tokens, validation.max_new_tokens
                ),
            ),
            settings.training,
            thinking=validation.thinking_tokens > 0,
        )
        for temperature in (validation.temperature, 0.0)
    )
    return sampled, greedy if validation.temperature else sampled


def validate(
    settings: Settings,
    family: Family,
    respond: Completer,
    problems: Sequence[Problem],
    params: Any,
    samples: int = 1,
) -> list[dict[str, Any]]:
    """Samples and verifies completions of every problem, with the same key for all checkpoints.

    Args:
      respond: of `validation_completers`.
      problems: of `validation_set`.
      samples: completions of each problem.

    Returns:
      The records of the family's task, problem by problem, always with `optimal`, and with `id` of
      the problem and `tokens`, `truncated` and `text` of the completion.

    Raises:
      ValueError: the task has no record for some completion.
    """
    task = family.task(problems)  # A new one, so that every checkpoint is scored alike.
    key = jax.random.fold_in(jax.random.key(settings.validation.seed), _COMPLETIONS)
    completions, scores = complete_all(task, respond, params, key, samples)
    answered = (problem for problem in problems for _ in range(samples))
    return [
        {
            "optimal": record["valid"],
            **record,
            "id": problem["id"],
            "tokens": completion.num_tokens,
            "truncated": completion.truncated,
            "text": completion.text,
        }
        for problem, record, completion in zip(answered, scores.records, completions, strict=True)
    ]


def complete_all(
    task: Task, respond: Completer, params: Any, key: jax.Array, count: int = 1
) -> tuple[list[Completion], Scores]:
    """`count` completions of every prompt of a task, prompt by prompt, and their scores.

    Raises:
      ValueError: the task has no record for some completion.
    """
    chats = [task.messages(i) for i in range(len(task))]
    completions = respond(params, chats, key, count)
    scores = task.score(np.repeat(np.arange(len(task)), count), completions)
    if len(scores.records) != len(completions):
        raise ValueError(
            f"score: {len(scores.records)} records of {len(completions)} completions; each needs "
            "one"
        )
    return completions, scores


class Written(NamedTuple):
    """What `write_validation` wrote.

    Attributes:
      records: of all sampled answers, as in `answers.jsonl`.
      sampled, greedy: their outcomes, and those of the greedy answers.
      metrics: the rates of both for the log.
    """

    records: list[dict[str, Any]]
    sampled: FailureBreakdown
    greedy: FailureBreakdown
    metrics: dict[str, float]


def write_validation(
    store: RunStore,
    folder: Path,
    family: Family,
    validated: Callable[[Completer, int], list[dict[str, Any]]],
    sampled: Completer,
    greedy: Completer,
    samples: int = 1,
) -> Written:
    """Writes `answers.jsonl` and `greedy.jsonl`, then `validation.json`: then all is complete.

    Args:
      validated: makes the records of `validate` with a completer and so many samples, for files
        that are not there yet.
      sampled, greedy: of `validation_completers`.
      samples: sampled completions of each problem; there is one greedy one.
    """
    records = store.kept(folder / "answers.jsonl", lambda: validated(sampled, samples))
    found = found_greedy = family.breakdown(records)
    metrics = outcome_metrics(found, "validation/")
    if greedy is not sampled:
        records_greedy = store.kept(folder / "greedy.jsonl", lambda: validated(greedy, 1))
        found_greedy = family.breakdown(records_greedy)
        metrics = outcome_metrics(found_greedy, "validation_greedy/") | metrics
    tokens_of = [record["tokens"] for record in records]

    def effective(kind: str) -> float:
        of_problems = np.array([record[kind] for record in records]).reshape(-1, samples)
        return round(effective_trials(of_problems), 1)

    store.write(
        folder / "validation.json",
        {
            **found.to_dict(),
            "effective_answers": {kind: effective(kind) for kind in ("valid", "optimal")},
            "greedy": found_greedy.to_dict(),
            "completion_tokens_mean": round(float(np.mean(tokens_of)), 2),
            "truncated_fraction": round(float(np.mean([r["truncated"] for r in records])), 4),
        },
    )
    return Written(records, found, found_greedy, metrics)
