"""What tests hold the learner against: logits of whole sequences, and all numbers of a tree."""

import jax
import numpy as np

from learner.decoder import model


def logits(params, config, tokens, positions):
    """f32[B, T, V]; arguments as in `model.hidden_states`."""
    hidden = model.hidden_states(params, config, tokens, positions)
    return model.output_logits(params, config, hidden)


def flat(tree):
    """f64[N], all numbers of a tree of arrays."""
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)])
