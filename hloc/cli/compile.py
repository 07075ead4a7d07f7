"""hloc compile: write a compiled module to a file; the ending selects the form."""
from __future__ import annotations

from pathlib import Path

import click

from hloc.cli.color import echo_code
from hloc.cli.options import (
    devices_option,
    fusion_option,
    memory_limit_option,
    mesh_option,
    module_argument,
    pass_options,
    precision_options,
    reading_options,
    schedule_of,
    schedule_option,
    time_passes_option,
    tuning_option,
)
from hloc.cli.pass_times import needs_times, show_times
from hloc.cli.run_devices import for_devices
from hloc.cli.terminal import Progress, read_module
from hloc.errors import UsageError
from hloc.executable import HEADER_MARK, Executable, checked_name, is_own_header
from hloc.files import check_target, writing

EPILOG = """\b
Endings:
  .so     shared object, with a C header beside it; `hloc run model.so`
  .c      the same program as one C file, with the same header
  .cubin  CUDA kernels, plan and constants in one file; `hloc run model.cubin` on a GPU machine
  .cu     CUDA C;  .ptx  PTX;  .hlo  the optimized module
\b
Examples:
  hloc compile model.hlo -o model.so
  hloc compile model.hlo -o model.so --name encoder --march x86-64-v3
  hloc compile model.hlo -o model.so --mesh data=2,model=2 --communicator mpi
  hloc compile model.hlo -o model.cubin --target h200
  hloc compile model.hlo -o - --emit c"""

CUDA_ENDINGS = (".cubin", ".cu", ".ptx")
EMIT = {"c": ".c", "cuda": ".cu", "ptx": ".ptx", "hlo": ".hlo"}
LANGUAGES = {".c": "c", ".cu": "cuda", ".ptx": "text", ".hlo": "hlo"}       # by Pygments' names


@click.command("compile", epilog=EPILOG)
@module_argument
@click.option("--output", "-o", required=True, metavar="FILE", help="The file to write; '-' prints text (see --emit).")
@click.option("--emit", type=click.Choice(list(EMIT)),
              help="What '-o -' prints: the source of the kernels (default), PTX, or the optimized HLO.")
@click.option("--target", "-t", default=None, metavar="NAME",
              help="cpu, cuda, a GPU (h100, rtx4090 ...) or an architecture (sm_90a). Default: by FILE's ending.")
@click.option("--name", default="", metavar="NAME",
              help="With .so and .c: prefix of the C functions. Default: the file's name.")
@click.option("--host", type=click.Choice(["c"]),
              help="With .cubin: also a C program that loads and runs it over the CUDA driver API.")
@click.option("--march", default="native", show_default=True, metavar="CPU",
              help="The CPU to compile for, as the C compiler's -march names it: x86-64-v3, skylake ...")
@devices_option
@mesh_option
@click.option("--communicator", "communicators", type=click.Choice(["threads", "mpi"]), multiple=True,
              help="With .so and .c of several devices: also write the C files through which devices that are threads, "
                   "or MPI processes, exchange arrays.")
@time_passes_option
@click.option("--json", "as_json", is_flag=True, help="With --time-passes: as JSON, on stderr.")
@fusion_option
@precision_options
@memory_limit_option
@tuning_option
@schedule_option
@reading_options
def compile_command(module, output, emit, target, name, host, march, devices, mesh, communicators, time_passes, as_json,
                    fusion, precision, memory_limit, tuning, schedule, reading) -> None:
    """Compile MODULE ('-' for stdin) and write it to the file given with -o."""
    from hloc.api import Options, compile
    suffix = _suffix(output, emit, target)
    if as_json:
        needs_times(time_passes)
    if output != "-":
        check_target(Path(output))
    target = target or ("cuda" if suffix in CUDA_ENDINGS else "cpu")
    checked_name(name)
    with Progress() as progress:
        options = Options(progress=progress.report, passes=pass_options(fusion, memory_limit, precision), tuning=tuning,
                          march=march, schedule=schedule_of(schedule), timings=[])
        with options.stage("parse"):
            parsed = read_module(module, reading, progress)
        exe = compile(for_devices(parsed, devices, mesh, reading.strict), target, options=options, consume=True,
                      run=False)
        progress.report("write")
        _write(exe, output, suffix, name, host or "")
        for kind in communicators:
            _write_communicator(kind, output, suffix)
    if output != "-" and not as_json:
        click.echo(f"{output}: {Path(output).stat().st_size:,} bytes, target {exe.target}", err=True)
    if time_passes:
        show_times(options.timings or [], options.stages, as_json, options.units)


def _write(exe: Executable, output: str, suffix: str, name: str, host: str) -> None:
    if output == "-":
        if name or host:
            raise UsageError(f"{'--name' if name else '--host'} needs a file, not -o -")
        echo_code(exe.source if suffix in (".c", ".cu") else exe.text(suffix), LANGUAGES[suffix])
        return
    exe.save(output, name=name, host=host)


def _write_communicator(kind: str, output: str, suffix: str) -> None:
    """Its C files, beside the output."""
    from hloc.targets.cpu.program.export import communicator_sources
    if output == "-" or suffix not in (".so", ".c"):
        raise UsageError("--communicator goes with -o FILE.so and -o FILE.c")
    for name, text in communicator_sources(kind).items():
        with writing(Path(output).with_name(name), is_own=is_own_header) as file:
            file.write((HEADER_MARK + text).encode())


def _suffix(output: str, emit: str | None, target: str | None) -> str:
    if output != "-":
        if emit:
            raise UsageError("--emit needs -o -; the ending of a file selects its form")
        if not Path(output).suffix:
            raise UsageError(f"{output}: give a name with an ending (.so .c .cubin .cu .ptx .hlo)")
        return Path(output).suffix
    if emit:
        return EMIT[emit]
    return ".c" if target in (None, "cpu") else ".cu"
