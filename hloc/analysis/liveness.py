"""Live ranges of the arrays of a scheduled computation, and the peak of memory.

In: a computation and its Values (hloc/analysis/aliasing.py); positions are those in `computation.instructions`. Out:
positions of definition and of the last read, and a peak in bytes.

    a = ...            Lives: a from 0 to 2
    b = negate(a)             b from 1 to 2
    ROOT c = add(a, b)        c from 2 to 3, the end: results are read last
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from hloc.analysis.aliasing import FORWARDING, Value, Values
from hloc.analysis.asynchronous import is_done, started
from hloc.ir import Computation, Instruction

ALWAYS_THERE = frozenset(["parameter", "constant"])


def reads(instruction: Instruction, values: Values) -> tuple[Value, ...]:
    """The arrays whose elements an instruction reads; none for ops that only pass arrays on. Until a -done the operands
    of its -start are read, too."""
    if instruction.opcode in FORWARDING:
        return ()
    if is_done(instruction):
        begun = started(instruction)
        return tuple(v for o in (begun, *begun.operands) for v in values[o])
    return tuple(v for o in instruction.operands for v in values[o])


def last_reads(computation: Computation, values: Values) -> dict[Value, int]:
    """The position of the last read of each value; results are read at the end, one past the last position."""
    last: dict[Value, int] = {}
    for position, instruction in enumerate(computation.instructions):
        for value in reads(instruction, values):
            last[value] = position
    for value in values[computation.root]:
        last[value] = len(computation.instructions)
    return last


def peak_bytes(order: Sequence[Instruction], root: Instruction, values: Values,
               inner: Mapping[Instruction, int] | None = None, *, is_entry: bool = False) -> int:
    """The most live bytes when `order` runs, without parameters and constants.

    `inner`: additional memory of instructions while they run (the peaks of called computations). is_entry: the results
    have their own memory and do not count.
    """
    outside = set(values[root]) if is_entry else set()
    read = [set(reads(instruction, values)) for instruction in order]
    left = Counter(value for those in read for value in those)
    left.update(set(values[root]))
    live = peak = 0
    for instruction, those in zip(order, read):
        live += made_bytes(instruction, values, outside)
        peak = max(peak, live + (inner.get(instruction, 0) if inner else 0))
        for value in those:
            left[value] -= 1
            if not left[value] and value.instruction.opcode not in ALWAYS_THERE:
                live -= value.size
        if instruction.opcode not in ALWAYS_THERE:
            live -= sum(v.size for v in values[instruction] if v.instruction is instruction and v not in left)
    return peak


def made_bytes(instruction: Instruction, values: Values, outside: Collection[Value] = ()) -> int:
    """Bytes of the arrays that an instruction allocates, without those in `outside`."""
    if instruction.opcode in ALWAYS_THERE:
        return 0
    return sum(v.size for v in values[instruction] if v.instruction is instruction and v not in outside)
