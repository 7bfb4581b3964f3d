"""The smallest model that a run can train: one layer, random, often at an end."""

import shutil

import jax
import numpy as np

from experiments.settings import ModelSettings
from learner import tokens
from learner.decoder import model, weights
from learner.decoder.config import DecoderConfig


def write(folder):
    """Writes it, with the tokenizer of the tiny model."""
    config = DecoderConfig(
        vocab_size=1024,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
        max_position_embeddings=2048,
    )
    params = model.init_params(jax.random.key(1), config)
    tokenizer = tokens.load_tokenizer(ModelSettings().folder)
    # Answers of all lengths: the likelihood of the end varies much from token to token.
    ends = np.array(tokens.stop_token_ids(tokenizer))
    embedding = params["embedding"].at[ends].set(jax.random.normal(jax.random.key(2), (32,)))
    weights.save(folder, {**params, "embedding": embedding}, config)
    for path in ModelSettings().folder.glob("*token*"):
        shutil.copy(path, folder)
    for path in ModelSettings().folder.glob("*.jinja"):
        shutil.copy(path, folder)
