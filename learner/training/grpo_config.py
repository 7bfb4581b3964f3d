"""The options of `learner.training.trainer`."""

import dataclasses
import math
import re
from typing import Literal, get_args

from learner import checks, tokens
from learner.training import grpo
from learner.training.batches import packing
from learner.training.curriculum import CurriculumConfig
from learner.training.lora import LoraConfig
from learner.training.train_state import OptimizerConfig

DegenerateGroups = Literal["drop", "resample", "keep"]

# Longest sequences are multiples of a tile of the attention kernel of TPUs, of few lengths.
_TILE, _LENGTHS = 128, 8
# At most a third of a full sequence is a prompt, where completions are short.
_PROMPTS_PER_SEQUENCE = 3


@dataclasses.dataclass(frozen=True)
class GRPOConfig:
    """How a policy is trained on a task.

    Attributes:
      prompts_per_step: P, prompts sampled from in one step.
      group_size: G, completions to each; at least 2.
      epochs: passes over the task's prompts; may be a fraction. Candidates of a curriculum count as
        used, so that the number of completions sampled stays the same.
      updates_per_step: optimizer updates on the completions of one step, each on its part of the
        groups, so every completion is used once (unlike mu in DeepSeekMath, arXiv 2402.03300, which
        counts passes over all of them). 1 is strictly on-policy.
      micro_batch_size: the most sequences that go through the model at once; a multiple of data *
        fsdp of the mesh. A sequence holds completions to several prompts, and is long enough for
        the longest of them (`sequence_shapes`). It changes memory and speed, never the result.
      max_new_tokens: budget of a completion, stop token included.
      thinking_tokens: above 0 the chat template opens the model's thinking, which counts as
        completion. After so many tokens of it a text of Qwen3's own ends it, which is left out of
        the loss; `max_new_tokens` or more sets no limit.
      sampling_slots: completions sampled at a time, at least one for each batch shard of the mesh;
        bounds the memory of the key/value cache. Larger groups are sampled in parts.
      cache_fraction: the cache's size where a kernel decodes, as a fraction of what
        `sampling_slots` completions of `max_new_tokens` need. A value below 1 suits completions
        that are on average much shorter than that: where the cache is full, the shortest start over
        later; the log counts their tokens as `completion_tokens_lost`. Many do if the fraction is
        below the mean length divided by `max_new_tokens`. It changes memory and speed, never the
        result.
      temperature: of sampling and of the policy that is optimised; > 0.
      objective: the loss.
      optimizer: the optimizer.
      mask_truncated: leave completions that ran out of budget out of the loss (overlong filtering,
        DAPO, arXiv 2503.14476, section 3.4). Their rewards still count in their group's mean.
      degenerate_groups: what becomes of groups whose rewards are all equal (dynamic sampling, DAPO,
        arXiv 2503.14476). "drop" leaves them out of the batch, and so out of every normaliser:
        the batch gets smaller. "resample" samples from `prompts_per_step` further prompts, up to
        `max_resamples` times, until that many groups have a signal; surplus groups of the last draw
        are not used. "keep" lets them take part with advantage 0. Groups that are left out lose the
        KL and entropy terms too.
      max_resamples: see `degenerate_groups`.
      curriculum: which prompts are trained on; any but "uniform" excludes "resample".
      lora: adapters to train in place of all parameters; off by default.
      profile_steps: steps of which a run writes a trace of `jax.profiler` into its folder `trace`,
        such as "3:5", which are 3 and 4, counted from 0 over all rounds; "" is off.

    Raises:
      ValueError: a field is out of its range.
    """

    prompts_per_step: int = 32
    group_size: int = 8
    epochs: float = 1.0
    updates_per_step: int = 1
    micro_batch_size: int = 8
    max_new_tokens: int = 1024
    thinking_tokens: int = 0
    sampling_slots: int = 512
    cache_fraction: float = 1.0
    temperature: float = 1.0
    objective: grpo.ObjectiveConfig = dataclasses.field(default_factory=grpo.ObjectiveConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    mask_truncated: bool = False
    degenerate_groups: DegenerateGroups = "drop"
    max_resamples: int = 2
    curriculum: CurriculumConfig = dataclasses.field(default_factory=CurriculumConfig)
    lora: LoraConfig = dataclasses.field(default_factory=LoraConfig)
    profile_steps: str = ""

    def __post_init__(self) -> None:
        checks.integers(
            self,
            prompts_per_step=1,
            group_size=2,
            updates_per_step=1,
            micro_batch_size=1,
            max_new_tokens=1,
            thinking_tokens=0,
            sampling_slots=1,
            max_resamples=1,
        )
        checks.positive(self, "epochs", "temperature", "cache_fraction")
        checks.fractions(self, "cache_fraction")
        checks.choices(
            self, mask_truncated=(False, True), degenerate_groups=get_args(DegenerateGroups)
        )
        if self.degenerate_groups == "resample" and self.curriculum.method != "uniform":
            raise ValueError(
                "degenerate_groups='resample': allowed with curriculum.method="
                f"{self.curriculum.method!r} are 'drop' and 'keep'"
            )
        if self.updates_per_step > self.prompts_per_step:
            raise ValueError(
                f"updates_per_step={self.updates_per_step}: allowed are 1 to "
                f"prompts_per_step={self.prompts_per_step}"
            )

        if not isinstance(self.profile_steps, str) or (self.profile_steps and not self.profiled):
            raise ValueError(
                f"profile_steps={self.profile_steps!r}: allowed are '' and FIRST:END, such as '3:5'"
            )

    @property
    def profiled(self) -> range:
        """The steps of `profile_steps`."""
        found = re.fullmatch(r"(\d+):(\d+)", self.profile_steps)
        return range(int(found[1]), int(found[2])) if found else range(0)

    @property
    def candidates(self) -> int:
        """Groups that a step always samples for each of `prompts_per_step`."""
        curriculum = self.curriculum
        return curriculum.candidates if curriculum.method == "learnability" else 1

    @property
    def most_draws(self) -> int:
        """The most times that a step samples `prompts_per_step` groups."""
        return self.candidates + self.max_resamples * (self.degenerate_groups == "resample")

    def num_steps(self, num_prompts: int) -> int:
        """Steps that `epochs` passes over `num_prompts` prompts take.

        The passes follow each other in one stream that is cut into steps of `prompts_per_step`; a
        last step that is not full goes on with the beginning of the next pass.
        """
        # The small number keeps 1.1 * 100 / 10, which is 11.000000000000002, at 11.
        prompts = self.prompts_per_step * self.candidates
        return math.ceil(self.epochs * num_prompts / prompts - 1e-9)

    def sequence_shapes(self, longest_prompt: int, shards: int) -> list[packing.Shape]:
        """Sequences and tokens of micro-batches: at most four shapes, each compiled once.

        The same for all steps whose longest prompts have equally many tokens, rounded up: otherwise
        a run would compile again with nearly every new longest prompt.

        Args:
          longest_prompt: tokens of the longest prompt of a step.
          shards: over which sequences are split.
        """
        per_doubling = 4 if longest_prompt <= _TILE else 2  # Short ones compile in little time.
        longest_prompt = tokens.geometric_bucket(longest_prompt, 1, per_doubling)
        prompts = min(
            _PROMPTS_PER_SEQUENCE * longest_prompt,
            longest_prompt + self.group_size * self.max_new_tokens,
        )
        length = max(longest_prompt + self.max_new_tokens, prompts)
        length = tokens.geometric_bucket(length, _TILE, _LENGTHS)
        completions = self.prompts_per_step * self.group_size // self.updates_per_step
        return packing.shapes(self.micro_batch_size, shards, length, completions)
