"""The loop: generate, train, validate, design."""
