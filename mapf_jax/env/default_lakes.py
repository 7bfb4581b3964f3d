"""The lakes that adapters play where they are given none."""

import jax
import numpy as np

from mapf_jax import generator
from mapf_jax.env.environment import MapfFrozenLake
from mapf_jax.types import Instance

NUM_DRAWN = 1024
"""Lakes that are drawn, fewer if they are large; those with reachable goals are played."""


def default_lakes(env: MapfFrozenLake) -> Instance:
    """A batch of lakes as large as the environment, a fifth of whose cells are holes.

    Where starts and goals do not all find a cell of their own, agents start on goals of others.
    """
    size, agents = env.size, env.num_agents
    distinct = 2 * agents <= size * size
    holes = min(size * size // 5, size * size - (1 + distinct) * agents)
    # So that 126 x 126 cells take neither a minute nor gigabytes.
    drawn = min(NUM_DRAWN, max(64, (1 << 22) // (agents * size**2)))
    key = jax.random.key(0)
    lakes, connected = generator.draw(key, size, holes, size, drawn, agents, distinct)
    return lakes[np.flatnonzero(connected)]
