"""hloc bisect: which pass, or which kernel, changes a module's results."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hloc.cli.options import (
    Number,
    devices_option,
    fusion_option,
    inputs_option,
    mesh_option,
    module_argument,
    pass_options,
    precision_options,
    reading_options,
    target_option,
)
from hloc.cli.run_devices import device_arrays, setting_here
from hloc.cli.terminal import Progress, input_reader, line_of, print_table, read_module, source_json, source_of
from hloc.devices import with_device_counts
from hloc.errors import UsageError
from hloc.files import make_folder, write

EPILOG = """\b
Examples:
  hloc check model.hlo || hloc bisect model.hlo
  hloc bisect model.hlo --inputs x.npy --dump-dir wrong     # wrong/before.hlo, wrong/after.hlo
  hloc bisect model.hlo --target h100                       # without such a GPU: its passes only"""


@click.command("bisect", epilog=EPILOG)
@module_argument
@inputs_option
@target_option
@fusion_option
@precision_options
@click.option("--tolerance", type=Number(0), metavar="X",
              help="As in hloc check: the largest error relative to the largest magnitude.")
@click.option("--dump-dir", type=click.Path(path_type=Path), metavar="DIR",
              help="Folder for the module before and after the pass that changes the results.")
@click.option("--json", "as_json", is_flag=True, help="Print the finding as JSON.")
@devices_option
@mesh_option
@reading_options
def bisect_command(module, inputs, target, fusion, precision, tolerance, dump_dir, as_json, devices, mesh,
                   reading) -> None:
    """Find what changes MODULE's results on a target: a pass of its pipeline, or the code of a kernel.

    A binary search picks passes; the reference evaluator runs the module after each of them. If no pass changes the
    results, every kernel of the optimized entry runs alone, on operands that the evaluator computed, and then the whole
    program. Exit code 0 if nothing differs, 1 if something does.
    """
    from hloc.inputs import check_inputs, entry_parameters
    from hloc.targets import find, presence
    from hloc.tools.bisect import bisect, bisect_on_devices
    if target == "reference":
        raise UsageError("the reference evaluator has no passes to search", hint="choose cpu or a GPU")
    chosen = find(target)
    with Progress() as progress:
        parsed = read_module(module, reading, progress, inputs)
        setting = setting_here("hloc bisect", parsed, devices, mesh, reading.strict)
        passes = pass_options(fusion, precision=precision)
        if setting.devices:
            if chosen.name != "cpu":
                raise UsageError("hloc bisect of several devices is for target cpu")
            first = setting.devices[0]
            own = with_device_counts(setting.module or parsed, first.replica_count, first.partition_count)
            blame = bisect_on_devices(own, chosen, device_arrays(parsed, setting, inputs), options=passes,
                                      tolerance=tolerance, report=progress.report)
        else:
            arrays = check_inputs(parsed, input_reader(inputs, parsed)(entry_parameters(parsed)))
            blame = bisect(parsed, chosen, arrays, options=passes, tolerance=tolerance, report=progress.report,
                           runs_kernels=chosen.name == "cpu" or presence.driver_present())
    if dump_dir and blame.before:
        make_folder(dump_dir)
        write(dump_dir / "before.hlo", str(blame.before))
        write(dump_dir / "after.hlo", str(blame.after))
    click.echo(json.dumps(_as_json(blame), indent=1) if as_json else _text(blame, chosen.name, dump_dir))
    if blame.kernels and not as_json:
        print_table(["kernel", "opcode", "line", "source", "result", "error", "tolerance", "at", target, "evaluator"],
                    [[k.instruction.name, k.instruction.opcode, line_of(k.instruction) or "",
                      source_of(k.instruction), *_row(r)] for k in blame.kernels for r in k.rows], right=(2, 5, 6))
    sys.exit(1 if blame.culprit else 0)


def _text(blame, target: str, dump_dir: Path | None) -> str:
    if blame.culprit == "kernels":
        return (f"{blame.steps} runs of passes, none changes the results; {len(blame.kernels)} kernels of the "
                "optimized module differ from the evaluator on the same operands:")
    if not blame.culprit:
        kernels = "the kernels agree, too" if blame.ran_kernels else f"kernels were not run: no {target} device"
        return f"{blame.steps} runs of passes, none changes the results; {kernels}"
    rows = "\n".join(f"  {r.name}: {r.note or f'off by {r.error:.1e} of its largest value'}, at {list(r.where)} "
                     f"{r.got} instead of {r.want}" for r in blame.rows)
    if blame.culprit == "plan":
        return f"{blame.steps} runs of passes, none changes the results; each kernel agrees, the whole differs\n{rows}"
    where = f"; see {dump_dir}/before.hlo and after.hlo" if dump_dir else " (--dump-dir writes both modules)"
    return f"{blame.culprit} (run {blame.step} of {blame.steps}) changes the results{where}\n{rows}"


def _row(row) -> list[str]:
    return [row.name, f"{row.error:.2e}", f"{row.tolerance:.0e}", str(list(row.where)), str(row.got), str(row.want)]


def _as_json(blame) -> dict:
    rows = [{"result": r.name, "error": r.error, "where": list(r.where), "note": r.note} for r in blame.rows]
    kernels = [{"kernel": k.instruction.name, "opcode": k.instruction.opcode, "line": line_of(k.instruction),
                "source": source_json(k.instruction), "errors": [r.error for r in k.rows]} for k in blame.kernels]
    return {"culprit": blame.culprit, "step": blame.step, "steps": blame.steps, "results": rows, "kernels": kernels,
            "ran_kernels": blame.ran_kernels}
