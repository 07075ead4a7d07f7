"""What --time-passes shows: the seconds of each pass, and of each stage of the compilation."""
from __future__ import annotations

import json
from collections import defaultdict

import click


def show_times(timings: list, stages: dict[str, float], as_json: bool = False) -> None:
    """Two tables on stderr, or one JSON object. timings: of passes (hloc/passes/runner.py); stages: of Options."""
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
            for n, r in total.items()]}, indent=1), err=True)
        return
    click.echo(f"{'seconds':>9}  {'runs':>4}  {'changed':>7}  {'instructions':>12}  pass", err=True)
    for name, (seconds, runs, changed, count) in total.items():
        click.echo(f"{seconds:9.4f}  {runs:4}  {changed:7}  {count:12}  {name}", err=True)
    click.echo(f"{'seconds':>9}  stage", err=True)
    for name, seconds in stages.items():
        click.echo(f"{seconds:9.4f}  {name}", err=True)
    click.echo(f"{sum(stages.values()):9.4f}  total", err=True)
