"""Selects varied answers of a run's last validation and draws them."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from experiments.ring.outcomes import one_of_each_kind
from experiments.run.reading import Run
from experiments.run.store import read_log


def of_run(run: Run, count: int) -> dict[str, Any] | None:
    """Some failures and successes of the last validation, or None if it has no answers.

    Args:
      run: the run.
      count: number of failures drawn, and of successes.

    Returns:
      `when`, the number of the last round before it, 0 for the start; `answers` and `failed`, the
      numbers of all answers and of failures; `failures` of different kinds; and `successes`, first
      those that were not solved before training. Each failure or success is a mapping with `row`,
      the run's record of the answer; `failed`, its failed checks in words (if one of them makes the
      others meaningless, only that one) and whether it was truncated; `drawing`, in HTML; and
      `new`, whether it is solved now but was not before training.

    Raises:
      ValueError: a file is damaged.
    """
    validations = run.validations
    if not validations:
        return None
    (number, last), (first_number, first) = validations[-1], validations[0]
    asked = read_log(run.root / "validation" / "instances.jsonl")
    problems = {row["id"]: row for row in asked}
    rows = [row for row in read_log(last.answers) if row["id"] in problems]
    if not rows:
        return None
    before: dict[str, bool] = {}
    if first_number == 0 < number:
        before = {row["id"]: row["valid"] for row in read_log(first.answers)}

    family = run.family
    alone = set(family.texts.alone)

    def drawn(row: Mapping[str, Any]) -> dict[str, Any]:
        problem = problems[row["id"]]
        drawing = family.draw(problem, row["text"])
        first = [check for check in row["failed"] if check in alone]
        return {
            "row": row,
            "failed": [
                *map(family.failure, first[:1] or row["failed"]),
                *(["truncated"] if row["truncated"] else []),
            ],
            "drawing": Markup("<pre>{}</pre>").format(family.text(problem, row["text"]))
            if drawing is None
            else Markup(drawing),
            "new": row["valid"] and before.get(row["id"]) is False,
        }

    # Failures whose drawing can show the error come first.
    failed = sorted((r for r in rows if not r["valid"]), key=lambda r: bool(alone & {*r["failed"]}))
    # Problems not solved before training come first, then hard ones before easy ones.
    solved = sorted(
        (row for row in rows if row["valid"]),
        key=lambda row: (before.get(row["id"], True), -(row.get("optimum") or 0)),
    )
    failures = one_of_each_kind(failed, lambda row: tuple(row["failed"]), count)
    successes = one_of_each_kind(
        solved, lambda row: (row.get("optimal", True), row["group"]), count
    )
    return {
        "when": number,
        "answers": len(rows),
        "failed": len(failed),
        "failures": list(map(drawn, failures)),
        "successes": list(map(drawn, successes)),
    }
