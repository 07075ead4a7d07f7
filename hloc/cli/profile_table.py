"""The table of `hloc run --profile`: the time of each step, the slowest first."""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import click

from hloc.analysis.cost import main_operation
from hloc.cli.terminal import counted, line_of, print_table, source_json, source_of
from hloc.ir import Instruction
from hloc.run_trace import StepTime
from hloc.source_lines import op_name
from hloc.tools.timings import Summary


class StepRow(NamedTuple):
    """One step over several calls. seconds: percentiles of its total time per call; runs: per call."""

    step: StepTime
    main: Instruction
    seconds: Summary
    runs: float


def step_rows(calls: Sequence[Sequence[StepTime]]) -> list[StepRow]:
    """The steps that ran, the slowest first; calls: Executable.profile after each of them."""
    rows = [StepRow(same[-1], main_operation(same[-1].instruction), Summary.of([s.seconds for s in same]),
                    sum(s.runs for s in same) / len(same)) for same in zip(*calls) if any(s.runs for s in same)]
    return sorted(rows, key=lambda r: -r.seconds.median)


def show_runs(times: Sequence[float], warm_up: Sequence[float]) -> None:
    """Say how long several runs took, on stderr."""
    if len(times) > 1:
        before = f"; before them {', '.join(f'{1e3 * t:.3f} ms' for t in warm_up[:3])}" if warm_up else ""
        click.echo(f"{len(times)} runs: {Summary.of(times)}{before}", err=True)


def show_profile(calls: Sequence[Sequence[StepTime]], times: Sequence[float], top: int) -> None:
    """Print the table; `times` are the seconds of the calls."""
    rows = step_rows(calls)
    total = sum(r.seconds.median for r in rows)
    several = len(calls) > 1
    print_table(["ms/call", "p90" if several else "", "share", "operation", "line", "source", "runs", "us/run",
                 "predicted", "GB/s", "GFLOP/s", "kernel", "instruction", "from"],
                [_row(r, total, several) for r in rows[:top]], right=(0, 1, 2, 4, 6, 7, 8, 9, 10))
    if len(rows) > top:
        rest = sum(r.seconds.median for r in rows[top:])
        click.echo(f"... and {len(rows) - top} more, {1e3 * rest:.3f} ms/call (--top)")
    medians = ", medians" if several else ""
    click.echo(f"{counted(len(rows), 'step')} took {1e3 * total:.3f} ms of {1e3 * Summary.of(times).median:.3f} ms "
               f"per call, over {counted(len(calls), 'call')}{medians}")
    if any(r.step.predicted is not None for r in rows):
        predicted = sum(r.step.predicted * r.runs for r in rows if r.step.predicted is not None)
        click.echo(f"predicted for its kernels: {1e3 * predicted:.3f} ms per call")


def _row(row: StepRow, total: float, several: bool) -> list[str]:
    step, seconds = row.step, row.seconds.median
    return [f"{1e3 * seconds:.3f}", f"{1e3 * row.seconds.p90:.3f}" if several else "",
            f"{100 * seconds / max(total, 1e-12):.1f}%", _shown(row.main)[:52], str(line_of(row.main) or ""),
            _source(row), f"{row.runs:g}", f"{1e6 * seconds / row.runs:.1f}", _predicted(step), _rate(step.bytes, row),
            _rate(step.flops, row), step.kernel[:32], step.instruction.name[:32], _origin(row)[-48:]]


def _predicted(step: StepTime) -> str:
    return "" if step.predicted is None else f"{1e6 * step.predicted:.1f}"


def _rate(amount: int, row: StepRow) -> str:
    """Billions per second; "" if nothing was counted."""
    seconds = row.seconds.median
    return f"{amount * row.runs / seconds / 1e9:.2f}" if amount and seconds > 0 else ""


def _shown(main: Instruction) -> str:
    return f"{main.opcode} {main.name} {main.shape.to_string(False)}"


def _source(row: StepRow) -> str:
    return source_of(row.main) or source_of(row.step.instruction)


def _origin(row: StepRow) -> str:
    return next(filter(None, (op_name(str(i.get("metadata", ""))) for i in (row.main, row.step.instruction))), "")


def profile_json(calls: Sequence[Sequence[StepTime]]) -> list[dict]:
    """The same for JSON: seconds are the median per call, runs those of a call; bytes, flops and what was
    predicted, on GPUs, those of one run."""
    return [{"kernel": r.step.kernel, "instruction": r.step.instruction.name, "opcode": r.step.instruction.opcode,
             "shape": r.step.instruction.shape.to_string(False), "line": line_of(r.main),
             "operation": {"name": r.main.name, "opcode": r.main.opcode, "shape": r.main.shape.to_string(False)},
             "source": source_json(r.main) or source_json(r.step.instruction), "op_name": _origin(r),
             "seconds": r.seconds.median, "percentiles": r.seconds.named, "runs": r.runs, "bytes": r.step.bytes,
             "flops": r.step.flops, "predicted_seconds": r.step.predicted}
            for r in step_rows(calls)]
