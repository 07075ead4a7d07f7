"""Sorting: along each dimension, with payload, by several keys, stable, with NaN, infinities and both zeros.

In: numbers f32[6,40] (with special values), keys s32[100] (with many ties), bytes u8[64], flags pred[50].
Out: one array for each case below.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax


def sort(numbers: jax.Array, keys: jax.Array, octets: jax.Array, flags: jax.Array) -> dict:
    places = lax.iota(jnp.int32, keys.size)
    by_two = lax.sort((keys // 4, -keys, places), num_keys=2)
    return {
        "rows": jnp.sort(numbers, axis=1),
        "columns": jnp.sort(numbers, axis=0),
        "descending": jnp.sort(numbers, axis=1, descending=True),
        "order": jnp.argsort(numbers, axis=1, stable=True),
        "keys": jnp.sort(keys),
        "stable_order": jnp.argsort(keys, stable=True),
        "by_two": by_two,
        "octets": jnp.sort(octets, descending=True),
        "flags": jnp.sort(flags),
        "median": jnp.nanmedian(jnp.where(jnp.isfinite(numbers), numbers, jnp.nan), axis=1),
        "quantiles": jnp.quantile(keys.astype(jnp.float32), jnp.array([0.1, 0.5, 0.93])),
        "unique": jnp.unique(keys, size=30, fill_value=-1),
        "lexicographic": jnp.lexsort((keys, keys % 5)),
        "found": jnp.searchsorted(jnp.sort(keys), jnp.array([-3, 0, 7, 19, 50])),
    }


def build() -> Model:
    rng = np.random.default_rng(11)
    numbers = rng.standard_normal((6, 40), np.float32)
    numbers[:, ::9] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    return Model(
        sort,
        {
            "numbers": rng.permuted(numbers, axis=1),
            "keys": rng.integers(0, 20, 100, np.int32),
            "octets": rng.integers(0, 256, 64, np.uint8),
            "flags": rng.random(50) < 0.5,
        },
    )
