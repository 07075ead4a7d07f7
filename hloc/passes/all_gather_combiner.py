"""Makes one all-gather of several along the same dimension over the same devices.

    a = f32[8] all-gather(x), dimensions={0}     =>    t = (f32[8], bf16[4]) all-gather(x, y), dimensions={0}
    b = bf16[4] all-gather(y), dimensions={0}          a = get-tuple-element(t), index=0 ...

Up to `combine_bytes` of results together (30 MiB, as in XLA); none may need the result of another.
"""
from __future__ import annotations

from hloc.ir import Module
from hloc.passes.collective_combining import combine, groups_key
from hloc.passes.context import PassContext


def all_gather_combiner(module: Module, context: PassContext) -> bool:
    """True if there were several of a kind."""
    return combine(module, "all-gather", groups_key, context)
