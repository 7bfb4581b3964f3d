"""Instances and plans as people look at them: text, which can be read back, PNG, GIF or SVG."""

from pathlib import Path

import numpy as np

from mapf_jax.draw.story import tell
from mapf_jax.draw.svg import svg
from mapf_jax.text import FROZEN, GOAL_CHARACTERS, HOLE, START_CHARACTERS, letters_of, map_rows
from mapf_jax.types import Instance, Plan, Solution, ViolationKind, make_instance

SUFFIXES = (".png", ".gif", ".svg", ".html", ".txt")


def ascii_instance(instance: Instance) -> str:
    """The lake with starts (`S s A B C`) and goals (`G g a b c`), cells separated by blanks."""
    return "\n".join(map_rows(instance))


def instance_from_ascii(drawing: str) -> Instance:
    """Reads what `ascii_instance` draws; blanks between the cells and empty lines may differ.

    No agent may start on a goal: the drawing shows only one of both.

    Raises:
      ValueError: the drawing is not square, has a character that means nothing, the same letter
        twice, or agents that lack a start or a goal; the message says where.
    """
    rows = [line.split() for line in drawing.splitlines() if line.strip()]
    grid = ["".join(row) for row in rows]
    if not grid or any(len(row) != len(grid) for row in grid):
        widths = sorted({len(row) for row in grid})
        raise ValueError(f"drawing: {len(grid)} rows of {widths} cells, the map must be square")
    found: dict[str, tuple[int, int]] = {}
    for r, row in enumerate(grid):
        for c, character in enumerate(row):
            if character in FROZEN + HOLE:
                continue
            if character not in START_CHARACTERS + GOAL_CHARACTERS:
                raise ValueError(f"drawing: {character!r} in row {r}, column {c} means nothing")
            if character in found:
                raise ValueError(f"drawing: {character!r} is in {found[character]} and ({r}, {c})")
            found[character] = (r, c)
    starts: list[tuple[int, int]] = []
    goals: list[tuple[int, int]] = []
    for agent in range(-(-len(found) // 2)):
        for cells, letter in zip((starts, goals), letters_of(agent), strict=True):
            if letter not in found:
                raise ValueError(f"drawing: {letter!r} of agent {agent} is missing")
            cells.append(found[letter])
    lake = [
        "".join(FROZEN if character in found else character for character in row) for row in grid
    ]
    return make_instance(lake, starts, goals)


def ascii_frames(instance: Instance, plan: Plan | Solution) -> list[str]:
    """One drawing for each time step of a single plan; none if `story.tell` cannot draw it.

    Agents are digits (the last digit from agent 10 on), goals `G g a b c`, `#` marks a cell in
    which a rule is broken at that time. Below the lake, a line for each agent that breaks a rule
    names the agent, its cell and the rule.
    """
    story = tell(instance, plan)
    size = len(story.blocked)
    lake = np.where(story.blocked, HOLE, FROZEN)
    for agent, goal in zip(story.agents, story.goals, strict=True):
        lake[tuple(goal)] = letters_of(agent)[1]
    frames = []
    for time, (cells, kinds) in enumerate(zip(story.positions, story.kinds, strict=True)):
        grid, notes = lake.copy(), []
        for agent, (row, column), kind in zip(story.agents, cells, kinds, strict=True):
            if kind:
                rule = ViolationKind(kind).name.lower().replace("_", " ")
                notes.append(f"agent {agent} at ({row},{column}): {rule}")
            if 0 <= row < size and 0 <= column < size and grid[row, column] != "#":
                grid[row, column] = "#" if kind else str(agent % 10)
        frames.append("\n".join([f"t = {time}", *map(" ".join, grid), *notes]))
    return frames


def as_text(instance: Instance, plan: Plan | Solution | None = None) -> str:
    """The lake, then what a plan does on it, one drawing for each time step.

    If the plan could not be read or is for another number of agents, the text only says so.
    """
    drawings = [ascii_instance(instance)]
    if plan is not None:
        frames = ascii_frames(instance, plan)
        drawings += frames or [text for text, _ in tell(instance, plan).captions]
    return "\n\n".join(drawings)


def save(
    path: Path | str, instance: Instance, plan: Plan | Solution | None = None, cell: int = 48
) -> None:
    """Draws one instance, with a plan if there is one, in the format of the file's suffix.

    Args:
      path: `.png` is one picture with the paths up to the first violation, `.gif` shows the plan
        as it unfolds, `.svg` and `.html` do so for browsers, `.txt` has a drawing for each time.
      instance: a single instance.
      plan: a single plan of it, valid or not.
      cell: width of a cell in pixels; less where a picture would have over 4,096 a side.

    Raises:
      ValueError: the suffix is none of these, or a GIF is asked for without a plan.
      ImportError: Pillow is needed and not there.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: suffix {suffix!r} is not allowed, only {', '.join(SUFFIXES)}")
    if suffix == ".gif" and plan is None:
        raise ValueError(f"{path}: an animation needs a plan")
    if suffix not in (".png", ".gif"):
        drawn = as_text(instance, plan) if suffix == ".txt" else svg(instance, plan)
        page = "<!doctype html><title>Frozen lake</title>" * (suffix == ".html")
        path.write_text(page + drawn + "\n", encoding="utf-8")
        return
    from mapf_jax.draw import image  # Only pictures need Pillow.

    if plan is not None and suffix == ".gif":
        frames, milliseconds = image.animation(instance, plan, cell)
        first, *more = [frame.quantize(64, dither=0) for frame in frames]
        first.save(path, save_all=True, append_images=more, duration=milliseconds, loop=0)
    else:
        image.picture(instance, plan, cell).save(path, optimize=True)
