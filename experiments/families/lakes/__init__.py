"""Frozen lakes, the first family: several agents cross without meeting."""
