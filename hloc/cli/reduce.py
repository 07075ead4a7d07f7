"""hloc reduce: the smallest module on which a comparison still fails."""
from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np

from hloc.cli.options import Number, inputs_option, module_argument, reading_options, target_option
from hloc.cli.saved_inputs import is_saved, save_inputs
from hloc.cli.terminal import Progress, input_reader, read_module
from hloc.errors import UsageError
from hloc.files import check_target, write

EPILOG = """\b
Examples:
  hloc check model.hlo || hloc reduce model.hlo -o small.hlo     # writes small.npz, its inputs, too
  hloc reduce model.hlo --against xla -o small.hlo
  hloc reduce model.hlo -o small.hlo --command 'my_tool {module} --inputs {inputs}'"""


@click.command("reduce", epilog=EPILOG)
@module_argument
@inputs_option
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="File for the small module; its inputs are written beside it, as .npz.")
@target_option
@click.option("--against", default="reference", show_default=True,
              type=click.Choice(["reference", "cpu", "cuda", "xla"]), help="As in hloc check.")
@click.option("--tolerance", type=Number(0), metavar="X", help="As in hloc check.")
@click.option("--command", "command_line", metavar="COMMAND",
              help="Instead of comparing, keep a module on which COMMAND ends with the same exit code (not 0) as on "
                   "MODULE; {module} and {inputs} in it stand for files. A crash is an exit code, too.")
@click.option("--timeout", default=60.0, show_default=True, type=Number(0.1), metavar="SECONDS",
              help="A COMMAND that takes longer counts as a different exit code.")
@click.option("--json", "as_json", is_flag=True, help="Print what became of the module as JSON.")
@reading_options
def reduce_command(module, inputs, output, target, against, tolerance, command_line, timeout, as_json,
                   reading) -> None:
    """Make MODULE as small as possible while hloc check still fails on it for the same reason: a result differs by more
    than rounding explains, and for the same named cause if there is one; or the same error occurs.

    hloc removes parts of the module, inlines computations, and replaces instructions by parameters. The evaluator
    computes the values of these parameters, so that the small module has inputs that show the difference.
    """
    from hloc.inputs import check_inputs, entry_parameters
    from hloc.tools.outcome import is_same
    from hloc.tools.reduce import reduce_module
    data = output.with_suffix(".npz")
    check_target(output)
    check_target(data, is_saved)
    with Progress() as progress:
        parsed = read_module(module, reading, progress, inputs)
        arrays = check_inputs(parsed, input_reader(inputs, parsed)(entry_parameters(parsed)))
        outcome = (_command_outcome(command_line, timeout) if command_line
                   else _check_outcome(target, against, tolerance))
        wanted = outcome(parsed, arrays)
        if not wanted:
            why = "it ends with exit code 0" if command_line else "all results agree, or are unstable"
            raise UsageError(f"nothing to reduce: {why}", hint="hloc check must fail on the module")
        case = reduce_module(parsed, arrays, lambda m, given: is_same(outcome(m, given), wanted), progress.report)
    write(output, str(case.module))
    save_inputs(data, case.arrays, is_saved)
    before, after = (sum(1 for _ in m.instructions()) for m in (parsed, case.module))
    if as_json:
        click.echo(json.dumps({"reasons": sorted(wanted), "instructions": after, "of": before, "output": str(output),
                               "inputs": str(data)}, indent=1))
        return
    click.echo(f"{'; '.join(sorted(wanted))}: {before} instructions became {after}; {output} and its inputs {data}")


def _check_outcome(target: str, against: str, tolerance: float | None) -> Callable:
    from hloc.tools.check import check
    from hloc.tools.outcome import outcome_of

    def outcome(module, arrays: Sequence[np.ndarray]) -> frozenset[str]:
        return outcome_of(lambda: check(module, arrays, target=target, against=against, tolerance=tolerance))
    return outcome


def _command_outcome(command_line: str, timeout: float) -> Callable:
    def outcome(module, arrays: Sequence[np.ndarray]) -> frozenset[str]:
        with tempfile.TemporaryDirectory() as folder:
            text, data = Path(folder) / "module.hlo", Path(folder) / "inputs.npz"
            text.write_text(str(module), encoding="utf-8")
            save_inputs(data, arrays)
            line = command_line.replace("{module}", str(text)).replace("{inputs}", str(data))
            try:
                run = subprocess.run(line, shell=True, capture_output=True, timeout=timeout)
            except subprocess.TimeoutExpired:
                return frozenset(["timeout"])
            return frozenset([f"exit code {run.returncode}"] if run.returncode else [])
    return outcome
