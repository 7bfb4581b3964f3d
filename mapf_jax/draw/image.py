"""Pictures and animations of instances and plans (needs Pillow, the extra `render`).

A disc is an agent, a ring its start, a square its goal, a dark cell a hole. Everything that
belongs to an agent has its colour and carries its number. What breaks a rule is red: arrows and a
cross where the forbidden move leads to, two opposing arrows for a swap.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from mapf_jax.types import INFINITE_COST, Instance, Plan, ViolationKind
from mapf_jax.verify import verify, violation_kinds

if TYPE_CHECKING:
    from PIL import Image

# Colours that differ for every common kind of colour vision (Okabe and Ito, 2008), without the
# vermilion, which is too near to the red of the marks.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#555555")
_ICE, _GRID, _HOLE = "#EDF4F9", "#C3D2DE", "#27384A"
_RED, _INK, _PAPER, _FAINT = "#D4002A", "#1B2733", "#FFFFFF", "#66788A"
_SMOOTH = 3  # Everything is drawn this many times larger and scaled down.
_MARGIN = 0.6  # Room around the lake in cells, for what leaves it.
_OUTSIDE = 0.75  # What leaves the lake is drawn so far from the centre of its last cell.
_MIN_WIDTH = 300
_STEP_MS, _PAUSE_MS, _END_MS = 420, 900, 1600

_kinds = jax.jit(violation_kinds)


def picture(instance: Instance, plan: Plan | None = None, cell: int = 48) -> "Image.Image":
    """One instance, with the paths of a plan up to its first violation and what that is.

    Args:
      instance: a single instance.
      plan: a single plan of it, valid or not.
      cell: width of a cell in pixels.
    """
    if plan is None:
        return _Scene(instance, cell).draw(captions=[])
    story = _tell(instance, plan)
    scene = _Scene(instance, cell)
    if not len(story.positions):
        return scene.draw(story.captions)
    time = story.first_time
    if time is None:
        return scene.draw(story.captions, story.positions[0], trails=story.positions)
    marks = [mark for mark in story.marks(time) if mark.kind != ViolationKind.GOAL_MISSED]
    if not marks:  # All moves are legal, only goals are missed.
        return scene.draw(story.captions, story.positions[time], story.positions, story.marks(time))
    before = max(time - 1, 0)
    if any(mark.kind == ViolationKind.WRONG_START for mark in marks):
        before = time
    return scene.draw(story.captions, story.positions[before], story.positions[: before + 1], marks)


def animation(
    instance: Instance, plan: Plan, cell: int = 48, frames_per_step: int = 5
) -> tuple[list["Image.Image"], list[int]]:
    """A plan as it unfolds; moves that break a rule are marked and held for a moment.

    Args:
      instance: a single instance.
      plan: a single plan of it, valid or not.
      cell: width of a cell in pixels.
      frames_per_step: pictures for each time step.

    Returns:
      (frames, how long to show each in milliseconds).
    """
    story = _tell(instance, plan)
    scene = _Scene(instance, cell)
    if not len(story.positions):
        return [scene.draw(story.captions)], [_END_MS]
    last = len(story.positions) - 1
    frames, durations = [], []

    def add(time: int, share: float, duration: int) -> None:
        marks = story.marks(time)
        here = story.positions[time]
        where = here if share == 1 else (1 - share) * story.positions[time - 1] + share * here
        trails = np.concatenate([story.positions[:time], where[None]])
        if share < 1:  # A goal is missed only when everything has come to rest.
            marks = [mark for mark in marks if mark.kind != ViolationKind.GOAL_MISSED]
        captions = [(f"t = {time} of {last}", _FAINT), *story.captions]
        frames.append(scene.draw(captions, where, trails, marks))
        durations.append(duration)

    for time in range(last + 1):
        if time:
            for frame in range(1, frames_per_step):
                add(time, frame / frames_per_step, _STEP_MS // frames_per_step)
        hold = _PAUSE_MS if story.marks(time) else _STEP_MS // frames_per_step
        add(time, 1.0, _END_MS if time == last else max(hold, _PAUSE_MS if not time else 0))
    return frames, durations


@dataclasses.dataclass(frozen=True)
class _Mark:
    """A broken rule: the agent, what it is, and the cells it concerns (row, column)."""

    agent: int
    kind: ViolationKind
    before: np.ndarray
    after: np.ndarray


@dataclasses.dataclass(frozen=True)
class _Story:
    """What a plan does, for the active agents only.

    Attributes:
      positions: int[steps + 1, agents, 2]; empty if there is nothing to draw.
      kinds: int[steps + 1, agents], `ViolationKind`s.
      captions: (text, colour) of the lines below the picture.
      starts: int[agents, 2].
      goals: int[agents, 2].
    """

    positions: np.ndarray
    kinds: np.ndarray
    captions: list[tuple[str, str]]
    starts: np.ndarray
    goals: np.ndarray

    @property
    def first_time(self) -> int | None:
        times = np.nonzero(np.any(self.kinds != ViolationKind.NONE, axis=1))[0]
        return int(times[0]) if times.size else None

    def marks(self, time: int) -> list[_Mark]:
        """Everything that is broken at a time."""
        marks = []
        for agent in np.nonzero(self.kinds[time] != ViolationKind.NONE)[0]:
            kind = ViolationKind(int(self.kinds[time, agent]))
            before, after = self.positions[max(time - 1, 0), agent], self.positions[time, agent]
            if kind == ViolationKind.WRONG_START:
                before = self.starts[agent]
            if kind == ViolationKind.GOAL_MISSED:
                before, after = after, self.goals[agent]
            marks.append(_Mark(int(agent), kind, before, after))
        return marks


def _tell(instance: Instance, plan: Plan) -> _Story:
    agents = np.nonzero(instance.active)[0]
    starts, goals = np.asarray(instance.starts)[agents], np.asarray(instance.goals)[agents]
    nothing = np.zeros((0, len(agents), 2), int)
    if not plan.parsable:
        caption = "No plan could be read."
        return _Story(nothing, nothing[..., 0], [(caption, _RED)], starts, goals)
    if plan.num_agents != len(agents):
        caption = f"The plan is for {int(plan.num_agents)} agents, the lake has {len(agents)}."
        return _Story(nothing, nothing[..., 0], [(caption, _RED)], starts, goals)
    verdict = jax.tree.map(
        lambda leaf: np.asarray(leaf)[0],
        verify(*jax.tree.map(lambda leaf: np.asarray(leaf)[None], (instance, plan))),
    )
    steps = int(plan.num_steps) + 1
    positions = np.asarray(plan.positions)[:steps, agents].astype(int)
    kinds = np.asarray(_kinds(instance, plan))[:steps, agents]
    story = _Story(positions, kinds, [], starts, goals)
    if verdict.valid:
        text = f"Valid: cost {verdict.cost}, makespan {verdict.makespan}"
        if verdict.gap < INFINITE_COST:
            text += ", optimal" if verdict.optimal else f", {verdict.gap} above the optimum"
        return dataclasses.replace(story, captions=[(text, _INK)])
    time = int(verdict.violation_time)
    marks = story.marks(time)
    first = next(mark for mark in marks if agents[mark.agent] == verdict.violation_agent)
    text = f"t = {time}: {_sentence(first, marks, agents)}"
    others = int(np.sum(kinds != ViolationKind.NONE)) - len(_involved(first, marks))
    captions = [(text, _RED)]
    if others:
        captions.append((f"and {others} more broken rule{'s' * (others > 1)}", _FAINT))
    return dataclasses.replace(story, captions=captions)


def _involved(first: _Mark, marks: Sequence[_Mark]) -> list[_Mark]:
    """The marks that are about the same event."""
    if first.kind == ViolationKind.VERTEX:
        return [m for m in marks if np.array_equal(m.after, first.after)]
    if first.kind == ViolationKind.SWAP:
        return [
            mark
            for mark in marks
            if mark is first
            or (
                np.array_equal(mark.after, first.before)
                and np.array_equal(mark.before, first.after)
            )
        ]
    return [first]


def _sentence(first: _Mark, marks: Sequence[_Mark], agents: np.ndarray) -> str:
    """What went wrong, in words."""
    before, after = (f"({int(r)},{int(c)})" for r, c in (first.before, first.after))
    numbers = [str(agents[mark.agent]) for mark in _involved(first, marks)]
    together = ", ".join(numbers[:-1]) + f" and {numbers[-1]}"
    return {
        ViolationKind.ILLEGAL_MOVE: f"agent {numbers[0]} jumps from {before} to {after}",
        ViolationKind.OUT_OF_BOUNDS: f"agent {numbers[0]} leaves the lake, to {after}",
        ViolationKind.HOLE: f"agent {numbers[0]} enters the hole {after}",
        ViolationKind.VERTEX: f"agents {together} are all in {after}"
        if len(numbers) > 2
        else f"agents {together} are both in {after}",
        ViolationKind.SWAP: f"agents {together} exchange {before} and {after}",
        ViolationKind.WRONG_START: f"agent {numbers[0]} starts on {after}, not on {before}",
        ViolationKind.GOAL_MISSED: f"agent {numbers[0]} ends on {before}, not on its goal {after}",
    }[first.kind]


class _Scene:
    """Draws one lake again and again. Points are (row, column), whole numbers are cell centres."""

    def __init__(self, instance: Instance, cell: int) -> None:
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError as error:
            raise ImportError("pictures need Pillow: pip install 'pillow>=10.1'") from error
        self._image_module, self._draw_module = Image, ImageDraw
        self._size = int(instance.size)
        self._blocked = np.asarray(instance.blocked)[: self._size, : self._size]
        self._agents = [int(agent) for agent in np.nonzero(instance.active)[0]]
        self._starts = np.asarray(instance.starts)[self._agents].astype(float)
        self._goals = np.asarray(instance.goals)[self._agents].astype(float)
        self._cell = cell * _SMOOTH
        side = (self._size + 2 * _MARGIN) * self._cell
        self._width = round(max(side, _MIN_WIDTH * _SMOOTH))
        self._lake_height = round(side)
        self._left = (self._width - self._size * self._cell) / 2
        self._number_font = ImageFont.load_default(0.34 * self._cell)
        self._small_font = ImageFont.load_default(0.24 * self._cell)
        self._caption_font = ImageFont.load_default(15 * _SMOOTH)
        self._line_height = 21 * _SMOOTH

    def draw(
        self,
        captions: Sequence[tuple[str, str]],
        where: np.ndarray | None = None,
        trails: np.ndarray | None = None,
        marks: Sequence[_Mark] = (),
    ) -> "Image.Image":
        """A picture.

        Args:
          captions: (text, colour) of the lines below.
          where: float[agents, 2], where the discs are; on the starts if None.
          trails: [times, agents, 2], cells to join by lines.
          marks: what to mark as broken.
        """
        measure = self._draw_module.Draw(self._image_module.new("RGB", (1, 1)))
        lines = [
            (line, colour)
            for text, colour in captions
            for line in self._wrap(text, measure, self._width - 24 * _SMOOTH)
        ]
        height = self._lake_height + len(lines) * self._line_height
        height += 6 * _SMOOTH if lines else 0
        image = self._image_module.new("RGB", (self._width, height), _PAPER)
        self._pen = self._draw_module.Draw(image)
        self._draw_lake()
        self._draw_ends()
        if trails is not None:
            for agent in range(len(self._agents)):
                self._draw_trail(agent, self._near(trails[:, agent]))
        for agent, goal in enumerate(self._goals):
            self._number(agent, goal, _mix(self._colour(agent), _INK, 0.5), halo=_PAPER)
        for mark in marks:
            if mark.kind == ViolationKind.VERTEX:
                self._draw_burst(mark.after)
        self._draw_agents(self._starts if where is None else where)
        for mark in marks:
            self._draw_mark(mark)
        for i, (line, colour) in enumerate(lines):
            place = (self._width / 2, self._lake_height + (i + 0.4) * self._line_height)
            self._pen.text(place, line, fill=colour, font=self._caption_font, anchor="mm")
        return image.resize((self._width // _SMOOTH, height // _SMOOTH), 1)

    def _wrap(self, text: str, measure: Any, width: float) -> list[str]:
        lines = [""]
        for word in text.split():
            longer = f"{lines[-1]} {word}".strip()
            if lines[-1] and measure.textlength(longer, font=self._caption_font) > width:
                lines.append(word)
            else:
                lines[-1] = longer
        return lines

    def _xy(self, point: Any) -> tuple[float, float]:
        """Pixels of a point."""
        row, column = point
        return (
            self._left + (float(column) + 0.5) * self._cell,
            (_MARGIN + float(row) + 0.5) * self._cell,
        )

    def _near(self, points: Any) -> np.ndarray:
        """Points [..., 2] brought near to the lake."""
        return np.clip(np.asarray(points, float), -_OUTSIDE, self._size - 1 + _OUTSIDE)

    def _box(self, point: Any, radius: float) -> tuple[float, float, float, float]:
        x, y = self._xy(point)
        reach = radius * self._cell
        return (x - reach, y - reach, x + reach, y + reach)

    def _draw_lake(self) -> None:
        for row in range(self._size):
            for column in range(self._size):
                place = (float(row), float(column))
                self._pen.rectangle(self._box(place, 0.5), fill=_ICE, outline=_GRID, width=_SMOOTH)
                if self._blocked[row, column]:
                    box = self._box(place, 0.47)
                    corner = 0.16 * self._cell
                    self._pen.rounded_rectangle(box, corner, fill=_HOLE)
        for i in range(self._size):
            for place in ((float(i), -0.72), (-0.72, float(i))):
                self._pen.text(
                    self._xy(place), str(i), fill=_FAINT, font=self._small_font, anchor="mm"
                )

    def _draw_ends(self) -> None:
        thick = round(0.06 * self._cell)
        for agent, (start, goal) in enumerate(zip(self._starts, self._goals, strict=True)):
            colour = self._colour(agent)
            corner = 0.08 * self._cell
            tint = _mix(colour, _PAPER, 0.78)
            self._pen.rounded_rectangle(
                self._box(goal, 0.38), corner, fill=tint, outline=colour, width=thick
            )
            self._pen.ellipse(self._box(start, 0.38), outline=colour, width=thick)

    def _draw_trail(self, agent: int, cells: np.ndarray) -> None:
        colour = self._colour(agent)
        aside = np.clip(0.11 * (agent - (len(self._agents) - 1) / 2), -0.26, 0.26)
        points = cells + aside
        width = round(0.07 * self._cell)
        for before, after in itertools.pairwise(points):
            if np.array_equal(before, after):
                continue
            self._pen.line([self._xy(before), self._xy(after)], fill=colour, width=width)
            for point in (before, after):
                self._pen.ellipse(self._box(point, 0.035), fill=colour)
            if np.abs(after - before).sum() == 1:
                self._head(0.5 * (before + after), after - before, 0.2, colour)
        here = np.all(cells == self._goals[agent], axis=-1)
        away = np.nonzero(~here)[0]
        waits: dict[tuple[float, float], int] = {}
        for time in range(int(away[-1]) if away.size else 0):
            if np.array_equal(cells[time], cells[time + 1]):
                place = (float(cells[time][0]), float(cells[time][1]))
                waits[place] = waits.get(place, 0) + 1
        for place, count in waits.items():
            corner = np.add(place, (-0.31, 0.27))
            x, y = self._xy(corner)
            text = "wait" if count == 1 else f"wait {count}"
            left, top, right, bottom = self._pen.textbbox(
                (x, y), text, font=self._small_font, anchor="mm"
            )
            grow = 0.05 * self._cell
            box = (left - grow, top - grow, right + grow, bottom + grow)
            self._pen.rounded_rectangle(box, grow, fill=_PAPER, outline=colour, width=_SMOOTH)
            self._pen.text((x, y), text, fill=_INK, font=self._small_font, anchor="mm")

    def _draw_agents(self, where: np.ndarray) -> None:
        where = self._near(where)
        for agent, point in enumerate(where):
            together = [i for i, other in enumerate(where) if np.abs(other - point).max() < 0.25]
            aside = (0.0, 0.34 * (together.index(agent) - (len(together) - 1) / 2))
            place = point + np.array(aside)
            colour = self._colour(agent)
            edge = round(0.035 * self._cell)
            self._pen.ellipse(self._box(place, 0.31), fill=colour, outline=_PAPER, width=edge)
            light = sum(_rgb(colour) * (0.299, 0.587, 0.114)) > 140
            self._number(agent, place, _INK if light else _PAPER)

    def _draw_mark(self, mark: _Mark) -> None:
        before, after = self._near(mark.before), self._near(mark.after)
        moved = not np.array_equal(before, after)
        if mark.kind == ViolationKind.SWAP:
            across = (after - before)[::-1] * (0.23, -0.23)
            self._arrow(before + 0.02 * (after - before) + across, after + across)
            return
        if mark.kind == ViolationKind.VERTEX:
            if moved:
                self._arrow(before, after)
            return
        dashed = mark.kind not in (ViolationKind.HOLE, ViolationKind.OUT_OF_BOUNDS)
        if moved:
            self._arrow(before, after, dashed)
        self._cross(after)

    def _draw_burst(self, point: Any) -> None:
        """A star behind agents that crash into each other."""
        x, y = self._xy(point)
        corners = []
        for i in range(24):
            reach = (0.62 if i % 2 else 0.44) * self._cell
            angle = math.pi * i / 12
            corners.append((x + reach * math.cos(angle), y + reach * math.sin(angle)))
        self._pen.polygon(corners, fill=_mix(_RED, _PAPER, 0.72), outline=_RED, width=2 * _SMOOTH)

    def _arrow(self, before: np.ndarray, after: np.ndarray, dashed: bool = False) -> None:
        """A red arrow with a white edge; it ends shortly before the centre of its last cell."""
        length = float(np.linalg.norm(after - before))
        if not length:
            return
        along = (after - before) / length
        begin, end = before + 0.12 * along, after - 0.12 * along
        shaft = np.linalg.norm(end - begin) - 0.2
        count = max(round(shaft / 0.3), 1) if dashed else 1
        for colour, width, head in ((_PAPER, 0.15, 0.3), (_RED, 0.085, 0.24)):
            for i in range(count):
                first = begin + along * shaft * i / count
                last = first + along * shaft / count * (0.6 if dashed and count > 1 else 1)
                self._pen.line(
                    [self._xy(first), self._xy(last)], fill=colour, width=round(width * self._cell)
                )
            self._head(end - 0.1 * along, along, head, colour)

    def _head(self, point: np.ndarray, along: np.ndarray, length: float, colour: str) -> None:
        """A triangle around a point that shows a direction."""
        x, y = self._xy(point)
        dy, dx = along / np.linalg.norm(along) * length * self._cell
        corners = [
            (x + 0.6 * dx, y + 0.6 * dy),
            (x - 0.5 * dx - 0.62 * dy, y - 0.5 * dy + 0.62 * dx),
            (x - 0.5 * dx + 0.62 * dy, y - 0.5 * dy - 0.62 * dx),
        ]
        self._pen.polygon(corners, fill=colour)

    def _cross(self, point: np.ndarray) -> None:
        for colour, width in ((_PAPER, 0.2), (_RED, 0.12)):
            for sign in (1, -1):
                reach = np.array((0.22, 0.22 * sign))
                line = [self._xy(point - reach), self._xy(point + reach)]
                self._pen.line(line, fill=colour, width=round(width * self._cell))

    def _number(self, agent: int, point: Any, colour: str, halo: str | None = None) -> None:
        self._pen.text(
            self._xy(point),
            str(self._agents[agent]),
            fill=colour,
            font=self._number_font,
            anchor="mm",
            stroke_width=_SMOOTH if halo else 0,
            stroke_fill=halo,
        )

    def _colour(self, agent: int) -> str:
        return _COLOURS[self._agents[agent] % len(_COLOURS)]


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], float)


def _mix(colour: str, other: str, share: float) -> str:
    """`share` of the other colour in the first."""
    mixed = (1 - share) * _rgb(colour) + share * _rgb(other)
    return "#" + "".join(f"{round(part):02X}" for part in mixed)


def save_animation(path: Path, frames: Sequence["Image.Image"], durations: Sequence[int]) -> None:
    """Writes frames with their milliseconds as a GIF that repeats."""
    reduced = [frame.quantize(64, dither=0) for frame in frames]
    reduced[0].save(
        path, save_all=True, append_images=reduced[1:], duration=list(durations), loop=0
    )
