"""Reading a partitioned program: what one device of a mesh computes, keeps and sends.

XLA turns a program over a mesh into that of one device, the same on each, by inserting collectives.
`partitioned` gives that program as it is right after this pass. What comes later depends on the
platform that compiles (a CPU turns bfloat16 products into float32 ones, say); what is in it then
holds for accelerators too, and so does what is not. Later passes fuse, and join collectives; where
a sum over devices is cut into parts right away, as the gradients of split parameters are, those of
accelerators send only the parts (a reduce-scatter), and so it is counted.

The reader knows what it needs of the text form of HLO (openxla.org/xla/operation_semantics):
computations, instructions with shapes and attributes, and how often loops run.
"""

import contextlib
import dataclasses
import functools
import math
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

#: Operations between devices, as they are counted.
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_BYTES = {"pred": 1, "s4": 1, "u4": 1, "token": 0, "opaque": 0}

# The partitioner is early in the pipeline; whatever the backend does afterwards is not looked at.
_PASS = "spmd-partitioning"
_OPTIONS: dict[str, Any] = {
    "xla_dump_hlo_as_text": True,
    "xla_dump_hlo_pass_re": _PASS,
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array: `dtype` in HLO's spelling ("f32", "bf16", "s32", "pred") and its dimensions."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.dims)

    @property
    def nbytes(self) -> int:
        """Bytes."""
        width = _BYTES.get(self.dtype)
        if width is None:
            digits = re.match(r"[a-z]+(\d+)", self.dtype)
            width = max(1, int(digits[1]) // 8) if digits else 1
        return self.size * width

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation.

    Attributes:
        name: unique in its computation.
        opcode: such as "dot" or "all-gather".
        shapes: of the result; several for a tuple, without its nesting.
        operands: names of instructions of the same computation.
        literal: what stands in the parentheses of a constant or a parameter.
        attributes: what stands behind them.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return sum(shape.nbytes for shape in self.shapes)

    @property
    def source(self) -> str:
        """Where it comes from, as JAX names it: functions and modules, separated by strokes."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    def attribute(self, name: str) -> str | None:
        """A computation's name or a list of numbers, "body" or "lhs_contracting_dims" say."""
        found = re.search(rf"\b{name}=(?:%?([\w.\-]+)|{{([^}}]*)}})", self.attributes)
        return None if found is None else found[1] or found[2]


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions by name, in order; the last one to be computed is `root`."""

    name: str
    instructions: Mapping[str, Instruction]
    root: str

    @functools.cached_property
    def users(self) -> Mapping[str, tuple[Instruction, ...]]:
        """Name of an instruction -> those that take it as an operand."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in set(instruction.operands):
                users[operand].append(instruction)
        return {name: tuple(found) for name, found in users.items()}


@dataclasses.dataclass(frozen=True)
class Visit:
    """An instruction as it runs.

    Attributes:
        computation: where it stands.
        instruction: itself.
        loops: iterations of the loops around it, the outermost first.
    """

    computation: Computation
    instruction: Instruction
    loops: tuple[int, ...]

    @property
    def times(self) -> int:
        """How often it runs."""
        return math.prod(self.loops)

    @property
    def operands(self) -> list[Instruction]:
        """The instructions whose results it takes."""
        return [self.computation.instructions[name] for name in self.instruction.operands]


@dataclasses.dataclass(frozen=True)
class Module:
    """A whole program of one device.

    Attributes:
        computations: by name.
        entry: the name of the one that runs.
        devices: number of devices that run it.
    """

    computations: Mapping[str, Computation]
    entry: str
    devices: int

    @classmethod
    def parse(cls, text: str, devices: int) -> "Module":
        """Read the text form of a module.

        Raises:
            ValueError: there is no entry computation in it.
        """
        computations: dict[str, Computation] = {}
        entry = None
        name, instructions, root = "", {}, ""  # type: ignore[var-annotated]
        for line in text.splitlines():
            header = re.match(r"(ENTRY )?%?([\w.\-]+)\s.*{$", line)
            if header and " = " not in line.partition("->")[0]:
                name, instructions, root = header[2], {}, ""
                entry = name if header[1] else entry
            elif line.startswith("}") and name:
                computations[name] = Computation(name, instructions, root)
                name = ""
            elif name and (parsed := _instruction(line)):
                instructions[parsed.name] = parsed
                if line.lstrip().startswith("ROOT "):
                    root = parsed.name
        if entry is None:
            raise ValueError("the text has no ENTRY computation; it must be a module of HLO")
        return cls(computations, entry, devices)

    def visits(self) -> Iterator[Visit]:
        """All instructions that run, those in loops, calls and branches too.

        Every branch of a condition counts as if it were taken.

        Raises:
            ValueError: how often a loop runs does not follow from its text.
        """
        yield from self._visits(self.entry, ())

    def _visits(self, name: str, loops: tuple[int, ...]) -> Iterator[Visit]:
        computation = self.computations[name]
        for instruction in computation.instructions.values():
            yield Visit(computation, instruction, loops)
            if instruction.opcode == "while":
                inside = (*loops, self.iterations(instruction))
                yield from self._visits(instruction.attribute("body") or "", inside)
            elif instruction.opcode in ("call", "fusion", "conditional", "async-start"):
                for called in self._called(instruction):
                    yield from self._visits(called, loops)

    def _called(self, instruction: Instruction) -> list[str]:
        names = [
            instruction.attribute(key)
            for key in ("to_apply", "calls", "true_computation", "false_computation")
        ]
        branches = instruction.attribute("branch_computations") or ""
        names += [part.strip().lstrip("%") for part in branches.split(",") if part.strip()]
        return [name for name in names if name is not None]

    def iterations(self, loop: Instruction) -> int:
        """How often a while loop runs that counts up from 0, as JAX's scans and maps do.

        Raises:
            ValueError: it is no such loop.
        """
        known = re.search(r'"known_trip_count":{"n":"(\d+)"}', loop.attributes)
        if known:
            return int(known[1])
        condition = self.computations[loop.attribute("condition") or ""]
        root = condition.instructions[condition.root]
        if root.opcode == "compare" and "direction=LT" in root.attributes:
            bound = condition.instructions[root.operands[1]]
            while bound.opcode == "copy":  # As inside of a shard_map.
                bound = condition.instructions[bound.operands[0]]
            if bound.opcode == "constant" and bound.literal.isdecimal():
                return int(bound.literal)
        raise ValueError(
            f"loop {loop.name} of {loop.source!r} ends when {root.opcode} says so; only loops with "
            "a fixed number of iterations can be counted"
        )

    def group_size(self, collective: Instruction) -> int:
        """Devices that exchange something with each other in one group."""
        groups = collective.attributes.partition("replica_groups=")[2]
        if groups.startswith("mesh["):
            sizes = dict(re.findall(r"'([\w.]+)'=(\d+)", groups.partition("]")[0]))
            axes = re.search(r"\s?{([^}]*)}", groups.partition("]")[2])
            named = re.findall(r"'([\w.]+)'(?::\(\d+\)(\d+))?", axes[1] if axes else "")
            return math.prod(int(part or sizes[axis]) for axis, part in named)
        if iota := re.match(r"\[(\d+),(\d+)\]<=", groups):
            return int(iota[2])
        if first := re.match(r"{{([\d,]+)}", groups):
            return first[1].count(",") + 1
        return self.devices


def _instruction(line: str) -> Instruction | None:
    """`name = shape opcode(operands), attributes`; None if the line is something else."""
    head = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = ", line)
    if head is None:
        return None
    rest = line[head.end() :]
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    shapes = tuple(
        Shape(dtype, tuple(int(n) for n in dims.replace("<=", "").split(",") if n))
        for dtype, dims in re.findall(r"([a-z]\w*)\[([\d,<=]*)\]", rest[:end])
    )
    call = re.match(r"\s*([\w\-]+)\(", rest[end:])
    if call is None:
        return None
    inside = rest[end + call.end() - 1 :]
    close = _closing(inside)
    literal = inside[1 : close - 1]
    leaf = call[1] in ("constant", "parameter")
    return Instruction(
        name=head[1],
        opcode=call[1],
        shapes=shapes,
        operands=() if leaf else tuple(re.findall(r"%([\w.\-]+)", literal)),
        literal=literal if leaf else "",
        attributes=inside[close:],
    )


def _closing(text: str) -> int:
    """The index behind the parenthesis that closes the first one of a text."""
    depth = 0
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)


# Getting the text ---------------------------------------------------------------


def partitioned(lowered: jax.stages.Lowered, devices: int) -> Module:
    """The program of one device, from the compiler of JAX's platform; nothing runs.

    Args:
        lowered: of `jax.jit(...).lower(...)`, for as many devices.

    Raises:
        ValueError: the compiler did not hand its program out.
    """
    with tempfile.TemporaryDirectory() as folder, _uncached():
        lowered.compile({**_OPTIONS, "xla_dump_to": folder})
        # On one device there is nothing to partition.
        pattern = f"*after_{_PASS}*.txt" if devices > 1 else "*before_optimizations.txt"
        found = sorted(Path(folder).glob(pattern))
        if not found:
            raise ValueError(f"XLA wrote no {pattern}; its compiler has no such pass here")
        return Module.parse(found[-1].read_text(encoding="utf-8"), devices)


@contextlib.contextmanager
def _uncached() -> Iterator[None]:
    """Programs from JAX's persistent cache would not pass through the compiler."""
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()
