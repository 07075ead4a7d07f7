"""Peels the tail of reductions over short rows that are not a multiple of a vector.

The remainder is a scalar loop. Compilers would combine the lanes through memory before their own tail loop, which takes
as long as thirty additions.

In: a Kernel, and the bytes of a vector. Out: the same with such VECTOR loops peeled, if they compute little per
element. With 64-byte vectors, a remainder of half a vector is not peeled: such rows use 32-byte vectors
(lane_fitting.py).

    for i < 20 (VECTOR): v += x[i]     ->     for i < 16 (VECTOR): v += x[i]
                                              for k < 4: v += x[16 + k]

If elements are expensive the last vector is a whole one (tail_overlap.py); long rows have several accumulators
(reduction_interleaving.py).
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, SERIAL, Apply, Assign, Const, For, Kernel, Let, Load, Stmt, Store, Var
from hloc.kernels.walks import assigned, expressions, parts, with_vector_loops
from hloc.machine import Machine
from hloc.targets.cpu.vector_loops.vector_width import is_heavy

LONGEST_OF_INTEGERS, LONGEST_OF_FLOATS = 256, 64    # elements of a row
HALF = 32                                           # bytes of the widest vectors
MOST_WRITTEN = 96                                   # operations of the whole remainder


def reduction_tail_peeling(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel whose short sums use whole vectors."""
    return kernel._replace(body=with_vector_loops(
        kernel.body, lambda loop: _peeled(loop, _rest(loop, machine.vector_bytes))))


def _rest(loop: For, vector_bytes: int) -> int:
    """The number of remaining elements of a row; 0 if the loop stays unchanged. Compilers have as many lanes as a
    vector holds numbers of the smallest type."""
    if not isinstance(loop.extent, int) or not assigned(loop.body) \
            or not all(isinstance(s, (Let, Assign, Store)) for s in loop.body):
        return 0
    found = list(parts([e for s in loop.body for e in expressions(s)]))
    held = [e for e in found if isinstance(e, Load)] \
        + [s.value for s in loop.body if isinstance(s, Assign) and s.value.type != "pred"]
    types = [ELEMENT_TYPES[e.type] for e in held]
    sizes = {t.bytes for t in types}
    floats = any(t.kind not in ("signed", "unsigned", "pred") for t in types)
    if not types or floats and len(sizes) > 1 or loop.extent > (LONGEST_OF_FLOATS if floats else LONGEST_OF_INTEGERS):
        return 0
    work = [e for e in found if isinstance(e, Apply) and e.type != INDEX]
    rest = loop.extent % (min(vector_bytes, HALF) // min(sizes))
    return rest if rest * len(work) <= MOST_WRITTEN and not any(map(is_heavy, work)) else 0


def _peeled(loop: For, rest: int) -> tuple[Stmt, ...]:
    if not rest:
        return (loop,)
    whole, counter = loop.trip_count - rest, f"{loop.name}_rest"
    here = Let(loop.name, index_apply("add", Var(counter, INDEX), Const(whole, INDEX)))
    last = For(counter, rest, SERIAL, (here, *loop.body))
    return (loop._replace(extent=whole), last) if whole else (last,)
