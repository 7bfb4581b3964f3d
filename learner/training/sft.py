"""Supervised warm start: cross entropy on given completions, through the same update as GRPO."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from learner import checks, tokens
from learner.chat import Message
from learner.decoder.config import DecoderConfig
from learner.devices import sharding
from learner.training import grpo, lora
from learner.training.batches.packed_sequences import OnePart, PackedSequences, packed_logprobs
from learner.training.task import prompt_indices
from learner.training.train_state import OptimizerConfig, TrainState, abstract_train_state
from learner.training.update import Updater, check

# Lengths of sequences from a power of two to the next.
_LENGTHS = 8

# Prompts share their beginning if that leaves at most so much of the tokens: packing has a cost.
_WORTH_SHARING = 0.75


@dataclasses.dataclass(frozen=True)
class SFTConfig:
    """How a policy is trained on given completions.

    Attributes:
      batch_size: examples in one step.
      micro_batch_size: examples that go through the model at once; a multiple of data * fsdp of the
        mesh. It changes memory and speed, never the result.
      length_multiple: sequences are padded to a multiple of this many tokens, long ones to fewer
        lengths, by an eighth at most; each length that occurs is compiled once. Sequences are
        sorted by length first.
      max_completion_tokens: the longest allowed completion, stop token included.
      optimizer: the optimizer.

    Raises:
      ValueError: a field is out of its range.
    """

    batch_size: int = 64
    micro_batch_size: int = 8
    length_multiple: int = 32
    max_completion_tokens: int = 1024
    optimizer: OptimizerConfig = dataclasses.field(
        default_factory=lambda: OptimizerConfig(learning_rate=1e-5)
    )

    def __post_init__(self) -> None:
        checks.integers(
            self, batch_size=1, micro_batch_size=1, length_multiple=1, max_completion_tokens=1
        )


class Example(NamedTuple):
    """One encoded example: token ids of the prompt, and of the completion with its stop token."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]


class SFTStep(NamedTuple):
    """The result of one step; the next step donates the state."""

    state: TrainState
    metrics: dict[str, float]


def encode_examples(
    tokenizer: Any, pairs: Sequence[tuple[Sequence[Message], str]]
) -> list[Example]:
    """Encodes prompts as sampling does, and their completions, each followed by the stop token.

    Where the chat template always opens the model's thought, the completion closes it first, so
    that `Completion.answer` reads what is written here.

    Args:
      tokenizer: has a chat template.
      pairs: of a prompt's messages and its completion.

    Raises:
      ValueError: the tokenizer has no end-of-turn token; or as `tokens.encode_chats`.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("eos_token_id=None: the tokenizer needs one, it ends every completion")
    if not pairs:
        return []
    opened = tokens.opens_thought(tokenizer, enable_thinking=False)
    before = f"\n{tokens.THINK_END}\n\n" if opened else ""
    prompts = tokens.encode_chats(tokenizer, [messages for messages, _ in pairs])
    texts = tokens.encode_texts(tokenizer, [before + completion for _, completion in pairs])
    return [
        Example(prompt=tuple(prompt), completion=(*ids, tokenizer.eos_token_id))
        for prompt, ids in zip(prompts, texts, strict=True)
    ]


def make_batch(
    examples: Sequence[Example], config: SFTConfig, pad_id: int, batch_shards: int = 1
) -> list[PackedSequences]:
    """The examples of one step as NumPy arrays of fixed shapes, sorted by length.

    A sequence is one example. But if all prompts begin alike for long enough, the examples of a
    micro-batch fill one sequence for each of `batch_shards`, where they share that beginning.

    Raises:
      ValueError: there are none, or a completion is longer than `max_completion_tokens`.
    """
    if not examples:
        raise ValueError("examples=[]: at least one is needed")
    lengths = [len(example.completion) for example in examples]
    if max(lengths) > config.max_completion_tokens:
        raise ValueError(
            f"max_completion_tokens={config.max_completion_tokens}: one has {max(lengths)} tokens"
        )
    ordered = sorted(examples, key=lambda example: len(example.prompt) + len(example.completion))
    batches = []
    for first in range(0, len(ordered), config.micro_batch_size):
        chosen = ordered[first : first + config.micro_batch_size]
        parts, shared, sequences, length, bounds = _arranged(chosen, config, batch_shards)
        # What a prompt has of its own is the beginning of its completion, without a weight.
        contents = [
            (part[0].prompt[:shared], [np.array(e.prompt[shared:] + e.completion) for e in part])
            for part in parts
        ]
        batch, slots = PackedSequences.of_parts(contents, sequences, length, pad_id, bounds)
        for sequence, (part, of_part) in enumerate(zip(parts, slots, strict=True)):
            for example, there in zip(part, of_part, strict=True):
                own = slice(there.stop - len(example.completion), there.stop)
                batch.weights[sequence, own] = np.float32(1) / np.float32(sum(lengths))
        batches.append(batch)
    return batches


def _bucket(length: int, config: SFTConfig) -> int:
    return tokens.geometric_bucket(length, config.length_multiple, _LENGTHS)


def _arranged(
    examples: Sequence[Example], config: SFTConfig, sequences: int
) -> tuple[list[Sequence[Example]], int, int, int, OnePart]:
    """Examples behind the beginning of their prompts, or one a sequence if that saves too little.

    Args:
      examples: sorted by length.

    Returns:
      The examples of each sequence, the most tokens of a prompt that they share, the number of
      sequences with the empty ones, their length, and bounds.
    """
    prompts = [example.prompt for example in examples]
    alike = [a == b for a, b in zip(min(prompts), max(prompts), strict=False)]  # As all between.
    shared = (*alike, False).index(False)
    parts = [examples[i::sequences] for i in range(min(sequences, len(examples)))]
    own = [sum(len(e.prompt) + len(e.completion) - shared for e in part) for part in parts]
    length = _bucket(shared + max(own), config)
    apart = _bucket(len(examples[-1].prompt) + len(examples[-1].completion), config)
    if not shared or sequences * length > _WORTH_SHARING * config.micro_batch_size * apart:
        longest = max(map(len, prompts))
        return [[e] for e in examples], longest, config.micro_batch_size, apart, OnePart(1, 0, 0)
    window = config.max_completion_tokens + _bucket(max(map(len, prompts)) - shared, config)
    capacity = min(_bucket(shared, config), length)
    bounds = OnePart(config.micro_batch_size // sequences, capacity, min(window, length))
    return parts, shared, sequences, length, bounds


class SFTTrainer:
    """Compiled functions for one configuration, model and mesh; holds no training state.

    Args:
      mesh: of `sharding.make_mesh`.
      pad_id: fills sequences.
      adapters: if their rank is not 0, they are trained in place of all parameters.
      frozen_params: the parameters that adapters adapt; None without adapters.

    Raises:
      ValueError: `micro_batch_size` does not divide over the mesh, or `frozen_params` is missing or
        not wanted.
    """

    def __init__(
        self,
        config: SFTConfig,
        model_config: DecoderConfig,
        mesh: Mesh,
        pad_id: int,
        adapters: lora.LoraConfig | None = None,
        frozen_params: Any = None,
    ) -> None:
        sharding.check_batch_size("micro_batch_size", config.micro_batch_size, mesh)
        adapters = adapters or lora.LoraConfig()
        if (adapters.rank > 0) != (frozen_params is not None):
            raise ValueError(
                f"frozen_params {'missing' if frozen_params is None else 'given'}: they are for "
                f"adapters, and lora.rank={adapters.rank}"
            )
        self.config = config
        self._pad_id = pad_id
        self._batch_shards = sharding.num_batch_shards(mesh)
        self._adapters = adapters
        self._frozen = frozen_params

        def loss(params: Any, batch: PackedSequences, frozen: Any) -> Any:
            policy = lora.attach(frozen, params, adapters)
            logprobs, entropies = packed_logprobs(policy, model_config, batch)
            mask = batch.weights > 0
            sums = {
                "tokens": jnp.sum(mask, dtype=jnp.float32),
                "entropy": jnp.sum(jnp.where(mask, entropies, 0.0)),
            }
            # `where` and not only a zero weight: padding must not reach the gradient.
            return -jnp.sum(batch.weights * jnp.where(mask, logprobs, 0.0)), sums

        self._model_config = model_config
        #: The training state as shapes, to restore a checkpoint to.
        self.abstract_state = abstract_train_state(model_config, config.optimizer, mesh, adapters)
        self._update = Updater(
            loss, self.abstract_state, config.optimizer, mesh, model_config.dtype
        )

    def _checked(self, examples: Sequence[Example]) -> list[Example]:
        """The examples as tuples of Python's integers."""
        V, longest = self._model_config.vocab_size, self._model_config.max_position_embeddings
        found = [Example(*(tuple(map(int, ids)) for ids in example)) for example in examples]
        for number, example in enumerate(found):
            ids = example.prompt + example.completion
            if not example.prompt:
                raise ValueError(f"examples[{number}]: its prompt is empty, one token is needed")
            if len(ids) > longest:
                raise ValueError(
                    f"examples[{number}]: has {len(ids)} tokens; allowed are up to {longest} "
                    "(max_position_embeddings)"
                )
            if not (min(ids) >= 0 and max(ids) < V):
                found_ids = f"{min(ids)} to {max(ids)}"
                raise ValueError(
                    f"examples[{number}]: has ids {found_ids}; allowed are 0 to {V - 1}"
                )
        if found and not any(example.completion for example in found):
            raise ValueError("examples: no completion has a token")
        return found

    def policy_params(self, state: TrainState) -> Any:
        """The parameters to sample from; see `GRPOTrainer.policy_params`."""
        return lora.attach(self._frozen, state.params, self._adapters)

    def run(
        self,
        state: TrainState,
        examples: Sequence[Example],
        key: jax.Array,
        start_step: int,
        num_steps: int,
    ) -> Iterator[SFTStep]:
        """Steps `start_step` to `num_steps` - 1 over shuffled passes; see `GRPOTrainer.run`."""
        for step in range(start_step, num_steps):
            indices = prompt_indices(key, step, self.config.batch_size, len(examples))
            result = self.step(state, [examples[int(i)] for i in indices], step)
            state = result.state
            yield result

    def step(self, state: TrainState, examples: Sequence[Example], step: int = 0) -> SFTStep:
        """One update on the token mean of the cross entropy over all of `examples`.

        Args:
          state: donated.
          examples: any number; few different numbers of sequences and lengths compile less often.
          step: named in errors only.

        Raises:
          NonFiniteError: loss, gradient or a parameter was NaN or infinite.
          ValueError: an example has ids that the model has not, or too many, or none in its
            prompt, or no completion has any.
        """
        begin = time.perf_counter()
        examples = self._checked(examples)
        batches = make_batch(examples, self.config, self._pad_id, self._batch_shards)
        state, result = self._update(state, batches, self._frozen)
        result = jax.device_get(result)
        means = grpo.token_means(result.sums)
        metrics = {
            "loss": float(result.loss),
            "grad_norm": float(result.grad_norm),
            "learning_rate": float(result.learning_rate),
            "entropy": means["entropy"],
            "completion_tokens": means["tokens"],
            "machine/update_seconds": time.perf_counter() - begin,
        }
        check(step, result, metrics, state)
        return SFTStep(state, metrics)
