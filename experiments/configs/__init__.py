"""One file for each run: `get_config()` returns all options of `experiments.settings`."""
