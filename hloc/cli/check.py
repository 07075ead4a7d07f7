"""hloc check: one module on two implementations, and the differences of the results."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hloc.cli.custom_calls import custom_call_table
from hloc.cli.options import (
    Number,
    custom_call_option,
    fusion_option,
    inputs_option,
    mesh_option,
    module_argument,
    pass_options,
    precision_options,
    reading_options,
    target_option,
)
from hloc.cli.run_devices import device_arrays, has_collectives, runs_whole, setting_here
from hloc.cli.terminal import Progress, input_reader, print_table, read_module, tell, tell_of_gpu
from hloc.errors import UsageError, printable

EPILOG = """\b
Examples:
  hloc check model.hlo                          # this machine's target against the reference evaluator
  hloc check model.hlo --against xla            # against XLA:CPU (needs the jax extra)
  hloc check model.hlo --inputs x.npy --tolerance 1e-5
  hloc check model.hlo --inputs x.npy --expected y.npz     # against saved results
  hloc check model.hlo --fusion off --layout column-major  # do fusion or layouts cause it?
  hloc check sharded.hlo --devices 4"""


@click.command("check", epilog=EPILOG)
@module_argument
@inputs_option
@target_option
@click.option("--against", type=click.Choice(["reference", "cpu", "cuda", "xla"]),
              help="The implementation to compare with. Default: reference.")
@click.option("--expected", type=click.Path(path_type=Path), metavar="FILE",
              help="Compare with the results in an .npz file (or, for one result, .npy), in order, instead.")
@click.option("--tolerance", type=Number(0), metavar="X",
              help="Largest error relative to the largest magnitude, for floating-point results. "
                   "Default: f64 1e-9, f32 1e-4, or 2e-2 where a GPU rounds to TF32, f16 and bf16 2e-2, eight bits "
                   "and less 0.26.")
@click.option("--devices", type=click.IntRange(1), metavar="N",
              help="Run on N devices, threads of this process, which exchange arrays in collectives. An annotated "
                   "module is partitioned, and compared with itself on one device. {device} in input names is the "
                   "number of a device. Default: the number in the module's header.")
@mesh_option
@click.option("--layout", type=click.Choice(["given", "row-major", "column-major"]), default="given", show_default=True,
              help="Layout of all arrays in the target's module: results must not depend on it.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@custom_call_option
@fusion_option
@precision_options
@reading_options
def check_command(module, inputs, target, against, expected, tolerance, devices, mesh, layout, as_json, custom_calls,
                  fusion, precision, reading) -> None:
    """Run MODULE on a target and on a second implementation (--against), with the same inputs; compare all results.

    Exit code 0 if all agree, 1 if a result differs; the table says which one, by how much, and where. A result is
    'unstable' if it changes by about as much when the inputs (and each operation of the evaluator) change by one unit
    in the last place. Its difference says nothing about either side, and does not fail the check. A difference is named
    (contraction, order of a sum, flushed subnormal, rounding of an intermediate type) if an evaluation with that change
    reproduces it.
    """
    from hloc.api import Options, compile
    from hloc.evaluate.simulate import SimulatedDevice
    from hloc.parallel import compile_divided
    from hloc.passes.precision import precision_notes
    from hloc.tools.check import check, check_devices
    from hloc.tools.layouts import with_layouts
    wanted = _expected(expected, against)
    calls = custom_call_table(custom_calls)
    with Progress() as progress:
        parsed = read_module(module, reading, progress, inputs)
        changed = parsed if layout == "given" else with_layouts(parsed, layout)
        options = Options(progress=progress.report, custom_calls=calls,
                          passes=pass_options(fusion, precision=precision))
        setting = setting_here("hloc check", parsed, devices, mesh, reading.strict)
        is_alone = setting.module is not parsed and not has_collectives(parsed)      # it runs on one device, too
        if setting.devices and not (is_alone and runs_whole(setting, inputs)):
            _for_the_evaluator(against, expected)
            own = setting.module or parsed
            changed = own if layout == "given" else with_layouts(own, layout)
            simulated = [device for device in setting.devices if isinstance(device, SimulatedDevice)]
            rows = check_devices(own, device_arrays(parsed, setting, inputs), simulated, target=target,
                                 changed=changed, options=options, tolerance=tolerance)
            name = target
        else:
            if setting.devices:
                assert setting.divided is not None               # as runs_whole says
                exe = compile_divided(setting.divided, target, options)
            else:
                exe = compile(changed, target, options=options)
            tell_of_gpu(target, exe.target)
            name, arrays = exe.target, input_reader(inputs, parsed)(exe.parameters)
            rows = check(parsed, arrays, target=exe, against=against or "reference", expected=wanted,
                         tolerance=tolerance, custom_calls=calls, passes=options.passes,
                         report=progress.report)
        notes = precision_notes(parsed, options.passes) if name == "cuda" or name.startswith("sm_") else []
    for note in notes:
        tell(f"note: {note}")
    _show(rows, name, str(expected) if expected else against or "reference", as_json)
    sys.exit(0 if all(r.agrees or r.is_unstable for r in rows) else 1)


def _expected(path: Path | None, against: str | None) -> list | None:
    """The arrays of --expected."""
    if path is None:
        return None
    if against:
        raise UsageError("--expected and --against cannot be combined")
    from hloc.inputs.files import read_arrays
    return read_arrays(path)


def _for_the_evaluator(against: str | None, expected: Path | None) -> None:
    if expected or against not in (None, "reference"):
        raise UsageError("several devices are compared with the reference evaluator only")


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
                       f"the two sides differ by {r.error:.1e}")
        elif not r.agrees:
            place = f" at [{', '.join(map(str, r.where))}]" if r.where else ""
            note = f" ({r.note})" if r.note else ""
            click.echo(f"{r.name} differs{place}: {target} has {r.got}, {printable(against)} has {r.want}{note}")
        for cause in r.causes:
            click.echo(f"  {cause}")


def _verdict(row) -> str:
    return "yes" if row.agrees else "unstable" if row.is_unstable else "NO"


def _as_json(row) -> dict:
    return {"result": row.name, "type": row.element_type, "shape": list(row.shape), "error": row.error,
            "tolerance": row.tolerance, "agrees": row.agrees, "unstable": row.is_unstable, "where": list(row.where),
            "note": row.note, "moved": row.moved, "causes": list(row.causes)}
