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


class Responder:
    """Answers chats with one way of sampling; compiled once for each shape.

    Args:
      policy: the model.
      max_new_tokens: budget of an answer, stop token included.
      max_rows: chats answered at a time; bounds the memory of the key/value cache.
      temperature: 0 is greedy.
      top_p: nucleus; 1 is off.
      top_k: candidates; 0 is off.
    """

    def __init__(
        self,
        policy: Policy,
        max_new_tokens: int,
        max_rows: int,
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
            stop_token_ids=tokens.stop_token_ids(policy.tokenizer),
        )
        self._sampler = Sampler(
            policy.config,
            policy.mesh,
            sampling,
            tokens.pad_id(policy.tokenizer),
            max_rows=max_rows,
            vocab_size=min(tokens.vocab_size(policy.tokenizer), policy.config.vocab_size),
        )
        self._longest_prompt = policy.config.max_position_embeddings - max_new_tokens

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

    def fits(self, chat: Sequence[Message]) -> bool:
        """Whether the model's window holds a chat and an answer to it."""
        return len(tokens.encode_chat(self._policy.tokenizer, chat)) <= self._longest_prompt


def design_responder(settings: Settings, policy: Policy) -> Responder:
    """How designs are sampled."""
    engineer = settings.engineer
    return Responder(
        policy,
        engineer.max_new_tokens,
        settings.training.sampling_rows,
        engineer.temperature,
        engineer.top_p,
        engineer.top_k,
    )


def load_policy(settings: Settings) -> Policy:
    """The model of a run, without its parameters."""
    mesh = sharding.make_mesh(**dataclasses.asdict(settings.mesh))
    folder = settings.model.folder
    config = dataclasses.replace(
        Qwen3Config.from_folder(folder),
        dtype=settings.model.dtype,
        remat=settings.model.remat,
        scan_unroll=settings.model.scan_unroll,
    )
    return Policy(config, tokens.load_tokenizer(folder), mesh)


def load_params(settings: Settings, policy: Policy) -> Any:
    """The parameters that a run starts from, placed on the mesh."""
    return weights.load(settings.model.folder, policy.config, policy.mesh)
