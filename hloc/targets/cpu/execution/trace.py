"""When each step of a program ran: the reading end of runtime/trace.h.

In: the shared object of a traced build, its steps and loops by number. Out: the RunTrace of all runs since it was asked
last.

    take_trace(library, steps, loops, program, live)
"""
from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from hloc.ir import Instruction
from hloc.kernels.plan import Program, Step, WhileLoop
from hloc.run_trace import CALL, CHECK, FOLDED, ITERATION, LOOP, PIECE, STEP, WAIT, RunTrace, Slice, Sum, in_order
from hloc.targets.cpu.execution.profile import step_times

KINDS = (CALL, STEP, LOOP, ITERATION, FOLDED, "sum", PIECE, WAIT)          # as in runtime/trace.h
FIELDS = 5                                                             # of an event, 8 bytes each


def take_trace(library: ctypes.CDLL, steps: Sequence[Step], loops: Sequence[WhileLoop], program: Program,
               live: Mapping[Instruction, int]) -> RunTrace:
    """The events of all threads; they are gone from the library afterwards."""
    library.hloc_take_events.restype = ctypes.c_int64
    slices: list[Slice] = []
    tracks: dict[int, str] = {}
    lost, number = 0, 0
    events, own_lost = ctypes.c_void_p(), ctypes.c_int64()
    while (count := library.hloc_take_events(number, ctypes.byref(events), ctypes.byref(own_lost))) >= 0:
        lost += own_lost.value
        if count:
            words = (ctypes.c_int64 * (FIELDS * count)).from_address(events.value)
            own = _slices(np.frombuffer(words, np.int64).reshape(count, FIELDS).tolist(), number)
            tracks[number] = "calls" if any(s.kind == CALL for s in own) else f"thread {number}"
            slices += own
        number += 1
    rows = tuple(s._replace(runs=0, seconds=0.0) for s in step_times(library, steps, program))
    return RunTrace(in_order(slices), tracks, rows, tuple(loop.instruction for loop in loops), lost, live)


def _slices(events: list[list[int]], track: int) -> list[Slice]:
    """Slices of one thread. C counts the last evaluation of a loop's condition as an iteration; here it is none."""
    found: list[Slice] = []
    last_iteration: dict[int, int] = {}
    for what, number, count, begin, end in events:
        kind = KINDS[what]
        if kind == "sum":
            found[-1] = found[-1]._replace(sums=(*found[-1].sums, Sum(number, count, end * 1e-9)))
            continue
        if kind == ITERATION:
            last_iteration[number] = len(found)
        elif kind in (LOOP, FOLDED):
            count -= 1
        if kind == LOOP and (iteration := last_iteration.get(number)) is not None and found[iteration].count == count:
            found[iteration] = found[iteration]._replace(kind=CHECK)
        found.append(Slice(kind, track, begin, end, number, count))
    return found
