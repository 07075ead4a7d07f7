"""Whether 32 bits are enough for every position and counter of a kernel: 64-bit division is slow on a GPU.

In: a Kernel, and its CUDA C with `long` positions. Out: the text with `int` ones, where all values that they and their
parts can have are known to fit (hloc/targets/ranges.py); positions that depend on data stay 64 bits wide.

    fits(kernel)  ->  every INDEX expression lies within +-2**30
"""
from __future__ import annotations

import re
from collections.abc import Iterable

from hloc.kernels.ir import INDEX, PARALLEL, VECTOR, For, If, Kernel, Let, Stmt
from hloc.kernels.walks import expressions
from hloc.targets.ranges import LIMIT, Interval, Unknown, look, small, value_of

WIDE = re.compile(r"\(long\)|(?<!unsigned )(?<!long )\blong\b(?! long)|(?<=\d)L\b")


def fits(kernel: Kernel) -> bool:
    """All INDEX values of the kernel are known to be small."""
    if any(b.size >= LIMIT for b in kernel.buffers):
        return False
    try:
        _statements(kernel.body, {}, 1)
    except Unknown:
        return False
    return True


def narrowed(text: str) -> str:
    """CUDA C with `int` where it had `long`; comments stay."""
    return "\n".join(line if line.startswith("/*") else
                     WIDE.sub(lambda m: "int" if m.group() == "long" else "", line) for line in text.split("\n"))


def _statements(statements: Iterable[Stmt], known: dict[str, Interval], around: int) -> None:
    for statement in statements:
        if isinstance(statement, For):
            last = statement.extent - 1 if isinstance(statement.extent, int) else value_of(statement.extent, known)[1]
            small((0, max(0, last)))
            inner = around * max(1, last + 1) if statement.kind in (PARALLEL, VECTOR) else around
            if inner >= LIMIT:                                              # the counters of both may become one
                raise Unknown
            _statements(statement.body, {**known, statement.name: (0, max(0, last))}, inner)
            continue
        for expr in expressions(statement):
            look(expr, known)
        if isinstance(statement, Let) and statement.value.type == INDEX:
            known[statement.name] = value_of(statement.value, known)
        elif isinstance(statement, If):
            _statements(statement.then, dict(known), around)
            _statements(statement.otherwise, dict(known), around)
        elif hasattr(statement, "body") or getattr(getattr(statement, "initial", None), "type", "") == INDEX:
            raise Unknown
