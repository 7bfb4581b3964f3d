"""What a key draws: the kind of keys, and settings of JAX that decide it."""

import jax
import jax.numpy as jnp


def check(name: str, keys: jax.Array) -> None:
    """Raises `ValueError` unless an argument consists of typed keys."""
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise ValueError(f"{name}: an array of {keys.dtype}, allowed are keys of jax.random.key")


def pin() -> None:
    """Fixes the settings by which the same key draws other numbers, whatever is set outside.

    Call it before anything is drawn.
    """
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_default_prng_impl", "threefry2x32")
    jax.config.update("jax_threefry_partitionable", True)
