"""Variants compared over seeds: `python -m experiments.study`."""
