"""From prompts to completions, through a cache of keys and values."""
