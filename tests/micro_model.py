"""Models of a few thousand parameters: configurations, and the smallest that a run can train."""

import shutil

import jax
import numpy as np

from learner import tokens
from learner.decoder import model, weights
from learner.decoder.config import DecoderConfig


def config(**changes):
    """A configuration with these changes; unchanged it divides over 2 x 2 x 2 devices."""
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    return DecoderConfig(**{**sizes, **heads, "tie_word_embeddings": True, **changes})


def write(folder):
    """A random model of one layer, often at an end, with the tokenizer of the tiny model."""
    from experiments.settings import ModelSettings  # The learner's tests need none.

    made = config(
        head_dim=16,
        vocab_size=1024,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
    )
    params = model.init_params(jax.random.key(1), made)
    tokenizer = tokens.load_tokenizer(ModelSettings().folder)
    # Answers of all lengths: the likelihood of the end varies much from token to token.
    ends = np.array(tokens.stop_token_ids(tokenizer))
    embedding = params["embedding"].at[ends].set(jax.random.normal(jax.random.key(2), (32,)))
    weights.save(folder, {**params, "embedding": embedding}, made)
    for path in ModelSettings().folder.glob("*token*"):
        shutil.copy(path, folder)
    for path in ModelSettings().folder.glob("*.jinja"):
        shutil.copy(path, folder)
