"""The interface of a family of environments, all that a new domain needs for the whole loop.

A family defines the space of configurations, generates problems from one, poses them and verifies
completions. Problems are JSON-able mappings, so that a run can store them in readable files.
`docs/extending.md` walks through an example.
"""

import collections
import dataclasses
import itertools
import json
import logging
import re
import string
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from engineer.evidence import FailureBreakdown
from engineer.space import Configuration, ConfigurationSpace, round_fractions
from engineer.texts import FamilyTexts
from experiments.families import sandbox, shapes
from experiments.families.sandbox import OutOfTimeError, SandboxError
from experiments.families.shapes import FamilyError, ShapeError
from learner import checks, tokens
from learner.chat import Completion, Message
from learner.devices import distributed
from learner.training.task import Scores, Task
from mapf_jax.text import answer_blocks

Problem = Mapping[str, Any]
"""One JSON-able problem. The run adds an `id`."""

Record = Mapping[str, Any]
"""The JSON-able result of verifying one completion; see `Family.task`."""

_WORD = re.compile(r" ?[A-Za-z_]{2,}|</?[a-z]+>| \d\.\d\d(?!\d)")
_MOST_WORDS = 256
_MENTION = re.compile(r"[\s`'\"*.]*(?:and[\s`'\"*.]*|\u2026)?", re.IGNORECASE)
_GAP = r"[\s`'\"*.,:;()\[\]{}-]*"
_FORM_WORD = (
    r"(?:&|(?:tags?|and|or|the|then|to|an?|open|opens|opening|close|closes|closing|with|your|my"
    r"|final|answer|here)(?!\w))"
)
# What stands between tags that are named or shown as a form: one of few words, or several.
_FORM = re.compile(
    rf"{_GAP}(?:(?:&|(?:tags?|and|then|to|answer)(?!\w))|{_FORM_WORD}(?:{_GAP}{_FORM_WORD})+){_GAP}",
    re.IGNORECASE,
)
_TAG = r"<[ \t]{0,3}/?[ \t]{0,3}answer[ \t]{0,3}>"
_QUOTED_TAG = re.compile(
    rf"([`'\"]){_TAG}\1|[\u2018\u201c]{_TAG}[\u2019\u201d]", re.IGNORECASE | re.ASCII
)
_SAID: set[str] = set()  # Kinds of errors of which the user has heard.
# A run ends once verification has lost so many seconds, and so much of the time of its task.
_MOST_LOST_SECONDS, _MOST_LOST_FRACTION = 600.0, 0.5

SCORED, NOT_SCORED = "scored", "could not be scored"
"""The check that fails if verification itself fails, and what to call that."""

# What a failed check is called whose name begins like this, such as "right_value".
_NEGATED = {"right": "wrong", "has": "no", "is": "not a"}


def last_answer(text: str) -> str:
    """The text in the last `<answer>` tags of a completion, stripped; all of it without such tags.

    Empty tags, dots in them, tags in quotes or backticks, and tags that are only mentioned or shown
    as a form, as in "between the <answer> tag and the </answer> tag" or "<answer>your
    answer</answer>", do not count where others do.
    """
    blocks = answer_blocks(_QUOTED_TAG.sub("", text)) or answer_blocks(text) or [text]
    blocks = [block.strip() for block in blocks]
    said = [block for block in blocks if not _MENTION.fullmatch(block)]
    # Words of a form may also be an answer, so they count where there is no other.
    return ([block for block in said if not _FORM.fullmatch(block)] or said or blocks)[-1]


class NoProblemError(FamilyError):
    """No problem of a configuration could be made."""


@dataclasses.dataclass(frozen=True)
class GeneratedRow:
    """The report of the generator on one row of a configuration.

    Attributes:
      asked: problems requested.
      made: problems made.
      achieved: the value of each parameter in the problems made.
      details: anything else that the generator reports, JSON-able.
    """

    asked: int
    made: int
    achieved: Mapping[str, float]
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Generated:
    """Problems made from a configuration, with a report by row.

    Attributes:
      problems: distinct, in random order.
      rows: by name, for rows with requested problems.
      notes: a line for each request that could not be met.

    Raises:
      NoProblemError: there is no problem.
    """

    problems: Sequence[Problem]
    rows: Mapping[str, GeneratedRow]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.problems:
            raise NoProblemError("; ".join(self.notes) or "no problem could be made")

    def report(self) -> dict[str, Any]:
        """The report that a run stores besides the problems, JSON-able."""
        return {
            "asked": sum(row.asked for row in self.rows.values()),
            "made": len(self.problems),
            "rows": {name: dataclasses.asdict(row) for name, row in self.rows.items()},
        }


class Family(ABC):
    """Subclass this and name an instance: `--config.family=path/to/file.py:name`.

    Attributes:
      space: the configurations.
      texts: the checks of completions, and the texts of an engineer's context.
      validation_options: names of its own options, `--config.FAMILY.NAME`, that determine the
        problems of `validation`.
      token_cost: subtracted from the reward for each token of a completion; an option of the run.
      verify_seconds: limit on processor time to verify a completion, where that can take long; an
        option of the run.
      reward_range: the least and the largest reward of a record, before the cost of tokens.
    """

    space: ConfigurationSpace
    texts: FamilyTexts
    validation_options: Sequence[str] = ()
    token_cost: float = 0.0
    verify_seconds: float = 5.0
    reward_range: tuple[float, float] = (0.0, 1.0)

    @abstractmethod
    def generate(
        self, key: jax.Array, config: Configuration, count: int, exclude: Sequence[Problem]
    ) -> Generated:
        """Distinct problems in the proportions of a configuration.

        Args:
          key: a typed JAX key; the same key makes the same problems.
          config: one of `space`.
          count: how many problems; fewer may be made.
          exclude: problems that must not be generated again.

        Returns:
          The problems with a report by row; see `generated`.

        Raises:
          NoProblemError: none could be made.
        """

    def generate_plain(
        self, key: Sequence[int], impl: str, config: Mapping[str, Any], *wanted: Any
    ) -> dict[str, Any]:
        """`generate` for a sandbox, with JSON-able arguments and result.

        Args:
          key: the data of the key.
          impl: the name of its implementation.
          config: of `Configuration.to_dict`.
          *wanted: `count` and `exclude`.

        Returns:
          The fields of `Generated`; if no problem could be made, the notes have the reason.
        """
        typed = jax.random.wrap_key_data(jnp.asarray(key, jnp.uint32), impl=impl)
        try:
            made = self.generate(typed, Configuration.from_dict(config), *wanted)
        except NoProblemError as error:
            return {"problems": [], "rows": {}, "notes": [str(error)]}
        if not isinstance(made, Generated):
            raise TypeError(f"generate returned {type(made).__name__}; see self.generated")
        if type(self).task is Family.task:
            for problem in made.problems:  # One without a prompt would end the run later.
                shapes.check(self.prompt(problem), str, "prompt")
        return dataclasses.asdict(made)

    def counts(self, config: Configuration, count: int) -> dict[str, int]:
        """How many of `count` problems each row of a configuration gets, without rows of 0."""
        fractions = config.column(self.space.fraction_parameter)
        parts = round_fractions(fractions, count)
        counts = {row: round(part * count) for row, part in zip(config.rows, parts, strict=True)}
        return {row: asked for row, asked in counts.items() if asked}

    def generated(
        self, problems: Sequence[Problem], config: Configuration, count: int
    ) -> Generated:
        """Problems with a report computed from them.

        Args:
          problems: each with `group`, the name of its row, and a number for every parameter but
            the fraction, under the parameter's name. A row achieves the mean of its problems.
          config: the requested configuration.
          count: the requested number of problems.

        Raises:
          NoProblemError: there is no problem.
        """
        rows, notes = {}, []
        needed = {"group", *self.space.names} - {self.space.fraction_parameter}
        for problem in problems:
            if missing := needed - problem.keys():
                raise ValueError(f"a problem has no {min(missing)!r}; it needs {sorted(needed)}")
        for row, asked in self.counts(config, count).items():
            made = [problem for problem in problems if problem["group"] == row]
            achieved = {
                name: len(made) / max(len(problems), 1)
                if name == self.space.fraction_parameter
                else float(np.mean([problem[name] for problem in made]))
                for name in self.space.names
                if made
            }
            rows[row] = GeneratedRow(asked, len(made), achieved)
            if len(made) < asked:
                notes.append(f"{self.space.label} {row}: {len(made)} of {asked} problems")
        return Generated(problems, rows, notes)

    def prompt(self, problem: Problem) -> str:
        """The text of a problem's only message; required unless `task` is overridden."""
        raise NotImplementedError(f"{type(self).__name__}.prompt: a family needs it, or a task")

    def verify(self, problem: Problem, text: str) -> Record:
        """The record of a completion for `ProblemTask`; required unless `task` is overridden."""
        raise NotImplementedError(f"{type(self).__name__}.verify: a family needs it, or a task")

    def task(self, problems: Sequence[Problem]) -> Task:
        """The prompts of problems, and the verification of completions.

        `Task.score` returns a record for each completion with `group` (the row of its problem),
        `valid` and `failed` (names of failed checks of `texts.checks`). Optional are `optimal`,
        `violation_time`, `gap` and `features` (see `FailureBreakdown.from_records`), `accuracy`
        (the reward without shaping such as length), `tokens` and `truncated` of the completion,
        and any other fields.
        """
        return ProblemTask(problems, self.prompt, self.verify, self.token_cost, self.check_record)

    def check_record(self, record: Record) -> None:
        """Checks that a record of `verify` is as `task` says.

        Raises:
          ShapeError: names a field.
        """
        shape = {
            "group": frozenset(self.space.rows),
            "failed": [frozenset(self.texts.checks)],
            "valid": bool,
            "optimal?": bool,
            "reward?": tuple(self.reward_range),
            "accuracy?": float,
            "violation_time?": int,
            "gap?": float,
            "features?": [str],
            "tokens?": int,
            "truncated?": bool,
        }
        shapes.check(record, shape, "verify")
        if record["valid"] == bool(record["failed"]):
            raise ShapeError(f"verify.valid={record['valid']}: failed={record['failed']}")
        if record.get("optimal") and not record["valid"]:
            raise ShapeError("verify.optimal=True: allowed is False where valid is")

    def check_generated(self, found: Mapping[str, Any], count: int, exclude: Any) -> None:
        """Checks that `generate` did what it should.

        Args:
          found: of `generate_plain`.
          count, exclude: as in `generate`.

        Raises:
          ShapeError: names a field.
        """
        rows = frozenset(self.space.rows)
        row = {"asked": int, "made": int, "achieved": {"*": float}, "details?": {}}
        problem = {"group": rows} if type(self).task is Family.task else {}
        shape = {"problems": [problem], "rows": {"*": row}, "notes": [str]}
        shapes.check(found, shape, "generate")
        for name in found["rows"]:
            shapes.check(name, rows, "generate.rows")
        if len(found["problems"]) > count:
            raise ShapeError(f"generate: {len(found['problems'])} problems; allowed are {count}")

        def contents(problems: Sequence[Problem]) -> list[str]:
            return [json.dumps({**p, "id": 0}, sort_keys=True) for p in problems]

        made = contents(found["problems"])
        if len({*made}) < len(made):
            raise ShapeError("generate: a problem is there twice; allowed are distinct ones")
        if not {*made}.isdisjoint(contents(exclude)):
            raise ShapeError("generate: a problem of `exclude` is there")

    @property
    def validation(self) -> Configuration:
        """The configuration of the fixed validation set."""
        return self.space.uniform()

    def validation_set(
        self, key: jax.Array, count: int, exclude: Sequence[Problem] = ()
    ) -> Generated:
        """The fixed validation set, or a test set apart from it; arguments as in `generate`."""
        return self.generate(key, self.validation, count, exclude)

    def failure(self, check: str) -> str:
        """A phrase for failing a check, as the name of the check alone would mislead."""
        if check == SCORED:
            return NOT_SCORED
        words = check.replace("_", " ")
        first, _, rest = words.partition(" ")
        return f"{_NEGATED[first]} {rest}" if rest and first in _NEGATED else f"fails {words}"

    def lessons(self, key: jax.Array, count: int, exclude: Sequence[Problem]) -> Sequence[Problem]:
        """Problems for the warm start of a new model; arguments as in `generate`."""
        return self.generate(jax.random.fold_in(key, 0), self.validation, count, exclude).problems

    def solutions(self, problems: Sequence[Problem]) -> Sequence[str]:
        """A valid completion of each problem for the warm start; it may include working."""
        raise NotImplementedError(f"{type(self).__name__}.solutions: a warm start needs them")

    @property
    def constants(self) -> Sequence[str]:
        """Recurring texts of contexts or prompts, each one token of a new model."""
        return self.texts.instruction, self.texts.guideline, self.texts.output_format

    def new_tokenizer(self, texts: Sequence[str]) -> Any:
        """The tokenizer of a new model: characters, common words of `texts`, and `constants`.

        Args:
          texts: prompts, completions, contexts and designs without the constants.
        """
        words = collections.Counter(itertools.chain(*map(_WORD.findall, texts)))
        common = [word for word, _ in words.most_common(_MOST_WORDS)]
        characters = "".join(sorted(set(string.printable).union(*texts)))
        return tokens.character_tokenizer(characters, [*filter(None, self.constants), *common])

    @property
    def reward(self) -> str:
        """The reward in words, for the full training details of a context."""
        return "as the task gives it"

    def text(self, problem: Problem, completion: str) -> str:
        """A problem with a completion in plain text, for people and for evidence."""
        return f"{self._asked(problem)}\n\n{completion}"

    def example(self, problem: Problem, completion: str) -> str:
        """The same in a few labelled lines for the terminal, above the verdict."""
        return f"problem: {self._asked(problem)}\nanswer: {completion}"

    def _asked(self, problem: Problem) -> str:
        (message,) = self.task([problem]).messages(0)[-1:]
        return message["content"]

    def draw(self, problem: Problem, completion: str) -> str | None:
        """The same as an HTML fragment with everything escaped, or None to show the text."""
        return None

    def breakdown(self, records: Sequence[Record]) -> FailureBreakdown:
        """The outcomes of verified completions, by row in the order of the space.

        Raises:
          ValueError: a record does not match `task`.
        """
        if unknown := {str(record["group"]) for record in records} - set(self.space.rows):
            raise ValueError(f"group={min(unknown)!r}: allowed are the rows {self.space.rows}")
        ordered = sorted(records, key=lambda record: self.space.rows.index(str(record["group"])))
        return FailureBreakdown.from_records(
            ordered, checks=self.texts.checks, label=self.texts.label, alone=self.texts.alone
        )


class ProblemTask(Task):
    """A `Task` without state whose completions are verified one by one, in several threads.

    Args:
      problems: what to pose.
      prompt: the text of a problem's only message.
      verify: from a problem and the text of a completion to a record as in `Family.task`. Defaults
        are the problem's `group`, `valid` if no check failed, and a `reward` of 1 for a valid
        completion and 0 otherwise. After a `SandboxError`, and for a record that `check` rejects,
        the only failed check is `SCORED`.
      token_cost: subtracted from the reward for each token of a completion.
      check: raises `ShapeError` for a record that is not as it should be.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        prompt: Callable[[Problem], str],
        verify: Callable[[Problem, str], Record],
        token_cost: float = 0.0,
        check: Callable[[Record], None] = lambda record: None,
    ) -> None:
        self._problems, self._prompt, self._verify = problems, prompt, verify
        self._token_cost, self._check = token_cost, check
        self._begin, self._lost = time.monotonic(), 0.0

    def __len__(self) -> int:
        return len(self._problems)

    def messages(self, index: int) -> Sequence[Message]:
        """One user message."""
        return [{"role": "user", "content": self._prompt(self._problems[index])}]

    def score(self, indices: np.ndarray, completions: Sequence[Completion]) -> Scores:
        """A record and a reward for each completion; verification is split over processes.

        Equal answers to a problem are verified once.

        The metric `seconds_lost` is there if verification ran out of time.

        Raises:
          FamilyError: most of the time of this task was lost like that.
        """

        def verified(answer: tuple[int, str]) -> tuple[Record, float]:
            begin = time.monotonic()
            record, out_of_time = self._record(self._problems[answer[0]], answer[1])
            return record, time.monotonic() - begin if out_of_time else 0.0

        answers = [(int(i), c.answer) for i, c in zip(indices, completions, strict=True)]
        distinct = list(dict.fromkeys(answers))
        with ThreadPoolExecutor(sandbox.WORKERS) as pool:
            found = distributed.sharded_map(
                lambda part: list(pool.map(verified, [distinct[i] for i in part])), len(distinct)
            )
        of_answer = dict(zip(distinct, found, strict=True))
        records = [dict(of_answer[answer][0]) for answer in answers]
        metrics = self._count_lost(sum(seconds for _, seconds in found))
        given = [(record.get("reward"), record["valid"]) for record in records]
        scores = [float(valid if reward is None else reward) for reward, valid in given]
        if self._token_cost:
            records = [{**r, "accuracy": s} for r, s in zip(records, scores, strict=True)]
        lengths = np.array([completion.num_tokens for completion in completions])
        rewards = np.asarray(scores - self._token_cost * lengths, np.float32)
        return Scores(rewards=rewards, metrics=metrics, records=records)

    def _record(self, problem: Problem, answer: str) -> tuple[Record, bool]:
        """The record of an answer, and whether its verification ran out of time."""
        known = {"group": problem["group"]} if "group" in problem else {}
        try:
            found = self._verify(problem, answer)
            shapes.check(found, {"failed": [str]}, "verify")
            record = {**known, "valid": not found["failed"], **found}
            self._check(record)
        except (SandboxError, ShapeError) as error:
            _say_once(type(error).__name__, checks.one_line(error))
            failed = {"valid": False, "failed": [SCORED], "reward": 0.0, "why": str(error)}
            return {**known, **failed}, isinstance(error, OutOfTimeError)
        return record, False

    def _count_lost(self, seconds: float) -> dict[str, float]:
        """Adds seconds lost by all workers of all processes; the metric that says so, if any."""
        self._lost += seconds / (sandbox.WORKERS * distributed.num_processes())
        if self._lost > _MOST_LOST_SECONDS:
            passed = distributed.on_first(lambda: time.monotonic() - self._begin)
            if self._lost > _MOST_LOST_FRACTION * passed:
                raise FamilyError(
                    f"verification ran out of time for {self._lost:.0f} of {passed:.0f} s; lower "
                    "verify_seconds, or make it faster"
                )
        return {"seconds_lost": round(seconds, 2)} if seconds else {}


def _say_once(kind: str, why: str) -> None:
    if kind not in _SAID:
        _SAID.add(kind)
        logging.warning("a completion could not be scored: %s (said once; see answers.jsonl)", why)
