"""Loops in JAX that update an array in place behind a choice, or read it beside; exports them as HLO text.

    python programs.py            writes <name>.hlo beside this file. Needs jax; the tests read the texts only.

Each is a function of the array (the first argument, and others of its size) and of what the steps put there: x, one row
a step; m and q, truths; p and r, places; k, numbers of branches. tests/test_updates.py says what must hold.
"""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

STEPS, ROWS, COLUMNS = 12, 500, 8
LOOPS: dict[str, tuple[Callable, tuple]] = {}

ARRAY = ((ROWS, COLUMNS), "float32")
FLAT = ((ROWS * COLUMNS,), "float32")
HEADS = ((2, 3, ROWS, COLUMNS), "float32")
BATCH = ((4, ROWS, COLUMNS), "float32")
NARROW = ((ROWS, COLUMNS), "bfloat16")
X = ((STEPS, COLUMNS), "float32")
X4 = ((STEPS, 4, COLUMNS), "float32")
M, M4 = ((STEPS,), "bool"), ((STEPS, 4), "bool")
P, P4 = ((STEPS,), "int32"), ((STEPS, 4), "int32")


def loop(*arguments: tuple) -> Callable:
    """Register a step: (number of the step, carried arrays, what belongs to the step) -> carried arrays. The first
    arguments are carried, as many as the step gives back; of the others the step is given its row."""
    def register(step: Callable) -> Callable:
        def run(*arrays):
            carried = [a for a, (shape, _) in zip(arrays, arguments) if shape[:1] != (STEPS,)]
            rows = arrays[len(carried):]
            def body(n, state):
                new = step(n, *state, *(r[n] for r in rows))
                return new if isinstance(new, tuple) else (new,)
            return lax.fori_loop(0, STEPS, body, tuple(carried))
        LOOPS[step.__name__] = (run, arguments)
        return step
    return register


def scan(*arguments: tuple) -> Callable:
    """The same for steps of lax.scan, which give back (carried array, result of the step)."""
    def register(step: Callable) -> Callable:
        def run(array, *rows):
            return lax.scan(lambda state, row: step(state, *row), array, rows)
        LOOPS[step.__name__] = (run, arguments)
        return step
    return register


# -- behind a select ---------------------------------------------------------------------------------------------------

@loop(ARRAY, X, M, P)
def where_set(n, b, x, m, p):
    return jnp.where(m, b.at[p].set(x), b)


@loop(ARRAY, X, M, P)
def where_add_else(n, b, x, m, p):
    return jnp.where(m, b, b.at[p].add(x))


@loop(ARRAY, X, M, P)
def where_max_of_few_columns(n, b, x, m, p):
    return jnp.where(m, b.at[p, 2:6].max(x[2:6]), b)


@loop(ARRAY, X, M, P)
def where_multiply_both_arms(n, b, x, m, p):
    return jnp.where(m, b.at[p].multiply(x), b.at[n].set(0))


@loop(ARRAY, X, M, M, P)
def where_in_where(n, b, x, m, q, p):
    return jnp.where(m, b.at[p].set(x), jnp.where(q, b.at[n].add(2), b))


@loop(ARRAY, X, M, P)
def where_two_updates(n, b, x, m, p):
    first = lax.dynamic_update_slice(b, x[None], (p, 0))
    row = lax.dynamic_slice(first, (n, 0), (1, COLUMNS))
    return jnp.where(m, lax.dynamic_update_slice(first, row + x, (n + 1, 0)), b)


@loop(ARRAY, X, M, P)
def where_by_column(n, b, x, m, p):
    return jnp.where(x > 0, b.at[p].set(x), b)


@loop(ARRAY, X, M, P)
def where_through_reshape(n, b, x, m, p):
    return jnp.where(m, b.reshape(-1).at[p * COLUMNS + 3].set(x[0]).reshape(b.shape), b)


@loop(FLAT, X, M, P)
def where_one_element(n, b, x, m, p):
    return jnp.where(m, b.at[p].set(x[0]), b)


@loop(ARRAY, ARRAY, ((ROWS,), "int32"), X, M)
def where_of_a_tree(n, k, v, c, x, m):
    new = (k.at[n].set(x), v.at[n].set(-x), c.at[n].add(1))
    return jax.tree.map(lambda a, b: jnp.where(m, a, b), new, (k, v, c))


@loop(((), "int32"), ARRAY, X, M)
def masked_append(n, count, b, x, m):
    new = lax.dynamic_update_slice(b, x[None], (count, 0))
    return count + m, jnp.where(m, new, b)


@loop(((), "int32"), HEADS, HEADS, ((STEPS, 2, 3, 1, COLUMNS), "float32"), M)
def caches_of_heads(n, position, k, v, x, m):
    at = (0, 0, position, 0)
    k2, v2 = lax.dynamic_update_slice(k, x, at), lax.dynamic_update_slice(v, -x, at)
    return position + m, jnp.where(m, k2, k), jnp.where(m, v2, v)


@loop(BATCH, X4, M4, P4)
def caches_by_batch(n, b, x, m, p):
    new = jax.vmap(lambda c, u, i: lax.dynamic_update_slice(c, u[None], (i, 0)))(b, x, p)
    return jnp.where(m[:, None, None], new, b)


@loop(ARRAY, X, P)
def cache_by_position(n, b, x, p):
    return jnp.where(jnp.arange(ROWS)[:, None] == p, x[None], b)


@loop(BATCH, X4, M4, P4)
def vmap_of_where(n, b, x, m, p):
    return jax.vmap(lambda b, x, m, p: jnp.where(m, b.at[p].add(x), b))(b, x, m, p)


@loop(ARRAY, X4, M, P4)
def several_rows(n, b, x, m, p):
    return jnp.where(m, b.at[p].add(x), b)


@loop(((), "int32"), ARRAY, X, M)
def ring_buffer(n, head, b, x, m):
    return head + 1, jnp.where(m, b.at[head % ROWS].set(x + b[(head + 3) % ROWS]), b)


@loop(NARROW, ((STEPS, COLUMNS), "bfloat16"), M, P)
def where_bf16(n, b, x, m, p):
    return jnp.where(m, b.at[p].set(x), b)


@loop(NARROW, X, M, P)
def where_converted(n, b, x, m, p):
    return jnp.where(m, b.astype("float32").at[p].set(x).astype("bfloat16"), b)


@loop(NARROW, X, M, P)
def where_converted_add(n, b, x, m, p):
    return jnp.where(m, b.astype("float32").at[p].add(x).astype("bfloat16"), b)


@loop(NARROW, X, M, P)
def where_wide(n, b, x, m, p):
    wide = b.astype("float32")
    return jnp.where(m, wide.at[p].multiply(x), wide).astype("bfloat16")


@loop(NARROW, X4, M, P4)
def where_converted_rows(n, b, x, m, p):
    return jnp.where(m, b.astype("float32").at[p].set(x).astype("bfloat16"), b)


@loop(((ROWS * COLUMNS,), "int8"), ((STEPS,), "int32"), M, P)
def where_converted_s8(n, b, x, m, p):
    return jnp.where(m, b.astype("int32").at[p].add(x).astype("int8"), b)


@loop(NARROW, X, P)
def converted_add(n, b, x, p):
    return b.astype("float32").at[p].add(x).at[n].set(x).astype("bfloat16")


@loop(NARROW, X, M, P)
def converted_row_read(n, b, x, m, p):
    wide = b.astype("float32")
    return jnp.where(m, wide.at[p].set(wide[p] * 0.5 + x).astype("bfloat16"), b)


@loop(NARROW, X, M, P)
def where_wide_two(n, b, x, m, p):
    wide = b.astype("float32")
    new = lax.dynamic_update_slice(wide, x[None], (p, 0))
    return jnp.where(m, lax.dynamic_update_slice(new, 2 * x[None], (n, 0)), wide).astype("bfloat16")


@loop(((4, ROWS, COLUMNS), "bfloat16"), X4, M4, P4)
def vmap_of_converted_add(n, b, x, m, p):
    add = lambda b, x, p: b.astype("float32").at[p].add(x).astype("bfloat16")                # noqa: E731
    return jax.vmap(lambda b, x, m, p: jnp.where(m, add(b, x, p), b))(b, x, m, p)


@loop(NARROW, X, M, P)
def cond_of_converted(n, b, x, m, p):
    return lax.cond(m, lambda b: b.astype("float32").at[p].min(x).astype("bfloat16"), lambda b: b, b)


@loop(((ROWS, COLUMNS), "int8"), ((STEPS, COLUMNS), "int8"), M, P)
def where_s8(n, b, x, m, p):
    return jnp.where(m, b.at[p].add(x), b)


@loop(((ROWS * COLUMNS,), "bool"), ((ROWS * COLUMNS,), "bool"), P)
def visited(n, seen, blocked, p):
    return jnp.where(seen[p] | blocked[p], seen, seen.at[p].set(True)), blocked.at[n].set(seen[p])


# -- in a branch -------------------------------------------------------------------------------------------------------

@loop(((), "int32"), ARRAY, X, M)
def cond_append(n, count, b, x, m):
    append = lambda c, b: (c + 1, lax.dynamic_update_slice(b, x[None], (c, 0)))             # noqa: E731
    return lax.cond(m, append, lambda c, b: (c, b), count, b)


@loop(ARRAY, X, M, P)
def cond_of_both(n, b, x, m, p):
    return lax.cond(m, lambda b: b.at[p].set(x), lambda b: b.at[n].add(1), b)


@loop(ARRAY, ARRAY, ARRAY, X, P, P)
def switch_of_arrays(n, a, b, c, x, k, p):
    return lax.switch(k % 3, [lambda a, b, c: (a.at[p].set(x), b, c), lambda a, b, c: (a, b.at[p].add(x), c),
                              lambda a, b, c: (a, b, c.at[p].min(x))], a, b, c)


@loop(ARRAY, X, M, M, P)
def cond_in_cond(n, b, x, m, q, p):
    inner = lambda b: lax.cond(q, lambda b: b.at[p].set(x), lambda b: b.at[p].add(1), b)     # noqa: E731
    return lax.cond(m, inner, lambda b: b, b)


@loop(ARRAY, X, M, P)
def loop_in_cond(n, b, x, m, p):
    inner = lambda b: lax.fori_loop(0, 3, lambda j, b: b.at[p + j].set(x * j), b)            # noqa: E731
    return lax.cond(m, inner, lambda b: b, b)


@loop(ARRAY, X, M, P)
def cond_in_loop_in_loop(n, b, x, m, p):
    step = lambda j, b: lax.cond(m, lambda: b.at[p + j].add(x), lambda: b)                   # noqa: E731
    return lax.fori_loop(0, 3, step, b)


@loop(ARRAY, P, P)
def cond_of_exchange(n, b, p, r):
    x, y = b[p], b[r]
    return lax.cond(x[0] > y[0], lambda b: b.at[p].set(y).at[r].set(x), lambda b: b, b)


@scan(ARRAY, X, M, P)
def cond_in_scan(b, x, m, p):
    return lax.cond(m, lambda b: (b.at[p].set(x), b[p]), lambda b: (b, jnp.zeros(COLUMNS)), b)


@loop(((), "int32"), ARRAY, X, P)
def stack(n, top, b, x, k):
    push = lambda top, b: (top + 1, lax.dynamic_update_index_in_dim(b, x, top, 0))           # noqa: E731
    pop = lambda top, b: (top - 1, b)                                                        # noqa: E731
    double = lambda top, b: (top, b.at[top].multiply(2))                                     # noqa: E731
    return lax.switch(k % 3, [push, pop, double], top, b)


# -- beside reads of the same array ------------------------------------------------------------------------------------

@scan(ARRAY, X, M, P)
def read_before_and_after(b, x, m, p):
    new = jnp.where(m, b.at[p].set(x), b)
    return new, (b[p], new[p])


@loop(ARRAY, M, P, P)
def exchange(n, b, m, p, r):
    return jnp.where(m, b.at[p].set(b[r]).at[r].set(b[p]), b)


@loop(ARRAY, P)
def moved_down(n, b, p):
    return lax.dynamic_update_slice(b, lax.dynamic_slice(b, (p + 1, 0), (3, COLUMNS)), (p, 0))


@loop(ARRAY, M, P)
def moved_up_where(n, b, m, p):
    new = lax.dynamic_update_slice(b, lax.dynamic_slice(b, (p - 1, 0), (3, COLUMNS)), (p, 0))
    return jnp.where(m, new, b)


@loop(FLAT, X, P)
def insertion(n, b, x, p):
    window = lax.dynamic_slice(b, (p,), (8,))
    return lax.dynamic_update_slice(b, jnp.concatenate([x[:1], window[:-1]]), (p,))


def text_of(name: str) -> str:
    """The program as HLO text, what JAX calls written where the calls stand."""
    from hloc.passes.context import PassContext
    from hloc.passes.pipelines import ALL_PASSES
    from hloc.passes.runner import named_passes, run_passes
    from hloc.text import parse_module
    run, arguments = LOOPS[name]
    given = [jax.ShapeDtypeStruct(shape, type) for shape, type in arguments]
    module = parse_module(jax.jit(run).lower(*given).as_text(dialect="hlo"))
    run_passes(module, named_passes(["call_inliner", "tuple_simplifier", "dce"], ALL_PASSES), PassContext())
    module.name = name
    return str(module)


if __name__ == "__main__":
    for each in LOOPS:
        Path(__file__).with_name(f"{each}.hlo").write_text(text_of(each).strip() + "\n", encoding="utf-8")
