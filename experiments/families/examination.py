"""Tries a family of environments without any model.

Makes problems at the corners of the space and verifies the family's own solutions.
"""

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from engineer.space import Configuration, ConfigurationSpace
from experiments.families.family import (
    SCORED,
    Family,
    FamilyError,
    Generated,
    NoProblemError,
    Problem,
)
from experiments.families.sandbox import told
from experiments.families.shapes import ShapeError, check
from learner.chat import Completion

FEW, MANY = 4, 200
"""Numbers of problems made at once: for a quick look, and to count distinct ones."""


def corners(space: ConfigurationSpace) -> Iterator[tuple[str, Configuration]]:
    """Yields the uniform configuration, that with each parameter at its bounds, and each row alone.

    Yields:
      What the configuration is, and the configuration.
    """
    uniform = space.uniform()
    yield "uniform", uniform
    for name, end in itertools.product(space.names, (0, 1)):
        if name != space.fraction_parameter:
            ends = {(row, name): space.bounds(row, name)[end] for row in space.rows}
            word = ("lowest", "highest")[end]
            yield f"{word} {name}", Configuration.from_cells({**uniform.cells(), **ends})
    for alone in space.rows:
        fractions = {(row, space.fraction_parameter): float(row == alone) for row in space.rows}
        label = f"only {space.label} {alone}"
        yield label, Configuration.from_cells({**uniform.cells(), **fractions})


@contextlib.contextmanager
def own_errors(path: Path | None) -> Iterator[None]:
    """Turns any error of a user's own file into a `FamilyError` that says where it was raised."""
    try:
        yield
    except FamilyError:
        raise
    except Exception as error:
        raise FamilyError(told(error, str(path))) from error


def try_once(family: Family) -> None:
    """Makes a few problems, shows one as a run would, and verifies empty completions.

    The completions only if the family has no task of its own, which might ask a server.

    Raises:
      FamilyError: that fails.
    """
    problems = family.generate(jax.random.key(0), family.validation, FEW, ()).problems
    shown = {**problems[0], "id": "0"}  # As in a run, which numbers them.
    for name in family.texts.checks:
        check(family.failure(name), str, f"failure({name!r})")
    check(family.text(shown, ""), str, "text")
    check(family.example(shown, ""), str, "example")
    family.draw(shown, "")
    if type(family).task is Family.task:
        _verify(family, problems, [""] * len(problems), "an empty completion")


def _verify(family: Family, problems: Sequence[Problem], texts: Sequence[str], what: str) -> int:
    """The number of valid completions, one of each problem.

    Raises:
      FamilyError: there are no prompts, or one could not be scored.
    """
    task = family.task(problems)
    message = {"role": str, "content": str}
    for i in range(len(task)):
        check(list(task.messages(i)), [message], f"messages({i})")
    completions = [Completion(text, 1, False) for text in texts]
    records = task.score(np.arange(len(problems)), completions).records
    for record in records:
        if SCORED in record["failed"]:
            raise FamilyError(f"{what} could not be scored: {record.get('why')}")
    return sum(bool(record["valid"]) for record in records)


def _generated(
    family: Family, key: jax.Array, config: Configuration, count: int, exclude: Sequence[Problem]
) -> Generated | NoProblemError:
    """What a family generates, or why nothing.

    Raises:
      FamilyError: it made something else than it should.
    """
    try:
        return family.generate(key, config, count, exclude)
    except NoProblemError as error:
        if isinstance(error.__cause__, ShapeError):
            raise FamilyError(str(error)) from error
        return error


def examine(family: Family) -> Iterator[str]:
    """Yields a line for each thing tried.

    Raises:
      FamilyError: the family is not usable.
    """
    try_once(family)
    for name, config in corners(family.space):
        begin = time.monotonic()
        made = _generated(family, jax.random.key(1), config, FEW, ())
        if isinstance(made, NoProblemError):
            yield f"{name}: no problem ({made})"
            continue
        seconds = (time.monotonic() - begin) / FEW
        notes = "".join(f"; {note}" for note in made.notes)
        yield f"{name}: {len(made.problems)} of {FEW} problems, {seconds:.2g} s each{notes}"
    problems = family.generate(jax.random.key(2), family.validation, MANY, ()).problems
    again = family.generate(jax.random.key(2), family.validation, MANY, ()).problems
    if list(again) != list(problems):
        raise FamilyError("generate: the same key makes other problems the second time")
    # The same key, so the same problems if none were excluded.
    _generated(family, jax.random.key(2), family.validation, MANY, problems)
    yield f"distinct problems of the validation set's configuration: {len(problems)} of {MANY}"
    begin = time.monotonic()
    valid = _verify(family, problems, [""] * len(problems), "an empty completion")
    yield (
        f"empty completions: {valid} of {len(problems)} valid, "
        f"{(time.monotonic() - begin) / len(problems):.2g} s each"
    )
    if valid == len(problems):
        raise FamilyError("verify: an empty completion is valid for every problem")
    prose = "I am not sure. Maybe it is 42?"
    _verify(family, problems, [prose] * len(problems), "a completion in prose")
    try:
        texts = family.solutions(problems)
    except NotImplementedError:
        yield "solutions: none defined, which only a warm start needs"
        return
    check(list(texts), [str], "solutions")
    if len(texts) != len(problems):
        raise FamilyError(f"solutions: {len(texts)} of {len(problems)} problems")
    valid = _verify(family, problems, texts, "a solution of the family")
    yield f"solutions: {valid} of {len(problems)} valid"
    if valid < len(problems):
        raise FamilyError(f"solutions: only {valid} of {len(problems)} are valid by `verify`")
    # Right in form and wrong in value, where `verify` may name a check that `texts` lacks.
    valid = _verify(family, problems, [*texts[1:], texts[0]], "a solution of another problem")
    yield f"solutions of other problems: {valid} of {len(problems)} valid"
