"""Small questions in plain words, for models that were trained elsewhere and follow instructions.

Such a model solves some of them at once, so that no warm start is needed. The reader is lenient:
whatever a completion says, its last number or word counts.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from engineer.space import Configuration, ConfigurationSpace, Parameter
from engineer.texts import plain_texts
from experiments.families.family import Family, Generated, Problem, Record

CHECKS = ("has_answer", "right")

# LaTeX separates thousands by {,} or a thin blank, too.
_NUMBER = re.compile(r"(?<!\d)-?\d+(?:(?:,|\{,\}|\\,)\d{3})*(?:\.\d+)?")
_WORD = re.compile(r"[A-Za-z]+")
_QUOTED = re.compile(r"""(?<!\w)["'“`*]([A-Za-z]+)[.,]?["'”`*]""")
_WORDS = _WORD.findall("""
add age air arm art bag bed big box boy bus car cat cow cup cut dog dry ear egg end eye far fly fun
gas hat hot ice job key leg lip low man map mix net oil old pan pay pen pig red run sea sky sun tax
tea ten toy van war way wet win
army baby back ball bank bird blue boat body book cake city cold dark deep desk door duck east face
fact farm fast film fire fish food game gift girl goat gold hair hand home hope jump king lake lamp
milk moon name neck park rain ring road salt ship snow soup star tree wave wind wolf yard
angel apple beach black bread brick bring brown chair cheap clean clock cloud dance dream drink
early earth event field first floor fresh fruit ghost glass grand green group heart horse hotel
house judge knife large lemon light lunch metal money month mouse music night ocean paint paper
party piano plant river sheep smile stone storm sugar table tiger train uncle water
animal answer artist basket beauty bottle branch bridge bright butter camera castle change cheese
circle coffee corner danger dinner doctor engine family farmer finger flower forest friend garden
ground guitar hammer island jacket ladder leader letter market memory mirror mother number office
orange pencil people planet player pocket prince rabbit school secret shadow silver simple singer
sister spring street summer sunset ticket travel window winter yellow
""")


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Questions of one kind.

    Attributes:
      finds: what is asked for.
      unit: what a row counts: the "digits" of both numbers or the "letters" of the word.
      sizes: one row for each.
      question: with a place for each operand.
      answer: from the operands.
      keep: which pairs of numbers to ask about, from two arrays.
    """

    finds: str
    unit: str
    sizes: str
    question: str
    answer: Callable[..., int | str]
    keep: Callable[[np.ndarray, np.ndarray], Any] = lambda first, second: first > 0

    def operands(self, size: str, held_out: bool) -> np.ndarray:
        """The operands of every problem of a row, of the validation set or else of training.

        A quarter of the pairs of numbers, in either order, and of the words is held out.

        Returns:
          [problems, 2] integers, or [problems, 1] words.
        """
        if self.unit == "letters":
            indices = np.array([i for i, word in enumerate(_WORDS) if len(word) == int(size)])
            return np.array(_WORDS)[indices[_held_out(indices, indices) == held_out], None]
        numbers = np.arange(10 ** (int(size) - 1), 10 ** int(size))
        first, second = (grid.ravel() for grid in np.meshgrid(numbers, numbers))
        chosen = self.keep(first, second) & (_held_out(first, second) == held_out)
        return np.stack([first[chosen], second[chosen]], axis=1)


def _held_out(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Whether pairs of integers are held out; the order in a pair does not matter."""
    mixed = np.minimum(first, second) * 40503 + np.maximum(first, second) * 30011
    return mixed % 65521 % 4 == 0


KINDS = {
    "sums": _Kind(
        "the sum of two numbers",
        "digits",
        "123",
        "What is {} plus {}? Answer with the number only.",
        lambda a, b: a + b,
    ),
    "differences": _Kind(
        "the difference of two numbers",
        "digits",
        "123",
        "What is {} minus {}? Answer with the number only.",
        lambda a, b: a - b,
        np.greater_equal,
    ),
    "larger": _Kind(
        "the larger of two numbers",
        "digits",
        "123",
        "Which number is larger, {} or {}? Answer with the number only.",
        max,
        np.not_equal,
    ),
    "vowels": _Kind(
        "the number of vowels in a word",
        "letters",
        "3456",
        'How many letters of the word "{}" are a, e, i, o or u? Answer with the number only.',
        lambda word: sum(word.count(vowel) for vowel in "aeiou"),
    ),
    "last_letter": _Kind(
        "the last letter of a word",
        "letters",
        "3456",
        'What is the last letter of the word "{}"? Answer with the letter only.',
        lambda word: word[-1],
    ),
    "backward": _Kind(
        "a word spelled backward",
        "letters",
        "3456",
        'Spell the word "{}" backward. Answer with the word only.',
        lambda word: word[::-1],
    ),
}
MIXED = (
    *("sums_1", "sums_2", "sums_3", "differences_2", "larger_3"),
    *("vowels_4", "last_letter_5", "backward_3"),
)
"""The rows of `words:mixed`."""


class Words(Family):
    """A row for each size of each kind; the engineer chooses its fraction of the set.

    The validation set and training never share a problem, nor one with its numbers exchanged,
    whatever the seeds.

    Args:
      names: kinds (all their sizes) and rows such as `sums_2`, joined by "+"; "mixed" is `MIXED`.
        Rows of a single kind are called by their sizes alone.

    Attributes:
      problems: how many distinct problems each row has for training and for validation.

    Raises:
      ValueError: a name is unknown or there twice.
    """

    reward = "1 for a right answer, else 0"

    def __init__(self, names: str) -> None:
        every = [f"{kind}_{size}" for kind, of in KINDS.items() for size in of.sizes]
        chosen: list[str] = []
        for name in names.split("+"):
            rows = [f"{name}_{size}" for size in KINDS[name].sizes] if name in KINDS else [name]
            chosen += MIXED if name == "mixed" else rows
        if (unknown := set(chosen) - set(every)) or len(set(chosen)) < len(chosen):
            wrong = min(unknown) if unknown else "a row that is there twice"
            raise ValueError(
                f"family='words:{names}': {wrong}; allowed are mixed, {', '.join(KINDS)}, and "
                f"single rows such as {every[1]}, joined by +"
            )
        parts = [row.rpartition("_")[::2] for row in sorted(chosen, key=every.index)]
        kinds = {name: KINDS[name] for name, _ in parts}
        single = len(kinds) == 1
        self._rows = {
            size if single else f"{name}_{size}": (KINDS[name], size) for name, size in parts
        }
        if single:
            (kind,) = kinds.values()
            label, task = kind.unit, f"to find {kind.finds}"
            meaning = f"the part of the set with so many {label}."
        else:
            label, meaning = "task", "the part of the set that is of this task."
            named = (f"{kind.finds} ({name})" for name, kind in kinds.items())
            task = f"to find {', '.join(named)}, of as many digits or letters as a name ends with"
        self.space = ConfigurationSpace(
            label, tuple(self._rows), (Parameter("fraction", meaning=meaning),), "fraction"
        )
        texts = plain_texts(self.space, task, CHECKS)
        instruction = texts.instruction
        if single:  # A row is called "digits 2", but "each digits" is no English.
            instruction = instruction.replace(f"each {label}", f"each number of {label}")
            instruction = instruction.replace(f"all {label}", f"all numbers of {label}")
        self.texts = dataclasses.replace(
            texts,
            instruction=instruction,
            failure_words={"no_answer": ("has_answer",), "wrong": ("right",)},
        )
        self.problems = {
            row: tuple(len(kind.operands(size, held_out)) for held_out in (False, True))
            for row, (kind, size) in self._rows.items()
        }

    def generate(
        self, key: jax.Array, config: Configuration, count: int, exclude: Sequence[Problem]
    ) -> Generated:
        """Draws without replacement; a row whose problems are exhausted gives fewer."""
        return self._drawn(key, config, count, exclude, held_out=False)

    def validation_set(
        self, key: jax.Array, count: int, exclude: Sequence[Problem] = ()
    ) -> Generated:
        """Draws from the problems that are held out."""
        return self._drawn(key, self.validation, count, exclude, held_out=True)

    def _drawn(
        self,
        key: jax.Array,
        config: Configuration,
        count: int,
        exclude: Sequence[Problem],
        held_out: bool,
    ) -> Generated:
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        taken = {(problem["group"], *problem["operands"]) for problem in exclude}
        problems: list[Problem] = []
        for row, asked in self.counts(config, count).items():
            kind, size = self._rows[row]
            of_row = kind.operands(size, held_out)
            shuffled = (of_row[i].tolist() for i in rng.permutation(len(of_row)))
            left = (operands for operands in shuffled if (row, *operands) not in taken)
            problems += [{"group": row, "operands": one} for one in itertools.islice(left, asked)]
        made = self.generated([problems[i] for i in rng.permutation(len(problems))], config, count)
        use = "validation" if held_out else "training"
        notes = [f"{note}; a row has no more for {use}" for note in made.notes]
        return dataclasses.replace(made, notes=notes)

    def prompt(self, problem: Problem) -> str:
        """The question, with what to answer."""
        return self._kind(problem).question.format(*problem["operands"])

    def verify(self, problem: Problem, text: str) -> Record:
        """Compares the last number or word of a completion with the answer."""
        right = self._answer(problem)
        asked = problem["operands"][0]
        found = read_number(text) if isinstance(right, int) else read_word(text, asked)
        failed = "has_answer" if found is None else "right"
        return {"failed": [failed] if found != right else []}

    def failure(self, check: str) -> str:
        """A phrase for failing a check."""
        known = {"has_answer": "no answer found", "right": "wrong answer"}
        return known.get(check) or super().failure(check)

    def solutions(self, problems: Sequence[Problem]) -> Sequence[str]:
        """The answers alone."""
        return [str(self._answer(problem)) for problem in problems]

    def _kind(self, problem: Problem) -> _Kind:
        return self._rows[problem["group"]][0]

    def _answer(self, problem: Problem) -> int | str:
        return self._kind(problem).answer(*problem["operands"])


def last_number(text: str) -> str | None:
    """The last number of a text, without separators of thousands; None if there is none."""
    numbers = _NUMBER.findall(text.replace("\N{MINUS SIGN}", "-"))
    return re.sub(r"[^\d.-]", "", numbers[-1]) if numbers else None


def read_number(text: str) -> float | None:
    """The value of `last_number`."""
    number = last_number(text)
    return None if number is None else float(number)


def read_word(text: str, asked: str = "") -> str | None:
    """The last quoted word of a text besides the one that was asked about, else its last word.

    Case does not matter. None if there is no word.
    """
    quoted = [word for word in _QUOTED.findall(text) if word.lower() != asked]
    words = quoted or _WORD.findall(text)
    return words[-1].lower() if words else None
