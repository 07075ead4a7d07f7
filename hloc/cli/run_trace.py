"""hloc run --trace: when each step ran, as a file that Perfetto opens."""
from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloc.cli.color import tell
from hloc.cli.run_devices import MARK, Outcome
from hloc.errors import UsageError
from hloc.files import check_target, write

if TYPE_CHECKING:
    from hloc.executable import Executable
    from hloc.run_trace import RunTrace


def check_trace(path: Path) -> None:
    """Raises UsageError where no trace can be written."""
    from hloc.devices import is_launched
    if path.suffix != ".json":
        raise UsageError(f"cannot write {path}: a trace is JSON", hint="name a FILE that ends with .json")
    if is_launched() and MARK not in path.name:
        raise UsageError(f"under MPI each process writes a trace of its own: write {MARK} into the name")
    check_target(path)


def write_trace(path: Path, exe: Executable, traces: Sequence[RunTrace], title: str) -> None:
    """Of one device."""
    from hloc.tools.trace_events import DeviceTrace, joined, outside_of
    _write(path, [DeviceTrace(0, exe.target, joined(traces), outside_of((*exe.parameters, *exe.results)))], title)


def write_device_traces(path: Path, outcomes: Sequence[Outcome], title: str) -> None:
    """Of all devices of this process: a group of tracks for each."""
    from hloc.tools.trace_events import DeviceTrace, outside_of
    devices = [DeviceTrace(o.device.number if o.device else 0, o.exe.target, o.exe.trace(),
                           outside_of((*o.exe.parameters, *o.exe.results))) for o in outcomes]
    _write(path.with_name(path.name.replace(MARK, str(devices[0].number))), devices, title)


def _write(path: Path, devices: Sequence, title: str) -> None:
    from hloc.tools.trace_events import trace_json
    told = trace_json(devices, title)
    write(path, json.dumps(told, separators=(",", ":")))
    lost = told["otherData"]["lost events"]
    if lost:
        tell(f"note: {lost:,} events found no room in the trace; --trace-iterations makes it smaller")
    click.echo(f"{path}: {len(told['traceEvents']):,} events", err=True)
