"""A family of environments from one or more data sets of reasoning-gym with a curriculum."""

import dataclasses
import functools
import importlib.util
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from engineer.space import Configuration, ConfigurationSpace, Parameter, ordered_rows
from engineer.texts import plain_texts
from experiments.families.family import (
    NOT_SCORED,
    SCORED,
    Family,
    Generated,
    Problem,
    Record,
    last_answer,
)
from experiments.families.sandbox import OutOfTimeError, Sandbox, SandboxError
from experiments.families.words import last_number, read_word
from learner import checks
from learner.devices import distributed

CHECKS = (SCORED, "right")
RIGHT = 0.99
"""Minimum score of a right answer."""

_MISSES = 64  # Consecutive draws without a new problem before giving up a level.
_SLOW_MISS = 32  # Misses counted for a draw that ran out of time.
_SOON = 60.0  # Limit in seconds for calls that make no problem.
_ROW_NAME = re.compile(r"[A-Za-z0-9]\w{0,39}", re.ASCII)
_TERM = re.compile(r"[+-]?\d+")


@dataclasses.dataclass(frozen=True)
class ReasoningGymOptions:
    """How data sets of reasoning-gym are used.

    Attributes:
      levels: number of levels of each attribute, from the easiest; 0 is all.
      other_levels: the same for the attributes besides the main one; 0 is as in `levels`. With 1
        they stay at their easiest, and only the fraction of each level can be chosen.
      instruction: text after a question. The answer is that of `families.last_answer`. If the
        instruction asks for another form than `<answer>` tags, an answer without them is read
        leniently: where that of the data set is a number or a word, the last one counts.
    """

    levels: int = 0
    other_levels: int = 0
    instruction: str = "Put the final answer between <answer> and </answer>."

    def __post_init__(self) -> None:
        checks.integers(self, levels=0, other_levels=0)


@functools.cache
def sandbox() -> Sandbox:
    """The process that runs all data sets."""
    return Sandbox(Path(__file__).parent / "data_sets.py")


class _Ladder:
    """The levels of one data set, from 0.

    Args:
      name: of the data set.
      options: its `levels` and `other_levels` are used.
      choose: levels are those of the main attribute, the first with numeric levels, and the
        engineer chooses how high the others go. Otherwise all attributes rise together.
    """

    def __init__(self, name: str, options: ReasoningGymOptions, choose: bool) -> None:
        found: list[dict[str, Any]] = sandbox().call("attributes", name, seconds=_SOON)
        found.sort(key=lambda one: not one["numeric"])
        for i, one in enumerate(found):
            most = (i and options.other_levels) or options.levels
            one["levels"] = one["levels"][: most or None]
        self.name = name
        fixed = 1 if choose else len(found)
        self.fixed = found[:fixed]
        self.others = [one for one in found[fixed:] if len(one["levels"]) > 1]

    def at(self, level: int) -> dict[str, int]:
        """The level of each attribute at a level of the ladder."""
        return {one["name"]: min(level, len(one["levels"]) - 1) for one in self.fixed + self.others}

    def words(self, level: int) -> str:
        """A level in words: the values of the attributes that the engineer does not choose."""
        at = self.at(level)
        return ", ".join(f"{one['name']} {one['levels'][at[one['name']]][0]}" for one in self.fixed)

    def row_names(self) -> list[str]:
        """Names of the levels: the values of the main attribute, or level_1, level_2, ...

        Values name levels if there is no other attribute, and they are valid names in order.
        """
        names = [alone.replace(" ", "_") for alone, _ in self.fixed[0]["levels"]]
        usable = all(map(_ROW_NAME.fullmatch, names)) and tuple(names) == ordered_rows(names)
        if usable and len(self.fixed) == 1:
            return names
        count = max(len(one["levels"]) for one in self.fixed)
        return [f"level_{level + 1}" for level in range(count)]

    def heights(self, level: int, wanted: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Yields highest levels of the others that the data set accepts, nearest to `wanted` first.

        The data set may refuse a combination. The highest levels then move towards the level
        itself, and then below it.
        """
        same = {name: high for name, high in self.at(level).items() if name in wanted}
        steps = range(max((len(one["levels"]) for one in self.others), default=1))
        nearer = [
            {name: min(max(same[name], wanted[name] - k), wanted[name] + k) for name in same}
            for k in steps
        ]
        below = [{name: max(high - k, 0) for name, high in same.items()} for k in steps]
        for i, highest in enumerate(candidates := nearer + below):
            setting = self.setting(level, highest)
            if highest not in candidates[:i] and sandbox().call(
                "possible", self.name, setting, seconds=_SOON
            ):
                yield highest

    def setting(self, level: int, highest: Mapping[str, int]) -> dict[str, list[int]]:
        """The lowest and the highest level of every attribute."""
        at = self.at(level)
        return {
            **{one["name"]: [at[one["name"]]] * 2 for one in self.fixed},
            **{name: [0, high] for name, high in highest.items()},
        }


class ReasoningGym(Family):
    """A family with a row for every level of each data set.

    With one data set these are the levels of its main attribute, and a parameter for each other
    attribute sets how high it goes. With several, all attributes of a data set rise together.
    Levels that a data set refuses are left out.

    Args:
      options: of the data sets.
      names: of the data sets, joined by "+".

    Raises:
      ValueError: a data set is unknown, has no curriculum or is named twice, no data set accepts
        any level, or the package is not installed.
    """

    validation_options = ("levels", "other_levels", "instruction")
    reward = "the score of the answer by the rule of its data set, from 0 to 1"

    def __init__(self, options: ReasoningGymOptions, names: str) -> None:
        family = f"family='reasoning_gym:{names}'"
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ValueError(
                f"{family}: needs reasoning-gym; "
                "in a clone of the project: pip install -e '.[reasoning-gym]'"
            )
        chosen = names.split("+")
        for name in chosen:
            if wrong := sandbox().call("unknown", name, seconds=_SOON):
                raise ValueError(f"{family}: {wrong}")
            if chosen.count(name) > 1:
                raise ValueError(f"{family}: {name!r} is there twice; allowed are distinct ones")
        single = len(chosen) == 1
        ladders = [_Ladder(name, options, choose=single) for name in chosen]
        self.options = options
        self._in_tags = not options.instruction or "<answer>" in options.instruction
        self._others = ladders[0].others
        self._rows: dict[str, tuple[_Ladder, int]] = {}
        for ladder in ladders:
            for level, name in enumerate(ladder.row_names()):
                lowest = {one["name"]: 0 for one in ladder.others}
                if any(True for _ in ladder.heights(level, lowest)):
                    self._rows[name if single else f"{ladder.name}_{level + 1}"] = ladder, level
        if not self._rows:
            raise ValueError(f"{family}: it refuses each of its levels")
        meaning = "the part of the set that is of this level."
        self.space = ConfigurationSpace(
            ladders[0].fixed[0]["name"] if single else "level",
            tuple(self._rows),
            (Parameter("fraction", meaning=meaning), *map(_parameter, self._others)),
            "fraction",
        )
        task = f"to solve problems of {' and '.join(chosen)}"
        words = {row: of.words(at) for row, (of, at) in self._rows.items()}
        if any(said != f"{self.space.label} {row}" for row, said in words.items()):
            task += f", where {'; '.join(f'{row} is {said}' for row, said in words.items())}"
        shown = {"not_scored": (SCORED,), "wrong": ("right",)}
        texts = plain_texts(self.space, task, CHECKS)
        self.texts = dataclasses.replace(texts, failure_words=shown)

    def generate(
        self, key: jax.Array, config: Configuration, count: int, exclude: Sequence[Problem]
    ) -> Generated:
        """Draws problems whose own answers are right; the first process does so for all."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        seen = {problem["question"] for problem in exclude}

        def make() -> list[Problem]:
            problems: list[Problem] = []
            for row, asked in self.counts(config, count).items():
                seed = int(rng.integers(1 << 31))
                problems += itertools.islice(self._problems(row, config, seed, seen), asked)
            return [problems[i] for i in rng.permutation(len(problems))]

        return self.generated(distributed.on_first(make), config, count)

    def solutions(self, problems: Sequence[Problem]) -> Sequence[str]:
        """The answers of the data sets; in tags, those of sums follow the intermediate totals.

        Raises:
          NotImplementedError: a data set has none, as many answers are right.
        """
        if none := {problem["source"][0] for problem in problems if not problem["answer"]}:
            raise NotImplementedError(f"{min(none)} gives no answers: a warm start needs them")
        if not self._in_tags:
            return [problem["answer"] for problem in problems]
        return [f"{_totals(problem)}<answer>{problem['answer']}</answer>" for problem in problems]

    def _problems(
        self, row: str, config: Configuration, seed: int, seen: set[str]
    ) -> Iterator[Problem]:
        """Yields problems with new questions, until too many consecutive draws give none."""
        ladder, level = self._rows[row]
        wanted = {one["name"]: int(config[row, _column(one)]) - 1 for one in self._others}
        for highest in ladder.heights(level, wanted):
            setting = ladder.setting(level, highest)
            numbers = {_column(one): highest[one["name"]] + 1 for one in self._others}
            misses = made = 0
            for index in itertools.count():
                source = [ladder.name, setting, seed, index]
                drawn = None
                try:
                    drawn = sandbox().call("draw", *source, seconds=self.verify_seconds / 2)
                except OutOfTimeError:
                    misses += _SLOW_MISS - 1
                except SandboxError:
                    pass  # Counts as a miss.
                if drawn is not None and drawn["question"] not in seen:
                    seen.add(drawn["question"])
                    made, misses = made + 1, 0
                    yield {"group": row, **drawn, **numbers, "source": source}
                elif (misses := misses + 1) >= _MISSES:
                    break
            if made:
                return

    def prompt(self, problem: Problem) -> str:
        """The question, followed by the instruction."""
        return f"{problem['question']}\n{self.options.instruction}".rstrip()

    def verify(self, problem: Problem, text: str) -> Record:
        """Scores the answer by the rule of its data set; the score is the reward."""
        arguments = *problem["source"], problem["question"], self._read(problem, text)
        score = sandbox().call("score", *arguments, seconds=self.verify_seconds)
        return {"failed": [] if score >= RIGHT else ["right"], "reward": score}

    def _read(self, problem: Problem, text: str) -> str:
        """What is scored of a completion: see `ReasoningGymOptions.instruction`."""
        said, answer = last_answer(text), problem["answer"]
        if self._in_tags or said != text.strip():
            return said
        if last_number(answer) == answer:
            return last_number(said) or said
        if read_word(answer) == answer.lower():  # Otherwise it has more than one word.
            word = read_word(said) or said
            return answer if word == answer.lower() else word
        return said

    def failure(self, check: str) -> str:
        """A failed check in words."""
        return NOT_SCORED if check == SCORED else "not right"

    def text(self, problem: Problem, completion: str) -> str:
        """The question, the expected answer and the completion."""
        expected = problem["answer"] or "any that the data set accepts"
        return f"question: {problem['question']}\nexpected: {expected}\ngiven: {completion}"

    def example(self, problem: Problem, completion: str) -> str:
        """The same, which is labelled already."""
        return self.text(problem, completion)


def _totals(problem: Problem) -> str:
    """The intermediate totals of a sum; a small model cannot add many terms at once."""
    if problem["source"][0] != "chain_sum":
        return ""
    terms = map(int, _TERM.findall(problem["question"].replace(" ", "")))
    return "".join(f"{total} " for total in list(itertools.accumulate(terms))[1:-1])


def _column(attribute: Mapping[str, Any]) -> str:
    return f"{attribute['name']}_level"


def _parameter(attribute: Mapping[str, Any]) -> Parameter:
    """The parameter that sets the highest level of an attribute."""
    levels = [f"{i} is {up_to}" for i, (_, up_to) in enumerate(attribute["levels"], 1)]
    meaning = f"how far {attribute['name']} goes: {', '.join(levels)}."
    return Parameter(_column(attribute), ((1, len(levels)),), decimals=0, meaning=meaning)
