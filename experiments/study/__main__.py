"""Runs or resumes a study: variants that differ in a few options, each with several seeds.

python -m experiments.study --config=experiments/configs/studies/designers.py \\
    --workdir=studies/designers_tiny

Options of all variants change with `--config.NAME=VALUE`, as for a run. Started again with the same
folder it computes what is missing; runs that are finished stay, runs that failed are tried again.
Results are in `study.json` (its form: `experiments.study.results`) and `comparison.md` of the
folder, which are also written when it is asked to leave.

Exit codes: 0 when all runs are finished; 1 for what the user can mend and if a run failed; 75
(EX_TEMPFAIL) after SIGTERM or Ctrl-C, when everything is saved and the same command goes on.
"""

from collections.abc import Sequence

import ml_collections
from absl import app, flags
from ml_collections import config_flags

from experiments import command_line
from experiments.study import command, variants

_CONFIG = command_line.define_config()
flags.adopt_module_key_flags(command)


def main(argv: Sequence[str]) -> None:
    """Computes what is missing and writes the tables."""

    def load(_: object) -> tuple[variants.Study, ml_collections.ConfigDict]:
        file = config_flags.get_config_filename(flags.FLAGS["config"])
        return variants.load(file), _CONFIG.value

    command.run(argv, load)


if __name__ == "__main__":
    app.run(main, flags_parser=command_line.parse_flags)
