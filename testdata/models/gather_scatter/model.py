"""Reading and writing at computed places: rows, windows, batches, clamped, dropped, combined.

In: table f32[20,6], volume f32[5,7,4], places s32[9] (some out of bounds), pairs s32[8,2], updates f32[9,6],
start s32[2].
Out: one array for each case below.
"""

import jax
import jax.numpy as jnp
import numpy as np
from common import Model
from jax import lax


def gather_scatter(table, volume, places, pairs, updates, start) -> dict:
    return gathers(table, volume, places, pairs, start) | scatters(table, volume, places, pairs, updates, start)


def gathers(table: jax.Array, volume: jax.Array, places: jax.Array, pairs: jax.Array, start: jax.Array) -> dict:
    x, y = pairs[:, 0], pairs[:, 1]
    return {
        "rows": table[places],
        "rows_filled": table.at[places].get(mode="fill", fill_value=-1),
        "rows_clipped": table.at[places].get(mode="clip"),
        "columns": table[:, y % 6],
        "points": volume[x, y],
        "middle": volume[:, y],
        "outer": volume[x, :, y % 4],
        "along": jnp.take_along_axis(table, places[:6] % 6 + jnp.zeros((20, 1), jnp.int32), axis=1),
        "window": lax.dynamic_slice(table, (start[0], start[1]), (4, 3)),
        "windows": jax.vmap(lambda p: lax.dynamic_slice(volume, (p[0], p[1], 0), (2, 3, 4)))(pairs),
        "reversed": table[::-2, 1::2],
    }


def scatters(table, volume, places, pairs, updates, start) -> dict:
    x, y = pairs[:, 0], pairs[:, 1]
    return {
        "set": table.at[jnp.array([3, 0, 19, 7])].set(updates[:4]),
        "add": table.at[places].add(updates),
        "add_clipped": table.at[places].add(updates, mode="clip"),
        "multiply": table.at[places].multiply(updates),
        "smallest": table.at[places].min(updates),
        "largest": table.at[places].max(updates),
        "points": volume.at[x, y].add(updates[:8, :4]),
        "outer": volume.at[x, :, y % 4].max(updates[:8, :1]),
        "patch": lax.dynamic_update_slice(table, updates[:3, :2], (start[0], start[1])),
        "segments": jax.ops.segment_sum(updates, places % 4, num_segments=5),
        "histogram": jnp.zeros(6, jnp.int32).at[y].add(1),
        "batched": jax.vmap(lambda row, p, u: row.at[p].add(u))(table[:9], places % 6, updates[:, 0]),
        "gradient": jax.grad(lambda t: jnp.sum(jnp.sin(t[places]) * updates))(table),
    }


def build() -> Model:
    rng = np.random.default_rng(14)
    inputs = {
        "table": rng.standard_normal((20, 6), np.float32),
        "volume": rng.standard_normal((5, 7, 4), np.float32),
        "places": np.array([3, 19, 3, -1, 20, 0, 25, -30, 12], np.int32),
        "pairs": np.stack([rng.integers(0, 5, 8), rng.integers(0, 6, 8)], axis=1).astype(np.int32),
        "updates": rng.standard_normal((9, 6), np.float32),
        "start": np.array([18, 2], np.int32),
    }
    return Model(gather_scatter, inputs, ranges={"places": [-30, 30], "pairs": [0, 5], "start": [0, 20]})
