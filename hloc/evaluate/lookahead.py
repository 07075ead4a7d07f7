"""Loops of the evaluator: values that depend only on the counter are computed for many iterations at once.

    body { (i, x) = state   k = hash(i)   y = f(x, k)   ROOT (i + 1, y) }

Python takes a microsecond for each instruction, however small, so 100,000 steps of a hash of 1,000 instructions would
take minutes. Here k is computed at once for many iterations: each op by its own row, on arrays with one more
dimension in front. Values that depend on anything else, such as y, are computed step by step.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hloc.errors import HlocError
from hloc.ir import Computation, Instruction, Shape
from hloc.ir.attributes import SliceDim
from hloc.ops.table import OPS
from hloc.ops.values import Value, flatten, unflatten

FIRST = 32                  # steps before looking ahead pays
CHUNK, GROWTH, LARGEST = 64, 8, 4096            # steps at once: at first, growth factor, at most
BUDGET = 1 << 28            # bytes computed ahead at a time
INNER_STEPS = 1000          # of a loop inside the body

UNKNOWN = object()          # a value that depends on more than the counter


@dataclass(frozen=True, slots=True)
class Many:
    """The values of one array in each of the next steps, along a dimension in front."""

    array: np.ndarray


class Counters(NamedTuple):
    """The elements of a loop's state that are known in advance: increments of counters, and invariant elements."""

    strides: dict[int, np.ndarray]
    invariant: frozenset[int]


def run_loop(evaluator, instruction: Instruction, state: Value) -> Value:
    """The state after the loop."""
    condition, body = instruction.get("condition"), instruction.get("body")
    counters = evaluator.looks_ahead and counters_of(body)
    count = 0
    while evaluator.call(condition, [state]):
        state = evaluator.call(body, [state])
        count += 1
        if counters and count == FIRST:
            state = _run_ahead(evaluator, instruction, counters, state)
    return state


def counters_of(body: Computation) -> Counters | None:
    """The known elements; None without a counter."""
    parameter, root = body.parameters[0], body.root
    if root.opcode != "tuple":
        return None
    strides, invariant = {}, set()
    for number, value in enumerate(root.operands):
        if _is_element(value, parameter, number):
            invariant.add(number)
        elif value.opcode == "add" and value.shape.rank == 0 and value.shape.kind in ("signed", "unsigned"):
            a, b = value.operands
            element, stride = (a, b) if b.literal is not None else (b, a)
            amount = stride.array_literal
            if amount is not None and _is_element(element, parameter, number) and amount.dtype.kind in "iu":
                strides[number] = amount
    return Counters(strides, frozenset(invariant)) if strides else None


def _is_element(value: Instruction, parameter: Instruction, number: int) -> bool:
    return value.opcode == "get-tuple-element" and value.operands[0] is parameter and value.get("index") == number


def _run_ahead(evaluator, instruction: Instruction, counters: Counters, state: Value) -> Value:
    """The state after some more steps, perhaps the last, by looking ahead as long as that is possible."""
    condition, body = instruction.get("condition"), instruction.get("body")
    count = CHUNK
    while True:
        try:
            ahead = LookAhead(evaluator, count)
            start = ahead.state(counters, state)
            goes_on = evaluator.nested(condition, ahead.call, condition, [start])
            rest = Rest(evaluator.plan(body), evaluator.nested(body, ahead.values, body, [start]))
        except (HlocError, ValueError, MemoryError):
            return state                    # the steps themselves give the error
        for step in range(count):
            if not (evaluator.call(condition, [state]) if goes_on is UNKNOWN else pick(goes_on, step)):
                return state
            state = evaluator.nested(body, rest.run, evaluator, state, step)
        count = min(count * GROWTH, LARGEST)


class LookAhead:
    """Computes values of the next `count` steps. A value is an array that is the same in all of them, a Many, UNKNOWN,
    or a tuple of values."""

    def __init__(self, evaluator, count: int):
        self.evaluator, self.count, self.budget = evaluator, count, BUDGET

    def state(self, counters: Counters, state: Value) -> Value:
        """What is known about the state at the start of each step."""
        steps = np.arange(self.count)

        def element(number: int, value: Value) -> Value:
            stride = counters.strides.get(number)
            if stride is not None:
                return Many(value + stride * steps.astype(value.dtype))
            return value if number in counters.invariant else UNKNOWN
        return tuple(element(n, v) for n, v in enumerate(state))

    def call(self, computation: Computation, arguments: Sequence[Value]) -> Value:
        return self.values(computation, arguments)[self.evaluator.plan(computation).root]

    def values(self, computation: Computation, arguments: Sequence[Value]) -> list[Value]:
        """One for each slot of the computation's plan."""
        plan = self.evaluator.plan(computation)
        values = plan.begin(arguments)
        for step in plan.steps:
            values[step.target] = self.value(step, [values[s] for s in step.sources])
        return values

    def value(self, step, operands: list[Value]) -> Value:
        instruction, opcode = step.instruction, step.instruction.opcode
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element":
            return UNKNOWN if operands[0] is UNKNOWN else operands[0][instruction.attributes["index"]]
        if not all(map(is_known, operands)):
            return UNKNOWN
        if opcode in ("call", "fusion"):
            (called,) = instruction.called_computations
            return self.evaluator.nested(called, self.call, called, operands)
        if opcode == "while":
            return self.loop(instruction, operands[0])
        return self.computed(step, operands)

    def loop(self, instruction: Instruction, state: Value) -> Value:
        """A loop that runs as often in all steps."""
        condition, body = instruction.get("condition"), instruction.get("body")
        for _ in range(INNER_STEPS):
            goes_on = self.evaluator.nested(condition, self.call, condition, [state])
            if not isinstance(goes_on, np.ndarray):
                return UNKNOWN
            if not goes_on:
                return state
            state = self.evaluator.nested(body, self.call, body, [state])
            if not is_known(state):
                return UNKNOWN
        return UNKNOWN

    def computed(self, step, operands: list[Value]) -> Value:
        """Compute by the op's row, if its result is an array and it works with one more dimension in front."""
        instruction, shape = step.instruction, step.instruction.shape
        elementwise = OPS[instruction.opcode].is_elementwise
        if not shape.is_array or shape.is_dynamic or not elementwise and instruction.opcode not in SHIFTED:
            return UNKNOWN
        varies = any(isinstance(o, Many) for o in operands)
        self.budget -= shape.num_bytes * (self.count if varies else 1)
        if self.budget < 0:
            return UNKNOWN
        if not varies:
            return np.asarray(step.function(self.evaluator, instruction, *operands))
        wider = instruction.copy(shape=shape.with_dimensions((self.count, *shape.dimensions)))
        if elementwise:
            operands = [self.broadcastable(o, shape.rank) for o in operands]
        else:
            operands = [self.spread(o) for o in operands]
            wider.attributes.update(SHIFTED[instruction.opcode](instruction, self.count))
        return Many(step.function(self.evaluator, wider, *operands))

    def broadcastable(self, value: Value, rank: int) -> np.ndarray:
        """Reshape so that NumPy broadcasts it with arrays of `rank` dimensions after that of the steps."""
        if not isinstance(value, Many):
            return value
        array = value.array
        return array if array.ndim == rank + 1 else array.reshape(self.count, *[1] * rank)

    def spread(self, value: Value) -> np.ndarray:
        return value.array if isinstance(value, Many) else np.broadcast_to(value, (self.count, *value.shape))


def _next_dimensions(instruction: Instruction, count: int) -> dict[str, Any]:
    return {"dimensions": tuple(d + 1 for d in instruction.get("dimensions", ()))}


def _all_dimensions(instruction: Instruction, count: int) -> dict[str, Any]:
    return {"dimensions": (0, *(d + 1 for d in instruction.get("dimensions", ())))}


def _all_slices(instruction: Instruction, count: int) -> dict[str, Any]:
    return {"slice": (SliceDim(0, count), *instruction.get("slice"))}


def _none(instruction: Instruction, count: int) -> dict[str, Any]:
    return {}


# Ops that move elements, and their attributes that change where a dimension is put in front.
SHIFTED: dict[str, Callable[[Instruction, int], dict[str, Any]]] = {
    "broadcast": _all_dimensions, "transpose": _all_dimensions, "concatenate": _next_dimensions,
    "reverse": _next_dimensions, "slice": _all_slices, "reshape": _none, "copy": _none, "bitcast-convert": _none,
    "iota": _none,
}


class Rest:
    """The rest of a body's plan when some of its values are known ahead."""

    def __init__(self, plan, values: list[Value]):
        self.root = plan.root
        self.steps = [s for s in plan.steps if not is_known(values[s.target])]
        (self.parameter,) = plan.parameters
        read = {s for step in self.steps for s in step.sources} | {plan.root}
        self.start = list(plan.slots)
        self.varying: list[tuple[int, Shape, Value]] = []
        for step in plan.steps:
            slot = step.target
            if slot in read and is_known(values[slot]):
                self.varying.append((slot, step.instruction.shape, values[slot]))

    def run(self, evaluator, state: Value, step: int) -> Value:
        """The next state."""
        values = self.start.copy()
        values[self.parameter] = state
        for slot, shape, value in self.varying:
            values[slot] = pick(value, step) if not shape.is_aggregate else \
                unflatten(shape, (pick(part, step) for part in flatten(value)))
        evaluator.run_steps(self.steps, values)
        return values[self.root]


def pick(value: np.ndarray | Many, step: int) -> np.ndarray:
    return np.asarray(value.array[step]) if isinstance(value, Many) else value


def is_known(value: Value) -> bool:
    """Whether nothing in it is UNKNOWN."""
    return value is not UNKNOWN if type(value) is not tuple else all(part is not UNKNOWN for part in flatten(value))
