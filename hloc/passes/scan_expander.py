"""Expands scan into a loop.

    (y, c) = (f32[3,2], f32[2]) scan(x, c0), dimensions={0}, num_carries=1, to_apply=step
        =>   while i < 3:   (row, c) = call(x[i], c), to_apply=step;   y[i] = row
"""
from __future__ import annotations

from hloc.ir import Instruction, Module, reachable_computations
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module


def scan_expander(module: Module, context: PassContext) -> bool:
    """True if there was a scan."""
    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if instruction.opcode != "scan":
            return None
        return expanded(module, Expressions(rewriter, instruction.span), instruction)
    changed = rewrite_module(module, visit, revisit=False, expands=True)
    if changed:
        module.computations = reachable_computations(module.entry)     # the new loops call older computations
    return changed


def expanded(module: Module, e: Expressions, scan: Instruction) -> Instruction:
    """The loop, and its outputs and carries as scan gives them."""
    count, step, (axis,) = scan.get("num_carries"), scan.get("to_apply"), scan.get("dimensions")
    inputs = scan.operands[:len(scan.operands) - count]
    carries = scan.operands[len(inputs):]
    outputs = [e.full(0, s) for s in scan.shape.tuple_shapes[:len(scan.shape.tuple_shapes) - count]]
    length = inputs[0].shape.dimensions[axis]
    if not length:
        return e.op("tuple", *outputs, *carries)

    def once(e: Expressions, i: Instruction, *state: Instruction) -> list[Instruction]:
        place = e.op("subtract", e.constant(length - 1, "s32"), i) if scan.get("is_reverse") else i
        whole, carried = state[:len(outputs)], state[len(outputs):len(outputs) + count]
        elements = [element(e, x, place, axis) for x in state[len(outputs) + count:]]
        result = e.op("call", *elements, *carried, shape=step.root.shape.with_default_layout(), to_apply=step)
        parts = [e.op("get-tuple-element", result, index=n) for n in range(len(outputs) + count)] \
            if result.shape.is_tuple else [result]
        written = [put_element(e, x, part, place, axis) for x, part in zip(whole, parts)]
        return [*written, *parts[len(outputs):]]

    return e.op("tuple", *e.loop(module, length, [*outputs, *carries], once, inputs))


def element(e: Expressions, x: Instruction, place: Instruction, axis: int) -> Instruction:
    """x[place] along one dimension, which is removed."""
    sizes = x.shape.dimensions
    return e.reshape(e.take(x, place, axis), *sizes[:axis], *sizes[axis + 1:])


def put_element(e: Expressions, x: Instruction, part: Instruction, place: Instruction, axis: int) -> Instruction:
    sizes = x.shape.dimensions
    return e.put(x, e.reshape(part, *sizes[:axis], 1, *sizes[axis + 1:]), place, axis)
