"""Whether 32 bits are enough for every position and counter of a kernel: 64-bit division is slow on a GPU.

In: a Kernel. Out: whether its positions are printed as `int`: if all their possible values, and those of their
subexpressions, are known to fit (hloc/kernels/affine.py). Positions that depend on data keep 64 bits.

    fits(kernel)  ->  every INDEX expression lies within +-2**30
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping

from hloc.kernels.affine import LIMIT, Interval, Unknown, look, range_of, small
from hloc.kernels.ir import INDEX, For, If, Kernel, Last, Let, Mutable, Stmt
from hloc.kernels.walks import bodies, expressions
from hloc.targets.cuda.loops.iteration_space import parallel_loop


def fits(kernel: Kernel) -> bool:
    """Whether all INDEX values of the kernel are known to be small."""
    loop = parallel_loop(kernel)
    if any(b.size >= LIMIT for b in kernel.buffers) or loop and loop.trip_count >= LIMIT:
        return False
    try:
        _look_at(kernel.body, {})
    except Unknown:
        return False
    return True


def _look_at(statements: Iterable[Stmt], outer: Mapping[str, Interval]) -> None:
    """outer: the intervals of names around. Raises Unknown if a position, or the counter of a loop, may be large."""
    known = dict(outer)
    for s in statements:
        for expr in expressions(s):
            look(expr, known)
        if isinstance(s, Let) and s.value.type == INDEX:
            known[s.name] = range_of(s.value, known)
        elif isinstance(s, For):
            most = s.extent if isinstance(s.extent, int) else range_of(s.extent, known)[1]
            _look_at(s.body, known | {s.name: small((0, max(0, most - 1)))})
        elif isinstance(s, (If, Last)):
            for body in bodies(s):
                _look_at(body, known)
        elif bodies(s) or isinstance(s, Mutable) and s.initial.type == INDEX:
            raise Unknown
