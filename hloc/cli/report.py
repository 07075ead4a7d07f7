"""hloc report: one page about a module's kernels, their times, and the reasons."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hloc.cli.options import (
    fusion_option,
    inputs_option,
    lenient_reading_options,
    module_argument,
    pass_options,
    precision_options,
)
from hloc.cli.run_devices import for_devices
from hloc.cli.terminal import Progress, counted, input_reader, read_module
from hloc.errors import UsageError
from hloc.files import check_target, write
from hloc.tools.formatting import size_text

OTHERS = ("cpu", "a100", "h100", "h200", "b200")
NONE = "none"
EPILOG = """\b
Examples:
  hloc report model.hlo -o report.html
  hloc report model.hlo -o report.html --measure --repeat 20
  hloc report model.hlo -o report.html -t h100
  hloc report model.hlo -o report.html --predict b200     # beside the target, that one alone
  hloc report model.hlo -o report.html --predict none"""


@click.command("report", epilog=EPILOG)
@module_argument
@inputs_option
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), metavar="FILE.html",
              help="The page to write.")
@click.option("--target", "-t", default="cpu", show_default=True, metavar="NAME",
              help="Whose passes, kernels and costs to show: cpu, cuda, h100 ...")
@click.option("--predict", "others", multiple=True, metavar="NAME",
              help=f"Targets to predict the time of a run for, too; several times for several, 'none' for none. "
                   f"Default: {', '.join(OTHERS)}.")
@click.option("--measure", is_flag=True, help="Compile and run the module as well, and show what its kernels took.")
@click.option("--repeat", default=5, show_default=True, type=click.IntRange(1), metavar="N",
              help="With --measure: number of runs, of which the medians are shown.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures of the page as JSON.")
@fusion_option
@precision_options
@lenient_reading_options
def report_command(module, inputs, output, target, others, measure, repeat, as_json, fusion, precision,
                   reading) -> None:
    """Write a page about MODULE: its size and predicted time, its kernels with HLO, loop IR and C or CUDA C side by
    side, a roofline, memory over time, why kernels were not fused, what each pass changed, compile time, collectives.

    Nothing is compiled or run, but with --measure. --inputs are for that alone.
    """
    from hloc.api import Options
    from hloc.pages.report_page import report_page
    from hloc.targets import find
    from hloc.tools.report import make_report
    from hloc.verify.unverified import blaming_faults
    if output.suffix != ".html":
        raise UsageError(f"cannot write {output}: a report is a page", hint="name a FILE that ends with .html")
    check_target(output)
    chosen = find(target)
    names = [] if NONE in others else list(others or OTHERS)
    for name in names:
        find(name)
    with Progress() as progress:
        options = Options(progress=progress.report, passes=pass_options(fusion, precision=precision))
        with options.stage("parse"):
            parsed = for_devices(read_module(module, reading, progress), None, None, reading.strict)
        with blaming_faults(parsed, "hloc report"):
            taken = _measured(parsed, target, options, inputs, repeat) if measure else None
            told = make_report(parsed, chosen, options, title=module, others=names)
        if taken is not None:
            from hloc.tools.report import measured
            told = measured(told, *taken)
        progress.report("page")
        text = report_page(told)
        write(output, text)
    if as_json:
        click.echo(json.dumps({"output": str(output), **_as_json(told)}, indent=1))
        return
    click.echo(f"{output}: {counted(len(told.kernels), 'kernel')}, {size_text(len(text))}")


def _as_json(told) -> dict:
    """The figures of a Report. Times are in seconds of a run."""
    return {
        "target": told.target.name, "problem": told.problem or None, "instructions_read": told.read,
        "instructions": sum(len(c.instructions) for c in told.module.computations),
        "predicted": told.seconds, "measured": told.measured, "launches": told.launches, "bytes": told.moved,
        "flops": told.flops, "peak": told.program.peak if told.program else None,
        "other_targets": [{"target": o.name, "predicted": None if o.problem else o.seconds, "launches": o.launches,
                           "problem": o.problem or None} for o in told.others],
        "kernels": [{"name": k.name, "instructions": [i.name for i in k.instructions], "predicted": k.predicted,
                     "measured": k.measured, "bound": k.bound, "runs": k.runs, "bytes": k.bytes, "flops": k.flops}
                    for k in told.kernels],
        "reasons": [{"reason": r.reason, "edges": r.edges, "bytes": r.size} for r in told.reasons],
        "passes": [{"name": p.name, "seconds": p.seconds, "instructions": p.instructions} for p in told.passes],
        "collectives": [{"opcode": c.opcode, "axis": c.axis, "groups": c.groups, "instructions": c.instructions,
                         "bytes": c.size}
                        for c in told.collectives],
        "stages": told.stages,
    }


def _measured(module, target: str, options, inputs, repeat: int) -> tuple[float, dict[str, float], Any]:
    """Seconds of a run, those of each instruction's steps in it, and the options of the compilation."""
    import time
    from dataclasses import replace

    from hloc.api import compile
    from hloc.cli.profile_table import step_rows
    from hloc.tools.timings import Summary
    own = replace(options, profile=True, stages={}, units=[])
    arrays_of = input_reader(inputs, module)
    exe = compile(module, target, options=own)
    arrays = arrays_of(exe.parameters)
    options.report("run")
    exe(*arrays)
    exe.profile()
    times, calls = [], []
    for _ in range(repeat):
        start = time.perf_counter()
        exe(*arrays)
        times.append(time.perf_counter() - start)
        calls.append(exe.profile())
    steps: dict[str, float] = {}
    for row in step_rows(calls):
        name = row.step.instruction.name
        steps[name] = steps.get(name, 0.0) + row.seconds.median
    return Summary.of(times).median, steps, own
