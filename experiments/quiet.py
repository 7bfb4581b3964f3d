"""What libraries tell that says nothing to a user of a command."""

import logging

from absl import logging as absl_logging


def quieten(level: int = absl_logging.ERROR) -> None:
    """Leaves out that accelerators are missing, and of Orbax's messages those below a level.

    Below a warning it tells every step of every save; with a warning, that it only reads.
    """
    logging.getLogger("jax._src.xla_bridge").setLevel(logging.WARNING)
    absl_logging.set_verbosity(level)
