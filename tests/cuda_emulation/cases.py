"""Single instructions of a module's entry as one program for the GPU, run by the emulation.

    results = run(cases, GPUS["h100"])              one list of arrays per Case of kernel_harness

Every instruction takes the operands that the evaluator computed, as entry parameters, and gives its results.
"""
from __future__ import annotations

import numpy as np
from kernel_harness import Case

from cuda_emulation import driver
from hloc.analysis.packing import ALIGNMENT
from hloc.inputs import Parameter
from hloc.ir import leaves
from hloc.kernels.plan import Copy, Launch, Program, Ref
from hloc.machine import Machine
from hloc.targets.cuda.container import Container
from hloc.targets.cuda.execution import loaded, runtime
from hloc.targets.cuda.sources import CudaSources, make_sources


def program_of(cases: list[Case]) -> Program:
    """One Program whose steps run the kernels of all cases, one after the other."""
    kernels, steps, parameters, results, arena = [], [], [], [], 0
    for case in cases:
        inputs = [[_reference(parameters, "parameter", s) for s in leaves(o.shape)] for o in case.instruction.operands]
        outputs = [_reference(results, "result", s) for s in leaves(case.instruction.shape)]
        scratch = []
        for size in case.lowered.scratch:
            scratch.append(Ref("arena", 0, arena, size))
            arena += -(-size // ALIGNMENT) * ALIGNMENT
        steps += [Copy(outputs[result], inputs[operand][0]) for result, operand in case.lowered.in_place]
        for call in case.lowered.calls:
            places = [inputs[a.index][0] if a.kind == "operand" else outputs[a.index] if a.kind == "result"
                      else scratch[a.index] for a in call.arguments]
            steps.append(Launch(len(kernels), tuple(places)))
            kernels.append(call.kernel)
    return Program("cases", tuple(kernels), tuple(steps), tuple(parameters), tuple(results), (), arena)


def _reference(values: list[Parameter], region: str, shape) -> Ref:
    values.append(Parameter(f"{region}.{len(values)}", shape))
    return Ref(region, len(values) - 1, 0, shape.num_bytes)


def run(cases: list[Case], gpu: Machine, monkeypatch, backwards: bool = False,
        checked: bool = False) -> list[list[np.ndarray]]:
    """The results of every case."""
    sources = make_sources(program_of(cases), gpu)
    arrays = [np.ascontiguousarray(a) for case in cases for operand in case.operands for a in operand]
    results = list(emulate(sources, arrays, monkeypatch, backwards, checked))
    return [[results.pop(0) for _ in case.expected] for case in cases]


def emulate(sources: CudaSources, arrays: list[np.ndarray], monkeypatch, backwards: bool = False,
            checked: bool = False):
    """Run a whole program through the CUDA runtime, on the emulation. backwards: the last thread starts first.
    checked: a wrong access to memory is an error, as under compute-sanitizer."""
    driver.install(monkeypatch)
    backend = backend_of(sources, checked)
    for module in backend.modules:
        module.set_backwards(backwards)
    return backend(arrays)


def backend_of(sources: CudaSources, checked: bool = False, image: bytes = b"") -> runtime.CudaBackend:
    """The program, loaded into the emulation."""
    program = sources.program
    packed = Container(program.name, "sm_90a", (image or driver.build(sources, checked),) * len(sources.units()),
                       sources.geometry, program.steps, program.parameters, program.results, program.constants,
                       program.arena_size, host_arena_size=program.host_arena_size)
    backend = runtime.CudaBackend(packed, {})
    for step in loaded.launches(program.steps):
        if packed.kernels[step.kernel].product is None:
            backend.functions[step.kernel].sizes = tuple(r.size for r in step.arguments)
    return backend
