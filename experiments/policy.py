"""A model, its tokenizer and its mesh."""

import dataclasses
from typing import Any

import jax
from jax.sharding import Mesh

from experiments.settings import MeshSettings, Settings
from learner import tokens
from learner.devices import sharding
from learner.qwen3 import weights
from learner.qwen3.config import Qwen3Config
from learner.sampling.completer import Completer
from learner.sampling.sampler import SamplingParams


@dataclasses.dataclass(frozen=True)
class Policy:
    """Everything about a model but its parameters.

    Attributes:
      config: the architecture.
      tokenizer: of `transformers`.
      mesh: where parameters and rows live.
    """

    config: Qwen3Config
    tokenizer: Any
    mesh: Mesh

    def completer(self, sampling: SamplingParams, max_rows: int, **options: Any) -> Completer:
        """How this model completes chats; `options` are those of `Completer`."""
        return Completer(self.config, self.mesh, self.tokenizer, sampling, max_rows, **options)


def load_policy(settings: Settings, mesh_settings: MeshSettings | None = None) -> Policy:
    """The model of a run, without its parameters; on another mesh than the run's if one is given.

    Raises:
      ValueError: the model's folder is gone or not understood, or there are too few devices.
    """
    mesh = sharding.make_mesh(**dataclasses.asdict(mesh_settings or settings.mesh))
    model = settings.model
    config = Qwen3Config.from_folder(
        model.folder, dtype=model.dtype, remat=model.remat, scan_unroll=model.scan_unroll
    )
    tokenizer = tokens.load_tokenizer(model.folder)
    tokens.encode_chat(tokenizer, [{"role": "user", "content": "A template may be broken."}])
    return Policy(config, tokenizer, mesh)


def load_params(settings: Settings, policy: Policy) -> Any:
    """The parameters that a run starts from, placed on the mesh."""
    return weights.load(settings.model.folder, policy.config, policy.mesh)


def describe_policy(policy: Policy, params: Any) -> str:
    """How many parameters there are, and on which devices, in one line."""
    count, devices = sum(leaf.size for leaf in jax.tree.leaves(params)), policy.mesh.devices
    processes = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    return f"{count:,} parameters on {devices.size} x {devices.flat[0].device_kind}{processes}"
