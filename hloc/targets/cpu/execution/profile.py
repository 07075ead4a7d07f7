"""The times of a program's steps: the reader of runtime/profile.h.

In: the shared object of a timed build and its steps by number. Out: one StepTime per step.

    times = step_times(library, steps, program)
"""
from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Sequence

from hloc.analysis.cost import flops
from hloc.kernels.plan import Collective, Copy, DeviceNumber, HostCall, Program, Step
from hloc.run_trace import StepTime


def step_times(library: ctypes.CDLL, steps: Sequence[Step], program: Program) -> tuple[StepTime, ...]:
    """The times of the steps since the last call."""
    counts = ctypes.c_int64 * max(1, len(steps))
    nanoseconds, runs = counts(), counts()
    library.hloc_step_times(nanoseconds, runs)
    kernels = Counter(step.instruction for step in steps)
    return tuple(StepTime(*_what(step, program, kernels[step.instruction] == 1), runs[i], nanoseconds[i] * 1e-9)
                 for i, step in enumerate(steps))


def _what(step: Step, program: Program, alone: bool) -> tuple:
    """Kernel, instruction, bytes and flops of one run of a step; alone: it is all that its instruction needs."""
    if isinstance(step, Copy):
        return "copy", step.instruction, 2 * step.source.size, 0
    if isinstance(step, HostCall):
        return step.target, step.instruction, sum(s.num_bytes for _, s in step.arguments + step.results), 0
    if isinstance(step, Collective):
        size = sum(ref.size for ref in step.arguments + step.results) if step.is_done else 0
        return f"{step.kind} {'done' if step.is_done else 'start'}", step.instruction, size, 0
    if isinstance(step, DeviceNumber):
        return "device number", step.instruction, step.result.size, 0
    kernel = program.kernels[step.kernel]
    work = max(kernel.cost.flops, flops(step.instruction)) if alone else kernel.cost.flops
    return kernel.name, step.instruction, kernel.cost.bytes, work
