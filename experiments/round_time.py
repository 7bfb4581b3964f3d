"""How long a round takes on a given machine, and where the time goes: a simulation.

What happens is followed step by step: answers of random lengths go through the slots of every host
as `learner.sampling.slots` runs them, the batch waits for the slowest host, rows are sorted and
padded to micro-batches as the trainer does it, validation and design follow. How long each of these
things takes is `learner.roofline`'s: peaks of data sheets at assumed shares. Nothing here was
measured on an accelerator; what was measured, on CPUs, says so in `HostCosts` and in
`AnswerLengths.of_run`.
"""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments.settings import Settings
from learner.roofline import Deployment
from learner.sampling.slots import slot_counts
from learner.tokens import geometric_bucket

# As in `learner.sampling.slots` and `learner.sampling.sampler`; a test follows a real engine.
_SEGMENT_STEPS = 32
_REFILL_SHARE = 1 / 8
_PROMPT_MULTIPLE = 32
# Tokens of a row shard that are prefilled at a time.
_PREFILL_TOKENS = 1 << 14


@dataclasses.dataclass(frozen=True)
class AnswerLengths:
    """A distribution of answer lengths, cut off at a budget.

    Attributes:
        mean: tokens, before the cut.
        shape: lengths relative to their mean that are drawn from with equal chances; None for
            a lognormal distribution.
        sigma: of the logarithm, for the lognormal one.
    """

    mean: float
    shape: tuple[float, ...] | None = None
    sigma: float = 0.6

    def __post_init__(self) -> None:
        if not self.mean >= 1 or not self.sigma >= 0:
            raise ValueError(
                f"mean={self.mean}, sigma={self.sigma}: allowed are a mean from 1 and a sigma "
                "from 0 up"
            )

    @classmethod
    def of_run(cls, directory: str | Path, mean: float) -> "AnswerLengths":
        """The spread of the answers to the validation set of a run, around another mean.

        Args:
            directory: a run's folder, with `rounds/*/answers.jsonl`.
            mean: tokens.

        Raises:
            ValueError: there are no answers.
        """
        paths = sorted(Path(directory).glob("rounds/*/answers.jsonl"))
        lengths = [json.loads(line)["tokens"] for path in paths for line in path.open()]
        if not lengths:
            raise ValueError(f"lengths of {str(directory)!r}: it has no rounds/*/answers.jsonl")
        average = sum(lengths) / len(lengths)
        return cls(mean, tuple(length / average for length in lengths))

    def draw(self, rng: np.random.Generator, count: int, longest: int) -> np.ndarray:
        """i64[count], from 1 to `longest`."""
        if self.shape is None:
            log_mean = math.log(self.mean) - self.sigma**2 / 2
            lengths = rng.lognormal(log_mean, self.sigma, count)
        else:
            lengths = self.mean * rng.choice(np.array(self.shape), count)
        return np.clip(np.rint(lengths), 1, longest).astype(np.int64)


@dataclasses.dataclass(frozen=True)
class HostCosts:
    """What hosts do, in seconds, and how fast they store.

    Attributes:
        score: of one answer: parsing, the eight checks and the reward. Measured on two CPU cores
            in a run of the tiny model, whose answers are shorter.
        lane: of one running lane at the end of a segment, in the sampler's loop. Assumed.
        instances: instances of a training set made in a second. Assumed.
        storage: bytes a second that one host writes to its storage. Assumed.
    """

    score: float = 45e-6
    lane: float = 5e-6
    instances: float = 200.0
    storage: float = 1e9


@dataclasses.dataclass(frozen=True)
class Segment:
    """One segment of decoding: `steps` tokens with `running` answers at its beginning, and room
    for `room` tokens of each."""

    steps: int
    running: int
    room: int


def segments(
    lengths: np.ndarray, slots: int, lanes: int, longest: int, steps: int = _SEGMENT_STEPS
) -> Iterator[Segment]:
    """The segments in which answers go through slots, as `sampling.sampler.Sampler` runs them.

    Args:
        lengths: i64[N, G], tokens of G answers to each of N prompts, in the order of the prompts.
        slots: prompts at a time.
        lanes: answers to each at a time.
        longest: the budget of an answer.
        steps: tokens of a segment.
    """
    num_prompts, samples = lengths.shape
    steps = min(steps, longest)
    waiting = 0  # the next prompt
    begun = np.full(slots, samples)
    owner = np.zeros(slots, np.int64)
    total = np.zeros((slots, lanes), np.int64)  # of the answer in each lane
    done = np.zeros((slots, lanes), np.int64)
    running = np.zeros((slots, lanes), bool)
    room = 0
    while True:
        free = np.flatnonzero((begun == samples) & ~running.any(axis=1))
        fresh = free[: num_prompts - waiting]
        owner[fresh] = waiting + np.arange(len(fresh))
        begun[fresh] = 0
        waiting += len(fresh)
        # The next samples of a prompt go to its free lanes, from the left.
        idle = ~running
        number = begun[:, None] + np.cumsum(idle, axis=1) - 1
        start = idle & (number < samples)
        total[start] = lengths[np.broadcast_to(owner[:, None], start.shape)[start], number[start]]
        done[start] = 0
        begun += start.sum(axis=1)
        running |= start
        count = int(running.sum())
        if not count:
            return
        needed = int(np.minimum(done + steps, longest)[running].max())
        wanted = min(geometric_bucket(needed, 32, 2), longest)
        if wanted > room or wanted <= room // 2:
            room = wanted
        more = waiting < num_prompts or bool((begun < samples).any())
        floor = max(0, count - max(1, int(_REFILL_SHARE * running.size))) if more else 0
        left = np.sort((total - done)[running])
        taken = int(min(steps, left[count - floor - 1]))
        yield Segment(taken, count, room)
        done[running] = np.minimum(done + taken, total)[running]
        running &= done < total


@dataclasses.dataclass
class Phases:
    """Seconds of a round, by what the chips do, and what else is worth knowing of it.

    Attributes:
        generation: making the instances; chips wait.
        exchange: gathering the weights for decoding.
        prefill: prompts.
        decoding: the tokens of answers, as far as the mean host needs.
        stragglers: waiting for the slowest host.
        host: between segments, and scoring.
        update: gradients and optimizer.
        validation: sampling the answers to the validation set.
        design: sampling the design.
        checkpoints: as far as training waits for them.
        lanes: mean share of the lanes that hold a running answer, over decoding steps.
        tokens: tokens sampled in training.
        products: seconds that the products of all this take at the chips' peak.
    """

    generation: float = 0.0
    exchange: float = 0.0
    prefill: float = 0.0
    decoding: float = 0.0
    stragglers: float = 0.0
    host: float = 0.0
    update: float = 0.0
    validation: float = 0.0
    design: float = 0.0
    checkpoints: float = 0.0
    lanes: float = 0.0
    tokens: float = 0.0
    products: float = 0.0

    @property
    def seconds(self) -> float:
        """The whole round."""
        return sum(getattr(self, name) for name in PHASES)


#: The fields of `Phases` that add up to a round.
PHASES = (
    "generation",
    "exchange",
    "prefill",
    "decoding",
    "stragglers",
    "host",
    "update",
    "validation",
    "design",
    "checkpoints",
)


@dataclasses.dataclass(frozen=True)
class Workload:
    """What a round consists of, beside the settings.

    Attributes:
        settings: of the run; the model's path is not looked at.
        lengths: of answers.
        prompt_tokens: of every prompt; that of a lake of 10 x 10 has some 1,330 characters.
        context_tokens: of the engineer's context.
        nondegenerate_fraction: share of the groups whose rewards differ, which alone are trained
        on. Three
            runs of the tiny model had 0.60, 0.66 and 0.71 on average.
        steps: training steps that are simulated; the others count as their mean. 0 is all.
        hosts: costs of the hosts.
    """

    settings: Settings
    lengths: AnswerLengths
    prompt_tokens: int = 512
    context_tokens: int = 4096
    nondegenerate_fraction: float = 0.65
    steps: int = 8
    hosts: HostCosts = dataclasses.field(default_factory=HostCosts)

    def __post_init__(self) -> None:
        if not 0 < self.nondegenerate_fraction <= 1:
            raise ValueError(
                f"nondegenerate_fraction={self.nondegenerate_fraction}: allowed are numbers in "
                "(0, 1]; no group can be drawn without one"
            )


def round_phases(workload: Workload, machine: Deployment, seed: int = 0) -> Phases:
    """Simulate one round.

    Args:
        workload: what is done.
        machine: on what; its mesh is that of the run, whatever the settings say.
        seed: of the random lengths.

    Raises:
        ValueError: the settings do not go with the mesh.
    """
    settings, training = workload.settings, workload.settings.training
    if training.micro_batch_rows % machine.row_shards:
        raise ValueError(
            f"micro_batch_rows={training.micro_batch_rows}: allowed are multiples of "
            f"data * fsdp = {machine.row_shards}"
        )
    rng = np.random.default_rng(seed)
    phases = Phases()
    num_steps = training.num_steps(settings.environment.num_instances)
    simulated = min(workload.steps or num_steps, num_steps)
    scale = num_steps / simulated
    count = training.prompts_per_step * training.group_size
    busy = slotted = 0.0
    for _ in range(simulated):
        lengths = workload.lengths.draw(rng, count, training.max_new_tokens)
        phases.tokens += scale * lengths.sum()
        sampling = _sample(
            workload, machine, lengths.reshape(-1, training.group_size), training.max_new_tokens
        )
        phases.exchange += scale * sampling.exchange
        phases.prefill += scale * sampling.prefill
        phases.decoding += scale * sampling.decoding
        phases.stragglers += scale * sampling.stragglers
        phases.host += scale * (sampling.host + workload.hosts.score * count / machine.hosts)
        busy, slotted = busy + sampling.busy, slotted + sampling.slotted
        signal = rng.random(training.prompts_per_step) < workload.nondegenerate_fraction
        kept = lengths.reshape(-1, training.group_size)[signal].reshape(-1)
        seconds, flops = _update(workload, machine, kept)
        phases.update += scale * seconds
        phases.products += scale * (flops + sampling.flops) / machine.chip.flops
    phases.lanes = busy / slotted
    phases.generation = settings.environment.num_instances / workload.hosts.instances
    validation = settings.validation
    lengths = workload.lengths.draw(rng, validation.num_instances, validation.max_new_tokens)
    phases.validation = _sample(
        workload, machine, lengths.reshape(-1, 1), validation.max_new_tokens
    ).seconds
    longest = settings.engineer.max_new_tokens
    design = workload.lengths.draw(rng, settings.engineer.proposals, longest)
    phases.design = _sample(
        dataclasses.replace(workload, prompt_tokens=workload.context_tokens),
        machine,
        design.reshape(1, -1),
        longest,
    ).seconds
    # A save is copied and then written behind training, which waits if the next one comes first.
    written = 12 * machine.parameters / (workload.hosts.storage * machine.hosts)
    between = settings.checkpoint.every_steps * (phases.seconds / num_steps)
    saves = num_steps / settings.checkpoint.every_steps
    phases.checkpoints = saves * max(0.0, written - between)
    return phases


@dataclasses.dataclass(frozen=True)
class _Sampling:
    """Seconds of one call of the sampler; busy and slotted count lanes times steps."""

    exchange: float
    prefill: float
    decoding: float
    stragglers: float
    host: float
    busy: float
    slotted: float
    flops: float

    @property
    def seconds(self) -> float:
        return self.exchange + self.prefill + self.decoding + self.stragglers + self.host


def _sample(
    workload: Workload, machine: Deployment, lengths: np.ndarray, longest: int
) -> _Sampling:
    """lengths i64[N, G]: answers to N prompts, which are dealt out to the hosts."""
    num_prompts, samples = lengths.shape
    rows = workload.settings.training.sampling_rows
    groups = min(machine.hosts, machine.row_shards)
    shards = machine.row_shards // groups  # of one host
    per_shard = max(1, rows // machine.row_shards)
    prompt_capacity = geometric_bucket(workload.prompt_tokens - 1, _PROMPT_MULTIPLE, 4)
    at_once = max(1, _PREFILL_TOKENS // prompt_capacity)
    decoding: list[float] = []
    hosts: list[float] = []
    prefill: list[float] = []
    busy = slotted = 0.0
    for group in range(groups):
        mine = lengths[group::groups]
        if not len(mine):
            decoding.append(0.0)
            hosts.append(0.0)
            prefill.append(0.0)
            continue
        slots, lanes = slot_counts(len(mine), samples, shards, per_shard)
        seconds = host = 0.0
        for segment in segments(mine, slots, lanes, longest):
            step = machine.decode_seconds(slots // shards, lanes, prompt_capacity, segment.room)
            seconds += segment.steps * step
            host += workload.hosts.lane * segment.running
            busy += segment.steps * segment.running
            slotted += segment.steps * slots * lanes
        decoding.append(seconds)
        hosts.append(host)
        calls = -(-len(mine) // (shards * at_once))
        size = min(at_once, -(-len(mine) // shards))
        prefill.append(calls * machine.prefill_seconds(size, prompt_capacity))
    per_token = 2 * (machine.layer_parameters + machine.vocabulary_matrix)
    tokens = lengths.sum() + num_prompts * workload.prompt_tokens
    return _Sampling(
        exchange=machine.exchange_seconds(),
        prefill=float(np.mean(prefill)),
        decoding=float(np.mean(decoding)),
        stragglers=float(np.max(decoding) - np.mean(decoding)),
        host=float(np.max(hosts)),
        busy=busy,
        slotted=slotted,
        flops=per_token * float(tokens) / machine.chips,
    )


def _update(workload: Workload, machine: Deployment, lengths: np.ndarray) -> tuple[float, float]:
    """Seconds, and operations of one device, of the updates on answers of these lengths.

    Rows hold one answer each; several in a row only save the prompt's tokens.
    """
    training = workload.settings.training
    rows = training.micro_batch_rows
    seconds = training.updates_per_step * machine.optimizer_seconds()
    flops = 0.0
    lengths = np.sort(lengths)
    for first in range(0, len(lengths), rows):
        longest = int(lengths[first : first + rows].max())
        length, window = training.row_shape(workload.prompt_tokens + longest, longest)
        shape = (rows // machine.row_shards, length, window)
        seconds += machine.micro_batch_seconds(*shape)
        flops += machine.micro_batch_flops(*shape)
    return seconds, flops
