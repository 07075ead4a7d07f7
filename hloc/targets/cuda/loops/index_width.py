"""Whether 32 bits are enough for every position and counter of a kernel: 64-bit division is slow on a GPU.

In: a Kernel. Out: whether its positions are printed as `int`: if all their possible values, and those of their
subexpressions, are known to fit (hloc/kernels/intervals.py). Positions that depend on data keep 64 bits.

    fits(kernel)  ->  every INDEX expression lies within +-2**30
"""
from __future__ import annotations

from hloc.kernels.intervals import LIMIT, Known, Unknown, look, small, with_intervals
from hloc.kernels.ir import INDEX, For, If, Kernel, Last, Mutable, Stmt
from hloc.kernels.walks import expressions
from hloc.targets.cuda.loops.iteration_space import elements_of, parallel_loop


def fits(kernel: Kernel) -> bool:
    """Whether all INDEX values of the kernel are known to be small."""
    loop = parallel_loop(kernel)
    if any(b.size >= LIMIT for b in kernel.buffers) or loop and elements_of(loop) >= LIMIT:
        return False
    try:
        with_intervals(kernel.body, _small)
    except Unknown:
        return False
    return True


def _small(s: Stmt, known: Known, _in_vector: bool) -> tuple[Stmt, ...]:
    """The statement itself. Raises Unknown if a position in it, or its counter, may be large."""
    if isinstance(s, For) and isinstance(s.extent, int):
        small((0, max(0, s.extent - 1)))
    elif isinstance(s, Mutable) and s.initial.type == INDEX \
            or hasattr(s, "body") and not isinstance(s, (For, If, Last)):
        raise Unknown
    for expr in expressions(s):
        look(expr, known)
    return (s,)
