"""Dense decoders: configuration, model, weights."""
