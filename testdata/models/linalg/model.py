"""Linear algebra: the cholesky and triangular-solve instructions, and what is built of them and of matrix products.

In: factors f32[3,6,6], right f32[3,6,4], wide f64[5,8], complex_factor c64[4,4].
Out: one array for each case below.

Lowered for an accelerator: for CPUs, JAX would call LAPACK instead of these instructions.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax


def linalg(factors: jax.Array, right: jax.Array, wide: jax.Array, complex_factor: jax.Array) -> dict:
    positive = factors @ factors.mT + jnp.eye(6, dtype=jnp.float32)
    lower = lax.linalg.cholesky(positive)
    hermitian = complex_factor @ complex_factor.conj().T + 2 * jnp.eye(4, dtype=jnp.complex64)
    return {
        "cholesky": lower,
        "cholesky_f64": lax.linalg.cholesky(wide @ wide.T),
        "cholesky_c64": lax.linalg.cholesky(hermitian),
        "not_positive": lax.linalg.cholesky(-positive[0]),
        "solved": jax.scipy.linalg.cho_solve((lower, True), right),
        "log_determinant": 2 * jnp.log(jnp.diagonal(lower, axis1=1, axis2=2)).sum(1),
        "inverse": inverse(lower),
        "gradient": jax.grad(lambda a: jnp.sum(lax.linalg.cholesky(a @ a.mT + jnp.eye(6, dtype=a.dtype))))(factors),
        "orthogonal": gram_schmidt(wide.T),
        "power": jnp.linalg.matrix_power(positive / 20, 5),
    } | triangular_solves(lower, right, lax.linalg.cholesky(hermitian))


def triangular_solves(lower: jax.Array, right: jax.Array, complex_lower: jax.Array) -> dict:
    """All sides and forms of the triangular solve."""
    solve = lax.linalg.triangular_solve
    upper = lower.mT
    left, adjoint = {"left_side": True, "lower": True}, {"transpose_a": True, "conjugate_a": True}
    return {
        "lower": solve(lower, right, **left),
        "upper": solve(upper, right, left_side=True, lower=False),
        "transposed": solve(lower, right, **left, transpose_a=True),
        "right_side": solve(lower, right.mT, left_side=False, lower=True),
        "right_transposed": solve(upper, right.mT, left_side=False, lower=False, transpose_a=True),
        "unit_diagonal": solve(lower / 9, right, **left, unit_diagonal=True),
        "conjugated": solve(complex_lower, complex_lower.T, **left, **adjoint),
        "vector": solve(lower, right[:, :, :1], **left),
    }


def inverse(lower: jax.Array) -> jax.Array:
    """Of L L^T, by two triangular solves."""
    identity = jnp.broadcast_to(jnp.eye(6, dtype=lower.dtype), lower.shape)
    half = lax.linalg.triangular_solve(lower, identity, left_side=True, lower=True)
    return lax.linalg.triangular_solve(lower, half, left_side=True, lower=True, transpose_a=True)


def gram_schmidt(columns: jax.Array) -> jax.Array:
    """Orthonormal columns, one after the other, in a loop."""

    def step(k, q):
        column = columns[:, k]
        rest = column - q @ (q.T @ column)
        return q.at[:, k].set(rest / jnp.sqrt(rest @ rest))

    return lax.fori_loop(0, columns.shape[1], step, jnp.zeros_like(columns))


def build() -> Model:
    rng = np.random.default_rng(16)
    inputs = {
        "factors": rng.standard_normal((3, 6, 6), np.float32),
        "right": rng.standard_normal((3, 6, 4), np.float32),
        "wide": rng.standard_normal((5, 8)),
        "complex_factor": (rng.standard_normal((4, 4)) + 1j * rng.standard_normal((4, 4))).astype(np.complex64),
    }
    return Model(linalg, inputs, platform="tpu", x64=True)
