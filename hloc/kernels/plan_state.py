"""What a plan is made in: memory, constants and steps under construction.

In: a module and its machine. Out: PlanState, in which planner.py walks the schedule, and whose values launches.py and
control_flow.py read and write; Draft, a step before memory is placed. What is computed from bound parameters alone,
whose arrays are the same in all runs, and operands of theirs that are packed for library kernels, are made once: by
`setup`, steps of the first run (Program.setup), in memory that stays (Program.held).

    w = f32[1024,1024] parameter(1), bound        setup: pack w        every run: y = dot(x, packed w)

Tuples are flattened: an instruction is represented by its array leaves, a leaf by a Value of the buffer assignment.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hloc.analysis.aliasing import branch_origins, module_invariants
from hloc.analysis.counters import Counted
from hloc.ir import Computation, Instruction, Module, Shape, leaves, numpy_dtype
from hloc.kernels.buffer_assignment import BufferAssignment, Home, Value
from hloc.kernels.ir import Tile
from hloc.kernels.kernel_table import KernelTable
from hloc.kernels.plan import FLAG_BYTES, NO_WORKSPACE, Copy, HostCall, Ref, Step, Workspace
from hloc.machine import Machine

Leaves = list[Value]
Place = tuple[Value, "tuple[int, int] | None"]           # a value, or a part of it
Draft = Callable[[Callable[[Value], Ref]], Step]        # a step, from where memory of values is placed later


@dataclass
class PlanState:
    """The state of one walk. `time` counts positions on the flattened schedule."""

    module: Module
    machine: Machine
    workspace: Workspace = NO_WORKSPACE
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
    setup: list[Draft] = field(default_factory=list)         # of the first run: what bound parameters alone determine
    held: list[int] = field(default_factory=list)            # bytes of what setup makes
    packed: dict[Any, Value] = field(default_factory=dict)   # operands packed for library kernels in setup
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

    def hold(self, size: int) -> Value:
        """Memory that setup writes."""
        if not self.held:
            self.held.append(FLAG_BYTES)
        self.held.append(size)
        return self.assignment.new(size, Home("held", len(self.held) - 1))

    def is_held(self, value: Value) -> bool:
        """Whether a value is a bound parameter, or was computed from such."""
        home = self.assignment.root(value).home
        return home is not None and (home.region == "held" or home.region == "parameter" and home.index in self.bound)

    def is_setup(self, operands: Leaves) -> bool:
        """Whether an instruction of such operands computes the same in all runs, from bound parameters."""
        def is_constant(value: Value) -> bool:
            home = self.assignment.root(value).home
            return home is not None and home.region == "constant"
        return any(map(self.is_held, operands)) and all(self.is_held(v) or is_constant(v) for v in operands)

    def room(self, steps: list[Tile | HostCall], instruction: Instruction) -> Value | None:
        """The workspace of one instruction's library kernels, used one after the other; None if they need none."""
        size = max((self.workspace.scratch(s, self.machine) for s in steps), default=0)
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
        steps.append(lambda ref: Copy(ref(destination), ref(source), instruction))

    def land(self, values: Leaves) -> None:
        """Collectives whose results are among the values end here: their operands may be overwritten from now on."""
        for value in values:
            operands = self.in_flight.pop(value, [])
            self.access(operands)
            operands.clear()                                # the first of several results has ended them all


def finish(drafts: list[Draft], ref: Callable[[Value], Ref]) -> tuple[Step, ...]:
    steps = (draft(ref) for draft in drafts)
    return tuple(s for s in steps if not (isinstance(s, Copy) and s.destination == s.source))
