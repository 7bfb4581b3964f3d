"""Reinforcement learning of language models on any text task, in JAX."""

try:
    import flax as flax
except ModuleNotFoundError as error:
    text = "training needs further packages: pip install 'mapf-frozenlake-rl[train]'"
    raise ImportError(text) from error
