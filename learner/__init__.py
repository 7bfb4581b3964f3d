"""Reinforcement learning of language models on any text task, in JAX."""

try:
    import flax as flax
except ImportError as error:
    raise ImportError("training needs more: pip install 'mapf-frozenlake-rl[train]'") from error
