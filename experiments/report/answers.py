"""Some answers of a run's last validation, drawn."""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.evidence import one_of_each_kind
from experiments.report import lakes
from experiments.report.page import Html, element, heading, join, paragraph
from experiments.report.reading import Run, json_lines
from mapf_jax import formats

LEGEND = (
    "A disc is an agent, a ring its start, a square with its number its goal, a filled cell a "
    "hole. A red cross marks a broken rule; the dot below a lake runs through the times of the "
    "answer, with a tall red stroke where a rule is broken."
)
PAUSE = element(
    "label",
    element("input", type="checkbox", id="pause"),
    " Pause the drawings",
    class_="pause",
)
"""What stops everything that moves on a page."""


def of_run(run: Run, count: int, prefix: str) -> Html | None:
    """Failures of different kinds, and successes of different kinds.

    Args:
      run: the run.
      count: so many of each are drawn.
      prefix: letters, digits and underscores; different for every call of a page.

    Returns:
      Part of a page, or None if no answers are there.

    Raises:
      ValueError: a file is damaged.
    """
    validations = run.validations
    if not validations or not run.validation_set.is_file():
        return None
    (name, last), (first_name, first) = validations[-1], validations[0]
    records = {row["id"]: row for row in formats.read_jsonl(run.validation_set)}
    rows = [row for row in json_lines(last.answers) if row["id"] in records]
    if not rows:
        return None
    before: dict[str, bool] = {}
    if first_name == "start" and name != "start":
        before = {row["id"]: row["valid"] for row in json_lines(first.answers)}
    failed = [row for row in rows if not row["valid"]]
    failures = one_of_each_kind(failed, lambda row: tuple(row["failed"]), count)
    # Those that were not solved before training first, and long plans before short ones.
    solved = sorted(
        (row for row in rows if row["valid"]),
        key=lambda row: (before.get(row["id"], True), -row["optimum"]),
    )
    successes = one_of_each_kind(solved, lambda row: (row["optimal"], row["size"]), count)

    def drawn(chosen: Sequence[Mapping[str, Any]], kind: str) -> Html:
        figures = lakes.drawings(
            [
                lakes.Answer(
                    records[row["id"]],
                    row["text"],
                    "Not solved before training."
                    if row["valid"] and before.get(row["id"]) is False
                    else "",
                )
                for row in chosen
            ],
            f"{kind}{prefix}_",
        )
        return element("div", *figures, class_="lakes") if figures else paragraph("There are none.")

    when = "before training" if name == "start" else f"after round {name}"
    return join(
        [
            paragraph(
                f"From the validation {when}, where {len(failed):,} of {len(rows):,} answers "
                "failed. These are examples of different kinds; how frequent a kind is they do "
                "not tell."
            ),
            heading("Failures"),
            drawn(failures, "f"),
            heading("Successes"),
            drawn(successes, "s"),
        ]
    )
