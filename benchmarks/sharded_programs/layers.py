"""Layers of networks, and steps that train them."""
from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from collected import Programs, normal, pinned
from jax import lax
from jax.sharding import PartitionSpec as P


def training(each: Programs) -> None:
    """Training steps of a network with two layers, by data, tensors and both."""
    line, grid, odd, program = each.line, each.grid, each.odd, each.program
    layers = [(normal(16, 32), normal(32), normal(32, 16)) for _ in range(2)]
    rows, wanted = normal(16, 16), normal(16, 16)

    def loss(layers, x, y):
        for w, b, v in layers:
            x = x + jax.nn.gelu(x @ w + b) @ v
        return jnp.mean((x - y) ** 2)

    def step(layers, x, y):
        value, slope = jax.value_and_grad(loss)(layers, x, y)
        return jax.tree.map(lambda p, g: p - 10 * g, layers, slope), value

    plain = [(P(), P(), P())] * 2
    program("data_parallel", line, (layers, rows, wanted), (plain, P("x"), P("x")), (plain, P()))(step)
    fully = [(P("x"), P("x"), P("x"))] * 2
    program("fsdp", line, (layers, rows, wanted), (fully, P("x"), P("x")), (fully, P()))(step)
    tensor = [(P(None, "model"), P("model"), P("model", None))] * 2
    program("tensor_parallel", grid, (layers, rows, wanted), (tensor, P("data"), P("data")), (tensor, P()))(step)
    program("odd_mesh", odd, (layers, rows, wanted), ([(P("a", "b"), P("b"), P("b", "a"))] * 2, P("a"), P("a")),
            ([(P("a", "b"), P("b"), P("b", "a"))] * 2, P()))(step)
    both = [(P("data", "model"), P("model"), P("model", "data"))] * 2
    program("fsdp_and_tensor", grid, (layers, rows, wanted), (both, P("data"), P("data")), (both, P()))(step)


def transformers(each: Programs) -> None:
    """A transformer's layer: forward, training, by sequence, in a scan."""
    count, line, grid, program = each.count, each.line, each.grid, each.program
    heads, width = 4, 16
    weights = [normal(width, width) for _ in range(4)] + [normal(width, 32), normal(32, width)]

    def norm(x):
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def block(x, weights, mesh=None, between=None):
        q, k, v, o, up, down = weights
        b, t, _ = x.shape
        h = norm(x)
        if mesh is not None:
            h = pinned(h, mesh, *between)
        q, k, v = ((h @ w).reshape(b, t, heads, width // heads).transpose(0, 2, 1, 3) for w in (q, k, v))
        scores = q @ k.transpose(0, 1, 3, 2) / 2 + jnp.where(jnp.tril(jnp.ones((t, t))) > 0, 0, -1e9)
        x = x + (jax.nn.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(b, t, width) @ o
        return x + jax.nn.relu(norm(x) @ up) @ down

    text = normal(4, 8, width)
    of_block = [P(None, "model")] * 3 + [P("model", None), P(None, "model"), P("model", None)]

    @program("transformer", grid, (text, weights), (P("data"), of_block))
    def _(x, weights):
        return block(x, weights)

    @program("transformer_training", grid, (text, weights), (P("data"), of_block), of_block)
    def _(x, weights):
        return jax.grad(lambda w: jnp.sum(block(x, w) ** 2))(weights)

    @program("sequence_parallel", grid, (text, weights), (P(None, "data"), of_block), P(None, "data"))
    def _(x, weights):
        return block(x, weights, grid, (None, "data", None))

    stacked = [np.stack([w, w * 0.5]) for w in weights]

    @program("layers_in_a_scan", grid, (text, stacked), (P("data"), [P(None, *s) for s in of_block]))
    def _(x, stacked):
        return lax.scan(lambda x, w: (block(x, w), x.sum()), x, stacked)

    @program("scan_training", line, (text, stacked), (P("x") if count <= 4 else P(None, "x"),
                                                      [P(None, "x") for _ in stacked]))
    def _(x, stacked):
        def total(stacked):
            return jnp.sum(lax.scan(jax.checkpoint(lambda x, w: (block(x, w), None)), x, stacked)[0] ** 2)
        return jax.value_and_grad(total)(stacked)
