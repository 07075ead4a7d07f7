"""The Schur form of a matrix, by shifted QR steps.

In: a square matrix, real or complex. Out: t and z with a = z t z^H, z unitary, t triangular; of a real matrix, both are
real and t has blocks of two rows where eigenvalues are complex.

    t, z = schur(a)
"""
from __future__ import annotations

import numpy as np

MOST_STEPS = 40          # for each row
EXCEPTIONAL = 10         # steps without progress after which another shift is tried


def schur(a: np.ndarray, reflection) -> tuple[np.ndarray, np.ndarray, bool]:
    """t, z, and whether the steps converged. `reflection` is that of vendors/linear_algebra.py."""
    size, t, z = len(a), a.copy(), np.eye(len(a), dtype=a.dtype)
    for i in range(size - 2):
        v, tau, _ = reflection(t[i + 1:, i])
        rotate(t, z, np.eye(size - i - 1) - tau * np.outer(v, np.conj(v)), i + 1, size)
        t[i + 2:, i] = 0
    high, since, whole = size, 0, a.dtype.kind != "c"
    for _ in range(MOST_STEPS * max(size, 1)):
        if high <= 0:
            break
        low = first_of_block(t, high)
        if low >= high - 1 - whole:
            if low == high - 2:
                split(t, z, low)
            high, since = low, 0
            continue
        since += 1
        block = t[low:high, low:high]
        q, _ = np.linalg.qr(shifted(block, whole, since % EXCEPTIONAL == 0))
        rotate(t, z, q, low, high)
        t[low:high, low:high] = np.triu(block, -1)
    return t, z, high <= 0


def first_of_block(t: np.ndarray, high: int) -> int:
    """The first row of the block that ends before row `high`; its coupling to the rows above is set to 0."""
    for low in range(high - 1, 0, -1):
        if abs(t[low, low - 1]) <= np.finfo(np.float64).eps * (abs(t[low - 1, low - 1]) + abs(t[low, low])):
            t[low, low - 1] = 0
            return low
    return 0


def shifted(block: np.ndarray, whole: bool, exceptional: bool) -> np.ndarray:
    """The block less a shift, or (real) the product of it less two shifts that are conjugates."""
    unit = np.eye(len(block))
    if exceptional:
        return block - abs(block[-1, -2]) * unit
    corner = block[-2:, -2:]
    if whole:
        return block @ block - np.trace(corner) * block + np.linalg.det(corner) * unit
    values = np.linalg.eigvals(corner)
    return block - values[np.argmin(abs(values - corner[1, 1]))] * unit


def rotate(t: np.ndarray, z: np.ndarray, q: np.ndarray, low: int, high: int) -> None:
    t[low:high] = np.conj(q.T) @ t[low:high]
    t[:, low:high] = t[:, low:high] @ q
    z[:, low:high] = z[:, low:high] @ q


def split(t: np.ndarray, z: np.ndarray, low: int) -> None:
    """Make a block of two rows triangular where its eigenvalues are real."""
    (a, b), (c, d) = t[low:low + 2, low:low + 2]
    half, product = (a - d) / 2, b * c
    if c == 0 or half * half + product < 0:
        return
    larger = half + np.copysign(np.sqrt(half * half + product), half)     # eigenvalue - d
    vector = np.array([larger, c]) / np.hypot(larger, c)
    rotate(t, z, np.array([[vector[0], -vector[1]], [vector[1], vector[0]]]), low, low + 2)
    t[low + 1, low] = 0
