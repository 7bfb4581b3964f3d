"""The fixed validation set, and a checkpoint's completions of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.errors import UserError
from experiments.families import Family, Generated, Problem
from experiments.policy import Policy
from experiments.settings import Settings
from experiments.store import RunStore
from learner import tokens
from learner.chat import Completion
from learner.sampling.completer import Completer
from learner.sampling.sampler import SamplingParams
from learner.training.task import Scores, Task

# Folded into the key of the set for the key of its completions.
_COMPLETIONS = 1 << 20


def validation_set(settings: Settings, family: Family) -> Generated:
    """The problems; they depend on the options of validation and family, not on the run's seed.

    Raises:
      UserError: no problem of some row can be made.
    """
    validation = settings.validation
    key = jax.random.key(validation.seed)
    generated = family.generate(key, family.validation, validation.num_instances, ())
    empty = [name for name, row in generated.rows.items() if not row.made]
    if empty:
        raise UserError(
            f"validation: no problem of {family.texts.label} {', '.join(empty)} could be made; "
            f"allowed are easier ones, or more than {validation.num_instances} in all"
        )
    return generated


def validation_completer(settings: Settings, policy: Policy, greedy: bool = False) -> Completer:
    """How validation completions are sampled; with thinking where training has it.

    Args:
      greedy: whether the likeliest token is taken each time, whatever the temperature.

    Raises:
      ValueError: thinking is limited, and the tokenizer has no token that ends it.
    """
    validation = settings.validation
    limit = validation.thinking_tokens
    return policy.completer(
        SamplingParams(
            max_new_tokens=validation.max_new_tokens,
            temperature=0.0 if greedy else validation.temperature,
            thinking=tokens.thinking_budget(policy.tokenizer, limit) if limit else None,
        ),
        settings.training.sampling_rows,
        thinking=settings.training.thinking,
    )


def validate(
    settings: Settings,
    family: Family,
    respond: Completer,
    problems: Sequence[Problem],
    params: Any,
) -> list[dict[str, Any]]:
    """A record of one completion to every problem; the same key for every checkpoint.

    Records are those of the family's task, always with `optimal`, and with `id` of the problem,
    `tokens`, `truncated` and `text` of the completion.

    Args:
      respond: of `validation_completer`.
      problems: of `validation_set`.

    Raises:
      ValueError: the task has no record for some completion.
    """
    task = family.task(problems)  # A new one, so that every checkpoint is scored alike.
    key = jax.random.fold_in(jax.random.key(settings.validation.seed), _COMPLETIONS)
    completions, scores = complete_all(task, respond, params, key)
    return [
        {
            "id": problem["id"],
            "optimal": record["valid"],
            **record,
            "tokens": completion.num_tokens,
            "truncated": completion.truncated,
            "text": completion.text,
        }
        for problem, record, completion in zip(problems, scores.records, completions, strict=True)
    ]


def complete_all(
    task: Task, respond: Completer, params: Any, key: jax.Array
) -> tuple[list[Completion], Scores]:
    """One completion to every prompt of a task, and what the task says of them.

    Raises:
      ValueError: the task has no record for some completion.
    """
    chats = [task.messages(i) for i in range(len(task))]
    completions = respond(params, chats, key)
    scores = task.score(np.arange(len(task)), completions)
    if len(scores.records) != len(completions):
        raise ValueError(
            f"score: {len(scores.records)} records of {len(completions)} completions; each needs "
            "one"
        )
    return completions, scores


def write_validation(
    store: RunStore,
    folder: Path,
    family: Family,
    records: Sequence[dict[str, Any]],
    greedy: Sequence[dict[str, Any]],
) -> None:
    """Writes `answers.jsonl`, then `validation.json`, which says that both are complete.

    Args:
      records: of the completions that count, as `validate` returns them.
      greedy: of greedy ones; the same object where those are greedy. Otherwise they are written to
        `greedy.jsonl`.
    """
    store.write(folder / "answers.jsonl", records)
    if greedy is not records:
        store.write(folder / "greedy.jsonl", greedy)
    tokens_of = [record["tokens"] for record in records]
    store.write(
        folder / "validation.json",
        {
            **family.breakdown(records).to_dict(),
            "greedy": family.breakdown(greedy).to_dict(),
            "completion_tokens_mean": round(float(np.mean(tokens_of)), 2),
            "truncated_fraction": round(float(np.mean([r["truncated"] for r in records])), 4),
        },
    )
