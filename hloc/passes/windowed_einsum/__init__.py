"""Divides a dot of a gathered array, or one whose sums are scattered: a part is sent beside the work on another one.

    y = dot(all-gather(x), w)                     y's rows are written part by part: at first this device's own, then
                                                  those that come from its neighbour, which passes on what it has
    y = reduce-scatter(dot(x, w))                 sums for one device after the other, each added to what comes from the
                                                  neighbour, at last its own

    p = f32[8,64] parameter(0)                                 // of two devices
    y = f32[16,32] dot(all-gather(p), w)
    =>
    a = dot(p, w), q = collective-permute(p) at the same time, b = dot(q, w); y = a and b, each in its place

Up to MOST_UNROLLED devices the parts are a chain, of more a loop. It is done where the cost model says that it takes
less time, and where no other matmul could run beside the collective. Sums over the gathered dimension, and those that
are scattered, are taken in another order, in the type of the result; so does XLA. Source of the method: Wang et al.,
Overlap communication with dependent computation via decomposition in large deep learning models, ASPLOS 2023;
xla/service/spmd/dot_handler.cc.
"""
from __future__ import annotations

from hloc.analysis.communication import counts_of
from hloc.analysis.timeline import rough_seconds
from hloc.ir import Instruction, Module
from hloc.passes.collective_combining import drop_replaced
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Channels, Rewriter, rewrite_module, unfused_computations
from hloc.passes.windowed_einsum.parts import divided
from hloc.passes.windowed_einsum.windows import Window, windows_of


def windowed_einsum(module: Module, context: PassContext) -> bool:
    """True if a dot was divided."""
    counts, channels = counts_of(module), Channels(module)
    seconds = context.seconds or rough_seconds(module, context.machine)
    chosen: dict[Instruction, Window] = {}
    for computation in unfused_computations(module):
        chosen.update(windows_of(computation, counts, seconds))

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        return divided(chosen[instruction], module, channels, rewriter) if instruction in chosen else None

    changed = rewrite_module(module, visit, revisit=False, opcodes=("dot", "reduce-scatter"))
    drop_replaced(module, {window.collective for window in chosen.values()})
    return changed
