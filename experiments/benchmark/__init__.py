"""The benchmark of models on fixed instances: `python -m experiments.benchmark`."""
