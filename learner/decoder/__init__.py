"""Dense decoders: configuration, model, weights."""

# Tasks, chats and checks do without it, so that other trainers can use families of environments.
try:
    import flax as flax
except ModuleNotFoundError as error:
    text = "training needs further packages: pip install 'mapf-frozenlake-rl[train]'"
    raise ImportError(text) from error
