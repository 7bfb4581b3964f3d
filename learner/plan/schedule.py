"""Cycles of kernels and fusions on TPUs, from the schedules that the compiler writes.

A schedule is a list of VLIW bundles, and a bundle takes a cycle. Waits for memory come on top, so a
kernel takes at least its cycles, and at least the time of its bytes.
"""

import functools
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from learner.decoder import flash_tpu
from learner.decoder.decode_tpu import block_tokens
from learner.training.batches import packing

# Bundles after a branch that run whether it is taken or not.
_DELAY = 4
# What names the barrier between the two cores of a chip that share a grid.
_MEGACORE = "BarrierMegacore"
# Iterations that fill and drain the pipeline of a kernel's grid.
_FILL = 2
# Completions of a step, and of those to a prompt, that fill sequences of an update.
_COMPLETIONS, _GROUP = 256, 8


class Schedule(NamedTuple):
    """The bundles of a kernel or fusion.

    Attributes:
        steps: of its grid; None where it depends on data.
        every: bundles that each step runs.
        parts: bundles of the parts of a step that stand under conditions (`pl.when`), in order.
        cores: of the chip that share the grid, along its first parallel dimension; `steps` are
            those of one.
        fill: iterations beside the steps that fill and drain the pipeline.
    """

    steps: int | None
    every: int
    parts: tuple[int, ...]
    cores: int = 1
    fill: int = _FILL

    def cycles(self, steps: int | None = None, runs: Sequence[float] = ()) -> float:
        """Cycles of a call, on one core.

        Args:
            steps: of a core; None where the schedule knows.
            runs: how often each part runs; every part without it does so in each step.
        """
        steps = self.steps if steps is None else steps
        assert steps is not None, "the grid of this kernel depends on data"
        runs = [*runs, *[steps] * (len(self.parts) - len(runs))]
        return (steps + self.fill) * self.every + float(np.dot(runs, self.parts))


def parse(text: str) -> Schedule:
    """Reads the text of a kernel's last schedule, of a file `*-final_bundles.txt`."""
    starts: dict[str, int] = {}
    branches: list[tuple[int, str, str]] = []
    bundle = 0
    for line in text.splitlines():
        if numbered := re.match(r" *(?:0x)?([0-9a-f]+) +(?:[A-Z]{2})? *:", line):
            bundle = int(numbered[1], 16)
        for region in re.findall(r"Start(?:/End empty)? region (\d+)", line):
            starts.setdefault(region, bundle)
        if branch := re.search(r"sbr\.rel (?:\(!?%(\w+)\))? ?target = \$region(\d+)", line):
            branches.append((bundle + 1 + _DELAY, branch[2], branch[1] or ""))
    spans = [(after, starts[to], why) for after, to, why in branches if to in starts]
    loops = [(start, end, why) for end, start, why in spans if start < end]
    if not loops:  # One step.
        return Schedule(1, bundle + 1, (), fill=0)
    cores = 2 if _MEGACORE in text else 1
    start, end, why = max(loops, key=lambda loop: loop[1] - loop[0])
    bound = re.search(rf"%{why} = scmp\.ge\.s32\.totalorder %\w+, (\d+)", text)
    whens = [x[:2] for x in spans if start <= x[0] < x[1] <= end]
    # Conditions of the pipeline hold all of a step; those of the kernel are the innermost ones.
    inner = [
        x
        for x in whens
        if any(x != y and y[0] <= x[0] and x[1] <= y[1] for y in whens)
        and not any(x != y and x[0] <= y[0] and y[1] <= x[1] for y in whens)
    ]
    parts = tuple(last - first for first, last in sorted(inner))
    iterations = int(bound[1]) if bound else None
    fill = _FILL if iterations is None else min(_FILL, iterations - 1)
    steps = None if iterations is None else iterations - fill
    return Schedule(steps, end - start - sum(parts), parts, cores, fill)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="schedules-")


def keep() -> None:
    """Lets the compiler of TPUs write schedules; call it before JAX looks for devices."""
    flags = (
        f"--xla_jf_dump_to={_folder().name} --xla_jf_dump_llo_text=true "
        "--xla_jf_dump_llo_pass_label_regex=final_bundles"
    )
    os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {flags}"


def forget() -> None:
    """Removes the schedules of the programs compiled so far."""
    for path in Path(_folder().name).iterdir():
        path.unlink()
    _paths.cache_clear()


@functools.cache
def _paths() -> dict[str, Path]:
    """The schedules of the program compiled last, by instruction."""
    paths = Path(_folder().name).glob("*-final_bundles.txt")
    named = [(re.fullmatch(r"\d+-(.+)-\d+-\w+\.txt", path.name), path) for path in paths]
    return {name[1]: path for name, path in named if name}


def find(name: str) -> Schedule | None:
    """The schedule of an instruction of the program compiled last; None if there is none."""
    path = _paths().get(name)
    return parse(path.read_text(encoding="utf-8")) if path else None


class Call(NamedTuple):
    """What a call of a kernel costs.

    Attributes:
        cycles: at least.
        nbytes: that it reads and writes; None where it says so itself.
        attention: whether it is attention.
        flops: operations of its products, where they are counted.
    """

    cycles: float
    nbytes: int | None = None
    attention: bool = False
    flops: float = 0.0


class Caches(NamedTuple):
    """How full the caches of a decoding step are, and sequences of an update.

    Attributes:
        prompt: tokens of each prompt.
        completions: gives the tokens of so many completions.
    """

    prompt: int
    completions: Callable[[int], np.ndarray]


def full(prompt: int, most: int) -> Caches:
    """Caches of completions that are all about to end."""
    return Caches(prompt, lambda count: np.full(count, most - 1))


def mixed(prompt: int, most: int) -> Caches:
    """Caches of completions of lognormal lengths, mean and standard deviation 1,000 tokens."""

    def draw(count: int) -> np.ndarray:
        lengths = np.random.default_rng(0).lognormal(np.log(1000.0) - np.log(2) / 2, 0.83255, count)
        return np.minimum(lengths.astype(int), most - 1)

    return Caches(prompt, draw)


def call(
    name: str, operands: Sequence[tuple[int, ...]], schedule: Schedule, caches: Caches | None
) -> Call:
    """What a call of a kernel costs.

    Args:
        name: of the instruction.
        operands: their dimensions.
        schedule: of the kernel.
        caches: of a decoding step.
    """
    if "flash_forward" in name or "flash_backward" in name:
        return _whole_sequences("backward" in name, operands, schedule, caches)
    if name.startswith("append_and_attend") and caches is not None:
        return _decoding(operands, schedule, caches)
    return Call(schedule.cycles())


def _whole_sequences(
    backward: bool,
    operands: Sequence[tuple[int, ...]],
    schedule: Schedule,
    caches: Caches | None,
) -> Call:
    """`learner.decoder.flash_tpu`, whose operands begin with its steps and end with `ends`.

    The two largest parts compute a tile, without and with a mask. Those around them begin and end
    a row of tiles; in the backward pass, those around these begin and end a sequence.
    """
    (B, K, R, queries, h), (_, _, T) = operands[1], operands[-1]
    tile = flash_tpu.tile_size(queries, T)
    tiles, masked = operands[0][0] / B, queries / tile
    if caches is not None:
        tiles, masked = _packed_tiles(caches, T)
    runs, parts = [float(schedule.steps or 0)] * len(schedule.parts), schedule.parts
    first = max(range(len(parts) - 1), key=lambda i: parts[i] + parts[i + 1])
    times = [queries / tile, tiles - masked, masked, queries / tile]
    times = [1.0, *times, 1.0] if backward else times
    for i, count in enumerate(times, first - (2 if backward else 1)):
        runs[i] = B * K * count / schedule.cores
    flops = (5 if backward else 2) * 2 * B * K * R * h * tiles * tile**2
    return Call(schedule.cycles(None, runs), attention=True, flops=flops)


def _packed_tiles(caches: Caches, length: int) -> tuple[float, float]:
    """Tiles of a packed sequence that are computed, and those of them with a mask, on average."""
    completions = caches.completions(_COMPLETIONS) + 1
    prompts, groups = np.full(_COMPLETIONS, caches.prompt), np.arange(_COMPLETIONS) // _GROUP
    packed = packing.pack(prompts, completions, groups, [(1, length)])
    ends = np.tile(np.arange(1, length + 1), (len(packed), 1))
    for of_sequence, (_, (parts,)) in zip(ends, packed, strict=True):
        begin = 0
        for numbers in parts:
            sizes = [caches.prompt + completions[numbers].sum(), *completions[numbers]]
            of_sequence[begin : begin + caches.prompt] = begin + sizes[0]
            begin += caches.prompt
            for size in sizes[1:]:
                of_sequence[begin : begin + size] = begin + size
                begin += size
    return flash_tpu.computed_tiles(ends)


def _decoding(operands: Sequence[tuple[int, ...]], schedule: Schedule, caches: Caches) -> Call:
    """`learner.decoder.decode_tpu.append_and_attend`, whose operands begin with its dynamic grid.

    Its parts begin a group's samples, read a block of a prompt and of a sample, append a token, and
    end. Each half of the groups has as many steps as the fuller one; two cores have a half each.
    """
    lengths, queries, keys, own_keys = (operands[i] for i in (2, 5, 11, 13))
    groups, samples, _ = queries
    token_bytes = 2 * keys[1] * keys[2]  # bfloat16.
    own, shared = (block_tokens(x[3], token_bytes) for x in (own_keys, keys))
    blocks = -(-caches.completions(groups * samples) // own)
    halves = 1 + (groups % 2 == 0)
    of_prompts = lengths[0] // groups * -(-caches.prompt // shared)
    of_half = np.maximum(blocks, 1).reshape(halves, -1).sum(axis=1) + groups // halves * of_prompts
    filled, shared_blocks = int(blocks.sum()), groups * of_prompts
    cores = min(halves, schedule.cores)
    steps, of_core = halves // cores * int(of_half.max()), groups // cores
    most_filled = int(blocks.reshape(cores, -1).sum(axis=1).max())
    runs = (of_core, of_core * of_prompts, most_filled, of_core * samples, of_core)
    nbytes = 2 * token_bytes * (shared_blocks * shared + filled * own)
    return Call(schedule.cycles(steps, runs), nbytes, attention=True)
