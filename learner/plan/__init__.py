"""What sampling and training cost on accelerators, by the accelerators' own compilers."""

import learner.decoder  # noqa: F401 - Names the extra to install if it is missing.
