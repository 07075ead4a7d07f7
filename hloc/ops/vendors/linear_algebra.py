"""The factorizations that JAX calls by name: LAPACK on CPUs, cuSOLVER on GPUs.

In: batches of matrices. Out: a tuple of the call's result shape; `info` is not 0 if a matrix was singular.

    (f32[4,4], s32[]) custom-call(f32[4,4] a), custom_call_target="lapack_spotrf_ffi", backend_config={uplo = 76 : ui8}
"""
from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import Instruction, Shape, numpy_dtype
from hloc.ops.linalg import cholesky, triangular_solve, wide
from hloc.ops.random import threefry
from hloc.ops.schur import schur

ESCAPED = re.compile(r"\\([0-3]?[0-7]{1,2})|\\(.)|.", re.DOTALL)        # a byte of a string that holds any
TRANSPOSES = {ord("N"): "NO_TRANSPOSE", ord("T"): "TRANSPOSE", ord("C"): "ADJOINT"}


def option(instruction: Instruction, name: str, default: int) -> int:
    """An integer, or a letter as its code, or a truth value, of `{name = 76 : ui8, ...}` in backend_config."""
    match = re.search(rf"\b{name}\s*=\s*(?:(-?\d+)|(true|false))", str(instruction.get("backend_config", "")))
    if match is None:
        return default
    return int(match[1]) if match[1] else int(match[2] == "true")


def transposition(instruction: Instruction) -> str:
    """trsm's `trans_x` as triangular-solve's transpose_a."""
    code = option(instruction, "trans_x", ord("N"))
    if code not in TRANSPOSES:
        raise UnsupportedError(f"trans_x = {code}: known are {sorted(TRANSPOSES)}", instruction.span)
    return TRANSPOSES[code]


def result_shapes(instruction: Instruction) -> Sequence[Shape]:
    return instruction.shape.tuple_shapes if instruction.shape.is_tuple else (instruction.shape,)


def fitted(instruction: Instruction, parts: Sequence[np.ndarray]):
    """`parts` in the result's types and shapes; further results (workspaces) are zeros."""
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
    """L and U in one matrix, the row that each row was exchanged with, and the first zero pivot (from 1; 0: none).
    The pivot is the largest by |re| + |im|, as in LAPACK."""
    lu = wide(a).copy()
    rows, columns = lu.shape[-2:]
    count = min(rows, columns)
    pivots, singular = np.zeros(lu.shape[:-2] + (count,), np.int64), np.zeros(lu.shape[:-2], np.int32)
    for index in np.ndindex(lu.shape[:-2]):
        m = lu[index]
        for k in range(count):
            pivot = k + int(np.argmax(np.abs(m[k:, k].real) + np.abs(m[k:, k].imag)))
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
    return fitted(instruction, [permutation(pivots, result_shapes(instruction)[0].dimensions[-1])])


def permutation(pivots: np.ndarray, size: int) -> np.ndarray:
    """Where `size` rows end up when each in turn is exchanged with the one that `pivots` names. As where JAX writes
    this out, negative pivots count from the end, those beyond it read the nearest row and write none."""
    order = np.broadcast_to(np.arange(size), pivots.shape[:-1] + (size,)).copy()
    for index in np.ndindex(pivots.shape[:-1]):
        rows = order[index]
        for k, pivot in enumerate(map(int, pivots[index])):
            other = pivot + size if pivot < 0 else pivot
            row, rows[k] = rows[k], rows[min(max(other, 0), size - 1)]
            if 0 <= other < size:
                rows[other] = row
    return order


def geqrf(instruction: Instruction, a: np.ndarray, *_):
    """R above the diagonal, Householder vectors below, and their factors tau."""
    packed, taus = np.zeros_like(wide(a)), np.zeros(a.shape[:-2] + (min(a.shape[-2:]),), wide(a).dtype)
    for index in np.ndindex(a.shape[:-2]):
        h, tau = np.linalg.qr(wide(a[index]), mode="raw")
        packed[index], taus[index] = h.T, tau
    return fitted(instruction, [packed, taus, _info(a)])


def orgqr(instruction: Instruction, packed: np.ndarray, taus: np.ndarray, *_):
    """The first columns of the product of the Householder reflections."""
    start = np.broadcast_to(np.eye(*packed.shape[-2:], dtype=wide(packed).dtype), packed.shape)
    return fitted(instruction, [times_q(packed, taus, start), _info(packed)])


def ormqr(instruction: Instruction, packed: np.ndarray, taus: np.ndarray, c: np.ndarray, *_):
    """Q c, c Q, or with Q^H (`transpose`)."""
    adjoint = bool(option(instruction, "transpose", 0))
    if option(instruction, "left", 1):
        return fitted(instruction, [times_q(packed, taus, c, adjoint), _info(packed)])
    product = times_q(packed, taus, _adjoint(c), not adjoint)
    return fitted(instruction, [_adjoint(product), _info(packed)])


def _adjoint(a: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(wide(a), -1, -2))


def times_q(packed: np.ndarray, taus: np.ndarray, c: np.ndarray, adjoint: bool = False) -> np.ndarray:
    """Q c or Q^H c, where Q is the product of the reflections 1 - tau v v^H that stand below the diagonal."""
    packed, taus, c = wide(packed), wide(taus), wide(c)
    order = range(taus.shape[-1])
    for k in order if adjoint else reversed(order):
        v = packed[..., :, k].copy()
        v[..., :k], v[..., k] = 0, 1
        along = np.einsum("...r,...rc->...c", np.conj(v), c)
        tau = np.conj(taus[..., k]) if adjoint else taus[..., k]
        c = c - tau[..., None, None] * v[..., :, None] * along[..., None, :]
    return c


def reflection(x: np.ndarray) -> tuple[np.ndarray, complex, float]:
    """v (v[0] is 1), tau and beta with (1 - tau v v^H)^H x = (beta, 0, ...), as LAPACK's larfg has them."""
    length = np.linalg.norm(x)
    v = np.zeros_like(x)
    v[0] = 1
    if length == 0 or (not np.any(x[1:]) and x[0].imag == 0):
        return v, 0.0, x[0].real
    beta = -np.copysign(length, x[0].real)
    v[1:] = x[1:] / (x[0] - beta)
    return v, (beta - x[0]) / beta, beta


def gehrd(instruction: Instruction, a: np.ndarray, *_):
    """Hessenberg form, Householder vectors below it, and their factors; rows low to high (from 1) are worked on."""
    size = a.shape[-1]
    low, high = option(instruction, "low", 1) - 1, option(instruction, "high", size)
    packed, taus = wide(a).copy(), np.zeros(a.shape[:-2] + (max(0, size - 1),), wide(a).dtype)
    for index in np.ndindex(a.shape[:-2]):
        m = packed[index]
        for i in range(low, high - 1):
            v, tau, beta = reflection(m[i + 1:high, i])
            m[:high, i + 1:high] -= tau * np.outer(m[:high, i + 1:high] @ v, np.conj(v))
            m[i + 1:high, i + 1:] -= np.conj(tau) * np.outer(v, np.conj(v) @ m[i + 1:high, i + 1:])
            m[i + 1, i], m[i + 2:high, i] = beta, v[1:]
            taus[(*index, i)] = tau
    return fitted(instruction, [packed, taus, _info(a)])


def sytrd(instruction: Instruction, a: np.ndarray, *_):
    """Tridiagonal form of a hermitian matrix: vectors in place, diagonal, off-diagonal, factors."""
    size, lower = a.shape[-1], is_lower(instruction)
    packed, kind = wide(a).copy(), wide(a).dtype
    diagonal, beside = np.zeros(a.shape[:-1]), np.zeros(a.shape[:-2] + (max(0, size - 1),))
    taus = np.zeros(beside.shape, kind)
    for index in np.ndindex(a.shape[:-2]):
        half = np.tril(packed[index]) if lower else np.conj(np.triu(packed[index]).T)
        m = half + np.conj(np.tril(half, -1).T)
        for i in range(size - 1) if lower else range(size - 2, -1, -1):
            inner, column = (slice(i + 1, size), i) if lower else (slice(0, i + 1), i + 1)
            x = m[inner, column] if lower else m[inner, column][::-1]
            v, tau, beta = reflection(x)
            stored = v if lower else v[::-1]
            h = np.eye(len(v), dtype=kind) - tau * np.outer(stored, np.conj(stored))
            m[inner, inner] = np.conj(h.T) @ m[inner, inner] @ h
            rest = slice(i + 2, size) if lower else slice(0, i)
            packed[index][rest, column] = stored[1:] if lower else stored[:-1]
            packed[index][(i + 1, i) if lower else (i, i + 1)] = beta
            beside[(*index, i)], taus[(*index, i)] = beta, tau
        diagonal[index] = m.diagonal().real
        packed[index][np.arange(size), np.arange(size)] = diagonal[index]
    return fitted(instruction, [packed, diagonal, beside, taus, _info(a)])


def geqp3(instruction: Instruction, a: np.ndarray, chosen: np.ndarray, *_):
    """QR with the longest remaining column next: packed as geqrf has it, the columns' places (from 1), factors.
    Columns marked in `chosen` go in front."""
    packed, (rows, columns) = wide(a).copy(), a.shape[-2:]
    taus = np.zeros(a.shape[:-2] + (min(rows, columns),), packed.dtype)
    places = np.zeros(chosen.shape, np.int64)
    for index in np.ndindex(a.shape[:-2]):
        order = sorted(range(columns), key=lambda c: not chosen[(*index, c)])
        fixed, m = int(np.count_nonzero(chosen[index])), packed[index][:, order].copy()
        for k in range(taus.shape[-1]):
            longest = k if k < fixed else k + int(np.argmax(np.linalg.norm(m[k:, k:], axis=0)))
            m[:, [k, longest]] = m[:, [longest, k]]
            order[k], order[longest] = order[longest], order[k]
            v, tau, beta = reflection(m[k:, k])
            m[k:, k:] -= np.conj(tau) * np.outer(v, np.conj(v) @ m[k:, k:])
            m[k, k], m[k + 1:, k] = beta, v[1:]
            taus[(*index, k)] = tau
        packed[index], places[index] = m, np.array(order) + 1
    return fitted(instruction, [packed, places, taus])


def is_lower(instruction: Instruction) -> bool:
    """uplo = 'L', or lower = true."""
    return option(instruction, "uplo", option(instruction, "lower", ord("L"))) in (ord("L"), 1)


def legacy_syevd(instruction: Instruction, a: np.ndarray, *_):
    """As syevd, for calls older than the FFI: backend_config holds a C struct (element type, triangle, batch, size,
    workspace; hipSOLVER's triangles are 121 and 122)."""
    written = str(instruction.get("backend_config", "")).strip().strip('"')
    packed = [int(m[1], 8) if m[1] else ord(m[2] or m[0]) for m in ESCAPED.finditer(written)]
    triangle = int.from_bytes(bytes(packed[4:8]), "little") if len(packed) >= 8 else 0
    values, vectors = np.linalg.eigh(wide(a), UPLO="U" if triangle in (1, 121) else "L")
    return fitted(instruction, [vectors, values, _info(a)])


def syevd(instruction: Instruction, a: np.ndarray, *_):
    """Eigenvectors and eigenvalues (ascending) of a hermitian matrix, of which one triangle is read."""
    values, vectors = np.linalg.eigh(wide(a), UPLO="L" if is_lower(instruction) else "U")
    return fitted(instruction, [vectors, values, _info(a)])


def gesdd(instruction: Instruction, a: np.ndarray, *_):
    """Results in LAPACK's order: a destroyed, singular values, u, v^h, info; u and v^h are as large as is asked for."""
    return fitted(instruction, [a, *_svd(instruction, a, 2, 3), _info(a)])


def gesvd(instruction: Instruction, a: np.ndarray, *_):
    """As gesdd, but for `transposed`: v^h before u."""
    if not option(instruction, "transposed", 0):
        return gesdd(instruction, a)
    s, u, v = _svd(instruction, a, 3, 2)
    return fitted(instruction, [a, s, v, u, _info(a)])


def gesvdj(instruction: Instruction, a: np.ndarray, *_):
    """As gesdd, but v stands where v^h does there."""
    columns = result_shapes(instruction)[3].dimensions[-1]
    s, u, v = _svd(instruction, a, 2, None, columns)
    return fitted(instruction, [a, s, u, _adjoint(v), _info(a)])


def _svd(instruction: Instruction, a: np.ndarray, left: int, right: int | None, rows: int = 0):
    """s, u, v^h; u has as many columns as result `left`, v^h as many rows as result `right`. Scalars where the vectors
    are not wanted."""
    shapes = result_shapes(instruction)
    if len(shapes) < 5:
        raise UnsupportedError(f"a singular value decomposition with {len(shapes)} results", instruction.span)
    if shapes[left].rank < 2:
        s = np.linalg.svd(wide(a), compute_uv=False)
        return s, np.zeros(shapes[left].dimensions), np.zeros(shapes[5 - left].dimensions)
    rows, columns = rows if right is None else shapes[right].dimensions[-2], shapes[left].dimensions[-1]
    u, s, v = np.linalg.svd(wide(a), full_matrices=max(rows, columns) > min(a.shape[-2:]))
    return s, u[..., :, :columns], v[..., :rows, :]


def geev(instruction: Instruction, a: np.ndarray, *_):
    """Eigenvalues (of real matrices: real and imaginary parts), left and right eigenvectors, info."""
    values, left, right = eigen(a)
    parts = [values] if a.dtype.kind == "c" else [values.real, values.imag]
    return fitted(instruction, [*parts, left, right, _info(a)])


def cusolver_geev(instruction: Instruction, a: np.ndarray, *_):
    """a destroyed, eigenvalues, eigenvectors: of real matrices, a pair of conjugate ones is its two parts."""
    values, left, right = eigen(a)
    if a.dtype.kind != "c":
        down = values.imag[..., None, :] < 0
        left, right = (np.where(down, -v.imag, v.real) for v in (left, right))
    return fitted(instruction, [a, values, left, right, _info(a)])


def eigen(a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eigenvalues, left and right eigenvectors in the same order, of length 1."""
    values, right = np.linalg.eig(wide(a))
    conjugates, vectors = np.linalg.eig(_adjoint(a))
    left = np.zeros(right.shape, np.complex128)
    for index in np.ndindex(a.shape[:-2]):
        free = list(range(a.shape[-1]))
        for k, value in enumerate(values[index]):
            nearest = min(free, key=lambda n: abs(np.conj(conjugates[(*index, n)]) - value))
            free.remove(nearest)
            left[(*index, slice(None), k)] = vectors[(*index, slice(None), nearest)]
    return values.astype(np.complex128), left, right.astype(np.complex128)


def gees(instruction: Instruction, a: np.ndarray, *_):
    """The Schur form, its vectors, eigenvalues (of real matrices: real and imaginary parts), none selected, info."""
    t, z, info = np.zeros_like(wide(a)), np.zeros_like(wide(a)), np.zeros(a.shape[:-2], np.int32)
    values = np.zeros(a.shape[:-1], np.complex128)
    for index in np.ndindex(a.shape[:-2]):
        t[index], z[index], converged = schur(wide(a[index]), reflection)
        values[index], info[index] = block_eigenvalues(t[index]), not converged
    parts = [values] if a.dtype.kind == "c" else [values.real, values.imag]
    return fitted(instruction, [t, z, *parts, np.zeros(info.shape), info])


def block_eigenvalues(t: np.ndarray) -> np.ndarray:
    """Of a triangular matrix with blocks of two rows; of a pair of conjugates, the one with the positive part first."""
    values = t.diagonal().astype(np.complex128)
    for k in np.flatnonzero(t.diagonal(-1)):
        values[k:k + 2] = sorted(np.linalg.eigvals(t[k:k + 2, k:k + 2]), key=lambda v: -v.imag)
    return values


def gtsv(instruction: Instruction, below: np.ndarray, diagonal: np.ndarray, above: np.ndarray, b: np.ndarray):
    """The solution of a tridiagonal system; where the call has the diagonals as results too, they are as given.
    below[0] and above[-1] stand outside."""
    size = diagonal.shape[-1]
    m = np.zeros(diagonal.shape + (size,), wide(b).dtype)
    rows = np.arange(size)
    m[..., rows, rows] = diagonal
    m[..., rows[1:], rows[:-1]], m[..., rows[:-1], rows[1:]] = below[..., 1:], above[..., :-1]
    x, info = np.full(b.shape, np.nan, m.dtype), np.ones(b.shape[:-2], np.int32)
    for index in np.ndindex(b.shape[:-2]):
        try:
            x[index], info[index] = np.linalg.solve(m[index], wide(b[index])), 0
        except np.linalg.LinAlgError:
            pass                                                  # stays nan, and info 1
    return fitted(instruction, [below, diagonal, above, x, info] if instruction.shape.is_tuple else [x])


def threefry2x32(instruction: Instruction, *words: np.ndarray):
    """JAX's random bits: two key words and two counter words an element."""
    key, counters = (low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32)
                     for low, high in (words[:2], words[2:4]))
    return fitted(instruction, threefry(key, counters))


def trsm(instruction: Instruction, a: np.ndarray, b: np.ndarray, *_):
    x = triangular_solve(a, b, left_side=option(instruction, "side", ord("L")) == ord("L"),
                         lower=option(instruction, "uplo", ord("L")) == ord("L"),
                         unit_diagonal=option(instruction, "diag", ord("N")) == ord("U"),
                         transpose=transposition(instruction))
    return fitted(instruction, [x])


def cusolver_cholesky(instruction: Instruction, a: np.ndarray, *_):
    """XLA's own call: the factor, a workspace, info."""
    factor = cholesky(a, lower=lower_triangle(instruction))
    return fitted(instruction, [factor, np.zeros(result_shapes(instruction)[1].dimensions),
                                _info(a, np.isnan(factor).any((-1, -2)))])


def lower_triangle(instruction: Instruction) -> bool:
    return '"lower":false' not in _compact(instruction)


def cublas_triangular_solve(instruction: Instruction, a: np.ndarray, b: np.ndarray):
    """XLA's own call: x, and a workspace."""
    return fitted(instruction, [triangular_solve(a, b, **triangular_options(instruction))])


def triangular_options(instruction: Instruction) -> dict:
    """left_side, lower, unit_diagonal and transpose of the JSON in backend_config."""
    written = _compact(instruction)
    transpose = re.search(r'"transpose_a":"(\w+)"', written)
    return {**{key: f'"{key}":true' in written for key in ("left_side", "lower", "unit_diagonal")},
            "transpose": transpose[1] if transpose and transpose[1] in TRANSPOSES.values() else "NO_TRANSPOSE"}


def _compact(instruction: Instruction) -> str:
    return re.sub(r"[\s\\]", "", str(instruction.get("backend_config", "")))


def _named(function: Callable, real: str, unitary: str | None = None) -> dict[str, Callable]:
    """LAPACK's names for the four element types."""
    return {f"lapack_{letter}{real if letter in 'sd' else unitary or real}_ffi": function for letter in "sdcz"}


def _on_gpus(**functions: Callable) -> dict[str, Callable]:
    """The names of NVIDIA's and AMD's libraries."""
    return {f"{library}_{name}_ffi": function for library in ("cusolver", "hipsolver")
            for name, function in functions.items()}


LINEAR_ALGEBRA: dict[str, Callable] = {
    **_named(potrf, "potrf"), **_named(getrf, "getrf"), **_named(geqrf, "geqrf"), **_named(orgqr, "orgqr", "ungqr"),
    **_named(ormqr, "ormqr", "unmqr"), **_named(geqp3, "geqp3"), **_named(gehrd, "gehrd"),
    **_named(sytrd, "sytrd", "hetrd"), **_named(syevd, "syevd", "heevd"), **_named(geev, "geev"),
    **_named(gees, "gees"),
    **_named(gesdd, "gesdd"), **_named(gesvd, "gesvd"), **_named(trsm, "trsm"), **_named(gtsv, "gtsv"),
    **_on_gpus(potrf=potrf, getrf=getrf, geqrf=geqrf, orgqr=orgqr, ormqr=ormqr, syevd=syevd, sytrd=sytrd, gesvd=gesvd,
               gesvdj=gesvdj, gesvdp=gesvdj, gesdd=gesdd, geev=cusolver_geev),
    **{f"{library}hybrid_{name}": function for library in ("cu", "hip") for name, function in (
        ("eig_real", geev), ("eig_comp", geev), ("geqp3", geqp3))},
    **{f"{library}_{name}": legacy_syevd for library in ("cusolver", "hipsolver") for name in ("syevd", "syevj")},
    "cusparse_gtsv2_ffi": gtsv, "hipsparse_gtsv2_ffi": gtsv,
    "cu_threefry2x32_ffi": threefry2x32, "hip_threefry2x32_ffi": threefry2x32,
    "cu_lu_pivots_to_permutation": pivots_to_permutation, "hip_lu_pivots_to_permutation": pivots_to_permutation,
    "lu_pivots_to_permutation": pivots_to_permutation,
    "__cusolver$cholesky": cusolver_cholesky, "__cublas$triangularSolve": cublas_triangular_solve,
}
