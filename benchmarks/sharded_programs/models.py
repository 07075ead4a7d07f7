"""Embeddings, convolutions, experts, and bodies that are written for one device."""
from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from collected import RANDOM, Programs, normal, pinned
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def models(each: Programs) -> None:
    """Embeddings, convolutions, experts."""
    count, line, grid, program = each.count, each.line, each.grid, each.program
    tokens = RANDOM.integers(0, 24, (8, 6)).astype(np.int32)
    table = normal(24, 16)

    def next_token(table, tokens):
        x = table[tokens]
        logits = x @ table.T
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.roll(tokens, -1, 1)[..., None], -1)
        return -picked.mean()

    program("embedding", line, (table, tokens), (P(), P("x")), (P(), P()))(jax.value_and_grad(next_token))
    program("vocabulary_parallel", grid, (table, tokens), (P("model"), P("data")), None)(jax.value_and_grad(next_token))

    images, kernel, second = normal(8, 8, 8, 4), normal(3, 3, 4, 8), normal(3, 3, 8, 8)

    def network(images, kernel, second):
        numbers = ("NHWC", "HWIO", "NHWC")
        x = jax.nn.relu(lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=numbers))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = lax.conv_general_dilated(x, second, (1, 1), "SAME", dimension_numbers=numbers)
        mean, spread = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return jnp.sum(((x - mean) / jnp.sqrt(spread + 1e-5)).mean((1, 2)) ** 3)

    program("convolutions", line, (images, kernel, second), (P("x"), P(), P()))(
        jax.value_and_grad(network, argnums=(1, 2)))
    program("convolution_features", grid, (images, kernel, second),
            (P("data"), P(None, None, None, "model"), P(None, None, "model")))(jax.value_and_grad(network, (1, 2)))
    program("image_rows", grid, (images, kernel, second), (P(None, "data"), P(), P()))(network)

    experts = normal(count, 16, 8)

    @program("experts", line, (normal(16, 16), normal(16, count), experts), (P("x"), P(), P("x")), P("x"))
    def _(x, router, experts):
        chosen = jax.nn.softmax(x @ router, -1)
        place = jnp.einsum("te,td->etd", chosen, x)
        done = jnp.einsum("etd,edf->etf", pinned(place, line, "x", None, None), experts)
        return jnp.einsum("etf,te->tf", done, chosen)


def manual(each: Programs) -> None:
    """Bodies that are written for one device."""
    count, line, grid, program = each.count, each.line, each.grid, each.program
    stages = normal(count, 8, 8)

    @program("pipeline", line, (stages, normal(4, 2, 8)), (P("x"), P()), P())
    def _(stages, inputs):
        def piped(stage, inputs):
            number, total = lax.axis_index("x"), inputs.shape[0]

            def tick(state, t):
                held, done = state
                held = jnp.tanh(jnp.where(number == 0, inputs[jnp.clip(t, 0, total - 1)], held) @ stage[0])
                place = jnp.clip(t - count + 1, 0, total - 1)
                is_last = (number == count - 1) & (t >= count - 1)
                done = jnp.where(is_last, lax.dynamic_update_index_in_dim(done, held, place, 0), done)
                return (lax.ppermute(held, "x", [(i, (i + 1) % count) for i in range(count)]), done), None
            start = (jnp.zeros_like(inputs[0]), jnp.zeros_like(inputs))
            (_, done), _ = lax.scan(tick, start, jnp.arange(total + count - 1))
            return lax.psum(jnp.where(number == count - 1, done, 0), "x")
        return shard_map(piped, mesh=line, in_specs=(P("x"), P()), out_specs=P(), check_vma=False)(stages, inputs)

    @program("manual_collectives", line, (normal(2 * count, 2 * count),), (P("x"),))
    def _(x):
        def inside(x):
            everyone = lax.all_gather(x, "x")
            return (everyone.sum(0) + x, lax.psum_scatter(jnp.tile(x, (count, 1)), "x", tiled=True),
                    lax.all_to_all(x, "x", 1, 0, tiled=True), lax.pmax(x, "x"))
        spec = P("x")
        return shard_map(inside, mesh=line, in_specs=spec, out_specs=(spec, spec, spec, spec), check_vma=False)(x * 2)

    @program("partly_manual", grid, (normal(8, 8), normal(8, 8)), (P("data"), P(None, "model")))
    def _(x, w):
        def inside(x, w):
            return lax.psum(x.T @ jnp.sin(x @ w), "data")
        inner = shard_map(inside, mesh=grid, in_specs=(P("data"), P()), out_specs=P(), axis_names={"data"},
                          check_vma=False)
        return inner(x, w), x @ w
