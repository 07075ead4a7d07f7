"""Replaces a dot of one row per iteration by one matmul before the loop.

    body { i, xs = f32[100,4,64] never changes, w = f32[64,256] never changes
           x = f32[4,64] reshape(dynamic-slice(xs, i, 0, 0))
           y = f32[4,256] dot(x, w) ... }
    =>
    ys = f32[100,4,256] dot(xs, w) is computed before the loop, and
    body { ... y = f32[4,256] reshape(dynamic-slice(ys, i, 0, 0)) ... }

Recurrent networks multiply their inputs like this: a dot of few rows reads all of w in each iteration, on one core. The
number of iterations must equal the number of slices, so that no row is multiplied in vain. The results must not take
more memory than w, or MOST_BYTES. With a memory limit nothing moves.
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.analysis.while_loops import Loop, element_read, invariant_elements, trip_count
from hloc.ir import Computation, Instruction, Module, array
from hloc.passes.context import PassContext
from hloc.passes.loop_rewriter import carrying, rewrite_loops
from hloc.passes.rewriter import Names, Rewriter, control_dependent, remove_dead

FEWEST_STEPS = 4
MOST_ROWS = 64                  # of a step: larger products do as well one by one
LEAST_WORK = 256                # multiplications for a row
MOST_BYTES = 1 << 20


class StepDot(NamedTuple):
    """A dot of the body: slices, weight: which elements of the loop's state its operands are from; read: the
    dynamic-slice; side: the operand (0 or 1) that is a slice."""

    dot: Instruction
    read: Instruction
    slices: int
    weight: int
    side: int

    def of_slice(self, key: str) -> str:
        return f"{'lr'[self.side]}hs_{key}"

    def of_weight(self, key: str) -> str:
        return f"{'rl'[self.side]}hs_{key}"


def while_loop_dot_batching(module: Module, context: PassContext) -> bool:
    """Multiply slices of a loop at once, before the loop. True if anything moved."""
    if context.option("memory_limit") is not None:
        return False
    return rewrite_loops(module, change)


def change(loop: Loop, rewriter: Rewriter) -> Instruction | None:
    found = step_dots(loop)
    return batch(loop, found, rewriter) if found else None


def step_dots(loop: Loop) -> list[StepDot]:
    """The dots of the body that are worth moving."""
    steps = trip_count(loop)
    if steps is None or steps < FEWEST_STEPS:
        return []
    same = invariant_elements(loop)
    pinned = control_dependent(loop.body)
    found = (step_dot(i, loop.body) for i in loop.body.instructions if i.opcode == "dot" and i not in pinned)
    return [d for d in found if d is not None and {d.slices, d.weight} <= same and is_worth(d, steps)]


def step_dot(dot: Instruction, body: Computation) -> StepDot | None:
    """The dot, where one operand is an element of the state and the other a slice of one along its first dimension."""
    if dot.get("lhs_batch_dims") or dot.get("rhs_batch_dims"):
        return None
    for side in (0, 1):
        weight = element_read(dot.operands[1 - side], body)
        read = dot.operands[side]
        if read.opcode == "reshape":
            read = read.operands[0]
        if weight is None or read.opcode != "dynamic-slice":
            continue
        slices, whole = element_read(read.operands[0], body), read.operands[0].shape.dimensions
        sizes = read.shape.dimensions
        if slices is not None and sizes[0] == 1 and sizes[1:] == whole[1:] \
                and dot.operands[side].shape.dimensions in (sizes, sizes[1:]):
            return StepDot(dot, read, slices, weight, side)
    return None


def is_worth(found: StepDot, steps: int) -> bool:
    """Few rows for each step, none of which is multiplied in vain, and products that take little memory."""
    dot, read = found.dot, found.read
    slices, weight = read.operands[0].shape, dot.operands[1 - found.side].shape
    terms = math.prod(weight.dimensions[d] for d in dot.get(found.of_weight("contracting_dims")) or ())
    rows = read.shape.num_elements // max(1, terms)
    columns = weight.num_elements // max(1, terms)
    if found.side == 1 and rows > 1 and columns > 1:            # its rows would come first
        return False
    size = slices.dimensions[0] * dot.shape.num_bytes
    return 0 < slices.dimensions[0] <= steps and rows <= MOST_ROWS and terms * columns >= LEAST_WORK \
        and size <= max(weight.num_bytes, MOST_BYTES)


def batch(loop: Loop, found: list[StepDot], rewriter: Rewriter) -> Instruction:
    """The loop after its matmuls, in a tuple of the old shape."""
    new, carries = carrying(loop, [product_of_all(d, loop, rewriter) for d in found], rewriter)
    names = Names(i.name for i in loop.body.instructions)
    for step, product in zip(found, carries):
        read_product(step, product, loop.body, names)
    remove_dead(loop.body)
    return new


def product_of_all(found: StepDot, loop: Loop, rewriter: Rewriter) -> Instruction:
    """One dot for all steps; the steps are its first dimension."""
    dot, key = found.dot, "contracting_dims"
    slices, weight = loop.initial[found.slices], loop.initial[found.weight]
    added = slices.shape.rank - dot.operands[found.side].shape.rank
    contracted = tuple(d + added for d in dot.get(found.of_slice(key)))
    free = [slices.shape.dimensions[d] for d in range(slices.shape.rank) if d not in contracted]
    other = [n for d, n in enumerate(weight.shape.dimensions) if d not in dot.get(found.of_weight(key))]
    attributes = {**dot.attributes, "lhs_contracting_dims": contracted,
                  "rhs_contracting_dims": dot.get(found.of_weight(key))}
    precision = attributes.get("operand_precision")
    if precision and found.side == 1:
        attributes["operand_precision"] = tuple(reversed(precision))
    attributes.pop("sharding", None)
    return rewriter.add("dot", array(dot.shape.element_type, *free, *other), [slices, weight], attributes)


def read_product(found: StepDot, product: Instruction, body: Computation, names: Names) -> None:
    """Let the body read a step's product instead of computing it. Where a dimension is read whole, any start will do:
    it is clamped to zero."""
    dot, (_, step, start, *_) = found.dot, found.read.operands
    sizes = (1, *product.shape.dimensions[1:])
    piece = Instruction(names.fresh("dynamic-slice"), "dynamic-slice", array(dot.shape.element_type, *sizes),
                        [product, step, *([start] * (len(sizes) - 1))], {"dynamic_slice_sizes": sizes}, span=dot.span)
    dot.opcode, dot.operands = "reshape", [piece]
    dot.attributes = {k: v for k, v in dot.attributes.items() if k == "metadata"}
    body.instructions.insert(body.instructions.index(dot), piece)
