"""JAX's calls of LAPACK in compiled C, through SciPy; what the factors mean, not their signs, is compared."""
from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from hloc import api
from hloc.errors import UnsupportedError
from hloc.targets.cpu.execution import lapack as own

pytestmark = pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="SciPy is not installed")
TYPES = {"s": ("f32", np.float32), "d": ("f64", np.float64), "c": ("c64", np.complex64), "z": ("c128", np.complex128)}


def program(letter: str, routine: str, operands: list[str], results: list[str], config: str = "") -> str:
    """A module of one call; T stands for its element type, R for its real type."""
    element = TYPES[letter][0]
    real = {"c64": "f32", "c128": "f64"}.get(element, element)

    def shape(text: str) -> str:
        return text.replace("T", element).replace("R", real)
    lines = [f"  p{i} = {shape(o)} parameter({i})" for i, o in enumerate(operands)]
    result = shape(results[0]) if len(results) == 1 else "(" + ", ".join(map(shape, results)) + ")"
    names = ", ".join(f"p{i}" for i in range(len(operands)))
    return "\n".join(["HloModule m", "ENTRY e {", *lines,
                      f'  ROOT r = {result} custom-call({names}), custom_call_target="lapack_{letter}{routine}_ffi", '
                      f"api_version=API_VERSION_TYPED_FFI, backend_config={{{config}}}", "}"])


def run(text: str, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """On the CPU, and without Python in between."""
    exe = api.compile(text, "cpu")
    assert "hloc_call_lapack(" in exe.source and "hloc_call_host(" not in exe.source
    return exe(*arrays)


def matrices(letter: str, *shape: int) -> np.ndarray:
    random = np.random.default_rng(0)
    dtype = TYPES[letter][1]
    parts = [random.standard_normal(shape) for _ in range(2)]
    return (parts[0] + 1j * parts[1] if dtype in (np.complex64, np.complex128) else parts[0]).astype(dtype)


def close(got: np.ndarray, want: np.ndarray) -> None:
    single = {np.dtype(np.float32), np.dtype(np.complex64)} & {got.dtype, want.dtype}
    tolerance = 1e-4 if single else 1e-11
    np.testing.assert_allclose(got, want, atol=tolerance * max(1, np.abs(want).max()), rtol=0)


def adjoint(a: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(a, -1, -2))


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("size", [(4, 4), (5, 3), (3, 5), (40, 37)])
def test_lu(letter, size):
    rows, columns = size
    small = min(size)
    a = matrices(letter, 2, 3, *size)
    lu, pivots, info = run(program(letter, "getrf", [f"T[2,3,{rows},{columns}]"], [
        f"T[2,3,{rows},{columns}]", f"s32[2,3,{small}]", "s32[2,3]"]), a)
    assert not info.any()
    lower = np.tril(lu, -1)[..., :small] + np.eye(rows, small)
    for index in np.ndindex(2, 3):
        permuted = a[index].copy()
        for k, other in enumerate(pivots[index] - 1):
            permuted[[k, other]] = permuted[[other, k]]
        close(lower[index] @ np.triu(lu[index])[:small], permuted)


def test_a_singular_matrix_says_where():
    lu, _, info = run(program("s", "getrf", ["T[3,3]"], ["T[3,3]", "s32[3]", "s32[]"]),
                      np.diag([1, 0, 2]).astype(np.float32))
    assert info == 2 and np.array_equal(lu, np.diag([1, 0, 2]))


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("size", [(5, 3), (4, 4), (60, 20)])
def test_qr(letter, size):
    rows, columns = size
    a = matrices(letter, 3, *size)
    shape = f"T[3,{rows},{columns}]"
    packed, taus = run(program(letter, "geqrf", [shape], [shape, f"T[3,{columns}]"]), a)
    (q,) = run(program(letter, "ungqr" if letter in "cz" else "orgqr", [shape, f"T[3,{columns}]"], [shape]),
               packed, taus)
    close(adjoint(q) @ q, np.broadcast_to(np.eye(columns), (3, columns, columns)))
    close(q @ np.triu(packed)[:, :columns], a)


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigenvectors(letter, uplo):
    a = matrices(letter, 2, 7, 7)
    a = a + adjoint(a)
    half = np.tril(a) if uplo == "L" else np.triu(a)               # the other triangle is not read
    vectors, values, info = run(program(
        letter, "heevd" if letter in "cz" else "syevd", ["T[2,7,7]"], ["T[2,7,7]", "R[2,7]", "s32[2]"],
        f"mode = 86 : ui8, uplo = {ord(uplo)} : ui8"), half)
    assert not info.any() and (np.diff(values) >= 0).all()
    close(a @ vectors, vectors * values[:, None])


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("routine", ["gesdd", "gesvd"])
@pytest.mark.parametrize("mode, left, right", [("S", 3, 3), ("A", 5, 3), ("N", 5, 3)])
def test_singular_values(letter, routine, mode, left, right):
    a = matrices(letter, 2, 5, 3)
    same, s, u, v, info = run(program(letter, routine, ["T[2,5,3]"], [
        "T[2,5,3]", "R[2,3]", f"T[2,5,{left}]", f"T[2,{right},3]", "s32[2]"], f"mode = {ord(mode)} : ui8"), a)
    assert not info.any() and np.array_equal(same, a)
    close(s, np.linalg.svd(a, compute_uv=False))
    if mode == "N":
        assert not u.any() and not v.any()
    else:
        close((u[..., :3] * s[:, None]) @ v, a)


def product_of_reflections(packed: np.ndarray, taus: np.ndarray, below: int) -> np.ndarray:
    """Q of vectors that stand below a diagonal."""
    size = packed.shape[-1]
    q = np.eye(size, dtype=packed.dtype)
    for k, tau in enumerate(taus):
        v = np.zeros(size, packed.dtype)
        v[k + below:] = packed[k + below:, k]
        v[k + below] = 1
        q = q @ (np.eye(size) - tau * np.outer(v, np.conj(v)))
    return q


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("size", [1, 2, 9, 40])
def test_hessenberg_form(letter, size):
    a = matrices(letter, 3, size, size)
    packed, taus, info = run(program(letter, "gehrd", [f"T[3,{size},{size}]"], [
        f"T[3,{size},{size}]", f"T[3,{size - 1}]", "s32[3]"], f"low = 1 : i32, high = {size} : i32"), a)
    assert not info.any()
    for m, p, t in zip(a, packed, taus):
        q = product_of_reflections(p, t, 1)
        close(q @ np.triu(p, -1) @ adjoint(q), m)


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("size", [1, 2, 9, 40])
def test_tridiagonal_form(letter, size):
    a = matrices(letter, 3, size, size)
    a = a + adjoint(a)
    packed, diagonal, beside, taus, info = run(program(
        letter, "hetrd" if letter in "cz" else "sytrd", [f"T[3,{size},{size}]"],
        [f"T[3,{size},{size}]", f"R[3,{size}]", f"R[3,{size - 1}]", f"T[3,{size - 1}]", "s32[3]"], "uplo = 76 : ui8"),
        np.tril(a))
    assert not info.any()
    for m, p, d, e, t in zip(a, packed, diagonal, beside, taus):
        q = product_of_reflections(p, t, 1)
        close(q @ (np.diag(d) + np.diag(e, 1) + np.diag(e, -1)).astype(q.dtype) @ adjoint(q), m)


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("size", [1, 2, 9, 40])
def test_schur_form(letter, size):
    a = matrices(letter, 2, size, size)
    values = [f"T[2,{size}]"] * (1 if letter in "cz" else 2)
    t, z, *parts, selected, info = run(program(letter, "gees", [f"T[2,{size},{size}]"], [
        f"T[2,{size},{size}]", f"T[2,{size},{size}]", *values, "s32[2]", "s32[2]"], "mode = 86 : ui8, sort = 78 : ui8"), a)
    assert not info.any() and not selected.any() and not np.tril(t, -2).any()
    close(adjoint(z) @ z, np.broadcast_to(np.eye(size), z.shape).astype(z.dtype))
    close(z @ t @ adjoint(z), a)
    found = parts[0] if letter in "cz" else parts[0] + 1j * parts[1]
    assert all(min(abs(v - w) for w in found[n]) < (1e-3 if letter in "sc" else 1e-9)
               for n in range(2) for v in np.linalg.eigvals(a[n]))


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("size, left, right", [(1, "V", "V"), (40, "V", "V"), (9, "N", "V"), (9, "V", "N"), (2, "N", "N")])
def test_left_and_right_eigenvectors(letter, size, left, right):
    """A u = u L, v^h A = L v^h; what is not wanted is 0."""
    a = matrices(letter, 2, size, size)
    is_real, whole = letter in "sd", {"s": "c64", "d": "c128"}.get(letter, "T")
    values, vectors = [f"T[2,{size}]"] * (1 + is_real), f"{whole}[2,{size},{size}]"
    *parts, v, u, info = run(program(letter, "geev", [f"T[2,{size},{size}]"], [*values, vectors, vectors, "s32[2]"],
                                     f"compute_left = {ord(left)} : ui8, compute_right = {ord(right)} : ui8"), a)
    found = parts[0] + 1j * parts[1] if is_real else parts[0]
    assert not info.any()
    for n in range(2):
        near = [min(abs(found[n] - w)) for w in np.linalg.eigvals(a[n])]
        assert max(near) < (1e-3 if letter in "sc" else 1e-9)
    if right == "V":
        close(a @ u, (u * found[:, None, :]).astype(u.dtype))
        close(np.linalg.norm(u, axis=1).astype(u.dtype), np.ones((2, size), u.dtype))
    if left == "V":
        close(adjoint(v) @ a, (found[:, :, None] * adjoint(v)).astype(v.dtype))
    assert (left == "V" or not v.any()) and (right == "V" or not u.any())


@pytest.mark.parametrize("letter", TYPES)
@pytest.mark.parametrize("batch, size, sides", [((), 1, 1), ((), 300, 4), ((3, 2), 5, 1), ((40,), 100, 3)])
def test_tridiagonal_systems(letter, batch, size, sides):
    below, diagonal, above = (matrices(letter, *batch, size) for _ in range(3))
    diagonal = diagonal + 4
    b = matrices(letter, *batch, size, sides)
    front = "".join(f"{n}," for n in batch)
    line, block = f"T[{front}{size}]", f"T[{front}{size},{sides}]"
    *same, x, info = run(program(letter, "gtsv", [line, line, line, block],
                                 [line, line, line, block, f"s32[{front[:-1]}]"]), below, diagonal, above, b)
    assert not info.any() and all(np.array_equal(a, w) for a, w in zip(same, (below, diagonal, above)))
    found = diagonal[..., None] * x
    found[..., 1:, :] += below[..., 1:, None] * x[..., :-1, :]
    found[..., :-1, :] += above[..., :-1, None] * x[..., 1:, :]
    close(found, b)


def test_a_singular_tridiagonal_system_has_no_solution():
    zeros, b = np.zeros((2, 3), np.float32), np.ones((2, 3, 2), np.float32)
    diagonal = np.array([[1, 2, 4], [1, 0, 4]], np.float32)
    *_, x, info = run(program("s", "gtsv", ["T[2,3]"] * 3 + ["T[2,3,2]"], ["T[2,3]"] * 3 + ["T[2,3,2]", "s32[2]"]),
                      zeros, diagonal, zeros, b)
    assert info[0] == 0 and info[1] != 0 and np.isnan(x[1]).all()
    close(x[0], np.repeat([[1], [0.5], [0.25]], 2, axis=1).astype(np.float32))


def test_other_forms_are_left_to_python():
    """Eigenvalues alone, and results of another shape."""
    text = program("s", "syevd", ["T[4,4]"], ["T[4,4]", "R[4]", "s32[]"], "mode = 78 : ui8, uplo = 76 : ui8")
    assert "hloc_call_host(" in api.compile(text, "cpu").source


def test_a_function_of_the_users_comes_first():
    text = program("s", "getrf", ["T[2,2]"], ["T[2,2]", "s32[2]", "s32[]"])
    mine = {"lapack_sgetrf_ffi": lambda a: (a + 1, np.zeros(2, np.int32), np.int32(7))}
    exe = api.compile(text, "cpu", options=api.Options(custom_calls=mine))
    assert exe(np.zeros((2, 2), np.float32))[2] == 7


def test_without_scipy_numpy_does_it(monkeypatch):
    monkeypatch.setattr(own, "_addresses", lambda: None)
    text = program("d", "getrf", ["T[6,6]"], ["T[6,6]", "s32[6]", "s32[]"])
    exe = api.compile(text, "cpu", run=False)
    assert "hloc_call_host(" in exe.source


def test_a_shared_object_has_no_lapack(tmp_path):
    text = program("d", "getrf", ["T[6,6]"], ["T[6,6]", "s32[6]", "s32[]"])
    with pytest.raises(UnsupportedError, match="lapack_dgetrf_ffi"):
        api.compile(text, "cpu").save(tmp_path / "m.so")
