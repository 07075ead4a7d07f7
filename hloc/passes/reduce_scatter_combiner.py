"""Makes one reduce-scatter of several along the same dimension that join elements alike over the same devices.

    a = f32[4] reduce-scatter(x), dimensions={0}   =>    t = (f32[4], f32[2]) reduce-scatter(x, y), dimensions={0}
    b = f32[2] reduce-scatter(y), dimensions={0}         a = get-tuple-element(t), index=0 ...

Up to `combine_bytes` of results together (30 MiB, as in XLA); none may need the result of another.
"""
from __future__ import annotations

from hloc.ir import Module
from hloc.passes.collective_combining import combine, reduction_key
from hloc.passes.context import PassContext


def reduce_scatter_combiner(module: Module, context: PassContext) -> bool:
    """True if there were several of a kind."""
    return combine(module, "reduce-scatter", reduction_key, context)
