"""Rules for dynamic-update-slice, get-dimension-size and set-dimension-size."""
from __future__ import annotations

from hloc.ir import Instruction, PaddingDim
from hloc.passes.patterns import full, scalar_source, splat
from hloc.passes.rewriter import Rewriter


def update_of_all(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """dynamic-update-slice(x, u, ...) => u if u covers x, => x if u has no elements"""
    x, update = instruction.operands[:2]
    if update.shape.dimensions == x.shape.dimensions:
        return update
    return x if update.shape.num_elements == 0 else None


def update_with_what_was_there(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """dynamic-update-slice(x, dynamic-slice(x, i), i) => x"""
    x, update, *indices = instruction.operands
    if update.opcode != "dynamic-slice" or update.operands[0] is not x:
        return None
    same = len(indices) == len(update.operands) - 1 and all(a is b for a, b in zip(indices, update.operands[1:]))
    return x if same else None


def update_of_one_value(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """dynamic-update-slice(broadcast(c), u, constants) => pad(u, c)"""
    x, update, *indices = instruction.operands
    value = scalar_source(x)
    if value is None or len(indices) != x.shape.rank:
        return None
    padding = []
    for index, size, wanted in zip(indices, x.shape.dimensions, update.shape.dimensions):
        start = 0 if size == wanted else splat(index)
        if start is None:
            return None
        start = min(max(int(start), 0), size - wanted)
        padding.append(PaddingDim(start, size - wanted - start))
    if value.shape.dimensions:
        value = rewriter.constant(value.elements.reshape(()), value.shape.element_type)
    return rewriter.add("pad", instruction.shape, [update, value], {"padding": tuple(padding)})


def size_of_static_dimension(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """get-dimension-size(x) => constant if the dimension is not dynamic"""
    dimension = instruction.get("dimensions")[0]
    return full(rewriter, instruction.operands[0].shape.dimensions[dimension], instruction.shape)


def size_set_to_the_bound(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """set-dimension-size(x, n) => x if nothing is dynamic: then n is the bound (as TensorFlow's top-k writes it)"""
    operand = instruction.operands[0]
    return operand if operand.shape == instruction.shape and not operand.shape.is_dynamic else None


RULES = {
    "dynamic-update-slice": (update_of_all, update_with_what_was_there, update_of_one_value),
    "get-dimension-size": (size_of_static_dimension,),
    "set-dimension-size": (size_set_to_the_bound,),
}
