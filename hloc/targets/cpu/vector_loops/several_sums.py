"""Sums of little work, by several vectors at a time: a single one waits for itself, three or four cycles each time.

In: a Kernel. Out: the same with VECTOR loops that add up (or multiply) what takes few operations cut into groups of
lanes, each of which has a sum of its own; they are joined at the end.

    for i < 1000 (VECTOR): v += x[i]        for k < 32 (VECTOR): s[k] = 0
                                       ->   for g < 31: for k < 32 (VECTOR): s[k] += x[32 g + k]
                                            for k < 32 (VECTOR): v += s[k]
                                            for k < 8 (VECTOR): v += x[992 + k]

Compilers keep `s` in registers while the groups go by.
"""
from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from hloc.kernels.ir import INDEX, SERIAL, VECTOR, Apply, Assign, Const, For, Kernel, Let, Load, Local, Stmt, Store, Var
from hloc.kernels.walks import expressions, parts, with_vector_loops
from hloc.targets.cpu.vector_loops.lanes import NEUTRAL, term_of
from hloc.targets.cpu.vector_loops.vector_width import is_heavy
from hloc.targets.printer import assigned

LANES = {"f32": 32, "f64": 16}   # four vectors of AVX2, of whose 16 registers another four hold what they take in
FEWEST_GROUPS = 3
MOST_SUMS = 2                    # of one loop
MOST_WORK = 10                   # operations for an element: more take longer than a sum


def with_several_sums(kernel: Kernel) -> Kernel:
    """The kernel with several sums for one."""
    numbers = count()            # of arrays, as loops side by side may have counters of one name
    return kernel._replace(body=with_vector_loops(
        kernel.body, lambda loop: _by_lanes(loop, numbers) if _is_worth(loop) else (loop,)))


def _is_worth(loop: For) -> bool:
    """Straight code that sums up few operations over a long enough row."""
    sums = [s for s in loop.body if isinstance(s, Assign)]
    if not 1 <= len(sums) <= MOST_SUMS or any(term_of(s) is None or s.value.type not in LANES for s in sums):
        return False
    if len({s.name for s in sums}) < len(sums) or not all(isinstance(s, (Let, Store, Assign)) for s in loop.body):
        return False
    changing = assigned(loop.body)
    read = [term_of(s) if isinstance(s, Assign) else e for s in loop.body for e in expressions(s)]
    if any(isinstance(e, Var) and e.name in changing for e in parts(read)):
        return False
    stores = any(isinstance(s, Store) for s in loop.body)
    done = [e for e in parts(read) if isinstance(e, Apply) and e.type != INDEX and (stores or not _widens_bf16(e))]
    return isinstance(loop.extent, int) and loop.extent >= FEWEST_GROUPS * _lanes(sums) \
        and len(done) <= MOST_WORK and not any(map(is_heavy, done))


def _widens_bf16(e: Apply) -> bool:
    """Two operations, where those of other narrow types are many. (Rows that are stored widened take 1.2 times as
    long by several vectors.)"""
    return e.op == "convert" and e.type == "f32" and e.arguments[0].type == "bf16"


def _lanes(sums: list[Assign]) -> int:
    return min(LANES[s.value.type] for s in sums)


def _by_lanes(loop: For, numbers: Iterator[int]) -> tuple[Stmt, ...]:
    """The loops that take its place."""
    sums = [s for s in loop.body if isinstance(s, Assign)]
    lanes, number = _lanes(sums), next(numbers)
    lane, group = (Var(f"{loop.name}_{name}{number}", INDEX) for name in ("lane", "group"))
    own = {s.name: Load(f"{loop.name}_sums{number}_{n}", lane, s.value.type) for n, s in enumerate(sums)}

    def along(*statements: Stmt, extent: int = lanes) -> For:
        return For(lane.name, extent, VECTOR, statements)

    def moved(first: Apply | Const) -> Let:
        return Let(loop.name, Apply("add", (first, lane), INDEX))

    def by_lane(s: Stmt) -> Stmt:
        if not isinstance(s, Assign):
            return s
        load = own[s.name]
        return Store(load.buffer, lane, Apply(s.value.op, (load, term_of(s)), s.value.type))
    first = Apply("multiply", (group, Const(lanes, INDEX)), INDEX)
    whole = loop.extent // lanes
    result: list[Stmt] = [Local(load.buffer, load.type, lanes) for load in own.values()]
    result.append(along(*(Store(own[s.name].buffer, lane, Const(NEUTRAL[s.value.op], s.value.type)) for s in sums)))
    result.append(For(group.name, whole, SERIAL, (along(moved(first), *map(by_lane, loop.body)),)))
    result += [along(Assign(s.name, Apply(s.value.op, (Var(s.name, s.value.type), own[s.name]), s.value.type)))
               ._replace(lanes=lanes) for s in sums]      # as they are held
    if loop.extent % lanes:
        result.append(along(moved(Const(whole * lanes, INDEX)), *loop.body, extent=loop.extent % lanes))
    return tuple(result)
