"""The modules of a context: each a function from the record of a run to text.

F failure breakdown, G guideline, H history, S summary, T training details, as in "From Trainee
to Trainer" (arXiv 2606.17682). Whatever changes from round to round is written in short regular
lines with numbers of two decimals; whatever stays is one of the constants below. So a small
model with a small vocabulary can hold each constant as one token.
"""

from engineer.evidence import History, RunRecord, SizeOutcome
from mapf_jax.environment_config import EnvironmentConfig

INSTRUCTION = (
    "You design the training data for a language model that learns multi-agent path finding. "
    "An instance is a square lake of N x N cells, some of which are holes. Several agents start "
    "on different cells and have different goals. In each step all agents act at once: each "
    "moves one cell up, down, left or right, or waits. The model is shown an instance and answers "
    "once with the whole paths of all agents. An answer is valid if it passes every check, and "
    "optimal if it is valid and has the least possible total cost. A generator makes the next "
    "training set from three numbers for each lake size N. data_ratio is the share of the "
    "training set that has this size; the data_ratio of all sizes sum to 1. hole_ratio is the "
    "share of the cells of such a lake that are holes, from 0 to 1. wait_ratio is the share of "
    "the instances of this size in which some agent has to wait for another, from 0 to 1. You "
    "may change these numbers and nothing else: the rules, the reward and the validation set "
    "stay as they are. Choose the numbers with which one more round of training improves the "
    "valid and optimal rates on the validation set most, over all sizes. In the results, valid "
    "and optimal are rates from 0 to 1, and the other numbers count the answers that failed a "
    "check: parse, the answer could not be read; illegal, an agent moved further than one cell in "
    "a step; conflict, two agents were in one cell or exchanged cells; hole, an agent entered a "
    "hole; bounds, an agent left the lake; goal, an agent did not end on its goal. One answer "
    "can fail several checks."
)
"""What the task is, what may be changed, and how the results are to be read."""

GUIDELINE = (
    "Guideline: the model is trained by reinforcement learning on groups of its own answers. A "
    "group teaches only if some of its answers succeed and others fail, so instances that are "
    "always or never solved teach nothing. Give the largest data_ratio to sizes with a valid "
    "rate between about 0.3 and 0.7, and keep a small data_ratio on sizes that already work so "
    "that they are not forgotten. More holes leave fewer and longer routes and narrower "
    "passages; more waits demand closer coordination, and conflicts are learned from them. Where "
    "the valid rate is close to 0, lower hole_ratio and wait_ratio until some answers succeed; "
    "where it is close to 1, raise them. Small lakes with many holes have few solvable "
    "instances. Keep what works and change it in small steps, 0.05 to 0.10 at a time."
)
"""Module G: how the three ratios bear on learnability; the same in every round."""

OUTPUT_FORMAT = (
    "You may reason first. End with exactly one configuration in YAML, one line for each of "
    "these sizes in ascending order, with numbers from 0 to 1, in this form: "
    "N: {data_ratio: number, hole_ratio: number, wait_ratio: number}"
)
"""How the configuration is to be written; `proposal.parse` reads it."""

SUMMARY_REQUEST = (
    "Before the configuration, explain in at most three sentences what it is meant to achieve. "
    "You will be shown this explanation when you design the next round."
)
"""Asked for only where module S carries the explanation forward."""

NO_HISTORY = "no round to show yet"
NO_SUMMARY = "no explanation yet"
TRAINING_DETAILS = ("objective", "reward", "schedule")
"""What the full form of module T tells; `RunRecord.training` holds a text for each."""

FAILURE_WORDS = {
    "parse": ("parsable", "agent_count"),
    "illegal": ("legal_moves",),
    "conflict": ("conflict_free",),
    "hole": ("no_holes",),
    "bounds": ("in_bounds",),
    "goal": ("goals_reached",),
}
"""The failures shown, in this order, each with its checks. An answer that speaks of another number
of agents could not be read as an answer to its question, so it counts with those that could not be
read at all (no answer counts under both)."""


def failures(record: RunRecord) -> str:
    """Module F: the latest validation, overall and one line a size."""
    latest = record.breakdown
    lines = [
        "Latest results",
        f"all sizes: answers {latest.answers} valid {latest.valid_rate:.2f} "
        f"optimal {latest.optimal_rate:.2f}",
    ]
    for row in latest.by_size:
        lines.append(f"size {row.size}: answers {row.answers} {_results(row)}")
    return "\n".join(lines)


def guideline(record: RunRecord) -> str:
    """Module G: `GUIDELINE`, whatever the record."""
    del record
    return GUIDELINE


def history(record: RunRecord, cold_start: bool) -> str:
    """Module H: the configuration and the failures of the finished rounds, oldest first.

    Args:
      record: the record of the run.
      cold_start: also show rounds that nobody designed, that is the random round 0.
    """
    lines = ["History"]
    for past in shown_history(record, cold_start):
        lines.append(f"round {past.round}")
        by_size = {row.size: row for row in past.breakdown.by_size}
        for size in sorted({*past.config.sizes, *by_size}):
            parts = [f"size {size}:"]
            if size in past.config.sizes:
                parts.append(_ratios(past.config, size))
            if size in by_size:
                parts.append(_results(by_size[size]))
            lines.append(" ".join(parts))
    if len(lines) == 1:
        lines.append(NO_HISTORY)
    return "\n".join(lines)


def shown_history(record: RunRecord, cold_start: bool) -> History:
    """The rounds that module H shows, with or without those that nobody designed."""
    return tuple(past for past in record.history if cold_start or not past.cold_start)


def summary(record: RunRecord) -> str:
    """Module S: the engineer's explanation of the current configuration, as it was stored."""
    return "Your explanation of the current configuration\n" + (record.summary or NO_SUMMARY)


def bookkeeping(record: RunRecord) -> str:
    """Module T, short form: which round is designed, epochs a round, epochs in total."""
    return (
        f"Training: round {record.round} of rounds 0 to {record.total_rounds - 1}, "
        f"epochs per round {record.epochs_per_round:g}, "
        f"total epochs {record.epochs_per_round * record.total_rounds:g}"
    )


def training_details(record: RunRecord) -> str:
    """Module T, full form: the bookkeeping, then objective, reward and schedule.

    Raises:
      ValueError: `record.training` has no text for one of `TRAINING_DETAILS`.
    """
    details = record.training or {}
    missing = [name for name in TRAINING_DETAILS if name not in details]
    if missing:
        raise ValueError(f"training: {missing} missing, needed: {TRAINING_DETAILS}")
    return "\n".join([bookkeeping(record), *(f"{name}: {text}" for name, text in details.items())])


def sizes(record: RunRecord) -> str:
    """Which sizes the configuration must have; stands before `OUTPUT_FORMAT`."""
    return "Sizes " + " ".join(str(size) for size in record.config.sizes)


def _results(row: SizeOutcome) -> str:
    counts = [
        f"{word} {sum(row.failures(check) for check in checks)}"
        for word, checks in FAILURE_WORDS.items()
    ]
    return " ".join([f"valid {row.valid_rate:.2f} optimal {row.optimal_rate:.2f}", *counts])


def _ratios(config: EnvironmentConfig, size: int) -> str:
    i = config.sizes.index(size)
    return (
        f"data_ratio {config.data_ratio[i]:.2f} hole_ratio {config.hole_ratio[i]:.2f} "
        f"wait_ratio {config.wait_ratio[i]:.2f}"
    )
