"""Errors with a place in the user's text.

In: a message and, if known, the Span of the HLO text that it is about. Out: `str(error)` is the complete message,

    model.hlo:3:8: error: operands differ: f32[4,5] and f32[2]
      %s = f32[4,5] add(%a, %b)
           ^
      written at loss.py:7 (loss), called at train.py:30 (step)

The last line appears if the instruction has such metadata (hloc/source_lines.py).

Every error that a user can cause is an HlocError; `code` is the exit code of the command line (see EXIT_CODES).
Only hloc.cli prints and exits.
"""
from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from typing import NamedTuple

from hloc.source_lines import written_at

EXIT_CODES = {
    "ok": 0, "difference": 1, "usage": 2, "parse or verification": 3, "unsupported": 4, "compiler": 5, "run": 6,
}
LONGEST_SHOWN_LINE = 160


class Source:
    """One text with its name; offsets are counted in characters. tables: FileNames ... StackFrames of its module,
    once they are read."""

    __slots__ = ("name", "text", "tables", "_line_ends")

    def __init__(self, text: str, name: str = "<text>"):
        self.name = name
        self.text = text
        self.tables = ""
        self._line_ends: list[int] | None = None            # computed when a place is first looked up

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1, of a character offset."""
        offset = min(max(offset, 0), len(self.text))
        if self._line_ends is None:
            self._line_ends = [found.start() for found in re.finditer("\n", self.text)]
        line = bisect_left(self._line_ends, offset) + 1
        return line, offset - (self.text.rfind("\n", 0, offset) + 1) + 1

    def line(self, offset: int) -> int | str:
        """The line number of `offset`; for a source without lines another description of the place."""
        return self.position(offset)[0]

    def line_at(self, offset: int) -> str:
        """The whole line of text that holds `offset`, without its end."""
        offset = min(max(offset, 0), len(self.text))
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        return self.text[start:] if end < 0 else self.text[start:end]

    def place(self, offset: int) -> str:
        """The prefix of a message: name:line:column."""
        line, column = self.position(offset)
        return f"{self.name}:{line}:{column}"

    def written_at(self, start: int) -> str:
        """The line of the user's program, by the metadata in the line at `start`; "" without metadata."""
        line = self.line_at(start)
        _, found, metadata = line.rpartition("metadata={")
        return written_at(metadata, self.tables) if found else ""

    def excerpt(self, start: int, end: int) -> str:
        """The line at `start` and a caret below, cut to a readable width; "" for a source without lines."""
        if not self.text.strip():
            return ""
        _, column = self.position(start)
        line = printable(self.line_at(start).replace("\t", " "))
        width = max(1, min(end - start, len(line) - column + 1))
        first = max(0, column - LONGEST_SHOWN_LINE // 2) if len(line) > LONGEST_SHOWN_LINE else 0
        shown = line[first:first + LONGEST_SHOWN_LINE]
        width = min(width, max(1, len(shown) - (column - 1 - first)))
        return f"  {shown}\n  {' ' * (column - 1 - first)}^{'~' * (width - 1)}"


class Span(NamedTuple):
    """A range of a Source: characters start (inclusive) to end (exclusive)."""

    source: Source
    start: int
    end: int

    def __str__(self) -> str:
        return self.source.place(self.start)

    def excerpt(self) -> str:
        """The line of text, or another description of the place."""
        return self.source.excerpt(self.start, self.end)


def printable(text: str) -> str:
    """`text` with control characters replaced, so that hostile names cannot control a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cf") else c for c in text)


class HlocError(Exception):
    """Base of all errors that hloc raises on purpose. `message` is the bare text, `span` its place or None."""

    code = 3

    def __init__(self, message: str, span: Span | None = None, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.span = span
        self.hint = hint

    def __str__(self) -> str:
        place = f"{self.span}: " if self.span else ""
        text = f"{place}error: {printable_lines(self.message)}"
        if self.span and (excerpt := self.span.excerpt()):
            text += "\n" + excerpt
        if self.span and (place := self.span.source.written_at(self.span.start)):
            text += f"\n  written at {printable(place)}"
        if self.hint:
            text += f"\nhint: {self.hint}"
        return text


def printable_lines(text: str) -> str:
    """Like printable, but keeps line ends: compiler output has several lines."""
    return "\n".join(printable(line) for line in text.split("\n"))


class UsageError(HlocError):
    """The call is wrong: an unknown pass, target, option, or a file that cannot be read."""

    code = 2


class ParseError(HlocError):
    """The text is not HLO."""

    code = 3


class VerifyError(HlocError):
    """The text is HLO, but breaks one of its rules (shapes, attributes, references)."""

    code = 3


class UnsupportedError(HlocError):
    """A valid module that hloc cannot evaluate or compile; names the op, type or target."""

    code = 4


def elided_constant(span: Span | None) -> UnsupportedError:
    """The error if the value of `constant({...})` is needed."""
    return UnsupportedError("the text omits the value of this constant ({...})", span,
                            hint="print the module with large constants, or use generated values: --elided sensible:0")


class BuildError(HlocError):
    """The C or CUDA compiler failed or is missing."""

    code = 5


class RunError(HlocError):
    """A failure while running: wrong inputs, no device, out of memory."""

    code = 6
