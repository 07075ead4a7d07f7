"""Splits collectives into a start and a done, so that other work can run between them.

    r = f32[8] all-reduce(x), to_apply=add     =>   s = f32[8] all-reduce-start(x), to_apply=add
                                                    r = f32[8] all-reduce-done(s)

    r = f32[4] reduce-scatter(x), ...          =>   s = ((f32[8]), f32[4]) reduce-scatter-start(x), ...
                                                    r = f32[4] reduce-scatter-done(s)

Both stand where the collective stood; latency_hiding_scheduler moves them apart. Source: xla/hlo/transforms/collectives
/async_collective_creator.cc. all-reduce, all-gather and collective-permute have starts of their own, others the general
form.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module, Shape
from hloc.ops.collectives import EXCHANGES
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, remove_dead, rewrite_module, unfused_computations

OWN_STARTS = frozenset(["all-gather", "all-reduce", "collective-permute"])


def async_collective_creator(module: Module, context: PassContext) -> bool:
    """True if there was a collective that was not split yet."""
    for computation in unfused_computations(module):
        if any(i.opcode in EXCHANGES for i in computation.instructions):
            remove_dead(computation)            # a done that nobody reads would go, and leave its start
    return rewrite_module(module, visit, revisit=False, opcodes=EXCHANGES, expands=True)


def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if not rewriter.uses(instruction):
        return None                             # nobody waits for it
    start = rewriter.add(f"{instruction.opcode}-start", started_shape(instruction), instruction.operands,
                         {k: v for k, v in instruction.attributes.items() if k != "sharding"})
    return rewriter.add(f"{instruction.opcode}-done", instruction.shape, [start])


def started_shape(instruction: Instruction) -> Shape:
    """Of the start: the results of an all-reduce; else operands and results."""
    if instruction.opcode == "all-reduce":
        return instruction.shape
    shapes = [o.shape for o in instruction.operands]
    single = len(shapes) == 1 and instruction.opcode in OWN_STARTS
    return Shape.tuple([shapes[0] if single else Shape.tuple(shapes), instruction.shape])
