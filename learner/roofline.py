"""Seconds of sampling and training from sizes, peaks and assumptions: a model, no measurement.

Every part takes the longest of its times for products, memory and links, as if they overlapped
perfectly, at the shares of the peaks that `hardware.Assumptions` states. Operations and exchanged
bytes of the update are those of the compiled program (`learner.compiled_cost`); a test compares.
"""

import dataclasses

import jax

from learner.hardware import Accelerator, Assumptions
from learner.qwen3 import model
from learner.qwen3.config import Qwen3Config

_BF16, _F32 = 2, 4
# Master parameters and two moments, read and written, and gradients, read; all float32.
_OPTIMIZER_BYTES = 7 * _F32
# Sums of hidden states over the tensor axis, of each layer: two forwards, one when computed again,
# and backwards one for each of the five matrices that take a block's input.
_TENSOR_SUMS = 8
# Those outside of the layers: the embedding's rows, in float32, and the output matrix's gradient.
_OTHER_SUMS = 3


@dataclasses.dataclass(frozen=True)
class Deployment:
    """A model on a mesh of equal chips.

    Attributes:
        config: the model, computed in bfloat16.
        chip: the accelerator.
        data, fsdp, tensor: sizes of the mesh axes.
        assumptions: see there.
    """

    config: Qwen3Config
    chip: Accelerator
    data: int = 1
    fsdp: int = 1
    tensor: int = 1
    assumptions: Assumptions = dataclasses.field(default_factory=Assumptions)

    @property
    def chips(self) -> int:
        """Devices of the mesh."""
        return self.data * self.fsdp * self.tensor

    @property
    def row_shards(self) -> int:
        """Over how many parts rows are split."""
        return self.data * self.fsdp

    @property
    def hosts(self) -> int:
        """Machines that drive the chips."""
        return -(-self.chips // self.chip.chips_per_host)

    @property
    def layer_parameters(self) -> int:
        """Of all layers."""
        return sum(x.size for x in jax.tree.leaves(model.abstract_params(self.config)["layers"]))

    @property
    def vocabulary_matrix(self) -> int:
        """Numbers in the output matrix."""
        return self.config.vocab_size * self.config.hidden_size

    @property
    def parameters(self) -> int:
        """All of the model."""
        return sum(x.size for x in jax.tree.leaves(model.abstract_params(self.config)))

    @property
    def cache_bytes(self) -> int:
        """Keys and values of one token in all layers, in bfloat16."""
        c = self.config
        return 2 * c.num_hidden_layers * c.num_key_value_heads * c.head_dim * _BF16

    # Sampling

    def exchange_seconds(self) -> float:
        """Making the parameters for decoding: cast, and gathered over fsdp."""
        whole = _BF16 * self.parameters / self.tensor
        moved = whole + _F32 * self.parameters / (self.fsdp * self.tensor)
        return max(self._memory(moved), self._link(whole * (1 - 1 / self.fsdp)))

    def prefill_seconds(self, prompts: int, length: int) -> float:
        """Prompts of one row shard, without the output matrix."""
        tokens = prompts * length
        flops = 2 * self.layer_parameters * tokens + prompts * self._attention(length)
        sent = 2 * self.config.num_hidden_layers * self._sum_over_tensor(tokens)
        return max(self._products(flops / self.tensor), self._link(sent))

    def decode_seconds(self, slots: int, lanes: int, prompt_capacity: int, room: int) -> float:
        """One token of every lane of one row shard.

        Args:
            slots: prompts; lanes: completions to each at a time.
            prompt_capacity: tokens that the cache of a prompt has room for, all of which are read.
            room: the same of a completion.
        """
        c, count = self.config, slots * lanes
        weights = self.layer_parameters + self.vocabulary_matrix
        cached = self.cache_bytes * (slots * prompt_capacity + count * room)
        moved = (_BF16 * weights + cached) / self.tensor
        pairs = count * (prompt_capacity + room)
        flops = 2 * weights * count
        flops += 4 * c.num_hidden_layers * c.num_attention_heads * c.head_dim * pairs
        sums = 2 * c.num_hidden_layers if self.tensor > 1 else 0
        return (
            max(self._memory(moved), self._products(flops / self.tensor))
            + c.num_hidden_layers * self.assumptions.layer_seconds
            + sums * self.assumptions.exchange_seconds
            + self._link(sums * self._sum_over_tensor(count))
        )

    # Training

    def micro_batch_flops(self, rows: int, length: int, completion_tokens: int) -> float:
        """Operations of one device for the gradients of `rows` rows, blocks computed again.

        Args:
            rows: of one row shard.
            length: tokens of each, padding included.
            completion_tokens: positions of each row that go through the output matrix.
        """
        # Forwards, again, and twice as much backwards; only the last product of a block, which
        # nothing in it needs, is not made again. Attention backwards has five products where it
        # has two forwards. The logits are made twice and meet two gradients.
        c = self.config
        last = c.num_hidden_layers * c.intermediate_size * c.hidden_size
        layers = 2 * (4 * self.layer_parameters - last) * length
        attention = 4.5 * self._attention(length)
        output = 4 * 2 * self.vocabulary_matrix * completion_tokens
        return rows * (layers + attention + output) / self.tensor

    def micro_batch_sent(self, rows: int, length: int) -> float:
        """Bytes that one device sends for the gradients of one micro-batch, by rings."""
        layers, matrix = self.layer_parameters / self.tensor, self.vocabulary_matrix / self.tensor
        ring = 1 - 1 / self.fsdp
        gathered = 2 * _BF16 * (layers + matrix)
        scattered = _BF16 * layers + _F32 * matrix
        # The gradients of embedding and output matrix are summed each by itself, tied or not.
        copies = (_BF16 * layers + _F32 * 2 * matrix) / self.fsdp
        tokens = rows * length
        looked_up = 2 * ring * tokens * self.config.hidden_size * _BF16
        count = _TENSOR_SUMS * self.config.num_hidden_layers + _OTHER_SUMS
        sums = count * self._sum_over_tensor(tokens)
        return ring * (gathered + scattered) + 2 * (1 - 1 / self.data) * copies + looked_up + sums

    def micro_batch_seconds(self, rows: int, length: int, completion_tokens: int) -> float:
        """The gradients of one micro-batch; arguments as of `micro_batch_flops`."""
        products = self._products(self.micro_batch_flops(rows, length, completion_tokens))
        return max(products, self._link(self.micro_batch_sent(rows, length)))

    def optimizer_seconds(self) -> float:
        """One update of parameters and moments."""
        return self._memory(_OPTIMIZER_BYTES * self.parameters / (self.fsdp * self.tensor))

    # Parts

    def _attention(self, length: int) -> float:
        """Operations of all layers' attention of one row to itself, forwards."""
        c = self.config
        width = c.num_attention_heads * c.head_dim
        return 4 * c.num_hidden_layers * width * length**2 * self.assumptions.causal

    def _sum_over_tensor(self, tokens: int) -> float:
        """Bytes that one device sends for a sum of hidden states over the tensor axis."""
        return 2 * (1 - 1 / self.tensor) * tokens * self.config.hidden_size * _BF16

    def _products(self, flops: float) -> float:
        return flops / (self.chip.flops * self.assumptions.products)

    def _memory(self, moved: float) -> float:
        return moved / (self.chip.bandwidth * self.assumptions.memory)

    def _link(self, sent: float) -> float:
        return sent / (self.chip.link * self.assumptions.links)


def mesh_for(chips: int, fsdp: int = 8, tensor: int = 1) -> tuple[int, int, int]:
    """(data, fsdp, tensor) of so many chips with given inner axes.

    Raises:
        ValueError: the axes do not divide the chips.
    """
    inner = fsdp * tensor
    if chips % inner:
        raise ValueError(f"chips is {chips}; allowed are multiples of fsdp * tensor = {inner}")
    return chips // inner, fsdp, tensor
