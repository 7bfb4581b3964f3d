"""The model's logits of whole sequences, all at once: what tests hold the learner against."""

from learner.decoder import model


def logits(params, config, tokens, positions):
    """f32[B, T, V]; arguments as in `model.hidden_states`."""
    hidden = model.hidden_states(params, config, tokens, positions)
    return model.output_logits(params, config, hidden)
