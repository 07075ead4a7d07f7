"""hloc bench: programs in turn, percentiles, and which of two is faster."""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from hloc.cli.options import (
    INPUTS_HELP,
    Number,
    devices_option,
    fusion_option,
    mesh_option,
    pass_options,
    precision_options,
    reading_options,
    target_option,
)
from hloc.cli.run_devices import as_one, setting_for_compiled, setting_here
from hloc.cli.terminal import Progress, counted, input_reader, print_table, read_program, tell_of_gpu
from hloc.errors import UsageError
from hloc.inputs import Named

EPILOG = """\b
Examples:
  hloc bench model.hlo                                # one program: min, median, p90, p99
  hloc bench before.hlo after.hlo --inputs x.npy      # which is faster, with its 95% interval
  hloc bench model.hlo --against xla
  hloc bench model.so model.hlo --seconds 10 --json"""

ARRAYS = (".npy", ".npz")
SIDES = ("xla", "reference", "cpu", "cuda")


@click.command("bench", epilog=EPILOG)
@click.argument("modules", metavar="MODULE [MODULE ...]", nargs=-1, required=True, type=click.Path(allow_dash=True))
@click.option("--inputs", "-i", multiple=True, metavar="FILE ...", help=INPUTS_HELP)
@target_option
@click.option("--against", type=click.Choice(SIDES), help="Also run the first module with this implementation.")
@click.option("--seconds", default=3.0, show_default=True, type=Number(0.01, 3600), metavar="S",
              help="Seconds of all timed runs together; at least 10 rounds.")
@click.option("--rounds", type=click.IntRange(2, 1_000_000), metavar="N", help="Number of rounds (no --seconds).")
@click.option("--warm-up", default=3, show_default=True, type=click.IntRange(0), metavar="N",
              help="Number of untimed rounds before these.")
@click.option("--json", "as_json", is_flag=True, help="Print percentiles, verdicts and all times as JSON.")
@devices_option
@mesh_option
@fusion_option
@precision_options
@reading_options
def bench_command(modules, inputs, target, against, seconds, rounds, warm_up, as_json, devices, mesh, fusion, precision,
                  reading) -> None:
    """Run each MODULE (or .so or .cubin) in turn, round by round; print percentiles of the times, and whether each is
    faster than the first.

    The ratio is the median of the rounds' ratios, with a 95% interval from a bootstrap over the rounds. If the interval
    contains 1, or the two differ by less than 2%, the verdict is 'no difference'. All read the same inputs if
    their parameters have the same shapes; a note says if their results differ.
    """
    from hloc.tools.bench import Effort, bench
    paths = [m for m in modules if Path(m).suffix not in ARRAYS]
    given = (*inputs, *(m for m in modules if Path(m).suffix in ARRAYS))          # --inputs a.npy b.npy
    if not paths or (len(given) > len(inputs) and not inputs):
        raise UsageError(f"{modules[0]} is not a module", hint="inputs go to --inputs")
    with Progress() as progress:
        passes = pass_options(fusion, precision=precision)
        found = _contestants(paths, given, target, against, passes, reading, progress, devices, mesh)
        for each in found[1:]:
            _tell_differences(found[0], each)
        told = bench([each.contestant for each in found], Effort(seconds, rounds, warm_up), progress.report)
    names = [each.contestant.name for each in found]
    if as_json:
        click.echo(json.dumps(_as_json(names, told), indent=1))
    else:
        _show(names, told)


class Side(NamedTuple):
    """One of the programs that run in turn, and what is needed to compare its results."""

    contestant: Any
    parameters: Sequence[Named]
    results: Sequence[Named]
    arrays: list[np.ndarray]
    answers: Callable[[], Sequence[np.ndarray]]


def _contestants(paths: Sequence[str], inputs: Sequence[str], target: str, against: str | None, passes: dict, reading,
                 progress: Progress, devices: int | None, mesh: dict[str, int] | None) -> list[Side]:
    from hloc.api import Options, compile
    from hloc.executable import Executable
    found: list[Side] = []
    options = Options(progress=progress.report, passes=passes)
    programs = [read_program(path, reading, progress) for path in paths]
    if against and isinstance(programs[0], Executable):
        raise UsageError(f"--against compiles a module, but {paths[0]} is compiled")
    for path, program in zip(paths, programs):
        if isinstance(program, Executable):
            setting = setting_for_compiled(program, devices)
        else:
            setting = setting_here("hloc bench", program, devices, mesh, reading.strict)
        if setting.devices:
            if against:
                raise UsageError("--against runs programs of one device", hint="hloc bench takes several modules")
            exe = as_one(program, setting, target, options)
        else:
            exe = program if isinstance(program, Executable) else compile(program, target, options=options)
        tell_of_gpu(target, exe.target)
        alike = found and _types(found[0].parameters) == _types(exe.parameters)
        arrays = found[0].arrays if alike else input_reader(inputs, program)(exe.parameters)
        found.append(_side(_name(path, found), exe, arrays))
    if against:
        found.append(_other(against, found[0], programs[0], options))
    return found


def _side(name: str, exe, arrays: list[np.ndarray]) -> Side:
    from hloc.tools.bench import Contestant
    return Side(Contestant(name, lambda: exe(*arrays)), exe.parameters, exe.results, arrays, lambda: exe(*arrays))


def _other(against: str, first: Side, module, options) -> Side:
    """The first module on the side of --against. XLA's arguments are on its device before the timer starts."""
    from hloc.api import compile
    from hloc.tools.bench import Contestant
    if against != "xla":
        return _side(against, compile(module, against, options=options), first.arrays)
    from hloc.tools.xla import xla_runner
    program = xla_runner(module)
    placed = program.placed(first.arrays)
    return first._replace(contestant=Contestant("xla", lambda: program.execute(placed)),
                          answers=lambda: program(first.arrays))


def _name(path: str, found: Sequence[Side]) -> str:
    """The path; with a number if another program has the same name."""
    taken = [side.contestant.name for side in found]
    return path if path not in taken else f"{path} ({len(found) + 1})"


def _types(values: Sequence[Named]) -> list[str]:
    return [v.shape.to_string(False) for v in values]


def _tell_differences(first: Side, other: Side) -> None:
    """Print a note if two programs with the same inputs give different results."""
    from hloc.tools.compare import compare
    names = first.contestant.name, other.contestant.name
    if first.arrays is not other.arrays or _types(first.results) != _types(other.results):
        click.echo(f"note: {names[1]} has other shapes than {names[0]}: results are not compared", err=True)
        return
    wrong = [r.name for r in compare(first.results, other.answers(), first.answers()) if not r.agrees]
    if wrong:
        click.echo(f"note: {names[0]} and {names[1]} differ: {', '.join(wrong[:8])}; see hloc check", err=True)


def _show(names: Sequence[str], told) -> None:
    print_table(["program", "min ms", "median", "p90", "p99", "first call"],
                [[name, *(f"{1e3 * t:.3f}" for t in summary), f"{1e3 * warm_up[0]:.3f}" if warm_up else ""]
                 for name, summary, warm_up in zip(names, told.summaries, told.warm_up)], right=(1, 2, 3, 4, 5))
    rounds = counted(len(told.times[0]), "round")
    for number in range(1, len(names)):
        c = told.against_first(number)
        click.echo(f"{names[number]} takes {c.ratio:.3f} of the time of {names[0]} (95% interval {c.low:.3f} to "
                   f"{c.high:.3f}, {rounds}): {_verdict(c, names[0], names[number])}")
    if len(names) == 1:
        click.echo(rounds)


def _verdict(comparison, first: str, second: str) -> str:
    if comparison.winner is None:
        return "no difference beyond the noise"
    return f"{(first, second)[comparison.winner]} is faster"


def _as_json(names: Sequence[str], told) -> dict:
    from hloc.tools.timings import CONFIDENCE
    rows = [{"name": name, "percentiles": summary.named, "seconds": seconds, "warm_up_seconds": warm_up}
            for name, summary, seconds, warm_up in zip(names, told.summaries, told.times, told.warm_up)]
    verdicts = []
    for number in range(1, len(names)):
        c = told.against_first(number)
        faster = None if c.winner is None else (names[0], names[number])[c.winner]
        verdicts.append({"first": names[0], "second": names[number], "ratio": c.ratio, "low": c.low, "high": c.high,
                         "confidence": CONFIDENCE, "faster": faster})
    return {"rounds": len(told.times[0]), "programs": rows, "comparisons": verdicts}
