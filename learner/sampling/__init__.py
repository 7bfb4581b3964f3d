"""From prompts to completions, through a cache of keys and values."""

import learner.decoder as decoder  # noqa: F401 - Names the extra to install if it is missing.
