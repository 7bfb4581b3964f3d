"""Settings of JAX that decide what a key draws."""

import jax


def pin() -> None:
    """Fixes the settings by which the same key draws other numbers, whatever is set outside.

    Call it before anything is drawn.
    """
    jax.config.update("jax_enable_x64", False)
    jax.config.update("jax_default_prng_impl", "threefry2x32")
    jax.config.update("jax_threefry_partitionable", True)
