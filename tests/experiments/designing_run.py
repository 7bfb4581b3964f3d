"""`experiments.main` with the micro model as an engineer, for `test_processes.py`.

That model writes no configuration, so any text is read as some configuration.
With FAILING=N in the environment process N finds its disk full before training begins.
"""

import errno
import os
import zlib

import jax
from absl import app

from engineer import proposal
from experiments import main
from experiments.ring.loop import Loop
from experiments.settings import command_line

real_parse, real_validate = proposal.parse, Loop._validate


def read_anything(text, space, trigger=""):
    config = space.random(zlib.crc32(text.encode()))
    return real_parse(proposal.render_config(config, space), space)


def validate(self, *arguments):
    if os.environ.get("FAILING") == str(jax.process_index()):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return real_validate(self, *arguments)


if __name__ == "__main__":
    proposal.parse, Loop._validate = read_anything, validate
    app.run(main.main, flags_parser=command_line.parse_flags)
