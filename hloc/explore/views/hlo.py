"""Panes of HLO: the module after a pass, what that pass changed, and the graph."""
from __future__ import annotations

from collections.abc import Iterator, Mapping

from hloc.errors import UsageError
from hloc.explore.content import NO_LINES, Content, Lines, code
from hloc.explore.work import Work, lines_of
from hloc.ir import Instruction, Module
from hloc.ir.printer import module_lines, print_instruction
from hloc.pages.diff_page import MARKS, Row, changed_parts, colour_of
from hloc.pages.graph_page import graph_data
from hloc.tools.diff import Difference, diff
from hloc.tools.graph import Graph

MOST_COMPARED = 60_000             # instructions of both modules


def after_pass(work: Work, chosen: Mapping[str, str]) -> Content:
    module = work.on(chosen["target"]).after(chosen["state"])
    note = f"{sum(len(c.instructions) for c in module.computations):,} instructions"
    return code("hlo", linked_lines(module), note=note)


def linked_lines(module: Module) -> Iterator[tuple[str, Lines]]:
    """The text of a module."""
    for text, instruction in module_lines(module, elide_constants=True):
        yield text, lines_of(instruction) if instruction is not None else NO_LINES


def difference(work: Work, chosen: Mapping[str, str]) -> Content:
    before, after = work.on(chosen["target"]).around(chosen["state"])
    count = sum(len(c.instructions) for m in (before, after) for c in m.computations)
    if count > MOST_COMPARED:
        raise UsageError(f"two modules of {count:,} instructions together take too long to compare",
                         hint=f"at most {MOST_COMPARED:,}")
    found = diff(before, after)
    counts = ", ".join(f"{kind} {number:,}" for kind, number in found.counts.items())
    classes: dict[int, str] = {}
    lines = list(_difference_lines(found, classes))
    return code("hlo", lines or [("No difference.", NO_LINES)], classes=classes,
                note=f"{found.matched:,} instructions are in both; {counts or 'no difference'}")


def _difference_lines(found: Difference, classes: dict[int, str]) -> Iterator[tuple[str, Lines]]:
    number = 0

    def line(text: str, linked: Lines = NO_LINES, kind: str = "") -> tuple[str, Lines]:
        nonlocal number
        if kind:
            classes[number] = kind
        number += 1
        return text, linked

    for detail in found.header:
        yield line(f"~ {detail.what}: {detail.before or 'none'} \N{RIGHTWARDS ARROW} {detail.after or 'none'}",
                   kind="changed")
    for title, rows in changed_parts(found):
        yield line(f"// {title}")
        for gap, row in rows:
            if gap:
                yield line(f"  // {gap:,} unchanged")
            if row is None:
                continue
            yield line(*_row(row))
            for detail in row.change.details if row.change is not None else ():
                yield line(f"      // {detail.what}: {detail.before or 'none'} \N{RIGHTWARDS ARROW} "
                           f"{detail.after or 'none'}", lines_of(row.instruction), colour_of(row.change))
        yield line("")


def _row(row: Row) -> tuple[str, Lines, str]:
    kind = colour_of(row.change)
    return f"{MARKS[kind] if kind else ' '} {_text(row.instruction)}", lines_of(row.instruction), kind


def _text(instruction: Instruction) -> str:
    return print_instruction(instruction, elide_constants=True).replace("\n", " ")


def graph(work: Work, chosen: Mapping[str, str]) -> Content:
    module = work.on(chosen["target"]).after(chosen["state"])
    return {"is": "graph", "data": graph_data(Graph(module)), "note": ""}
