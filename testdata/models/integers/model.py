"""Integer arithmetic in every width: wrap-around, division, shifts, bits, conversions, products.

In: for each of s8 … u64, two arrays of 24 numbers, the extreme ones among them.
Out: for each type the cases of `arithmetic` and `bits`, and a few over several types. All of them exact.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax

TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def integers(*arrays: jax.Array) -> dict:
    found = {}
    for name, x, y in zip(TYPES, arrays[::2], arrays[1::2], strict=True):
        found[name] = {"arithmetic": arithmetic(x, y), "bits": bits(x, y)}
    first = dict(zip(TYPES, arrays[::2], strict=True))
    return found | {
        "widened": first["int8"].astype(jnp.int64) * first["uint8"].astype(jnp.int64),
        "narrowed": first["int64"].astype(jnp.int8),
        "reinterpreted": lax.bitcast_convert_type(first["uint32"], jnp.uint8),
        "joined": lax.bitcast_convert_type(first["int16"].reshape(-1, 2), jnp.int32),
        "to_float": first["int32"].astype(jnp.float32),
        "product": lax.dot(first["int8"].reshape(4, 6), first["int8"].reshape(6, 4), preferred_element_type=jnp.int32),
        "any": jnp.stack([(first["int32"] > 0).any(), (first["int32"] > 0).all()]),
        "collatz": collatz(first["uint8"].astype(jnp.int32)),
    }


def arithmetic(x: jax.Array, y: jax.Array) -> jax.Array:
    """Overflow wraps around; division by zero gives all ones (-1), and its remainder the dividend."""
    results = [x + y, x - y, x * y, lax.div(x, y), lax.rem(x, y), lax.max(x, y), lax.min(x, y), lax.neg(x)]
    results += [lax.sign(x), lax.abs(x) if jnp.issubdtype(x.dtype, jnp.signedinteger) else x, x // (y | 1)]
    return jnp.stack([*results, lax.clamp(y, x, y + 3), lax.integer_pow(x, 5), jnp.cumsum(x, dtype=x.dtype)])


def bits(x: jax.Array, y: jax.Array) -> jax.Array:
    """Shifts by more than the width are part of it."""
    by = y & jnp.asarray(127, x.dtype)
    results = [x & y, x | y, x ^ y, ~x, lax.shift_left(x, by), lax.shift_right_logical(x, by)]
    results += [lax.shift_right_arithmetic(x, by), lax.population_count(x), lax.clz(x)]
    return jnp.stack([*results, lax.select(x > y, x, y)])


def collatz(start: jax.Array) -> jax.Array:
    """Steps until each number is 1: a while loop whose end depends on the data."""

    def step(state):
        numbers, steps = state
        following = jnp.where(numbers % 2 == 0, numbers // 2, 3 * numbers + 1)
        busy = numbers > 1
        return jnp.where(busy, following, numbers), steps + busy

    return lax.while_loop(lambda state: (state[0] > 1).any(), step, (start, jnp.zeros_like(start)))[1]


def numbers(name: str, rng: np.random.Generator) -> np.ndarray:
    """The extremes, small numbers, and any numbers."""
    low, high = np.iinfo(name).min, np.iinfo(name).max
    edges = np.array([low, high, low + 1, high - 1, 0, 0, 1, 2, 3, 7, high // 2, 5], name)
    return rng.permutation(np.concatenate([edges, rng.integers(low, high, 12, name, endpoint=True)]))


def build() -> Model:
    rng = np.random.default_rng(20)
    inputs = {f"{label}_{name}": numbers(name, rng) for name in TYPES for label in ("x", "y")}
    return Model(integers, inputs, x64=True)
