"""Steps of instructions that run as a whole: launches of kernels, calls of the host, collectives, transfers.

In: the state of a plan (plan_state.py), an instruction, the leaves of its operands. Out: the leaves of its results; its
steps are added to a list.
"""
from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from hloc.devices import device_counts
from hloc.ir import Instruction, leaves, numpy_dtype
from hloc.kernels.buffer_assignment import Value
from hloc.kernels.collectives import Exchange, collective_key, exchanges_of
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import TRANSFER, Block, Collective, DeviceNumber, HostCall, Launch, Ref
from hloc.kernels.plan_state import Draft, Leaves, Place, PlanState
from hloc.ops.checks import target_of
from hloc.ops.collectives import OWN_NUMBERS
from hloc.ops.host import transfer_name


def launch(state: PlanState, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
    """The kernels of an instruction; in-place results share their operand's memory."""
    lowered = state.kernels.of(instruction)
    results = state.fresh(instruction)
    if state.depth == 1 and state.is_setup([v for o in operands for v in o]):
        results, steps = [state.hold(value.size) for value in results], state.setup
    for result, operand in lowered.in_place:
        source = operands[operand][0]
        if state.assignment.can_join(results[result], source) and not state.is_fixed(source):
            state.assignment.join(source, results[result])
        else:
            state.copy(results[result], source, steps)
    scratch = [state.made_by(instruction, size) for size in lowered.scratch]
    made = {"result": results, "scratch": scratch}
    state.access([v for o in operands for v in o], results + scratch)
    calls = []
    for call in lowered.calls:
        values = [(operands[a.index][0] if a.kind == "operand" else made[a.kind][a.index], a.part)
                  for a in call.arguments]
        calls.append((*_with_packed(state, instruction, call.kernel, values), values))
    room = state.room([kernel for kernel, _, _ in calls if isinstance(kernel, Tile)], instruction)
    for kernel, packed, values in calls:
        own = room if isinstance(kernel, Tile) else None
        steps.append(_draft_launch(state.kernels.number(kernel), values, instruction, own, packed))
    state.sharing += [(results[result], operands[operand][0], state.time) for result, operand in lowered.can_share]
    return results


def _draft_launch(kernel: int, values: list[Place], instruction: Instruction,
                  room: Value | None, packed: Value | None) -> Draft:
    def launch(ref: Callable[[Value], Ref]) -> Launch:
        places = tuple(ref(v) if part is None else ref(v).part(*part) for v, part in values)
        return Launch(kernel, places, instruction, ref(room) if room else None, ref(packed) if packed else None)
    return launch


def _with_packed(state: PlanState, instruction: Instruction, kernel: Kernel | Tile,
                 values: list[Place]) -> tuple[Kernel | Tile, Value | None]:
    """The kernel that reads an operand packed, and where setup packs it; as it was, and None, where no operand is the
    same in all runs."""
    packing = state.workspace.packing(kernel, state.machine) if state.bound and isinstance(kernel, Tile) else None
    if packing is None or not state.is_held(values[packing.operand][0]):
        return kernel, None
    value, part = values[packing.operand]
    key = state.assignment.root(value), part, packing.packs.structure()
    if key not in state.packed:
        state.packed[key] = state.hold(packing.bytes)
        room = state.room([packing.packs], instruction)
        state.setup.append(_draft_launch(state.kernels.number(packing.packs), [(value, part)], instruction, room,
                                         state.packed[key]))
    return packing.reads, state.packed[key]


def transfer(state: PlanState, instruction: Instruction, source: Value, steps: list[Draft]) -> Leaves:
    """A copy between the memories of device and host; on a GPU kernels run beside it."""
    made = state.made_by(instruction, source.size, instruction.shape.on_host)
    state.land([source])
    if state.machine.kind == "cpu":
        state.copy(made, source, steps)
        return [made]
    state.access([source], [made])
    exchange = Exchange((), (), (Block("u8", 1, source.size, source.size),))
    steps += _exchanged(state, (TRANSFER, made), TRANSFER, instruction, exchange, [source], [made])
    return [made]


def collective(state: PlanState, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
    """Steps that start a collective and wait for it."""
    made = state.fresh(instruction)
    given = [v for o in operands for v in o]
    state.access(given, made)
    replicas, partitions = device_counts(state.module)
    if instruction.opcode in OWN_NUMBERS:
        divisor, modulus = (partitions, replicas) if instruction.opcode == "replica-id" else (1, partitions)
        steps.append(lambda ref: DeviceNumber(ref(made[0]), divisor, modulus, instruction))
        return made
    if state.machine.kind == "gpu":                      # kernels run beside it, in memory of their own
        state.in_flight.update(dict.fromkeys(made, list(given)))
    taken = {"send": [], "recv": made[:-1]}.get(instruction.opcode, made)
    for exchange in exchanges_of(instruction, replicas, partitions, state.machine.kind == "cpu"):
        steps += _exchanged(state, collective_key(instruction, exchange), instruction.opcode, instruction, exchange,
                            given, taken)
    if instruction.opcode not in ("send", "recv"):
        return made
    *data, context = leaves(instruction.shape)
    for result, value in zip(made[:len(data)], given):       # of a send
        state.copy(result, value, steps)
    return [*made[:-1], state.constant(np.zeros((), numpy_dtype(context.element_type)), context)]


def host_call(state: PlanState, instruction: Instruction, operands: list[Leaves], steps: list[Draft]) -> Leaves:
    """A call of a Python function: the user's, or one of hloc/ops/ (custom_calls.py, host.py)."""
    results = state.fresh(instruction)
    given = [v for o in operands for v in o]
    state.access(given, results)
    arguments = list(zip(given, [s for o in instruction.operands for s in leaves(o.shape)]))
    outcomes = list(zip(results, leaves(instruction.shape)))
    target = target_of(instruction) if instruction.opcode == "custom-call" else transfer_name(instruction)

    def step(ref: Callable[[Value], Ref], room: Value | None) -> HostCall:
        return HostCall(target, tuple((ref(v), s) for v, s in arguments), tuple((ref(v), s) for v, s in outcomes),
                        instruction, ref(room) if room else None)
    unplaced = step(lambda v: Ref("arena", 0, 0, v.size), None)
    room = state.room([unplaced], instruction)
    steps.append(lambda ref: step(ref, room))
    return results


def _exchanged(state: PlanState, key: tuple, kind: str, instruction: Instruction, exchange: Exchange, given: Leaves,
               made: Leaves) -> list[Draft]:
    """The start and the end of an exchange of these arrays."""
    number = state.collective_numbers.setdefault(key, len(state.collective_numbers))
    combines: list[int | None] = [state.kernels.number(kernel) for kernel in exchange.kernels] \
        or [None] * len(exchange.blocks)
    blocks = tuple(b._replace(combine=c) for b, c in zip(exchange.blocks, combines))

    def step(is_done: bool, ref: Callable[[Value], Ref]) -> Collective:
        arguments, results = ([ref(v) for v in values] for values in (given, made))
        if exchange.pieces is not None:
            arguments, results = ([refs[n].part(start, size) for n, start, size in exchange.pieces]
                                  for refs in (arguments, results))
        return Collective(number, kind, is_done, tuple(arguments), tuple(results), blocks, exchange.groups,
                          exchange.pairs, instruction)
    return [partial(step, False), partial(step, True)]
