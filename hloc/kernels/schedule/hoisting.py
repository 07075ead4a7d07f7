"""What is the same in each iteration of a loop: positions, and tables that are filled with the same elements.

In: the statements of an iteration, and the names that differ. Out: those that may stand before the loop, and the rest.

    local t: f32[640]                                local t: f32[640]
    serial q < 128: serial c < 5: t[...] = y[...]    serial q < 128: serial c < 5: t[...] = y[...]
    vector q < 128: s[q] = ...                       serial p < 32:
                                                       vector q < 128: s[q] = ...
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from hloc.kernels.ir import For, Let, Local, Stmt, Store, Var
from hloc.kernels.walks import defined, expressions, loads, parts, stores, varying, walk


def hoisted(body: Sequence[Stmt], different: Collection[str],
            read: Collection[str] = ()) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Positions, tables, and values loaded from the arrays `read` alone, that are the same in all iterations; the other
    statements."""
    own = {s.name for s in body if isinstance(s, Local)}
    written = [{one.buffer for one in stores([s])} for s in body]
    times = Counter(buffer for buffers in written for buffer in buffers)
    names, kept, ready = set(different), list[Stmt](), set[str]()
    for s, buffers in zip(body, written):
        is_table = (isinstance(s, For) and all(isinstance(one, (For, Let, Store)) for one in walk([s]))
                    and all(b in own and times[b] == 1 for b in buffers)
                    and not any(load.buffer in times and load.buffer not in ready for load in loads([s])))
        is_value = isinstance(s, Let) and all(load.buffer in read for load in loads([s]))
        used = {e.name for one in walk([s]) for e in parts(expressions(one)) if isinstance(e, Var)} - defined([s])
        if not isinstance(s, Local) and (used & names or not (is_table or is_value)):
            names |= varying([s])
            kept.append(s)
        else:
            ready |= buffers
    changed = {one.buffer for one in stores(kept)}
    kept = [s for s in body if s in kept or isinstance(s, Local) and s.name in changed]
    return tuple(s for s in body if s not in kept), tuple(kept)


def different_names(loop: For) -> frozenset[str]:
    """The counter of a loop, and the names of positions that depend on it, or on data."""
    names = {loop.name}
    for s in loop.body:
        if isinstance(s, Let) and (any(True for _ in loads([s])) or any(
                isinstance(e, Var) and e.name in names for e in parts([s.value]))):
            names.add(s.name)
    return frozenset(names)
