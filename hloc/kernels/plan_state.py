"""What a plan is made in: memory, constants and steps under construction.

In: a module and its machine. Out: PlanState, in which planner.py walks the schedule, and whose values launches.py and
control_flow.py read and write; Draft, a step before memory is placed. Tuples are flattened: an instruction is
represented by its array leaves, a leaf by a Value of the buffer assignment.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hloc.analysis.aliasing import branch_origins, module_invariants
from hloc.analysis.counters import Counted
from hloc.ir import Computation, Instruction, Module, Shape, leaves, numpy_dtype
from hloc.kernels.bound import BoundValues
from hloc.kernels.buffer_assignment import BufferAssignment, Home, Value
from hloc.kernels.ir import Tile
from hloc.kernels.kernel_table import KernelTable
from hloc.kernels.plan import Copy, HostCall, Ref, Step, Workspace
from hloc.machine import Machine

Leaves = list[Value]


@dataclass
class Draft:
    """A step whose references are still Values; `make` turns it into the final step after memory is placed."""

    make: Callable[[Callable[[Value], Ref]], Step]


@dataclass
class PlanState:
    """The state of one walk. `time` counts positions on the flattened schedule."""

    module: Module
    machine: Machine
    workspace: Workspace | None = None
    bound: frozenset[int] = frozenset()       # numbers of parameters whose arrays are the same in all runs
    assignment: BufferAssignment = field(default_factory=BufferAssignment)
    constants: list[np.ndarray] = field(default_factory=list)
    constant_values: dict = field(default_factory=dict)
    sharing: list[tuple[Value, Value, int]] = field(default_factory=list)
    makers: dict[Value, Instruction] = field(default_factory=dict)
    scratch: set[Value] = field(default_factory=set)         # of library kernels of the target
    collective_numbers: dict = field(default_factory=dict)
    in_flight: dict[Value, Leaves] = field(default_factory=dict)     # a result -> operands of its collective
    schedule: list[tuple[int, Instruction]] = field(default_factory=list)
    counted: dict[Instruction, tuple[Counted, ...]] = field(default_factory=dict)        # counters of loops, on a GPU
    uncomputed: dict[Instruction, Value] = field(default_factory=dict)   # what no kernel computes -> its memory
    counting: Leaves = field(default_factory=list)           # memory of counters of the loops around this instruction
    time: int = 0
    depth: int = 0
    called: int = 0

    @cached_property
    def kernels(self) -> KernelTable:
        return KernelTable(self.module, self.machine)

    @cached_property
    def invariants(self) -> Mapping[Computation, frozenset[int]]:
        """For each loop body the carried leaves that it passes through unchanged."""
        return module_invariants(self.module)

    @cached_property
    def origins(self) -> Mapping[Computation, tuple[int | None, ...]]:
        """For each branch the parameter leaves whose memory holds its results."""
        return branch_origins(self.module, self.invariants)

    @cached_property
    def once(self) -> BoundValues:
        return BoundValues(self.assignment, self.bound)

    def constant(self, array: np.ndarray, shape: Shape) -> Value:
        """A value in the constant region; equal constants are stored once."""
        array = np.ascontiguousarray(np.broadcast_to(array.astype(numpy_dtype(shape.element_type), copy=False),
                                                     shape.dimensions))
        key = (shape.element_type, shape.dimensions, array.tobytes())
        if key not in self.constant_values:
            self.constant_values[key] = self.assignment.new(array.nbytes, Home("constant", len(self.constants)))
            self.constants.append(array)
        return self.constant_values[key]

    def fresh(self, instruction: Instruction) -> Leaves:
        return [self.made_by(instruction, s.num_bytes) for s in leaves(instruction.shape)]

    def made_by(self, instruction: Instruction, size: int, on_host: bool = False) -> Value:
        value = self.assignment.new(size, on_host=on_host)
        self.makers[value] = instruction
        return value

    def access(self, read: Iterable[Value], written: Iterable[Value] = ()) -> None:
        """The steps of this time read and write these values."""
        for value in read:
            self.assignment.use(value, self.time)
        for value in written:
            self.assignment.define(value, self.time)

    def is_fixed(self, value: Value) -> bool:
        """Whether the value is in memory that must not be overwritten."""
        root = self.assignment.root(value)
        return root.home is not None and root.home.region in ("constant", "parameter", "held") \
            or any(self.assignment.root(place) is root for place in self.counting)

    def room(self, steps: list[Tile | HostCall], instruction: Instruction) -> Value | None:
        """The workspace of one instruction's library kernels, used one after the other; None if they need none."""
        size = max((self.workspace.scratch(s, self.machine) for s in steps), default=0) if self.workspace else 0
        if not size:
            return None
        value = self.made_by(instruction, size)
        value.stays = True
        self.scratch.add(value)
        self.assignment.define(value, self.time)
        return value

    def copy(self, destination: Value, source: Value, steps: list[Draft]) -> None:
        self.access([source], [destination])
        instruction = self.schedule[-1][1]
        steps.append(Draft(lambda ref: Copy(ref(destination), ref(source), instruction)))

    def land(self, values: Leaves) -> None:
        """Collectives whose results are among the values end here: their operands may be overwritten from now on."""
        for value in values:
            operands = self.in_flight.pop(value, [])
            self.access(operands)
            operands.clear()                                # the first of several results has ended them all


def leaf_count(shape: Shape) -> int:
    return sum(1 for _ in leaves(shape))


def first_leaf(tuple_shape: Shape, index: int) -> int:
    """The number of the first leaf of an element of a tuple."""
    return sum(map(leaf_count, tuple_shape.tuple_shapes[:index]))


def finish(drafts: list[Draft], ref: Callable[[Value], Ref]) -> tuple[Step, ...]:
    steps = (draft.make(ref) for draft in drafts)
    return tuple(s for s in steps if not (isinstance(s, Copy) and s.destination == s.source))
