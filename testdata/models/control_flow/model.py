"""Choices and loops: conditionals by a truth value or an index, loops in loops, loops that end when the data say so.

In: x f32[6,16], index s32[5] (some out of bounds), flag pred[].
Out: one array for each case below.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax


def control_flow(x: jax.Array, index: jax.Array, flag: jax.Array) -> dict:
    return {
        "chosen": lax.cond(flag, lambda a: (jnp.sin(a), a.sum()), lambda a: (jnp.cos(a), a.max()), x),
        "not_chosen": lax.cond(~flag, jnp.exp, jnp.negative, x),
        "switched": jnp.stack([switched(index[k], x[k]) for k in range(index.size)]),
        "nested": nested_sums(x),
        "halved": halvings(x),
        "backward": lax.scan(lambda s, row: (0.5 * s + row, s), jnp.zeros(16), x, reverse=True),
        "skipped": lax.scan(skipping, jnp.zeros(16), x)[0],
        "fibonacci": lax.fori_loop(0, 30, lambda _, pair: (pair[1], pair[0] + pair[1]), (0, 1))[0],
        "mapped": lax.map(lambda row: jnp.where(row.sum() > 0, row, -row), x),
        "never": lax.while_loop(lambda s: s[0] < 0, lambda s: (s[0] + 1, s[1] * 2), (0, x))[1],
    }


def switched(index: jax.Array, row: jax.Array) -> jax.Array:
    """An index out of bounds takes the nearest branch here: JAX clamps it."""
    return lax.switch(index, [jnp.tanh, jnp.cumsum, lambda a: a[::-1], lambda a: a * a], row)


def nested_sums(x: jax.Array) -> jax.Array:
    """Sums of the parts of each row up to its own number, a loop in a loop."""

    def of_row(k, sums):
        total = lax.fori_loop(0, k + 1, lambda j, s: s + x[k, j] * x[j % 6, k], 0.0)
        return sums.at[k].set(total)

    return lax.fori_loop(0, x.shape[0], of_row, jnp.zeros(x.shape[0]))


def halvings(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Halves everything until the sum of squares is below one; also how often."""
    return lax.while_loop(lambda s: (s[0] * s[0]).sum() > 1, lambda s: (s[0] / 2, s[1] + 1), (x, 0))


def skipping(state: jax.Array, row: jax.Array) -> tuple[jax.Array, None]:
    """A conditional inside a loop."""
    return lax.cond(row[0] > 0, lambda: state + row, lambda: state * 0.9), None


def build() -> Model:
    inputs = {
        "x": np.random.default_rng(22).standard_normal((6, 16), np.float32),
        "index": np.array([2, 0, 3, -1, 9], np.int32),
        "flag": np.array(True),
    }
    return Model(control_flow, inputs, ranges={"index": [-2, 6]})
