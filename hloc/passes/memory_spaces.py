"""Which arrays are in the host's memory, S(5): written on the shapes of those that are, and on no others.

    w = f32[8]{0:S(5)} parameter(0)                       stays, in the entry
    h = f32[8]{0:S(5)} copy(x)                            stays: a copy says where its result is
    r = f32[2,4] reshape(h)                               becomes f32[2,4]{1,0:S(5)}: its memory is h's
    u = f32[8] dynamic-update-slice(h, y, i)              too: it is made in the memory of h
    a = f32[8]{0:S(5)} add(h, h)                          becomes f32[8]{0}: kernels write to the device

Through tuples, calls, loops and their bodies; what a branch gives is on the device.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from hloc.analysis.aliasing import element_leaves, leaf_count
from hloc.ir import Computation, Instruction, Module, Shape, leaves

Flags = tuple[bool, ...]                # of each leaf: whether it is on the host
SAME_MEMORY = frozenset(["bitcast", "reshape", "opt-barrier", "domain", "add-dependency", "dynamic-update-slice",
                         "scatter"])


def mentions_host(shapes: Iterable[Shape]) -> bool:
    """Whether any leaf of any shape is in S(5)."""
    return any(leaf.on_host for shape in shapes for leaf in leaves(shape))


def host_flags(module: Module) -> dict[Instruction, Flags]:
    """For each instruction that runs with an array in the host's memory, its flags."""
    walk = _Walk()
    walk.computation(module.entry, [_flags(p.shape) for p in module.entry.parameters])
    return {i: flags for i, flags in walk.flags.items() if any(flags)}


def with_flags(shape: Shape, flags: Sequence[bool]) -> Shape:
    """The shape with its leaves in those memories."""
    rest = iter(flags)

    def placed(part: Shape) -> Shape:
        if part.is_aggregate:
            return Shape(part.element_type, (), tuple(placed(s) for s in part.tuple_shapes))
        return part.in_space(next(rest)) if part.is_array else part
    return placed(shape)


def _flags(shape: Shape) -> Flags:
    return tuple(leaf.on_host for leaf in leaves(shape))


class _Walk:
    """One pass over everything that runs; a computation that is called twice is on the host where it once is."""

    def __init__(self) -> None:
        self.flags: dict[Instruction, Flags] = {}

    def computation(self, computation: Computation, arguments: Sequence[Flags]) -> Flags:
        for instruction in computation.instructions:
            if instruction.opcode == "parameter":
                flags = arguments[instruction.number]
            else:
                flags = self.instruction(instruction, [self.flags[o] for o in instruction.operands])
            known = self.flags.get(instruction)
            self.flags[instruction] = flags if known is None else tuple(a or b for a, b in zip(known, flags))
        return self.flags[computation.root]

    def instruction(self, instruction: Instruction, operands: Sequence[Flags]) -> Flags:
        opcode = instruction.opcode
        if opcode == "copy":
            return _flags(instruction.shape)
        if opcode == "tuple":
            return tuple(flag for flags in operands for flag in flags)
        if opcode == "get-tuple-element":
            first, count = element_leaves(instruction)
            return operands[0][first:first + count]
        if opcode == "while":
            self.computation(instruction.get("condition"), operands)
            self.computation(instruction.get("body"), operands)
            return operands[0]
        if opcode == "call":
            return self.computation(instruction.get("to_apply"), operands)
        if opcode == "conditional":
            for branch, given in zip(instruction.called_computations, operands[1:]):
                self.computation(branch, [given])
        elif opcode in SAME_MEMORY and instruction.shape.is_aggregate == instruction.operands[0].shape.is_aggregate \
                and len(operands[0]) == leaf_count(instruction.shape):
            return operands[0]
        return (False,) * leaf_count(instruction.shape)
