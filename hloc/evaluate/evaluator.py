"""The reference evaluator in NumPy: slow and simple. It defines what a module means.

In: a module and one array per flattened entry parameter. Out: the flattened results.

    evaluate(parse_module("ENTRY e { a = f32[2] parameter(0)  ROOT r = f32[2] add(a, a) }"), [x]) == (x + x,)

Each op's meaning stands in its row (hloc/ops). Here: the order of evaluation, freeing of dead values, calls, scalar
functions on whole arrays, and the state of a run (device, seed, random state, custom calls, feeds).
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hloc.errors import RunError, UnsupportedError, elided_constant
from hloc.evaluate.elementwise_groups import Group, parts_of
from hloc.evaluate.lookahead import run_loop
from hloc.inputs import check_inputs, within_bounds
from hloc.ir import ELEMENT_TYPES, Computation, Instruction, Module, Shape, leaves, numpy_dtype
from hloc.ir.clone import clone_module
from hloc.ops.conversions import reinterpret
from hloc.ops.dynamic_shapes import sets_silently, write_dynamic_shapes
from hloc.ops.table import OPS
from hloc.ops.values import Value, flatten, unflatten

DEEPEST_CALL = 150          # Python's own stack allows about 1,000 frames, and a nested call takes four or five

CustomCall = Callable[..., Value]      # (instruction, *operand values) -> value


@dataclass
class Options:
    """The options of a run, besides its inputs.

    seed      of `rng` and GetRngSeed
    observer  called with every instruction, the values of its operands and its result, right after it is computed
    infeed    values for infeed (and for recv, by channel in `received`), taken from the front
    outfeed   collects the values of outfeed (and of send, as pairs of channel and value, in `sent`)
    """

    seed: int = 0
    observer: Callable[[Instruction, Sequence[Value], Value], None] | None = None
    infeed: list[Value] = field(default_factory=list)
    outfeed: list[Value] = field(default_factory=list)
    received: dict[int, list[Value]] = field(default_factory=dict)
    sent: list[tuple[int, Value]] = field(default_factory=list)


def evaluate(module: Module, inputs: Sequence[Any], *, custom_calls: Mapping[str, CustomCall] | None = None,
             options: Options | None = None, device: Device | None = None) -> tuple[np.ndarray, ...]:
    """Run the entry on one device. Raises RunError for wrong inputs, UnsupportedError for ops without a meaning."""
    checked, written = check_inputs(module, inputs), module.entry.root.shape
    if sets_silently(module):
        module = clone_module(module)
        write_dynamic_shapes(module)
    evaluator = Evaluator(module, custom_calls=custom_calls, options=options, device=device)
    results = evaluator.run(checked)
    for shape, array in zip(leaves(written), results):
        if shape.is_array and not shape.is_dynamic and array.shape != shape.dimensions:
            raise UnsupportedError(f"the entry gives {shape.to_string(False)}, but of a size set here: "
                                   f"{list(array.shape)}", module.entry.root.span)
    return results


class Step(NamedTuple):
    """One instruction, ready to run: values[target] = function(evaluator, instruction, *values[sources])."""

    function: Callable[..., Value]
    instruction: Instruction
    sources: tuple[int, ...]
    target: int
    dead: tuple[int, ...]       # slots that are not read afterwards
    dimensions: tuple[int, ...] | None       # of the result array; None if it is no array
    dtype: np.dtype | None


class Plan(NamedTuple):
    """A computation, ready to run. `slots` is the start state: constants in their places, None elsewhere."""

    slots: list[Value]
    parameters: tuple[int, ...]
    steps: tuple[Step, ...]
    root: int

    def begin(self, arguments: Sequence[Value]) -> list[Value]:
        """The slots before the first step."""
        values = list(self.slots)
        for slot, argument in zip(self.parameters, arguments):
            values[slot] = argument
        return values


class Evaluator:
    """One run of a module on one device. Ops get it as their first argument."""

    can_look_ahead = True       # whether ops may compute many steps of a loop at once (lookahead.py)

    def __init__(self, module: Module | None = None, *, custom_calls: Mapping[str, CustomCall] | None = None,
                 options: Options | None = None, device: Device | None = None):
        self.module = module
        self.custom_calls = dict(custom_calls or {})
        self.options = options or Options()
        self.device = device or Device()
        self.random_state = FIRST_RANDOM_STATE
        self.warnings: list[str] = []
        self._plans: dict[Computation, Plan] = {}
        self._parts: dict[Computation, tuple[Group | tuple[Step, ...], ...] | None] = {}
        self._scalar_plans: dict[Computation, Plan | None] = {}
        self._depth = 0

    def run(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Flattened entry parameters in, flattened results out."""
        rest = iter(arrays)
        assert self.module is not None
        entry = self.module.entry
        results = flatten(self.call(entry, [unflatten(p.shape, rest) for p in entry.parameters]))
        return tuple(r if r.flags.c_contiguous and r.flags.writeable else r.copy() for r in results)   # views: copied

    def call(self, computation: Computation, arguments: Sequence[Value]) -> Value:
        """The value of a computation's root. Values are freed after their last use."""
        plan = self.plan(computation)
        values = plan.begin(arguments)
        self.nested(computation, self._run_plan, computation, plan, values)
        return values[plan.root]

    def _run_plan(self, computation: Computation, plan: Plan, values: list[Value]) -> None:
        if not self.looks_ahead:
            return self.run_steps(plan.steps, values)
        if computation not in self._parts:
            self._parts[computation] = parts_of(plan.steps)
        for part in self._parts[computation] or (plan.steps,):
            if isinstance(part, Group):
                part.run(self, values)
            else:
                self.run_steps(part, values)

    def loop(self, instruction: Instruction, state: Value) -> Value:
        """The state after a `while`."""
        return run_loop(self, instruction, state)

    @property
    def looks_ahead(self) -> bool:
        return self.can_look_ahead and self.options.observer is None

    def plan(self, computation: Computation) -> Plan:
        if computation not in self._plans:
            self._plans[computation] = self.prepare(computation)
        return self._plans[computation]

    def prepare(self, computation: Computation) -> Plan:
        return make_plan(computation)

    def nested(self, computation: Computation, function: Callable, *arguments: Any) -> Any:
        """function(*arguments) as a part of calling `computation`. The outermost call silences NumPy's warnings."""
        if self._depth >= DEEPEST_CALL:
            raise UnsupportedError(f"calls nest deeper than {DEEPEST_CALL}: %{computation.name}", computation.span)
        self._depth += 1
        try:
            if self._depth > 1:
                return function(*arguments)
            with np.errstate(all="ignore"):
                return function(*arguments)
        finally:
            self._depth -= 1

    def run_steps(self, steps: Sequence[Step], values: list[Value]) -> None:
        """Fills the slots that the steps write. Values are freed after their last use."""
        observer = self.options.observer
        for function, instruction, sources, target, dead, dimensions, dtype in steps:
            operands = [values[s] for s in sources]
            try:
                value = function(self, instruction, *operands)
            except (MemoryError, ValueError, IndexError) as error:
                raise failed(instruction, error) from error
            if dimensions is not None:
                if type(value) is not np.ndarray:
                    value = np.asarray(value)
                if value.dtype != dtype or value.shape != dimensions:
                    check(instruction, value)
            values[target] = value
            if observer is not None:
                observer(instruction, operands, value)
            for slot in dead:
                values[slot] = None

    def apply(self, computation: Computation, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        """A computation of scalars, applied to every element of arrays that broadcast together.

        If all its ops are elementwise, they run on whole arrays at once, else element by element.
        """
        if computation not in self._scalar_plans:
            self._scalar_plans[computation] = make_scalar_plan(computation)
        plan = self._scalar_plans[computation]
        if plan is None:
            return self._apply_one_by_one(computation, arrays)
        values = plan.begin(arrays)

        def run() -> None:
            for function, instruction, sources, target, *_ in plan.steps:
                values[target] = function(self, instruction, *[values[s] for s in sources])
        self.nested(computation, run)
        shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
        return tuple(r if np.shape(r) == shape else np.broadcast_to(r, shape) for r in flatten(values[plan.root]))

    def _apply_one_by_one(self, computation: Computation, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        arrays = np.broadcast_arrays(*arrays)
        shape = arrays[0].shape
        results = [np.empty(shape, numpy_dtype(s.element_type)) for s in leaves(computation.root.shape)]
        for index in np.ndindex(shape):
            parts = flatten(self.call(computation, [np.asarray(a[index]) for a in arrays]))
            for result, part in zip(results, parts):
                result[index] = part
        return tuple(results)

    def warn(self, message: str) -> None:
        """Record once a fact that the result may depend on."""
        if message not in self.warnings:
            self.warnings.append(message)


Join = Callable[[Sequence[np.ndarray]], np.ndarray]
FIRST_RANDOM_STATE = 0x7012395          # XLA's initial state on CPUs


class Device:
    """The device of a run, among replica_count x partition_count devices. By default there is one."""

    def __init__(self, replica: int = 0, partition: int = 0, replica_count: int = 1, partition_count: int = 1):
        self.replica, self.partition = replica, partition
        self.replica_count, self.partition_count = replica_count, partition_count
        self.posted: dict[int, list[Value]] = {}       # by channels, to itself

    @property
    def number(self) -> int:
        return self.replica * self.partition_count + self.partition

    @property
    def count(self) -> int:
        return self.replica_count * self.partition_count

    @property
    def neighbours(self) -> int:
        """How many devices, this one too, share the CPUs."""
        return 1

    @property
    def place_here(self) -> int:
        """The number of this device among those on this machine."""
        return 0

    @property
    def others_failed(self) -> bool:
        """Whether it is known that another device has failed, and does not come."""
        return False

    def exchange(self, instruction: Instruction, members: Sequence[int], value: Value) -> list[Value]:
        """Exchange values at `instruction`: gives this device's value, waits for the members' values (by device
        number)."""
        return [value]

    def post(self, instruction: Instruction, target: int, channel: int, value: Value) -> None:
        """Send a value to another device, or to itself."""
        self.posted.setdefault(channel, []).append(value)

    def fetch(self, instruction: Instruction, source: int, channel: int, shape: Shape) -> Value:
        """The oldest value that a device has sent on a channel and that is not received yet. Raises RunError if none
        comes."""
        if not self.posted.get(channel):
            raise RunError(f"{instruction.opcode} %{instruction.name} waits for what nobody sends", instruction.span)
        return self.posted[channel].pop(0)

    def combined(self, instruction: Instruction, members: Sequence[int], arrays: Sequence[np.ndarray],
                 join: Join) -> list[np.ndarray]:
        """Each of `arrays` combined over the members; `join` combines the same elements of all. Nobody may change the
        results: members may share them."""
        held = self.exchange(instruction, members, tuple(arrays))
        return [join([h[k] for h in held]) for k in range(len(arrays))]

    def combined_part(self, instruction: Instruction, members: Sequence[int], arrays: Sequence[np.ndarray],
                      join: Join, axis: int) -> list[np.ndarray]:
        """This device's part, along an axis, of what `combined` gives."""
        held, own = self.exchange(instruction, members, tuple(arrays)), list(members).index(self.number)
        return [join([np.split(h[k], len(members), axis)[own] for h in held]) for k in range(len(arrays))]


# -- plans -------------------------------------------------------------------------------------------------------------

def make_plan(computation: Computation) -> Plan:
    """The steps of a computation, without unused instructions that have no effect."""
    needed = _needed(computation)
    steps = [(_function(i), i) for i in needed if i.opcode not in ("parameter", "constant")]
    return _assemble(computation, needed, steps)


def make_scalar_plan(computation: Computation) -> Plan | None:
    """The same for whole arrays, or None where some instruction is not elementwise."""
    needed = _needed(computation)
    steps = []
    for instruction in needed:
        if not all(s.rank == 0 for s in leaves(instruction.shape)):
            return None
        if instruction.opcode in ("parameter", "constant"):
            continue
        function = _scalar_function(instruction)
        if function is None:
            return None
        steps.append((function, instruction))
    return _assemble(computation, needed, steps)


def _needed(computation: Computation) -> list[Instruction]:
    """The instructions that the root or an effect depends on."""
    wanted = {computation.root}
    for instruction in reversed(computation.instructions):
        if instruction in wanted or _may_act(instruction):
            wanted.add(instruction)
            wanted.update(instruction.operands)
    return [i for i in computation.instructions if i in wanted]


def _may_act(instruction: Instruction) -> bool:
    return OPS[instruction.opcode].side_effect or bool(instruction.called_computations) or \
        instruction.get("custom_call_has_side_effect", False)


def _assemble(computation: Computation, needed: Sequence[Instruction], steps: Sequence[tuple]) -> Plan:
    slot = {instruction: number for number, instruction in enumerate(needed)}
    slots: list[Value] = [_constant(i) if i.opcode == "constant" else None for i in needed]
    last_use = {i: i for i in needed}
    for instruction in needed:
        for operand in instruction.operands:
            last_use[operand] = instruction
    dead: dict[Instruction, list[int]] = {}
    for instruction, user in last_use.items():
        if instruction.opcode != "constant" and instruction is not computation.root:
            dead.setdefault(user, []).append(slot[instruction])
    parameters = computation.parameters
    for parameter in parameters:
        if parameter not in slot:
            slot[parameter] = len(slots)
            slots.append(None)
    return Plan(slots, tuple(slot[p] for p in parameters),
                tuple(Step(f, i, tuple(slot[o] for o in i.operands), slot[i], tuple(dead.get(i, ())), *_expected(i))
                      for f, i in steps), slot[computation.root])


def _expected(instruction: Instruction) -> tuple[tuple[int, ...] | None, np.dtype | None]:
    """Dimensions and type of the array that an instruction gives; None if it is no array."""
    shape = instruction.shape
    return (shape.dimensions, ELEMENT_TYPES[shape.element_type].dtype) if shape.is_array else (None, None)


def _function(instruction: Instruction) -> Callable[..., Value]:
    op = OPS[instruction.opcode]
    if op.evaluate is None:
        raise UnsupportedError(f"{instruction.opcode}: {op.unsupported}", instruction.span)
    return op.evaluate


def _constant(instruction: Instruction) -> Value:
    if _is_elided(instruction.literal):
        raise elided_constant(instruction.span)
    return instruction.literal


def _is_elided(literal: Value | None) -> bool:
    return any(map(_is_elided, literal)) if isinstance(literal, tuple) else literal is None


_SAME_SCALAR = frozenset({"copy", "reshape", "bitcast", "broadcast", "transpose", "reverse", "opt-barrier"})


def _scalar_function(instruction: Instruction) -> Callable[..., Value] | None:
    """The function of a scalar op on whole arrays, or None if it has none."""
    opcode = instruction.opcode
    op = OPS[opcode]
    if op.is_elementwise or opcode in ("tuple", "get-tuple-element"):
        return op.evaluate
    if opcode in _SAME_SCALAR:
        same_type = instruction.shape.element_type == instruction.operands[0].shape.element_type
        return _first_operand if same_type else _bits_of_elements if _same_width(instruction) else None
    if opcode == "bitcast-convert" and _same_width(instruction):
        return _bits_of_elements
    if opcode == "call" or opcode == "fusion":
        return _apply_called
    return None


def _first_operand(evaluator: Evaluator, instruction: Instruction, operand: Value) -> Value:
    return operand


def _same_width(instruction: Instruction) -> bool:
    return ELEMENT_TYPES[instruction.shape.element_type].bits == ELEMENT_TYPES[
        instruction.operands[0].shape.element_type].bits


def _bits_of_elements(evaluator: Evaluator, instruction: Instruction, operand: Value) -> Value:
    return reinterpret(operand, instruction.shape.element_type).reshape(np.shape(operand))


def _apply_called(evaluator: Evaluator, instruction: Instruction, *operands: Value) -> Value:
    called = instruction.called_computations[0]
    return unflatten(called.root.shape, evaluator.apply(called, *operands))


# -- checking results -------------------------------------------------------------------------------------------------

def check(instruction: Instruction, value: np.ndarray) -> None:
    """Raises RunError if an array does not have the instruction's shape."""
    shape = instruction.shape
    if value.shape != shape.dimensions and not within_bounds(value.shape, shape) \
            or value.dtype != numpy_dtype(shape.element_type):
        raise RunError(f"%{instruction.name} is {shape.to_string(False)}, but evaluating {instruction.opcode} gave "
                       f"{value.dtype}[{','.join(map(str, value.shape))}]", instruction.span)


def failed(instruction: Instruction, error: Exception) -> RunError:
    if isinstance(error, MemoryError):
        return RunError(f"out of memory: {instruction.opcode} %{instruction.name} needs {instruction.shape.num_bytes} "
                        "bytes", instruction.span)
    return RunError(f"{instruction.opcode} %{instruction.name} cannot be evaluated: {error}", instruction.span)
