"""Operands that a GPU's matmul or convolution computes while it loads its tiles: an instruction of a fusion -> a
Prologue.

In: an operand of a dot or convolution that is not a strided view of a parameter. Out: an Access without an argument,
with strides as if the operand were contiguous, and, once the tile's dimensions are known, the Prologue: the expression
of one element. None if it is better stored in memory (hloc/analysis/prologues.py), or is more than an expression.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hloc.analysis.prologues import prologue_of, why_not
from hloc.ir import Instruction, row_major
from hloc.kernels import indexing, scalars
from hloc.kernels.builder import Builder
from hloc.kernels.group import Group, Outline, origin_line
from hloc.kernels.indexing import Index
from hloc.kernels.ir import INDEX, Const, Expr, Let, Load, Prologue
from hloc.kernels.products.operands import Access
from hloc.kernels.walks import are_lets, expressions, parts
from hloc.machine import Machine

OUTER, INNER, ROW, DEPTH = "outer", "inner", "row", "depth"


def computed_access(group: Group, hero: Instruction, number: int, operand: Instruction, type: str,
                    order: Sequence[int], machine: Machine) -> Access | None:
    """The Access of operand `number` (or of its unconverted source) as if it were contiguous with its dimensions in
    `order`, if it is computed while tiles are loaded."""
    found = prologue_of(operand, group.parameters.__contains__)
    if any(s not in group.parameters for s in found.sources) or why_not(hero, number, found, machine):
        return None
    sizes = tuple(operand.shape.dimensions[i] for i in order)
    place = indexing.linearize([indexing.variable(f"d{n}", size) for n, size in enumerate(sizes)], sizes)
    outline = Outline(group, Builder())
    if not is_expression(outline, element(outline, operand, type, order, place)):
        return None
    strides = [0] * len(order)
    for dimension, stride in zip(order, row_major(sizes)):
        strides[dimension] = stride
    return Access(None, type, math.prod(sizes), 0, tuple(strides))


def element(outline: Outline, operand: Instruction, type: str, order: Sequence[int], place: Index) -> Expr:
    """The element of an operand at a position of its dimensions in `order`, in its stored type."""
    index = [indexing.ZERO] * len(order)
    for i, dimension in zip(indexing.delinearize(place, [operand.shape.dimensions[d] for d in order]), order):
        index[dimension] = i
    value = scalars.converted(outline.elements.value(operand, tuple(index)), operand.shape.element_type, type)
    return scalars.narrow(value, type)


def is_expression(outline: Outline, value: Expr) -> bool:
    """Whether there are no branches or loops, and no position that depends on data other than single numbers."""
    statements = outline.builder.body()
    if not are_lets(statements):
        return False
    return all(isinstance(inner.position, Const) for root in (value, *roots(statements))
               for inner in inside_positions(root) if isinstance(inner, Load))


def roots(statements: Iterable[Let]) -> list[Expr]:
    return [e for s in statements for e in expressions(s)]


def inside_positions(root: Expr) -> Iterable[Expr]:
    """The parts of the positions in an expression, and an expression that is a position itself."""
    if root.type == INDEX:
        yield from parts([root])
    yield from parts(p.position for p in parts([root]) if isinstance(p, Load))


def prologue(group: Group, operand: Instruction, name: str, access: Access, order: Sequence[int],
             extents: Sequence[tuple[str, int, int]]) -> tuple[Prologue, Outline]:
    """The Prologue of an operand, and the Outline with its reads. extents: (Var, size, stride)."""
    outline = Outline(group, Builder())
    place = indexing.ZERO
    for variable, size, stride in extents:
        place = indexing.add(place, indexing.scale(indexing.variable(variable, size), stride))
    value = element(outline, operand, access.type, order, place)
    members = set(prologue_of(operand, group.parameters.__contains__).members)
    origin = tuple(origin_line(m) for m in group.members if m in members)
    lets = outline.builder.body()
    assert are_lets(lets)                       # as is_expression says
    return Prologue(name, access.type, tuple(lets), value, origin), outline
