"""Replaces a scatter to one known position by dynamic-update-slice, and an added scatter by one into the other summand.

    s = f32[8,4] scatter(x, constant({2}), u), update_window_dims={0}, inserted_window_dims={0},
        scatter_dims_to_operand_dims={0}, index_vector_dim=0, to_apply=f          // f returns its second parameter
    =>
    s = f32[8,4] dynamic-update-slice(x, f32[1,4] reshape(u), 2, 0)

The position must be known, because a scatter outside the array has no effect, but dynamic-update-slice clamps. If f
combines its parameters by one operation, such as `add`, the update is add(slice(x), u).

    s = f32[8,4] scatter(zeros, i, u), ..., to_apply=add                          // nothing else reads s
    a = f32[8,4] add(x, s)
    =>
    a = f32[8,4] scatter(x, i, u), ..., to_apply=add

Gradients of several gathers from one table are such sums: the zeros are then not filled and read for each.
"""
from __future__ import annotations

import math

import numpy as np

from hloc.ir import ELEMENT_TYPES, Instruction, Module, SliceDim
from hloc.passes.context import PassContext
from hloc.passes.patterns import is_float, is_splat, reshape, splat
from hloc.passes.rewriter import Rewriter, rewrite_module

COMMUTATIVE = frozenset(["add", "multiply", "minimum", "maximum", "and", "or", "xor"])


def scatter_simplifier(module: Module, context: PassContext) -> bool:
    """Replace scatters to one known position by dynamic-update-slice, and added scatters by ones into the other
    summand.

    True if the module changed."""
    return rewrite_module(module, simplify, opcodes=("scatter", "add"))


def simplify(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    return (add_into if instruction.opcode == "add" else update_slice)(instruction, rewriter)


def add_into(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """add(x, scatter(zeros, i, u)) => scatter(x, i, u), and so for a chain of scatters that begins with zeros.

    Not for narrow floats: small updates, added one by one to something large, would be rounded away."""
    if is_float(instruction) and ELEMENT_TYPES[instruction.shape.element_type].bits < 32:
        return None
    for other, last in (instruction.operands, instruction.operands[::-1]):
        chain = scatters_onto_zeros(last, rewriter)
        if chain and other is not last:
            for scatter in chain:
                other = rewriter.change(scatter, operands=[other, *scatter.operands[1:]])
            return other
    return None


def scatters_onto_zeros(last: Instruction, rewriter: Rewriter) -> list[Instruction]:
    """The scatters, the first one first, that add to zeros one after the other and end with `last`; [] where `last` is
    something else, or where anything else reads one of them."""
    chain: list[Instruction] = []
    while last.opcode == "scatter" and len(last.operands) == 3 and adds(last) and rewriter.uses(last) == 1:
        chain.append(last)
        last = last.operands[0]
    return chain[::-1] if chain and is_splat(last, 0) else []


def adds(scatter: Instruction) -> bool:
    """True where the combining computation returns the sum of its parameters."""
    root = scatter.get("to_apply").root
    return root.opcode == "add" and {o.parameter_number for o in root.operands} == {0, 1}


def update_slice(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if len(instruction.operands) != 3 or not (overwrites(instruction) or combines(instruction)):
        return None
    x, indices, update = instruction.operands
    place = instruction.get("scatter_dims_to_operand_dims")
    known = constant_values(indices)
    if known is None or len(known) != len(place) or instruction.shape.dynamic_dimensions:
        return None
    window = window_sizes(instruction)
    if update.shape.num_elements != math.prod(window):          # several slices, at places without coordinates
        return None
    starts = [0] * x.shape.rank
    for dimension, start in zip(place, known):
        starts[dimension] = int(start)
    if any(s < 0 or s + w > size for s, w, size in zip(starts, window, x.shape.dimensions)):
        return None
    update = reshape(rewriter, update, update.shape.with_dimensions(window))
    if not overwrites(instruction):
        place = tuple(SliceDim(s, s + w) for s, w in zip(starts, window))
        old = rewriter.add("slice", update.shape, [x], {"slice": place})
        update = rewriter.add(instruction.get("to_apply").root.opcode, update.shape, [old, update])
    scalars = [rewriter.constant(s, "s32" if max(starts) < 1 << 31 else "s64") for s in starts]
    return rewriter.add("dynamic-update-slice", instruction.shape, [x, update, *scalars])


def overwrites(instruction: Instruction) -> bool:
    """True where the combining computation returns the update."""
    root = instruction.get("to_apply").root
    return root.opcode == "parameter" and root.parameter_number == 1


def combines(instruction: Instruction) -> bool:
    """True where the combining computation is one operation that may take its parameters in any order."""
    root = instruction.get("to_apply").root
    return root.opcode in COMMUTATIVE and [o.opcode for o in root.operands] == ["parameter"] * 2 and \
        root.operands[0] is not root.operands[1]


def constant_values(indices: Instruction) -> np.ndarray | None:
    """The indices as a flat array where they are known, else None."""
    if indices.opcode == "constant" and indices.array_literal is not None:
        return indices.array_literal.reshape(-1)
    value = splat(indices)
    return None if value is None else np.full(indices.shape.num_elements, value)


def window_sizes(instruction: Instruction) -> list[int]:
    """The size of the updated slice in every dimension of the operand."""
    x, _, update = instruction.operands
    window = [update.shape.dimensions[d] for d in instruction.get("update_window_dims", ())]
    dropped = {*instruction.get("inserted_window_dims", ()), *instruction.get("input_batching_dims", ())}
    sizes = iter(window)
    return [1 if d in dropped else next(sizes) for d in range(x.shape.rank)]
