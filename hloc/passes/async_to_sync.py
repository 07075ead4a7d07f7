"""Replaces asynchronous operations by synchronous ones.

    s = ((f32[8]), f32[4], u32[]) slice-start(x), slice={[0:4]}
    d = f32[4] slice-done(s)                                    =>   d = f32[4] slice(x), slice={[0:4]}

This applies to every op with short forms (all-gather-start, copy-start ...), and to async-start, which calls a
computation. A start's tuple remains if another instruction reads it. send and recv complete at once: send-done and
recv-done become elements of their result.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module, Shape
from hloc.ops.table import OPS
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module

TRANSFERS_DONE = frozenset(["send-done", "recv-done"])    # their starts, send and recv, are (data, context, token)
FIRST_RESULT = frozenset(["copy"])                     # the started tuple is (result, operand, context)
PLAIN_RESULT = frozenset(["all-reduce"])               # started with several operands, it has the results' shape
ASYNC_ATTRIBUTES = ("async_execution_thread", "calls", "cross_program_prefetch_index")


def async_to_sync(module: Module, context: PassContext) -> bool:
    """True if there was an asynchronous op."""
    return rewrite_module(module, visit, expands=True)


def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    stem, dash, stage = instruction.opcode.rpartition("-")
    if instruction.opcode in TRANSFERS_DONE:
        return transferred(instruction, rewriter)
    if not dash or stage not in ("start", "update", "done"):
        return None
    if stem != "async" and stem not in OPS:
        return None
    if stage == "update":
        return instruction.operands[0]
    if stage == "done":
        return finished(stem, instruction, rewriter)
    return started(stem, instruction, rewriter)


def transferred(done: Instruction, rewriter: Rewriter) -> Instruction:
    """The token of a send; the data and the token of a recv."""
    e = Expressions(rewriter, done.span)
    token = e.op("get-tuple-element", done.operands[0], index=2)
    if done.opcode == "send-done":
        return token
    return e.op("tuple", e.op("get-tuple-element", done.operands[0], index=0), token)


def started(stem: str, start: Instruction, rewriter: Rewriter) -> Instruction:
    """The synchronous op, in a tuple of the start's shape."""
    e = Expressions(rewriter, start.span)
    shape = start.shape
    if not shape.is_tuple or (stem in PLAIN_RESULT and len(shape.tuple_shapes) == len(start.operands) != 1):
        return plain(stem, start, shape, rewriter)
    place = 0 if stem in FIRST_RESULT else 1
    result = plain(stem, start, shape.tuple_shapes[place], rewriter)
    operand = start.operands[0]
    if shape.tuple_shapes[1 - place].is_tuple:
        operand = e.op("tuple", *start.operands)
    head = [result, operand] if place == 0 else [operand, result]
    return e.op("tuple", *head, *(no_context(e, s) for s in shape.tuple_shapes[2:]))


def no_context(e: Expressions, shape: Shape) -> Instruction:
    """Zeros for a context, which only goes from start to done."""
    if shape.is_tuple:
        return e.op("tuple", *(no_context(e, s) for s in shape.tuple_shapes))
    return e.full(0, shape) if shape.is_array else e.op("after-all")


def plain(stem: str, start: Instruction, shape: Shape, rewriter: Rewriter) -> Instruction:
    attributes = {k: v for k, v in start.attributes.items() if k not in ASYNC_ATTRIBUTES}
    callee = start.get("calls")
    if stem == "async":
        return rewriter.add("call", shape, start.operands, {**attributes, "to_apply": callee})
    if callee is not None and stem == "fusion":
        attributes["calls"] = callee
    return rewriter.add(stem, shape, start.operands, attributes)


def finished(stem: str, done: Instruction, rewriter: Rewriter) -> Instruction:
    operand = done.operands[0]
    if not operand.shape.is_tuple or operand.shape.compatible(done.shape):
        return operand
    place = 0 if stem in FIRST_RESULT else 1
    return rewriter.add("get-tuple-element", done.shape, [operand], {"index": place})
