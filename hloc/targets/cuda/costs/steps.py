"""The steps of a GPU program as a profile lists them: operations, bytes and predicted time of each.

In: a program and its CUDA sources. Out: the steps that are timed, in the order of the plan, and a StepTime for each.
Measured times are filled in later by hloc/targets/cuda/execution/step_clock.py.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Union

from hloc.kernels.plan import Branch, Collective, Copy, DeviceNumber, HostCall, Launch, Program, Step, WhileLoop
from hloc.machine import Machine
from hloc.run_trace import StepTime
from hloc.targets.cuda.costs.model import estimate
from hloc.targets.cuda.costs.program import unread_share, works_of_kernel
from hloc.targets.cuda.costs.work import Work
from hloc.targets.cuda.gpus import device_named
from hloc.targets.cuda.sources import CudaSources

Timed = Union[Launch, Copy, HostCall, Collective, DeviceNumber]


def timed_steps(planned: Program, sources: CudaSources, gpu: Machine) -> tuple[Sequence[Step], list[StepTime]]:
    """planned: the program before its kernels were split into launches; `sources` has the launches."""
    known = device_named(gpu.name, gpu.arch)                # the cost model knows GPUs by their names in gpus.json

    @cache
    def works(number: int) -> list[Work]:
        return works_of_kernel(planned.kernels[number], gpu, sources.variants[number])

    def row(step: Timed) -> StepTime:
        instruction = step.instruction
        assert instruction is not None                      # of a plan that was not saved
        if isinstance(step, Copy):
            return StepTime("copy", instruction, 2 * step.source.size, 0, 0, 0.0)
        if isinstance(step, HostCall):
            moved = sum(shape.num_bytes for _, shape in step.arguments + step.results)
            return StepTime(step.target, instruction, moved, 0, 0, 0.0)
        if isinstance(step, Collective):
            size = 0 if step.is_done else sum(ref.size for ref in step.arguments + step.results)
            return StepTime(f"{step.kind} {'done' if step.is_done else 'start'}", instruction, size, 0, 0, 0.0)
        if isinstance(step, DeviceNumber):
            return StepTime("device number", instruction, step.result.size, 0, 0, 0.0)
        number, part = sources.origins[step.kernel]
        kernel, name = planned.kernels[number], sources.geometry[step.kernel].function
        if known is None:
            return StepTime(name, instruction, kernel.cost.bytes, kernel.cost.flops, 0, 0.0)
        us = [estimate(work, known, unread=unread_share(planned, step, known)).us for work in works(number)]
        if part == us.index(max(us)):                       # the kernel's main launch
            return StepTime(name, instruction, kernel.cost.bytes, kernel.cost.flops, 0, 0.0, us[part] * 1e-6)
        return StepTime(name, instruction, int(works(number)[part].memory), 0, 0, 0.0, us[part] * 1e-6)
    steps = list(_in_order(sources.program.steps))
    return steps, [row(step) for step in steps]


def _in_order(steps: Iterable[Step]) -> Iterator[Timed]:
    """The steps that are timed, with loops and branches flattened. The recursion is as deep as the loops of the HLO,
    which the planner has also recursed into."""
    for step in steps:
        if isinstance(step, WhileLoop):
            yield from _in_order((*step.condition, *step.body))
        elif isinstance(step, Branch):
            for branch in step.branches:
                yield from _in_order(branch)
        else:
            yield step
