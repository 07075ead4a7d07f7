"""Shows what a memory limit made a program do: arrays that are computed again or kept on the host."""
from __future__ import annotations

from collections.abc import Sequence

import click

from hloc.cli.terminal import counted, line_of, print_table, source_json, source_of
from hloc.tools.formatting import size_text, time_text


def show_saved(saved: Sequence, top: int) -> None:
    """A line with the totals, and a table of the largest arrays. saved: what Options.saved has received."""
    if not saved:
        return
    for how in dict.fromkeys(s.how for s in saved):
        these = [s for s in saved if s.how == how]
        click.echo(f"\n{how} for the limit: {counted(len(these), 'array')} of {size_text(sum(s.size for s in these))}, "
                   f"which takes about {time_text(sum(s.seconds for s in these))} a run")
    if top:
        rows = sorted(saved, key=lambda s: -s.size)
        print_table(["bytes", "how", "array", "shape", "line", "source", "kernels", "takes", "before"],
                    [[size_text(s.size), s.how, s.instruction.name, s.instruction.shape.to_string(False)[:40],
                      str(line_of(s.instruction) or ""), source_of(s.instruction), s.kernels or "",
                      time_text(s.seconds), s.reader.name] for s in rows[:top]], right=(0, 4, 6, 7))
        if len(saved) > top:
            click.echo(f"... and {len(saved) - top} more (--top)")


def saved_json(saved: Sequence) -> list[dict]:
    return [{"how": s.how, "name": s.instruction.name, "bytes": s.size, "line": line_of(s.instruction),
             "source": source_json(s.instruction), "kernels": s.kernels, "seconds": s.seconds, "reader": s.reader.name}
            for s in saved]
