"""The factorizations that JAX calls by name: LAPACK on CPUs, cuSOLVER on GPUs.

In: batches of matrices. Out: a tuple as the call's result shape says; `info` is not 0 where a matrix was singular.

    (f32[4,4], s32[]) custom-call(f32[4,4] a), custom_call_target="lapack_spotrf_ffi", backend_config={uplo = 76 : ui8}
"""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import Instruction, Shape, numpy_dtype
from hloc.ops.linalg import cholesky, triangular_solve, wide


def option(instruction: Instruction, name: str, default: int) -> int:
    """An integer, or a letter as its code, or a truth value, of `{name = 76 : ui8, ...}` in backend_config."""
    match = re.search(rf"\b{name}\s*=\s*(?:(-?\d+)|(true|false))", str(instruction.get("backend_config", "")))
    if match is None:
        return default
    return int(match[1]) if match[1] else int(match[2] == "true")


def result_shapes(instruction: Instruction) -> Sequence[Shape]:
    return instruction.shape.tuple_shapes if instruction.shape.is_tuple else (instruction.shape,)


def fitted(instruction: Instruction, parts: Sequence[np.ndarray]):
    """`parts` in the result's types and shapes; results behind them (workspaces) are zeros."""
    results = []
    for number, shape in enumerate(result_shapes(instruction)):
        dtype = numpy_dtype(shape.element_type)
        if number >= len(parts):
            results.append(np.zeros(shape.dimensions, dtype))
            continue
        part = np.asarray(parts[number])
        if part.size != shape.num_elements:
            raise UnsupportedError(f"result {number} of the custom-call has {part.size} elements, "
                                   f"not {shape.num_elements}", instruction.span)
        results.append(part.astype(dtype).reshape(shape.dimensions))
    return tuple(results) if instruction.shape.is_tuple else results[0]


def _info(matrices: np.ndarray, bad: np.ndarray | None = None) -> np.ndarray:
    return np.zeros(matrices.shape[:-2], np.int32) if bad is None else bad.astype(np.int32)


def potrf(instruction: Instruction, a: np.ndarray, *_):
    factor = cholesky(a, lower=option(instruction, "uplo", ord("L")) in (ord("L"), 1))
    return fitted(instruction, [factor, _info(a, np.isnan(factor).any((-1, -2)))])


def getrf(instruction: Instruction, a: np.ndarray, *_):
    lu, pivots, singular = lu_factors(a)
    return fitted(instruction, [lu, pivots + 1, singular])


def lu_factors(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """L and U in one matrix, the row that each row was exchanged with, and the first zero pivot (from 1; 0: none)."""
    lu = wide(a).copy()
    rows, columns = lu.shape[-2:]
    count = min(rows, columns)
    pivots, singular = np.zeros(lu.shape[:-2] + (count,), np.int64), np.zeros(lu.shape[:-2], np.int32)
    for index in np.ndindex(lu.shape[:-2]):
        m = lu[index]
        for k in range(count):
            pivot = k + int(np.argmax(np.abs(m[k:, k])))
            pivots[index][k] = pivot
            m[[k, pivot]] = m[[pivot, k]]
            if m[k, k] == 0:
                singular[index] = singular[index] or k + 1
                continue
            m[k + 1:, k] /= m[k, k]
            m[k + 1:, k + 1:] -= np.outer(m[k + 1:, k], m[k, k + 1:])
    return lu, pivots, singular


def pivots_to_permutation(instruction: Instruction, pivots: np.ndarray, *_):
    """The row order that a list of exchanges (from 0) leads to."""
    size = result_shapes(instruction)[0].dimensions[-1]
    order = np.broadcast_to(np.arange(size), pivots.shape[:-1] + (size,)).copy()
    for index in np.ndindex(pivots.shape[:-1]):
        for k, other in enumerate(pivots[index]):
            order[index][[k, other]] = order[index][[other, k]]
    return fitted(instruction, [order])


def geqrf(instruction: Instruction, a: np.ndarray, *_):
    """R above the diagonal, Householder vectors below, and their factors tau."""
    packed, taus = np.zeros_like(wide(a)), np.zeros(a.shape[:-2] + (min(a.shape[-2:]),), wide(a).dtype)
    for index in np.ndindex(a.shape[:-2]):
        h, tau = np.linalg.qr(wide(a[index]), mode="raw")
        packed[index], taus[index] = h.T, tau
    return fitted(instruction, [packed, taus, _info(a)])


def orgqr(instruction: Instruction, packed: np.ndarray, taus: np.ndarray, *_):
    """The first columns of the product of the Householder reflections."""
    packed, taus = wide(packed), wide(taus)
    rows, columns = packed.shape[-2:]
    q = np.zeros_like(packed)
    q[..., np.arange(columns), np.arange(columns)] = 1
    for k in reversed(range(taus.shape[-1])):
        v = packed[..., :, k].copy()
        v[..., :k], v[..., k] = 0, 1
        along = np.einsum("...r,...rc->...c", np.conj(v), q)
        q = q - taus[..., k, None, None] * v[..., :, None] * along[..., None, :]
    return fitted(instruction, [q, _info(packed)])


def syevd(instruction: Instruction, a: np.ndarray, *_):
    """Eigenvectors and eigenvalues (ascending) of a hermitian matrix, of which one triangle is read."""
    lower = option(instruction, "uplo", option(instruction, "lower", ord("L"))) in (ord("L"), 1)
    values, vectors = np.linalg.eigh(wide(a), UPLO="L" if lower else "U")
    return fitted(instruction, [vectors, values, _info(a)])


def gesdd(instruction: Instruction, a: np.ndarray, *_):
    """Results in LAPACK's order: a destroyed, singular values, u, v^h, info."""
    shapes = result_shapes(instruction)
    if len(shapes) < 5 or 0 in shapes[2].dimensions:
        raise UnsupportedError("a singular value decomposition without vectors", instruction.span)
    u, s, v = np.linalg.svd(wide(a), full_matrices=shapes[2].dimensions[-1] == shapes[2].dimensions[-2] and
                            shapes[3].dimensions[-1] == shapes[3].dimensions[-2])
    return fitted(instruction, [a, s, u, v, _info(a)])


def trsm(instruction: Instruction, a: np.ndarray, b: np.ndarray, *_):
    transpose = {ord("N"): "NO_TRANSPOSE", ord("T"): "TRANSPOSE", ord("C"): "ADJOINT"}
    x = triangular_solve(a, b, left_side=option(instruction, "side", ord("L")) == ord("L"),
                         lower=option(instruction, "uplo", ord("L")) == ord("L"),
                         unit_diagonal=option(instruction, "diag", ord("N")) == ord("U"),
                         transpose=transpose[option(instruction, "trans_x", ord("N"))])
    return fitted(instruction, [x])


def _named(function: Callable, real: str, unitary: str | None = None) -> dict[str, Callable]:
    """LAPACK's names for the four element types."""
    return {f"lapack_{letter}{real if letter in 'sd' else unitary or real}_ffi": function for letter in "sdcz"}


LINEAR_ALGEBRA: dict[str, Callable] = {
    **_named(potrf, "potrf"), **_named(getrf, "getrf"), **_named(geqrf, "geqrf"), **_named(orgqr, "orgqr", "ungqr"),
    **_named(syevd, "syevd", "heevd"), **_named(gesdd, "gesdd"), **_named(trsm, "trsm"),
    "cusolver_potrf_ffi": potrf, "cusolver_getrf_ffi": getrf, "cusolver_geqrf_ffi": geqrf, "cusolver_orgqr_ffi": orgqr,
    "cusolver_syevd_ffi": syevd, "cu_lu_pivots_to_permutation": pivots_to_permutation,
    "lu_pivots_to_permutation": pivots_to_permutation,
}
