"""hloc memory: the memory that a run of a module needs, without running it."""
from __future__ import annotations

import json

import click

from hloc.cli.loop_warnings import loop_copies_json, show_loop_copies
from hloc.cli.options import (
    devices_option,
    fusion_option,
    lenient_reading_options,
    memory_limit_option,
    mesh_option,
    module_argument,
    pass_options,
    precision_options,
)
from hloc.cli.run_devices import for_devices
from hloc.cli.saved_memory import saved_json, show_saved
from hloc.cli.terminal import Progress, line_of, print_table, read_module, source_json, source_of
from hloc.tools.formatting import size_text

EPILOG = """\b
Examples:
  hloc memory model.hlo
  hloc memory model.hlo --top 40
  hloc memory model.hlo --memory-limit 2GiB
  hloc memory model.hlo --json | jq .peak"""


@click.command("memory", epilog=EPILOG)
@module_argument
@click.option("--target", "-t", default="cpu", show_default=True, metavar="NAME", help="cpu, cuda, h100, sm_90a ...")
@click.option("--top", default=15, show_default=True, type=click.IntRange(0), metavar="N",
              help="Number of buffers listed.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@fusion_option
@precision_options
@memory_limit_option
@devices_option
@mesh_option
@lenient_reading_options
def memory_command(module, target, top, as_json, fusion, precision, memory_limit, devices, mesh, reading) -> None:
    """Show how much memory a run of MODULE takes, and which buffers are live at its peak.

    The peak is the sum of parameters, results, constants, memory that library kernels keep between runs, and the
    arena, which holds intermediate arrays and scratch memory of library kernels. Stacks are reserved once per process.
    Nothing is compiled or run. Of a program for several devices it is the memory of one. Instructions are those of the
    optimized module (hloc opt); lines are those of the file.
    """
    from hloc.api import Options, optimized_plan
    from hloc.kernels.memory import memory_use
    from hloc.targets import find
    from hloc.tools.loop_copies import loop_copies
    from hloc.verify.unverified import blaming_faults
    chosen, options = find(target), Options(passes=pass_options(fusion, memory_limit, precision))
    with Progress() as progress:
        parsed = for_devices(read_module(module, reading, progress), devices, mesh, reading.strict)
        progress.report("plan")
        with blaming_faults(parsed, "hloc memory"):
            optimized, program = optimized_plan(parsed, chosen, options)
            use, loops = memory_use(optimized, chosen.machine, chosen.workspace), loop_copies(optimized, program)
    saved = options.saved if memory_limit is not None else []
    if as_json:
        click.echo(json.dumps(_as_json(use) | {"loop_copies": loop_copies_json(loops),
                                          "saved": saved_json(saved)}, indent=1))
        return
    _show_parts(use)
    if use.at is not None:
        source = source_of(use.at)
        line = f"{line_of(use.at) or '-'}{source and f', {source}'}"
        click.echo(f"\nmost of the arena is in use at {use.at.name}, line {line}: {size_text(use.live)}")
    if use.buffers and top:
        click.echo()
        print_table(["bytes", "", "in", "buffer", "shape", "line", "source", "also holds"],
                    [_row(b) for b in use.buffers[:top]], right=(0, 1, 5))
        if len(use.buffers) > top:
            click.echo(f"... and {len(use.buffers) - top} more (--top)")
    show_saved(saved, top)
    show_loop_copies(loops)


def _show_parts(use) -> None:
    """Sizes by purpose; those of the host's memory in columns of their own, if there are any."""
    parts = {name: getattr(use, name) for name in ("parameters", "results", "constants", "arena", "kept", "peak")}
    parts = {name: size for name, size in parts.items() if size or name != "kept"}
    parts |= {f"({name})": getattr(use, name) for name in ("scratch", "stacks") if getattr(use, name)}
    host = {**use.on_host._asdict(), "peak": use.on_host.peak} if use.on_host.peak else {}
    rows = [[name, f"{size:,}", size_text(size), *([f"{host[name]:,}", size_text(host[name])] if name in host else [])]
            for name, size in parts.items()]
    titles = ["memory", "device", "", "host", ""] if host else ["memory", "bytes", ""]
    print_table(titles, [[*row, *[""] * (len(titles) - len(row))] for row in rows], right=(1, 2, 3, 4))


def _row(buffer) -> list[str]:
    first = buffer.instructions[0] if buffer.instructions else None
    return [f"{buffer.size:,}", size_text(buffer.size), buffer.region, buffer.name,
            first.shape.to_string(False)[:40] if first else "", str(line_of(first) or ''), source_of(first),
            ", ".join(i.name for i in buffer.instructions[1:4]) + (", ..." if len(buffer.instructions) > 4 else "")]


def _as_json(use) -> dict:
    return {
        "peak": use.peak, "arena": use.arena, "live": use.live, "constants": use.constants,
        "scratch": use.scratch, "kept": use.kept, "stacks": use.stacks,
        "host": {**use.on_host._asdict(), "peak": use.on_host.peak},
        "parameters": use.parameters, "results": use.results, "at": use.at.name if use.at else None,
        "buffers": [{"bytes": b.size, "region": b.region, "offset": b.offset, "name": b.name,
                     "instructions": [{"name": i.name, "opcode": i.opcode, "shape": i.shape.to_string(False),
                                       "line": line_of(i), "source": source_json(i)} for i in b.instructions]}
                    for b in use.buffers]}
