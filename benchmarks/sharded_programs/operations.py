"""Single operations on arrays of odd sizes, moved, cut, joined, updated."""
from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from collected import RANDOM, Programs, normal, pinned
from jax import lax
from jax.sharding import PartitionSpec as P


def shapes(each: Programs) -> None:
    """Sizes that the devices do not divide; arrays that are moved, cut, joined, updated."""
    count, line, grid, program = each.count, each.line, each.grid, each.program
    @program("uneven", line, (normal(10, 6), normal(6, 11)), (P(), P()))
    def _(x, w):
        y = pinned(x, line, "x", None) @ w
        y = pinned(jnp.exp(y), line, None, "x")
        z = y.T @ pinned(x + 1, line, "x", None)
        return y.sum(1), y.max(0), z, pinned(y, line, "x", None) * 2, jnp.sort(y, 0), y.mean()

    @program("uneven_on_two_axes", grid, (normal(7, 5), normal(5, 9)), (P(), P()))
    def _(x, w):
        y = pinned(x, grid, "data", "model") @ pinned(w, grid, "model", "data")
        y = pinned(y, grid, ("data", "model"), None)
        return y.sum(), pinned(y, grid, None, ("model", "data")).prod(0), jnp.argmax(y, 1), jnp.all(y > -9)

    @program("moved", grid, (normal(8, 8, 8),), (P("data", "model"),))
    def _(x):
        return (pinned(x, grid, "model", "data"), pinned(x, grid, None, "data", "model"), pinned(x, grid, "data"),
                pinned(x, grid, None, None, ("data", "model")), pinned(x, grid, ("model", "data")),
                x.transpose(2, 0, 1), x.reshape(64, 8).sum(0), x.reshape(8, 4, 2, 8)[:, 1], jnp.flip(x, 0),
                jnp.roll(x, 3, 1))

    @program("cut_and_joined", line, (normal(16, 8), normal(16, 8)), (P("x"), P(None, "x" if count <= 8 else None)))
    def _(x, y):
        return (jnp.concatenate([x, y], 0), jnp.concatenate([x, y], 1), x[3:9], x[:, ::2], jnp.pad(x, ((1, 2), (0, 1))),
                jnp.cumsum(x, 0), jnp.cumsum(x, 1), jnp.sort(x, 1), jnp.sort(x, 0), lax.top_k(x, 3), x[::-1])

    features = P(None, None, "x")

    @program("cache", line, (normal(4, 8, 16), normal(4, 1, 16), np.int32(3)), (features, features, P()))
    def _(cache, row, place):
        cache = lax.dynamic_update_slice(cache, row, (0, place, 0))
        return cache, lax.dynamic_slice(cache, (1, place, 0), (2, 2, 16)), lax.dynamic_index_in_dim(cache, place, 1)


def operations(each: Programs) -> None:
    """Branches, random numbers, matrices, counters, scatters."""
    line, grid, program = each.line, each.grid, each.program
    @program("choices", line, (normal(8, 4), np.int32(1)), (P("x"), P()))
    def _(x, which):
        y = lax.switch(which, [lambda x: x * 2, lambda x: x.sum(0, keepdims=True) + x, lambda x: x[::-1]], x)
        return y, lax.while_loop(lambda s: s[0] < 4, lambda s: (s[0] + 1, s[1] + s[1].mean(0)), (0, x)), lax.cond(
            which > 0, lambda x: x.sum(), lambda x: x.max(), x)

    @program("random_numbers", line, (np.array([1, 7], np.uint32), normal(16, 8)), (P(), P("x")))
    def _(key, x):
        key = jax.random.wrap_key_data(key)
        return (jax.random.normal(key, x.shape) + x, jax.random.bernoulli(key, 0.5, x.shape) * x,
                jax.random.permutation(key, 12))

    square = normal(8, 4, 4)

    @program("matrices", line, (square + 2 * np.eye(4, dtype=np.float32), normal(8, 4, 3)), (P("x"), P("x")))
    def _(a, b):
        spd = a @ a.transpose(0, 2, 1) + jnp.eye(4)
        lower = jnp.linalg.cholesky(spd)
        solved = jax.scipy.linalg.solve_triangular(lower, b, lower=True)
        return lower, solved, jnp.abs(jnp.fft.fft(a)), jnp.linalg.solve(a, b)

    @program("counted", line, (normal(16),), (P("x"),))
    def _(x):
        return (x + jnp.arange(16), jnp.outer(x, jnp.arange(8.0)),
                jnp.arange(32).reshape(16, 2) * x[:, None].astype(int),
                jnp.zeros(16).at[jnp.argsort(x)].add(1), jnp.max(x), jnp.argmax(x), (x > 0).all(), jnp.prod(x))

    @program("scattered", grid, (normal(12, 8), RANDOM.integers(0, 12, (16,)).astype(np.int32), normal(16, 8)),
             (P(None, "model"), P("data"), P("data", "model")))
    def _(x, places, rows):
        return (x.at[places].add(rows), x.at[places].max(rows), x[places], x.at[3].set(1),
                jax.ops.segment_sum(rows, places, 12))
