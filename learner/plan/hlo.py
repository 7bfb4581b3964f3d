"""A parser of compiled programs in HLO's text form: what one device computes, moves and sends.

It reads what `learner.plan` needs of that form (openxla.org/xla/operation_semantics):
computations, instructions with shapes and attributes, trip counts of loops, and the compiler's
estimates of cycles. The text names nothing before it is there, so that each instruction is linked
to its operands and computations as it is read.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping

#: Operations between devices.
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

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
        if self.dtype in ("token", "opaque"):
            return 0
        bits = re.match(r"[a-z]+(\d+)", self.dtype)
        return math.prod(self.dims) * (int(bits[1]) if bits else 8) // 8


@dataclasses.dataclass(frozen=True, eq=False)
class Instruction:
    """One line of a computation.

    Attributes:
        name: unique in its computation.
        opcode: such as "dot" or "all-gather".
        shapes: of the result; several for a tuple, without its nesting.
        operands: instructions of the same computation.
        users: instructions of it that take the result, each once.
        called: the computations that it runs.
        number: the place of a parameter or the value of an integer constant; None otherwise.
        attributes: the text after the operands.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple["Instruction", ...]
    users: list["Instruction"]
    called: tuple["Computation", ...]
    number: int | None
    attributes: str

    @property
    def cycles(self) -> int | None:
        """The compiler's estimate; None if it gives none."""
        found = re.search(r'"estimated_cycles":"(\d+)"', self.attributes)
        return int(found[1]) if found else None

    @property
    def iterations(self) -> int | None:
        """Trip count of a loop that counts up from 0, as `jax.lax.scan` does; else None."""
        if known := re.search(r'"known_trip_count":{"n":"(\d+)"}', self.attributes):
            return int(known[1])
        condition = self.called[0].root
        if condition.opcode != "compare" or "direction=LT" not in condition.attributes:
            return None
        return condition.operands[1].number


@dataclasses.dataclass(frozen=True)
class Computation:
    """Instructions in order; `root` makes the result."""

    instructions: tuple[Instruction, ...]
    root: Instruction


@dataclasses.dataclass(frozen=True)
class Module:
    """A whole program of one device.

    Attributes:
        computations: all of them.
        entry: the one that runs.
    """

    computations: tuple[Computation, ...]
    entry: Computation

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
                name, instructions = header[2], {}
                entry = name if header[1] else entry
            elif line.startswith("}") and name:  # It may end with the thread that runs it.
                computations[name] = Computation(tuple(instructions.values()), instructions[root])
                name = ""
            elif name and (parsed := _instruction(line, instructions, computations)):
                instructions[parsed.name] = parsed
                if line.lstrip().startswith("ROOT "):
                    root = parsed.name
        if not entry:
            raise ValueError("the text has no ENTRY computation; it must be a module of HLO")
        return cls(tuple(computations.values()), computations[entry])

    def visits(self, unknown_iterations: int = 1) -> Iterator[tuple[Instruction, int]]:
        """All instructions that run, loops and branches included, and how often each runs.

        Fused computations run as one instruction.

        Args:
            unknown_iterations: of loops without a known trip count.
        """
        inner = ("while", "call", "conditional", "async-start")
        pending = [(self.entry, 1)]
        while pending:
            computation, times = pending.pop()
            for instruction in computation.instructions:
                yield instruction, times
                if instruction.opcode in inner:
                    often = times
                    if instruction.opcode == "while":
                        often *= instruction.iterations or unknown_iterations
                    pending += [(called, often) for called in instruction.called]


def _instruction(
    line: str, known: Mapping[str, Instruction], computations: Mapping[str, Computation]
) -> Instruction | None:
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
    literal, attributes = inside[1 : close - 1], inside[close:]
    leaf = call[1] in ("constant", "parameter")
    keys = "condition|body|calls|to_apply|true_computation|false_computation"
    called = re.findall(rf"\b(?:{keys})=%?([\w.\-]+)", attributes)
    if branches := re.search(r"branch_computations={([^}]*)}", attributes):
        called += re.findall(r"%?([\w.\-]+)", branches[1])
    found = Instruction(
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
        operands=() if leaf else tuple(known[x] for x in re.findall(r"%([\w.\-]+)", literal)),
        users=[],
        called=tuple(computations[x] for x in called),
        number=int(literal) if leaf and literal.isdecimal() else None,
        attributes=attributes,
    )
    for operand in set(found.operands):
        operand.users.append(found)
    return found


def _closing(text: str) -> int:
    """The index after the parenthesis that closes the first one of a text."""
    depth = 0
    for match in re.finditer(r"[()]", text):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.end()
    return len(text)
