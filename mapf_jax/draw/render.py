"""Instances and plans as files that a person looks at: text, PNG, animated GIF or SVG."""

from pathlib import Path

from mapf_jax.draw.ascii import ascii_frames, ascii_instance, instance_from_ascii
from mapf_jax.draw.story import tell
from mapf_jax.draw.svg import svg
from mapf_jax.types import Instance, Plan

__all__ = ["SUFFIXES", "as_text", "ascii_frames", "ascii_instance", "instance_from_ascii", "save"]

SUFFIXES = (".png", ".gif", ".svg", ".txt")


def as_text(instance: Instance, plan: Plan | None = None) -> str:
    """The lake, then what a plan does on it, one drawing for each time step.

    Of a plan that could not be read or is for another number of agents only that is said.
    """
    drawings = [ascii_instance(instance)]
    if plan is not None:
        story = tell(instance, plan)
        unread = [text for text, _ in story.captions]
        drawings += ascii_frames(instance, plan) if len(story.positions) else unread
    return "\n\n".join(drawings)


def save(path: Path, instance: Instance, plan: Plan | None = None, cell: int = 48) -> None:
    """Draws one instance, with a plan if there is one, in the format that the suffix says.

    Args:
      path: `.png` is one picture with the paths up to the first violation, `.gif` shows the plan
        as it unfolds, `.svg` does so for browsers, `.txt` has one drawing for each time step.
      instance: a single instance.
      plan: a single plan of it, valid or not.
      cell: width of a cell in pixels.

    Raises:
      ValueError: the suffix is none of these, or a GIF is asked for without a plan.
      ImportError: Pillow is needed and not there.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise ValueError(f"{path}: suffix {suffix!r} is not allowed, only {', '.join(SUFFIXES)}")
    if suffix == ".gif" and plan is None:
        raise ValueError(f"{path}: an animation needs a plan")
    if suffix in (".svg", ".txt"):
        drawn = svg(instance, plan) if suffix == ".svg" else as_text(instance, plan)
        path.write_text(drawn + "\n")
        return
    from mapf_jax.draw import image  # Only pictures need Pillow.

    if plan is not None and suffix == ".gif":
        frames, milliseconds = image.animation(instance, plan, cell)
        first, *more = [frame.quantize(64, dither=0) for frame in frames]
        first.save(path, save_all=True, append_images=more, duration=milliseconds, loop=0)
    else:
        image.picture(instance, plan, cell).save(path, optimize=True)
