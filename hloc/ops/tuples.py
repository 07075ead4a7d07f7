"""Rows of the ops that name, group and order values: parameter, constant, tuple, get-tuple-element, tokens, barriers,
choices between tuples, and the two halves of an asynchronous copy.

    get-tuple-element((f32[2], token[]) t), index=0     -> f32[2]
    copy-start(f32[2] a)                                -> (f32[2], f32[2], u32[]): destination, source, a handle
"""
from __future__ import annotations

import numpy as np

from hloc.ir import TOKEN, Instruction, Shape, leaves
from hloc.ops.checks import attribute, fail, text
from hloc.ops.op import Op
from hloc.ops.rules import first_operand_shape, written_shape


def _constant(evaluator, instruction):
    return instruction.literal


def _tuple(evaluator, instruction, *operands):
    return operands


def _tuple_shape(instruction: Instruction) -> Shape:
    return Shape.tuple(o.shape for o in instruction.operands)


def _get_tuple_element(evaluator, instruction, operand):
    return operand[instruction.attributes["index"]]


def _get_tuple_element_shape(instruction: Instruction) -> Shape:
    operand, index = instruction.operands[0].shape, attribute(instruction, "index")
    if not operand.is_tuple:
        fail(instruction, f"operand 0 must be a tuple, is {text(operand)}")
    if not 0 <= index < len(operand.tuple_shapes):
        fail(instruction, f"index={index} of a tuple of {len(operand.tuple_shapes)} elements")
    return operand.tuple_shapes[index]


def _tuple_select(evaluator, instruction, chosen, yes, no):
    return yes if chosen else no


def _tuple_select_shape(instruction: Instruction) -> Shape:
    chosen, yes, no = (o.shape for o in instruction.operands)
    if chosen.element_type != "pred" or chosen.rank:
        fail(instruction, f"operand 0 must be pred[], is {text(chosen)}")
    if not yes.is_tuple or not yes.compatible(no):
        fail(instruction, f"operands 1 and 2 must be tuples of the same shapes, are {text(yes)} and {text(no)}")
    return yes


def _first(evaluator, instruction, operand, *others):
    return operand


def _token(evaluator, instruction, *operands):
    return None


def _after_all_shape(instruction: Instruction) -> Shape:
    return TOKEN


def _add_dependency_shape(instruction: Instruction) -> Shape:
    token = instruction.operands[1].shape
    if not token.is_token:
        fail(instruction, f"operand 1 must be a token, is {text(token)}")
    return instruction.operands[0].shape


def _copy_start(evaluator, instruction, operand):
    """Done at once; the handle says nothing."""
    contexts = [np.zeros(leaf.dimensions, np.uint32) for s in instruction.shape.tuple_shapes[2:] for leaf in leaves(s)]
    return (operand, operand, *contexts)


def _copy_start_shape(instruction: Instruction) -> Shape:
    """Destination and source as the operand (only their layouts differ), and a handle."""
    operand = instruction.operands[0].shape
    return Shape.tuple((operand, operand, Shape("u32")))


def _copy_done(evaluator, instruction, started):
    return started[0]


def _copy_done_shape(instruction: Instruction) -> Shape:
    started = instruction.operands[0].shape
    if not started.is_tuple or len(started.tuple_shapes) < 3:
        fail(instruction, f"operand 0 must be what copy-start gives, is {text(started)}")
    return started.tuple_shapes[0]


ROWS = (
    Op("parameter", 0, written_shape, unsupported="its value comes from the caller",
       optional=("parameter_replication",)),
    Op("constant", 0, written_shape, _constant),
    Op("tuple", (0, None), _tuple_shape, _tuple),
    Op("get-tuple-element", 1, _get_tuple_element_shape, _get_tuple_element, required=("index",)),
    Op("tuple-select", 3, _tuple_select_shape, _tuple_select),         # of XLA until 2022
    Op("opt-barrier", 1, first_operand_shape, _first),
    Op("after-all", (0, None), _after_all_shape, _token),
    Op("add-dependency", 2, _add_dependency_shape, _first),
    Op("copy-start", 1, _copy_start_shape, _copy_start, optional=("cross_program_prefetch_index",)),
    Op("copy-done", 1, _copy_done_shape, _copy_done),
)
