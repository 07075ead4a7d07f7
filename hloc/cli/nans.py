"""hloc nans: which instructions produce NaN or infinities."""
from __future__ import annotations

import json
import sys
from functools import partial

import click

from hloc.cli.custom_calls import custom_call_table
from hloc.cli.options import (
    custom_call_option,
    devices_option,
    inputs_option,
    mesh_option,
    module_argument,
    reading_options,
)
from hloc.cli.run_devices import device_arrays, setting_here
from hloc.cli.terminal import Progress, input_reader, line_of, print_table, read_module, source_json

EPILOG = """\b
Examples:
  hloc nans model.hlo --inputs batch.npz
  hloc nans step.hlo --inputs state.npz --infinities     # what overflows
  hloc nans model.hlo --json | jq '.origins[0]'"""


@click.command("nans", epilog=EPILOG)
@module_argument
@inputs_option
@click.option("--infinities", is_flag=True, help="List the sources of infinities, too.")
@click.option("--top", default=20, show_default=True, type=click.IntRange(1), metavar="N",
              help="Number of instructions listed.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@devices_option
@mesh_option
@custom_call_option
@reading_options
def nans_command(module, inputs, infinities, top, as_json, devices, mesh, custom_calls, reading) -> None:
    """Run MODULE in the reference evaluator and list the instructions that produce a NaN from operands without one, in
    execution order, with the operands' values. The bodies of loops, calls and fusions are included.

    Exit code 1 if a result holds NaN (or infinities, with --infinities), else 0.
    """
    from hloc.evaluate.simulate import run_concurrently
    from hloc.inputs import entry_parameters, entry_results
    from hloc.tools.nans import nan_origins
    calls = {name: lambda _, *given, f=f: f(*given) for name, f in custom_call_table(custom_calls).items()}
    with Progress() as progress:
        parsed = read_module(module, reading, progress, inputs)
        setting = setting_here("hloc nans", parsed, devices, mesh, reading.strict)
        look = partial(nan_origins, setting.module or parsed, infinities=infinities, custom_calls=calls)
        names = [r.name for r in entry_results(setting.module or parsed)]
        if setting.devices:
            arrays = device_arrays(parsed, setting, inputs)
            progress.report("run")
            found = run_concurrently(setting.simulated, [
                partial(look, own, device=device) for own, device in zip(arrays, setting.simulated)])
        else:
            given = input_reader(inputs, parsed)(entry_parameters(parsed))
            progress.report("run")
            found = [look(given)]
    told = [([names[i] for i in one.results], one.origins) for one in found]
    if as_json:
        shown = [{"results": results, "origins": [_as_json(o) for o in origins]} for results, origins in told]
        click.echo(json.dumps([{"device": d} | one for d, one in enumerate(shown)] if setting.devices else shown[0],
                              indent=1))
    for number, (results, origins) in enumerate(told if not as_json else ()):
        if setting.devices:
            click.echo(f"device {number} of {len(told)}")
        _show(origins, results, len(names), "NaN or infinities" if infinities else "NaN", top)
    sys.exit(1 if any(results for results, _ in told) else 0)


def _show(origins, results: list[str], count: int, what: str, top: int) -> None:
    click.echo(f"{len(results)} of {count} results hold {what}" + (f": {', '.join(results[:8])}" if results else ""))
    if not origins:
        return
    click.echo()
    print_table(["makes", "instruction", "opcode", "line", "elements", "runs", "at", "of", "from"],
                [[o.what, o.instruction.name, o.instruction.opcode, line_of(o.instruction) or "",
                  f"{o.count} of {o.size}", o.runs, _index(o.where), ", ".join(map(str, o.operands)), _from(o)]
                 for o in origins[:top]], right=(3, 4, 5))
    if len(origins) > top:
        click.echo(f"... and {len(origins) - top} more (--top)")


def _index(where: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, where))}]"


def _from(origin) -> str:
    from hloc.kernels.group import written_where
    return written_where(origin.instruction).strip()


def _as_json(origin) -> dict:
    instruction = origin.instruction
    return {"makes": origin.what, "instruction": instruction.name, "opcode": instruction.opcode,
            "line": line_of(instruction), "elements": origin.count, "of": origin.size, "runs": origin.runs,
            "where": list(origin.where), "operands": [str(o) for o in origin.operands], "from": _from(origin),
            "source": source_json(instruction)}
