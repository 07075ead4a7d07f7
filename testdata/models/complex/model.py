"""Complex numbers: arithmetic, elementary functions, products, parts, in c64 and c128.

In: z c64[30], w c64[30], matrix c64[5,5], wide c128[20], real f32[30].
Out: one array for each case below.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax


def complex_numbers(z: jax.Array, w: jax.Array, matrix: jax.Array, wide: jax.Array, real: jax.Array) -> dict:
    return {
        "arithmetic": jnp.stack([z + w, z - w, z * w, z / w, -z, z.conj(), z * real]),
        "exponential": jnp.stack([jnp.exp(z), jnp.log(z), jnp.sqrt(z), lax.rsqrt(z)]),
        "circular": jnp.stack([jnp.sin(z), jnp.cos(z), jnp.tanh(z)]),
        "more": jnp.stack([jnp.expm1(z / 10), jnp.log1p(z / 10), jnp.tan(z / 2), jnp.sign(z), lax.logistic(z)]),
        "powers": jnp.stack([z**w, z**3, z**-1]),
        "parts": jnp.stack([z.real, z.imag, jnp.abs(z), jnp.angle(z)]),
        "made": lax.complex(real, z.imag),
        "equal": jnp.stack([z == z, z == w, z != w]),
        "product": matrix @ matrix.conj().T,
        "sum": z.sum(),
        "running": jnp.cumprod(z / jnp.abs(z)),
        "chosen": jnp.where(real > 0, z, w),
        "wide": jnp.stack([wide * wide, jnp.exp(wide), jnp.log(wide), jnp.sqrt(wide), 1 / wide]),
        "narrowed": wide.astype(jnp.complex64),
        "turned": jnp.transpose(matrix)[::-1],
        "gradient": jax.grad(lambda r: jnp.abs(jnp.sum(jnp.exp(1j * r) * z)))(real),
        "mandelbrot": escape_times(z / 1.5),
    }


def escape_times(c: jax.Array) -> jax.Array:
    """How many of 20 iterations of z*z + c each point stays within 2."""

    def step(_, state):
        z, count = state
        z = jnp.where(jnp.abs(z) <= 2, z * z + c, z)
        return z, count + (jnp.abs(z) <= 2)

    return lax.fori_loop(0, 20, step, (jnp.zeros_like(c), jnp.zeros(c.shape, jnp.int32)))[1]


def build() -> Model:
    rng = np.random.default_rng(21)

    def complexes(*shape):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)

    inputs = {"z": complexes(30), "w": complexes(30), "matrix": complexes(5, 5)}
    inputs |= {"wide": complexes(20).astype(np.complex128) * 1.1, "real": rng.standard_normal(30, np.float32)}
    return Model(complex_numbers, inputs, x64=True)
