"""Running sums, products, maxima: forward and backward, along each dimension, and a scan of one's own.

In: numbers f32[8,70], counts s32[300], coefficients f32[64] (below 1).
Out: one array for each case below.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax


def cumsum(numbers: jax.Array, counts: jax.Array, coefficients: jax.Array) -> dict:
    return {
        "rows": jnp.cumsum(numbers, axis=1),
        "columns": jnp.cumsum(numbers, axis=0),
        "backward": lax.cumsum(numbers, axis=1, reverse=True),
        "counts": jnp.cumsum(counts),
        "products": jnp.cumprod(1 + numbers / 50, axis=1),
        "largest": lax.cummax(numbers, axis=1),
        "smallest": lax.cummin(counts, axis=0, reverse=True),
        "log_sum_exp": lax.cumlogsumexp(numbers, axis=1),
        "windows": moving_sum(numbers, 5),
        "running": jnp.cumsum(numbers, axis=1) / jnp.arange(1, numbers.shape[1] + 1),
        "recurrence": recurrence(coefficients, numbers[0, :64]),
        "by_window": prefix_by_window(numbers[:, :48]),
    }


def moving_sum(x: jax.Array, width: int) -> jax.Array:
    return lax.reduce_window(x, 0.0, lax.add, (1, width), (1, 1), ((0, 0), (width - 1, 0)))


def prefix_by_window(x: jax.Array) -> jax.Array:
    """How cumsum looks for some accelerators: one window as long as the row."""
    length = x.shape[1]
    return lax.reduce_window(x, 0.0, lax.add, (1, length), (1, 1), ((0, 0), (length - 1, 0)))


def recurrence(a: jax.Array, b: jax.Array) -> jax.Array:
    """y[k] = a[k] y[k-1] + b[k], as an associative scan."""
    return lax.associative_scan(lambda left, right: (left[0] * right[0], right[0] * left[1] + right[1]), (a, b))[1]


def build() -> Model:
    rng = np.random.default_rng(13)
    inputs = {
        "numbers": rng.standard_normal((8, 70), np.float32),
        "counts": rng.integers(-9, 10, 300, np.int32),
        "coefficients": rng.random(64, np.float32),
    }
    return Model(cumsum, inputs)
