"""HTML summaries for notebooks. Names come from strangers' files: every text is escaped.

    summary("executable f on cpu", [("parameters", parameters), ("results", results)])
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple, Protocol

from hloc.errors import printable
from hloc.ir.shapes import Shape

# Draws a module (hloc/pages/notebook.py). The package sets it, since this part does not import pages.
drawer: Callable[[Any], str] | None = None

SHOWN_ROWS = 30                     # of each table; a model may have thousands of parameters


class _Named(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> Shape: ...


class Row(NamedTuple):
    """A name and a shape."""

    name: str
    shape: Shape


def summary(title: str, tables: Iterable[tuple[str, Sequence[_Named]]]) -> str:
    """A title and a table of names and shapes for each of `tables`."""
    parts = [f"<div><b>{_text(title)}</b>"]
    for head, values in tables:
        rows = [f"<tr><td>{_text(v.name)}</td><td>{_text(v.shape.to_string(False))}</td></tr>"
                for v in values[:SHOWN_ROWS]]
        if len(values) > SHOWN_ROWS:
            rows.append(f"<tr><td>... {len(values) - SHOWN_ROWS:,} more</td><td></td></tr>")
        parts.append(f"<table><tr><th>{_text(head)} ({len(values):,})</th><th>shape</th></tr>{''.join(rows)}</table>")
    return "\n".join([*parts, "</div>"])


def drawing(module: Any) -> str:
    """The module as a graph; "" without one, or without the package's pages."""
    return drawer(module) if drawer is not None and module is not None else ""


def _text(text: str) -> str:
    return escape(printable(text))
