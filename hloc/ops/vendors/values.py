"""What the calls of several vendors share: markers, and elementwise functions and softmax in f64, rounded once."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloc.ir import Instruction
from hloc.ops.checks import text
from hloc.ops.linalg import wide
from hloc.ops.vendors.library_calls import STEPS
from hloc.ops.vendors.library_configs import refuse
from hloc.ops.vendors.linear_algebra import fitted


def handed_on(instruction: Instruction, *operands):
    """A marker: its operand, or a tuple of its operands. Raises UnsupportedError where the result is something else."""
    check_handed_on(instruction)
    return tuple(operands) if instruction.shape.is_tuple and len(operands) > 1 else operands[0]


def check_handed_on(instruction: Instruction) -> None:
    shapes = [o.shape for o in instruction.operands]
    if len(shapes) == 1 and instruction.shape.compatible(shapes[0]):
        return
    parts = instruction.shape.tuple_shapes
    if len(shapes) < 2 or len(parts) != len(shapes) or not all(a.compatible(b) for a, b in zip(parts, shapes)):
        refuse(instruction, f"{text(instruction.shape)} is not what it is given")


def elementwise(function: Callable[..., np.ndarray]) -> Callable:
    """A call that is a function of numbers."""
    def call(instruction: Instruction, *operands: np.ndarray):
        check_alike(instruction)
        with np.errstate(all="ignore"):
            return fitted(instruction, [function(*map(wide, operands))])

    return call


def check_alike(instruction: Instruction) -> None:
    """Raises UnsupportedError where operands and result are not floats of the same sizes."""
    shapes = [instruction.shape, *(o.shape for o in instruction.operands)]
    if any(s.kind != "float" or s.dimensions != shapes[0].dimensions for s in shapes):
        refuse(instruction, "operands and result are not floats of the same sizes")


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    with np.errstate(all="ignore"):
        parts = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
        return parts / parts.sum(axis, keepdims=True)


def step(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """An activation that library calls have, too."""
    function = STEPS[name]
    return lambda x: function(x, None, 1)
