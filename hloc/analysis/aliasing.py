"""Which results share one array in memory, within one computation.

In: a computation, and which carried leaves of its loops never change. Out: for every instruction its leaves (the
arrays of its flattened shape) as Values. Ops that only pass arrays on (tuple, get-tuple-element, bitcast, reshape,
opt-barrier, loop-invariant leaves of while) have the Values of their operands; all others have new ones.

    t = (f32[4], s32[]) tuple(a, n)        values[t] == values[a] + values[n]
    w = (f32[4], s32[]) while(t), ...      values[w][0] is values[a][0] if the body returns that leaf unchanged
    d = f32[4] dynamic-update-slice(a, ..) a new Value; in_place(d) says that it uses the memory of values[a][0]
    c = f32[4] conditional(p, a, a), ...   the same if a branch returns a, or updates it in place
    s = (f32[4], f32[8]) all-gather-start(a)       values[s][0] is values[a][0]; the done has values[s][1]
"""
from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import accumulate

from hloc.analysis.asynchronous import base_of, is_done, is_start
from hloc.analysis.control_flow import branches, executed_computations
from hloc.analysis.fusible import in_place_operands
from hloc.ir import Computation, Instruction, Module, Shape, leaves
from hloc.ops.collectives import EXCHANGES

FORWARDING = frozenset(["tuple", "get-tuple-element", "bitcast", "reshape", "opt-barrier", "domain", "add-dependency"])

Invariants = Mapping[Computation, frozenset[int]]
Origins = Mapping[Computation, tuple["int | None", ...]]


class Value:
    """One array: leaf `leaf` of the result of `instruction`. Compared by identity."""

    __slots__ = ("instruction", "leaf", "size")

    def __init__(self, instruction: Instruction, leaf: int, size: int):
        self.instruction = instruction
        self.leaf = leaf
        self.size = size

    def __repr__(self) -> str:
        return f"<value {self.instruction.name}[{self.leaf}]: {self.size} bytes>"


Values = dict[Instruction, tuple[Value, ...]]


def leaf_count(shape: Shape) -> int:
    return sum(1 for _ in leaves(shape))


def leaf_values(computation: Computation, invariants: Invariants) -> Values:
    """The leaves of every instruction. `invariants`: for each while body, the leaves that it returns unchanged."""
    table: Values = {}
    starts: dict[Instruction, list[int]] = {}           # of the elements of tuples
    for instruction in computation.instructions:
        table[instruction] = _values_of(instruction, table, starts, invariants)
    return table


def _values_of(instruction: Instruction, table: Values, starts: dict[Instruction, list[int]],
               invariants: Invariants) -> tuple[Value, ...]:
    opcode = instruction.opcode
    if opcode == "tuple":
        return tuple(v for o in instruction.operands for v in table[o])
    if opcode == "get-tuple-element":
        operand, index = instruction.operands[0], instruction.get("index")
        if operand not in starts:
            starts[operand] = [0, *accumulate(leaf_count(s) for s in operand.shape.tuple_shapes)]
        return table[operand][starts[operand][index]:starts[operand][index + 1]]
    if opcode in FORWARDING:
        return table[instruction.operands[0]]
    if base_of(instruction) in EXCHANGES and not base_of(instruction) == opcode:
        return _values_of_pair(instruction, table)
    made = [Value(instruction, n, shape.num_bytes) for n, shape in enumerate(leaves(instruction.shape))]
    if opcode == "while":
        carried = table[instruction.operands[0]]
        for leaf in invariants.get(instruction.get("body"), ()):
            made[leaf] = carried[leaf]
    return tuple(made)


def _values_of_pair(instruction: Instruction, table: Values) -> tuple[Value, ...]:
    """Of the start of a collective: the operands, where its shape names them, and new results; of its done the
    results."""
    if not is_start(instruction):
        values, shape = table[instruction.operands[0]], instruction.operands[0].shape
        if not is_done(instruction) or len(values) == leaf_count(instruction.shape):
            return values
        first = leaf_count(shape.tuple_shapes[0])
        return values[first:first + leaf_count(instruction.shape)]
    taken = tuple(v for o in instruction.operands for v in table[o])
    if leaf_count(instruction.shape) == len(taken):                       # all-reduce-start: results alone
        taken = ()
    made = [Value(instruction, n, shape.num_bytes) for n, shape in enumerate(leaves(instruction.shape))]
    return (*taken, *made[len(taken):])


def element_leaves(element: Instruction) -> tuple[int, int]:
    """First leaf and number of leaves of a get-tuple-element in its operand."""
    parts = element.operands[0].shape.tuple_shapes
    index = element.get("index")
    return sum(leaf_count(s) for s in parts[:index]), leaf_count(parts[index])


def invariant_leaves(body: Computation, values: Values) -> frozenset[int]:
    """The leaves that a while body returns unchanged."""
    parameter = body.parameters[0]
    pairs = zip(values[parameter], values[body.root])
    return frozenset(n for n, (before, after) in enumerate(pairs) if before is after)


def module_invariants(module: Module) -> dict[Computation, frozenset[int]]:
    """invariant_leaves of every while body of the module."""
    found: dict[Computation, frozenset[int]] = {}
    bodies = {i.get("body") for c in executed_computations(module) for i in c.instructions if i.opcode == "while"}
    for computation in executed_computations(module):
        if computation in bodies:
            found[computation] = invariant_leaves(computation, leaf_values(computation, found))
    return found


def in_place(instruction: Instruction, values: Values, invariants: Invariants,
             origins: Origins) -> list[tuple[int, int, int]]:
    """(result leaf, operand, operand leaf) triples whose memory must be the same.

    They are: the changing carried leaves of a while; operand 0 of updates, and of fusions rooted in an update; arrays
    that a branch of a conditional returns or updates.
    """
    if instruction.opcode == "while":
        kept = invariants.get(instruction.get("body"), ())
        return [(n, 0, n) for n in range(len(values[instruction])) if n not in kept]
    if instruction.opcode == "conditional":
        return branch_operands(instruction, lambda slot: values[instruction.operands[slot]], origins)
    return [(leaf, slot, 0) for leaf, slot in in_place_operands(instruction)]


# -- branches of conditionals ------------------------------------------------------------------------------------------

def branch_operands(conditional: Instruction, leaves_of: Callable[[int], Sequence[Hashable]],
                    origins: Origins) -> list[tuple[int, int, int]]:
    """(result leaf, operand, operand leaf): the array that branches return or update for that result, each
    array once. If branches differ, that of most of them, then that of the same number, as loops carry them.
    leaves_of: the arrays of an operand."""
    known = [origins.get(branch, ()) for branch in branches(conditional)]
    found: list[tuple[int, int, int]] = []
    taken: set[Hashable] = set()
    for result in range(max(map(len, known), default=0)):
        named: dict[Hashable, list[tuple[int, int]]] = {}
        for slot, of in enumerate(known, start=1):
            leaf = of[result] if of else None
            if leaf is not None:
                named.setdefault(leaves_of(slot)[leaf], []).append((slot, leaf))
        free = [value for value in named if value not in taken]
        if free:
            best = max(free, key=lambda v: (len(named[v]), any(leaf == result for _, leaf in named[v])))
            taken.add(best)
            found.append((result, *named[best][0]))
    return found


def branch_origins(module: Module, invariants: Invariants) -> dict[Computation, tuple[int | None, ...]]:
    """For every branch of a conditional: of each result leaf the parameter leaf in whose memory it is, returned or
    updated in place; None if it has its own array."""
    found: dict[Computation, tuple[int | None, ...]] = {}
    executed = executed_computations(module)
    wanted = {b for c in executed for i in c.instructions if i.opcode == "conditional" for b in branches(i)}
    for computation in executed:
        if computation in wanted:
            found[computation] = result_origins(computation, leaf_values(computation, invariants), invariants, found)
    return found


def result_origins(branch: Computation, values: Values, invariants: Invariants,
                   origins: Origins) -> tuple[int | None, ...]:
    memory: dict[Value, Value] = {}
    for instruction in branch.instructions:
        for result, slot, leaf in in_place(instruction, values, invariants, origins):
            value = values[instruction.operands[slot]][leaf]
            memory[values[instruction][result]] = memory.get(value, value)
    owners = [memory.get(v, v) for v in values[branch.root]]
    return tuple(owner.leaf if owner.instruction.opcode == "parameter" else None for owner in owners)
