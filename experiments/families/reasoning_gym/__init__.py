"""The data sets of reasoning-gym as families of environments."""
