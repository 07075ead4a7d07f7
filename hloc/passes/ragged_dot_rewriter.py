"""Replaces ragged-dot by a dot and selections.

    y = f32[8,3] ragged-dot(a: f32[8,4], b: f32[2,4,3], sizes: s32[2]), lhs_ragged_dims={0}, rhs_group_dims={0} ...
        =>   p = f32[8,2,3] dot(a, b);   y = for each row the part of p of its group, else 0

    ragged dimension   result
    free               the dot of all rows with every group's matrix, from which each row selects its own group's
    contracting        the group is one more batch dimension: elements of both operands outside the group are 0
    batch              the dot, 0 for a batch in no group

Elements are omitted, not multiplied by zero: NaN and infinities stay within their group, as in grouped matmuls of GPUs.
Masking one operand alone, as JAX's ragged_dot for CPUs does, would spread them.

GPUs have a kernel for the first form, with grouped rows of one matrix (kernels/products/ragged_dot.py): it is not
changed for them.
"""
from __future__ import annotations

from typing import Any

from hloc.ir import Instruction, Module
from hloc.ops.products import DotDimensions, Ragged, is_grouped, ragged_dimensions
from hloc.passes.context import PassContext
from hloc.passes.expressions import PRECISION, Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module


def ragged_dot_rewriter(module: Module, context: PassContext) -> bool:
    """True if there was a ragged-dot."""
    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if instruction.opcode != "ragged-dot" or (context.target == "cuda" and is_grouped(instruction)):
            return None
        return written_out(module, Expressions(rewriter, instruction.span), instruction)
    return rewrite_module(module, visit, revisit=False, opcodes=("ragged-dot",), expands=True)


def written_out(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    lhs, rhs, sizes = instruction.operands
    ragged = ragged_dimensions(instruction, lhs.shape, rhs.shape)
    sizes = _within(e, sizes, lhs.shape.dimensions[ragged.dimension])
    ends, prefix = running_sum(module, e, sizes), ragged.prefix if sizes.shape.rank > 1 else ()
    if ragged.mode == "contracting":
        return _by_group(e, instruction, (ends, sizes), ragged, prefix)
    dims, shape = ragged.dims, instruction.shape.with_default_layout()
    left, right = dims.lhs_batch + dims.lhs_free(lhs.shape.rank), dims.rhs_free(rhs.shape.rank)
    onto = tuple([lhs.shape.dimensions[d] for d in left] + [rhs.shape.dimensions[d] for d in right])
    product = e.op("dot", lhs, rhs, shape=shape.with_dimensions(onto), **_dimensions(dims, instruction))
    place, before = left.index(ragged.dimension), [left.index(d) for d in prefix]
    if ragged.mode == "batch":
        total = e.reduce(module, sizes, "add", (sizes.shape.rank - 1,), 0)
        inside = e.compare(e.iota("s64", onto, place), "LT", e.placed(total, before, onto))
        return e.chosen(inside, product, e.like(0, product))
    group = len(left) + right.index(ragged.rhs_group)
    kept = e.chosen(in_group(e, ends, sizes, [*before, group], place, onto), product, e.like(0, product))
    return e.reduce(module, kept, "add", (group,), 0)


def _within(e: Expressions, sizes: Instruction, most: int) -> Instruction:
    """Group sizes from 0 to the number of places, as s64: so are those that are written beyond."""
    if sizes.shape.element_type == "u64":
        sizes = e.op("minimum", sizes, e.like(most, sizes))
    sizes = e.convert(sizes, "s64")
    return e.op("clamp", e.like(0, sizes), sizes, e.like(most, sizes))


def _by_group(e: Expressions, instruction: Instruction, limits: tuple[Instruction, Instruction], ragged: Ragged,
              prefix: tuple[int, ...]) -> Instruction:
    """A dot for each group, of its elements."""
    lhs, rhs, _ = instruction.operands
    dims = ragged.dims
    named = dict(zip(dims.lhs_batch + dims.lhs_contracting, dims.rhs_batch + dims.rhs_contracting))
    sides = []
    for side, place, before in ((lhs, ragged.dimension, prefix),
                                (rhs, named[ragged.dimension], [named[d] for d in prefix])):
        onto = (limits[0].shape.dimensions[-1], *side.shape.dimensions)
        inside = in_group(e, *limits, [*(1 + d for d in before), 0], 1 + place, onto)
        spread = e.broadcast(side, range(1, len(onto)), onto)
        sides.append(e.chosen(inside, spread, e.like(0, spread)))
    moved = DotDimensions(*((0, *(d + 1 for d in names)) if n < 2 else tuple(d + 1 for d in names)
                            for n, names in enumerate((dims.lhs_batch, dims.rhs_batch, dims.lhs_contracting,
                                                       dims.rhs_contracting))))
    return e.op("dot", *sides, shape=instruction.shape.with_default_layout(), **_dimensions(moved, instruction))


def _dimensions(dims: DotDimensions, like: Instruction) -> dict[str, Any]:
    """The attributes of a dot that is computed as precisely as another product."""
    return {"lhs_batch_dims": dims.lhs_batch, "rhs_batch_dims": dims.rhs_batch,
            "lhs_contracting_dims": dims.lhs_contracting, "rhs_contracting_dims": dims.rhs_contracting,
            **{key: like.get(key) for key in PRECISION if key in like.attributes}}


def in_group(e: Expressions, ends: Instruction, sizes: Instruction, positions: list[int], place: int,
             onto: tuple[int, ...]) -> Instruction:
    """Whether dimension `place` of an array of sizes `onto` lies in a group; positions: where its group's number and
    those before it stand."""
    limits, starts = (e.placed(x, positions, onto) for x in (ends, e.op("subtract", ends, sizes)))
    at = e.iota("s64", onto, place)
    return e.op("and", e.compare(at, "GE", starts), e.compare(at, "LT", limits))


def running_sum(module: Module, e: Expressions, sizes: Instruction) -> Instruction:
    """Sums along the last dimension, each place with all before it."""
    onto = (*sizes.shape.dimensions, sizes.shape.dimensions[-1])
    last = len(onto) - 1
    spread = e.broadcast(sizes, [*range(last - 1), last], onto)
    counted = e.compare(e.iota("s64", onto, last), "LE", e.iota("s64", onto, last - 1))
    return e.reduce(module, e.chosen(counted, spread, e.like(0, spread)), "add", (last,), 0)
