"""The rules of buffers, b(f32[8]): arrays that are written in place, from Pin or CreateBuffer to Unpin.

    p = b(f32[8]) custom-call(a), custom_call_target="Pin", output_to_operand_aliasing={{}: (0, {})}
    w = b(f32[8]) custom-call(p), custom_call_target="write", output_to_operand_aliasing={{}: (0, {})}
    r = f32[8] custom-call(w), custom_call_target="Unpin", output_to_operand_aliasing={{}: (0, {})}

In: the computations that may run. Out: errors. A buffer has one writer: `p` above must not be used after `w`.
Source: xla/service/hlo_verifier.cc.
"""
from __future__ import annotations

from collections.abc import Iterator

from hloc.errors import VerifyError
from hloc.ir import Computation, Instruction, Module, Shape
from hloc.ops.checks import unquoted
from hloc.text.header import operand_aliases

# Opcodes whose result may be a buffer.
_GIVERS = frozenset(["async-done", "async-start", "async-update", "conditional", "custom-call", "custom-call-done",
                     "custom-call-start", "custom-call-update", "get-tuple-element", "parameter", "tuple", "while"])
_Source = tuple[Instruction, tuple[int, ...]]


def buffer_errors(module: Module, reachable: list[Computation]) -> Iterator[VerifyError]:
    """The errors of all computations that have buffers."""
    for computation in reachable:
        if not any(i.opcode == "custom-call" or has_buffer(i.shape) for i in computation.instructions):
            continue
        for instruction in computation.instructions:
            problem = buffer_problem(instruction)
            if problem:
                yield VerifyError(problem, instruction.span)
        yield from _writer_errors(computation)
        if computation is module.entry and has_buffer(computation.root.shape):
            yield VerifyError("the entry gives a buffer", computation.root.span)


def has_buffer(shape: Shape) -> bool:
    return shape.element_type == "buffer" or any(map(has_buffer, shape.tuple_shapes))


def buffer_problem(i: Instruction) -> str | None:
    """The error of one instruction, or None."""
    if i.opcode == "custom-call":
        target = unquoted(str(i.get("custom_call_target", "")))
        if target in ("Pin", "Unpin", "CreateBuffer"):
            return _pinning_problem(i, target)
    if i.opcode in ("custom-call", "custom-call-start"):
        return _handing_problem(i)
    return f"{i.opcode} gives no buffers" if has_buffer(i.shape) and i.opcode not in _GIVERS else None


def _pinning_problem(i: Instruction, target: str) -> str | None:
    """Pin makes a buffer of an array, Unpin an array of a buffer, CreateBuffer one of nothing."""
    operands = [o.shape for o in i.operands]
    if target == "CreateBuffer":
        fits, wanted = not operands and i.shape.element_type == "buffer", "nothing and gives a buffer"
    elif target == "Pin":
        fits, wanted = len(operands) == 1 and operands[0].is_array and i.shape.element_type == "buffer", \
            "an array and gives a buffer"
    else:
        fits, wanted = len(operands) == 1 and operands[0].element_type == "buffer" and i.shape.is_array, \
            "a buffer and gives an array"
    if not fits:
        return f"{target} takes {wanted}"
    if target != "CreateBuffer" and len(operand_aliases(i)) != 1:
        return f"{target} needs one output_to_operand_aliasing"
    return None


def _handing_problem(i: Instruction) -> str | None:
    """A call returns each buffer that it takes, and no other."""
    aliases = operand_aliases(i)
    taken, given = {(a.parameter, a.parameter_index) for a in aliases}, {a.output for a in aliases}
    for number, operand in enumerate(i.operands):
        if any((number, place) not in taken for place in _places(operand.shape)):
            return f"operand {number} has a buffer that no result is"
    if i.opcode == "custom-call" and any(place not in given for place in _places(i.shape)):
        return "the result has a buffer that no operand is"
    return None


def _places(shape: Shape, before: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Tuple indices of the buffers."""
    if shape.element_type == "buffer":
        return [before]
    return [p for n, part in enumerate(shape.tuple_shapes) for p in _places(part, (*before, n))]


def _writer_errors(computation: Computation) -> Iterator[VerifyError]:
    written: dict[_Source, Instruction] = {}
    for i in computation.instructions:
        if i.opcode in ("custom-call", "custom-call-start"):
            for operand in i.operands:
                for place in _places(operand.shape):
                    first = written.setdefault(_source(operand, place), i)
                    if first is not i:
                        yield VerifyError(f"the buffer {operand.name} has two writers: %{first.name} and %{i.name}",
                                          i.span)


def _source(value: Instruction, place: tuple[int, ...]) -> _Source:
    """The origin of a buffer, through tuples."""
    while True:
        if value.opcode == "get-tuple-element":
            value, place = value.operands[0], (value.get("index"), *place)
        elif value.opcode == "tuple" and place:
            value, place = value.operands[place[0]], place[1:]
        else:
            return value, place
