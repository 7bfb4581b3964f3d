"""A model, its tokenizer and its mesh, and how it answers chats."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from experiments.settings import Settings
from learner import sharding, tokens
from learner.qwen3 import weights
from learner.qwen3.config import Qwen3Config
from learner.sampler import Sampler, SamplingParams
from learner.task import Answer, Message


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

    @property
    def pad_id(self) -> int:
        """The id that fills rows."""
        pad_id = self.tokenizer.pad_token_id
        return tokens.stop_token_ids(self.tokenizer)[0] if pad_id is None else pad_id


class Responder:
    """Answers chats with one way of sampling; compiled once for each shape.

    Args:
      policy: the model.
      max_new_tokens: budget of an answer, stop token included.
      temperature: 0 is greedy.
      top_p: nucleus; 1 is off.
      top_k: candidates; 0 is off.
    """

    def __init__(
        self,
        policy: Policy,
        max_new_tokens: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> None:
        self._policy = policy
        sampling = SamplingParams(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            max_new_tokens=max_new_tokens,
            stop_token_ids=tuple(tokens.stop_token_ids(policy.tokenizer)),
        )
        self._sampler = Sampler(policy.config, policy.mesh, sampling, policy.pad_id)

    def __call__(
        self, params: Any, chats: Sequence[Sequence[Message]], key: jax.Array
    ) -> list[Answer]:
        """One answer to each chat."""
        tokenizer = self._policy.tokenizer
        prompts = [tokens.encode_chat(tokenizer, chat) for chat in chats]
        samples = self._sampler(params, prompts, jax.random.split(key, len(prompts)))
        ids, lengths = np.asarray(samples.tokens), np.asarray(samples.lengths)
        stopped = np.asarray(samples.stopped)
        return [
            Answer(tokens.decode(tokenizer, row[:n].tolist()), int(n), not bool(done))
            for row, n, done in zip(ids, lengths, stopped, strict=True)
        ]


def load_policy(settings: Settings) -> tuple[Policy, Any]:
    """The model of a run with its first parameters, placed on the mesh."""
    mesh = sharding.make_mesh(**dataclasses.asdict(settings.mesh))
    folder = settings.model.folder
    config = dataclasses.replace(
        Qwen3Config.from_folder(folder),
        dtype=settings.model.dtype,
        param_dtype=settings.model.param_dtype,
        remat=settings.model.remat,
        scan_unroll=settings.model.scan_unroll,
    )
    tokenizer = tokens.load_tokenizer(folder)
    params = weights.load(folder, config, mesh)
    return Policy(config, tokenizer, mesh), params
