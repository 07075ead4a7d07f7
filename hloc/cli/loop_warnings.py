"""The warnings of `explain` and `memory` about loops that copy whole arrays in each iteration."""
from __future__ import annotations

from collections.abc import Sequence

import click

from hloc.analysis.cost import main_operation
from hloc.cli.terminal import counted, line_of, source_json, source_of
from hloc.errors import printable
from hloc.ir import Instruction
from hloc.tools.formatting import size_text
from hloc.tools.loop_copies import CopyingLoop, LoopCopy

SHOWN = 5


def show_loop_copies(loops: Sequence[CopyingLoop]) -> None:
    """Print one warning per loop on stdout, with its largest copies."""
    for loop in loops[:SHOWN]:
        iterations = f", {counted(loop.trip_count, 'iteration')}" if loop.trip_count else ""
        kinds = " and ".join(k for k in ("copies", "rewrites") if any(c.kind == k for c in loop.copies))
        size = f"{size_text(loop.size)} in each iteration"
        click.echo(f"\nwarning: this loop {kinds} {size}: {_named(loop.instruction)}{iterations}")
        for copy in loop.copies[:SHOWN]:
            click.echo(f"  {size_text(copy.size)} because of {_because(copy)}")
        _rest(len(loop.copies), "copies")
    _rest(len(loops), "loops")


def _rest(count: int, what: str) -> None:
    if count > SHOWN:
        click.echo(f"  ... and {count - SHOWN} more {what} (--json)")


def _because(copy: LoopCopy) -> str:
    if copy.cause is None:
        return f"{_named(copy.source)}: it moves for the next iteration into memory that this iteration still reads"
    if copy.kind == "rewrites":
        return f"{_named(copy.cause)}: a {copy.cause.opcode} writes all of {_named(copy.source)} to change a part of it"
    reader = f", and {_named(copy.reader)} still reads it" if copy.reader else ""
    return f"{_named(copy.cause)}: it overwrites {_named(copy.source)}{reader}"


def _named(instruction: Instruction) -> str:
    """line 17 (dynamic-update-slice in fusion.1, loss.py:7 (loss))"""
    name = instruction.name
    if instruction.opcode == "fusion":
        name = f"{main_operation(instruction).opcode} in {name}"
    line, source = line_of(instruction), source_of(instruction)
    if line is None:
        return printable(f"{name}{source and f' ({source})'}")
    return printable(f"line {line} ({name}{source and f', {source}'})")


def loop_copies_json(loops: Sequence[CopyingLoop]) -> list[dict]:
    return [{"loop": loop.instruction.name, "line": line_of(loop.instruction), "turns": loop.trip_count,
             "bytes_per_turn": loop.size, "copies": [
                 {"kind": c.kind, "bytes": c.size, "array": _json(c.source), "cause": _json(c.cause),
                  "reader": _json(c.reader)} for c in loop.copies]} for loop in loops]


def _json(instruction: Instruction | None) -> dict | None:
    if instruction is None:
        return None
    return {"name": instruction.name, "line": line_of(instruction), "source": source_json(instruction)}
