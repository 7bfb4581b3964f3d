"""MAPF-FrozenLake in JAX: a batched simulator, an exact solver and an instance generator."""

from mapf_jax import env as env
from mapf_jax import formats as formats
from mapf_jax.benchmark import BenchmarkSet as BenchmarkSet
from mapf_jax.benchmark import benchmark_instances as benchmark_instances
from mapf_jax.bridges import movingai as movingai
from mapf_jax.draw import render as render
from mapf_jax.draw.render import ascii_frames as ascii_frames
from mapf_jax.draw.render import ascii_instance as ascii_instance
from mapf_jax.draw.render import instance_from_ascii as instance_from_ascii
from mapf_jax.env import registration
from mapf_jax.environment_config import EnvironmentConfig as EnvironmentConfig
from mapf_jax.generator import GenerationReport as GenerationReport
from mapf_jax.generator import NoInstanceError as NoInstanceError
from mapf_jax.generator import fingerprints as fingerprints
from mapf_jax.generator import generate as generate
from mapf_jax.padding import pad_instance as pad_instance
from mapf_jax.solver.batch import solve as solve
from mapf_jax.solver.joint_search import joint_costs as joint_costs
from mapf_jax.text import plans_from_texts as plans_from_texts
from mapf_jax.text import prompt as prompt
from mapf_jax.text import render_answer as render_answer
from mapf_jax.types import CHECKS as CHECKS
from mapf_jax.types import INFINITE_COST as INFINITE_COST
from mapf_jax.types import Instance as Instance
from mapf_jax.types import Plan as Plan
from mapf_jax.types import Solution as Solution
from mapf_jax.types import State as State
from mapf_jax.types import Status as Status
from mapf_jax.types import TimeStep as TimeStep
from mapf_jax.types import Verdict as Verdict
from mapf_jax.types import ViolationKind as ViolationKind
from mapf_jax.types import make_instance as make_instance
from mapf_jax.types import stack as stack
from mapf_jax.verify import verify as verify

registration.register_on_import()

__version__ = "0.1.0"
