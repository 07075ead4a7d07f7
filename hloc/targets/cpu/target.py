"""The CPU target: C, compiled by the machine's own compiler, cached on disk.

    exe = cpu_target().executable(program, module, options)

Compilers and passes are imported only if something is compiled: a program in the cache needs none.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from hloc import cache
from hloc.errors import BuildError, UnsupportedError
from hloc.executable import Executable
from hloc.ir import Instruction, Module
from hloc.ir.narrowing import known
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.plan import HostCall, Packing, Program, Workspace
from hloc.machine import Machine
from hloc.targets.cpu.building.program_cache import from_cache
from hloc.targets.cpu.execution.executable import CpuBackend, NotLoaded, refuse_if_too_large, refuse_other_devices
from hloc.targets.cpu.execution.executable import load_shared_object as open_shared_object
from hloc.targets.manifest import value_from_json
from hloc.targets.target import Target, refuse_alone

STACK_BYTES = 1 << 20                 # of each thread of the pool: HLOC_STACK_BYTES in runtime/pool.h

if TYPE_CHECKING:
    from hloc.evaluate import Device
    from hloc.targets.cpu.program.sources import Sources


def cpu_target(march: str = "native") -> Target:
    """The target for this CPU, or for those of a C compiler's -march. Raises UsageError for a -march that the compiler
    does not know."""
    from hloc.targets.cpu.building.toolchain import machine_of
    machine = machine_of(march)
    return Target("cpu", machine, partial(executable, machine), partial(from_cache, machine), workspace())


def workspace() -> Workspace:
    """What memory the library kernels take."""
    return Workspace(_scratch, _kept, _stack, _packing)


def _scratch(step: Tile | HostCall, machine: Machine) -> int:
    from hloc.targets.cpu.plans.steps import scratch_of
    return scratch_of(step, machine).bytes


def _kept(kernels: Sequence[Kernel | Tile], machine: Machine) -> int:
    from hloc.targets.cpu.plans.steps import kept_bytes
    return kept_bytes(kernels, machine)


def _packing(tile: Tile, machine: Machine) -> Packing | None:
    from hloc.targets.cpu.plans.packing import packing_of
    return packing_of(tile, machine)


def _stack(machine: Machine) -> int:
    return (machine.cores - 1) * STACK_BYTES


def executable(machine: Machine, program: Program, module: Module, options) -> Executable:
    """An Executable over generated C, which is compiled when it is first called or saved."""
    from hloc.targets.cpu.building import toolchain
    from hloc.targets.cpu.building.build import build
    from hloc.targets.cpu.program.sources import make_sources
    from hloc.targets.host_calls import host_function
    printed = partial(make_sources, program, machine, timed=options.times_steps, iterations=options.trace,
                      in_python=options.custom_calls.keys(), inline=options.passes.get("fusion") != "off",
                      schedule=options.schedule)
    with options.stage("printing"):
        sources = printed()
    functions = [host_function(call, options) for call in sources.driver.host_calls]

    def start(device: Device | None) -> CpuBackend:
        toolchain.refuse_foreign(machine)
        refuse_alone(program, device)
        refuse_if_too_large(program, largest(module))
        with options.stage("compiler"):
            key, library = build(sources, options.report, options.units)
        with library:
            try:
                return CpuBackend(library, program, program.communicating, key=key, device=device,
                                  host_calls=list(zip(sources.driver.host_calls, functions)))
            except NotLoaded as error:
                cache.forget(key, ".so")
                raise BuildError(f"the C compiler's output is not a program: {error.message}") from None

    def on_device(device: Device | None) -> Executable:
        return _executable(partial(start, device), printed, sources, program, module, machine, options)

    made = on_device(options.device)
    made.on_device = on_device
    return made


def _executable(start: Callable[[], CpuBackend], printed: Callable[..., Sources], sources: Sources, program: Program,
                module: Module, machine: Machine, options) -> Executable:
    """printed: makes sources with another prefix of names."""
    from hloc.targets.cpu.execution.profile import step_times
    from hloc.targets.cpu.program.export import header_text
    made = Executable(program.name, "cpu", program.parameters, program.results, start, sources.readable,
                      texts={".c": lambda name: c_file(printed(prefix=f"{name}_"), name),
                             ".hlo": lambda _: str(module)},
                      files={".so": lambda file, name: save(sources, file, name, options)},
                      headers=dict.fromkeys((".so", ".c"), lambda name: header_text(program, name)))
    made.optimized = lambda: module

    def shared_object() -> Any:
        backend: Any = made.backend                   # what `start` made
        return backend.shared_object
    if options.times_steps:
        made.profiled = lambda: step_times(shared_object(), sources.driver.timed, program)
    if options.trace is not None:
        from hloc.kernels.memory import memory_over_time
        from hloc.targets.cpu.execution.trace import take_trace
        made.traced = lambda: take_trace(shared_object(), sources.driver.timed, sources.driver.traced, program,
                                         memory_over_time(module, machine, workspace()).by_instruction)
    return made


def largest(module: Module) -> Instruction:
    """The instruction whose result takes the most memory, for errors of modules that are too large."""
    return max((i for i in module.entry.instructions if i.opcode not in ("parameter", "tuple")),
               key=lambda i: i.shape.num_bytes, default=module.entry.root)


def save(sources: Sources, file: BinaryIO, name: str, options) -> None:
    """Write a self-contained shared object, with constants and manifest. Raises UnsupportedError for a program that
    calls functions that it cannot contain."""
    refuse_calls(sources, ".so")
    from hloc.targets.cpu.building.build import save as write_shared_object
    with options.stage("compiler"):
        write_shared_object(sources, file, name, options.report, options.units)


def c_file(sources: Sources, name: str) -> str:
    """The whole program as one C file. Raises UnsupportedError as save does."""
    refuse_calls(sources, ".c")
    from hloc.targets.cpu.program.single_file import single_file
    return single_file(sources, name)


def refuse_calls(sources: Sources, suffix: str) -> None:
    for call in sources.driver.host_calls:
        raise UnsupportedError(f"a {suffix} cannot hold the Python function of host call {call.target!r}",
                               known(call.instruction).span, hint="hloc run MODULE runs it from the HLO text")
    for call in sources.driver.lapack_calls:
        raise UnsupportedError(f"a {suffix} has no LAPACK: {call.target!r} is called through SciPy",
                               known(call.instruction).span, hint="hloc run MODULE runs it from the HLO text")


def load_shared_object(path: Path, device: Device | None = None) -> Executable:
    """A saved .so as an Executable; device: on which a program of several runs: without one it is looked at. Raises
    RunError for a file that hloc did not write."""
    backend, facts = open_shared_object(path, device)

    def start() -> CpuBackend:
        refuse_other_devices(facts["devices"], device)
        assert backend is not None
        return backend
    parameters, results = ([value_from_json(row) for row in facts[what]] for what in ("parameters", "results"))
    made = Executable(str(facts["name"]), "cpu", parameters, results, start, lambda: json.dumps(facts, indent=1))
    if facts["devices"] > 1:
        made.devices, made.on_device = facts["devices"], partial(load_shared_object, path)
    return made
