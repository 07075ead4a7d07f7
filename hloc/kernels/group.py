"""The source of a kernel: a fusion or a single instruction, with the same interface; and the kernel's buffers.

In: an instruction of the schedule. Out: a Group (roots, parameters, use counts), and Outlines: kernels under
construction that know how parameters are read, where results go, and which arguments the finished kernel takes.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES, Instruction, Shape, leaves
from hloc.kernels import indexing, scalars
from hloc.kernels.builder import Builder
from hloc.kernels.conversion_elimination import without_conversions
from hloc.kernels.elements import Elements, Indices, Rule, Source, use_counts
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Buffer, Cost, Expr, Kernel, Load, Stmt, Tile
from hloc.kernels.rules.control import CONTROL_RULES
from hloc.kernels.rules.elementwise import ELEMENTWISE_RULES, MOVEMENT_RULES
from hloc.kernels.rules.indexing import INDEXING_RULES
from hloc.kernels.rules.loops import LOOP_RULES
from hloc.source_lines import op_name

RULES: dict[str, Rule] = {**ELEMENTWISE_RULES, **MOVEMENT_RULES, **INDEXING_RULES, **LOOP_RULES, **CONTROL_RULES}
LONGEST_ORIGIN, LONGEST_NAME = 24, 80
CHEAP = frozenset(["parameter", "constant", "broadcast", "reshape", "bitcast", "transpose", "convert", "tuple", "copy",
                   "get-tuple-element", "iota", "slice", "select", "compare"])


class Arg(NamedTuple):
    """The location of a kernel's buffer: kind operand (its number; it is one array), result (leaf) or scratch (number);
    part: (first byte, bytes) if it is only a part of that."""

    kind: str
    index: int                          # type: ignore[assignment]     # hides tuple.index, which nothing calls
    part: tuple[int, int] | None = None


Known = tuple[Arg, str, int, str]          # of a buffer: location, element type, elements, access


class KernelCall(NamedTuple):
    kernel: Kernel | Tile
    arguments: tuple[Arg, ...]

    @property
    def loops(self) -> Kernel:
        """The kernel of a call that is not of a library kernel."""
        assert isinstance(self.kernel, Kernel)
        return self.kernel


class Lowered(NamedTuple):
    """The kernels of one instruction, in order.

    scratch     bytes of each temporary
    in_place    (result leaf, operand): the result starts as that operand's value
    can_share   the same form: the result may take the operand's memory if that value dies here
    """

    calls: tuple[KernelCall, ...]
    scratch: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    can_share: tuple[tuple[int, int], ...] = ()


@dataclass
class Group:
    """The inside of a fusion, or one instruction alone: roots are its results, leaf by leaf. stored: roots that other
    members read from the result's memory, where a kernel before has stored them, or the same kernel does: leaves."""

    instruction: Instruction
    roots: list[Instruction]
    parameters: dict[Instruction, int]
    members: list[Instruction]
    uses: dict[Instruction, int]
    stored: dict[Instruction, int] = field(default_factory=dict)

    @staticmethod
    def of(instruction: Instruction) -> Group:
        if instruction.opcode != "fusion":
            numbers: dict[Instruction, int] = {}
            for n, operand in enumerate(instruction.operands):
                numbers.setdefault(operand, n)
            return Group(instruction, [instruction], numbers, [instruction], {})
        computation = instruction.get("calls")
        root = computation.root
        roots = list(root.operands) if root.opcode == "tuple" else [root]
        parameters = {p: p.parameter_number for p in computation.parameters}
        members = [i for i in computation.instructions if i not in parameters and (i is not root or i in roots)]
        return Group(instruction, roots, parameters, members, use_counts(computation))

    def is_scalar_constant(self, parameter: Instruction) -> bool:
        """The parameter is a scalar literal, written into the kernel."""
        operand = self.operand(parameter)
        return operand.opcode == "constant" and operand.shape.is_array and operand.shape.num_elements == 1 \
            and operand.literal is not None

    def operand(self, parameter: Instruction) -> Instruction:
        return self.instruction.operands[self.parameters[parameter]]

    @cached_property
    def reads(self) -> dict[str, Known]:
        """The buffers of all parameters that are in memory, by the names that kernels give them."""
        return {f"in{n}": (Arg("operand", n), p.shape.element_type, p.shape.num_elements, "read")
                for p, n in self.parameters.items() if p.shape.is_array and not self.is_scalar_constant(p)}

    @cached_property
    def kernel_name(self) -> str:
        """A C identifier from opcodes: add, fusion_exponential_multiply, reduce_maximum ..."""
        if self.instruction.opcode != "fusion":
            words = [self.instruction.opcode]
            reducer = self.instruction.get("to_apply")
            if reducer is not None and reducer.root is not None:
                words.append(reducer.root.opcode)
        else:
            words = ["fusion"] + list(dict.fromkeys(m.opcode for m in self.members if m.opcode not in CHEAP))[-3:]
        return re.sub(r"[^a-z0-9]+", "_", "_".join(words).lower())

    @cached_property
    def origin(self) -> tuple[str, ...]:
        """The HLO that the group computes, one line an instruction; long fusions are cut."""
        inside = self.members if self.instruction.opcode == "fusion" else ()
        shown = [origin_line(i) for i in (self.instruction, *inside[:LONGEST_ORIGIN])]
        more = len(inside) + 1 - LONGEST_ORIGIN
        return tuple(shown) if more <= 0 else (*shown[:LONGEST_ORIGIN], f"... {more} more")

    @property
    def result_shapes(self) -> list[Shape]:
        return list(leaves(self.instruction.shape))


class Outline:
    """One kernel under construction: builder, elements, and its buffers so far."""

    def __init__(self, group: Group, builder: Builder | None = None):
        self.group = group
        self.builder = builder or Builder()
        self.known: dict[str, Known] = {}                     # besides those that the group reads
        self.written: list[str] = []
        self.staged: dict[tuple[str, Index], Load] = {}
        self.elements = Elements(self.builder, {}, group.uses, RULES, parameter=self._parameter)

    def _parameter(self, parameter: Instruction) -> Source | None:
        """How a parameter, or a stored result, is read: a literal, or a load that widens narrow types. None for other
        instructions."""
        group = self.group
        if parameter in group.stored:
            return self._memory(self.result_read(group.stored[parameter]), parameter.shape)
        if parameter not in group.parameters:
            return None
        if group.is_scalar_constant(parameter):
            value = scalars.literal(group.operand(parameter).literal, parameter.shape.element_type)
            return lambda index: value
        return self._memory(f"in{group.parameters[parameter]}", parameter.shape)

    def _memory(self, name: str, shape: Shape) -> Source:
        """How an array in a buffer is read."""
        def read(index: Indices) -> Expr:
            position = indexing.linearize(index, shape.dimensions)
            staged = self.staged.get((name, position))
            return scalars.widen(staged or self.builder.load(name, shape.element_type, position))
        return read

    def operand_buffer(self, number: int, shape: Shape) -> str:
        return self._known_as(f"in{number}", Arg("operand", number), shape.element_type, shape.num_elements, "read")

    def result_buffer(self, leaf: int, access: str = "write") -> str:
        shape = self.group.result_shapes[leaf]
        return self._known_as(f"out{leaf}", Arg("result", leaf), shape.element_type, shape.num_elements, access)

    def result_read(self, leaf: int) -> str:
        """The buffer of a result that is read, which something before the kernel has stored."""
        return self.result_buffer(leaf, "read")

    def scratch_buffer(self, number: int, type: str, size: int, access: str) -> str:
        return self._known_as(f"scratch{number}", Arg("scratch", number), type, size, access)

    def _known_as(self, name: str, argument: Arg, type: str, size: int, access: str) -> str:
        self.known[name] = argument, type, size, access
        if access != "read" and name not in self.written:
            self.written.append(name)
        return name

    def store(self, leaf: int, position: Index, value: Expr) -> None:
        """Store an element, in computation form, of a result."""
        name = self.result_buffer(leaf)
        self.builder.store(name, position, scalars.narrow(value, self.known[name][1]))

    def store_all(self, position: Index, values: list[Expr]) -> None:
        """Store an element of every result, once all are known: a result may share the memory of an operand."""
        names = [self.result_buffer(leaf) for leaf in range(len(values))]
        stored = [scalars.narrow(value, self.known[name][1]) for name, value in zip(names, values)]
        if len(values) > 1:
            stored = [self.builder.let(value) for value in stored]
        for name, value in zip(names, stored):
            self.builder.store(name, position, value)

    def buffers(self) -> tuple[tuple[Buffer, ...], tuple[Arg, ...]]:
        """The buffers that the body reads, in the order of the operands, then those that it writes."""
        read = self.builder.loaded - set(self.written)
        first = sorted((n for n in read if n in self.group.reads), key=lambda n: self.group.reads[n][0].index)
        names = first + [n for n in self.known if n in read and n not in self.group.reads] + self.written
        buffers = tuple(Buffer(n, *self.described(n)[1:]) for n in names)
        return buffers, tuple(self.described(n)[0] for n in names)

    def described(self, name: str) -> Known:
        """A buffer's argument, element type, elements and access."""
        return self.known.get(name) or self.group.reads[name]

    def finish(self, suffix: str = "", cost: Cost | None = None, body: tuple[Stmt, ...] | None = None,
               steps: str = "") -> KernelCall:
        """The kernel. steps: what readers of it are told about how its loops are cut."""
        buffers, arguments = self.buffers()
        cost = cost or Cost(sum(b.size * ELEMENT_TYPES[b.type].bytes for b in buffers), 0)
        body = self.builder.body() if body is None else body
        if any(scalars.is_narrow(b.type) for b in buffers):
            body = without_conversions(body)
        origin = (*self.group.origin, steps) if steps else self.group.origin
        kernel = Kernel(self.group.kernel_name + suffix, buffers, body, cost, origin,
                        made=tuple(self.builder.made.items()))
        return KernelCall(kernel, arguments)


def buffers_of(outlines: list[Outline]) -> tuple[tuple[Buffer, ...], tuple[Arg, ...]]:
    """The buffers that the parts of one kernel read, then those that they write; each once."""
    found = {b.name: (b, a) for outline in outlines for b, a in zip(*outline.buffers())}
    ordered = sorted(found.values(), key=lambda both: both[0].access != "read")
    return tuple(b for b, _ in ordered), tuple(a for _, a in ordered)


def origin_line(instruction: Instruction) -> str:
    """An instruction as comments of kernels name it."""
    operands = ", ".join(o.name for o in instruction.operands[:8]) + (", ..." if len(instruction.operands) > 8 else "")
    line = f"{instruction.name} = {instruction.shape.to_string(False)} {instruction.opcode}({operands})"[:200]
    return line + written_where(instruction)


def written_where(instruction: Instruction) -> str:
    """The source location in the instruction's metadata, for readers: '   jit(f)/dot, model.py:12 (f)'; '' without
    one."""
    place = next(map(str, instruction.written_at()), "")
    name = op_name(str(instruction.get("metadata", "")))[:LONGEST_NAME]
    told = [text for text in (name, place[-LONGEST_NAME:]) if text]
    return f"   {', '.join(told)}" if told else ""
