"""The rng-bit-generator instruction: both algorithms, all widths, states handed on.

In: two keys u32[4].  Out: bits and the states after each case below; they are the same on every machine.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax

SHAPES = {"u8": (19,), "u16": (3, 5), "u32": (4, 9), "u64": (7,)}


def random_bit_generator(key: jax.Array, other: jax.Array) -> dict:
    found = {}
    for algorithm in (lax.RandomAlgorithm.RNG_THREE_FRY, lax.RandomAlgorithm.RNG_PHILOX):
        state, name = key, algorithm.name.removeprefix("RNG_").lower()
        for width, shape in SHAPES.items():
            state, bits = lax.rng_bit_generator(state, shape, jnp.dtype(width.replace("u", "uint")), algorithm)
            found[f"{name}_{width}"] = bits
        found[f"{name}_state"] = state
        found[f"{name}_uniform"] = uniform(lax.rng_bit_generator(other, (6, 6), jnp.uint32, algorithm)[1])
    return found


def uniform(bits: jax.Array) -> jax.Array:
    """Random bits to floats in [0, 1): 23 of them become the fraction of a number in [1, 2)."""
    return lax.bitcast_convert_type(bits >> 9 | np.uint32(0x3F800000), jnp.float32) - 1


def build() -> Model:
    keys = {"key": np.array([1, 2, 3, 4], np.uint32), "other": np.array([2**32 - 1, 2**31, 0, 99], np.uint32)}
    return Model(random_bit_generator, keys, x64=True)
