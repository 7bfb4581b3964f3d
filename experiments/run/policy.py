"""A model, its tokenizer and its mesh."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from experiments.run import process
from experiments.settings import MeshSettings, Settings
from learner import tokens
from learner.decoder import attention, weights
from learner.decoder.cached_attention import choose_decoding
from learner.decoder.config import DecoderConfig
from learner.devices import sharding
from learner.sampling.completer import Completer
from learner.sampling.sampler import SamplingParams
from learner.training import lora
from learner.training.grpo_config import GRPOConfig


@dataclasses.dataclass(frozen=True)
class Policy:
    """A model without its parameters.

    Attributes:
      config: the architecture.
      tokenizer: of `transformers`.
      mesh: devices of parameters and batches.
      generation_config: of the model's folder; `save` copies it.
    """

    config: DecoderConfig
    tokenizer: Any
    mesh: Mesh
    generation_config: Mapping[str, Any] | None = None

    def completer(
        self, sampling: SamplingParams, training: GRPOConfig, **options: Any
    ) -> Completer:
        """Makes a completer of chats, with the slots and the cache that training has.

        `options` are those of `Completer`.
        """
        return Completer(
            self.config,
            self.mesh,
            self.tokenizer,
            sampling,
            training.sampling_slots,
            cache_fraction=training.cache_fraction,
            **options,
        )

    def save(self, folder: Path, params: Any, dtype: str | None) -> None:
        """Writes a Hugging Face checkpoint, adapters merged; see `weights.save`."""
        weights.save(
            folder,
            lora.merge(params, dtype),
            self.config,
            self.tokenizer,
            dtype=dtype,
            generation_config=self.generation_config,
        )


def load_policy(settings: Settings, mesh_settings: MeshSettings | None = None) -> Policy:
    """Loads the model of a run without its parameters, on the run's mesh or the given one.

    Raises:
      ValueError: the model's folder is missing or unsupported, or there are too few devices.
    """
    mesh = sharding.make_mesh(**dataclasses.asdict(mesh_settings or settings.mesh))
    model = settings.model
    config = DecoderConfig.from_folder(
        model.folder,
        dtype=model.dtype,
        # The base of adapters is frozen, and multiplied in that dtype anyway.
        param_dtype=model.dtype if settings.training.lora.rank else "float32",
        cache_dtype=model.cache_dtype,
        remat=model.remat,
        scan_unroll=model.scan_unroll,
    )
    tokenizer = tokens.load_tokenizer(model.folder)
    tokens.encode_chat(tokenizer, [{"role": "user", "content": "A template may be broken."}])
    return Policy(config, tokenizer, mesh, weights.read_generation_config(model.folder))


def load_params(settings: Settings, policy: Policy) -> Any:
    """Loads the initial parameters of a run onto the mesh."""
    params = weights.load(settings.model.folder, policy.config, policy.mesh)
    process.return_freed_memory()  # Tensors are read and cast one by one.
    return params


def describe(settings: Settings, policy: Policy, params: Any) -> Iterator[str]:
    """Lines about the model: its parameters, devices and attention kernels.

    On an accelerator a kernel that is not used is a warning with what that cost on an H100.
    """
    count, devices = sum(leaf.size for leaf in jax.tree.leaves(params)), policy.mesh.devices
    processes = f" of {jax.process_count()} processes" if jax.process_count() > 1 else ""
    yield (
        f"model {settings.model.path}: {count:,} parameters on {devices.size} x "
        f"{devices.flat[0].device_kind}{processes}"
    )
    if unused := weights.unused_generation_config(policy.generation_config):
        yield f"  {unused}"
    slow = devices.flat[0].platform != "cpu"
    chosen = attention.choose(policy.config)
    yield f"attention: {chosen.name} ({chosen.reason})"
    if chosen.name == "reference":
        if slow:
            yield f"  warning: no kernel: {_WITHOUT_KERNEL}, and {_WITHOUT_DECODING_KERNEL}"
        return
    chosen = choose_decoding(policy.config)
    yield f"attention of decoding: {chosen.name} ({chosen.reason})"
    if chosen.name == "reference" and slow:
        yield f"  warning: no kernel for decoding: {_WITHOUT_DECODING_KERNEL}"


# docs/benchmarks/accelerator.md has the measurements.
_WITHOUT_KERNEL = "attention of long sequences takes about 12 times as long in an update"
_WITHOUT_DECODING_KERNEL = (
    "that of decoding 2.6 to 5 times, and the cache is reserved for the longest completions"
)
