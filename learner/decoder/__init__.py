"""Dense decoders: configuration, model, weights."""

# Tasks, chats and checks do without it, so that other trainers can use families of environments.
try:
    import flax as flax
except ModuleNotFoundError as error:
    text = "training needs Flax and more; in a clone of the project: pip install -e '.[train]'"
    raise ImportError(text) from error
