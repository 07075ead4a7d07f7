"""The table of `hloc run --profile`: what each step took, the slowest first."""
from __future__ import annotations

from collections.abc import Sequence

import click

from hloc.cli.terminal import counted, line_of, print_table, source_json, source_of
from hloc.executable import StepTime
from hloc.source_lines import op_name


def slowest_first(steps: Sequence[StepTime]) -> list[StepTime]:
    """The steps that ran, by the time that they took."""
    return sorted((s for s in steps if s.runs), key=lambda s: -s.seconds)


def show_profile(steps: Sequence[StepTime], times: Sequence[float], top: int) -> None:
    """Print the table; `times` are the seconds of the calls over which the steps were counted."""
    calls, total = len(times), sum(s.seconds for s in steps)
    rows = slowest_first(steps)
    print_table(["ms/call", "share", "runs", "us/run", "GB/s", "GFLOP/s", "kernel", "instruction", "line", "source",
                 "from"], [_row(s, calls, total) for s in rows[:top]], right=(0, 1, 2, 3, 4, 5, 8))
    if len(rows) > top:
        rest = sum(s.seconds for s in rows[top:])
        click.echo(f"... and {len(rows) - top} more, {1e3 * rest / calls:.3f} ms/call (--top)")
    click.echo(f"{counted(len(rows), 'step')} took {1e3 * total / calls:.3f} ms of {1e3 * sum(times) / calls:.3f} ms "
               f"per call, over {counted(calls, 'call')}")


def _row(step: StepTime, calls: int, total: float) -> list[str]:
    return [f"{1e3 * step.seconds / calls:.3f}", f"{100 * step.seconds / max(total, 1e-12):.1f}%",
            f"{step.runs / calls:g}", f"{1e6 * step.seconds / step.runs:.1f}", _rate(step.bytes, step),
            _rate(step.flops, step), step.kernel[:32], _shown(step)[:52], str(line_of(step.instruction) or ""),
            source_of(step.instruction), _origin(step)[-48:]]


def _rate(amount: int, step: StepTime) -> str:
    """Billions per second; nothing where nothing was counted."""
    return f"{amount * step.runs / step.seconds / 1e9:.2f}" if amount and step.seconds > 0 else ""


def _shown(step: StepTime) -> str:
    return f"{step.instruction.name} = {step.instruction.shape.to_string(False)}"


def _origin(step: StepTime) -> str:
    return op_name(str(step.instruction.get("metadata", "")))


def profile_json(steps: Sequence[StepTime], calls: int) -> list[dict]:
    """The same for JSON: seconds and runs are those of one call on average; bytes and flops those of one run."""
    return [{"kernel": s.kernel, "instruction": s.instruction.name, "opcode": s.instruction.opcode,
             "shape": s.instruction.shape.to_string(False), "line": line_of(s.instruction),
             "source": source_json(s.instruction), "op_name": _origin(s),
             "seconds": s.seconds / calls, "runs": s.runs / calls, "bytes": s.bytes, "flops": s.flops}
            for s in slowest_first(steps)]
