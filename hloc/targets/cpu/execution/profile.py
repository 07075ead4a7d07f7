"""The times of a program's steps: the reader of runtime/profile.h.

In: the shared object of a timed build and its steps by number. Out: one StepTime per step.

    times = step_times(library, steps, program)
"""
from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence
from typing import Union

from hloc.analysis.cost import flops
from hloc.ir import Instruction
from hloc.kernels.plan import Branch, Collective, Copy, DeviceNumber, HostCall, Launch, Program, Step, WhileLoop
from hloc.run_trace import StepTime

Timed = Union[Copy, Launch, WhileLoop, HostCall, Collective, DeviceNumber]        # no driver times branches


def step_times(library: ctypes.CDLL, steps: Sequence[Step], program: Program) -> tuple[StepTime, ...]:
    """The times of the steps since the last call."""
    counts = ctypes.c_int64 * max(1, len(steps))
    nanoseconds, runs = counts(), counts()
    library.hloc_step_times(nanoseconds, runs)
    timed = [(i, step) for i, step in enumerate(steps) if not isinstance(step, Branch)]
    kernels = Counter(step.instruction for _, step in timed)
    return tuple(StepTime(*_what(step, program, kernels[step.instruction] == 1), runs[i], nanoseconds[i] * 1e-9)
                 for i, step in timed)


def _what(step: Timed, program: Program, alone: bool) -> tuple[str, Instruction, int, int]:
    """Kernel, instruction, bytes and flops of one run of a step; alone: it is all that its instruction needs."""
    instruction = step.instruction
    assert instruction is not None                          # of a plan that was not saved
    if isinstance(step, Copy):
        return "copy", instruction, 2 * step.source.size, 0
    if isinstance(step, HostCall):
        return step.target, instruction, sum(s.num_bytes for _, s in step.arguments + step.results), 0
    if isinstance(step, Collective):
        size = sum(ref.size for ref in step.arguments + step.results) if step.is_done else 0
        return f"{step.kind} {'done' if step.is_done else 'start'}", instruction, size, 0
    if isinstance(step, DeviceNumber):
        return "device number", instruction, step.result.size, 0
    assert isinstance(step, Launch)
    kernel = program.kernels[step.kernel]
    work = max(kernel.cost.flops, flops(instruction)) if alone else kernel.cost.flops
    return kernel.name, instruction, kernel.cost.bytes, work
