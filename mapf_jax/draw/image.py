"""Pictures and animations in pixels (needs Pillow, the extra `render`)."""

import functools
from collections.abc import Iterable, Sequence
from itertools import chain
from textwrap import wrap

import numpy as np

from mapf_jax.draw import shapes
from mapf_jax.draw.story import Mark, Story, tell
from mapf_jax.types import Instance, Plan, Solution, ViolationKind

try:
    from PIL import Image, ImageColor, ImageDraw, ImageFont
except ImportError as error:
    text = "drawing needs Pillow; in a clone of the project: pip install -e '.[render]'"
    raise ImportError(text) from error

_SMOOTH = 3  # Everything is drawn this many times larger and scaled down.
_MIN_WIDTH, _CAPTION, _LINE = 300, 15, 21
_LARGEST = 4096  # Pixels of a side, at which cells become smaller.
_FRAMES = 5  # Of each time step.
_STEP_MS, _PAUSE_MS, _END_MS = 420, 900, 1600


def picture(instance: Instance, plan: Plan | Solution | None = None, cell: int = 48) -> Image.Image:
    """What `render.save` writes as `.png`."""
    story = tell(instance, plan)
    canvas = _Canvas(story, cell)
    if not len(story.positions):
        return canvas.draw(story.captions)
    shown, last = 0, len(story.positions) - 1
    marks: list[Mark] = []
    times = np.flatnonzero(story.kinds.any(axis=1))
    if times.size:
        shown = broken = int(times[0])
        marks = story.marks(broken)
        moves = [mark for mark in marks if mark.kind != ViolationKind.GOAL_MISSED]
        if moves:  # The paths end before the moves that break a rule.
            shown = last = max(broken - 1, 0)
            marks = moves
    return canvas.draw(story.captions, story.positions[shown], story.positions[: last + 1], marks)


def animation(
    instance: Instance, plan: Plan | Solution, cell: int = 48
) -> tuple[list[Image.Image], list[int]]:
    """What `render.save` writes as `.gif`: (frames, how long to show each in milliseconds).

    Moves that break a rule are held for a moment.
    """
    story = tell(instance, plan)
    canvas = _Canvas(story, cell)
    if not len(story.positions):
        return [canvas.draw(story.captions)], [_END_MS]
    last = len(story.positions) - 1
    frames, durations = [], []
    for frame in range(last * _FRAMES + 1):
        passed = frame / _FRAMES
        time = int(np.ceil(passed))
        marks, arrived = story.marks(time), passed == time
        before, here = story.positions[max(time - 1, 0)], story.positions[time]
        where = here + (time - passed) * (before - here)
        if not arrived:  # A goal is missed only when everything has come to rest.
            marks = [mark for mark in marks if mark.kind != ViolationKind.GOAL_MISSED]
        captions = [(f"t = {time} of {last}", "soft"), *story.captions]
        trails = np.concatenate([story.positions[:time], where[None]])
        frames.append(canvas.draw(captions, where, trails, marks))
        hold = _PAUSE_MS if arrived and (marks or not time) else _STEP_MS // _FRAMES
        durations.append(_END_MS if arrived and time == last else hold)
    return frames, durations


class _Canvas:
    """Draws the pictures of one story."""

    def __init__(self, story: Story, cell: int) -> None:
        self._story = story
        size = len(story.blocked)
        cell = max(1, min(cell, _LARGEST // size))
        self._cell = cell * _SMOOTH
        side = int((size + 2 * shapes.MARGIN) * cell)
        self._width, self._height = _SMOOTH * max(side, _MIN_WIDTH), _SMOOTH * side
        self._corner = np.array([shapes.MARGIN * self._cell, (self._width - size * self._cell) / 2])

    def draw(
        self,
        captions: Sequence[tuple[str, str]],
        where: np.ndarray | None = None,
        trails: np.ndarray | None = None,
        marks: Sequence[Mark] = (),
    ) -> Image.Image:
        """A picture.

        Args:
          captions: (text, colour) of the lines below.
          where: float[agents, 2], where the discs are; on the starts if None.
          trails: [times, agents, 2], cells to join by lines.
          marks: what to mark as broken.
        """
        story = self._story
        # A letter is 0.44 times as wide as it is high, on average; captions have a margin of 24.
        letters = int((self._width / _SMOOTH - 24) / (0.44 * _CAPTION))
        lines = [(line, colour) for text, colour in captions for line in wrap(text, letters)]
        height = self._height + (len(lines) * _LINE + 6 * bool(lines)) * _SMOOTH
        image = Image.new("RGB", (self._width, height), shapes.PALETTE["paper"])
        self._pen = ImageDraw.Draw(image)
        paths = np.zeros((0, 1, 2)) if trails is None else np.swapaxes(trails, 0, 1)
        self._add(shapes.lake(story))
        self._add(chain(*(shapes.trail(story, agent, path) for agent, path in enumerate(paths))))
        self._add(chain(*(shapes.burst(story, mark) for mark in marks)))
        self._add(chain(*shapes.agents(story, story.starts if where is None else where)))
        self._add(chain(*(shapes.mark(story, mark) for mark in marks)))
        self._add(shapes.waits(story, paths))
        font = _font(_CAPTION * _SMOOTH)
        for i, (line, colour) in enumerate(lines):
            place = (self._width / 2, self._height + (i + 0.4) * _LINE * _SMOOTH)
            self._pen.text(place, line, fill=shapes.PALETTE[colour], font=font, anchor="mm")
        return image.reduce(_SMOOTH)

    def _add(self, drawn: Iterable[shapes.Shape]) -> None:
        for shape in drawn:
            places = (self._corner + (shape.points + 0.5) * self._cell)[:, ::-1]
            fill, stroke = _mixed(shape.fill, shape.opacity), _mixed(shape.stroke)
            reach, width = shape.reach * self._cell, round(shape.width * self._cell)
            around = [*(places[0] - reach), *(places[0] + reach)]
            corners = [tuple(place) for place in places]
            if shape.kind == "disc":
                self._pen.ellipse(around, fill, stroke, width)
            elif shape.kind == "box":
                corner = 0.12 * self._cell if shape.reach < 0.5 else 0
                self._pen.rounded_rectangle(around, corner, fill, stroke, width)
            elif shape.kind == "line":
                self._pen.line(corners, stroke, width, joint="curve")
            elif shape.kind == "area":
                self._pen.polygon(corners, fill, stroke, width)
            else:
                self._pen.text(
                    corners[0],
                    shape.text,
                    fill,
                    _font(reach),
                    anchor="mm",
                    stroke_width=width if stroke else 0,
                    stroke_fill=stroke,
                )


@functools.cache
def _font(height: float) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(height)


def _mixed(name: str | None, opacity: float = 1.0) -> tuple[int, ...] | None:
    """A colour of the palette as seen on paper."""
    if name is None:
        return None
    parts = ImageColor.getrgb(shapes.PALETTE[name])
    return tuple(round(255 + opacity * (part - 255)) for part in parts)
