"""The evidence of a finished round, gathered from the files in its folder."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import yaml

import mapf_jax
from engineer.evidence import DrawnFailure, Evidence, FailureBreakdown, TrainingEvidence
from experiments import store as files
from experiments.families.lakes.task import judge
from mapf_jax import formats
from mapf_jax.draw import render

FAILURES_DRAWN = 4
"""Failures drawn of each round, of training and of validation alike."""


def round_evidence(folder: Path, validation_set: Path) -> Evidence:
    """The evidence of the round in `folder`.

    Args:
      folder: of a round whose validation is finished.
      validation_set: the file with its instances.
    """
    return Evidence(
        validation=FailureBreakdown.from_dict(files.read_json(folder / "validation.json")),
        training=training_evidence(folder),
        failures=(
            *(
                DrawnFailure(**{**row, "failed": tuple(row["failed"])})
                for row in files.read_json(folder / "train_failures.json")
            ),
            *_validation_failures(folder / "answers.jsonl", validation_set),
        ),
    )


def training_evidence(folder: Path) -> TrainingEvidence:
    """Reward, signal and achieved ratios of a round."""
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    report = files.read_json(folder / "generated.json")
    asked = yaml.safe_load((folder / "environment.yaml").read_text())
    valid: dict[str, float] = {}
    for row in report["sizes"]:
        seen = [line[f"task/valid_{row['size']}"] for line in lines
                if f"task/valid_{row['size']}" in line]  # fmt: skip
        if seen:
            valid[str(row["size"])] = round(float(np.mean(seen)), 4)
    rewards = [line["reward"] for line in lines]
    return TrainingEvidence(
        steps=len(lines),
        reward=round(float(np.mean(rewards)), 4),
        reward_last=round(float(np.mean(rewards[-max(1, len(rewards) // 4) :])), 4),
        nondegenerate_fraction=round(
            float(np.mean([line["nondegenerate_fraction"] for line in lines])), 4
        ),
        valid_rate=valid,
        asked={str(size): numbers for size, numbers in asked.items()},
        achieved={
            str(row["size"]): {
                "data_ratio": row["achieved_data_ratio"],
                "hole_ratio": round(row["holes"] / row["size"] ** 2, 4),
                "wait_ratio": row["achieved_wait_ratio"],
            }
            for row in report["sizes"]
        },
    )


def training_failures(
    instances: mapf_jax.Instance, indices: np.ndarray, texts: Sequence[str]
) -> list[dict[str, Any]]:
    """Some failed training answers, drawn; as JSON holds `DrawnFailure`.

    Args:
      instances: the training set, with solutions.
      indices: i64[N], the instance of each answer.
      texts: N answers.
    """
    judgement = judge(instances, indices, texts)
    verdict = judgement.verdict
    failed = [
        (i, [check for check in mapf_jax.CHECKS if not getattr(verdict, check)[i]])
        for i in np.flatnonzero(~np.asarray(verdict.valid)).tolist()
    ]
    chosen = one_of_each_kind(failed, lambda row: tuple(row[1]), FAILURES_DRAWN)
    return [
        {
            "name": str(int(judgement.sizes[i])),
            "failed": checks,
            "text": drawing(instances[int(indices[i])], texts[i]),
            "held_out": False,
        }
        for i, checks in chosen
    ]


def _validation_failures(answers: Path, validation_set: Path) -> list[DrawnFailure]:
    failed = [row for row in formats.read_jsonl(answers) if not row["valid"]]
    chosen = one_of_each_kind(failed, lambda row: tuple(row["failed"]), FAILURES_DRAWN)
    wanted = {row["id"] for row in chosen}
    records = {row["id"]: row for row in formats.read_jsonl(validation_set) if row["id"] in wanted}
    return [
        DrawnFailure(
            name=str(row["size"]),
            failed=tuple(row["failed"]),
            text=drawing(formats.from_records([records[row["id"]]])[0], row["text"]),
            held_out=True,
        )
        for row in chosen
    ]


def drawing(instance: mapf_jax.Instance, text: str) -> str:
    """An instance and an answer to it: every time step drawn, or the text if it is no plan."""
    agents = instance.starts.shape[-2]
    plan = mapf_jax.plans_from_texts([text], agents)
    if plan.parsable[0] and plan.num_agents[0] == agents:
        return "\n\n".join(render.ascii_frames(instance, jax.tree.map(lambda x: x[0], plan)))
    return f"{render.ascii_instance(instance)}\n\n{text}"


def one_of_each_kind(rows: Iterable[Any], kind: Any, count: int) -> list[Any]:
    """At most `count` rows, one of each kind before a second of any."""
    rows = list(rows)
    firsts: Mapping[Any, int] = {kind(row): i for i, row in reversed(list(enumerate(rows)))}
    first = sorted(firsts.values())
    rest = [i for i in range(len(rows)) if i not in set(first)]
    return [rows[i] for i in [*first, *rest][:count]]
