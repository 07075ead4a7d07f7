"""hloc check: one module, two ways to run it, the differences."""
from __future__ import annotations

import json
import sys

import click

from hloc.cli.custom_calls import custom_call_table
from hloc.cli.options import (
    custom_call_option,
    inputs_option,
    module_argument,
    reading_options,
    target_option,
)
from hloc.cli.terminal import Progress, input_reader, print_table, read_module, tell_of_gpu

EPILOG = """\b
Examples:
  hloc check model.hlo                          # this machine's target against the reference evaluator
  hloc check model.hlo --against xla            # against XLA:CPU (needs the jax extra)
  hloc check model.hlo --inputs x.npy --tolerance 1e-5"""


@click.command("check", epilog=EPILOG)
@module_argument
@inputs_option
@target_option
@click.option("--against", default="reference", show_default=True,
              type=click.Choice(["reference", "cpu", "cuda", "xla"]), help="What to compare with.")
@click.option("--tolerance", type=click.FloatRange(0), metavar="X",
              help="Largest error relative to the largest magnitude, for floating-point results. "
                   "Default: f64 1e-9, f32 1e-4, f16 and bf16 2e-2, eight bits and less 0.26.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@custom_call_option
@reading_options
def check_command(module, inputs, target, against, tolerance, as_json, custom_calls, reading) -> None:
    """Run MODULE on a target and another way on the same inputs and compare all results.

    Exit code 0 where all agree, 1 where a result differs; the table names which, by how much, and where. A result
    that moves about as far when inputs (and, in the evaluator, each operation) are off by one unit in the last place
    is 'unstable': its difference says nothing about either side, and does not fail the check.
    """
    from hloc.api import Options, compile
    from hloc.tools.check import check
    calls = custom_call_table(custom_calls)
    with Progress() as progress:
        parsed = read_module(module, reading, progress)
        exe = compile(parsed, target, options=Options(progress=progress.report, custom_calls=calls))
        tell_of_gpu(target, exe.target)
        arrays = input_reader(inputs, parsed)(exe.parameters)
        rows = check(parsed, arrays, target=exe, against=against, tolerance=tolerance, custom_calls=calls,
                     report=progress.report)
    _show(rows, exe.target, against, as_json)
    sys.exit(0 if all(r.agrees or r.is_unstable for r in rows) else 1)


def _show(rows, target: str, against: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_as_json(r) for r in rows], indent=1))
        return
    print_table(["result", "type", "shape", "error", "tolerance", "agrees"],
                [[r.name, r.element_type, "x".join(map(str, r.shape)) or "scalar", f"{r.error:.2e}",
                  f"{r.tolerance:.0e}", _verdict(r)] for r in rows], right=(3, 4))
    for r in rows:
        if r.is_unstable:
            click.echo(f"{r.name} is unstable: one unit in the last place moves it by {r.moved:.1e}, "
                       "about as much as the two sides differ")
        elif not r.agrees:
            place = f" at [{', '.join(map(str, r.where))}]" if r.where else ""
            note = f" ({r.note})" if r.note else ""
            click.echo(f"{r.name} differs{place}: {target} has {r.got}, {against} has {r.want}{note}")


def _verdict(row) -> str:
    return "yes" if row.agrees else "unstable" if row.is_unstable else "NO"


def _as_json(row) -> dict:
    return {"result": row.name, "type": row.element_type, "shape": list(row.shape), "error": row.error,
            "tolerance": row.tolerance, "agrees": row.agrees, "unstable": row.is_unstable, "where": list(row.where),
            "note": row.note}
