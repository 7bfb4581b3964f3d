"""Models asked the fixed set: `python -m experiments.benchmark`."""
