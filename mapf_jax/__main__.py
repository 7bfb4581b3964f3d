"""`python -m mapf_jax`."""

import sys

from mapf_jax.cli import main

sys.exit(main())
