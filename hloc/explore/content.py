"""What a pane shows, as the page reads it: text with links, tables, a graph, a curve, or a message.

    code("c", [("float t;", frozenset({3}))])   {"is": "code", "text": "float t;", "sets": [[3]], "lines": [0], ...}

A link is a line of the text in the editor, from 1: lines of different panes that come from the same one belong
together.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hloc.errors import HlocError, printable, printable_lines

MOST_CHARACTERS = 6_000_000        # of one pane's text; browsers take seconds for more
LONGEST_LINE = 5_000
MOST_ROWS = 5_000                  # of one table

Content = dict[str, Any]
Lines = frozenset[int]
NO_LINES: Lines = frozenset()


def code(language: str, lines: Iterable[tuple[str, Lines]], *, note: str = "",
         classes: Mapping[int, str] | None = None) -> Content:
    """Text, each line with the lines that it comes from. language: hlo, loops, c, cuda, ptx or assembly; classes: of
    lines, from 0, that went, came, moved or changed."""
    texts: list[str] = []
    sets: dict[Lines, int] = {}
    numbers: list[int] = []
    left = MOST_CHARACTERS
    for text, linked in lines:
        shown = printable(text.replace("\t", "    "))
        if len(shown) > LONGEST_LINE:
            shown = shown[:LONGEST_LINE] + " \N{HORIZONTAL ELLIPSIS}"
        left -= len(shown) + 1
        if left < 0:
            note = f"{note} Only the first {len(texts):,} lines are shown.".strip()
            break
        texts.append(shown)
        numbers.append(sets.setdefault(linked, len(sets)) if linked else -1)
    return {"is": "code", "language": language, "text": "\n".join(texts), "sets": [sorted(s) for s in sets],
            "lines": numbers, "classes": {str(n): name for n, name in (classes or {}).items()}, "note": note}


def plain(language: str, text: str, linked: Lines = NO_LINES, note: str = "") -> Content:
    """Text whose lines all come from the same lines."""
    return code(language, ((line, linked) for line in text.rstrip("\n").split("\n")), note=note)


class Row(tuple):
    """The cells of a row of a table, and the lines that it comes from."""

    lines: Lines

    def __new__(cls, cells: Iterable[object], lines: Lines = NO_LINES) -> Row:
        made = super().__new__(cls, cells)
        made.lines = lines
        return made


def table(title: str, columns: Sequence[str], rows: Sequence[Row], right: Sequence[int] = ()) -> Content:
    """One table. right: the columns of numbers."""
    return {"title": title, "columns": list(columns), "right": list(right), "more": max(0, len(rows) - MOST_ROWS),
            "rows": [{"cells": [printable(str(cell))[:LONGEST_LINE] for cell in row], "lines": sorted(row.lines)}
                     for row in rows[:MOST_ROWS]]}


def tables(parts: Sequence[Content], note: str = "") -> Content:
    return {"is": "tables", "parts": list(parts), "note": note}


def message(text: str, hint: str = "") -> Content:
    """Why there is nothing to see."""
    return {"is": "message", "text": printable_lines(text), "hint": printable(hint or "")}


def failure(error: BaseException) -> Content:
    """An exception as a message; one that is not hloc's own names its type alone."""
    if isinstance(error, HlocError):
        place = f"{error.span}: " if error.span is not None else ""
        return message(place + error.message, error.hint or "")
    if isinstance(error, MemoryError):
        return message("this needs more memory than hloc explore may take", "hloc explore --memory SIZE allows more")
    if isinstance(error, RecursionError):
        return message("this is nested too deeply")
    return message(f"{type(error).__name__}: this is an internal error of hloc, please report it",
                   "hloc reduce MODULE -o small.hlo makes a small module that shows it")
