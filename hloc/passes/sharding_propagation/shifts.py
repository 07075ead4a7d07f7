"""Slices of padded arrays as arrays with other padding, so that a shift is seen as one.

    wide = f32[18] pad(x, v), padding=1_1;  s = f32[16] slice(wide), slice={[2:18]}
        =>   s = f32[16] pad(x, v), padding=-1_1

The result lies as the array does, and each device needs the one element that comes in. The padded array may divide
otherwise, or not at all.
"""
from __future__ import annotations

from hloc.ir import Computation, Instruction, PaddingDim
from hloc.passes.rewriter import Rewriter, rewrite


def merge_slices_into_pads(computation: Computation) -> None:
    """Replace each slice of a pad by one pad, where neither has strides or holes and the pad has no annotation."""
    rewrite(computation, _slice_of_pad, opcodes=("slice",), expands=True)


def _slice_of_pad(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """slice(pad(x, v)) => pad(x, v)"""
    pad = instruction.operands[0]
    if pad.opcode != "pad" or "sharding" in pad.attributes or instruction.shape.is_dynamic:
        return None
    padding = []
    for part, own, size in zip(instruction.get("slice"), pad.get("padding"), pad.shape.dimensions):
        if own.interior or part.stride != 1:
            return None
        padding.append(PaddingDim(own.low - part.start, own.high - (size - part.limit)))
    attributes = {k: v for k, v in instruction.attributes.items() if k != "slice"} | {"padding": tuple(padding)}
    return rewriter.add("pad", instruction.shape, pad.operands, attributes)
