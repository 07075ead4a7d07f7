"""Starts compiling the library kernels that a module will probably call, while the passes still run."""
from __future__ import annotations

from hloc.ir import Module
from hloc.machine import Machine, available_cores
from hloc.targets.cpu.building import toolchain
from hloc.targets.cpu.building.likely import likely_units
from hloc.targets.cpu.building.parts import compiled
from hloc.targets.cpu.building.routine_objects import CALL, runtime_digest, runtime_object
from hloc.workers import Workers


def ahead(module: Module, machine: Machine) -> Workers:
    """Threads that compile missing library kernels. Errors are raised when the kernels are needed."""
    chain, sources = toolchain.find(machine), runtime_digest()
    threads = Workers(available_cores())
    units, parts = likely_units(module, machine)
    for unit, flags in compiled((*units, CALL), parts):
        threads.submit(runtime_object, chain, unit, flags, sources)
    return threads
