"""A parser of compiled programs in HLO's text form: what one device computes, moves and sends.

It reads what `learner.plan` needs of that form (openxla.org/xla/operation_semantics):
computations, instructions with shapes and attributes, trip counts of loops, and the compiler's
estimates of cycles.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

#: Operations between devices.
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_BITS = {"pred": 8, "token": 0, "opaque": 0}
# `bf16[8,128]{1,0:T(8,128)(2,1)S(1)}`: dtype, dimensions, and the memory if it is not the main one.
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](\{[^}]*\})?")


@dataclasses.dataclass(frozen=True)
class Shape:
    """An array.

    Attributes:
        dtype: in HLO's spelling: "f32", "bf16", "s32", "pred".
        dims: its dimensions.
        on_chip: whether it is in on-chip memory, not in the device's main memory.
    """

    dtype: str
    dims: tuple[int, ...]
    on_chip: bool = False

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        bits = _BITS.get(self.dtype)
        if bits is None:
            digits = re.match(r"[a-z]+(\d+)", self.dtype)
            bits = int(digits[1]) if digits else 8
        return math.prod(self.dims) * bits // 8

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
        number: the place of a parameter or the value of an integer constant; None otherwise.
        attributes: the text after the operands.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    number: int | None
    attributes: str

    @property
    def source(self) -> str:
        """Where it comes from, as JAX names it: functions and modules, separated by slashes."""
        found = re.search(r'op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate; None if it gives none."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(found[1]) if found else None

    @property
    def called(self) -> tuple[str, ...]:
        """Names of the computations that it runs."""
        keys = "condition|body|calls|to_apply|true_computation|false_computation"
        names = re.findall(rf"\b(?:{keys})=%?([\w.\-]+)", self.attributes)
        branches = re.search(r"branch_computations={([^}]*)}", self.attributes)
        return (*names, *re.findall(r"%?([\w.\-]+)", branches[1] if branches else ""))


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions by name, in order; `root` names the result."""

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
class Module:
    """A whole program of one device.

    Attributes:
        computations: by name.
        entry: the name of the one that runs.
    """

    computations: Mapping[str, Computation]
    entry: str

    @classmethod
    def parse(cls, text: str) -> "Module":
        """Read the text form of a module, `jax.stages.Compiled.as_text`.

        Raises:
            ValueError: there is no entry computation in it.
        """
        computations: dict[str, Computation] = {}
        instructions: dict[str, Instruction] = {}
        name, entry, root = "", "", ""
        # The configuration of a kernel may span several lines.
        for line in re.sub(r'\n(?="|}})', " ", text).splitlines():
            header = re.match(r"(ENTRY )?%?([\w.\-]+)\s.*{$", line)
            if header and " = " not in line.partition("->")[0]:
                name, instructions, root = header[2], {}, ""
                entry = name if header[1] else entry
            elif line == "}" and name:
                computations[name] = Computation(name, instructions, root)
                name = ""
            elif name and (parsed := _instruction(line)):
                instructions[parsed.name] = parsed
                if line.lstrip().startswith("ROOT "):
                    root = parsed.name
        if not entry:
            raise ValueError("the text has no ENTRY computation; it must be a module of HLO")
        return cls(computations, entry)

    def visits(self, unknown_iterations: int = 1) -> Iterator[tuple[Computation, Instruction, int]]:
        """All instructions that run, loops and branches included, and how often each runs.

        Fused computations run as one instruction.

        Args:
            unknown_iterations: of loops without a known trip count.
        """
        inner = ("while", "call", "conditional", "async-start")
        pending = [(self.entry, 1)]
        while pending:
            name, times = pending.pop()
            computation = self.computations[name]
            for instruction in computation.instructions.values():
                yield computation, instruction, times
                if instruction.opcode in inner:
                    often = times
                    if instruction.opcode == "while":
                        often *= self.iterations(instruction) or unknown_iterations
                    pending += [(called, often) for called in instruction.called]

    def iterations(self, loop: Instruction) -> int | None:
        """Trip count of a loop that counts up from 0, as `jax.lax.scan` does; else None."""
        if known := re.search(r'"known_trip_count":{"n":"(\d+)"}', loop.attributes):
            return int(known[1])
        condition = self.computations[loop.called[0]]
        root = condition.instructions[condition.root]
        if root.opcode != "compare" or "direction=LT" not in root.attributes:
            return None
        return condition.instructions[root.operands[1]].number


def _instruction(line: str) -> Instruction | None:
    """`name = shape opcode(operands), attributes`; None if the line is something else."""
    head = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = ", line)
    if head is None:
        return None
    rest = line[head.end() :]
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    call = re.match(r"\s*([\w\-]+)\(", rest[end:])
    if call is None:
        return None
    inside = rest[end + call.end() - 1 :]
    close = _closing(inside)
    literal = inside[1 : close - 1]
    leaf = call[1] in ("constant", "parameter")
    number = int(literal) if leaf and literal.isdecimal() else None
    return Instruction(
        name=head[1],
        opcode=call[1],
        shapes=tuple(
            Shape(
                dtype,
                tuple(int(n) for n in dims.replace("<=", "").split(",") if n),
                "S(" in layout,
            )
            for dtype, dims, layout in _ARRAY.findall(rest[:end])
        ),
        operands=() if leaf else tuple(re.findall(r"%([\w.\-]+)", literal)),
        number=number,
        attributes=inside[close:],
    )


def _closing(text: str) -> int:
    """The index after the parenthesis that closes the first one of a text."""
    depth = 0
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)
