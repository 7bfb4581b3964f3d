"""The picture language: a lake, paths, agents and marks as a few kinds of shapes.

A disc is an agent, a ring its start, a square its goal, a dark cell a hole. Everything that
belongs to an agent has its colour and carries its number. What breaks a rule is red: arrows and a
cross where the forbidden move leads to, two opposing arrows for a swap, a star for a collision.

Points are (row, column), whole numbers are cell centres; lengths are in cells.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Literal

import numpy as np

from mapf_jax.draw.story import Mark, Story
from mapf_jax.types import ViolationKind

#: Colours by name. Those of the agents (in the spirit of Okabe and Ito, 2008) have a contrast of at
#: least 3 to 1 with paper and differ for every common kind of colour vision.
PALETTE = {
    "ink": "#1B2733",
    "paper": "#FFFFFF",
    "soft": "#66788A",
    "bad": "#D4002A",
    "ice": "#EDF4F9",
    "grid": "#C3D2DE",
    "hole": "#27384A",
    "c0": "#1F39C4",
    "c1": "#AF3812",
    "c2": "#00825E",
    "c3": "#D66EB5",
    "c4": "#451709",
    "c5": "#2A98F2",
    "c6": "#26224B",
    "c7": "#9B9800",
}
MARGIN = 0.6  #: Around the lake, for agents that leave it.
_OUTSIDE = 0.75  # What leaves the lake is drawn this far from the centre of its last cell.


@dataclasses.dataclass(frozen=True)
class Shape:
    """One thing to draw.

    Attributes:
      kind: a "disc" or "box" around a point, a "text" centred on one, a "line" or an "area".
      points: float[n, 2], the centre, or the corners of a line or an area.
      reach: radius of a disc, half the side of a box, height of a text.
      fill: colour of the inside, or of a text.
      stroke: colour of the outline, or of a line.
      width: of the outline or line.
      opacity: of the inside.
      text: what a text says.
    """

    kind: Literal["disc", "box", "line", "area", "text"]
    points: np.ndarray
    reach: float = 0.0
    fill: str | None = None
    stroke: str | None = None
    width: float = 0.03
    opacity: float = 1.0
    text: str = ""


def lake(story: Story) -> Iterator[Shape]:
    """The ice, the holes, the coordinates, and the agents' starts and goals."""
    size = len(story.blocked)
    yield Shape("box", np.full((1, 2), (size - 1) / 2), size / 2, fill="ice")
    for edge in np.arange(size + 1) - 0.5:
        for ends in ([(edge, -0.5), (edge, size - 0.5)], [(-0.5, edge), (size - 0.5, edge)]):
            yield Shape("line", np.array(ends), stroke="grid")
    for hole in np.argwhere(story.blocked):
        yield Shape("box", hole[None], 0.44, fill="hole")
    for i in range(size):
        yield _text((i, -0.74), i, 0.24, "soft")
        yield _text((-0.74, i), i, 0.24, "soft")
    for number, start, goal in zip(story.agents, story.starts, story.goals, strict=True):
        colour = _colour(number)
        yield Shape("box", goal[None], 0.38, colour, colour, width=0.06, opacity=0.22)
        yield Shape("disc", start[None], 0.38, stroke=colour, width=0.06)
        # In a corner of the goal that no disc hides.
        yield _text(np.add(goal, (-0.23, 0.25)), number, 0.24, "ink")


def trail(story: Story, agent: int, cells: np.ndarray) -> Iterator[Shape]:
    """The path of the story's agent along cells [times, 2], and its direction."""
    colour = _colour(story.agents[agent])
    cells = _near(story, cells)
    aside = np.clip(0.11 * (agent - (len(story.agents) - 1) / 2), -0.26, 0.26)
    still = np.all(cells[1:] == cells[:-1], axis=1)
    points = cells[np.append(True, ~still)] + aside
    if len(points) > 1:
        yield Shape("line", points, stroke=colour, width=0.07)
    for before, after in itertools.pairwise(points):
        if np.isclose(np.abs(after - before).sum(), 1):
            yield _head(0.5 * (before + after), after - before, 0.2, colour)


def waits(story: Story, paths: np.ndarray) -> Iterator[Shape]:
    """How often each agent waits in a cell of its path [agents, times, 2], to be drawn last.

    One agent's label is in a corner that neither numbers of goals nor of agents need; those of
    several agents share the diagonal of their cell.
    """
    found: dict[tuple[float, ...], list[tuple[int, int]]] = {}
    for agent, cells in enumerate(_near(story, paths)):
        still = np.all(cells[1:] == cells[:-1], axis=1)
        away = np.flatnonzero(np.any(cells != story.goals[agent], axis=1))
        waited = cells[:-1][still & (np.arange(len(still)) < away.max(initial=0))]
        for place, count in zip(*np.unique(waited, axis=0, return_counts=True), strict=True):
            found.setdefault(tuple(place), []).append((agent, count))
    for place, labels in found.items():
        for (agent, count), along in zip(labels, np.linspace(1, -1, len(labels)), strict=True):
            text = "wait" if count == 1 else f"wait {count}"
            point = np.add(place, along * np.array([0.33, 0.22]))
            yield _text(point, text, 0.24, _colour(story.agents[agent]), halo=0.08)


def agents(story: Story, where: np.ndarray) -> list[list[Shape]]:
    """A disc and a number for each agent, at `spread(where)`."""
    return [
        [
            Shape("disc", place[None], 0.31, _colour(number), "paper", width=0.04),
            _text(place, number, 0.34, "paper"),
        ]
        for number, place in zip(story.agents, spread(story, where), strict=True)
    ]


def spread(story: Story, where: np.ndarray) -> np.ndarray:
    """Points [agents, 2] moved near to the lake, and side by side where some coincide."""
    where = _near(story, where)
    close = np.abs(where[:, None] - where[None]).max(-1) < 0.25
    place_in_line = np.tril(close, -1).sum(1) - (close.sum(1) - 1) / 2
    return where + np.stack([np.zeros(len(where)), 0.34 * place_in_line], axis=1)


def mark(story: Story, mark: Mark) -> Iterator[Shape]:
    """A broken rule, to be drawn over the agents."""
    before, after = _near(story, mark.before), _near(story, mark.after)
    if mark.kind == ViolationKind.SWAP:
        across = (after - before)[::-1] * (0.23, -0.23)
        yield from _arrow(before + across, after + across)
        return
    collision = mark.kind == ViolationKind.VERTEX
    legal = collision or mark.kind in (ViolationKind.HOLE, ViolationKind.OUT_OF_BOUNDS)
    yield from _arrow(before, after, dashed=not legal)
    if not collision:
        reach = np.array([(0.25, 0.25), (0.25, -0.25)])
        for colour, width in (("paper", 0.2), ("bad", 0.12)):
            for corner in reach:
                ends = np.array([after - corner, after + corner])
                yield Shape("line", ends, stroke=colour, width=width)


def burst(story: Story, mark: Mark) -> Iterator[Shape]:
    """A star to be drawn below agents that are in one cell."""
    if mark.kind == ViolationKind.VERTEX:
        angles = np.pi * np.arange(24) / 12
        reach = np.where(np.arange(24) % 2, 0.62, 0.44)[:, None]
        corners = _near(story, mark.after) + reach * np.stack([np.sin(angles), np.cos(angles)], 1)
        yield Shape("area", corners, fill="bad", stroke="bad", width=0.04, opacity=0.28)


def _arrow(before: np.ndarray, after: np.ndarray, dashed: bool = False) -> Iterator[Shape]:
    """A red arrow with a white edge; it ends shortly before the centre of its last cell."""
    length = np.linalg.norm(after - before)
    if not length:
        return
    along = (after - before) / length
    begin, end = before + 0.12 * along, after - 0.12 * along
    shaft = np.linalg.norm(end - begin) - 0.2
    count = max(round(shaft / 0.3), 1) if dashed else 1
    for colour, width, head in (("paper", 0.15, 0.3), ("bad", 0.085, 0.24)):
        for first in shaft * np.arange(count) / count:
            dash = shaft / count * (0.6 if count > 1 else 1)
            ends = begin + along * np.array([[first], [first + dash]])
            yield Shape("line", ends, stroke=colour, width=width)
        yield _head(end - 0.1 * along, along, head, colour)


def _head(point: np.ndarray, along: np.ndarray, length: float, colour: str) -> Shape:
    """A triangle around a point that shows a direction."""
    along = along / np.linalg.norm(along) * length
    across = 0.62 * along[::-1] * (1, -1)
    corners = point + np.array([0.6 * along, across - 0.5 * along, -across - 0.5 * along])
    return Shape("area", corners, fill=colour)


def _text(point: object, text: object, height: float, fill: str, halo: float = 0.0) -> Shape:
    stroke = "paper" if halo else None
    return Shape("text", np.array([point]), height, fill, stroke, width=halo, text=str(text))


def _near(story: Story, points: np.ndarray) -> np.ndarray:
    return np.clip(np.asarray(points, float), -_OUTSIDE, len(story.blocked) - 1 + _OUTSIDE)


def _colour(number: int) -> str:
    return f"c{number % 8}"
