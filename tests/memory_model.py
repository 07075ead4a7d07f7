"""Runs a scheduled module's memory without its arithmetic: does any op read an array that was overwritten?

In: a module after copy_insertion. Every array gets a piece of memory as the planner would share it (in-place ops, the
carried leaves of a while, and what branches hand through or update share one), every write stamps it, every read must
find the stamp it expects. Loop bodies run twice. Out: nothing, or AssertionError naming the reader.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.analysis.aliasing import (
    FORWARDING,
    Invariants,
    Origins,
    branch_operands,
    branch_origins,
    element_leaves,
    in_place,
    leaf_values,
    module_invariants,
)
from hloc.analysis.control_flow import branches
from hloc.analysis.fusible import in_place_operands
from hloc.analysis.reads import reads_own_position
from hloc.ir import Computation, Instruction, Module, leaves
from hloc.passes.copy_insertion import donations


class Memory:
    """One piece of memory; `stamp` changes with every write. `fixed`: must not be written at all."""

    def __init__(self, fixed: bool = False):
        self.fixed = fixed
        self.stamp: object = object()

    def write(self, by: Instruction) -> Seen:
        assert not self.fixed, f"{by.name} overwrites a parameter or constant"
        self.stamp = object()
        return Seen(self, self.stamp)


class Seen:
    """An array as a reader expects it: the memory and the stamp it had when it was written."""

    def __init__(self, memory: Memory, stamp: object):
        self.memory = memory
        self.stamp = stamp

    def read(self, by: Instruction) -> None:
        assert self.memory.stamp is self.stamp, f"{by.name} reads an array that was overwritten"


class Callees(NamedTuple):
    """What loop bodies and branches do with their parameters."""

    invariants: Invariants
    origins: Origins


def check_memory(module: Module) -> None:
    """Run the entry. Parameters that input_output_alias donates may be overwritten, and returned."""
    donated = donations(module)
    invariants = module_invariants(module)
    callees = Callees(invariants, branch_origins(module, invariants))
    arguments = []
    for parameter in module.entry.parameters:
        pieces = [Memory(fixed=parameter.parameter_number not in donated) for _ in leaves(parameter.shape)]
        arguments.append([Seen(m, m.stamp) for m in pieces])
    results = run(module.entry, arguments, callees)
    found = [r.memory for r in results]
    assert len(set(found)) == len(found), "two results in one piece of memory"
    assert not any(m.fixed for m in found), "a result is a parameter or a constant"


def run(computation: Computation, arguments: list, callees: Callees) -> list[Seen]:
    table: dict[Instruction, list[Seen]] = {}
    for instruction in computation.instructions:
        operands = [table[o] for o in instruction.operands]
        table[instruction] = step(instruction, operands, arguments, callees)
    for seen in table[computation.root]:
        seen.read(computation.root)
    return table[computation.root]


def step(instruction: Instruction, operands: list, arguments: list, callees: Callees) -> list[Seen]:
    opcode = instruction.opcode
    if opcode == "parameter":
        return arguments[instruction.parameter_number]
    if opcode == "tuple":
        return [s for o in operands for s in o]
    if opcode == "get-tuple-element":
        first, count = element_leaves(instruction)
        return operands[0][first:first + count]
    if opcode in FORWARDING:
        return operands[0]
    for seen in (s for o in operands for s in o):
        seen.read(instruction)
    if opcode == "constant":
        pieces = [Memory(fixed=True) for _ in leaves(instruction.shape)]
        return [Seen(m, m.stamp) for m in pieces]
    if opcode == "while":
        return run_while(instruction, operands[0], callees)
    if opcode == "conditional":
        return run_branches(instruction, operands, callees)
    if opcode == "call":
        return run_call(instruction, operands, callees)
    shared = {leaf: operands[slot][0].memory for leaf, slot in in_place_operands(instruction)}
    count = len(list(leaves(instruction.shape)))
    assert len(set(map(id, shared.values()))) == len(shared), f"{instruction.name} overwrites one array twice"
    for slot, operand in enumerate(operands):
        for seen in operand:
            if seen.memory in shared.values() and slot not in [s for _, s in in_place_operands(instruction)]:
                raise AssertionError(f"{instruction.name} overwrites an array that it reads elsewhere")
    return [shared.get(leaf, Memory()).write(instruction) for leaf in range(count)]


def run_while(instruction: Instruction, carried: list[Seen], callees: Callees) -> list[Seen]:
    """Twice around, with each changing leaf's new value put into the memory of the old one."""
    body = instruction.get("body")
    kept = callees.invariants[body]
    changing = [s.memory for n, s in enumerate(carried) if n not in kept]
    others = [s.memory for n, s in enumerate(carried) if n in kept]
    assert not any(m.fixed for m in changing), f"{instruction.name} overwrites a parameter or constant"
    assert len(set(changing)) == len(changing), f"{instruction.name} carries one array twice"
    assert not set(changing) & set(others), f"{instruction.name} changes an array that it also keeps"
    for _ in range(2):
        run(instruction.get("condition"), [carried], callees)
        homes = {n: s.memory for n, s in enumerate(carried) if n not in kept}
        results = run_at_home(body, carried, homes, callees)
        assert all(results[n].memory is carried[n].memory for n in kept)
        carried = results
    return carried


def run_at_home(computation: Computation, given: list[Seen], homes: dict[int, Memory],
                callees: Callees) -> list[Seen]:
    """A loop's body or a branch. homes: result leaf -> the memory where it must end; a value that does is written there
    as it is made."""
    values = leaf_values(computation, callees.invariants)
    home = {}
    for leaf, memory in homes.items():
        value = values[computation.root][leaf]
        assert value not in home, f"result {leaf} of {computation.name} is another leaf's array"
        home[value] = memory
    origin = trace_in_place(computation, values, callees, home)
    table: dict[Instruction, list[Seen]] = {}
    for instruction in computation.instructions:
        operands = [table[o] for o in instruction.operands]
        if instruction.opcode == "conditional":
            wanted = {n: origin[v] for n, v in enumerate(values[instruction]) if v in origin}
            made = run_branches(instruction, operands, callees, wanted)
        else:
            made = step(instruction, operands, [given], callees)
        if instruction.opcode not in FORWARDING and instruction.opcode != "parameter":
            made = [place(instruction, seen, origin.get(value), operands) if value.instruction is instruction else seen
                    for value, seen in zip(values[instruction], made)]
        table[instruction] = made
    for leaf, seen in enumerate(table[computation.root]):
        seen.read(computation.root)
        assert seen.memory is homes.get(leaf, seen.memory), f"result {leaf} of {computation.name} is not in its memory"
    return table[computation.root]


def trace_in_place(computation: Computation, values, callees: Callees, home: dict) -> dict:
    """The memory for every value that ends in a leaf through a chain of in-place ops."""
    origin = dict(home)
    for instruction in reversed(computation.instructions):
        for leaf, slot, inner_leaf in in_place(instruction, values, *callees):
            if values[instruction][leaf] in origin:
                origin[values[instruction.operands[slot]][inner_leaf]] = origin[values[instruction][leaf]]
    return origin


def place(instruction: Instruction, seen: Seen, memory: Memory | None, operands: list) -> Seen:
    """Move a fresh array to the memory of its leaf, which nobody may read any more."""
    if memory is None or seen.memory is memory:
        return seen
    for slot, operand in enumerate(operands):
        if any(s.memory is memory for s in operand):
            assert reads_own_position(instruction, slot), f"{instruction.name} overwrites what it is still reading"
    return memory.write(instruction)


def run_branches(instruction: Instruction, operands: list, callees: Callees,
                 wanted: dict[int, Memory] | None = None) -> list[Seen]:
    """Each branch on memory of its own; what it overwrites is overwritten. wanted: result leaf -> where it must end,
    which branches write themselves, while they read what they are given there."""
    for seen in (s for o in operands for s in o):
        seen.read(instruction)
    found = [[s.memory for s in o] for o in operands]
    pairs = branch_operands(instruction, found.__getitem__, callees.origins)
    shared = {result: found[slot][leaf] for result, slot, leaf in pairs}
    given_at_all = {m for o in found[1:] for m in o}
    shared = {n: m for n, m in (wanted or {}).items() if m in given_at_all} | shared
    assert len(set(shared.values())) == len(shared), f"{instruction.name} puts two results into one array"
    written = set(shared.values())
    for given, callee in zip(found[1:], branches(instruction)):
        standing = {m: Memory(fixed=m.fixed) for m in (*given, *shared.values())}
        before = {m: stand.stamp for m, stand in standing.items()}
        homes = {result: standing[m] for result, m in shared.items()}
        results = [r.memory for r in run_at_home(callee, [Seen(standing[m], before[m]) for m in given], homes, callees)]
        own = [m for n, m in enumerate(results) if n not in homes]
        assert not any(m in standing.values() or m.fixed for m in own), f"{callee.name} returns what it is given"
        assert len(set(results)) == len(results), f"{callee.name} returns two results in one piece of memory"
        changed = {m for m, stand in standing.items() if stand.stamp is not before[m]}
        assert all(given.count(m) < 2 for m in changed), f"{callee.name} overwrites an array that it is given twice"
        written |= changed
    for memory in written - set(shared.values()):
        memory.write(instruction)
    return [shared.get(n, Memory()).write(instruction) for n, _ in enumerate(leaves(instruction.shape))]


def run_call(instruction: Instruction, operands: list, callees: Callees) -> list[Seen]:
    callee = instruction.get("to_apply")
    frozen = [[Seen(m, m.stamp) for m in (Memory(fixed=True) for _ in o)] for o in operands]
    for result in run(callee, frozen, callees):
        assert not result.memory.fixed, f"{callee.name} returns its parameter or a constant"
    return [Memory().write(instruction) for _ in leaves(instruction.shape)]
