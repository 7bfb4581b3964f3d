"""Answers as they unfold on their lakes: small drawings that move by style alone, without scripts.

A disc is an agent, a ring its start, a square with its number its goal. A red cross marks a broken
rule from the time on at which it is broken; the dot below the lake is the time. Where nothing may
move, on paper or for who asks for less motion, the discs stand where the answer ends.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import mapf_jax
from experiments.report.page import Html, element, fold, text_block
from experiments.report.reading import failure
from experiments.report.style import LOOKS
from mapf_jax import formats
from mapf_jax.verify import violation_kinds

_STEP, _BEFORE, _AFTER = 0.55, 0.7, 1.8  # Seconds a step, and of rest at both ends.
_MARGIN = 0.75  # Around the lake in cells, for what leaves it.
_SENTENCES = {
    "illegal_move": "agent {agent} jumps",
    "out_of_bounds": "agent {agent} leaves the lake",
    "hole": "agent {agent} enters a hole",
    "vertex": "agent {agent} meets another one in its cell",
    "swap": "agent {agent} exchanges cells with another one",
    "wrong_start": "agent {agent} does not begin on its start",
    "goal_missed": "agent {agent} does not end on its goal",
}
_kinds = jax.jit(jax.vmap(violation_kinds))


@dataclasses.dataclass(frozen=True)
class Answer:
    """What is to be drawn.

    Attributes:
      instance: a record of `mapf_jax.formats`.
      text: the answer.
      remark: what else there is to say of it.
    """

    instance: Mapping[str, Any]
    text: str
    remark: str = ""


def drawings(answers: Sequence[Answer], prefix: str) -> list[Html]:
    """One figure for each answer, with its lake, its fate and its text.

    Args:
      answers: to instances of the same number of agents.
      prefix: letters for the names of the animations, different for every call of a page.

    Raises:
      ValueError: an instance is none.
    """
    if not answers:
        return []
    instances = formats.from_records([answer.instance for answer in answers])
    agents = instances.starts.shape[-2]
    plans = mapf_jax.plans_from_texts([answer.text for answer in answers], agents)
    verdicts = jax.tree.map(np.asarray, mapf_jax.verify(instances, plans))
    kinds = np.asarray(_kinds(instances, plans))
    figures = []
    for i, answer in enumerate(answers):
        verdict = formats.verdict_fields(jax.tree.map(lambda leaf, i=i: leaf[i], verdicts))
        steps = int(plans.num_steps[i])
        readable = verdict["checks"]["parsable"] and verdict["checks"]["agent_count"]
        drawn = _drawing(
            answer.instance,
            np.asarray(plans.positions[i])[: steps + 1].astype(float) if readable else None,
            kinds[i][: steps + 1],
            f"{prefix}{i}",
        )
        caption = element("figcaption", *_caption(answer, verdict, steps))
        text = fold("The answer", text_block(answer.text or "(empty)"))
        figures.append(element("figure", drawn, caption, text))
    return figures


def _caption(answer: Answer, verdict: Mapping[str, Any], steps: int) -> list[Html | str]:
    size = len(answer.instance["map"])
    parts: list[Html | str] = [element("b", f"{size}x{size}, {answer.instance['id']}"), ": "]
    optimum = answer.instance.get("cost")
    if verdict["valid"]:
        parts.append(f"valid, cost {verdict['plan_cost']}")
        if verdict["gap"] is not None:
            parts.append(f", optimum {optimum}" if verdict["gap"] else ", optimal")
    elif not verdict["checks"]["parsable"]:
        parts.append("no plan could be read")
    elif not verdict["checks"]["agent_count"]:
        parts.append("a plan for another number of agents")
    else:
        failed = [failure(check) for check, ok in verdict["checks"].items() if not ok]
        parts.append(", ".join(failed))
        if verdict["violation"] is not None:
            sentence = _SENTENCES[verdict["violation"]["kind"]].format(**verdict["violation"])
            parts.append(f"; at time {verdict['violation']['time']} of {steps} {sentence}")
    parts.append(f". {answer.remark}" if answer.remark else ".")
    return parts


def _drawing(
    record: Mapping[str, Any], positions: np.ndarray | None, kinds: np.ndarray, name: str
) -> Html:
    """One lake.

    Args:
      record: the instance.
      positions: float[T + 1, A, 2], or None if there is no plan to show.
      kinds: int[T + 1, A], `ViolationKind`s.
      name: of its animations.
    """
    size = len(record["map"])
    starts, goals = (np.asarray(record[key], float) for key in ("starts", "goals"))
    agents = len(starts)
    low, high = -_MARGIN, size - 1 + _MARGIN
    cells = None if positions is None else np.clip(positions[:, :agents], low, high)
    # Agents are drawn a little beside the middle, so that nobody hides behind another.
    aside = np.linspace(-0.13, 0.13, agents)[:, None] * np.ones(2)

    parts = [*_ice(record["map"])]
    for agent in range(agents):
        colour = f"var(--c{agent % len(LOOKS)})"
        parts += _ends(agent, starts[agent], goals[agent], colour)
    rules = []
    seconds = 0.0
    if cells is not None:
        steps = len(cells) - 1
        seconds = _BEFORE + _STEP * steps + _AFTER
        for agent in range(agents):
            parts.append(_trail(cells[:, agent] + aside[agent], agent))
    if cells is not None:
        for time, agent in np.argwhere(kinds[:, :agents] != mapf_jax.ViolationKind.NONE).tolist():
            appearing = f"{name}-x{time}"
            if time:
                rules.append(_appear(appearing, time, seconds))
            parts.append(
                _cross(cells[time, agent] + aside[agent], appearing if time else "", seconds)
            )
    for agent in range(agents):
        here = (starts[agent] if cells is None else cells[-1, agent]) + aside[agent]
        moving = ""
        if cells is not None and len(cells) > 1:
            moving = f"{name}-{agent}"
            rules.append(_walk(moving, cells[:, agent] + aside[agent], seconds))
        parts.append(_disc(agent, here, moving, seconds))
    if cells is not None:
        parts += _clock(size, len(cells) - 1, kinds[:, :agents], name, seconds, rules)
    style = element("style", Html("".join(dict.fromkeys(rules)))) if rules else None
    side = size + 2 * _MARGIN
    return element(
        "svg",
        style,
        *parts,
        class_="lake",
        viewBox=f"{-0.5 - _MARGIN} {-0.5 - _MARGIN} {side} {side + 0.3}",
        role="img",
        aria_label=f"Lake {record['id']} with the paths of {agents} agents",
    )


def _ice(rows: Sequence[str]) -> list[Html]:
    size = len(rows)
    lines = "".join(
        f"M{i - 0.5} -.5V{size - 0.5}M-.5 {i - 0.5}H{size - 0.5}" for i in range(size + 1)
    )
    parts = [
        element("rect", x=-0.5, y=-0.5, width=size, height=size, fill="var(--ice)"),
        element("path", d=lines, stroke="var(--grid)", stroke_width=0.03, fill="none"),
    ]
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells.split()):
            if cell == "H":
                parts.append(
                    element(
                        "rect",
                        x=round(column - 0.44, 2),
                        y=round(row - 0.44, 2),
                        width=0.88,
                        height=0.88,
                        rx=0.14,
                        fill="var(--hole)",
                    )
                )
    for i in range(size):
        for x, y in ((i, -0.72), (-0.78, i)):
            parts.append(_text(str(i), x, y, 0.26, "var(--soft)"))
    return parts


def _ends(agent: int, start: np.ndarray, goal: np.ndarray, colour: str) -> list[Html]:
    """The ring and the square, which has the agent's number in a corner that no disc hides."""
    return [
        element(
            "rect",
            x=round(goal[1] - 0.37, 2),
            y=round(goal[0] - 0.37, 2),
            width=0.74,
            height=0.74,
            rx=0.06,
            fill=colour,
            fill_opacity=0.2,
            stroke=colour,
            stroke_width=0.06,
        ),
        element(
            "circle",
            cx=start[1],
            cy=start[0],
            r=0.38,
            fill="none",
            stroke=colour,
            stroke_width=0.06,
        ),
        _text(str(agent), goal[1] + 0.25, goal[0] - 0.23, 0.24, "var(--ink)", bold=True),
    ]


def _trail(cells: np.ndarray, agent: int) -> Html:
    path = "M" + "L".join(f"{column:.2f} {row:.2f}" for row, column in cells)
    dashes = " ".join(f"{0.06 * part:.2f}" for part in LOOKS[agent % len(LOOKS)].dashes)
    return element(
        "path",
        d=path,
        fill="none",
        stroke=f"var(--c{agent % len(LOOKS)})",
        stroke_width=0.07,
        stroke_dasharray=dashes or None,
        opacity=0.75,
    )


def _disc(agent: int, where: np.ndarray, moving: str, seconds: float) -> Html:
    row, column = where
    style = f"transform: translate({column:.2f}px, {row:.2f}px);"
    if moving:
        style += f" animation: {moving} {seconds:.2f}s linear infinite"
    return element(
        "g",
        element(
            "circle",
            r=0.27,
            fill=f"var(--c{agent % len(LOOKS)})",
            stroke="var(--paper)",
            stroke_width=0.04,
        ),
        _text(str(agent), 0, 0, 0.34, "var(--paper)", bold=True),
        class_="moving" if moving else None,
        style=style,
    )


def _cross(where: np.ndarray, appearing: str, seconds: float) -> Html:
    row, column = where
    lines = "M-.34 -.34L.34 .34M-.34 .34L.34 -.34"  # Its ends show around a disc on it.
    return element(
        "g",
        element("path", d=lines, stroke="var(--paper)", stroke_width=0.19),
        element("path", d=lines, stroke="var(--bad)", stroke_width=0.11),
        transform=f"translate({column:.2f} {row:.2f})",
        class_="moving" if appearing else None,
        style=f"animation: {appearing} {seconds:.2f}s step-end infinite" if appearing else None,
    )


def _clock(
    size: int, steps: int, kinds: np.ndarray, name: str, seconds: float, rules: list[str]
) -> list[Html]:
    """A dot that goes along a line with a stroke for every time; red where a rule is broken."""
    y, last = size - 0.5 + _MARGIN, size - 1.0
    broken = np.any(kinds != mapf_jax.ViolationKind.NONE, axis=1)
    place = [last * time / max(steps, 1) for time in range(steps + 1)]
    strokes = "".join(f"M{x:.2f} {y - 0.07:.2f}v.14" for x in place)
    red = "".join(
        f"M{x:.2f} {y - 0.14:.2f}v.28" for x, bad in zip(place, broken, strict=True) if bad
    )
    parts = [
        element(
            "path",
            d=f"M0 {y}H{last}{strokes}",
            stroke="var(--soft)",
            stroke_width=0.03,
            fill="none",
        )
    ]
    if red:
        parts.append(element("path", d=red, stroke="var(--bad)", stroke_width=0.07))
    style = f"transform: translate({last:.2f}px, {y:.2f}px);"
    if steps:
        along = np.array([(y, x) for x in place])
        rules.append(_walk(f"{name}-t", along, seconds))
        style += f" animation: {name}-t {seconds:.2f}s linear infinite"
    parts.append(
        element(
            "circle",
            r=0.1,
            fill="currentColor",
            class_="moving" if steps else None,
            style=style,
        )
    )
    return parts


def _walk(name: str, cells: np.ndarray, seconds: float) -> str:
    """The rule that leads through cells [T + 1, 2], resting at both ends."""

    def at(time: float, cell: np.ndarray) -> str:
        return (
            f"{100 * time / seconds:.2f}%{{transform:translate({cell[1]:.2f}px,{cell[0]:.2f}px)}}"
        )

    frames = [at(0, cells[0])]
    frames += [at(_BEFORE + _STEP * time, cell) for time, cell in enumerate(cells)]
    frames.append(at(seconds, cells[-1]))
    return f"@keyframes {name}{{{''.join(frames)}}}"


def _appear(name: str, time: int, seconds: float) -> str:
    """The rule that shows something from a time on."""
    begin = 100 * (_BEFORE + _STEP * time) / seconds
    return f"@keyframes {name}{{0%{{opacity:0}}{begin:.2f}%{{opacity:1}}100%{{opacity:1}}}}"


def _text(text: str, x: float, y: float, size: float, fill: str, bold: bool = False) -> Html:
    return element(
        "text",
        text,
        x=x,
        y=y,
        font_size=size,
        font_weight=700 if bold else None,
        text_anchor="middle",
        dominant_baseline="central",
        fill=fill,
    )
