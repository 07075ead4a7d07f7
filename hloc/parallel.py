"""One program over several devices, called with whole arrays.

    exe = hloc.compile_for_mesh("model.hlo", {"data": 4, "model": 2})
    results = exe(*arrays)                  arrays of all devices in and out, NumPy

An annotated module is partitioned (hloc/passes: sharding_propagation, spmd_partitioner); one that XLA has partitioned,
whose entry keeps shardings, is taken as it is. The devices are threads of this process.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hloc.api import Options, compile_for_devices, load
from hloc.devices import PARTITIONED, device_counts
from hloc.errors import Span, UsageError
from hloc.evaluate.simulate import SimulatedDevice, run_concurrently, simulated_devices
from hloc.executable import Executable
from hloc.inputs.global_arrays import GlobalArray, entry_arrays, parameters_of
from hloc.ir import Instruction, Module
from hloc.ir.clone import clone_module
from hloc.machine import Machine
from hloc.passes.context import PassContext
from hloc.passes.pipelines import PARTITIONING
from hloc.passes.runner import run_passes
from hloc.passes.sharding_propagation import module_mesh
from hloc.sharding.meshes import DeviceMesh

Warn = Callable[[str, "Span | None"], None]


@dataclass(frozen=True)
class Partition:
    """A module that each of `count` devices runs, and what its parameters and results are parts of.

    gives   None where the module does not tell: each device has results of its own then
    mesh    that it was partitioned over; None where it came partitioned
    origins, made_for   why it has its collectives (PassContext; tools/sharding_causes.py)
    """

    module: Module
    count: int
    takes: tuple[GlobalArray, ...]
    gives: tuple[GlobalArray, ...] | None
    mesh: DeviceMesh | None = None
    origins: Mapping[Instruction, Mapping[int, Instruction]] = field(default_factory=dict)
    made_for: Mapping[int, tuple[Instruction, ...]] = field(default_factory=dict)

    def parts(self, arrays: Sequence[Any], device: int) -> list[np.ndarray]:
        """A device's part of each array, which is checked already."""
        return [one.part(np.asarray(a), device) for one, a in zip(self.takes, arrays)]

    def joined(self, results: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, ...]:
        """Whole results from those of the devices, in their order."""
        return tuple(one.joined([r[k] for r in results]) for k, one in enumerate(self.gives or ()))


def partition(module: Module, mesh: Mapping[str, int] | None = None, count: int | None = None, *,
              strict: bool = False, warn: Warn | None = None) -> Partition:
    """The program of one device. The module is left as it is.

    mesh    sizes of the axes that its annotations name, in place of those that they have
    count   how many devices there are to be; None: as many as the mesh has
    strict  what cannot be divided is an error instead of a warning
    Raises UsageError where the mesh or the number of devices does not fit the annotations.
    """
    if module.entry.name.endswith(PARTITIONED):
        return _partitioned(module, mesh, count)
    own = clone_module(module)
    context = PassContext(Machine.host(), options={"mesh": dict(mesh)} if mesh else {}, warn=warn, strict=strict)
    run_passes(own, PARTITIONING[:-1], context)
    found = module_mesh(own)
    run_passes(own, PARTITIONING[-1:], context)
    devices = device_counts(own)[1]
    if not own.entry.name.endswith(PARTITIONED):
        raise UsageError(f"{module.name} has no shardings that divide anything: each device would do all of it",
                         hint="annotate its arrays, or run it on one device")
    if count not in (None, devices):
        raise UsageError(f"the shardings of {module.name} are for {devices} devices, not for {count}",
                         hint="--mesh gives its axes other sizes, as in --mesh x=2")
    takes, gives = entry_arrays(own, module)
    return Partition(own, devices, tuple(takes), tuple(gives) if gives is not None else None, found,
                     context.origins, context.made_for)


def _partitioned(module: Module, mesh: Mapping[str, int] | None, count: int | None) -> Partition:
    """A module that has been partitioned, by XLA or hloc."""
    devices = device_counts(module)[0] * device_counts(module)[1]
    if mesh:
        raise UsageError(f"{module.name} is partitioned already; its mesh cannot be changed")
    if count not in (None, devices) and devices > 1:
        raise UsageError(f"{module.name} is partitioned for {devices} devices, not for {count}")
    takes, gives = entry_arrays(module)
    return Partition(module, count or devices, tuple(takes), tuple(gives) if gives is not None else None)


class DividedBackend:
    """Runs whole arrays on all devices: what an Executable calls."""

    def __init__(self, divided: Partition, devices: Sequence[SimulatedDevice], executables: Sequence[Executable]):
        self.divided, self.devices, self.executables = divided, devices, executables

    def __call__(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        runs = [partial(exe, *self.divided.parts(arrays, device.number))
                for exe, device in zip(self.executables, self.devices)]
        return self.divided.joined(run_concurrently(self.devices, runs))


class AlikeBackend:
    """Runs the same arrays on all devices, and has the results of the first."""

    def __init__(self, devices: Sequence[SimulatedDevice], executables: Sequence[Executable]):
        self.devices, self.executables = devices, executables

    def __call__(self, arrays: Sequence[Any]) -> tuple[np.ndarray, ...]:
        return run_concurrently(self.devices, [partial(exe, *arrays) for exe in self.executables])[0]


def compile_for_mesh(source: str | bytes | Path | Module, mesh: Mapping[str, int] | None = None,
                     target: str = "auto", *, devices: int | None = None, strict: bool = False,
                     warn: Warn | None = None, options: Options | None = None) -> Executable:
    """Partition a module over a mesh and compile the program of each device, once for all.

    source, target, options    as of compile
    mesh, devices              sizes of axes by name; how many devices. Both may be left to the module's annotations
    strict, warn               what cannot be divided over devices is an error; what is called with such warnings
    Raises HlocError, UsageError where mesh and annotations do not fit.
    """
    return compile_divided(partition(load(source), mesh, devices, strict=strict, warn=warn), target, options)


def compile_divided(divided: Partition, target: str = "auto", options: Options | None = None) -> Executable:
    """An executable of whole arrays. Raises UsageError where the module does not tell what its results are parts of."""
    if divided.gives is None:
        raise UsageError("the module does not tell how its results are divided",
                         hint="take the module as it was before it was partitioned")
    module = divided.module
    devices = simulated_devices(module, divided.count)
    executables = compile_for_devices(module, devices, target, options=options)
    backend = DividedBackend(divided, devices, executables)
    return Executable(module.name, executables[0].target, parameters_of(divided.takes), parameters_of(divided.gives),
                      lambda: backend, lambda: executables[0].source)
