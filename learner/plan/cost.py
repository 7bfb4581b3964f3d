"""Cost of a compiled program on one device: bytes that it moves, and on a TPU its time.

The compiler for TPUs estimates the cycles of nearly every instruction. Kernels, and what it gives
no estimate for, gathers above all, count by their schedules (`learner.plan.schedule`). What is
left, mostly exchanges between chips, counts by its bytes. Transfers that overlap other instructions
take no time of their own, but a program is never faster than its bytes pass through memory.

The estimates serve the compiler to compare programs, and are high: a bare copy costs 2.5 times the
time of its bytes or more. So there is a second sum, in which what has an estimate and a schedule
counts by its schedule and its bytes. It leaves out waits, and is too low.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from learner.devices.chips import Chip
from learner.plan import schedule
from learner.plan.hlo import COLLECTIVES, Computation, Instruction, Module

# Opcodes that move nothing themselves. Asynchronous transfers count at their start.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "while", "call",
    "conditional", "opt-barrier", "partition-id", "replica-id", "iota",
}  # fmt: skip
_IN_PLACE = ("dynamic-update-slice", "scatter")
_PARTS = ("dynamic-slice", "gather", "slice")
_RESHAPES = ("bitcast", "reshape", "copy")
_MARKERS = (
    "AllocateBuffer",
    "AssumeGatherIndicesInBound",
    "ConcatBitcast",
    "GatherScatterIndicesBitpacked",
)


class Cost(NamedTuple):
    """The cost of a program on one device.

    Attributes:
        nbytes: bytes read from and written to its memory.
        cycles: the compiler's estimate, without kernels; None where it gives none.
        seconds: predicted, see the module; None where the compiler estimates no cycles, or there is
            a kernel without a schedule.
        least: the same by schedules and bytes alone.
        attention: of `seconds`, those of attention kernels.
    """

    nbytes: float
    cycles: int | None
    seconds: float | None
    least: float | None
    attention: float | None


def cost(
    text: str, chip: Chip, unknown_iterations: int = 1, caches: schedule.Caches | None = None
) -> Cost:
    """The cost of a program.

    Args:
        text: `jax.stages.Compiled.as_text`.
        chip: what it was compiled for.
        unknown_iterations: of loops without a known trip count, such as that of decoding.
        caches: of a decoding step.
    """
    module = Module.parse(text)
    schedules = _schedules(module) if chip.clock else {}
    nbytes, cycles, seconds, excess, attention = 0.0, 0, 0.0, 0.0, 0.0
    for instruction, times in module.visits(unknown_iterations):
        if instruction.opcode in _FREE or instruction.opcode.endswith("-done"):
            continue
        moved = _moved(instruction)
        nbytes += times * moved
        if chip.clock and _is_kernel(instruction):
            found = _of(instruction, schedules)
            if found is None:
                return Cost(nbytes, None, None, None, None)
            dims = [operand.shapes[0].dims for operand in instruction.operands]
            kernel = schedule.call(instruction.name, dims, found, caches)
            least = moved if kernel.nbytes is None else kernel.nbytes
            nbytes += times * (least - moved)
            limits = (kernel.cycles / chip.clock, least / chip.bandwidth, kernel.flops / chip.flops)
            took = times * max(limits)
            seconds += took
            attention += took * kernel.attention
        elif instruction.opcode in COLLECTIVES and instruction.cycles is None:
            seconds += times * sum(shape.nbytes for shape in instruction.shapes) / chip.link
        elif chip.clock and (instruction.cycles or not instruction.opcode.endswith("-start")):
            took, estimate = moved / chip.bandwidth, instruction.cycles
            found = _of(instruction, schedules)
            if found is not None and found.steps is not None:
                took = max(took, found.cycles() / chip.clock)
            elif estimate is not None:
                took = estimate / chip.clock
            if estimate is not None:
                cycles += times * estimate
                excess += times * (estimate / chip.clock - took)
            else:
                seconds += times * took
    if chip.clock is None:
        return Cost(nbytes, None, None, None, None)
    seconds += cycles / chip.clock
    memory = nbytes / chip.bandwidth
    return Cost(nbytes, cycles, max(seconds, memory), max(seconds - excess, memory), attention)


def _is_kernel(instruction: Instruction) -> bool:
    return '"tpu_custom_call"' in instruction.attributes


def _signature(instruction: Instruction) -> tuple[Any, ...]:
    """What instructions have in common that are compiled once, under the name of one of them."""
    operands = tuple(operand.shapes for operand in instruction.operands)
    return instruction.name.partition(".")[0], operands, instruction.shapes


def _schedules(module: Module) -> dict[Any, schedule.Schedule]:
    """The schedules of a program's instructions, by name and by signature."""
    schedules: dict[Any, schedule.Schedule] = {}
    for computation in module.computations:
        for one in computation.instructions:
            if one.opcode not in _FREE and (found := schedule.find(one.name)):
                schedules[one.name] = schedules[_signature(one)] = found
    return schedules


def _of(
    instruction: Instruction, schedules: Mapping[Any, schedule.Schedule]
) -> schedule.Schedule | None:
    """Its own schedule, or that of one alike: the compiler writes one for all that are the same."""
    return schedules.get(instruction.name, schedules.get(_signature(instruction)))


def _moved(instruction: Instruction) -> int:
    """Bytes that an instruction reads from and writes to the device's memory."""
    stated = re.search(r'"bytes_accessed":"?(\d+)', instruction.attributes)
    if instruction.opcode == "custom-call":
        if any(f'"{marker}"' in instruction.attributes for marker in _MARKERS):
            return 0
        if stated:
            return int(stated[1])
    if instruction.opcode == "fusion":
        return _fusion_bytes(instruction)
    if instruction.opcode in _IN_PLACE:
        return 2 * _size(_update(instruction))
    if instruction.opcode in _PARTS:
        return 2 * _size(instruction)
    if instruction.opcode.endswith("-start"):  # Its result holds target, operand and a context.
        shapes = instruction.shapes
        target = shapes[0 if instruction.opcode == "copy-start" or len(shapes) == 1 else 1]
        return target.nbytes * (bool(_size(instruction.operands[0])) + (not target.on_chip))
    # A kernel that changes an operand in place reads it at most whole.
    changed = re.findall(r"{(\d*)}: \(\d+, {", instruction.attributes)
    in_place = sum(instruction.shapes[int(number or 0)].nbytes for number in changed)
    return _size(instruction) + sum(map(_size, instruction.operands)) - in_place


def _fusion_bytes(fusion: Instruction) -> int:
    """`_moved` of a fusion: only the parts of operands and results that it reads and writes."""
    total = 0
    fused = fusion.called[0]
    for number, operand in enumerate(fusion.operands):
        if not _size(operand):
            continue
        users = list(_users(fused, number))
        if users and all(user.opcode in _PARTS for user, _ in users):
            total += min(_size(operand), sum(_nbytes(user) for user, _ in users))
        elif not all(user.opcode in _IN_PLACE and first for user, first in users):
            total += _size(operand)
    outputs = fused.root.operands if fused.root.opcode == "tuple" else (fused.root,)
    for shape, output in zip(fusion.shapes, outputs, strict=False):
        while output.opcode in _RESHAPES:
            (output,) = output.operands
        if output.opcode in _IN_PLACE:
            total += _nbytes(_update(output))
        elif not shape.on_chip:
            total += shape.nbytes
    return total


def _users(fused: Computation, number: int) -> Iterator[tuple[Instruction, bool]]:
    """Users of a parameter, also through mere reshapes; and whether it is their first operand."""
    pending = [x for x in fused.instructions if x.opcode == "parameter" and x.number == number]
    for value in pending:
        for user in value.users:
            if user.opcode in _RESHAPES and user is not fused.root:
                pending.append(user)
            elif user.opcode == "fusion":
                for place, operand in enumerate(user.operands):
                    if operand is value:
                        yield from _users(user.called[0], place)
            else:
                yield user, user.operands[0] is value


def _update(instruction: Instruction) -> Instruction:
    """The operand with the values that are written into another one."""
    place = 1 if instruction.opcode == "dynamic-update-slice" else -1
    return instruction.operands[place]


def _nbytes(instruction: Instruction) -> int:
    return sum(shape.nbytes for shape in instruction.shapes)


def _size(instruction: Instruction) -> int:
    """Bytes of a result in the device's main memory."""
    return sum(shape.nbytes for shape in instruction.shapes if not shape.on_chip)
