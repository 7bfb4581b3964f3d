"""Probes what a model can do on families of environments, before any training.

    python -m experiments.probe --model=smollm2 --families=words:sums,words:mixed

For every family and row: sampled and greedy valid rates, the fraction of completions that the
token budget ended, and the fraction of groups with different rewards, without which nothing is
learned; then two completions as they are, and a line of advice on where to begin.
"""

import argparse
import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from engineer.analysis import SATURATED
from engineer.evidence import MANY_TRUNCATED
from experiments import name_of
from experiments import settings as settings_lib
from experiments.families import Family, Problem, Record
from experiments.ring.outcomes import one_of_each_kind
from experiments.ring.validation import complete_all, validation_completers, validation_set
from experiments.run import policy, process
from experiments.settings import Settings
from experiments.text.errors import UserError, ended_in_one_line, memory_errors, user_errors
from learner import checks
from learner.chat import Completion
from learner.decoder.config import DTYPES
from learner.sampling.completer import Completer

BEGINS = 0.2
"""Fraction of non-degenerate groups from which training on a row can begin."""
UNREAD = 0.1
"""Fraction of failed completions that contain the solution from which the reader is at fault."""

_SHOWN = 2
_MOST_CHARACTERS = 400


@dataclasses.dataclass(frozen=True)
class Row:
    """What a model does on one row of a family, or on all; fractions in [0, 1].

    Attributes:
      name: of the row.
      sampled: valid sampled completions.
      greedy: valid greedy completions, one for each problem.
      truncated: sampled completions that the token budget ended.
      nondegenerate: problems whose sampled completions do not all have the same reward.
    """

    name: str
    sampled: float
    greedy: float
    truncated: float
    nondegenerate: float

    @property
    def begins(self) -> bool:
        """Whether training on the row can begin."""
        return self.nondegenerate >= BEGINS


@dataclasses.dataclass(frozen=True)
class Found:
    """The completions of P problems of one family, S sampled ones and a greedy one of each.

    Attributes:
      problems: P problems.
      completions: P x S sampled completions, problem by problem.
      records: their records.
      rewards: float [P, S].
      greedy: P records.
    """

    problems: Sequence[Problem]
    completions: Sequence[Completion]
    records: Sequence[Record]
    rewards: np.ndarray
    greedy: Sequence[Record]

    def rows(self, family: Family) -> list[Row]:
        """The rows of the space that have problems."""
        groups = np.array([str(record["group"]) for record in self.greedy])
        valid = np.array([bool(record["valid"]) for record in self.records])
        truncated = np.array([completion.truncated for completion in self.completions])
        shape = self.rewards.shape
        by_problem = {
            "sampled": valid.reshape(shape).mean(1),
            "greedy": np.array([bool(record["valid"]) for record in self.greedy]),
            "truncated": truncated.reshape(shape).mean(1),
            "nondegenerate": np.ptp(self.rewards, axis=1) > 0,
        }
        names = [name for name in family.space.rows if name in groups]
        return [
            Row(name, **{key: float(of[groups == name].mean()) for key, of in by_problem.items()})
            for name in names
        ]

    def unread(self, family: Family) -> float | None:
        """The fraction of failed sampled completions that contain the solution of their problem.

        None if the family has no solutions, or nothing failed.
        """
        try:
            solutions = family.solutions(self.problems)
        except NotImplementedError:
            return None
        per_problem = self.rewards.shape[1]
        failed = [i for i, record in enumerate(self.records) if not record["valid"]]
        held = [
            _contains(self.completions[i].text, solutions[i // per_problem].strip()) for i in failed
        ]
        return float(np.mean(held)) if held else None

    def examples(self, family: Family) -> Iterator[str]:
        """Yields a valid and a failed completion as they are, or two of a kind if all are."""
        per_problem = self.rewards.shape[1]
        kinds = one_of_each_kind(
            range(len(self.records)), lambda i: self.records[i]["valid"], _SHOWN
        )
        for i in kinds:
            record, completion = self.records[i], self.completions[i]
            outcome = ", ".join(map(family.failure, record["failed"])) or "valid"
            cut = ", truncated" if completion.truncated else ""
            (message,) = family.task([self.problems[i // per_problem]]).messages(0)[-1:]
            yield f"{family.space.label} {record['group']}, {outcome}{cut}:"
            yield f"  asked {_shortened(message['content'])}"
            yield f"  answered {_shortened(completion.text)}"


def _contains(text: str, solution: str) -> bool:
    """Whether a text has the solution in it, not as a part of a longer word or number."""
    return re.search(rf"(?<!\w){re.escape(solution)}(?!\w)", text) is not None


def _shortened(text: str) -> str:
    """The text with visible line ends and quotes, cut in the middle if it is long."""
    if len(text) > _MOST_CHARACTERS:
        half = _MOST_CHARACTERS // 2
        text = f"{text[:half]} [...] {text[-half:]}"
    return repr(text)


def probe(
    settings: Settings,
    family: Family,
    completers: tuple[Completer, Completer],
    params: Any,
) -> Found:
    """Completes the validation set of a family.

    Args:
      settings: `validation` says how many problems, and how many samples of each.
      completers: of `validation_completers`.

    Raises:
      UserError: a row gets no problem.
    """
    problems = validation_set(settings, family).problems
    key, samples = jax.random.key(settings.seed), settings.validation.samples
    sampled, greedy = completers
    completions, scores = complete_all(family.task(problems), sampled, params, key, samples)
    _, greedy_scores = complete_all(family.task(problems), greedy, params, key)
    return Found(
        problems,
        completions,
        scores.records,
        np.asarray(scores.rewards).reshape(len(problems), samples),
        greedy_scores.records,
    )


def advice(label: str, rows: Sequence[Row], unread: float | None, budget: int) -> str:
    """One line: what to change first, and which rows training can begin with.

    Args:
      label: what a row is called.
      unread: of `Found`.
      budget: tokens that a completion could have.
    """

    def named(chosen: Sequence[Row]) -> str:
        return f"{label} {', '.join(row.name for row in chosen)}"

    parts = []
    cut = [row for row in rows if row.truncated > MANY_TRUNCATED]
    if cut:
        parts.append(
            f"budget: {named(cut)} reach {budget} tokens; try {2 * budget} before anything else"
        )
    if unread is not None and unread >= UNREAD:
        parts.append(
            f"reader: {unread:.0%} of the failed completions contain the solution; "
            "ask for its form, or read more leniently"
        )
    begins = [row for row in rows if row.begins]
    solved = [row for row in rows if row.sampled >= SATURATED and not row.begins]
    if begins:
        parts.append(f"training can begin with {named(begins)}")
    if solved:
        parts.append(f"solved already: {named(solved)}")
    rest = [row for row in rows if row not in begins and row not in solved]
    if rest and (begins or solved):
        parts.append(f"no signal yet: {named(rest)}")
    elif rest:
        parts.append("no row has a signal: a warm start or easier rows come first")
    return "; ".join(parts)


def table(label: str, rows: Sequence[Row]) -> Iterator[str]:
    """Yields the lines of a table of rates in percent."""
    names = [field.name for field in dataclasses.fields(Row)[1:]]
    width = max(len(label), *(len(row.name) for row in rows))
    yield "  ".join([label.ljust(width), *names])
    for row in rows:
        cells = [f"{getattr(row, name):.0%}".rjust(len(name)) for name in names]
        yield "  ".join([row.name.ljust(width), *cells])


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command; user errors end it with one line."""
    parser = argparse.ArgumentParser(
        prog=name_of("probe"),
        description="Probe what a model can do on families of environments before any training.",
    )
    add = parser.add_argument
    add("--model", required=True, help="as --config.model.path: a folder, file, or name")
    add("--families", required=True, help="as --config.family, separated by commas")
    add("--instruction", help="as --config.reasoning_gym.instruction: how to answer its questions")
    add("--problems", type=int, default=12, help="problems of each row (%(default)s)")
    add("--samples", type=int, default=8, help="sampled completions of each (%(default)s)")
    add("--max_new_tokens", type=int, default=32, help="budget of each (%(default)s)")
    add("--temperature", type=float, default=1.0, help="of sampling, above 0 (%(default)s)")
    add("--dtype", choices=DTYPES, default="float32", help="of the model (%(default)s)")
    arguments = parser.parse_args(argv)
    process.quieten()
    less = (
        "the model and its cache need it; --dtype=bfloat16 and a smaller --max_new_tokens need less"
    )
    with ended_in_one_line(), memory_errors(less):
        _probe_all(arguments)


def _probe_all(arguments: argparse.Namespace) -> None:
    """Prints what is found, family by family."""
    with user_errors():
        checks.integers(arguments, problems=1)
        settings = [_settings(arguments, name) for name in arguments.families.split(",")]
        families = [each.load_family() for each in settings]
        model = policy.load_policy(settings[0])
        completers = validation_completers(settings[0], model)
        params = policy.load_params(settings[0], model)
    for line in policy.describe(settings[0], model, params):
        print(line, flush=True)
    for each, family in zip(settings, families, strict=True):
        count = arguments.problems * len(family.space.rows)
        validation = dataclasses.replace(each.validation, num_instances=count)
        try:
            chosen = dataclasses.replace(each, validation=validation)
            found = probe(chosen, family, completers, params)
        except UserError as error:  # The other families are probed all the same.
            print(f"\n{each.family}: {error}")
            continue
        print(
            f"\n{each.family}: {len(found.problems)} problems, {arguments.samples} completions of "
            f"each at temperature {arguments.temperature:g}, up to {arguments.max_new_tokens} "
            "tokens"
        )
        rows, label = found.rows(family), family.space.label
        print("\n".join(table(label, rows)))
        print("\n".join(found.examples(family)))
        advised = advice(label, rows, found.unread(family), arguments.max_new_tokens)
        print(f"advice: {advised}", flush=True)


def _settings(arguments: argparse.Namespace, family: str) -> Settings:
    """The options of a run with the probe's model and one of its families."""
    asked = arguments.instruction
    return settings_lib.from_config(
        {
            "reasoning_gym": {} if asked is None else {"instruction": asked},
            "model": {"path": arguments.model, "dtype": arguments.dtype},
            "family": family,
            "training": {"sampling_slots": 64},
            "validation": {
                "num_instances": arguments.problems,
                "samples": arguments.samples,
                "max_new_tokens": arguments.max_new_tokens,
                "temperature": arguments.temperature,
            },
        }
    )


if __name__ == "__main__":
    main()
