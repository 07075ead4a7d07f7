"""hloc run on several devices: simulated here, one thread each, or one MPI process each."""
from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np

from hloc import __version__
from hloc.cli.profile_table import profile_json, show_profile, show_runs
from hloc.cli.terminal import input_reader, results_table
from hloc.devices import PARTITIONED, device_counts, is_launched, needs_partitioner, with_device_counts
from hloc.errors import HlocError, UsageError
from hloc.inputs import Named, entry_parameters
from hloc.inputs.global_arrays import parameters_of
from hloc.ir import Module, reachable_computations
from hloc.tools.formatting import first_values
from hloc.tools.timings import Summary

if TYPE_CHECKING:
    from hloc.evaluate import Device
    from hloc.evaluate.simulate import SimulatedDevice
    from hloc.executable import Executable
    from hloc.parallel import Partition
    from hloc.tools.sharding_causes import Causes

MARK = "{device}"
FAULT = 70                       # as in main.py


class Setting(NamedTuple):
    """devices: those that this process runs; none: an ordinary run on one device. divided: of what arrays those of each
    device are parts, where the module tells."""

    devices: list[Device]
    divided: Partition | None = None

    @property
    def module(self) -> Module | None:
        return self.divided.module if self.divided else None

    @property
    def simulated(self) -> list[SimulatedDevice]:
        """Those that are threads of this process."""
        from hloc.evaluate.simulate import SimulatedDevice
        return [device for device in self.devices if isinstance(device, SimulatedDevice)]


def setting_for(module: Module | Executable, asked: int | None, mesh: dict[str, int] | None, strict: bool) -> Setting:
    """One device of several under MPI; else `asked`, or those of `mesh`, or as many as the header of a module with
    collectives says. An annotated module is partitioned. A compiled file is for as many as when it was compiled."""
    from hloc.executable import Executable
    if isinstance(module, Executable):
        return setting_for_compiled(module, asked)
    if is_launched():
        if asked:
            raise UsageError("--devices simulates devices in one process; under MPI each process is one")
        from hloc.evaluate.mpi import mpi_device, process_count
        divided = _divided(module, mesh, process_count(), strict)
        return Setting([mpi_device(divided.module if divided else module)], divided)
    if asked is None and mesh is None and not has_collectives(module):
        return Setting([])
    from hloc.evaluate.simulate import simulated_devices
    divided = _divided(module, mesh, asked, strict)
    count = divided.count if divided else asked or prod(device_counts(module))
    devices = simulated_devices(divided.module if divided else module, count)
    return Setting(list(devices), divided) if count > 1 else Setting([])


def setting_here(command: str, module: Module, asked: int | None, mesh: dict[str, int] | None, strict: bool) -> Setting:
    """The same for a command that has all devices in one process."""
    if is_launched():
        raise UsageError(f"{command} runs all devices in one process, not under mpirun", hint="give --devices N")
    return setting_for(module, asked, mesh, strict)


def for_devices(module: Module, asked: int | None, mesh: dict[str, int] | None, strict: bool) -> Module:
    """The program of each device, whose header has their number: `asked`, those of `mesh`, or what the header or, for
    lack of counts there, collectives name. The module itself where that is one. One with manual computations is always
    divided: it does not run on one device."""
    return with_causes(module, asked, mesh, strict)[0]


def with_causes(module: Module, asked: int | None, mesh: dict[str, int] | None, strict: bool) -> tuple[Module, Causes]:
    """The same, and the annotations that are why it has its collectives."""
    is_manual = needs_partitioner(module) is not None and has_collectives(module)
    divided = _divided(module, mesh, asked, strict) if asked or mesh or is_manual else None
    if divided is None:
        return _as_written(module, asked), {}
    from hloc.tools.sharding_causes import sharding_causes
    causes = sharding_causes(module, divided, mesh)
    return divided.module if device_counts(divided.module) != (1, 1) else with_device_counts(
        divided.module, 1, divided.count), causes


def _as_written(module: Module, asked: int | None) -> Module:
    """A module that is not to be divided, with so many devices in its header."""
    from hloc.ops.collectives import counts_of_run, named_devices
    written = prod(device_counts(module))
    if asked not in (None, written) and written > 1:
        raise UsageError(f"{module.name} is for {written} devices, not for {asked}")
    counts = counts_of_run(module, asked or written) if asked or written > 1 else named_devices(module.instructions())
    return module if counts == device_counts(module) else with_device_counts(module, *counts)


def setting_for_compiled(exe: Executable, asked: int | None) -> Setting:
    """The devices that a compiled file is for. Raises UsageError where the run has another number."""
    if exe.devices == 1:
        return Setting([])
    if is_launched():
        from hloc.evaluate.mpi import process_device
        return Setting([process_device(exe.devices)])
    if asked not in (None, exe.devices):
        raise UsageError(f"{exe.name} was compiled for {exe.devices} devices, not for {asked}")
    from hloc.evaluate.simulate import thread_devices
    return Setting([*thread_devices(exe.devices, 1)])


def _divided(module: Module, mesh: dict[str, int] | None, count: int | None, strict: bool) -> Partition | None:
    """The module of one device; None where each device runs the text, and it does not say of what arrays."""
    if count == 1 and not mesh:
        return None
    if not mesh and needs_partitioner(module) is None and not module.entry.name.endswith(PARTITIONED):
        return None
    from hloc.cli.terminal import warn
    from hloc.parallel import partition
    return partition(module, mesh, count, strict=strict, warn=warn)


@contextmanager
def ending_all(devices: Sequence[Device]) -> Iterator[None]:
    """If one MPI process fails, print its error and end all; mpirun's exit code is hloc's."""
    try:
        yield
    except Exception as error:
        if not devices or not hasattr(devices[0], "abort"):
            raise
        said = str(error) if isinstance(error, (HlocError, click.ClickException)) else traceback.format_exc()
        click.echo(f"device {devices[0].number} of {devices[0].count}: {said.strip()}", err=True)
        sys.stderr.flush()
        from hloc.evaluate.mpi import DifferentProgramsError
        if isinstance(error, DifferentProgramsError):
            sys.exit(error.code)                             # as all the others do
        devices[0].abort(getattr(error, "code", None) or getattr(error, "exit_code", FAULT))


def has_collectives(module: Module) -> bool:
    from hloc.ops.collectives import meets_devices
    return any(meets_devices(i) for c in reachable_computations(module.entry) for i in c.instructions)


class Timing(NamedTuple):
    """Seconds of the runs before and of the timed ones; steps: of each of these, with --profile."""

    warm_up: list[float]
    times: list[float]
    steps: list


class Outcome(NamedTuple):
    """device: whose results these are, None of all together; exe: what ran; named: the results' names and shapes."""

    device: Device | None
    exe: Executable
    named: Sequence[Named]
    results: Sequence[np.ndarray]
    timing: Timing


def runs_whole(setting: Setting, names: Sequence[str]) -> bool:
    """Whether a run takes and gives whole arrays, as on one device: threads whose module tells of what its arrays are
    parts, and files (of inputs, of results) that are not one for each device."""
    divided = setting.divided
    if divided is None or divided.gives is None or any(MARK in name for name in names):
        return False
    return not is_launched()


def run_on_devices(module: Module | Executable, setting: Setting, target: str, options, inputs: Sequence[str],
                   output: str | None, repeat: int = 1, warm_up: int = 0) -> list[Outcome]:
    """Compile a module once, or take a compiled file, and run it on all at the same time, `warm_up` times before and
    `repeat` times. `{device}` in file names stands for the device's number; names without it are of whole arrays, where
    the module tells how they are divided."""
    from hloc.evaluate.simulate import run_concurrently
    from hloc.executable import Executable
    from hloc.inputs.files import write_outputs
    devices = setting.devices
    if output and MARK not in output and not _joins(setting, output):
        raise UsageError(f"several devices have several results: write {MARK} into the name, as in results.{MARK}.npz")
    if is_launched():
        from hloc.evaluate.mpi import MpiDevice
        assert isinstance(devices[0], MpiDevice)
        text = module.source if isinstance(module, Executable) else str(setting.module or module)
        devices[0].check_same(f"{__version__} {target} {options.passes} {text}")
    arrays = device_arrays(module, setting, inputs)
    executables = _executables(module, setting, target, options)
    runs = [partial(exe, *own) for exe, own in zip(executables, arrays)]
    options.report("run")
    simulated = setting.simulated
    times: list[float] = []
    steps: list[list] = [[] for _ in devices]
    for _ in range(warm_up + repeat):
        start = time.perf_counter()
        results = run_concurrently(simulated, runs) if simulated else [run() for run in runs]
        times.append(time.perf_counter() - start)
        for exe, own in zip(executables, steps) if options.profile else ():
            own.append(exe.profile())
    timing = [Timing(times[:warm_up], times[warm_up:], own[warm_up:]) for own in steps]
    if output and MARK in output:
        for device, own in zip(devices, results):
            write_outputs(Path(output.replace(MARK, str(device.number))), own)
    return [Outcome(device, exe, exe.results, own, timed)
            for device, exe, own, timed in zip(devices, executables, results, timing)]


def _executables(module: Module | Executable, setting: Setting, target: str, options) -> list[Executable]:
    """Those of the devices, compiled once; or of a compiled file."""
    from hloc.api import compile_for_devices
    from hloc.executable import Executable
    if not isinstance(module, Executable):
        return compile_for_devices(setting.module or module, setting.devices, target, options=options)
    assert module.on_device is not None                          # it is for several
    return [module.on_device(device) for device in setting.devices]


def as_one(module: Module | Executable, setting: Setting, target: str, options) -> Executable:
    """All devices as one executable: of whole arrays, where the module says what its arrays are parts of; else of those
    of a device, which are the same on all, and with the results of the first."""
    from hloc.executable import Executable
    from hloc.parallel import AlikeBackend, compile_divided
    if setting.divided is not None and setting.divided.gives is not None:
        return compile_divided(setting.divided, target, options)
    executables = _executables(module, setting, target, options)
    first, backend = executables[0], AlikeBackend(setting.simulated, executables)
    return Executable(first.name, first.target, first.parameters, first.results, lambda: backend, lambda: first.source)


def _joins(setting: Setting, output: str | None) -> bool:
    """Whether results are joined: the module tells how, and nobody wants those of each device."""
    return setting.divided is not None and setting.divided.gives is not None and MARK not in (output or "")


def joined_outcomes(setting: Setting, outcomes: Sequence[Outcome], output: str | None) -> list[Outcome]:
    """Whole results in place of those of each device, where the module tells how they are divided; of processes, the
    first has them."""
    if not _joins(setting, output):
        return list(outcomes)
    from hloc.inputs.files import write_outputs
    device, divided = setting.devices[0], setting.divided
    assert divided is not None and divided.gives is not None          # as _joins says
    results = [o.results for o in outcomes]
    if len(results) < divided.count:
        results = device.exchange(divided.module.entry.root, range(divided.count), tuple(results[0]))
        if device.number:
            return []
    whole = divided.joined(results)
    if output:
        write_outputs(Path(output), whole)
    return [Outcome(None, outcomes[0].exe, parameters_of(divided.gives), whole, outcomes[0].timing)]


def show_outcomes(outcomes: Sequence[Outcome], as_json: bool, top: int) -> None:
    """A table of whole results, or one per device; or of the steps of each device, with --profile."""
    if as_json:
        told = [_as_json(o) for o in outcomes]
        click.echo(json.dumps(told[0] if outcomes and outcomes[0].device is None else told, indent=1))
        return
    for device, _, named, results, timing in outcomes:
        if device is not None:
            click.echo(f"device {device.number} of {device.count}")
        if timing.steps:
            show_profile(timing.steps, timing.times, top)
        else:
            results_table(named, results)
    if outcomes:
        show_runs(outcomes[0].timing.times, outcomes[0].timing.warm_up)


def device_arrays(module: Module | Executable, setting: Setting, inputs: Sequence[str]) -> list[list[np.ndarray]]:
    """Each device's inputs: its own files, where names have the mark; else parts of whole arrays, or all of them where
    the module does not say of what they are parts."""
    devices, divided = setting
    own = setting.module or module
    parameters = entry_parameters(own) if isinstance(own, Module) else own.parameters
    if any(MARK in name for name in inputs):
        return [input_reader([n.replace(MARK, str(d.number)) for n in inputs], module)(parameters) for d in devices]
    if divided is None:
        return [input_reader(inputs, module)(parameters)] * len(devices)
    arrays = input_reader(inputs, module)(parameters_of(divided.takes))
    return [divided.parts(arrays, d.number) for d in devices]


def _as_json(outcome: Outcome) -> dict:
    told: dict = {"device": outcome.device.number} if outcome.device is not None else {}
    times = outcome.timing.times
    told |= {"seconds": times, "warm_up_seconds": outcome.timing.warm_up, "percentiles": Summary.of(times).named}
    if outcome.timing.steps:
        told["profile"] = profile_json(outcome.timing.steps)
    return told | {"results": [
        {"name": v.name, "type": v.shape.element_type, "shape": list(a.shape), "first": first_values(a)}
        for v, a in zip(outcome.named, outcome.results)]}
