"""A run's files, checkpoints and processes."""
