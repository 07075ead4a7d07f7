"""Programs of JAX over several host devices, as HLO before and after XLA's partitioner.

    python sharded_programs.py FOLDER DEVICES [NAME ...]

writes NAME.before.hlo, NAME.after.hlo and NAME.npz (in_0 ... and out_0 ..., whole arrays) for each program. A process of
its own, since the number of host devices is fixed when JAX starts.
"""
from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[2]}"
    os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

RANDOM = np.random.default_rng(0)


def normal(*sizes: int) -> np.ndarray:
    return (RANDOM.standard_normal(sizes) / np.sqrt(sizes[0] if sizes else 1)).astype(np.float32)


class Programs:
    """Collects programs over three meshes of the devices; by name: (function, arguments, mesh, shardings of the arguments,
    of the results or None)."""

    def __init__(self, count: int) -> None:
        devices = np.array(jax.devices()[:count])
        self.count = count
        self.line = Mesh(devices, ("x",))
        self.grid = Mesh(devices.reshape(count // 2, 2), ("data", "model"))
        self.odd = Mesh(devices[np.random.default_rng(1).permutation(count)].reshape(2, count // 2), ("a", "b"))
        self.found: dict = {}

    def program(self, name: str, mesh: Mesh, arguments, taken, given=None):
        def add(function):
            self.found[name] = (function, arguments, mesh, taken, given)
            return function
        return add


def programs(count: int) -> dict:
    """All of them; the order decides which random numbers each gets."""
    each = Programs(count)
    for kind in (training, transformers, models, shapes, operations, manual):
        kind(each)
    return each.found


def pinned(x, mesh, *axes):
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P(*axes)))


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
                pinned(x, grid, None, None, ("data", "model")), pinned(x, grid, ("model", "data")), x.transpose(2, 0, 1),
                x.reshape(64, 8).sum(0), x.reshape(8, 4, 2, 8)[:, 1], jnp.flip(x, 0), jnp.roll(x, 3, 1))

    @program("cut_and_joined", line, (normal(16, 8), normal(16, 8)), (P("x"), P(None, "x" if count <= 8 else None)))
    def _(x, y):
        return (jnp.concatenate([x, y], 0), jnp.concatenate([x, y], 1), x[3:9], x[:, ::2], jnp.pad(x, ((1, 2), (0, 1))),
                jnp.cumsum(x, 0), jnp.cumsum(x, 1), jnp.sort(x, 1), jnp.sort(x, 0), lax.top_k(x, 3), x[::-1])

    @program("cache", line, (normal(4, 8, 16), normal(4, 1, 16), np.int32(3)), (P(None, None, "x"), P(None, None, "x"), P()))
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
        return jax.random.normal(key, x.shape) + x, jax.random.bernoulli(key, 0.5, x.shape) * x, jax.random.permutation(key, 12)

    square = normal(8, 4, 4)

    @program("matrices", line, (square + 2 * np.eye(4, dtype=np.float32), normal(8, 4, 3)), (P("x"), P("x")))
    def _(a, b):
        spd = a @ a.transpose(0, 2, 1) + jnp.eye(4)
        lower = jnp.linalg.cholesky(spd)
        return lower, jax.scipy.linalg.solve_triangular(lower, b, lower=True), jnp.abs(jnp.fft.fft(a)), jnp.linalg.solve(a, b)

    @program("counted", line, (normal(16),), (P("x"),))
    def _(x):
        return (x + jnp.arange(16), jnp.outer(x, jnp.arange(8.0)), jnp.arange(32).reshape(16, 2) * x[:, None].astype(int),
                jnp.zeros(16).at[jnp.argsort(x)].add(1), jnp.max(x), jnp.argmax(x), (x > 0).all(), jnp.prod(x))

    @program("scattered", grid, (normal(12, 8), RANDOM.integers(0, 12, (16,)).astype(np.int32), normal(16, 8)),
             (P(None, "model"), P("data"), P("data", "model")))
    def _(x, places, rows):
        return x.at[places].add(rows), x.at[places].max(rows), x[places], x.at[3].set(1), jax.ops.segment_sum(rows, places, 12)


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


def export(folder: Path, count: int, names: list[str]) -> None:
    for name, (function, arguments, mesh, taken, given) in programs(count).items():
        if names and name not in names:
            continue
        def placed(spec, mesh=mesh):
            return jax.tree.map(lambda s: NamedSharding(mesh, s), spec, is_leaf=lambda s: isinstance(s, P))
        more = {} if given is None else {"out_shardings": placed(given)}
        lowered = jax.jit(function, in_shardings=placed(taken), **more).lower(*arguments)
        (folder / f"{name}.before.hlo").write_text(
            lowered.compiler_ir("hlo").as_hlo_module().to_string() if hasattr(
                lowered.compiler_ir("hlo"), "as_hlo_module") else lowered.compiler_ir("hlo").as_hlo_text(
                    print_large_constants=True))
        compiled = lowered.compile()
        (folder / f"{name}.after.hlo").write_text(compiled.as_text())
        results = jax.tree.leaves(compiled(*jax.tree.map(jax.device_put, arguments, placed(taken))))
        np.savez(folder / f"{name}.npz", **{f"in_{n}": a for n, a in enumerate(jax.tree.leaves(arguments))},
                 **{f"out_{n}": np.asarray(a) for n, a in enumerate(results)})


if __name__ == "__main__":
    export(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
