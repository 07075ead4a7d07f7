"""A C function as hloc prints it, with what others must know of it: nobody looks for that in its text.

    c_function("k0_exp", ["void k0_exp(...) {", "  ...", "}"], printer)
      ->  .calls (("exp_f32", 1),)   .headers ("half_rows.h",)   .loops 1   .size 412
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hloc.targets.printer import StatementPrinter, comment


class CFunction(NamedTuple):
    """text: all of it, with the comments above it, the headers that it includes and the functions that only it calls.

    about     the line of HLO that it computes, as its comment says; "" for functions that kernels call
    calls     how often it calls each C function, without the prefix hloc_
    headers   the files that it includes
    loops     how many it has
    size      characters, without the comments above it and the functions of vectors, which compile in no time
    """

    name: str
    text: str
    about: str = ""
    calls: tuple[tuple[str, int], ...] = ()
    headers: tuple[str, ...] = ()
    loops: int = 0
    size: int = 0

    def changed(self, text: str) -> CFunction:
        """The function with another text that does the same."""
        return self._replace(text=text, size=self.size + len(text) - len(self.text))


def c_function(name: str, lines: Iterable[str], printer: StatementPrinter, *, headers: Sequence[str] = (),
               origin: Sequence[str] = (), vectors: Sequence[str] = ()) -> CFunction:
    """The function of these lines. printer: it has counted their calls and loops; headers: those that the lines
    include; origin, vectors: the comments and the functions of vectors among them."""
    text, about = "\n".join(lines), comment(origin)
    return CFunction(name, text, about[0][3:-3] if about else "", tuple(sorted(printer.calls.items())), tuple(headers),
                     printer.loops, len(text) - sum(len(line) + 1 for line in (*about, *vectors)))


def includes(headers: Iterable[str]) -> list[str]:
    return [f'#include "{header}"' for header in headers]
