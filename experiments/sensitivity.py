"""Measures how much the training configuration matters, before comparing designers.

python -m experiments.sensitivity --config=sums --workdir=studies/sensitivity_sums

A study (`python -m experiments.study`) whose variants are fixed configurations: that of the
validation set, all data in each row, every other parameter at either end, and random draws. Each
run has one round, with as much data as `--config` has in all its rounds. Besides the files of a
study it writes `sensitivity.md` and `sensitivity.json` (`experiments.study.sensitivity.analyse`).

Exit codes are those of `python -m experiments.study`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_collections
import yaml
from absl import app, flags

from experiments import settings
from experiments.run import store as files
from experiments.settings import command_line
from experiments.study import __main__ as command
from experiments.study import sensitivity
from experiments.study.results import labels
from experiments.study.variants import Study, Variant
from experiments.text.errors import user_errors
from experiments.text.templates import render

flags.adopt_module_key_flags(command)
_RANDOM = flags.DEFINE_integer("random", 3, "Random configurations.", lower_bound=0)


def main(argv: Sequence[str]) -> None:
    """Computes what is missing, writes the tables and reports whether the regime is flat."""

    def family() -> Any:
        return settings.family_of(command.CONFIG.value.to_dict())

    def load(root: Path) -> tuple[Study, ml_collections.ConfigDict]:
        base = command.CONFIG.value.copy_and_resolve_references()
        base.environment.num_instances *= base.loop.rounds
        base.loop.rounds = 1
        base.engineer.designer = "fixed"
        variants = []
        for name, config in sensitivity.configurations(family(), _RANDOM.value).items():
            path = root / "configurations" / f"{name}.yaml"
            if not path.exists():
                files.write_file(path, yaml.safe_dump(config.to_dict(), sort_keys=False))
            variants.append(Variant(name, name.replace("_", " "), {"engineer.start": str(path)}))
        return Study(
            question="How much does the configuration of the training set matter here?",
            variants=tuple(variants),
            reference=sensitivity.REFERENCE,
        ), base

    def conclude(root: Path, found: dict[str, Any]) -> str:
        with user_errors():
            result = sensitivity.analyse(found, family().space)
        files.write_file(root / "sensitivity.json", result)
        sentence = sensitivity.verdict(result)
        page = render(
            "sensitivity.md",
            found=found,
            labels=labels(found),
            result=result,
            sentence=sentence,
        )
        files.write_file(root / "sensitivity.md", page)
        return sentence

    command.run(argv, load, conclude)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
