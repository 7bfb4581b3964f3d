"""Do the checkpoints of `branch_sums` read their evidence, and does training change that?

Every checkpoint that designed, and each warm start, is asked 100 made-up pairs of contexts by each
of two rules (`experiments.reading`). With the folder of the study, in a clone at revision 218261f,
the last one that knows the options of its runs:

    PYTHONPATH=. python docs/studies/branch_sums/reading.py studies/branch_sums
"""

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engineer import reading
from engineer.reading import Reading
from experiments.families import Family
from experiments.ring.reading import RULES, questions, scorer
from experiments.run import policy
from experiments.run.checkpoint import find_checkpoint
from experiments.settings import Settings, of_run

_STUDY = runpy.run_path(str(Path(__file__).with_name("study.py")))["STUDY"]
_QUESTIONS = 100
_HEAD = (
    "warm start",
    "state",
    *(f"{rule}: {of}" for rule in RULES for of in ("likelier", "follows")),
)


def _readings(
    family: Family, settings: Settings, model: policy.Policy, params: Any
) -> list[Reading]:
    """By each rule, with the same questions for every checkpoint."""
    score, spec = scorer(model, params), settings.engineer.spec
    asked = (questions(family, spec, rule, _QUESTIONS, "plain") for rule in RULES)
    return [reading.read(of_rule, score) for of_rule in asked]


def _of_run(run: Path, with_base: bool) -> Iterator[tuple[str, list[Reading]]]:
    """Yields the state and the readings of the checkpoints after which a run branches."""
    settings = of_run(run)
    family, model = settings.load_family(), policy.load_policy(settings)
    if with_base:
        params = policy.load_params(settings, model)
        yield "warm start", _readings(family, settings, model, params)
    for index in _STUDY.branches.rounds:
        found = find_checkpoint(f"{run}@{index}")
        assert found is not None
        yield f"rounds/{index}", _readings(family, settings, model, found.load(model))


def table(workdir: Path) -> Iterator[str]:
    """Yields the lines of a Markdown table: means over the seeds of a warm start, least to most."""
    found: dict[tuple[str, str], list[list[Reading]]] = {}
    for seed in sorted(_STUDY.seeds):
        name = _STUDY.blocks[seed]["model.path"]
        name = Path(name).parent.name or name
        first = not any(warm_start == name for warm_start, _ in found)
        for state, of_rules in _of_run(workdir / "runs" / "uniform" / f"seed-{seed}", first):
            found.setdefault((name, state), []).append(of_rules)
    yield "| " + " | ".join(_HEAD) + " |"
    yield "| --- " * len(_HEAD) + "|"
    for names, of_seeds in found.items():
        cells = [
            f"{np.mean(values):.0%} ({min(values):.0%} to {max(values):.0%})"
            for of_rule in zip(*of_seeds, strict=True)
            for values in (
                [one.likelier for one in of_rule],
                [one.follows / one.questions for one in of_rule],
            )
        ]
        yield "| " + " | ".join((*names, *cells)) + " |"


if __name__ == "__main__":
    for line in table(Path(sys.argv[1])):
        print(line, flush=True)
