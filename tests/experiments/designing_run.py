"""`experiments.main` with the micro model as an engineer in training, for `test_processes.py`.

That model writes no configuration and solves no instance. So any text is read as some
configuration, and what its training on a design is worth is by how much its answers get longer.
With FAILING=N in the environment process N finds its disk full before training begins.
"""

import errno
import os
import zlib

import jax
import numpy as np
from absl import app

from engineer import proposal
from experiments import command_line, main
from experiments.loop import Loop
from experiments.trials import Trials

real_parse, real_validate = proposal.parse, Loop._validate


def read_anything(text, space, trigger=""):
    config = space.random(zlib.crc32(text.encode()))
    return real_parse(proposal.render_config(config, space), space)


def mean_length(self, params, probe, key):
    task = self.family.task(probe)
    chats = [task.messages(i) for i in range(len(task))]
    return float(np.mean([answer.num_tokens / 16 for answer in self.respond(params, chats, key)]))


def validate(self, *arguments):
    if os.environ.get("FAILING") == str(jax.process_index()):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return real_validate(self, *arguments)


if __name__ == "__main__":
    proposal.parse, Loop._validate = read_anything, validate
    Trials._reward = mean_length
    app.run(main.main, flags_parser=command_line.parse_flags)
