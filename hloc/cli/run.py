"""hloc run: a module or a compiled file, inputs from files, a table of results."""
from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from hloc.cli.bundled_flags import bundled_flags
from hloc.cli.custom_calls import custom_call_table
from hloc.cli.options import (
    custom_call_option,
    fusion_option,
    infeed_option,
    inputs_option,
    memory_limit_option,
    mesh_option,
    module_argument,
    outfeed_option,
    pass_options,
    precision_options,
    reading_options,
    recv_option,
    schedule_of,
    schedule_option,
    target_option,
    time_passes_option,
    transfers_of,
    tuning_option,
    write_transfers,
)
from hloc.cli.pass_times import show_times
from hloc.cli.profile_table import profile_json, show_profile, show_runs
from hloc.cli.run_devices import (
    Outcome,
    Setting,
    ending_all,
    joined_outcomes,
    run_on_devices,
    runs_whole,
    setting_for,
    show_outcomes,
)
from hloc.cli.run_trace import check_trace, write_device_traces, write_trace
from hloc.cli.terminal import Progress, input_reader, read_program, results_table, tell_of_gpu
from hloc.errors import UsageError
from hloc.tools.formatting import first_values

if TYPE_CHECKING:
    import numpy as np

    from hloc.executable import Executable
    from hloc.ir import Module

EPILOG = """\b
Examples:
  hloc run model.hlo --inputs x.npy
  hloc run model.hlo --inputs a.npy b.npy --output results.npz
  hloc run model.hlo --inputs random:7 --repeat 10
  hloc run model.hlo --bind weights.npz --inputs x.npy --repeat 10
  hloc run train.py:loss
  hloc run model.hlo --profile --repeat 20
  hloc run model.hlo --trace trace.json
  hloc run model.hlo --mesh data=4,model=2 --inputs x.npz
  hloc run sharded.hlo --devices 4 --inputs 'x.{device}.npy'
  hloc compile model.hlo -o model.so && hloc run model.so --inputs x.npy"""


@click.command("run", epilog=EPILOG)
@module_argument
@inputs_option
@click.option("--bind", "bound", multiple=True, metavar="FILE",
              help="Fix arguments once for all runs: an .npy or .npz file, by name if its names are parameters, "
                   "else for the first parameters. --inputs supplies the others; a GPU keeps the fixed ones.")
@click.option("--output", "-o", metavar="FILE", help="Write the results to an .npz (or, one result, an .npy) file.")
@target_option
@click.option("--devices", type=click.IntRange(1), metavar="N",
              help="Run on N devices, threads of this process, which exchange arrays in collectives; a module with "
                   "sharding annotations is partitioned. {device} in file names is the number of a device; other names "
                   "are of whole arrays. Default: the number in the module's header; under mpirun each process is one "
                   "device.")
@mesh_option
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1), metavar="N",
              help="Number of timed runs; prints the minimum, median, p90 and p99.")
@click.option("--warm-up", type=click.IntRange(0), metavar="N",
              help="Number of untimed runs before these. Default: 1 with --repeat or --profile, 0 with --infeed, "
                   "--recv or --outfeed.")
@click.option("--profile", is_flag=True,
              help="Show the time of each step instead of the results; on a GPU by the device's clock, beside what "
                   "was predicted.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE.json",
              help="Write when each step ran as Chrome trace events, which Perfetto opens: kernels by thread or "
                   "stream, copies, host calls, loops, memory in use.")
@click.option("--trace-iterations", "turns", default=20, show_default=True, type=click.IntRange(1, 1_000_000),
              metavar="N", help="With --trace: iterations of each loop that are shown one by one; the others are one "
              "slice, with the sums of its steps.")
@click.option("--top", default=30, show_default=True, type=click.IntRange(1), metavar="N",
              help="With --profile: number of steps listed.")
@time_passes_option
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@custom_call_option
@infeed_option
@recv_option
@outfeed_option
@fusion_option
@precision_options
@memory_limit_option
@tuning_option
@schedule_option
@reading_options
def run_command(module, inputs, bound, output, target, devices, mesh, repeat, warm_up, profile, trace, turns, top,
                time_passes, as_json, custom_calls, infeeds, received, outfeed, fusion, precision,
                memory_limit, tuning, schedule, reading) -> None:
    """Run MODULE (HLO text, a proto, or a .so or .cubin of `hloc compile`; '-' is stdin) and print its results.

    MODULE may be script.py:function, a function of JAX: the script, which is your own code, is run. Its
    example_arguments, or else the arrays of --inputs, are the examples that the function is traced on.

    Without --inputs, the arguments are those in a snapshot, else 'sensible:0'; a note says which.

    With --profile, the module is compiled with a timer around each step; figures are medians of the runs. With
    --trace, the time at which each step ran is written; warm-up runs are not in the file.
    """
    from hloc.api import Options
    from hloc.executable import Executable
    from hloc.inputs.files import check_output, write_outputs
    for name in filter(None, (output, outfeed)):
        check_output(Path(name))
    if trace is not None:
        check_trace(trace)
    transfers = transfers_of(infeeds, received)
    if module.endswith(".zip"):
        target, fusion, memory_limit, precision, reading = bundled_flags(module, target, fusion, memory_limit,
                                                                         precision, reading)
    with Progress() as progress:
        parsed = read_program(module, reading, progress, inputs)
        if isinstance(parsed, Executable):
            _for_compiled(module, parsed, target, {
                "--devices": devices if parsed.devices == 1 else None, "--mesh": mesh, "--profile": profile,
                "--trace": trace, "--time-passes": time_passes, "--custom-call": custom_calls, "--infeed": infeeds,
                "--recv": received, "--outfeed": outfeed, "--fusion off": fusion == "off",
                "--exact or --f32": precision, "--memory-limit": memory_limit, "--tuning": tuning,
                "--schedule": schedule, "--module": reading.choice, "--elided": reading.elided,
                "--size": reading.sizes, "--strict": reading.strict})
        options = Options(progress=progress.report, custom_calls=custom_call_table(custom_calls), transfers=transfers,
                          passes=pass_options(fusion, memory_limit, precision), profile=profile, tuning=tuning,
                          schedule=schedule_of(schedule), trace=turns if trace is not None else None,
                          timings=[] if time_passes else None)
        setting = setting_for(parsed, devices, mesh, reading.strict)
        if setting.devices:
            _for_one_device({"--outfeed": outfeed, "--infeed": infeeds, "--recv": received})
        if warm_up is None:
            warm_up = int((repeat > 1 or profile) and not (infeeds or received or outfeed))
        whole = _compiled_whole(setting, target, options, (*inputs, output or ""))
        several = bool(setting.devices) and whole is None
        if several:
            _for_one_device({"--bind": bound})
            outcomes = _run_on_several(parsed, setting, target, options, inputs, output, trace, module, repeat, warm_up)
        else:
            run = _run(parsed, target, options, inputs, trace, module, repeat, warm_up, bound, whole)
    if several:
        show_outcomes(outcomes, as_json, top)
    else:
        if output:
            write_outputs(Path(output), run.results)
        if outfeed:
            write_transfers(Path(outfeed), transfers)
        _show(run, as_json, top)
    if time_passes:
        show_times(options.timings or [], options.stages, as_json, options.units)


class Run(NamedTuple):
    """times: seconds of each call; warm_up: of the untimed calls; steps: seconds of each call's steps, with
    --profile."""

    exe: Executable
    results: tuple[np.ndarray, ...]
    times: list[float]
    warm_up: list[float]
    steps: list | None


def _compiled_whole(setting: Setting, target: str, options, names: Sequence[str]) -> Executable | None:
    """The program of all devices, from whole arrays to whole arrays; None where each device has arrays of its own, or
    its steps are timed. names: of inputs and results."""
    if options.times_steps or not runs_whole(setting, names):
        return None
    from hloc.parallel import compile_divided
    assert setting.divided is not None                           # as runs_whole says
    return compile_divided(setting.divided, target, options)


def _run_on_several(parsed: Module, setting: Setting, target: str, options, inputs, output: str | None,
                    trace: Path | None, path: str, repeat: int, warm_up: int) -> list[Outcome]:
    """What each device gives, or all together; an MPI process that fails ends the others. A trace is of one run."""
    if trace is not None:
        _for_one_device({"--repeat and --trace": repeat > 1, "--profile and --trace": options.profile})
        warm_up = 0
    with ending_all(setting.devices):
        outcomes = run_on_devices(parsed, setting, target, options, inputs, output, repeat, warm_up)
        if trace is not None:
            write_device_traces(trace, outcomes, path)
        return outcomes if options.profile and not output else joined_outcomes(setting, outcomes, output)


def _run(parsed, target: str, options, inputs, trace: Path | None, path: str, repeat: int, warm_up: int,
         bound: tuple[str, ...], compiled: Executable | None) -> Run:
    """compiled: what runs, where it is not what `parsed` becomes on one device; trace: the file of --trace."""
    from hloc.api import compile
    from hloc.executable import Executable
    from hloc.inputs import entry_parameters
    from hloc.inputs.files import read_bound
    arrays_of = input_reader(inputs, parsed)                      # before the module is compiled in place
    if compiled is not None:
        parameters = compiled.parameters
    else:
        parameters = parsed.parameters if isinstance(parsed, Executable) else entry_parameters(parsed)
    fixed = read_bound([Path(name) for name in bound], parameters) if bound else {}
    if compiled is not None or isinstance(parsed, Executable):
        exe = compiled or parsed
    else:
        exe = compile(parsed, target, options=replace(options, bound=frozenset(fixed)), consume=True)
    if exe is not parsed:
        tell_of_gpu(target, exe.target)
    exe, arrays = _with_arrays(exe, arrays_of, inputs, fixed)
    options.report("run")
    steps: list | None = [] if options.profile else None
    traces: list | None = [] if options.trace is not None else None
    _, before = _timed(exe, arrays, warm_up, steps, traces)
    for noted in (steps, traces):
        if noted:
            noted.clear()
    results, times = _timed(exe, arrays, repeat, steps, traces)
    if trace is not None:
        write_trace(trace, exe, traces or [], path)
    return Run(exe, results, times, before, steps)


def _with_arrays(exe: Executable, arrays_of: Callable, inputs: Sequence[str], fixed: dict[int, np.ndarray],
                 ) -> tuple[Executable, list[np.ndarray]]:
    """The executable with the arguments of --bind, and arrays for its other parameters. Generated arrays and
    those in the module's file are for all parameters: those of bound parameters are dropped."""
    from hloc.inputs.files import generator_rule
    if not fixed:
        return exe, arrays_of(exe.parameters)
    free = [n for n in range(len(exe.parameters)) if n not in fixed]
    if inputs and not generator_rule(inputs[0]):
        return exe.bind(fixed), arrays_of([exe.parameters[n] for n in free])
    arrays = arrays_of(exe.parameters) if free else []
    return exe.bind(fixed), [arrays[n] for n in free]


def _show(run: Run, as_json: bool, top: int) -> None:
    from hloc.tools.timings import Summary
    summary = Summary.of(run.times)
    if as_json:
        told = {"seconds": run.times, "warm_up_seconds": run.warm_up, "percentiles": summary.named, "results": [
            {"name": v.name, "type": v.shape.element_type, "shape": list(a.shape), "first": first_values(a)}
            for v, a in zip(run.exe.results, run.results)]}
        click.echo(json.dumps(told | ({"profile": profile_json(run.steps)} if run.steps else {}), indent=1))
    elif run.steps:
        show_profile(run.steps, run.times, top)
    else:
        results_table(run.exe.results, run.results)
    if not as_json:
        show_runs(run.times, run.warm_up)


def _for_compiled(path: str, exe: Executable, target: str, options: dict[str, object]) -> None:
    """Raise UsageError for options that apply only when a module is compiled."""
    given = next((name for name, value in options.items() if value), None)
    if given is None and target != "auto" and (target == "cpu") != (exe.target == "cpu"):
        given = f"--target {target}"
    if given:
        raise UsageError(f"{given} applies to modules, but {path} is already compiled, for target {exe.target}",
                         hint="run the module that it was compiled from")


def _for_one_device(options: dict[str, object]) -> None:
    given = next((name for name, value in options.items() if value), None)
    if given:
        raise UsageError(f"{given} is for runs on one device")


def _timed(exe, arrays, repeat: int, steps: list | None, traces: list | None) -> tuple:
    """The results of the last of `repeat` calls, and the seconds of each; `steps` receives the times of the steps,
    `traces` when they ran."""
    times, results = [], None
    for _ in range(repeat):
        start = time.perf_counter()
        results = exe(*arrays)
        times.append(time.perf_counter() - start)
        if steps is not None:
            steps.append(exe.profile())
        if traces is not None:
            traces.append(exe.trace())
    return results, times
