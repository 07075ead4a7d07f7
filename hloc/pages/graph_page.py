"""A Graph as a page: a drawing that opens part by part, search, and details of the chosen instruction.

    graph_page(Graph(module), "model.hlo")       markup of a whole page

What the script draws is the JSON of `graph_data`; graph.js says what it does with it. Layouts are computed in the
browser by dagre, for one part at a time.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from hloc.errors import printable
from hloc.ir import Computation, Instruction
from hloc.ir.printer import print_instruction
from hloc.pages.page import LONGEST_TEXT, asset, page, text
from hloc.source_lines import op_name
from hloc.tools.graph import CLASSES, Graph, class_of, constants_in, edges_to, inlined, parts

LONGEST_SCOPE = 60


def graph_page(graph: Graph, title: str) -> str:
    """The whole page. title: what the module is called."""
    body = f"""<main class="graph">
{markup(title)}
<noscript><p>The graph is drawn by the script in this page; hloc graph -o FILE.svg writes a drawing without one.</p>
</noscript>
</main>"""
    scripts = [asset("dagre.min.js"), asset("graph.js"), asset("graph_main.js")]
    return page(f"graph of {title}", body, styles=[asset("graph.css")], scripts=scripts,
                data={"graph": graph_data(graph)})


def markup(title: str = "") -> str:
    """What stands around a drawing: with a title it is a page of its own, and its parts have ids."""
    legend = "".join(f'<li><span class="swatch {key}"></span> {text(name)}</li>' for key, name in CLASSES.items())

    def part(name: str) -> str:
        return f'class="{name}" id="{name}"' if title else f'class="{name}"'
    controlled = ' aria-controls="results"' if title else ""
    return f"""<header>
{f"<h1>{text(title)}</h1>" if title else ""}
<div class="controls" role="toolbar" aria-label="Graph">
<label>Search <input type="search" {part("search")} placeholder="name, opcode, shape, line"
 autocomplete="off"{controlled}></label>
<button type="button" {part("fold")}>Fold all</button>
<button type="button" {part("unfold")}>Unfold all</button>
<button type="button" {part("smaller")} aria-label="Zoom out">\N{MINUS SIGN}</button>
<button type="button" {part("larger")} aria-label="Zoom in">+</button>
<button type="button" {part("fit")}>Fit</button>
</div>
<p {part("said").replace('class="', 'class="faint ')} role="status" aria-live="polite"></p>
<ul {part("results")} aria-label="Search results"></ul>
</header>
<div {part("canvas")}></div>
<aside {part("details")} aria-label="Chosen instruction"></aside>
<footer><ul class="legend" aria-label="Colours">{legend}</ul>
<p class="faint">Arrow keys go to operands, users and neighbours; Enter opens and folds; / searches.
A node that ends with \N{HORIZONTAL ELLIPSIS} opens.</p></footer>"""


def graph_data(graph: Graph) -> dict[str, Any]:
    """What the script reads.

    strings       texts that many nodes share
    nodes         [name, opcode, shape, bytes, operands, computation, line, source, text, class, callees, weight, edges,
                  constants]: opcode, shape, source, class and constants are numbers of strings, operands of nodes,
                  callees of computations; edges alternate between the node of a source and that of a value
    computations  [name, parts]: a part is a number of a node or [title, [parts ...]]; what is in none has no box
    """
    strings = _Strings()
    shown = [(c, graph.of(c)) for c in graph.module.computations]
    shown = [(c, instructions) for c, instructions in shown if instructions]
    without_box = {i for c, instructions in shown for i in inlined(instructions, c.root)}
    numbers = {i: n for n, i in enumerate(i for _, instructions in shown for i in instructions)}
    computations = {c: n for n, (c, _) in enumerate(shown)}
    nodes = [_node(i, c, numbers, computations, strings, graph, without_box)
             for c, instructions in shown for i in instructions]
    return {"strings": strings.texts, "nodes": nodes, "unit": graph.unit, "entry": computations.get(graph.module.entry),
            "computations": [[_plain(c.name), _titled(parts(boxes), numbers)] for c, instructions in shown
                             for boxes in [[i for i in instructions if i not in without_box]]]}


class _Strings:
    """Numbers texts in the order in which they come."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def __call__(self, string: str) -> int:
        if string not in self._numbers:
            self._numbers[string] = len(self.texts)
            self.texts.append(_plain(string))
        return self._numbers[string]


def _node(i: Instruction, computation: Computation, numbers: dict, computations: dict, strings: _Strings,
          graph: Graph, without_box: set[Instruction]) -> list:
    callees = [computations[c] for c in i.called_computations if c in computations]
    source = "\n".join(map(str, i.written_at()))
    edges = [n for edge in edges_to(i, without_box) if edge[0] in numbers for n in map(numbers.get, edge)]
    return [_plain(i.name), strings(i.opcode), strings(i.shape.to_string(False)), i.shape.num_bytes,
            [numbers.get(o, -1) for o in i.operands], computations[computation], i.line or 0, strings(source),
            _plain(print_instruction(i, elide_constants=True)), strings(class_of(i)), callees,
            graph.weights.get(i, 0), edges, strings(constants_in(i, without_box))]


def _plain(string: str) -> str:
    shown = printable(string)
    return shown if len(shown) <= LONGEST_TEXT else shown[:LONGEST_TEXT] + " \N{HORIZONTAL ELLIPSIS}"


def _titled(items: list, numbers: dict[Instruction, int]) -> list:
    """The tree of parts with numbers for instructions, and a title for each list below the root."""
    return [numbers[item] if isinstance(item, Instruction) else [_title(item), _titled(item, numbers)]
            for item in items]


def _title(part: list) -> str:
    """The common scope of a part's frontend names, or else its most frequent opcodes."""
    inside = list(_instructions(part))
    names = (op_name(str(i.get("metadata", ""))) for i in inside)
    scope = _common_scope(filter(None, names))
    opcodes = Counter(i.opcode for i in inside if class_of(i) not in ("free", "parameter", "constant"))
    return _plain(scope)[-LONGEST_SCOPE:] or ", ".join(f"{n} {opcode}" for opcode, n in opcodes.most_common(2))


def _instructions(part: list) -> Iterator[Instruction]:
    for item in part:
        if isinstance(item, Instruction):
            yield item
        else:
            yield from _instructions(item)


def _common_scope(names: Iterable[str]) -> str:
    """jit(f)/layer_3 of jit(f)/layer_3/dot and jit(f)/layer_3/add."""
    common: list[str] | None = None
    for name in names:
        scope = name.split("/")[:-1]
        if common is None:
            common = scope
        else:
            same = next((n for n, (a, b) in enumerate(zip(common, scope)) if a != b), min(len(common), len(scope)))
            common = common[:same]
    return "/".join(common or [])
