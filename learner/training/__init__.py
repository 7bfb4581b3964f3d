"""From completions and rewards to new weights."""
