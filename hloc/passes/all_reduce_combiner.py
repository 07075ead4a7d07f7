"""Makes one all-reduce of several that join elements in the same way over the same devices.

    a = f32[8] all-reduce(x), to_apply=add       =>    t = (f32[8], f32[4]) all-reduce(x, y), to_apply=add
    b = f32[4] all-reduce(y), to_apply=add             a = get-tuple-element(t), index=0 ...

Up to `combine_bytes` together (30 MiB, as in XLA); none may need the result of another.
"""
from __future__ import annotations

from hloc.ir import Module
from hloc.passes.collective_combining import combine, reduction_key
from hloc.passes.context import PassContext


def all_reduce_combiner(module: Module, context: PassContext) -> bool:
    """True if there were several of a kind."""
    return combine(module, "all-reduce", reduction_key, context)
