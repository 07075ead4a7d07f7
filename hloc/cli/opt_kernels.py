"""hloc opt --kernels: the kernels of a module, or loop-IR text, after passes on kernels."""
from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from hloc.cli.options import Reading
from hloc.cli.run_devices import for_devices
from hloc.cli.terminal import Progress, read_module
from hloc.errors import Source, UsageError

if TYPE_CHECKING:
    from hloc.kernels.ir import Kernel, Tile

ENDING = ".loop"


def kernels_after_passes(module: str, target, passes: Sequence[str] | None, dump_before: Sequence[str],
                         dump_after: Sequence[str], options, reading: Reading, times: bool, as_json: bool) -> str:
    """The output of `hloc opt MODULE --kernels`; with `times`, print the seconds of each pass on stderr."""
    from hloc.tools.kernel_passes import kernel_text, kernels_of
    from hloc.verify.unverified import blaming_faults
    timings: list | None = [] if times else None
    kernels: Sequence[Kernel | Tile]
    with Progress() as progress:
        if module.endswith(ENDING):
            kernels = _read_loops(module)
        else:
            parsed = for_devices(read_module(module, reading, progress), None, None, reading.strict)
            with blaming_faults(parsed, "hloc opt --kernels"):
                kernels = kernels_of(parsed, target, options)
        text = kernel_text(kernels, target, passes, dump_before=dump_before, dump_after=dump_after, timings=timings)
    if timings is not None:
        _show_times(timings, as_json)
    return text


def _read_loops(path: str) -> list:
    from hloc.kernels.text import read_loops
    from hloc.sources import read_bytes
    try:
        return read_loops(Source(read_bytes(path).decode(), path))
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text in UTF-8") from None


def _show_times(timings: list, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"kernel_passes": [{"pass": t.name, "seconds": t.seconds, "changed": t.changed}
                                                 for t in timings]}, indent=1), err=True)
        return
    click.echo(f"{'seconds':>9}  {'kernels changed':>15}  pass", err=True)
    for t in timings:
        click.echo(f"{t.seconds:9.4f}  {t.changed:15}  {t.name}", err=True)
