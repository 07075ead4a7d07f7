"""Writes the resizing of images (hloc/ops/vendors/resizing.py) as gathers, and its gradients as scatters.

    y = f32[1,4,4,3] custom-call(f32[1,2,2,3] x), custom_call_target="ResizeNearest", backend_config="\\"00\\""
        =>   gather(gather(x, columns {0,0,1,1}), rows {0,0,1,1})
"""
from __future__ import annotations

import numpy as np

from hloc.ir import Instruction, Module
from hloc.ops.checks import target_of
from hloc.ops.vendors.library_configs import result_array
from hloc.ops.vendors.resizing import RESIZE_CALLS, Look, looks_of
from hloc.passes.expressions import Expressions, combiner


def resized_value(module: Module, e: Expressions, instruction: Instruction) -> Instruction | None:
    """The replacement of the call; None for other calls."""
    if target_of(instruction) not in RESIZE_CALLS:
        return None
    wanted = result_array(instruction)
    value = e.convert(instruction.operands[0], "f64" if wanted.element_type == "f64" else "f32")
    gradient = target_of(instruction).endswith("Grad")
    for at in reversed(looks_of(instruction)):
        value = given_back(module, e, value, at, wanted.dimensions[at.axis]) if gradient else looked_up(e, value, at)
    value = e.convert(value, wanted.element_type)
    return e.op("tuple", value) if instruction.shape.is_tuple else value


def looked_up(e: Expressions, x: Instruction, at: Look) -> Instruction:
    first = taken(e, x, at.axis, at.first)
    if not at.weight.any():
        return first
    rise = e.op("subtract", taken(e, x, at.axis, at.second), first)
    return e.op("add", first, e.op("multiply", rise, along(e, at.weight, at, first)))


def given_back(module: Module, e: Expressions, gradient: Instruction, at: Look, size: int) -> Instruction:
    sizes = [size if d == at.axis else n for d, n in enumerate(gradient.shape.dimensions)]
    total = e.full(0, gradient.shape.with_dimensions(sizes))
    if not at.weight.any():
        return added(module, e, total, gradient, at.axis, at.first)
    for chosen, weight in ((at.first, 1 - at.weight), (at.second, at.weight)):
        part = e.op("multiply", gradient, along(e, weight, at, gradient))
        total = added(module, e, total, part, at.axis, chosen)
    return total


def along(e: Expressions, weight: np.ndarray, at: Look, like: Instruction) -> Instruction:
    return e.broadcast(e.constant(weight, like.shape.element_type), (at.axis,), like.shape.dimensions)


def taken(e: Expressions, x: Instruction, axis: int, places: np.ndarray) -> Instruction:
    """Elements of `x` along a dimension."""
    sizes = tuple(1 if d == axis else n for d, n in enumerate(x.shape.dimensions))
    return e.op("gather", x, e.constant(places, "s32"), offset_dims=_others(x, axis), collapsed_slice_dims=(axis,),
                start_index_map=(axis,), index_vector_dim=1, slice_sizes=sizes)


def added(module: Module, e: Expressions, total: Instruction, x: Instruction, axis: int,
          places: np.ndarray) -> Instruction:
    """`total` with the elements of `x` along a dimension added at their places."""
    kind = x.shape.element_type
    return e.op("scatter", total, e.constant(places, "s32"), x, update_window_dims=_others(x, axis),
                inserted_window_dims=(axis,), scatter_dims_to_operand_dims=(axis,), index_vector_dim=1,
                to_apply=combiner(module, "add", kind, e.span))


def _others(x: Instruction, axis: int) -> tuple[int, ...]:
    return tuple(d for d in range(x.shape.rank) if d != axis)
