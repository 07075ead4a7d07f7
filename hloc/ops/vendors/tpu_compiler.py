"""Custom calls of XLA's TPU compiler, of the builder of its tests, and of a few libraries.

In: a custom-call and its operands. Out: its results, in NumPy. hloc/passes/compiler_calls.py replaces them by HLO.

    lo = f32[4] custom-call(f64[4] x), custom_call_target="X64SplitLow"           x rounded to f32
    hi = f32[4] custom-call(f64[4] x), custom_call_target="X64SplitHigh"          the rest of x, rounded to f32
    y  = f64[4] custom-call(lo, hi), custom_call_target="X64Combine"              their sum

Of integers the halves are the words, of complex numbers the parts.
"""
from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np

from hloc.ir import Instruction, Shape, numpy_dtype
from hloc.ops.checks import unquoted
from hloc.ops.linalg import cholesky, triangular_solve, wide
from hloc.ops.random import philox
from hloc.ops.sorting import sorted_order
from hloc.ops.special_functions import SPECIAL
from hloc.ops.vendors.library_configs import configuration, refuse, result_array
from hloc.ops.vendors.linear_algebra import fitted, geqrf, lu_factors, orgqr, permutation, result_shapes

HALVES = {"s64": "s32", "u64": "u32", "f64": "f32", "c128": "c64"}


# -- 64-bit values in two halves ---------------------------------------------------------------------------------------

def split_low(instruction: Instruction, x: np.ndarray) -> np.ndarray:
    if _is_part(instruction, x):
        return x.real
    with np.errstate(all="ignore"):
        return x.astype(_half(instruction, x))


def split_high(instruction: Instruction, x: np.ndarray) -> np.ndarray:
    if _is_part(instruction, x):
        return x.imag
    half = _half(instruction, x)
    if x.dtype.kind in "iu":
        return (x >> np.array(32, x.dtype)).astype(half)
    with np.errstate(all="ignore"):
        rest = x - x.astype(half).astype(x.dtype)
    return np.where(np.isfinite(rest), rest, 0).astype(half)


def combine(instruction: Instruction, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    dtype = numpy_dtype(instruction.shape.element_type)
    if dtype.kind == "c" and low.dtype.kind == "f":
        whole = np.empty(low.shape, dtype)
        whole.real, whole.imag = low, high
        return whole
    if dtype.kind not in "iu":
        return low.astype(dtype) + high.astype(dtype)
    words = low.astype(np.uint32).astype(np.uint64) | high.astype(np.uint32).astype(np.uint64) << np.uint64(32)
    return words.view(dtype) if words.ndim else words.astype(dtype)


def _is_part(instruction: Instruction, x: np.ndarray) -> bool:
    """Of complex numbers the halves are real and imaginary parts."""
    return x.dtype.kind == "c" and instruction.shape.kind == "float"


def _half(instruction: Instruction, x: np.ndarray) -> np.dtype:
    half = numpy_dtype(instruction.shape.element_type)
    if half.itemsize * 2 != x.dtype.itemsize or half.kind not in ("iu" if x.dtype.kind in "iu" else x.dtype.kind):
        refuse(instruction, f"{instruction.shape.element_type} is no half of {x.dtype}")
    return half


# -- blocks of matrices ------------------------------------------------------------------------------------------------

def tpu_cholesky(instruction: Instruction, a: np.ndarray, *imaginary: np.ndarray):
    """The lower factor; of complex matrices, real and imaginary parts separately."""
    if not imaginary:
        return fitted(instruction, [cholesky(a, lower=True)])
    factor = cholesky(a + 1j * wide(imaginary[0]), lower=True)
    return fitted(instruction, [factor.real, factor.imag])


def invert_lower(instruction: Instruction, a: np.ndarray):
    """The inverse of the lower triangle."""
    one = np.broadcast_to(np.eye(a.shape[-1]), a.shape)
    return fitted(instruction, [triangular_solve(a, one, left_side=True, lower=True, unit_diagonal=False,
                                                 transpose="NO_TRANSPOSE")])


def lu_decomposition(instruction: Instruction, a: np.ndarray):
    """L and U in one, the row each row was exchanged with (from 0), the row order that this leads to."""
    lu, pivots, _ = lu_factors(a)
    return fitted(instruction, [lu, pivots, permutation(pivots, a.shape[-2])])


def eigenvectors(instruction: Instruction, a: np.ndarray):
    """Vectors and values of the Hermitian matrix in the lower triangle, or the upper one where backend_config, "lower,
    sorted, most iterations, tolerance", begins with 0; values ascend."""
    lower = equation(instruction).split(",")[0].strip() != "0"
    values, vectors = np.linalg.eigh(wide(a), UPLO="L" if lower else "U")
    return fitted(instruction, [vectors, values])


def joined_dimension(instruction: Instruction) -> int:
    """The dimension along which the operands of ConcatBitcast make the result."""
    result, parts = instruction.shape, [o.shape.dimensions for o in instruction.operands]
    for d in range(result.rank):
        others = [(*p[:d], *p[d + 1:]) for p in parts if len(p) == result.rank]
        if len(others) == len(parts) and set(others) == {(*result.dimensions[:d], *result.dimensions[d + 1:])} \
                and sum(p[d] for p in parts) == result.dimensions[d]:
            return d
    return refuse(instruction, "the operands are no parts of the result")


def concat_bitcast(instruction: Instruction, *parts: np.ndarray) -> np.ndarray:
    return np.concatenate(parts, axis=joined_dimension(instruction))


# -- calls with a computation ------------------------------------------------------------------------------------------

def host_execute(evaluator, instruction: Instruction, *operands):
    """Runs its computation, on any device."""
    return evaluator.call(the_computation(instruction), operands)


def approximate_top(evaluator, instruction: Instruction, *operands: np.ndarray):
    """The first elements in the comparator's order; exact, although a compiler may lose some."""
    arrays, axis, size = top_arguments(instruction)
    taken = [np.moveaxis(x, axis, -1) for x in operands[:arrays]]
    draft = Instruction("order", "sort", Shape.tuple(()), (), {"to_apply": the_computation(instruction)})
    order = sorted_order(evaluator, draft, taken)[..., :size]
    parts = [np.moveaxis(np.take_along_axis(x, order, -1), -1, axis) for x in taken]
    return tuple(parts) if instruction.shape.is_tuple else parts[0]


def top_arguments(instruction: Instruction) -> tuple[int, int, int]:
    """How many operands are arrays (as many initial values follow), the dimension, and how many elements are wanted."""
    config = configuration(instruction, "")
    inner = config.get("custom_call_metadata")
    if isinstance(inner, dict):
        config = json.loads(inner.get("metadata", "{}"))
    arrays = len(instruction.operands) // 2
    shape, result = instruction.operands[0].shape, result_array(instruction)
    axis = int(config.get("reduction_dim", shape.rank - 1))
    if len(instruction.operands) != 2 * arrays or not 0 <= axis < shape.rank or result.rank != shape.rank:
        refuse(instruction, "takes arrays, and as many initial values")
    size = result.dimensions[axis]
    if size > shape.dimensions[axis] or any(
            (*a.dimensions[:axis], *a.dimensions[axis + 1:]) != (*b.dimensions[:axis], *b.dimensions[axis + 1:])
            for a, b in zip((o.shape for o in instruction.operands[:arrays]), result_shapes(instruction))):
        refuse(instruction, "the results are no parts of the operands")
    return arrays, axis, size


def the_computation(instruction: Instruction):
    called = instruction.get("called_computations")
    if not called or len(called) != 1:
        refuse(instruction, "needs one called computation")
    return called[0]


# -- composites of XLA's builder ---------------------------------------------------------------------------------------

BUILDER_MATH: dict[str, tuple[str, Callable]] = {          # target -> opcode, NumPy
    "xla_builder.math.Acos": ("acos", np.arccos),
    "xla_builder.math.Acosh": ("acosh", np.arccosh),
    "xla_builder.math.Asin": ("asin", np.arcsin),
    "xla_builder.math.Asinh": ("asinh", np.arcsinh),
    "xla_builder.math.Cosh": ("cosh", np.cosh),
}


PHILOX_KEY = 0x02461E293EC8F720


def builder_math(instruction: Instruction, x: np.ndarray):
    with np.errstate(all="ignore"):
        return fitted(instruction, [BUILDER_MATH[unquoted(instruction.get("custom_call_target"))][1](wide(x))])


def arc_tangent(instruction: Instruction, x: np.ndarray):
    with np.errstate(all="ignore"):
        return fitted(instruction, [np.arctan(wide(x))])


def special_function(instruction: Instruction, *operands: np.ndarray):
    with np.errstate(all="ignore"):
        function = SPECIAL[unquoted(instruction.get("custom_call_target"))]
        return fitted(instruction, [function(*np.broadcast_arrays(*map(wide, operands)))])


def scramble_philox_key(instruction: Instruction, key: np.ndarray) -> np.ndarray:
    """The first 64 bits that Philox makes of the counter {low word, 0, high word, 0}."""
    made = [philox(PHILOX_KEY, k & 0xFFFFFFFF | k >> 32 << 64, 1) for k in map(int, np.ravel(key))]
    return np.array([int(words[0][0]) | int(words[1][0]) << 32 for words in made], np.uint64).reshape(key.shape)


def next_after(instruction: Instruction, x: np.ndarray, y: np.ndarray):
    """The neighbour of x on the way to y."""
    return np.nextafter(x, y)


def matrix_diagonal(instruction: Instruction, x: np.ndarray):
    return fitted(instruction, [np.diagonal(x, axis1=-2, axis2=-1)])


def einsum(instruction: Instruction, x: np.ndarray, y: np.ndarray):
    """backend_config is the equation, as of NumPy."""
    return fitted(instruction, [np.einsum(equation(instruction), wide(x), wide(y))])


def equation(instruction: Instruction) -> str:
    """backend_config as it is."""
    return unquoted(str(instruction.get("backend_config", "")))


def tridiagonal(instruction: Instruction, *operands: np.ndarray):
    """Solves along the last dimension. Operands: the diagonals [..., 3, n], or lower, main and upper ones [..., 1, n],
    each as long as the main one; and right-hand sides [..., m, n]."""
    if len(operands) == 2:
        lower, main, upper = (wide(operands[0])[..., k:k + 1, :] for k in range(3))
    else:
        lower, main, upper = (wide(o) for o in operands[:3])
    b = wide(operands[-1]).copy()
    main, count = np.broadcast_to(main, main.shape).copy(), b.shape[-1]
    for k in range(1, count):
        factor = lower[..., k] / main[..., k - 1]
        main[..., k] -= factor * upper[..., k - 1]
        b[..., k] -= factor * b[..., k - 1]
    b[..., -1] /= main[..., -1]
    for k in range(count - 2, -1, -1):
        b[..., k] = (b[..., k] - upper[..., k] * b[..., k + 1]) / main[..., k]
    return fitted(instruction, [b])


# -- Transformer Engine ------------------------------------------------------------------------------------------------

def te_softmax(instruction: Instruction, x: np.ndarray, *_):
    """softmax(scale_factor * x) along the last dimension."""
    scaled = wide(x) * scale_factor(instruction)
    parts = np.exp(scaled - scaled.max(-1, keepdims=True))
    return fitted(instruction, [parts / parts.sum(-1, keepdims=True)])


def te_softmax_gradient(instruction: Instruction, gradient: np.ndarray, y: np.ndarray):
    """The gradient of y = te_softmax(x)."""
    y, gradient = wide(y), wide(gradient)
    inner = gradient - (gradient * y).sum(-1, keepdims=True)
    return fitted(instruction, [scale_factor(instruction) * y * inner])


def scale_factor(instruction: Instruction) -> float:
    """A float of `{scale_factor = 0.2 : f64}` in backend_config; 1 without one."""
    found = re.search(r"\bscale_factor\s*=\s*([-+.\deE]+)", str(instruction.get("backend_config", "")))
    return float(found[1]) if found else 1.0


COMPILER_CALLS: dict[str, Callable] = {
    "X64SplitLow": split_low, "X64SplitHigh": split_high, "X64Combine": combine,
    "Qr": geqrf, "ProductOfElementaryHouseholderReflectors": orgqr, "LuDecomposition": lu_decomposition,
    "Eigh": eigenvectors,
    "Cholesky": tpu_cholesky, "InvertDiagBlocksLowerTriangular": invert_lower, "ConcatBitcast": concat_bitcast,
    "te_scaled_softmax_forward_ffi": te_softmax, "te_scaled_softmax_backward_ffi": te_softmax_gradient,
    **dict.fromkeys(BUILDER_MATH, builder_math),
    **dict.fromkeys(SPECIAL, special_function),
    "xla_builder.math.Atan": arc_tangent,
    "xla_builder.math.NextAfter": next_after,
    "xla_builder.prng.ScramblePhiloxKey": scramble_philox_key,
    "xla_builder.matrix.GetMatrixDiagonalViaGather": matrix_diagonal,
    "xla_builder.matrix.Einsum": einsum,
    "xla_builder.tridiagonal.TridiagonalSolver": tridiagonal,
}
WITH_COMPUTATION: dict[str, Callable] = {                   # these take the evaluator first
    "HostExecute": host_execute, "PartialReduce": approximate_top, "ApproxTopK": approximate_top,
}
