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
      those that were not solved before training. Each failure or success is a mapping with
      `record`, the run's record of the answer; `failed`, its failed checks in words (if one of them
      makes the others meaningless, only that one) and whether it was truncated; `drawing`, in HTML;
      and `new`, whether it is solved now but was not before training.

    Raises:
      ValueError: a file is damaged.
    """
    validations = run.validations
    if not validations:
        return None
    (number, last), (first_number, first) = validations[-1], validations[0]
    asked = read_log(run.root / "validation" / "instances.jsonl")
    problems = {problem["id"]: problem for problem in asked}
    records = [record for record in read_log(last.answers) if record["id"] in problems]
    if not records:
        return None
    before: dict[str, bool] = {}
    if first_number == 0 < number:
        for record in read_log(first.answers):  # Of several samples, any may solve a problem.
            before[record["id"]] = record["valid"] or before.get(record["id"], False)

    family = run.family
    alone = set(family.texts.alone)

    def drawn(record: Mapping[str, Any]) -> dict[str, Any]:
        problem = problems[record["id"]]
        drawing = family.draw(problem, record["text"])
        first = [check for check in record["failed"] if check in alone]
        return {
            "record": record,
            "failed": [
                *map(family.failure, first[:1] or record["failed"]),
                *(["truncated"] if record["truncated"] else []),
            ],
            "drawing": Markup("<pre>{}</pre>").format(family.text(problem, record["text"]))
            if drawing is None
            else Markup(drawing),
            "new": record["valid"] and before.get(record["id"]) is False,
        }

    # Failures whose drawing can show the error come first.
    failed = sorted(
        (r for r in records if not r["valid"]), key=lambda r: bool(alone & {*r["failed"]})
    )
    # Problems not solved before training come first, then hard ones before easy ones.
    solved = sorted(
        (record for record in records if record["valid"]),
        key=lambda record: (before.get(record["id"], True), -(record.get("optimum") or 0)),
    )
    failures = one_of_each_kind(failed, lambda record: tuple(record["failed"]), count)
    successes = one_of_each_kind(
        solved, lambda record: (record.get("optimal", True), record["group"]), count
    )
    return {
        "when": number,
        "answers": len(records),
        "failed": len(failed),
        "failures": list(map(drawn, failures)),
        "successes": list(map(drawn, successes)),
    }
