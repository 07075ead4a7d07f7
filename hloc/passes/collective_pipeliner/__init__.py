"""Moves collectives of a loop into the iteration before or behind, where other work can run beside them.

    body { w = all-gather(dynamic-slice(ws, i))  y = dot(x, w) }                            backward
    =>
    w' = all-gather(dynamic-slice(ws, 0)) before the loop, which runs once less
    body { y = dot(x, w')  w' = all-gather(dynamic-slice(ws, i + 1)) }
    y = dot(x, w') of the last iteration behind the loop

    body { g = f(x, i)  gs = dynamic-update-slice(gs, all-reduce(g), i) }                   forward
    =>
    g' = f(x, 0) before the loop, which starts at 1
    body { gs = dynamic-update-slice(gs, all-reduce(g'), i - 1)  g' = f(x, i) }
    gs = dynamic-update-slice(gs, all-reduce(g'), n - 1) behind the loop

The number of iterations must be known. Backward goes what is made of values that never change and of counters; forward
goes what is only written into an array that the loop does not read. Each carries one array more for each collective;
with a memory limit nothing moves. The same elements are joined in the same order: results stay the same bit for bit.
Source of method and names: xla/service/collective_pipeliner.h.
"""
from __future__ import annotations

from hloc.ir import Module
from hloc.passes.collective_pipeliner.backward import backward
from hloc.passes.collective_pipeliner.forward import forward
from hloc.passes.context import PassContext
from hloc.passes.loop_rewriter import rewrite_loops
from hloc.passes.rewriter import Channels


def collective_pipeliner(module: Module, context: PassContext) -> bool:
    """True if a collective moved to another iteration."""
    if context.option("memory_limit") is not None:
        return False
    channels = Channels(module)
    moved = rewrite_loops(module, lambda loop, rewriter: backward(loop, rewriter, channels))
    return rewrite_loops(module, lambda loop, rewriter: forward(loop, rewriter, channels)) or moved
