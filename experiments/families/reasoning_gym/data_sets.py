"""Functions that run in the sandbox: the data sets of reasoning-gym by name and levels.

Levels count from 0. A setting maps attributes of a curriculum to their lowest and highest levels;
attributes that it omits stay at level 0.
"""

import ast
import builtins
import decimal
import difflib
import functools
import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import sympy
from reasoning_gym.coaching.attributes import RangeAttributeDefinition
from reasoning_gym.factory import CURRICULA, DATASETS

Setting = dict[str, list[int]]

_SIZE = 20_000  # Problems of every data set; some refuse more.
_ROUNDING = 1e-6  # Of a score.
_EVAL = builtins.eval
# What expressions may call besides classes of SymPy; the last is of named tuples.
_FUNCTIONS = {"abs", "cbrt", "float", "int", "max", "min", "pow", "root", "sqrt", "_tuple_new"}


def _eval(
    source: Any, variables: dict[str, Any] | None = None, own: Mapping[str, Any] | None = None
) -> Any:
    """`eval` of an expression that only computes: some data sets, and SymPy, evaluate answers.

    Raises:
      ValueError: an expression has an attribute, or names anything but numbers, their functions
        and classes of SymPy.
    """
    variables = {} if variables is None else variables
    if isinstance(source, str):
        source = source.strip()
        # A named tuple has none: its fields may be called like one.
        given = variables.get("__builtins__", builtins)
        known = {**(given if isinstance(given, dict) else vars(given)), **variables, **(own or {})}
        for node in ast.walk(ast.parse(source, mode="eval")):
            if isinstance(node, ast.Attribute):
                raise ValueError(f"{node.attr!r}: an expression may have no attributes")
            if isinstance(node, ast.Name) and node.id not in _FUNCTIONS:
                value = known.get(node.id)
                kind = value if isinstance(value, type) else type(value)
                if not issubclass(kind, (sympy.Basic, float, int, type(None))):
                    raise ValueError(f"{node.id!r}: an expression may not use it")
    return _EVAL(source, variables, own)


builtins.eval = _eval


def unknown(name: str) -> str:
    """Why the name of a data set is invalid; empty if it is valid."""
    if name in CURRICULA:
        return ""
    if name in DATASETS:
        return f"{name!r} has no curriculum, so no levels"
    close = difflib.get_close_matches(name, CURRICULA, n=3)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    return f"{name!r} is no data set{hint}; allowed are {', '.join(sorted(CURRICULA))}"


def attributes(name: str) -> list[dict[str, Any]]:
    """The attributes of a curriculum whose levels differ: `name`, `numeric`, `levels`.

    `levels` describes each level in words: that level alone, and all levels up to it.
    """
    found = []
    for attribute in CURRICULA[name]().attributes.values():
        count = len(attribute.levels) - getattr(attribute, "ensure_interval", False)
        pairs = [
            [" to ".join(dict.fromkeys(map(_text, _values(attribute, low, i)))) for low in (i, 0)]
            for i in range(count)
        ]
        if len({alone for alone, _ in pairs}) > 1:
            numeric = all(type(level) in (int, float) for level in attribute.levels)
            found.append({"name": attribute.name, "numeric": numeric, "levels": pairs})
    return found


def possible(name: str, setting: Setting) -> bool:
    """Whether the data set accepts these levels."""
    try:
        _data_set(name, json.dumps(setting), 0)
    except (AssertionError, ValueError):
        return False
    return True


def draw(name: str, setting: Setting, seed: int, index: int) -> dict[str, str] | None:
    """Question and answer of a problem; None if the data set scores its own answer as wrong.

    The answer is empty if the data set gives none because many are right.
    """
    data = _data_set(name, json.dumps(setting), seed)
    entry = _entry(name, json.dumps(setting), seed, index)
    answer = entry["answer"]
    if answer is not None and data.score_answer(answer, entry) < 0.99:
        return None
    return {"question": entry["question"], "answer": "" if answer is None else str(answer)}


def score(name: str, setting: Setting, seed: int, index: int, question: str, given: str) -> float:
    """The score of an answer, in [0, 1].

    Raises:
      ValueError: this version of the data set has another question at `index`, or its score is
        outside [0, 1].
    """
    entry = _entry(name, json.dumps(setting), seed, index)
    if entry["question"] != question:
        raise ValueError(f"question {index} of {name} is another one")
    value = float(_data_set(name, json.dumps(setting), seed).score_answer(given, entry))
    if not -_ROUNDING <= value <= 1 + _ROUNDING and value == value:
        raise ValueError(f"score of {name}: {value}, allowed are 0 to 1")
    return min(max(value, 0.0), 1.0) if value == value else 0.0


def _data_set(name: str, setting: str, seed: int) -> Any:
    data, shared = _made(name, setting, seed)
    for attribute, value in shared.items():  # One data set keeps state of an instance in its class.
        setattr(type(data), attribute, value)
    return data


@functools.lru_cache(256)
def _made(name: str, setting: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """A data set, and the attributes of its class right after construction."""
    kind, options = DATASETS[name]
    chosen: dict[str, Any] = {"seed": seed, "size": _SIZE}
    for attribute in CURRICULA[name]().attributes.values():
        low, high = json.loads(setting).get(attribute.name, (0, 0))
        values = _values(attribute, low, high)
        if isinstance(attribute, RangeAttributeDefinition):
            chosen[attribute.lower_field_name] = min(values)
            chosen[attribute.upper_field_name] = max(values)
        else:
            chosen[attribute.field_name] = values[-1]
    config = options(**chosen)
    getattr(config, "validate", lambda: None)()  # Two data sets validate nothing.
    data = kind(config)
    return data, {one: value for one, value in vars(kind).items() if not one.startswith("__")}


@functools.lru_cache(1 << 14)
def _entry(name: str, setting: str, seed: int, index: int) -> dict[str, Any]:
    # Some data sets also use the global generators; seeding makes problems independent of others.
    random.seed(seed + index)
    np.random.seed((seed + index) % (1 << 32))  # noqa: NPY002
    with decimal.localcontext(decimal.DefaultContext):  # Which one data set changes.
        return _data_set(name, setting, seed)[index]


def _values(attribute: Any, low: int, high: int) -> list[Any]:
    """The ends of a range of levels; only the highest level if the attribute has no range."""
    levels = attribute.levels
    if not isinstance(attribute, RangeAttributeDefinition):
        return [levels[min(high, len(levels) - 1)]]
    last = min(high + attribute.ensure_interval, len(levels) - 1)
    return [levels[min(low, last - attribute.ensure_interval)], levels[last]]


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
