"""How a report shows lakes: pictures of answers, and names of failures."""

import hashlib
import html
from collections.abc import Mapping
from typing import Any

import jax

import mapf_jax
from mapf_jax import formats
from mapf_jax.draw.story import tell
from mapf_jax.draw.svg import svg

FAILURES = {
    "parsable": "not readable",
    "legal_moves": "illegal move",
    "conflict_free": "conflict",
    "goals_reached": "goal missed",
    "starts_correct": "wrong start",
    "agent_count": "wrong number of agents",
    "no_holes": "hole entered",
    "in_bounds": "out of bounds",
}
"""What to call failing each check."""
_COLOURS = "--ice: light-dark(#edf4f9, #1d2b38); --hole: light-dark(#27384a, #7d8b99)"
"""What a page, which may be light or dark, does not know."""


def draw(problem: Mapping[str, Any], completion: str) -> str:
    """The lake with the plan as it unfolds, and what came of it, as markup without scripts."""
    instance = formats.from_records([problem])[0]
    agents = instance.starts.shape[-2]
    plan = jax.tree.map(lambda x: x[0], mapf_jax.plans_from_texts([completion], agents))
    digest = hashlib.sha256(f"{problem['id']}\n{completion}".encode()).hexdigest()
    lines = "<br>".join(html.escape(text) for text, _ in tell(instance, plan).captions)
    drawn = svg(instance, plan, f"lake-{digest[:12]}")
    return f'<div style="{_COLOURS}">{drawn}</div><p>{lines}</p>'
