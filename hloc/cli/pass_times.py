"""The tables of --time-passes: seconds of each pass, of each stage, and of each call of the C compiler."""
from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

import click

from hloc.cli.terminal import counted
from hloc.errors import UsageError, printable

SHOWN_UNITS, SHOWN_KERNELS = 8, 12
LEAST_SECONDS = 0.005                  # units that took less are not listed: they came from the cache


def needs_times(asked: bool) -> None:
    """Raise UsageError for --json without --time-passes."""
    if not asked:
        raise UsageError("--json prints the table of --time-passes, which is not given", hint="add --time-passes")


def show_times(timings: list, stages: dict[str, float], as_json: bool = False, units: Sequence = ()) -> None:
    """Print tables on stderr, or one JSON object. timings: of passes (hloc/passes/runner.py); stages, units: of
    Options."""
    total: dict[str, list] = defaultdict(lambda: [0.0, 0, 0, 0])
    for t in timings:
        row = total[t.name]
        row[0] += t.seconds
        row[1] += 1
        row[2] += t.changed
        row[3] = t.instructions
    if as_json:
        click.echo(json.dumps({"stages": stages, "passes": [
            {"pass": n, "seconds": r[0], "runs": r[1], "changed": r[2], "instructions": r[3]}
            for n, r in total.items()]} | _units_json(units), indent=1), err=True)
        return
    click.echo(f"{'seconds':>9}  {'runs':>4}  {'changed':>7}  {'instructions':>12}  pass", err=True)
    for name, (seconds, runs, changed, count) in total.items():
        click.echo(f"{seconds:9.4f}  {runs:4}  {changed:7}  {count:12}  {name}", err=True)
    click.echo(f"{'seconds':>9}  stage", err=True)
    for name, seconds in stages.items():
        click.echo(f"{seconds:9.4f}  {name}", err=True)
    click.echo(f"{sum(stages.values()):9.4f}  total", err=True)
    if "compiler" in stages:
        _show_units(units)


def _show_units(units: Sequence) -> None:
    """Print the slowest units of the C compiler, then the slowest kernels."""
    long = sorted((u for u in units if u.seconds >= LEAST_SECONDS), key=lambda u: -u.seconds)
    if not any(u.kernels for u in long):
        click.echo("no kernel was compiled: the program was in the cache, or another compiler made it", err=True)
    if long:
        click.echo(f"{'seconds':>9}  call of the C compiler", err=True)
    for unit in long[:SHOWN_UNITS]:
        holds = f"  {counted(len(unit.kernels), 'kernel')}" if unit.kernels else ""
        click.echo(f"{unit.seconds:9.4f}  {unit.name}{holds}", err=True)
    if kernels := sorted((k for u in long for k in u.kernels), key=lambda k: -k.seconds)[:SHOWN_KERNELS]:
        click.echo(f"{'seconds':>9}  kernel (estimated part of its unit)", err=True)
    for kernel in kernels:
        click.echo(f"{kernel.seconds:9.4f}  {kernel.name[:40]:40}  {printable(kernel.about[:100])}".rstrip(), err=True)


def _units_json(units: Sequence) -> dict:
    return {"units": [{"unit": u.name, "seconds": u.seconds, "kernels": [
        {"kernel": k.name, "instruction": k.about, "estimated_seconds": k.seconds} for k in u.kernels]}
        for u in sorted(units, key=lambda u: -u.seconds)]}
