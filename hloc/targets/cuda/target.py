"""The CUDA target: CUDA C, compiled to a cubin without a GPU, and run with PyCUDA.

    exe = cuda_target(GPUS["h100"]).executable(program, module, options); exe.save("model.cubin")
"""
from __future__ import annotations

import json
import threading
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hloc.errors import RunError, UnsupportedError
from hloc.executable import Executable
from hloc.ir import Module
from hloc.ir.narrowing import known
from hloc.kernels.ir import Tile
from hloc.kernels.plan import HostCall, Program, WhileLoop, Workspace, all_steps
from hloc.machine import Machine
from hloc.passes.precision import precision_of
from hloc.targets.cuda import compiler, container, kernel_images, presence
from hloc.targets.cuda.gpus import DEFAULT, GPUS
from hloc.targets.cuda.schedules import variants_of
from hloc.targets.cuda.sources import CudaSources, host_calls, make_sources
from hloc.targets.cuda.tiles.source import tile_source
from hloc.targets.host_calls import host_function
from hloc.targets.target import Target, refuse_alone

if TYPE_CHECKING:
    from hloc.evaluate import Device
    from hloc.run_trace import RunTrace

_compiling = threading.Lock()               # devices that are threads start at the same time: one compiles for all


def cuda_target(gpu: Machine | None) -> Target:
    """The target for one GPU; None: the GPU that is present, else the default for ahead-of-time builds."""
    if gpu is None and presence.device_present():
        from hloc.targets.cuda.execution.context import device_machine
        gpu = device_machine()
    gpu = gpu or GPUS[DEFAULT]
    return Target("cuda", gpu, partial(executable, gpu), workspace=workspace())


def workspace() -> Workspace:
    """The scratch memory that the kernels of tiles need."""
    return Workspace(_scratch)


@lru_cache(maxsize=1024)
def _scratch(step: Tile | HostCall, gpu: Machine) -> int:
    """The scratch memory that the kernels of a tile share, for the cost model's choice; a tuned variant may need
    more."""
    return tile_source(step, "tile", gpu).scratch if isinstance(step, Tile) else 0


def executable(gpu: Machine, program: Program, module: Module, options) -> Executable:
    """An Executable of CUDA C; it is compiled when it is saved or first called."""
    variants: list[str] = []
    if options.tuning is not None:
        from hloc.targets.cuda.execution.tuning import chosen_variants
        with options.stage("tuning"):
            variants = chosen_variants(program.kernels, gpu, options.tuning, options.report)
    if options.schedule is not None:
        variants = variants_of(program.kernels, gpu, options.schedule, variants)
    with options.stage("printing"):
        sources = make_sources(program, gpu, variants)

    def on_device(device: Device | None) -> Executable:
        return _executable(gpu, program, sources, module, options, device)
    made = on_device(options.device)
    made.on_device = on_device
    return made


def _executable(gpu: Machine, planned: Program, sources: CudaSources, module: Module, options,
                device: Device | None) -> Executable:
    """planned: the program before its kernels were split into launches."""
    clock = None
    if options.times_steps:
        from hloc.targets.cuda.costs.steps import timed_steps
        from hloc.targets.cuda.execution.step_clock import StepClock
        clock = StepClock(*timed_steps(planned, sources, gpu),
                          [s for s in all_steps(sources.program.steps) if isinstance(s, WhileLoop)])
    program = sources.program
    functions = {call: host_function(call, options) for call in sources.host_calls}
    precision = precision_of(options.passes)

    def start():
        from hloc.targets.cuda.execution.runtime import CudaBackend
        refuse_alone(program, device)
        packed = container.Container(
            program.name, gpu.arch, images(sources, gpu, options), sources.geometry, program.steps, program.parameters,
            program.results, program.constants, program.arena_size, compiler.compiler_version(), precision,
            program.host_arena_size, program.communicating)
        return CudaBackend(packed, functions, clock, device)

    def traced() -> RunTrace:
        from hloc.kernels.memory import memory_over_time
        from hloc.targets.cuda.execution.trace import trace_of
        assert clock is not None                # a run with a trace times its steps
        return trace_of(clock, options.trace, memory_over_time(module, gpu, workspace()).by_instruction)

    def save_cubin(file: BinaryIO, _: str) -> None:
        if sources.host_calls:
            call = sources.host_calls[0]
            raise UnsupportedError(f"a .cubin cannot hold the Python function of host call {call.target!r}",
                                   known(call.instruction).span, hint="hloc run MODULE runs it from the HLO text")
        container.write(file, images(sources, gpu, options), program, sources.geometry, gpu.arch,
                        compiler.compiler_version(), precision)

    def host_program(file: BinaryIO, name: str) -> str:
        from hloc.targets.cuda.host_program import host_text
        return host_text(file, program, sources.geometry, gpu.arch, name)

    def host_header(name: str) -> str:
        from hloc.targets.cuda.host_program import header_text
        return header_text(program, name)

    return Executable(
        program.name, gpu.arch, program.parameters, program.results, start, sources.readable,
        texts={".cu": lambda _: sources.single_file(), ".hlo": lambda _: str(module),
               ".ptx": lambda _: compiler.compile_cuda(sources.single_file(), gpu.arch, "ptx").decode()},
        files={".cubin": save_cubin}, hosts={".cubin": (host_program, host_header)},
        profiled=clock.times if clock else None, traced=traced if options.trace is not None else None,
        optimized=lambda: module)


def images(sources: CudaSources, gpu: Machine, options) -> tuple[bytes, ...]:
    """The cubins of a program, from the cache or compiled. Raises BuildError."""
    with _compiling, options.stage("compiler"):
        return kernel_images.images_of(sources, gpu.arch, options.report)


def load_cubin(path: Path) -> Executable:
    """A saved .cubin as an Executable. Raises RunError for a file that was not written by hloc, or was changed."""
    return _saved_for(path, container.read(path), None)


def _saved_for(path: Path, packed: container.Container, device: Device | None) -> Executable:
    """For one of several devices, or to be looked at."""
    if host_calls(packed.steps):
        names = ", ".join(sorted({repr(call.target) for call in host_calls(packed.steps)}))
        raise RunError(f"{path} needs Python for host call {names}: run it from its HLO text")

    def start():
        from hloc.targets.cuda.execution.runtime import CudaBackend
        if packed.devices > 1 and device is None:
            raise UnsupportedError(f"{path} is for {packed.devices} devices",
                                   hint="hloc run runs each of them; under mpirun each process is one")
        return CudaBackend(packed, {}, device=device)

    def describe() -> str:
        return json.dumps({"name": packed.name, "arch": packed.arch, "precision": packed.precision,
                           "kernels": [k.function for k in packed.kernels]})

    return Executable(packed.name, packed.arch, packed.parameters, packed.results, start, describe,
                      devices=max(1, packed.devices), on_device=partial(_saved_for, path, packed))
