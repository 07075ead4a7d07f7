"""Linear algebra and its neighbours: cholesky, triangular-solve, fft, batch normalization.

In: matrices in the last two dimensions, any batch before them. Out: likewise; computed in f64 or c128 and rounded once.

    l = f32[5,4,4] cholesky(f32[5,4,4] a), lower=true
"""
from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from hloc.ir import Instruction, Shape, numpy_dtype
from hloc.ops.checks import array_operand, array_shape, attribute, fail, listed, require, text
from hloc.ops.op import Op
from hloc.sharding import rules


def wide(x: np.ndarray) -> np.ndarray:
    """f64 or c128."""
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


# -- cholesky ----------------------------------------------------------------------------------------------------------

def cholesky(a: np.ndarray, lower: bool) -> np.ndarray:
    """The triangular factor, zeros in the other triangle; nan if a matrix is not positive definite."""
    a = wide(a)
    half = np.tril(a) if lower else np.conj(np.swapaxes(np.triu(a), -1, -2))
    diagonal = np.zeros_like(half)
    rows = np.arange(a.shape[-1])
    diagonal[..., rows, rows] = half[..., rows, rows].real
    full = np.tril(half, -1) + np.conj(np.swapaxes(np.tril(half, -1), -1, -2)) + diagonal
    factors = np.full(a.shape, np.nan, a.dtype)
    for index in np.ndindex(a.shape[:-2]):
        with suppress(np.linalg.LinAlgError):                     # stays nan
            factor = np.linalg.cholesky(full[index])
            if not np.isnan(np.diagonal(factor)).any():           # some LAPACKs accept nan as positive
                factors[index] = factor
    return factors if lower else np.conj(np.swapaxes(factors, -1, -2))


def evaluate_cholesky(evaluator, instruction: Instruction, a: np.ndarray) -> np.ndarray:
    return cholesky(a, instruction.get("lower", False)).astype(a.dtype)


def _check_matrix(instruction: Instruction, shape: Shape, what: str) -> None:
    require(shape.rank >= 2 and shape.dimensions[-1] == shape.dimensions[-2], instruction,
            f"{what} must be square in its last two dimensions, is {text(shape)}")
    require(shape.kind in ("float", "complex"), instruction,
            f"{what} must be of floats or complex numbers, is {text(shape)}")


def infer_cholesky(instruction: Instruction) -> Shape:
    a = array_operand(instruction, 0)
    _check_matrix(instruction, a, "the operand")
    return a.with_default_layout()


# -- triangular-solve --------------------------------------------------------------------------------------------------

def triangular_solve(a: np.ndarray, b: np.ndarray, *, left_side: bool, lower: bool, unit_diagonal: bool,
                     transpose: str) -> np.ndarray:
    """x with op(a) x = b (left_side) or x op(a) = b; only one triangle of a is read."""
    a, b = wide(a), wide(b)
    if transpose != "NO_TRANSPOSE":
        a, lower = np.swapaxes(a, -1, -2), not lower
    if transpose == "ADJOINT":
        a = np.conj(a)
    if not left_side:                                             # x a = b  is  a^T x^T = b^T
        a, b, lower = np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2), not lower
    n = a.shape[-1]
    x = np.zeros(b.shape, np.result_type(a, b))
    for row in range(n) if lower else reversed(range(n)):
        known = slice(0, row) if lower else slice(row + 1, n)
        rest = b[..., row, :] - np.matmul(a[..., row:row + 1, known], x[..., known, :])[..., 0, :]
        x[..., row, :] = rest if unit_diagonal else rest / a[..., row, row, None]
    return x if left_side else np.swapaxes(x, -1, -2)


def evaluate_triangular_solve(evaluator, instruction: Instruction, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    get = instruction.get
    x = triangular_solve(a, b, left_side=get("left_side", False), lower=get("lower", False),
                         unit_diagonal=get("unit_diagonal", False), transpose=get("transpose_a", "NO_TRANSPOSE"))
    return x.astype(b.dtype)


def infer_triangular_solve(instruction: Instruction) -> Shape:
    a, b = array_operand(instruction, 0), array_operand(instruction, 1)
    _check_matrix(instruction, a, "operand 0")
    require(a.element_type == b.element_type, instruction, f"element types differ: {text(a)} and {text(b)}")
    require(a.rank == b.rank and a.dimensions[:-2] == b.dimensions[:-2], instruction,
            f"batch dimensions differ: {text(a)} and {text(b)}")
    side = b.dimensions[-2] if instruction.get("left_side", False) else b.dimensions[-1]
    require(side == a.dimensions[-1], instruction, f"{text(b)} does not fit the matrix {text(a)}")
    transpose = instruction.get("transpose_a", "TRANSPOSE_INVALID")
    if transpose not in ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"):
        fail(instruction, f"transpose_a={transpose} is not NO_TRANSPOSE, TRANSPOSE or ADJOINT")
    return b.with_default_layout()


# -- fft ---------------------------------------------------------------------------------------------------------------

def evaluate_fft(evaluator, instruction: Instruction, x: np.ndarray) -> np.ndarray:
    lengths = instruction.get("fft_length")
    axes = tuple(range(-len(lengths), 0))
    functions: dict[str, Callable[..., np.ndarray]] = {
        "FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}
    dtype = numpy_dtype(instruction.shape.element_type)
    if 0 in instruction.shape.dimensions or not x.size:
        return np.zeros(instruction.shape.dimensions, dtype)
    return functions[instruction.get("fft_type")](wide(x), s=lengths, axes=axes).astype(dtype)


_REAL_OF = {"c64": "f32", "c128": "f64"}
_COMPLEX_OF = {"f32": "c64", "f64": "c128"}


def infer_fft(instruction: Instruction) -> Shape:
    x = array_operand(instruction, 0)
    kind, lengths = attribute(instruction, "fft_type"), tuple(attribute(instruction, "fft_length"))
    require(kind in ("FFT", "IFFT", "RFFT", "IRFFT"), instruction, f"fft_type={kind} is not FFT, IFFT, RFFT or IRFFT")
    require(1 <= len(lengths) <= 3 and len(lengths) <= x.rank, instruction,
            f"fft_length={listed(lengths)} must have 1 to 3 sizes and fit {text(x)}")
    wanted = ("f32", "f64") if kind == "RFFT" else ("c64", "c128")
    require(x.element_type in wanted, instruction, f"{kind} takes {' or '.join(wanted)}, not {text(x)}")
    batch, sizes = x.dimensions[:x.rank - len(lengths)], x.dimensions[x.rank - len(lengths):]
    half = lengths[:-1] + (lengths[-1] // 2 + 1 if lengths[-1] else 0,)
    expected = half if kind == "IRFFT" else lengths
    require(sizes == expected, instruction,
            f"{kind} of fft_length={listed(lengths)} takes dimensions {listed(expected)}, the operand is {text(x)}")
    if kind == "RFFT":
        return array_shape(_COMPLEX_OF[x.element_type], batch + half)
    return array_shape(_REAL_OF[x.element_type] if kind == "IRFFT" else x.element_type, batch + lengths)


# -- batch normalization -----------------------------------------------------------------------------------------------

def _features(instruction: Instruction, x: np.ndarray):
    """All axes but the feature one, and how a vector of features is laid along it."""
    feature = instruction.get("feature_index")
    axes = tuple(d for d in range(x.ndim) if d != feature)
    return axes, lambda v: wide(v).reshape([-1 if d == feature else 1 for d in range(x.ndim)])


def evaluate_batch_norm_training(evaluator, instruction: Instruction, x, scale, offset):
    """(x - mean) / sqrt(variance + epsilon) * scale + offset, and the mean and (biased) variance."""
    axes, along = _features(instruction, x)
    count = math.prod(x.shape[d] for d in axes)              # none: NaN; numpy.mean would warn
    mean = wide(x).sum(axes) / np.float64(count)
    variance = np.square(wide(x) - along(mean)).sum(axes) / np.float64(count)
    normal = (wide(x) - along(mean)) / np.sqrt(along(variance) + instruction.get("epsilon"))
    result = normal * along(scale) + along(offset)
    return result.astype(x.dtype), mean.astype(scale.dtype), variance.astype(scale.dtype)


def evaluate_batch_norm_inference(evaluator, instruction: Instruction, x, scale, offset, mean, variance) -> np.ndarray:
    _, along = _features(instruction, x)
    normal = (wide(x) - along(mean)) / np.sqrt(along(variance) + instruction.get("epsilon"))
    return (normal * along(scale) + along(offset)).astype(x.dtype)


def evaluate_batch_norm_grad(evaluator, instruction: Instruction, x, scale, mean, variance, grad):
    """Gradients with respect to x, scale and offset."""
    axes, along = _features(instruction, x)
    count = x.size // max(1, scale.size)
    centered, grad_out = wide(x) - along(mean), wide(grad)
    deviation = np.sqrt(along(variance) + instruction.get("epsilon"))
    grad_offset = grad_out.sum(axes)
    grad_scale = (grad_out * centered / deviation).sum(axes)
    spread = count * grad_out - along(grad_offset) - centered / deviation * along(grad_scale)
    grad_x = along(scale) / deviation / count * spread
    return grad_x.astype(x.dtype), grad_scale.astype(scale.dtype), grad_offset.astype(scale.dtype)


def _check_batch_norm(instruction: Instruction, vectors: int) -> tuple[Shape, Shape]:
    """The shapes of the operand and of a vector of features."""
    x = array_operand(instruction, 0)
    feature = attribute(instruction, "feature_index")
    attribute(instruction, "epsilon")
    require(0 <= feature < x.rank, instruction, f"feature_index={feature} is no dimension of {text(x)}")
    require(x.kind == "float", instruction, f"the operand must be of floats, is {text(x)}")
    for index in range(1, 1 + vectors):
        vector = array_operand(instruction, index)
        require(vector.dimensions == (x.dimensions[feature],) and vector.kind == "float", instruction,
                f"operand {index} must have one element per feature of {text(x)}, is {text(vector)}")
    return x.with_default_layout(), array_operand(instruction, 1).with_default_layout()


def infer_batch_norm_training(instruction: Instruction) -> Shape:
    x, vector = _check_batch_norm(instruction, 2)
    return Shape.tuple([x, vector, vector])


def infer_batch_norm_inference(instruction: Instruction) -> Shape:
    return _check_batch_norm(instruction, 4)[0]


def infer_batch_norm_grad(instruction: Instruction) -> Shape:
    x, vector = _check_batch_norm(instruction, 3)
    grad = array_operand(instruction, 4)
    require(grad.dimensions == x.dimensions, instruction,
            f"the gradient {text(grad)} differs from the operand {text(x)}")
    return Shape.tuple([x, vector, vector])


_NORM = ("epsilon", "feature_index")

ROWS: tuple[Op, ...] = (
    Op("cholesky", arity=1, infer=infer_cholesky, evaluate=evaluate_cholesky, optional=("lower",),
       sharding=rules.batched(2)),
    Op("triangular-solve", arity=2, infer=infer_triangular_solve, evaluate=evaluate_triangular_solve,
       optional=("left_side", "lower", "unit_diagonal", "transpose_a"), sharding=rules.batched(2)),
    Op("fft", arity=1, infer=infer_fft, evaluate=evaluate_fft, required=("fft_type", "fft_length"),
       sharding=rules.along(lambda i: range(i.shape.rank - len(i.get("fft_length")), i.shape.rank))),
    Op("batch-norm-training", arity=3, infer=infer_batch_norm_training, evaluate=evaluate_batch_norm_training,
       required=_NORM),
    Op("batch-norm-inference", arity=5, infer=infer_batch_norm_inference, evaluate=evaluate_batch_norm_inference,
       required=_NORM),
    Op("batch-norm-grad", arity=5, infer=infer_batch_norm_grad, evaluate=evaluate_batch_norm_grad, required=_NORM),
)
