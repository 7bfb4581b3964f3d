"""One small drawing of an answer: a lake where its plan first breaks a rule, and what it breaks."""

import mapf_jax
from mapf_jax.draw import render
from mapf_jax.draw.story import tell
from mapf_jax.text import FROZEN, HOLE, letters_of


def drawn_once(instance: mapf_jax.Instance, plan: mapf_jax.Plan, completion: str) -> str:
    """The lake at the first broken rule, else at the end, with a sentence and a legend.

    If there is no plan to draw: the lake with the starts, and the completion.
    """
    story = tell(instance, plan)
    starts, goals = zip(*map(letters_of, story.agents.tolist()), strict=True)
    size = int(instance.size)
    if len(story.positions):
        broken = story.kinds.any(axis=1)
        time = int(broken.argmax()) if broken.any() else len(story.positions) - 1
        rows = render.ascii_frames(instance, plan)[time].splitlines()[1 : size + 1]
        answer = []
        marks = [str(agent % 10) for agent in story.agents]
        legend = f"agents: {' '.join(marks)}; goals: {' '.join(goals)}; broken rule: #"
    else:
        rows = render.ascii_instance(instance).splitlines()
        answer = [f"answer: {completion}"]
        legend = f"starts: {' '.join(starts)}; goals: {' '.join(goals)}"
    said = [text for text, _ in story.captions]
    legend += f"; hole: {HOLE}; ice: {FROZEN}; cells: (row,column)"
    return "\n".join([*rows, *answer, *said, legend])
