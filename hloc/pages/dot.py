"""A Graph as text for Graphviz, and as SVG drawn by Graphviz's `dot`.

    dot_text(Graph(module))          digraph { ... }, computations as clusters
    svg_text(Graph(module))          the same drawn; an error where `dot` is not installed
"""
from __future__ import annotations

import html
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from hloc import processes
from hloc.errors import RunError, UsageError, printable
from hloc.ir import Computation, Instruction
from hloc.tools.graph import Graph, class_of, constants_in, edges_to, inlined

# Fill and text colours have a contrast of 7 and more; the classes are those of the page.
FILLS = {"parameter": "#e3e8ef", "constant": "#eceef1", "elementwise": "#d9ecff", "reduction": "#e7defc",
         "product": "#ffe2c6", "custom": "#fbdbe7", "movement": "#dff3ea", "control": "#fff3c2",
         "collective": "#cdeff2", "free": "#f5f6f8"}
DRAWN_SECONDS = 60
MOST_DRAWN = 3_000              # instructions; dot takes minutes for more
LONGEST_LABEL = 60


def dot_text(graph: Graph) -> str:
    """The whole graph; names are quoted, so that none ends a string."""
    lines = ["digraph {", '  graph [compound=true, fontname="monospace"];',
             '  node [shape=box, style=filled, fontname="monospace", fontsize=10];',
             '  edge [fontname="monospace", fontsize=8, color="#6b7686"];']
    shown = [(c, graph.of(c)) for c in graph.module.computations]
    without_box = {i for c, instructions in shown for i in inlined(instructions, c.root)}
    shown = [(c, [i for i in instructions if i not in without_box]) for c, instructions in shown]
    numbers = {i: f"n{n}" for n, i in enumerate(i for _, instructions in shown for i in instructions)}
    first = {c: numbers[instructions[-1]] for c, instructions in shown if instructions}
    most = max(graph.weights.values(), default=0)
    for n, (computation, instructions) in enumerate(shown):
        if instructions:
            lines += [f"  subgraph cluster_{n} {{", f"    label={_quoted(_title(computation, graph))};"]
            lines += [f"    {numbers[i]} [{_look(i, graph, most, without_box)}];" for i in instructions]
            lines.append("  }")
    for _, instructions in shown:
        for i in instructions:
            lines += [f"  {numbers[source]} -> {numbers[i]} [label={_quoted(value.shape.to_string(False))}];"
                      for source, value in edges_to(i, without_box) if source in numbers]
            lines += [f"  {first[c]} -> {numbers[i]} [style=dashed, label={_quoted('calls')}];"
                      for c in i.called_computations if c in first]
    return "\n".join([*lines, "}", ""])


def svg_text(graph: Graph) -> str:
    """The drawing. Raises RunError where `dot` is missing, fails, or takes longer than DRAWN_SECONDS; UsageError for
    more than MOST_DRAWN instructions."""
    count = sum(len(graph.of(c)) for c in graph.module.computations)
    if count > MOST_DRAWN:
        raise UsageError(f"a drawing of {count:,} instructions is not readable; at most {MOST_DRAWN:,} are drawn",
                         hint="--about NAME --radius N draws a part; FILE.html opens part by part")
    with TemporaryDirectory(prefix="hloc-") as folder:
        path = Path(folder) / "graph.dot"
        path.write_text(dot_text(graph), encoding="utf-8")
        try:
            done = processes.run(["dot", "-Tsvg", str(path)], DRAWN_SECONDS)
        except OSError:
            raise RunError("Graphviz's dot, which draws .svg, is not installed",
                           hint="apt install graphviz, or write FILE.html, which needs nothing") from None
        except processes.NotFinished as error:
            raise RunError(str(error), hint="--about NAME --radius N draws a part") from None
    if done.code != 0:
        raise RunError(f"dot failed: {done.errors.strip()[:500]}")
    return re.sub(r"<!DOCTYPE[^>]*>\s*", "", done.output, count=1)       # it names a file on a server


def _title(computation: Computation, graph: Graph) -> str:
    return ("ENTRY " if computation is graph.module.entry else "") + computation.name


def _look(i: Instruction, graph: Graph, most: float, without_box: set[Instruction]) -> str:
    """Attributes of a node. Boxes of what costs most are three times as high."""
    constants = constants_in(i, without_box)
    label = _quoted(i.name, f"{i.opcode} {i.shape.to_string(False)}", *filter(None, [constants]))
    look = f'label={label}, fillcolor="{FILLS[class_of(i)]}"'
    weight = graph.weights.get(i, 0)
    if weight and most:
        look += f", height={0.5 + (weight / most) ** 0.5:.2f}, tooltip={_quoted(f'{weight:.3g} {graph.unit}')}"
    return look


def _quoted(*lines: str) -> str:
    """A string of dot: its lines one below the other, with markup as characters."""
    shown = [printable(line) for line in lines]
    shown = [line if len(line) <= LONGEST_LABEL else line[:LONGEST_LABEL] + "..." for line in shown]
    escaped = [html.escape(line).replace("\\", "\\\\").replace('"', '\\"') for line in shown]
    return '"' + "\\n".join(escaped) + '"'
