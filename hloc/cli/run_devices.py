"""hloc run on several devices: simulated here, one thread each, or one MPI process each."""
from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np

from hloc.cli.terminal import input_reader, results_table
from hloc.devices import device_counts, is_launched
from hloc.errors import HlocError, UsageError
from hloc.executable import Executable
from hloc.ir import Module, reachable_computations
from hloc.tools.shown import first_values

if TYPE_CHECKING:
    from hloc.evaluate import Device

MARK = "{device}"
FAULT = 70                       # as in main.py


def devices_for(module: Module, asked: int | None) -> list[Device]:
    """The devices that this process runs: one under MPI, else `asked`, else as many as the header of a module with
    collectives says. Empty: a run on one device."""
    if is_launched():
        if asked:
            raise UsageError("--devices simulates devices in one process; under MPI each process is one")
        from hloc.evaluate.mpi import mpi_device
        return [mpi_device(module)]
    replicas, partitions = device_counts(module)
    if asked is None and not _has_collectives(module):
        return []
    from hloc.evaluate.simulate import simulated_devices
    count = asked or replicas * partitions
    return list(simulated_devices(module, count)) if count > 1 else []


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
        devices[0].abort(getattr(error, "code", None) or getattr(error, "exit_code", FAULT))


def _has_collectives(module: Module) -> bool:
    from hloc.ops.collectives import COLLECTIVES
    return any(i.opcode.removesuffix("-start") in COLLECTIVES
               for c in reachable_computations(module.entry) for i in c.instructions)


class Outcome(NamedTuple):
    device: Device
    exe: Executable
    results: tuple[np.ndarray, ...]


def run_on_devices(module: Module, devices: Sequence[Device], target: str, options, inputs: Sequence[str],
                   output: str | None) -> list[Outcome]:
    """Compile once, run on all at the same time. `{device}` in file names stands for the device's number."""
    from hloc.api import compile_for_devices
    from hloc.evaluate.simulate import SimulatedDevice, run_together
    from hloc.inputs.files import write_outputs
    if output and MARK not in output:
        raise UsageError(f"several devices have several results: write {MARK} into the name, as in results.{MARK}.npz")
    arrays = device_arrays(module, devices, inputs)
    executables = compile_for_devices(module, devices, target, options=options)
    runs = [partial(exe, *own) for exe, own in zip(executables, arrays)]
    options.report("run")
    results = run_together(devices, runs) if isinstance(devices[0], SimulatedDevice) else [run() for run in runs]
    outcomes = list(map(Outcome, devices, executables, results))
    for outcome in outcomes if output else ():
        write_outputs(Path(output.replace(MARK, str(outcome.device.number))), outcome.results)
    return outcomes


def show_outcomes(outcomes: Sequence[Outcome], as_json: bool) -> None:
    """A table per device."""
    if as_json:
        click.echo(json.dumps([_as_json(o) for o in outcomes], indent=1))
        return
    for device, exe, results in outcomes:
        click.echo(f"device {device.number} of {device.count}")
        results_table(exe.results, results)


def device_arrays(module: Module, devices: Sequence[Device], inputs: Sequence[str]) -> list[list[np.ndarray]]:
    """The inputs of each device; all devices share them if no file name has the mark."""
    from hloc.inputs import entry_parameters
    parameters = entry_parameters(module)
    if not any(MARK in name for name in inputs):
        return [input_reader(inputs, module)(parameters)] * len(devices)
    return [input_reader([n.replace(MARK, str(d.number)) for n in inputs], module)(parameters) for d in devices]


def _as_json(outcome: Outcome) -> dict:
    return {"device": outcome.device.number, "results": [
        {"name": v.name, "type": v.shape.element_type, "shape": list(a.shape), "first": first_values(a)}
        for v, a in zip(outcome.exe.results, outcome.results)]}
