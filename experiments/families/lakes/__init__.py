"""Frozen lakes, the first family."""
