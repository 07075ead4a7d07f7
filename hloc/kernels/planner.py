"""Module -> Program: kernels, steps and memory.

In: a module after the target-dependent passes (fused, row-major, scheduled, copies inserted). Out: a plan.Program.

The planner walks the schedule of the entry once; control flow is walked in place, so that every instruction of the
program has one time on a single timeline. Tuples are flattened: an instruction is represented by its array leaves, a
leaf by a Value of the buffer assignment. After the walk the assignment places the values and the drafts become steps.

    program = plan_module(module, machine)
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import prod

import numpy as np

from hloc.analysis.aliasing import branch_operands, branch_origins, module_invariants
from hloc.analysis.counters import Counted, counted_loops
from hloc.analysis.loop_annotations import known_trip_count
from hloc.devices import device_counts
from hloc.errors import HlocError, UnsupportedError, elided_constant
from hloc.inputs import entry_parameters, entry_results
from hloc.ir import Computation, Instruction, Module, Shape, leaves, numpy_dtype
from hloc.ir.shapes import array
from hloc.kernels.bound import BoundValues, Place
from hloc.kernels.buffer_assignment import BufferAssignment, Home, Value
from hloc.kernels.collectives import Exchange, collective_key, exchanges_of
from hloc.kernels.ir import Tile
from hloc.kernels.kernel_table import KernelTable
from hloc.kernels.overlap import with_late_ends
from hloc.kernels.plan import (
    TRANSFER,
    Block,
    Branch,
    Collective,
    Copy,
    Counter,
    DeviceNumber,
    HostCall,
    Launch,
    Packing,
    Program,
    Ref,
    Step,
    WhileLoop,
    Workspace,
)
from hloc.kernels.plan import Value as PlanValue
from hloc.machine import Machine
from hloc.ops.checks import target_of
from hloc.ops.collectives import OWN_NUMBERS, meets_devices
from hloc.ops.host import transfer_name

DEEPEST_NESTING = 200
MOST_CALLED = 100_000            # instructions planned again for calls: nested calls can be exponentially many
FORWARDING = frozenset(["bitcast", "reshape", "opt-barrier", "domain", "copy-start", "copy-done", "add-dependency"])

TRANSFERS = frozenset(["infeed", "outfeed", "send", "recv"])

Leaves = list[Value]


@dataclass
class Draft:
    """A step whose references are still Values; `make` turns it into the final step after memory is placed."""

    make: Callable[[Callable[[Value], Ref]], Step]


@dataclass
class Planner:
    """The state of one walk. `time` counts positions on the flattened schedule."""

    module: Module
    machine: Machine
    progress: Callable[[int, int], None] | None = None
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

    # -- the walk ----------------------------------------------------------------------------------------------------

    def computation(self, computation: Computation, arguments: list[Leaves]) -> tuple[list[Draft], Leaves]:
        """Drafts for all instructions of a computation, and the leaves of its root."""
        self.depth += 1
        if self.depth > DEEPEST_NESTING:
            raise UnsupportedError(f"control flow nested deeper than {DEEPEST_NESTING} levels", computation.span)
        table: dict[Instruction, Leaves] = {}
        steps: list[Draft] = []
        if self.machine.kind == "gpu":
            loops = counted_loops(computation)
            self.counted.update(loops)
            self.uncomputed.update((c.first, self.made_by(c.first, c.values.itemsize))
                                   for found in loops.values() for c in found if c.first is not None)
        for instruction in computation.instructions:
            self.time += 1
            self.schedule.append((self.time, instruction))
            table[instruction] = self.instruction(instruction, table, arguments, steps)
        self.depth -= 1
        return steps, table[computation.root]

    def instruction(self, instruction: Instruction, table: dict, arguments: list[Leaves], steps: list[Draft]) -> Leaves:
        """The leaves of one instruction; its steps are added to `steps`."""
        opcode = instruction.opcode
        if opcode == "parameter":
            return arguments[instruction.number]
        if instruction in self.uncomputed:
            return [self.uncomputed[instruction]]
        operands = [table[o] for o in instruction.operands]
        if opcode in FORWARDING:
            return operands[0]
        if opcode == "copy" and instruction.shape.on_host != self.assignment.root(operands[0][0]).on_host:
            return self.transfer(instruction, operands[0][0], steps)
        if opcode == "tuple":
            return [leaf for operand in operands for leaf in operand]
        if opcode == "get-tuple-element":
            return self.element(instruction, operands[0])
        if opcode in ("after-all", "partition-id", "replica-id") and not list(leaves(instruction.shape)):
            return []
        if opcode == "constant":
            literals = zip(_literal_leaves(instruction), leaves(instruction.shape))
            return [self.constant(np.asarray(a), s) for a, s in literals]
        self.land([v for o in operands for v in o])
        if opcode == "while":
            return self.while_loop(instruction, operands, steps)
        if opcode == "conditional":
            return self.conditional(instruction, operands, steps)
        if opcode == "call":
            return self.call(instruction, operands, steps)
        if meets_devices(instruction):
            return self.collective(instruction, operands, steps)
        if opcode == "custom-call" or opcode in TRANSFERS:
            return self.host_call(instruction, operands, steps)
        return self.launch(instruction, operands, steps)

    def call(self, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
        """The steps of the called computation, in place."""
        callee = instruction.get("to_apply")
        self.called += len(callee.instructions)
        if self.called > MOST_CALLED:
            raise UnsupportedError(f"calls of more than {MOST_CALLED:,} instructions in all", instruction.span)
        inner, result = self.computation(callee, operands)
        steps.extend(inner)
        return result

    def element(self, instruction: Instruction, operand: Leaves) -> Leaves:
        shape = instruction.operands[0].shape
        index = instruction.get("index")
        start = sum(_leaf_count(s) for s in shape.tuple_shapes[:index])
        return operand[start:start + _leaf_count(shape.tuple_shapes[index])]

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

    def launch(self, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
        """The kernels of an instruction; in-place results share their operand's memory."""
        lowered = self.kernels.of(instruction)
        results = self.fresh(instruction)
        if self.depth == 1 and self.once.are_all_of([v for o in operands for v in o]):
            results, steps = [self.once.hold(value.size) for value in results], self.once.setup
        for result, operand, leaf in lowered.in_place:
            source = operands[operand][leaf]
            if self.assignment.can_join(results[result], source) and not self._fixed(source):
                self.assignment.join(source, results[result])
            else:
                self.copy(results[result], source, steps)
        scratch = [self.made_by(instruction, size) for size in lowered.scratch]
        places = {"operand": lambda a: operands[a.index][a.leaf], "result": lambda a: results[a.leaf],
                  "scratch": lambda a: scratch[a.index]}
        for value in [v for o in operands for v in o]:
            self.assignment.use(value, self.time)
        for value in results + scratch:
            self.assignment.define(value, self.time)
        calls = []
        for call in lowered.calls:
            values = [(places[a.kind](a), a.part) for a in call.arguments]
            packs = partial(self._draft_packing, instruction)
            calls.append((*self.once.with_packed(call.kernel, values, self._packing_of, packs), values))
        room = self.room([kernel for kernel, _, _ in calls if isinstance(kernel, Tile)], instruction)
        for kernel, packed, values in calls:
            own = room if isinstance(kernel, Tile) else None
            steps.append(self._draft_launch(self.kernels.number(kernel), values, instruction, own, packed))
        for result, operand, leaf in getattr(lowered, "can_share", ()):
            self.sharing.append((results[result], operands[operand][leaf], self.time))
        return results

    def _fixed(self, value: Value) -> bool:
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

    def _draft_launch(self, kernel: int, values: list[Place], instruction: Instruction,
                      room: Value | None, packed: Value | None) -> Draft:
        def launch(ref: Callable[[Value], Ref]) -> Launch:
            places = tuple(ref(v) if part is None else ref(v).part(*part) for v, part in values)
            return Launch(kernel, places, instruction, ref(room) if room else None, ref(packed) if packed else None)
        return Draft(launch)

    def _draft_packing(self, instruction: Instruction, tile: Tile, operand: Place, target: Value) -> Draft:
        room = self.room([tile], instruction)
        return self._draft_launch(self.kernels.number(tile), [operand], instruction, room, target)

    def _packing_of(self, tile: Tile) -> Packing | None:
        return self.workspace.packing(tile, self.machine) if self.workspace else None

    def copy(self, destination: Value, source: Value, steps: list[Draft]) -> None:
        self.assignment.use(source, self.time)
        self.assignment.define(destination, self.time)
        instruction = self.schedule[-1][1]
        steps.append(Draft(lambda ref: Copy(ref(destination), ref(source), instruction)))

    def transfer(self, instruction: Instruction, source: Value, steps: list[Draft]) -> Leaves:
        """A copy between the memories of device and host; on a GPU kernels run beside it."""
        made = self.made_by(instruction, source.size, instruction.shape.on_host)
        self.land([source])
        if self.machine.kind == "cpu":
            self.copy(made, source, steps)
            return [made]
        self.assignment.use(source, self.time)
        self.assignment.define(made, self.time)
        number = self.collective_numbers.setdefault((TRANSFER, made), len(self.collective_numbers))
        blocks = (Block("u8", 1, source.size, source.size),)
        for is_done in (False, True):
            steps.append(Draft(partial(_transfer_step, instruction, blocks, number, is_done, source, made)))
        return [made]

    # -- control flow ------------------------------------------------------------------------------------------------

    def while_loop(self, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
        """Initial value, parameter, root and result of each carried leaf share one piece of memory."""
        carried = self._own(instruction, operands[0], steps)
        for value in carried:
            self.assignment.use(value, self.time)
        trips = known_trip_count(instruction)
        condition, flag = ([], None) if self.machine.kind == "gpu" and trips is not None else self._condition(
            instruction, carried)
        counted = self.counted.get(instruction, ())
        counters = self._count(instruction, counted, carried)
        self.counting += [place for place, _ in counters]
        body, results = self.computation(instruction.get("body"), [carried])
        del self.counting[len(self.counting) - len(counters):]
        self.time += 1
        results = [carried[n] if n in self._leaves(instruction, counted) else leaf for n, leaf in enumerate(results)]
        body += self._carry(carried, results)
        for value in carried + [place for place, _ in counters]:
            self.assignment.use(value, self.time)
        steps.append(Draft(lambda ref: WhileLoop(
            _finish(condition, ref), ref(flag) if flag else None, _finish(body, ref), trips, instruction,
            tuple(Counter(ref(place), ref(values).part(0, place.size)) for place, values in counters))))
        for leaf, one in zip(self._leaves(instruction, counted), counted):
            self.uncomputed.pop(one.stepped, None)
            self.uncomputed.pop(one.returned, None)
            if one.is_read:
                self.copy(carried[leaf], self.constant(one.values[-1], one.stepped.shape), steps)
        return carried

    def _leaves(self, loop: Instruction, counted: tuple[Counted, ...]) -> list[int]:
        """The leaves of a loop's state that are counters."""
        return [sum(_leaf_count(s) for s in loop.shape.tuple_shapes[:one.element]) for one in counted]

    def _count(self, loop: Instruction, counted: tuple[Counted, ...], carried: Leaves) -> list[tuple[Value, Value]]:
        """The memory of counters, also of the next values that the body reads, and the constants with their values."""
        found = []
        for leaf, one in zip(self._leaves(loop, counted), counted):
            places = {carried[leaf]: one.values[:-1]}
            self.uncomputed[one.stepped] = self.uncomputed[one.returned] = carried[leaf]
            if one.steps_read:
                self.uncomputed[one.stepped] = self.made_by(one.stepped, one.values.itemsize)
                places[self.uncomputed[one.stepped]] = one.values[1:]
            for place, values in places.items():
                self.assignment.define(place, self.time)
                found.append((place, self.constant(values, array(one.stepped.shape.element_type, len(values)))))
        return found

    def _condition(self, loop: Instruction, carried: Leaves) -> tuple[list[Draft], Value]:
        """The steps of a loop's condition, and the flag that they write."""
        condition, flag = self.computation(loop.get("condition"), [carried])
        self.time += 1
        self.assignment.use(flag[0], self.time)
        return condition, flag[0]

    def _own(self, loop: Instruction, carried: Leaves, steps: list[Draft]) -> Leaves:
        """Copies of the leaves that the loop changes and that the program does not own: copy_insertion trusts donated
        parameters.

        A donated parameter is still the caller's array (input_output_alias allows sharing, it does not require it), so
        a run never changes the caller's arrays.
        """
        if not any(self._fixed(value) for value in carried):
            return carried
        owned = list(carried)
        kept = self.invariants[loop.get("body")]
        for leaf, value in enumerate(carried):
            if leaf not in kept and self._fixed(value):
                owned[leaf] = self.made_by(loop, value.size, self.assignment.root(value).on_host)
                self.copy(owned[leaf], value, steps)
        return owned

    def _carry(self, carried: Leaves, results: Leaves) -> list[Draft]:
        """Join each root leaf of a loop body to its carried leaf; a leaf that cannot share is copied at the end."""
        moves: list[tuple[Value, Value]] = []
        for value, result in zip(carried, results):
            if self.assignment.root(value) is self.assignment.root(result):
                continue
            if self._fixed(value):
                raise HlocError("internal: a loop would overwrite an entry parameter or a constant; "
                                "copy_insertion missed a copy of its initial value")
            if self.assignment.can_join(value, result):
                self.assignment.join(value, result)
            else:
                moves.append((value, result))
        steps: list[Draft] = []
        for value, result in moves:
            self.copy(value, result, steps)
        return steps

    def conditional(self, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
        """Every branch writes the same result memory: that of an array that a branch passes through or updates, if
        copy_insertion left it so."""
        selector = operands[0][0]
        self.assignment.use(selector, self.time)
        results = self.fresh(instruction)
        operands = self._given_to_branches(instruction, operands, results, steps)
        branches: list[list[Draft]] = []
        for value in [v for o in operands[1:] for v in o]:
            self.assignment.use(value, self.time)
        start = self.time
        for number, branch in enumerate(_branches(instruction)):
            inner, root = self.computation(branch, [operands[1 + number]])
            self.time += 1
            for value, result in zip(root, results):
                if self.assignment.root(value) is self.assignment.root(result):
                    continue
                is_own = not self._fixed(value) and self._is_born_after(value, start)
                if is_own and self.assignment.can_join(value, result):
                    self.assignment.join(result, value)
                else:
                    self.copy(result, value, inner)
            branches.append(inner)
        for value in results + [v for o in operands[1:] for v in o]:
            self.assignment.use(value, self.time)
        kind = instruction.operands[0].shape.element_type
        steps.append(Draft(lambda ref: Branch(ref(selector), kind, tuple(_finish(b, ref) for b in branches),
                                                     instruction)))
        return results

    def _given_to_branches(self, conditional: Instruction, operands: list[Leaves], results: Leaves,
                           steps: list[Draft]) -> list[Leaves]:
        """Give results the memory of the arrays that branches hand through or update. The operands: a copy stands for a
        donated parameter, which is the caller's array all the same."""
        for result, slot, leaf in branch_operands(conditional, operands.__getitem__, self.origins):
            value = operands[slot][leaf]
            if not self._fixed(value):
                self.assignment.join(value, results[result])
                continue
            self.copy(results[result], value, steps)
            operands = [[results[result] if v is value else v for v in given] for given in operands]
        return operands

    def _is_born_after(self, value: Value, time: int) -> bool:
        return self.assignment.root(value).first > time

    def collective(self, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
        """Steps that start a collective and wait for it."""
        made = self.fresh(instruction)
        given = [v for o in operands for v in o]
        for value in given:
            self.assignment.use(value, self.time)
        for value in made:
            self.assignment.define(value, self.time)
        replicas, partitions = device_counts(self.module)
        if instruction.opcode in OWN_NUMBERS:
            divisor, modulus = (partitions, replicas) if instruction.opcode == "replica-id" else (1, partitions)
            steps.append(Draft(lambda ref: DeviceNumber(ref(made[0]), divisor, modulus, instruction)))
            return made
        if self.machine.kind == "gpu":                      # kernels run beside it, in memory of their own
            self.in_flight.update(dict.fromkeys(made, list(given)))
        taken = {"send": [], "recv": made[:-1]}.get(instruction.opcode, made)
        for exchange in exchanges_of(instruction, replicas, partitions, self.machine.kind == "cpu"):
            number = self.collective_numbers.setdefault(collective_key(instruction, exchange),
                                                        len(self.collective_numbers))
            combines: list[int | None] = [self.kernels.number(kernel) for kernel in exchange.kernels] \
                or [None] * len(exchange.blocks)
            blocks = tuple(b._replace(combine=c) for b, c in zip(exchange.blocks, combines))
            for is_done in (False, True):
                steps.append(Draft(partial(_collective_step, instruction, exchange, blocks, number, is_done, given,
                                           taken)))
        if instruction.opcode not in ("send", "recv"):
            return made
        *data, context = leaves(instruction.shape)
        for result, value in zip(made[:len(data)], given):       # of a send
            self.copy(result, value, steps)
        return [*made[:-1], self.constant(np.zeros((), numpy_dtype(context.element_type)), context)]

    def land(self, values: Leaves) -> None:
        """Collectives whose results are among the values end here: their operands may be overwritten from now on."""
        for value in values:
            operands = self.in_flight.pop(value, [])
            for operand in operands:
                self.assignment.use(operand, self.time)
            operands.clear()                                # the first of several results has ended them all

    def host_call(self, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
        """A call of a Python function: the user's, or one of hloc/ops/ (custom_calls.py, host.py)."""
        results = self.fresh(instruction)
        for value in [v for o in operands for v in o]:
            self.assignment.use(value, self.time)
        for value in results:
            self.assignment.define(value, self.time)
        shapes = [s for o in instruction.operands for s in leaves(o.shape)]
        arguments = list(zip([v for o in operands for v in o], shapes))
        outcomes = list(zip(results, leaves(instruction.shape)))
        target = _host_name(instruction)

        def step(ref: Callable[[Value], Ref], room: Value | None) -> HostCall:
            return HostCall(target, tuple((ref(v), s) for v, s in arguments), tuple((ref(v), s) for v, s in outcomes),
                            instruction, ref(room) if room else None)
        unplaced = step(lambda v: Ref("arena", 0, 0, v.size), None)
        room = self.room([unplaced], instruction)
        steps.append(Draft(lambda ref: step(ref, room)))
        return results


def _transfer_step(instruction: Instruction, blocks: tuple[Block, ...], number: int, is_done: bool, source: Value,
                   made: Value, ref: Callable[[Value], Ref]) -> Collective:
    return Collective(number, TRANSFER, is_done, (ref(source),), (ref(made),), blocks, (), (), instruction)


def _collective_step(instruction: Instruction, exchange: Exchange, blocks: tuple[Block, ...], number: int,
                     is_done: bool, given: Leaves, made: Leaves, ref: Callable[[Value], Ref]) -> Collective:
    arguments, results = [ref(v) for v in given], [ref(v) for v in made]
    if exchange.pieces is not None:
        sources, targets = arguments, results
        arguments = [sources[n].part(start, size) for n, start, size in exchange.pieces]
        results = [targets[n].part(start, size) for n, start, size in exchange.pieces]
    return Collective(number, instruction.opcode, is_done, tuple(arguments), tuple(results), blocks, exchange.groups,
                      exchange.pairs, instruction)


def _host_name(instruction: Instruction) -> str:
    return target_of(instruction) if instruction.opcode == "custom-call" else transfer_name(instruction)


def _branches(instruction: Instruction) -> tuple[Computation, ...]:
    named = instruction.get("branch_computations")
    return named or (instruction.get("true_computation"), instruction.get("false_computation"))


def _leaf_count(shape: Shape) -> int:
    return sum(1 for _ in leaves(shape))


def _literal_leaves(instruction: Instruction) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    stack = [instruction.literal]
    while stack:
        top = stack.pop()
        if top is None:
            raise elided_constant(instruction.span)
        if isinstance(top, tuple):
            stack.extend(reversed(top))
        else:
            found.append(top)
    return found


def _finish(drafts: list[Draft], ref: Callable[[Value], Ref]) -> tuple[Step, ...]:
    steps = (draft.make(ref) for draft in drafts)
    return tuple(s for s in steps if not (isinstance(s, Copy) and s.destination == s.source))


def plan_module(module: Module, machine: Machine, workspace: Workspace | None = None,
                bound: frozenset[int] = frozenset()) -> Program:
    """Plan a whole module. workspace: what the target's library kernels take, else they bring memory of their own;
    bound: numbers of parameters whose arrays are the same in all runs (bound.py). Raises UnsupportedError, located, for
    what no kernel can do."""
    return planned(Planner(module, machine, workspace=workspace, bound=bound))


def planned(planner: Planner) -> Program:
    """The program of a new planner, which afterwards knows the purpose of each piece of memory."""
    module, assignment = planner.module, planner.assignment
    parameters = tuple(PlanValue(*p) for p in entry_parameters(module))
    inputs = [assignment.new(v.shape.num_bytes, Home("parameter", i), v.shape.on_host)
              for i, v in enumerate(parameters)]
    arguments, start = [], 0
    for parameter in module.entry.parameters:
        count = _leaf_count(parameter.shape)
        arguments.append(inputs[start:start + count])
        start += count
    drafts, root = planner.computation(module.entry, arguments)
    planner.time += 1
    results = tuple(PlanValue(*r) for r in entry_results(module))
    drafts += _results(planner, root, results)
    for result, operand, time in planner.sharing:
        assignment.share_if_dead(result, operand, time)
    apart = planner.machine.kind == "gpu"
    assignment.place(apart)
    kernels = tuple(planner.kernels.kernels)
    steps = with_late_ends(_finish(drafts, assignment.ref), kernels) if planner.collective_numbers else _finish(
        drafts, assignment.ref)
    return Program(module.name, kernels, steps, parameters, results,
                   tuple(planner.constants), assignment.arena_size,
                   kept=planner.workspace.kept(kernels, planner.machine) if planner.workspace else 0,
                   gaps=assignment.gaps, setup=_finish(planner.once.setup, assignment.ref),
                   held=tuple(planner.once.held), devices=prod(device_counts(module)),
                   host_arena_size=assignment.host_arena_size, host_apart=apart)


def _results(planner: Planner, root: Leaves, results: tuple[PlanValue, ...]) -> list[Draft]:
    """Give each result leaf its own memory: the value is computed there, or copied at the end."""
    steps: list[Draft] = []
    for index, value in enumerate(root):
        home = planner.assignment.new(value.size, Home("result", index), results[index].shape.on_host)
        if planner.assignment.can_join(home, value) and not planner._fixed(value):
            planner.assignment.join(home, value)
            planner.assignment.use(value, planner.time)
        else:
            planner.copy(home, value, steps)
    return steps
