"""Operands of tiles: strided views of memory, or packed in order in a scratch buffer.

In: an operand of a dot or a convolution inside its group. Out: an Access, and, unless the operand is a strided view of
a fusion parameter (transposes, reshapes, slices and broadcasts are), the kernel that computes it.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES, Instruction, row_major
from hloc.ir.narrowing import all_known, known
from hloc.kernels import indexing, scalars
from hloc.kernels.builder import Builder
from hloc.kernels.elemental.loop import loop_kernel, shareable
from hloc.kernels.elements import Indices
from hloc.kernels.group import Arg, Group, KernelCall, Lowered, Outline
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Apply, Expr, Load
from hloc.machine import Machine

SIDES = ("lhs", "rhs")


class Access(NamedTuple):
    """The layout of an operand in memory: argument, element type, size of the buffer, offset, stride per dimension.
    argument: None if it is computed while tiles are loaded (prologues.py)."""

    argument: Arg | None
    type: str
    size: int
    offset: int
    strides: tuple[int, ...]


def strided(group: Group, operand: Instruction, type: str) -> Access | None:
    """The operand as a view of a parameter's memory, if it is one of that element type."""
    if operand.shape.element_type != type:
        return None
    outline = Outline(_read_once(group, operand), Builder())
    names = [f"d{n}" for n in range(operand.shape.rank)]
    index = tuple(indexing.variable(name, size) for name, size in zip(names, operand.shape.dimensions))
    value = outline.elements.value(operand, index)
    while isinstance(value, Apply) and value.op == "convert" and scalars.computation_type(type) == value.type:
        value = value.arguments[0]
    if not isinstance(value, Load) or value.type != type or len(outline.builder.accesses) != 1 \
            or outline.builder.block.statements:
        return None
    name, position = outline.builder.accesses[0]
    strides = [indexing.coefficient_of(position, n) for n in names]
    if not all_known(strides) or position.constant < 0:
        return None
    argument, _, size, _ = outline.described(name)
    return Access(argument, type, size, position.constant, tuple(strides))


def _read_once(group: Group, operand: Instruction) -> Group:
    """The group as if only one member read the operand and its source: nothing is kept for others."""
    views = [operand]
    while len(views[-1].operands) == 1 and views[-1] not in group.parameters:
        views.append(views[-1].operands[0])
    return replace(group, uses={**group.uses, **dict.fromkeys(views, 1)})


class OperandKernels:
    """Kernels that pack operands into scratch buffers, in the order of the requests."""

    def __init__(self, group: Group, machine: Machine):
        self.group = group
        self.machine = machine
        self.calls: list[KernelCall] = []
        self.scratch: list[int] = []

    def source(self, hero: Instruction, number: int, type: str) -> Instruction:
        """Operand `number`; without a lossless conversion if the tile reads that type."""
        operand = hero.operands[number]
        inner = behind_conversion(self.group, operand)
        return inner if inner.shape.element_type == type else operand

    def lowered(self, hero: Instruction, call: KernelCall) -> Lowered:
        """These kernels, and the one that computes the hero."""
        return Lowered((*self.calls, call), tuple(self.scratch), can_share=tuple(shareable(self.group, (hero,))))

    def access(self, operand: Instruction, type: str, order: Sequence[int]) -> Access:
        """The operand in place, or else computed into scratch with its dimensions in `order`."""
        return strided(self.group, operand, type) or self.in_order(operand, type, order)

    def in_order(self, operand: Instruction, type: str, order: Sequence[int]) -> Access:
        access = ordered(Arg("scratch", len(self.scratch)), operand, type, order)
        self.scratch.append(access.size * ELEMENT_TYPES[type].bytes)

        def emit(outline: Outline, index: Indices) -> None:
            value = element(outline, operand, type, order, index)
            name = outline.scratch_buffer(known(access.argument).index, type, access.size, "write")
            outline.builder.store(name, indexing.linearize(index, sizes), value)
        sizes = tuple(operand.shape.dimensions[d] for d in order)
        self.calls.append(loop_kernel(self.group, self.machine, sizes, emit, "_operand"))
        return access


def ordered(argument: Arg | None, operand: Instruction, type: str, order: Sequence[int]) -> Access:
    """An operand as contiguous memory of that argument, with its dimensions in `order`."""
    sizes = [operand.shape.dimensions[d] for d in order]
    strides = dict(zip(order, row_major(sizes)))
    return Access(argument, type, math.prod(sizes), 0, tuple(strides[d] for d in range(len(sizes))))


def element(outline: Outline, operand: Instruction, type: str, order: Sequence[int], index: Sequence[Index]) -> Expr:
    """The element of an operand at an index of its dimensions in `order`, as that type stores it."""
    wanted = dict(zip(order, index))
    value = outline.elements.value(operand, tuple(wanted[d] for d in range(len(wanted))))
    return scalars.narrow(scalars.converted(value, operand.shape.element_type, type), type)


def behind_conversion(group: Group, operand: Instruction) -> Instruction:
    """The operand without a lossless conversion (bf16 or f16 to f32), which tiles do themselves."""
    if operand.opcode == "convert" and operand not in group.parameters:
        inner = operand.operands[0]
        if inner.shape.element_type in ("bf16", "f16") and operand.shape.element_type == "f32":
            return inner
    return operand
