"""Resizing of images [batch, rows, columns, features], as TensorFlow and PyTorch/XLA write it for TPUs.

    y = f32[1,4,4,3] custom-call(f32[1,2,2,3] x), custom_call_target="ResizeBilinear", backend_config="\\"01\\""

In: a call; two digits of its configuration say whether corners are aligned and whether pixels are taken at their
centers. Out: per resized dimension the source elements of each position, as in TensorFlow's ops of these names.
ResizeNearest reads one element, ResizeBilinear two with weights; ...Grad adds to each element the gradients of its
uses.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hloc.ir import Instruction
from hloc.ops.checks import text, unquoted
from hloc.ops.linalg import wide
from hloc.ops.vendors.library_configs import refuse, result_array
from hloc.ops.vendors.linear_algebra import fitted

RESIZED = (1, 2)            # rows and columns


class Look(NamedTuple):
    """Along a dimension, for each place of the large array: two elements of the small one, and the weight of the
    second. A nearest element is first and second, with no weight."""

    axis: int
    first: np.ndarray
    second: np.ndarray
    weight: np.ndarray      # f32


def looks_of(instruction: Instruction) -> list[Look]:
    """The sources of rows and of columns. Raises UnsupportedError for a call of another form."""
    operand, result = instruction.operands[0].shape, result_array(instruction)
    config = re.fullmatch(r"\W*([01])([01])\W*", unquoted(str(instruction.get("backend_config", ""))))
    if config is None:
        refuse(instruction, "backend_config is not two digits: corners aligned, pixels at their centers")
    beside = [(s.dimensions[0], *s.dimensions[3:]) for s in (operand, result)]
    if len(instruction.operands) != 1 or operand.rank != 4 or result.rank != 4 or beside[0] != beside[1] \
            or operand.kind != "float" or 0 in operand.dimensions + result.dimensions:
        refuse(instruction, f"{text(operand)} to {text(result)} is not the resizing of rows and columns of floats")
    target = unquoted(instruction.get("custom_call_target"))
    small, large = (result, operand) if target.endswith("Grad") else (operand, result)
    return [look(d, small.dimensions[d], large.dimensions[d], aligned=config[1] == "1", centered=config[2] == "1",
                 nearest="Nearest" in target) for d in RESIZED]


def look(axis: int, small: int, large: int, *, aligned: bool, centered: bool, nearest: bool) -> Look:
    """In f32, as TensorFlow computes it."""
    scale = np.float32(small - 1) / np.float32(large - 1) if aligned and large > 1 else np.float32(small) / np.float32(
        large)
    half = np.float32(0.5 if centered else 0)
    place = (np.arange(large, dtype=np.float32) + half) * scale
    if nearest:
        chosen = np.clip(np.floor(place + np.float32(0.5)) if aligned else np.floor(place), 0, small - 1)
        chosen = chosen.astype(np.int32)
        return Look(axis, chosen, chosen, np.zeros(large, np.float32))
    place = place - half
    below = np.floor(place)
    first, second = (np.clip(n, 0, small - 1).astype(np.int32) for n in (below, below + 1))
    return Look(axis, first, second, place - below)


def resized(instruction: Instruction, x: np.ndarray):
    """ResizeNearest, ResizeBilinear: columns first."""
    value = wide(x)
    for at in reversed(looks_of(instruction)):
        first = np.take(value, at.first, at.axis)
        if at.weight.any():
            first = first + (np.take(value, at.second, at.axis) - first) * _along(at)
        value = first
    return fitted(instruction, [value])


def resized_gradient(instruction: Instruction, gradient: np.ndarray):
    """ResizeNearestGrad, ResizeBilinearGrad."""
    value, result = wide(gradient), result_array(instruction)
    for at in reversed(looks_of(instruction)):
        shape = list(value.shape)
        shape[at.axis] = result.dimensions[at.axis]
        total = np.zeros(shape, value.dtype)
        for chosen, part in ((at.first, value * (1 - _along(at))), (at.second, value * _along(at))):
            if chosen is at.first or at.weight.any():
                np.add.at(np.moveaxis(total, at.axis, 0), chosen, np.moveaxis(part, at.axis, 0))
        value = total
    return fitted(instruction, [value])


def _along(at: Look) -> np.ndarray:
    return at.weight.reshape([-1 if d == at.axis else 1 for d in range(4)])


RESIZE_CALLS: dict[str, Callable] = {
    "ResizeNearest": resized, "ResizeBilinear": resized,
    "ResizeNearestGrad": resized_gradient, "ResizeBilinearGrad": resized_gradient,
}
