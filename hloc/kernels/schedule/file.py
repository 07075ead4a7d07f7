"""A file of schedules: what `hloc explain --schedule` prints, and `--schedule FILE` reads.

    // k0_reduce_add.0: 77 iterations; 13 schedules, by predicted cycles
    //     6.7  vectorize(i1,16)
    //     7.2  vectorize(i1,8)
    k0_reduce_add.0 vectorize(i1,16)

A line holds a kernel's C function, the number of one of its loops that have schedules, or r and the number of one over
rows that are reduced (on a GPU a kernel has one schedule, number 0), and the steps. Text behind // is a comment. Loops
that a file does not name have the schedules that hloc chooses.
"""
from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from hloc.errors import ParseError, Source, Span
from hloc.kernels.schedule.choice import Candidate
from hloc.kernels.schedule.steps import Refused, Step, read_steps, steps_text

ROWS = "r"                      # before the numbers of loops over rows
_LINE = re.compile(rf"(\w+)\.({ROWS}?)(\d{{1,6}})\s+(.*)")


class Given(NamedTuple):
    """The steps of one loop, and where a file has them."""

    steps: tuple[Step, ...]
    span: Span


def read_schedules(source: Source) -> dict[str, Given]:
    """The schedules of a file by their loops' names: k0_reduce_add.0. Raises ParseError."""
    found: dict[str, Given] = {}
    start = 0
    for line in source.text.splitlines(keepends=True):
        text = line.partition("//")[0].rstrip()
        begin = start + len(text) - len(text.lstrip())
        span, start = Span(source, begin, start + max(len(text), 1)), start + len(line)
        if not text.strip():
            continue
        match = _LINE.fullmatch(text.strip())
        if match is None:
            raise ParseError("not a schedule: write KERNEL.LOOP STEP STEP ..., as hloc explain --schedule does", span)
        name = f"{match[1]}.{match[2]}{int(match[3])}"
        if name in found:
            raise ParseError(f"a second schedule of {name}", span)
        try:
            found[name] = Given(read_steps(match[4]), span)
        except Refused as error:
            raise ParseError(str(error), span) from None
    if not found:
        raise ParseError("a file of schedules that has none", Span(source, 0, 1))
    return found


def refuse_unknown(given: Mapping[str, Given], names: Iterable[str]) -> None:
    """Raise ParseError for a schedule of a loop that there is not."""
    known = list(names)
    for name, one in given.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ParseError(f"no loop {name} with a schedule in this program", one.span,
                             hint=f"did you mean {near[0]}?" if near else "hloc explain --schedule lists them")


def schedule_text(name: str, about: str, ranked: list[Candidate], chosen: tuple[Step, ...], most: int,
                  unit: str = "cycles") -> str:
    """The lines of one loop: the cheapest `most` schedules as comments, and the chosen one. about: its iterations."""
    count = "1 schedule" if len(ranked) == 1 else f"{len(ranked)} schedules"
    lines = [f"// {name}: {about}; {count}, by predicted {unit}",
             *(f"// {one.cycles:7.{1 if unit == 'cycles' else 2}f}  {one.text}" for one in ranked[:most])]
    return "\n".join([*lines, f"{name} {steps_text(chosen)}"])
