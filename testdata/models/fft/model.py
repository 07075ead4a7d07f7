"""Fourier transforms: complex, real and back, one to three dimensions, lengths with and without small factors.

In: signal c64[4,32], odd c64[3,45], prime c64[2,17], image f32[12,20], volume c64[4,6,8].
Out: one array for each transform below.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model


def fft(signal: jax.Array, odd: jax.Array, prime: jax.Array, image: jax.Array, volume: jax.Array) -> dict:
    half = jnp.fft.rfft(image)
    return {
        "fft": jnp.fft.fft(signal),
        "ifft": jnp.fft.ifft(signal),
        "fft_odd": jnp.fft.fft(odd),
        "ifft_prime": jnp.fft.ifft(prime),
        "fft_columns": jnp.fft.fft(signal, axis=0),
        "rfft": half,
        "irfft": jnp.fft.irfft(half * half, n=20),
        "irfft_odd": jnp.fft.irfft(odd, n=45),
        "rfft2": jnp.fft.rfft2(image),
        "irfft2": jnp.fft.irfft2(jnp.fft.rfft2(image) / 2, s=(12, 20)),
        "fftn": jnp.fft.fftn(volume),
        "ifftn": jnp.fft.ifftn(volume),
        "convolved": jnp.fft.irfft(jnp.fft.rfft(image, 64) * jnp.fft.rfft(jnp.hanning(9), 64), 64),
    }


def build() -> Model:
    rng = np.random.default_rng(10)

    def complexes(*shape):
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)

    inputs = {"signal": complexes(4, 32), "odd": complexes(3, 45), "prime": complexes(2, 17)}
    inputs |= {"image": rng.standard_normal((12, 20), np.float32), "volume": complexes(4, 6, 8)}
    return Model(fft, inputs)
