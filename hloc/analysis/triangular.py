"""Which Cholesky factors and triangular systems a library kernel of the CPU computes, instead of loops.

    library_kernel_type(cholesky of f32[64,64])     "f32"; None of f32[8,8] and of c64: loops and products
"""
from __future__ import annotations

import math

from hloc.ir import Instruction

# The library kernel for each type; narrow ones are converted.
LIBRARY_KERNELS = {"f32": "f32", "f64": "f64", "bf16": "f32", "f16": "f32"}
SMALLEST_FACTOR, SMALLEST = 16, 24      # rows of a matrix; of all matrices of a batch together
ROWS_PER_SIDE = 64                      # rows of a matrix to a right side


def library_kernel_type(instruction: Instruction) -> str | None:
    """The element type of the library kernel for a cholesky or triangular-solve; None if loops are faster: they take
    few steps for small matrices, all of a batch at once, and read a large matrix only once if there are few right
    sides."""
    matrix = instruction.operands[0].shape
    n, batch = matrix.dimensions[-1], math.prod(matrix.dimensions[:-2])
    if instruction.opcode == "cholesky":
        is_worth = n >= SMALLEST_FACTOR and n * batch >= SMALLEST
    else:
        sides = instruction.shape.dimensions[-1 if instruction.get("left_side", False) else -2]
        is_worth = n >= SMALLEST and (batch > 1 or n <= ROWS_PER_SIDE * sides)
    return LIBRARY_KERNELS.get(matrix.element_type) if is_worth else None
