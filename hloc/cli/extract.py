"""hloc extract: a part of a module, as a module that runs."""
from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hloc.cli.options import inputs_option, module_argument, reading_options
from hloc.cli.saved_inputs import is_saved, save_inputs
from hloc.cli.terminal import Progress, counted, input_reader, read_module
from hloc.files import check_target, write

if TYPE_CHECKING:
    import numpy as np

EPILOG = """\b
Examples:
  hloc extract model.hlo --around dot.7 -o part.hlo               # it, its operands and users
  hloc extract model.hlo --around loop_body/dot.7 --radius 3 -o part.hlo
  hloc extract model.hlo --around dot.7 -o part.hlo --inputs x.npy     # part.npz: values of its parameters"""


@click.command("extract", epilog=EPILOG)
@module_argument
@inputs_option
@click.option("--around", required=True, metavar="NAME",
              help="The instruction in the middle; COMPUTATION/NAME if several have that name.")
@click.option("--radius", default=1, show_default=True, type=click.IntRange(0, 1_000_000), metavar="N",
              help="How many steps from operand to user, or back, are kept.")
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="File for the part; with --inputs, its inputs are written beside it, as .npz.")
@click.option("--json", "as_json", is_flag=True, help="Print what was taken as JSON.")
@reading_options
def extract_command(module, inputs, around, radius, output, as_json, reading) -> None:
    """Write the part of MODULE around an instruction as a module that runs.

    An operand outside the part becomes a parameter, unless it is a constant; an instruction with users outside becomes
    a result. With --inputs, the reference evaluator runs MODULE and computes the part's inputs (in a loop, those of the
    first iteration).
    """
    from hloc.inputs import check_inputs, entry_parameters
    from hloc.tools.extract import extract
    data = output.with_suffix(".npz") if inputs else None
    check_target(output)
    if data:
        check_target(data, is_saved)
    with Progress() as progress:
        parsed = read_module(module, reading, progress)
        progress.report("extract")
        part = extract(parsed, around, radius)
        arrays: Sequence[np.ndarray] = ()
        if data:
            given = check_inputs(parsed, input_reader(inputs, parsed)(entry_parameters(parsed)))
            progress.report("run")
            arrays = part.arrays(given)
    write(output, str(part.module))
    if data:
        save_inputs(data, arrays, is_saved)
    _show(part, parsed, output, data, as_json)


def _show(part, parsed, output: Path, data: Path | None, as_json: bool) -> None:
    count, whole = (sum(1 for _ in m.instructions()) for m in (part.module, parsed))
    if as_json:
        parameters = [{"name": p.name, "shape": p.shape.to_string(False)} for p in part.module.entry.parameters]
        click.echo(json.dumps({"instructions": count, "of": whole, "parameters": parameters,
                               "results": list(part.results), "output": str(output),
                               "inputs": str(data) if data else None}, indent=1))
        return
    click.echo(f"{counted(count, 'instruction')} of {whole}: {counted(len(part.cut), 'parameter')}, "
               f"{counted(len(part.results), 'result')} ({', '.join(part.results[:8])}"
               f"{', ...' if len(part.results) > 8 else ''}); {output}{f' and its inputs {data}' if data else ''}")
