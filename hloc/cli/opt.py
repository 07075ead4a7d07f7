"""hloc opt: run passes, print HLO."""
from __future__ import annotations

import importlib
from contextlib import contextmanager
from pathlib import Path

import click

from hloc.cli.color import echo_code
from hloc.cli.opt_kernels import kernels_after_passes
from hloc.cli.options import (
    fusion_option,
    lenient_reading_options,
    memory_limit_option,
    mesh_option,
    module_argument,
    pass_options,
    precision_options,
)
from hloc.cli.pass_times import needs_times, show_times
from hloc.cli.terminal import Progress, print_table, read_module, warn
from hloc.errors import UsageError
from hloc.files import check_target, write

EPILOG = """\b
Examples:
  hloc opt model.hlo                                  # the whole CPU pipeline
  hloc opt model.hlo --dump-after fusion              # the module after that pass
  hloc opt model.hlo --passes=algebraic_simplifier,dce
  hloc opt model.hlo --dump-dir dumps -o optimized.hlo     # what each pass changed, and dumps/index.html
  hloc opt model.hlo --mesh data=4,model=2 --dump-after spmd_partitioner    # the program of one device
  hloc opt model.hlo --kernels                        # the loops that are printed as C
  hloc opt model.hlo --kernels --dump-after loop_schedules     # kernels that this pass changed
  hloc opt kernels.loop --kernels --passes=ssa_conversion      # of loop-IR text
  cat model.hlo | hloc opt - --time-passes > /dev/null"""


def _list_passes(ctx: click.Context, _param, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from hloc.passes.pipelines import ALL_PASSES
    from hloc.targets.cpu.vector_loops.pipeline import KERNEL_PASSES
    print_table(["pass", "what it does"], [[name, _first_line(f"hloc.passes.{name}")] for name in ALL_PASSES])
    click.echo()
    print_table(["pass on kernels", "what it does"],
                [[name, _first_line(one.__module__)] for name, one in KERNEL_PASSES.items()])
    ctx.exit()


def _first_line(module: str) -> str:
    """What a pass does: the first line of its module's docstring."""
    return (importlib.import_module(module).__doc__ or "").strip().splitlines()[0]


@click.command("opt", epilog=EPILOG)
@module_argument
@click.option("--passes", metavar="A,B", help="Run only these passes, in this order, instead of the pipeline.")
@click.option("--target", "-t", default="cpu", show_default=True, metavar="NAME",
              help="Run the pipeline of this target: cpu, cuda, h100 ...")
@click.option("--dump-before", multiple=True, metavar="PASS", help="Print the module before this pass, or 'all'.")
@click.option("--dump-after", multiple=True, metavar="PASS", help="Print the module after this pass, or 'all'.")
@click.option("--dump-dir", metavar="DIR", help="Write dumps to numbered files in this folder instead, those "
              "that differ from the one before, and an index page. Default: after all passes.")
@click.option("--time-passes", is_flag=True, help="Show the seconds of each pass, on stderr.")
@click.option("--kernels", is_flag=True, help="Print the kernels of the module as loop-IR text; the other options then "
              "name passes on kernels. MODULE may also be loop-IR text, in a file that ends with .loop.")
@click.option("--list-passes", is_flag=True, is_eager=True, expose_value=False, callback=_list_passes,
              help="List all passes and stop.")
@click.option("--output", "-o", metavar="FILE", help="The file for the module after the last pass; '-' is stdout "
              "(default, unless a dump is printed).")
@click.option("--json", "as_json", is_flag=True, help="With --time-passes: as JSON, on stderr.")
@mesh_option
@fusion_option
@precision_options
@memory_limit_option
@lenient_reading_options
def opt_command(module, passes, target, mesh, dump_before, dump_after, dump_dir, time_passes, kernels, output, as_json,
                fusion, precision, memory_limit, reading) -> None:
    """Run passes over MODULE ('-' for stdin) and print the result as HLO text."""
    from hloc.api import Options
    from hloc.passes.context import PassContext
    from hloc.passes.pipelines import ALL_PASSES, OVERLAP, PARTITIONING, PIPELINED, pipeline_for
    from hloc.passes.runner import flatten, named_passes, run_passes
    from hloc.targets import find
    from hloc.tools.explain import aimed
    from hloc.tools.pass_states import check_passes
    chosen = find(target)
    if output and output != "-":
        check_target(Path(output))
    if memory_limit is not None and (kernels or mesh or passes is not None):
        raise UsageError("--memory-limit is without --kernels, --mesh and --passes")
    if kernels:
        if dump_dir:
            raise UsageError("--dump-dir writes HLO; --kernels prints loop-IR text", hint="use -o FILE")
        _write(output or "-", kernels_after_passes(
            module, chosen, None if passes is None else _names(passes), dump_before, dump_after,
            Options(passes=pass_options(fusion, precision=precision)), reading, time_passes, as_json))
        return
    watched = {*dump_before, *dump_after}
    pipelined = not watched.isdisjoint(p.__name__ for p in flatten(PIPELINED))
    pipeline = pipeline_for(chosen.name, pipelined) if passes is None else named_passes(_names(passes), ALL_PASSES)
    context = PassContext(chosen.machine, chosen.name, pass_options(fusion, precision=precision), warn=warn,
                          strict=reading.strict)
    if mesh:
        pipeline = (*PARTITIONING, *pipeline)
        context.options = {**context.options, "mesh": mesh}
    if not watched.isdisjoint(p.__name__ for p in flatten(OVERLAP)):
        pipeline = (*pipeline, *OVERLAP)
    running = {p.__name__ for p in flatten(pipeline)}
    check_passes((name for name in (*dump_before, *dump_after) if name != "all"), running)
    if dump_dir and not (dump_before or dump_after):
        dump_after = ("all",)
    if as_json:
        needs_times(time_passes)
    timings: list = []
    dumps: list[str] = []
    options = Options()
    with Progress() as progress:
        with options.stage("parse"):
            parsed = read_module(module, reading, progress)
        if memory_limit is not None:
            context.options = aimed(parsed, chosen, {**context.options, "memory_limit": memory_limit})
        with options.stage("passes"), _dumping(dump_dir, parsed, module, dumps) as on_dump:
            run_passes(parsed, pipeline, context,
                       dump_before=dump_before, dump_after=dump_after, on_dump=on_dump, timings=timings,
                       progress=lambda name: progress.report(f"pass {name}"))
    for text in dumps:
        echo_code(text, "hlo")
    if output or not dumps:
        _write(output or "-", str(parsed))
    if time_passes:
        show_times(timings, options.stages, as_json)


@contextmanager
def _dumping(folder: str | None, module, name: str, dumps: list[str]):
    """Yield the function that takes each dump. It fills a folder, whose index is written even if a pass fails, or a
    list."""
    if folder is None:
        yield lambda title, text: dumps.append(f"// {title}\n{text}")
        return
    from hloc.pages.dump_folder import DumpFolder
    filled = DumpFolder(Path(folder), module, name)
    try:
        yield filled
    finally:
        filled.finish()


def _names(passes: str) -> list[str]:
    return [name.strip() for name in passes.split(",") if name.strip()]


def _write(output: str, text: str) -> None:
    if output == "-":
        echo_code(text, "hlo")
        return
    write(Path(output), text)
