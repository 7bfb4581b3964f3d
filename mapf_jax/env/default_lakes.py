"""The lakes that adapters play where they are given none."""

import jax
import numpy as np

from mapf_jax import generator
from mapf_jax.env.environment import MapfFrozenLake
from mapf_jax.types import Instance

NUM_DRAWN = 1024
"""Lakes that are drawn; those with reachable goals are played."""


def default_lakes(env: MapfFrozenLake) -> Instance:
    """A batch of lakes as large as the environment, a fifth of whose cells are holes."""
    size, agents = env.size, env.num_agents
    holes = min(size * size // 5, size * size - 2 * agents)
    lakes, connected = generator.draw(jax.random.key(0), size, holes, size, NUM_DRAWN, agents)
    return lakes[np.flatnonzero(connected)]
