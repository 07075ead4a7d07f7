"""Writes ragged-dot as a dot of masked operands.

    y = f32[8,3] ragged-dot(a: f32[8,4], b: f32[2,4,3], sizes: s32[2]), lhs_ragged_dims={0}, rhs_group_dims={0} ...
        =>   m = f32[2,8,4] select(8 rows of each group, a, 0);   y = dot over (group, contracting) of m and b

    ragged dimension   result
    free               the group is one more contracting dimension of both
    contracting        the group is one more batch dimension: the result has it in front
    batch              a dot of what lies in any group

GPUs have a kernel for the first of these, where rows of one matrix fall into groups (kernels/lower_ragged_product.py):
there it stays as it is.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.ops.products import Ragged, is_grouped, ragged_dimensions
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module


def ragged_dot_rewriter(module: Module, context: PassContext) -> bool:
    """True if there was a ragged-dot."""
    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if instruction.opcode != "ragged-dot" or (context.target == "cuda" and is_grouped(instruction)):
            return None
        return written_out(module, Expressions(rewriter, instruction.span), instruction)
    return rewrite_module(module, visit, revisit=False, opcodes=("ragged-dot",))


def written_out(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    lhs, rhs, sizes = instruction.operands
    ragged = ragged_dimensions(instruction, lhs.shape, rhs.shape)
    groups = sizes.shape.dimensions[-1]
    masked = by_group(module, e, lhs, e.convert(sizes, "s64"), ragged)
    dims, shape = ragged.dims, instruction.shape.with_default_layout()
    batch = [d + 1 for d in dims.lhs_batch], list(dims.rhs_batch)
    contracting = [d + 1 for d in dims.lhs_contracting], list(dims.rhs_contracting)
    if ragged.mode == "free":
        contracting = [0, *contracting[0]], [ragged.rhs_group, *contracting[1]]
    elif ragged.mode == "contracting":
        rhs = e.broadcast(rhs, range(1, rhs.shape.rank + 1), (groups, *rhs.shape.dimensions))
        batch, contracting = ([0, *batch[0]], [0, *(d + 1 for d in batch[1])]), (contracting[0], [
            d + 1 for d in contracting[1]])
    else:
        masked = e.reduce(module, masked, "add", (0,), 0)
        batch, contracting = (dims.lhs_batch, dims.rhs_batch), (dims.lhs_contracting, dims.rhs_contracting)
    return e.op("dot", masked, rhs, shape=shape, lhs_batch_dims=tuple(batch[0]), rhs_batch_dims=tuple(batch[1]),
                lhs_contracting_dims=tuple(contracting[0]), rhs_contracting_dims=tuple(contracting[1]))


def by_group(module: Module, e: Expressions, lhs: Instruction, sizes: Instruction, ragged: Ragged) -> Instruction:
    """[groups, lhs...]: lhs where the place along the ragged dimension is in the group, else 0."""
    onto = (sizes.shape.dimensions[-1], *lhs.shape.dimensions)
    ends = running_sum(module, e, sizes)
    prefix = ragged.prefix if sizes.shape.rank > 1 else ()
    positions = [*(1 + d for d in prefix), 0]
    limits, starts = (e.placed(x, positions, onto) for x in (ends, e.op("subtract", ends, sizes)))
    place = e.iota("s64", onto, 1 + ragged.dimension)
    inside = e.op("and", e.compare(place, "GE", starts), e.compare(place, "LT", limits))
    spread = e.broadcast(lhs, range(1, len(onto)), onto)
    return e.chosen(inside, spread, e.like(0, spread))


def running_sum(module: Module, e: Expressions, sizes: Instruction) -> Instruction:
    """Sums along the last dimension, each place with all before it."""
    onto = (*sizes.shape.dimensions, sizes.shape.dimensions[-1])
    last = len(onto) - 1
    spread = e.broadcast(sizes, [*range(last - 1), last], onto)
    counted = e.compare(e.iota("s64", onto, last), "LE", e.iota("s64", onto, last - 1))
    return e.reduce(module, e.chosen(counted, spread, e.like(0, spread)), "add", (last,), 0)
