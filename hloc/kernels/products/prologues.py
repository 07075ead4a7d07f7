"""Operands that a GPU's matmul or convolution computes while it loads its tiles: an instruction of a fusion -> a
Prologue.

In: an operand of a dot or convolution that is not a strided view of a parameter. Out: an Access without an argument,
with strides as if the operand were contiguous, and, once the tile's dimensions are known, the Prologue: the expression
of one element. None if it is better stored in memory (hloc/analysis/prologues.py), or is more than an expression.
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.analysis.prologues import prologue_of, why_not
from hloc.ir import Instruction
from hloc.kernels import indexing
from hloc.kernels.group import Outline, origin_line
from hloc.kernels.ir import INDEX, Const, Expr, Load, Prologue
from hloc.kernels.products.operands import SIDES, Access, OperandKernels, element, ordered, strided
from hloc.kernels.walks import are_lets, expressions, parts

OUTER, INNER, ROW, DEPTH = "outer", "inner", "row", "depth"


def access_of(operands: OperandKernels, hero: Instruction, number: int, type: str, order: Sequence[int],
              packed: Sequence[int] | None = None) -> Access:
    """Operand `number` as it is in memory; or, on a GPU, computed while tiles are loaded, as if it were contiguous with
    its dimensions in `order`; or else packed in that order, or in another one."""
    group, operand = operands.group, operands.source(hero, number, type)
    found = strided(group, operand, type)
    if found or operands.machine.kind == "cpu" or not _is_computed(operands, hero, number, operand, type, order):
        return found or operands.in_order(operand, type, packed or order)
    return ordered(None, operand, type, order)


def _is_computed(operands: OperandKernels, hero: Instruction, number: int, operand: Instruction, type: str,
                 order: Sequence[int]) -> bool:
    """Whether operand `number`, or its unconverted source, is an expression, and no better stored in memory."""
    known = operands.group.parameters
    found = prologue_of(operand, known.__contains__)
    if any(s not in known for s in found.sources) or why_not(hero, number, found, operands.machine):
        return False
    index = [indexing.variable(f"d{d}", operand.shape.dimensions[d]) for d in order]
    outline = Outline(operands.group)
    return is_expression(outline, element(outline, operand, type, order, index))


def is_expression(outline: Outline, value: Expr) -> bool:
    """Whether there are no branches or loops, and no position that depends on data other than single numbers."""
    statements = outline.builder.body()
    roots = [value, *(e for s in statements for e in expressions(s))]
    positions = [*(e for e in roots if e.type == INDEX), *(p.position for p in parts(roots) if isinstance(p, Load))]
    return are_lets(statements) and all(
        isinstance(inner.position, Const) for inner in parts(positions) if isinstance(inner, Load))


def prologue(operands: OperandKernels, hero: Instruction, number: int, access: Access, order: Sequence[int],
             extents: Sequence[tuple[str, int, int]]) -> tuple[Prologue, Outline]:
    """The Prologue of an operand, and the Outline with its reads. extents: (Var, size, stride)."""
    group, operand = operands.group, operands.source(hero, number, access.type)
    outline = Outline(group)
    place = indexing.strided([indexing.variable(variable, size) for variable, size, _ in extents],
                             [stride for *_, stride in extents])
    index = indexing.delinearize(place, [operand.shape.dimensions[d] for d in order])
    value = element(outline, operand, access.type, order, index)
    members = set(prologue_of(operand, group.parameters.__contains__).members)
    origin = tuple(origin_line(m) for m in group.members if m in members)
    lets = outline.builder.body()
    assert are_lets(lets)                       # as is_expression says
    return Prologue(SIDES[number], access.type, tuple(lets), value, origin), outline
