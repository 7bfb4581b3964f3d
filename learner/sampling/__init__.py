"""From prompts to completions, through a KV cache."""

import learner.decoder as decoder  # noqa: F401 - Names the extra to install if it is missing.
