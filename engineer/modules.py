"""The modules of a context: each a function from the record of a run to text.

F failure breakdown, G guideline, H history, S summary, T training details, as in "From Trainee
to Trainer" (arXiv 2606.17682), and beyond the publication D details of the validation, R what
training showed, and E examples of failures. Whatever changes from round to round is written in
short regular lines with numbers of two decimals; whatever stays is one of the family's constant
texts. So a small model with a small vocabulary can hold each constant as one token.
"""

from engineer.evidence import GroupOutcome
from engineer.record import RoundRecord, RunRecord
from engineer.space import ordered_rows
from engineer.texts import NO_HISTORY, NO_SUMMARY, FamilyTexts

TRAINING_DETAILS = ("objective", "reward", "schedule")
"""What the full form of module T shows; `RunRecord.training` holds a text for each."""


def failures(record: RunRecord, family: FamilyTexts) -> str:
    """Module F: the latest validation, overall and one line a row."""
    latest = record.breakdown
    lines = [
        "Latest results",
        f"all {family.label}s: answers {latest.answers} valid {latest.valid_rate:.2f} "
        f"optimal {latest.optimal_rate:.2f}",
    ]
    for row in latest.by_group:
        lines.append(f"{family.label} {row.name}: answers {row.answers} {_results(row, family)}")
    return "\n".join(lines)


def details(record: RunRecord, family: FamilyTexts) -> str:
    """Module D: times of first violations, costs above the optimum, and tokens."""
    lines = ["Details of the latest results: mean, median and largest"]
    for row in record.breakdown.by_group:
        parts = [
            f"{words} {values.mean:.2f} {values.median:.2f} {values.largest:.2f}"
            for words, values in (
                ("first violation time", row.violation_time),
                ("cost above optimum", row.gap),
                ("tokens", row.length),
            )
            if values is not None
        ]
        lines.append(f"{family.label} {row.name}: {', '.join(parts) or 'not recorded'}")
    return "\n".join(lines)


def training_results(record: RunRecord, family: FamilyTexts) -> str:
    """Module R: reward, fraction of groups with signal, achieved beside asked numbers."""
    training = record.history[-1].evidence.training
    if training is None:
        return "Latest training\nnot recorded"
    lines = [
        "Latest training",
        f"steps {training.steps} reward {training.reward:.2f} last quarter "
        f"{training.reward_last:.2f} groups with signal {training.nondegenerate_fraction:.2f}",
    ]
    names = ordered_rows([*training.asked, *training.valid_rate])
    for name in names:
        parts = [f"{family.label} {name}:"]
        if name in training.valid_rate:
            parts.append(f"valid {training.valid_rate[name]:.2f}")
        for parameter, asked in training.asked.get(name, {}).items():
            made = training.achieved.get(name, {}).get(parameter)
            parts.append(
                f"{parameter} asked {asked:.2f}" + ("" if made is None else f" made {made:.2f}")
            )
        lines.append(" ".join(parts))
    return "\n".join(lines)


def examples(record: RunRecord, count: int) -> str:
    """Module E: failures of the latest training, drawn; never one of the validation set."""
    shown = [f for f in record.history[-1].evidence.failures if not f.held_out][:count]
    parts = ["Examples of failures in training"]
    parts += [f"failed {', '.join(failure.failed)}\n{failure.text}" for failure in shown]
    return "\n\n".join(parts if shown else [*parts, "none recorded"])


def history(record: RunRecord, family: FamilyTexts, cold_start: bool) -> str:
    """Module H: the configuration and the failures of the finished rounds, oldest first.

    With `cold_start` also rounds that nobody designed, that is the random round 0.
    """
    lines = ["History"]
    for past in shown_history(record, cold_start):
        lines.append(f"round {past.round}")
        by_name = {row.name: row for row in past.breakdown.by_group}
        for name in ordered_rows([*past.config.rows, *by_name]):
            parts = [f"{family.label} {name}:"]
            if name in past.config.rows:
                names = past.config.parameters
                parts += [f"{one} {past.config[name, one]:.2f}" for one in names]
            if name in by_name:
                parts.append(_results(by_name[name], family))
            lines.append(" ".join(parts))
    if len(lines) == 1:
        lines.append(NO_HISTORY)
    return "\n".join(lines)


def shown_history(record: RunRecord, cold_start: bool) -> tuple[RoundRecord, ...]:
    """The rounds that module H shows, with or without those that nobody designed."""
    return tuple(past for past in record.history if cold_start or not past.cold_start)


def summary(record: RunRecord) -> str:
    """Module S: the engineer's explanation of the current configuration, as it was stored."""
    return "Your explanation of the current configuration\n" + (record.summary or NO_SUMMARY)


def training(record: RunRecord, full: bool) -> str:
    """Module T: the round to design and the epochs; in full also objective, reward and schedule.

    Raises:
      ValueError: it is to be in full, and `record.training` lacks one of `TRAINING_DETAILS`.
    """
    bookkeeping = (
        f"Training: round {record.round} of rounds 0 to {record.total_rounds - 1}, "
        f"epochs per round {record.epochs_per_round:g}, "
        f"total epochs {record.epochs_per_round * record.total_rounds:g}"
    )
    if not full:
        return bookkeeping
    details = record.training or {}
    if missing := [name for name in TRAINING_DETAILS if name not in details]:
        raise ValueError(f"training: {missing} missing, needed: {TRAINING_DETAILS}")
    return "\n".join([bookkeeping, *(f"{name}: {text}" for name, text in details.items())])


def rows(record: RunRecord, family: FamilyTexts) -> str:
    """Which rows the configuration must have; stands before the output format."""
    return f"{family.label.capitalize()}s " + " ".join(record.config.rows)


def _results(row: GroupOutcome, family: FamilyTexts) -> str:
    counts = [
        f"{word} {sum(row.failures(check) for check in checks)}"
        for word, checks in family.failure_words.items()
    ]
    return " ".join([f"valid {row.valid_rate:.2f} optimal {row.optimal_rate:.2f}", *counts])
