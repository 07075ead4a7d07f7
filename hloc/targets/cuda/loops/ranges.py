"""Whether 32 bits are enough for every position and counter of a kernel: 64-bit division is slow on a GPU.

In: a Kernel, and its CUDA C with `long` positions. Out: the text with `int` positions, if all their possible values,
and those of their subexpressions, are known to fit (hloc/kernels/intervals.py). Positions that depend on data keep 64
bits.

    fits(kernel)  ->  every INDEX expression lies within +-2**30
"""
from __future__ import annotations

import math
import re

from hloc.kernels.intervals import LIMIT, Known, Unknown, look, small, with_intervals
from hloc.kernels.ir import INDEX, PARALLEL, VECTOR, For, If, Kernel, Mutable, Stmt
from hloc.kernels.walks import expressions, walk

WIDE = re.compile(r"\(long\)|(?<!unsigned )(?<!long )\blong\b(?! long)|(?<=\d)L\b")


def fits(kernel: Kernel) -> bool:
    """Whether all INDEX values of the kernel are known to be small."""
    if any(b.size >= LIMIT for b in kernel.buffers) or _threads(kernel) >= LIMIT:
        return False
    try:
        with_intervals(kernel.body, _small)
    except Unknown:
        return False
    return True


def narrowed(text: str) -> str:
    """CUDA C with `int` in place of `long`, except in comments."""
    return "\n".join(line if line.startswith("/*") else
                     WIDE.sub(lambda m: "int" if m.group() == "long" else "", line) for line in text.split("\n"))


def _small(s: Stmt, known: Known, _in_vector: bool) -> tuple[Stmt, ...]:
    """The statement itself. Raises Unknown if a position in it, or its counter, may be large."""
    if isinstance(s, For) and isinstance(s.extent, int):
        small((0, max(0, s.extent - 1)))
    elif isinstance(s, Mutable) and s.initial.type == INDEX or not isinstance(s, (For, If)) and hasattr(s, "body"):
        raise Unknown
    for expr in expressions(s):
        look(expr, known)
    return (s,)


def _threads(kernel: Kernel) -> int:
    """Iterations of the PARALLEL loop times those of the VECTOR loop in it: the printer fuses both into one counter."""
    loops = [s for s in walk(kernel.body) if isinstance(s, For) and isinstance(s.extent, int)]
    return math.prod(max((s.extent for s in loops if s.kind == kind), default=1) for kind in (PARALLEL, VECTOR))
