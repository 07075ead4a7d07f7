"""hloc graph: a module as a graph: an HTML page, a drawing, or text for Graphviz."""
from __future__ import annotations

import json
from pathlib import Path

import click

from hloc.cli.options import fusion_option, lenient_reading_options, module_argument, pass_options, precision_options
from hloc.cli.terminal import Progress, counted, read_module
from hloc.errors import UsageError
from hloc.files import check_target, read, write

SUFFIXES = (".html", ".svg", ".dot")
LAST = "end"
MOST_PROFILE_BYTES = 1 << 26
EPILOG = """\b
Examples:
  hloc graph model.hlo -o model.html                       # for any browser
  hloc graph model.hlo -o fused.html --after end           # the optimized module: nodes are kernels
  hloc graph model.hlo -o part.html --about dot.7 --radius 3
  hloc graph model.hlo -o cost.html --after end --cost time
  hloc run model.hlo --profile --json > profile.json
  hloc graph model.hlo -o cost.html --after end --cost profile.json
  hloc graph model.hlo -o model.dot"""


@click.command("graph", epilog=EPILOG)
@module_argument
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="FILE.html: a page; FILE.dot: text for Graphviz; FILE.svg: a drawing by Graphviz's dot.")
@click.option("--after", metavar="PASS", help="Show the module after the last run of this pass; 'end': after all.")
@click.option("--target", "-t", default="cpu", show_default=True, metavar="NAME",
              help="Target whose passes run and whose costs are predicted: cpu, cuda, h100 ...")
@click.option("--about", metavar="NAME", help="Only this instruction and those around it.")
@click.option("--radius", default=3, show_default=True, type=click.IntRange(0, 1000), metavar="N",
              help="With --about: how many operands or users away.")
@click.option("--cost", metavar="time|bytes|flops|FILE", help="What makes a node larger: predicted time, bytes or "
              "flops of one execution; or times in a FILE that hloc run --profile --json printed.")
@click.option("--json", "as_json", is_flag=True, help="Print the number of nodes, and what --cost says, as JSON.")
@fusion_option
@precision_options
@lenient_reading_options
def graph_command(module, output, after, target, about, radius, cost, as_json, fusion, precision, reading) -> None:
    """Write MODULE as a graph: instructions are nodes in the colours of their kernels, arrays are edges."""
    from hloc.targets import find
    from hloc.tools.graph import Graph, neighbourhood
    if output.suffix not in SUFFIXES:
        raise UsageError(f"cannot write {output}: a graph is a page, a drawing or text for Graphviz",
                         hint="name a FILE that ends with .html, .svg or .dot")
    check_target(output)
    chosen = find(target)
    with Progress() as progress:
        parsed = read_module(module, reading, progress)
        if after is not None:
            from hloc.tools.pass_states import pass_states
            progress.report("passes")
            _, parsed = pass_states(parsed, chosen, pass_options(fusion, precision=precision),
                                    after=None if after == LAST else after)
        progress.report("graph")
        shown = neighbourhood(parsed, about, radius) if about is not None else None
        sizes, unit = _sizes(cost, parsed, chosen)
        graph = Graph(parsed, shown, sizes, unit)
        write(output, _text(graph, output.suffix, _title(module, after, about)))
    nodes = [(c, i) for c in parsed.computations for i in graph.of(c)]
    if as_json:
        click.echo(json.dumps({
            "output": str(output), "instructions": len(nodes), "unit": unit or None,
            "costs": [{"computation": c.name, "instruction": i.name, "cost": sizes[i]}
                      for c, i in nodes if i in sizes]}, indent=1))
        return
    click.echo(f"{output}: {counted(len(nodes), 'instruction')}")


def _title(module: str, after: str | None, about: str | None) -> str:
    state = "" if after is None else " after all passes" if after == LAST else f" after {after}"
    return module + state + (f", around {about}" if about else "")


def _sizes(cost: str | None, module, target):
    from hloc.tools.graph import measured, weights
    if cost is None:
        return {}, ""
    if cost in ("time", "bytes", "flops"):
        return weights(module, cost, target.machine)
    try:
        profile = json.loads(read(cost, MOST_PROFILE_BYTES))
    except OSError as error:
        raise UsageError(f"cannot read the profile {cost}: {error.strerror}",
                         hint="--cost time, bytes or flops needs no file") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{cost} is not JSON", hint="hloc run MODULE --profile --json > profile.json") from None
    return measured(module, profile), "seconds"


def _text(graph, suffix: str, title: str) -> str:
    if suffix == ".html":
        from hloc.pages.graph_page import graph_page
        return graph_page(graph, title)
    from hloc.pages.dot import dot_text, svg_text
    return svg_text(graph) if suffix == ".svg" else dot_text(graph)
