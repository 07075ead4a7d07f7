"""Predicted times of a module on GPUs, without a GPU: microseconds of each kernel, and what bounds it.

In: a parsed module and a GPU. Out: its Times. A module is optimized and planned for each GPU, because kernels are
shaped for it. docs/gpu.md says how accurate the predictions are.

    gpu_times(module, GPUS["h200"]).us
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hloc import api
from hloc.ir import Module
from hloc.ir.clone import clone_module
from hloc.kernels.plan import Program
from hloc.machine import Machine
from hloc.targets.cuda.costs.program import Estimates, Predicted, predict
from hloc.targets.cuda.costs.rounds import Round, rounds_of
from hloc.targets.cuda.execution.graphs import in_words
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.target import cuda_target

WHAT_IF = ("a100", "h100", "h200", "b200")


class Times(NamedTuple):
    """kernels: by instruction, those with the longest total time first; us: of a whole run; graphs: how it runs, in
    words; rounds: of loops whose number of rounds is not known, and of branches."""

    gpu: str
    kernels: tuple[Predicted, ...]
    graphs: str
    rounds: tuple[Round, ...] = ()

    @property
    def us(self) -> float:
        return sum(k.us * k.uses for k in self.kernels)


def program_times(program: Program, gpu: Machine) -> Times:
    """The times of a program that was planned for this GPU."""
    kernels = sorted(predict(program, gpu), key=lambda k: -k.us * k.uses)
    rounds = rounds_of(program, Estimates(program, gpu).gaining)
    return Times(gpu.name, tuple(kernels), in_words(program.steps), tuple(rounds))


def gpu_times(module: Module, gpu: Machine, passes: Mapping[str, Any] | None = None) -> Times:
    """The times of a module, which is not changed. passes: their options. Raises HlocError if it cannot be planned."""
    options = api.Options(passes=dict(passes or {}))
    return program_times(api.optimized_plan(clone_module(module), cuda_target(gpu), options)[1], gpu)


def what_if(module: Module, chosen: Machine, passes: Mapping[str, Any] | None = None) -> Iterator[Times]:
    """The times on other data-centre GPUs."""
    return (gpu_times(module, GPUS[name], passes) for name in WHAT_IF if name != chosen.name)
