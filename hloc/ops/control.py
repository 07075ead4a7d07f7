"""Control: while, conditional, call, fusion, and the ops that start other ops (async-start, slice-start ...).

In: values and computations. Out: the computations' results.

    r = s32[] while(s32[] x), condition=less_than_ten, body=add_one
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hloc.ir import Computation, Instruction, Shape
from hloc.ops.checks import array_operand, attribute, check_call, check_predicate, fail, require, text
from hloc.ops.op import Op
from hloc.ops.values import zeros

# -- while, conditional ------------------------------------------------------------------------------------------------

def evaluate_while(evaluator, instruction: Instruction, state):
    return evaluator.loop(instruction, state)


def infer_while(instruction: Instruction) -> Shape:
    state = instruction.operands[0].shape
    check_predicate(instruction, "condition", [state])
    result = check_call(instruction, "body", attribute(instruction, "body"), [state])
    require(result.compatible(state), instruction, f"the body returns {text(result)}, the loop carries {text(state)}")
    return state


def branches(instruction: Instruction) -> tuple[Computation, ...]:
    """The branches of a conditional; for a pred the first is taken when it is true."""
    listed = instruction.get("branch_computations")
    if listed is not None:
        return tuple(listed)
    return attribute(instruction, "true_computation"), attribute(instruction, "false_computation")


def evaluate_conditional(evaluator, instruction: Instruction, selector: np.ndarray, *arguments):
    """An index outside the branches takes the last one."""
    choices = branches(instruction)
    if selector.dtype == np.bool_:
        index = 0 if selector else 1
    else:
        index = int(selector) if 0 <= int(selector) < len(choices) else len(choices) - 1
    return evaluator.call(choices[index], [arguments[index]])


def infer_conditional(instruction: Instruction) -> Shape:
    selector, choices = array_operand(instruction, 0), branches(instruction)
    require(selector.rank == 0 and selector.element_type in ("pred", "s32"), instruction,
            f"operand 0 must be pred[] or s32[], is {text(selector)}")
    require(selector.element_type == "s32" or len(choices) == 2, instruction,
            f"a pred chooses between 2 branches, there are {len(choices)}")
    require(len(choices) >= 1 and len(instruction.operands) == 1 + len(choices), instruction,
            f"{len(choices)} branches take one operand each, there are {len(instruction.operands) - 1}")
    results = [check_call(instruction, f"branch {i}", c, [instruction.operands[1 + i].shape])
               for i, c in enumerate(choices)]
    for index, result in enumerate(results[1:], 1):
        require(result.compatible(results[0]), instruction,
                f"branch 0 returns {text(results[0])}, branch {index} returns {text(result)}")
    return results[0]


# -- call, fusion ------------------------------------------------------------------------------------------------------

def _calls(key: str) -> tuple[Callable, Callable]:
    """Inference and evaluation of an op that calls the computation in attribute `key` with its operands."""
    def infer(instruction: Instruction) -> Shape:
        shapes = [o.shape for o in instruction.operands]
        return check_call(instruction, key, attribute(instruction, key), shapes)

    def evaluate(evaluator, instruction: Instruction, *operands):
        return evaluator.call(instruction.get(key), operands)
    return infer, evaluate


infer_call, evaluate_call = _calls("to_apply")
infer_fusion, evaluate_fusion = _calls("calls")


# -- asynchronous forms: done at once, where they start ----------------------------------------------------------------

def evaluate_async_start(evaluator, instruction: Instruction, *operands):
    """(operands, result, handles ...)"""
    result = evaluator.call(instruction.get("calls"), operands)
    return _started(instruction, operands, result)


def _started(instruction: Instruction, operands, result):
    handles = [zeros(s) for s in instruction.shape.tuple_shapes[2:]]
    return (tuple(operands), result, *handles)


def evaluate_async_update(evaluator, instruction: Instruction, started):
    return started


def evaluate_async_done(evaluator, instruction: Instruction, started):
    return started[1]


def infer_async_start(instruction: Instruction) -> Shape:
    operands = [o.shape for o in instruction.operands]
    result = check_call(instruction, "calls", attribute(instruction, "calls"), operands)
    return _started_shape(instruction, operands, result)


def _started_shape(instruction: Instruction, operands: list[Shape], result: Shape) -> Shape:
    """Elements after operands and result belong to the backend: they are as written."""
    written = instruction.shape
    handles = written.tuple_shapes[2:] if written is not None and written.is_tuple else ()
    return Shape.tuple([Shape.tuple(operands), result, *handles])


def _check_started(instruction: Instruction) -> Shape:
    started = instruction.operands[0].shape
    if not (started.is_tuple and len(started.tuple_shapes) >= 2 and started.tuple_shapes[0].is_tuple):
        fail(instruction, f"operand 0 must be what an async-start gives, is {text(started)}")
    return started


def infer_async_update(instruction: Instruction) -> Shape:
    return _check_started(instruction)


def infer_async_done(instruction: Instruction) -> Shape:
    return _check_started(instruction).tuple_shapes[1]


def async_row(opcode: str, rows: dict[str, Op]) -> Op | None:
    """The row of `X-start`, `X-update` or `X-done`, for any X that has a row; None for other names."""
    base, _, ending = opcode.rpartition("-")
    inner = rows.get(base)
    if inner is None or base in ("parameter", "constant"):
        return None
    if ending == "start":
        return _start_row(opcode, inner)
    if ending == "update":
        return Op(opcode, 1, infer_async_update, evaluate_async_update)
    return Op(opcode, 1, infer_async_done, evaluate_async_done) if ending == "done" else None


def wrapped_instruction(instruction: Instruction, opcode: str) -> Instruction:
    """The op that `X-start` starts, as an instruction of its own."""
    written = instruction.shape
    result = written.tuple_shapes[1] if written.is_tuple and len(written.tuple_shapes) > 1 else written
    return instruction.copy(opcode=opcode, shape=result)


def _start_row(opcode: str, inner: Op) -> Op:
    evaluate_inner = inner.evaluate
    assert evaluate_inner is not None

    def infer(instruction: Instruction) -> Shape:
        wrapped = wrapped_instruction(instruction, inner.opcode)
        result = inner.infer(wrapped)
        return _started_shape(instruction, [o.shape for o in instruction.operands], result or wrapped.shape)

    def evaluate(evaluator, instruction: Instruction, *operands):
        result = evaluate_inner(evaluator, wrapped_instruction(instruction, inner.opcode), *operands)
        return _started(instruction, operands, result)

    return Op(opcode, inner.arity, infer, evaluate if inner.evaluate else None, required=inner.required,
              optional=inner.optional + ("async_execution_thread", "output_to_operand_aliasing"),
              side_effect=inner.side_effect, unsupported=inner.unsupported)


# -- domain ------------------------------------------------------------------------------------------------------------

def evaluate_domain(evaluator, instruction: Instruction, operand):
    return operand


def infer_domain(instruction: Instruction) -> Shape:
    return instruction.operands[0].shape


ROWS: tuple[Op, ...] = (
    Op("while", arity=1, infer=infer_while, evaluate=evaluate_while, required=("condition", "body")),
    Op("conditional", arity=(1, None), infer=infer_conditional, evaluate=evaluate_conditional,
       optional=("branch_computations", "true_computation", "false_computation")),
    Op("call", arity=(0, None), infer=infer_call, evaluate=evaluate_call, required=("to_apply",),
       optional=("is_composite",)),
    Op("fusion", arity=(0, None), infer=infer_fusion, evaluate=evaluate_fusion, required=("kind", "calls"),
       optional=("output_to_operand_aliasing",)),
    Op("async-start", arity=(0, None), infer=infer_async_start, evaluate=evaluate_async_start, required=("calls",),
       optional=("async_execution_thread", "output_to_operand_aliasing")),
    Op("async-update", arity=1, infer=infer_async_update, evaluate=evaluate_async_update,
       optional=("calls", "async_execution_thread")),
    Op("async-done", arity=1, infer=infer_async_done, evaluate=evaluate_async_done,
       optional=("calls", "async_execution_thread")),
    Op("domain", arity=1, infer=infer_domain, evaluate=evaluate_domain, required=("domain",)),
)
