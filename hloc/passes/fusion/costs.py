"""Whether to compute a producer in the kernels that read it, or to store it: the question of cost in fusion.

In: a producer, and the groups that read it. Out: the seconds of kernels apart and of all together (Costs), on a CPU or
a GPU, by what the Machine says: bytes through the level of memory where an array lies, operations, launches.

    exp (f32[8,64]) read by a kernel at two positions           together: twice the work; apart: 2 KiB stored and loaded
    add (of two arrays) read by two kernels                     together: four arrays loaded; apart: two, one stored ...
    sine, whose results are places of a scatter                 together: no vectors on a CPU

Work in a group is counted where its contexts say that it is done (hloc/analysis/reads.py).
"""
from __future__ import annotations

import math

from hloc.analysis.cost import (
    Costs,
    bytes_read,
    operations,
    seconds_of_launch,
    seconds_of_operations,
    seconds_of_traffic,
    seconds_one_by_one,
)
from hloc.analysis.fusible import RESHAPES, is_elemental, is_elementwise, is_splat_constant
from hloc.analysis.reads import BASE
from hloc.analysis.strides import VIEWS
from hloc.ir import Instruction
from hloc.machine import Machine
from hloc.passes.fusion.group import LOOP, REDUCTION, Group, kind_of

MOST_LOOKED_AT = 64              # instructions behind a producer

Readers = dict[Group, list[Instruction]]     # groups that read a producer, and their members that do


def of_positions(producer: Instruction, group: Group, readers: list[Instruction], contexts: tuple[int, ...],
                 machine: Machine) -> Costs:
    """Of a producer that one group computes in each context in which it reads it. What it is made of would join,
    too; what depends on it has joined, and what that repeats (Group.again) counts, so that a long chain is cut."""
    size, count = producer.shape.num_bytes, producer.shape.num_elements
    alone = is_one_by_one(group, machine)
    times = group.contexts.total(contexts) if alone else group.contexts.total(contexts) - count
    apart = seconds_of_traffic(2 * size, machine) + seconds_of_launch(size, machine)
    if times <= 0:
        return Costs(apart, 0.0)
    seconds = seconds_one_by_one if alone else seconds_of_operations
    below = max((group.again.get(r, 0.0) for r in readers), default=0.0)
    group.again[producer] = below + seconds(times * operations_once(producer), machine)
    return Costs(apart, below + seconds(times * operations_behind(producer), machine))


def is_one_by_one(group: Group, machine: Machine) -> bool:
    """Whether a CPU computes elements of the group one after the other, without vectors: a scatter of short windows."""
    if machine.kind == "gpu" or group.first.opcode != "scatter":
        return False
    updates = group.first.operands[-1].shape.dimensions
    return 4 * math.prod(updates[d] for d in group.first.get("update_window_dims", ())) < machine.vector_bytes


def operations_once(producer: Instruction) -> float:
    """For an element, with loads."""
    return operations(producer) + sum(0.5 for o in producer.operands if o.shape.num_elements > 1)


def operations_behind(producer: Instruction) -> float:
    """The operations for an element, with those of the elementwise producers that have as many."""
    total, stack, seen = 0.0, [producer], {producer}
    while stack and len(seen) <= MOST_LOOKED_AT:
        node = stack.pop()
        total += operations_once(node)
        inside = [o for o in dict.fromkeys(node.operands) if o not in seen and is_elemental(o)
                  and o.shape.num_elements == producer.shape.num_elements
                  and (is_elementwise(o) or o.opcode in RESHAPES) and not is_splat_constant(o)]
        seen.update(inside)
        stack.extend(inside)
    return total


def of_groups(producer: Instruction, around: Readers, first: Group | None, below: float, machine: Machine) -> Costs:
    """Of a producer that each of several groups would compute. first: the group that would otherwise store it as an
    additional result, if one can; below: operations for each element that what depends on it repeats. They add up
    along a chain, so that a long one is stored where that is cheapest."""
    size = producer.shape.num_bytes
    read = {g: seconds_of_inputs(producer, g, own, machine) for g, own in around.items()}
    again = sum(max(read[g], seconds_of_work(producer, g, own, below, machine)) for g, own in around.items())
    once = seconds_of_operations(producer.shape.num_elements * own_operations(producer), machine)
    stored = seconds_of_traffic(size, machine)
    if first is not None:
        return Costs(max(read[first], once) + len(around) * stored, again)
    apart = max(*read.values(), once) + (len(around) + 1) * stored
    if not any(needs_kernel(o) for o in producer.operands):          # its kernel would do nothing else
        apart += seconds_of_launch(size, machine)
    return Costs(apart, again)


def of_stored(producer: Instruction, group: Group, readers: list[Instruction], machine: Machine) -> Costs:
    """Of a producer that is in memory anyway, because others need it there."""
    return Costs(seconds_of_traffic(producer.shape.num_bytes, machine),
                 seconds_of_work(producer, group, readers, 0.0, machine)
                 + seconds_of_inputs(producer, group, readers, machine))


def seconds_of_work(producer: Instruction, group: Group, readers: list[Instruction], more: float,
                    machine: Machine) -> float:
    """Of computing a producer wherever a group reads it, with `more` operations each time."""
    times = group.contexts.total(group.asked(producer, readers))
    return seconds_of_operations(times * (own_operations(producer) + more), machine)


def own_operations(producer: Instruction) -> float:
    """For an element. A view costs its loads; others that move elements compare positions."""
    return 0.0 if producer.opcode in VIEWS else operations(producer)


def seconds_of_inputs(producer: Instruction, group: Group, readers: list[Instruction], machine: Machine) -> float:
    """Of loading what a group needs to compute a producer, without what it loads anyway."""
    own = (BASE,) if group.rows is None else (group.rows.full,)
    shared = is_elementwise(producer) and group.asked(producer, readers) == own
    return sum(seconds_of_traffic(min(bytes_read(producer, n), loaded_bytes(o)), machine)
               for n, o in enumerate(producer.operands)
               if not (shared and (is_splat_constant(o) or o in group.members or o in group.parameters)))


def loaded_bytes(operand: Instruction) -> int:
    """Bytes to load for all of an operand; broadcasts and iotas are computed."""
    source = source_of(operand)
    return 0 if source.opcode == "iota" or source.shape.num_elements == 1 else source.shape.num_bytes


def needs_kernel(operand: Instruction) -> bool:
    """Whether a kernel for the operand's reader may as well compute the operand."""
    source = source_of(operand)
    return source.opcode != "iota" and kind_of(source) in (LOOP, REDUCTION)


def source_of(operand: Instruction) -> Instruction:
    """What lies in memory of an operand that repeats or renames it."""
    while operand.opcode in ("broadcast", "reshape"):
        operand = operand.operands[0]
    return operand
