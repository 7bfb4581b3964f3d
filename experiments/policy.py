"""A model, its tokenizer and its mesh, and how it answers chats."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from experiments.settings import MeshSettings, Settings
from learner import tokens
from learner.devices import distributed, sharding
from learner.qwen3 import weights
from learner.qwen3.config import Qwen3Config
from learner.sampling.sampler import FinishReason, Sampler, SamplingParams
from learner.sampling.token_automaton import TokenAutomaton
from learner.training.task import Completion, Message

# Folded into a call's key for the keys of endings. Not the number of any chat: with threefry,
# `split(key, n)[i]` is `fold_in(key, i)`.
_ENDINGS = 2**32 - 1


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


@dataclasses.dataclass(frozen=True)
class Ending:
    """What an answer that stopped too early is finished with.

    Attributes:
      trigger: token ids without which an answer is not whole; appended where they are missing.
      automaton: which tokens may follow them.
      max_new_tokens: budget of what follows, stop token included.
    """

    trigger: tuple[int, ...]
    automaton: TokenAutomaton
    max_new_tokens: int


class Responder:
    """Answers chats with one way of sampling; compiled once for each shape.

    Args:
      policy: the model.
      sampling: how tokens are chosen; the stop tokens are the tokenizer's whatever it says.
      max_rows: rows answered at a time; bounds the memory of the key/value cache.
      thinking: let the chat template open the model's thinking.
      automaton: which tokens an answer may have; None allows all.
      ending: how answers are finished that a stop token ended before their trigger.
    """

    def __init__(
        self,
        policy: Policy,
        sampling: SamplingParams,
        max_rows: int,
        thinking: bool = False,
        automaton: TokenAutomaton | None = None,
        ending: Ending | None = None,
    ) -> None:
        self._policy = policy
        self._thinking = thinking
        self._automaton = automaton
        self._ending = ending
        self._sampler = _sampler(policy, sampling, max_rows)
        if ending is not None:
            self._finisher = _sampler(
                policy,
                dataclasses.replace(sampling, max_new_tokens=ending.max_new_tokens, thinking=None),
                max_rows,
            )
        self._longest_prompt = policy.config.max_position_embeddings - sampling.max_new_tokens

    def __call__(
        self, params: Any, chats: Sequence[Sequence[Message]], key: jax.Array, count: int = 1
    ) -> list[Completion]:
        """`count` answers to each chat, all to the first, then all to the second, ..."""
        prompts = [self._encode(chat) for chat in chats]
        samples = self._sampler(
            params,
            prompts,
            jax.random.split(key, len(prompts)),
            num_samples=count,
            automaton=self._automaton,
        )
        rows = [row[:n].tolist() for row, n in zip(samples.tokens, samples.lengths, strict=True)]
        stopped = [bool(done) for done in samples.stopped]
        if self._ending is not None:
            trigger = list(self._ending.trigger)
            early = [i for i, row in enumerate(rows) if stopped[i] and not _contains(row, trigger)]
            begun = {i: [*rows[i][:-1], *trigger] for i in early}
            if early:
                ends = self._finisher(
                    params,
                    [[*prompts[i // count], *begun[i]] for i in early],
                    # By the number of the answer: how many others stopped early does not matter.
                    jax.vmap(jax.random.fold_in, (None, 0))(
                        jax.random.fold_in(key, _ENDINGS), np.array(early)
                    ),
                    automaton=self._ending.automaton,
                )
                for i, row, n, done in zip(
                    early, ends.tokens, ends.lengths, ends.stopped, strict=True
                ):
                    rows[i], stopped[i] = [*begun[i], *row[:n].tolist()], bool(done)
        tokenizer = self._policy.tokenizer

        def read(indices: np.ndarray) -> list[Completion]:
            return [
                Completion(tokens.decode(tokenizer, rows[i]), len(rows[i]), not stopped[i])
                for i in indices
            ]

        return distributed.sharded_map(read, len(rows))

    def stream(
        self, params: Any, chats: Sequence[Sequence[Message]], keys: jax.Array
    ) -> Iterator[tuple[int, Completion]]:
        """One answer to each chat, (number of the chat, answer) as soon as it has ended.

        An answer depends on its chat and on its key alone, beyond rounding. Neither `automaton`
        nor `ending` apply.

        Args:
          params: of the model.
          chats: N of them.
          keys: PRNG keys [N].
        """
        prompts = [self._encode(chat) for chat in chats]
        rows: list[list[int]] = [[] for _ in prompts]
        for piece in self._sampler.pieces(params, prompts, keys):
            rows[piece.row] += piece.tokens.tolist()
            if piece.finish is not None:
                row, rows[piece.row] = rows[piece.row], []
                cut = piece.finish == FinishReason.LENGTH
                yield (
                    piece.row,
                    Completion(tokens.decode(self._policy.tokenizer, row), len(row), cut),
                )

    def fits(self, chat: Sequence[Message]) -> bool:
        """Whether the model's window holds a chat and an answer to it."""
        return len(self._encode(chat)) <= self._longest_prompt

    def _encode(self, chat: Sequence[Message]) -> list[int]:
        return tokens.encode_chat(self._policy.tokenizer, chat, self._thinking)


def _sampler(policy: Policy, sampling: SamplingParams, max_rows: int) -> Sampler:
    return Sampler(
        policy.config,
        policy.mesh,
        dataclasses.replace(sampling, stop_token_ids=tokens.stop_token_ids(policy.tokenizer)),
        tokens.pad_id(policy.tokenizer),
        max_rows=max_rows,
        vocab_size=min(tokens.vocab_size(policy.tokenizer), policy.config.vocab_size),
    )


def _contains(row: list[int], part: list[int]) -> bool:
    return any(row[i : i + len(part)] == part for i in range(len(row) - len(part) + 1))


def load_policy(settings: Settings, mesh_settings: MeshSettings | None = None) -> Policy:
    """The model of a run, without its parameters; on another mesh than the run's if one is given.

    Raises:
      ValueError: the model's folder is gone or not understood, or there are too few devices.
    """
    mesh = sharding.make_mesh(**dataclasses.asdict(mesh_settings or settings.mesh))
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
