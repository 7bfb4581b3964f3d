"""Drawings as SVG, animated by CSS alone, without scripts or other files.

Colours are CSS variables with the palette as their default, so that a page can set its own
(`--ink`, `--paper`, `--c0` and so on). Moving elements have the class `moving`. On paper, and for
readers who ask for reduced motion, the agents stand where the plan ends.
"""

from collections.abc import Iterable
from itertools import chain
from xml.etree import ElementTree

import numpy as np

from mapf_jax.draw import shapes
from mapf_jax.draw.story import Story, tell
from mapf_jax.types import Instance, Plan, Solution

_STEP, _BEFORE, _AFTER = 0.55, 0.7, 1.8  # Seconds of a step, and of rest at both ends.
_STILL = "@media print,(prefers-reduced-motion:reduce){.moving{animation:none!important}}"


def svg(instance: Instance, plan: Plan | Solution | None = None, name: str = "lake") -> str:
    """One instance, and a plan as it unfolds on it; broken rules are marked from their time on.

    A dot runs along a time line below the lake, where times with a broken rule are red. `name`, of
    letters and digits, begins the names of the animations; each drawing in a page needs its own.
    """
    story = tell(instance, plan)
    size, last = len(story.blocked), len(story.positions) - 1
    low, side = -0.5 - 1.25 * shapes.MARGIN, size + 2.5 * shapes.MARGIN
    label = f"Lake of {size} x {size} with {len(story.agents)} agents"
    root = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "class": "lake",
            "viewBox": f"{low:g} {low:g} {side:g} {side + 0.3 * (last >= 0):g}",
            "role": "img",
            "font-family": "system-ui, sans-serif",
            "aria-label": ". ".join([label, *(text for text, _ in story.captions)]),
        },
    )
    style = ElementTree.SubElement(root, "style")
    rules = [_STILL]
    seconds = _BEFORE + _STEP * max(last, 0) + _AFTER

    def moving(part: str, frames: Iterable[tuple[float, str]], timing: str) -> dict[str, str]:
        """Attributes of a group with an animation of its own: (time, style) of its frames."""
        steps = [(0.0, ""), *((100 * (_BEFORE + _STEP * t) / seconds, s) for t, s in frames)]
        steps[0] = (0.0, steps[1][1])
        body = "".join(f"{percent:.2f}%{{{style}}}" for percent, style in steps)
        rules.append(f"@keyframes {name}-{part}{{{body}100%{{{steps[-1][1]}}}}}")
        return {
            "class": "moving",
            "style": f"{steps[-1][1]};animation:{name}-{part} {seconds:.2f}s {timing} infinite",
        }

    def path(part: str, places: np.ndarray) -> dict[str, str]:
        """Attributes of a group that goes through places (row, column), one at each time."""
        frames = [f"transform:translate({x:.2f}px,{y:.2f}px)" for y, x in places]
        if len(frames) == 1:
            return {"style": frames[0]}
        return moving(part, enumerate(frames), "linear")

    _add(root, shapes.lake(story))
    paths = np.swapaxes(story.positions, 0, 1) if last >= 0 else np.zeros((0, 1, 2))
    for agent, cells in enumerate(paths):
        _add(root, shapes.trail(story, agent, cells))
    bursts = ElementTree.SubElement(root, "g")
    places = np.array([shapes.spread(story, at) for at in story.positions] or [story.starts])
    for agent, drawn in enumerate(shapes.agents(story, np.zeros((len(story.agents), 2)))):
        group = ElementTree.SubElement(root, "g", path(f"a{agent}", places[:, agent]))
        _add(group, drawn, origin=drawn[0].points[0])
    for time in np.nonzero(story.kinds.any(axis=1))[0].tolist():
        hidden, shown = (time - 1, "opacity:0"), (time, "opacity:1")
        attributes = moving(f"m{time}", (hidden, shown), "step-end") if time else {}
        for layer, draw in ((bursts, shapes.burst), (root, shapes.mark)):
            marks = list(chain(*(draw(story, mark) for mark in story.marks(time))))
            if marks:
                _add(ElementTree.SubElement(layer, "g", attributes), marks)
    _add(root, shapes.waits(story, paths))
    if last >= 0:
        line = np.stack([np.full(last + 1, side + low), np.linspace(0, size - 1, last + 1)], 1)
        _add(root, _clock(story, line))
        dot = ElementTree.SubElement(root, "g", path("t", line))
        _add(dot, [shapes.Shape("disc", np.zeros((1, 2)), 0.1, "ink")])
    style.text = "".join(rules)
    return ElementTree.tostring(root, encoding="unicode")


def _clock(story: Story, line: np.ndarray) -> Iterable[shapes.Shape]:
    """A line with a stroke for every time, red where a rule is broken."""
    yield shapes.Shape("line", line, stroke="soft")
    for point, kinds in zip(line, story.kinds, strict=True):
        reach, colour, width = (0.14, "bad", 0.07) if kinds.any() else (0.07, "soft", 0.03)
        ends = point + np.array([(-reach, 0.0), (reach, 0.0)])
        yield shapes.Shape("line", ends, stroke=colour, width=width)


def _add(
    parent: ElementTree.Element, drawn: Iterable[shapes.Shape], origin: object = (0.0, 0.0)
) -> None:
    for shape in drawn:
        points = (shape.points - np.asarray(origin))[:, ::-1]
        x, y = (f"{part:.2f}" for part in points[0])
        reach = f"{shape.reach:.2f}"
        attributes = {"fill": _colour(shape.fill)}
        if shape.stroke:
            attributes |= {"stroke": _colour(shape.stroke), "stroke-width": f"{shape.width:g}"}
        if shape.opacity < 1:
            attributes["fill-opacity"] = f"{shape.opacity:g}"
        if shape.kind == "disc":
            name, place = "circle", {"cx": x, "cy": y, "r": reach}
        elif shape.kind == "box":
            left, top = (f"{part:.2f}" for part in points[0] - shape.reach)
            edge = f"{2 * shape.reach:.2f}"
            name, place = "rect", {"x": left, "y": top, "width": edge, "height": edge}
            if shape.reach < 0.5:
                place["rx"] = "0.12"
        elif shape.kind == "text":
            name, place = "text", {"x": x, "y": y, "font-size": reach, "font-weight": "600"}
            place |= {"text-anchor": "middle", "dominant-baseline": "central"}
            attributes["paint-order"] = "stroke"
        else:
            path = "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in points)
            name, place = "path", {"d": path + "Z" * (shape.kind == "area")}
        ElementTree.SubElement(parent, name, place | attributes).text = shape.text or None


def _colour(name: str | None) -> str:
    return f"var(--{name},{shapes.PALETTE[name]})" if name else "none"
