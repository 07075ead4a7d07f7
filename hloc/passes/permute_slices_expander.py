"""Expands collective-permutes of slices into slices, permutes and updates.

    r = f32[8] collective-permute(x, y, (s), (t)), source_target_pairs={{0,1}}, slice_sizes={{2}}
      =>   a = f32[2] dynamic-slice(x, s);  b = f32[2] collective-permute(a), source_target_pairs={{0,1}}
           r = partition-id() == 1 ? dynamic-update-slice(y, b, t) : y

The device that receives says where the slice goes. A source that several pairs name sends its slices in their order.
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.ir import Instruction, Module
from hloc.ir.attributes import Verbatim
from hloc.ops.collectives import PermutedSlice, pairs_of_slices, permuted_slices
from hloc.ops.device_groups import parse_groups
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module

KEPT = ("channel_id", "metadata", "frontend_attributes")


def permute_slices_expander(module: Module, context: PassContext) -> bool:
    """True if there was such a permute."""
    return rewrite_module(module, visit, expands=True)


def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if instruction.opcode != "collective-permute" or instruction.get("slice_sizes") is None:
        return None
    e, (source, target, given, placed) = Expressions(rewriter, instruction.span), instruction.operands
    of_tuples = source.shape.is_tuple
    sources, results = ([e.op("get-tuple-element", x, index=n) for n in range(len(x.shape.tuple_shapes))]
                        if of_tuples else [x] for x in (source, target))
    pairs = pairs_of_slices((s, t) for s, t in parse_groups(str(instruction.get("source_target_pairs"))))
    for one in permuted_slices(instruction):
        own = pairs[one.number] if one.number < len(pairs) else []
        corners = [starts_of(e, starts, one, of_tuples) for starts in (given, placed)]
        sent = e.op("dynamic-slice", sources[one.array], *corners[0], dynamic_slice_sizes=one.sizes)
        received = e.op("collective-permute", sent, source_target_pairs=Verbatim(
            "{" + ",".join(f"{{{s},{t}}}" for s, t in own) + "}"), **{
                key: instruction.get(key) for key in KEPT if key in instruction.attributes})
        before = results[one.array]
        updated = e.op("dynamic-update-slice", before, received, *corners[1])
        results[one.array] = e.chosen(e.spread(is_one_of(e, instruction, [t for _, t in own]), before.shape), updated,
                                      before)
    return e.op("tuple", *results) if of_tuples else results[0]


def starts_of(e: Expressions, starts: Instruction, one: PermutedSlice, of_tuples: bool) -> list[Instruction]:
    """The scalars that say where a slice begins."""
    if of_tuples:
        starts = e.op("get-tuple-element", starts, index=one.array)
    if starts.shape.tuple_shapes and starts.shape.tuple_shapes[0].is_tuple:
        starts = e.op("get-tuple-element", starts, index=one.number)
    return [e.op("get-tuple-element", starts, index=d) for d in range(len(one.sizes))]


def is_one_of(e: Expressions, permute: Instruction, devices: Sequence[int]) -> Instruction:
    """Whether this device, by the number that the pairs name, is among these."""
    number = e.op("replica-id" if permute.get("channel_id") is None else "partition-id")
    found = e.constant(False, "pred")
    for device in devices:
        found = e.op("or", found, e.compare(number, "EQ", e.constant(device, "u32")))
    return found
