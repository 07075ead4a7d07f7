"""Sequences that are divided, pipelines, experts, steps of training and of generating text."""
from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from collected import RANDOM, Programs, normal, pinned
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P


def attended(q, k, v):
    """Causal attention; q, k, v: batch, heads, places, width."""
    scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    places = np.arange(q.shape[2])
    return jax.nn.softmax(jnp.where(places[:, None] >= places, scores, -1e9), -1) @ v


def sequences(each: Programs) -> None:
    """Attention and shifts along a sequence whose places are divided."""
    count, line, grid, program = each.count, each.line, each.grid, each.program
    places, width = 2 * count, 8
    text, kernel = normal(2, places, width), normal(4, 1, width)
    along = P(None, "x")

    @program("causal_convolution", line, (text, kernel), (along, P()), (P(), P()))
    def _(x, kernel):
        def loss(kernel):
            y = lax.conv_general_dilated(x, kernel, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"),
                                         feature_group_count=width)
            return jnp.mean(jax.nn.silu(y) ** 2)
        return jax.value_and_grad(loss)(kernel)

    @program("token_shift", line, (text, normal(width), normal(width, width)), (along, P(), P()), (P(), (P(), P())))
    def _(x, *weights):
        def loss(weights):
            mix, w = weights
            before = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
            return jnp.mean(jax.nn.relu((x * mix + before * (1 - mix)) @ w) ** 2)
        return jax.value_and_grad(loss)(weights)

    queries = normal(2, 4, places, 8)

    @program("gathered_keys", line, (queries, queries * 2, queries + 1), (P(None, None, "x"),) * 3, P(None, None, "x"))
    def _(q, k, v):
        return attended(q, k, v)

    heads = normal(2, count, places, 4)

    @program("heads_by_exchange", line, (heads, heads * 2, heads + 1), (P(None, None, "x"),) * 3, P(None, None, "x"))
    def _(q, k, v):
        q, k, v = (pinned(a, line, None, "x") for a in (q, k, v))
        return pinned(attended(q, k, v), line, None, None, "x")

    @program("ring_attention", line, (queries, queries * 2, queries + 1), (P(None, None, "x"),) * 3,
             P(None, None, "x"))
    def _(q, k, v):
        def ring(q, k, v):
            def step(state, _):
                k, v, most, total, done = state
                scores = q @ k.transpose(0, 1, 3, 2)
                now = jnp.maximum(most, scores.max(-1, keepdims=True))
                weights, old = jnp.exp(scores - now), jnp.exp(most - now)
                pairs = [(i, (i + 1) % count) for i in range(count)]
                return (lax.ppermute(k, "x", pairs), lax.ppermute(v, "x", pairs), now,
                        total * old + weights.sum(-1, keepdims=True), done * old + weights @ v), None
            start = (k, v, jnp.full_like(q[..., :1], -jnp.inf), jnp.zeros_like(q[..., :1]), jnp.zeros_like(q))
            (_, _, _, total, done), _ = lax.scan(step, start, None, length=count)
            return done / total
        spec = P(None, None, "x")
        return shard_map(ring, mesh=line, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)(q, k, v)

    logits = normal(4, places, 16)
    wanted = RANDOM.integers(0, 16, (4, places)).astype(np.int32)

    @program("next_token_loss", grid, (logits, wanted), (P(None, "data", "model"), P(None, "data")), (P(), P()))
    def _(logits, wanted):
        def loss(logits):
            chosen = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), wanted[:, 1:, None], -1)
            return -chosen.mean()
        value, slope = jax.value_and_grad(loss)(logits)
        return value, jnp.abs(slope).sum()


def pipelines(each: Programs) -> None:
    count, line, program = each.count, each.line, each.program
    stages, inputs = normal(count, 8, 8), normal(4, 2, 8)

    def shifting(stages, inputs):
        """Stages as a divided dimension of one array, whose elements move on by one each tick."""
        def tick(held, t):
            held = jnp.roll(held, 1, 0).at[0].set(inputs[jnp.clip(t, 0, 3)])
            held = jnp.tanh(jnp.einsum("sbi,sio->sbo", pinned(held, line, "x"), stages))
            return held, held[-1]
        start = pinned(jnp.zeros((count, 2, 8)), line, "x")
        return lax.scan(tick, start, jnp.arange(3 + count))[1][count - 1:]

    program("pipeline_by_rolls", line, (stages, inputs), (P("x"), P()), P())(shifting)

    @program("pipeline_training", line, (stages, inputs), (P("x"), P()), (P(), P("x")))
    def _(stages, inputs):
        def piped(stage, inputs):
            number = lax.axis_index("x")

            def tick(held, t):
                held = jnp.where(number == 0, inputs[jnp.clip(t, 0, 3)], held)
                held = jnp.tanh(held @ stage[0])
                return lax.ppermute(held, "x", [(i, (i + 1) % count) for i in range(count)]), held
            _, done = lax.scan(tick, jnp.zeros_like(inputs[0]), jnp.arange(3 + count))
            return lax.psum(jnp.where(number == count - 1, done[count - 1:], 0), "x")

        def loss(stages):
            return jnp.sum(shard_map(piped, mesh=line, in_specs=(P("x"), P()), out_specs=P(),
                                     check_vma=False)(stages, inputs) ** 2)
        return jax.value_and_grad(loss)(stages)

    experts, rows = (normal(count, 8, 16), normal(count, 16, 8)), normal(8 * count, 8)
    router, room = normal(8, count), 16

    def routed(x, router, experts, spec):
        """Each token to one expert, of which each has room for some."""
        weights = jax.nn.softmax(x @ router, -1)
        one = jax.nn.one_hot(jnp.argmax(weights, -1), count)
        place = (jnp.cumsum(one, 0) - 1) * one
        sent = jax.nn.one_hot(place.sum(-1).astype(int), room)[:, None] * one[:, :, None]
        taken = pinned(jnp.einsum("tec,td->ecd", sent, x), line, *spec)
        done = jnp.einsum("ecf,efd->ecd", jax.nn.gelu(jnp.einsum("ecd,edf->ecf", taken, experts[0])), experts[1])
        return jnp.einsum("tec,ecd->td", sent, done) * weights.max(-1, keepdims=True)

    of_experts = (P("x"), P("x"))

    @program("routed_experts", line, (rows, router, experts), (P("x"), P(), of_experts), P("x"))
    def _(x, router, experts):
        return routed(x, router, experts, ("x",))

    @program("routed_experts_training", line, (rows, router, experts), (P("x"), P(), of_experts), (P(), of_experts))
    def _(x, router, experts):
        return jax.value_and_grad(lambda e: jnp.mean(routed(x, router, e, ("x",)) ** 2))(experts)

    @program("experts_by_exchange", line, (rows, router, experts), (P("x"), P(), of_experts), P("x"))
    def _(x, router, experts):
        def inside(x, router, up, down):
            one = jax.nn.one_hot(jnp.argmax(x @ router, -1), count)
            sent = one[:, :, None] * jnp.eye(x.shape[0])[:, None]
            taken = lax.all_to_all(jnp.einsum("tec,td->ecd", sent, x), "x", 0, 1, tiled=True)
            done = jax.nn.gelu(taken[0] @ up[0]) @ down[0]
            return jnp.einsum("tec,ecd->td", sent, lax.all_to_all(done[None], "x", 1, 0, tiled=True))
        return shard_map(inside, mesh=line, in_specs=(P("x"), P(), P("x"), P("x")), out_specs=P("x"),
                         check_vma=False)(x, router, *experts)


def steps(each: Programs) -> None:
    """Steps of training with an optimizer's state, and of generating text from a cache."""
    count, line, grid, program = each.count, each.line, each.grid, each.program
    weights = [(normal(16, 32), normal(32, 16)) for _ in range(3)]
    rows, wanted = normal(4 * count, 16), normal(4 * count, 16)

    def loss(weights, x, y):
        for up, down in weights:
            x = x + jax.nn.silu(x @ up) @ down
        return jnp.mean((x - y) ** 2)

    def adam(weights, first, second, x, y):
        slopes = jax.grad(loss)(weights, x, y)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, slopes)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, second, slopes)
        return jax.tree.map(lambda w, m, v: w - 0.1 * m / (jnp.sqrt(v) + 1e-4), weights, first, second), first, second

    state = (weights, *[jax.tree.map(np.zeros_like, weights)] * 2)
    of_fsdp, of_both = [(P("x"), P("x"))] * 3, [(P("data", "model"), P("model", "data"))] * 3
    program("adam_fsdp", line, (*state, rows, wanted), (*[of_fsdp] * 3, P("x"), P("x")), (of_fsdp,) * 3)(adam)
    program("adam_divided_state", line, (*state, rows, wanted),
            ([(P(), P())] * 3, of_fsdp, of_fsdp, P("x"), P("x")), ([(P(), P())] * 3, of_fsdp, of_fsdp))(adam)
    program("adam_fsdp_and_tensor", grid, (*state, rows, wanted), (of_both,) * 3 + (P("data"), P("data")),
            (of_both,) * 3)(adam)

    @program("accumulated", line, (weights, rows, wanted), ([(P(), P())] * 3, P("x"), P("x")), [(P(), P())] * 3)
    def _(weights, x, y):
        def one(total, batch):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(weights, *batch)), None
        halves = (x.reshape(-1, 2, 16).swapaxes(0, 1), y.reshape(-1, 2, 16).swapaxes(0, 1))
        return lax.scan(one, jax.tree.map(jnp.zeros_like, weights), halves)[0]

    @program("dropout", line, (weights, rows, np.array([3, 5], np.uint32)), (of_fsdp, P("x"), P()), (P(), of_fsdp))
    def _(weights, x, key):
        def dropped(weights):
            kept = jax.random.bernoulli(jax.random.wrap_key_data(key), 0.8, x.shape)
            return loss(weights, jnp.where(kept, x / 0.8, 0), x)
        return jax.value_and_grad(dropped)(weights)

    layers = [np.stack([w[n] for w in weights]) for n in range(2)]

    @program("fsdp_scan", line, (layers, rows), ([P(None, "x"), P(None, "x")], P("x")), (P(), [P(None, "x")] * 2))
    def _(layers, x):
        def total(layers):
            return jnp.mean(lax.scan(lambda x, w: (x + jax.nn.silu(x @ w[0]) @ w[1], None), x, layers)[0] ** 2)
        return jax.value_and_grad(total)(layers)

    table, cache, query = normal(16 * count, 16), normal(2, 4 * count, 2, 8), normal(2, 1, 2, 8)

    @program("cache_by_places", line, (cache, cache + 1, query, np.int32(5)), (P(None, "x"), P(None, "x"), P(), P()),
             (P(None, "x"), P(None, "x"), P()))
    def _(keys, values, new, place):
        keys = lax.dynamic_update_slice(keys, new, (0, place, 0, 0))
        values = lax.dynamic_update_slice(values, new * 2, (0, place, 0, 0))
        scores = jnp.einsum("bqhd,bkhd->bhqk", new, keys)
        scores = jnp.where(jnp.arange(keys.shape[1]) <= place, scores, -1e9)
        return keys, values, jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), values)

    @program("next_word", grid, (table, normal(2, 16)), (P("model"), P()), P())
    def _(table, state):
        def step(state, _):
            word = jnp.argmax(state @ table.T, -1)
            return jnp.tanh(state + table[word]), word
        return lax.scan(step, state, None, length=4)

    @program("divided_table", line, (table, RANDOM.integers(0, 16 * count, (4, 6)).astype(np.int32)), (P("x"), P()),
             (P(), P("x")))
    def _(table, tokens):
        return jax.value_and_grad(lambda t: jnp.mean(jnp.tanh(t[tokens].sum(1)) ** 2))(table)
