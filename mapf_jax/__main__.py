"""`python -m mapf_jax`."""

from mapf_jax.cli import main

raise SystemExit(main())
