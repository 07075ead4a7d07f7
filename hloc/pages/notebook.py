"""A module's graph in a cell of a notebook: the page of `hloc graph` in a frame of its own.

    frame(module)       <iframe sandbox="allow-scripts" srcdoc="...">, or a sentence for a module that is too large

The page's script runs inside of the frame, apart from the notebook and from other cells.
"""
from __future__ import annotations

from hloc.ir import Module
from hloc.pages.graph_page import graph_page
from hloc.pages.page import quoted, text
from hloc.tools.graph import Graph

MOST_INSTRUCTIONS = 2_000           # a page of more would make the notebook's file large: 90 KiB and 0.25 KiB for each
HEIGHT = 420                        # pixels


def frame(module: Module) -> str:
    """Markup for a cell's output."""
    count = sum(len(c.instructions) for c in module.computations)
    if count > MOST_INSTRUCTIONS:
        return f"<p>{count:,} instructions are too many to draw here: hloc graph writes a page of them.</p>"
    page = quoted(graph_page(Graph(module), module.name))
    return (f'<iframe title="graph of {text(module.name)}" width="100%" height="{HEIGHT}" sandbox="allow-scripts" '
            f'srcdoc="{page}"></iframe>')
