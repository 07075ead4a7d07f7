"""A Simulation as a page: totals, the timeline, traffic by axis and link, collectives, meshes, where figures come from.

    simulate_page(told, shapes)          markup of a whole page; it needs no script
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.analysis.asynchronous import base_of
from hloc.pages.page import Cells, asset, in_sections, page, rest_line, table, text
from hloc.pages.timeline_chart import timeline_chart
from hloc.tools.formatting import size_text, time_text
from hloc.tools.simulate.shapes import Shape
from hloc.tools.simulate.simulation import Simulation

MOST_ROWS = 200
NO_MESH = "none: the module was the program of one device as it was read"


def simulate_page(told: Simulation, shapes: Sequence[Shape] = ()) -> str:
    """shapes: of hloc simulate --table; the fastest is `told` then."""
    parts = [("summary", "Summary", summary(told)), ("shapes", "Meshes", shapes_section(shapes)),
             ("timeline", "Timeline of one device", timeline(told)), ("traffic", "Axes and links", traffic(told)),
             ("collectives", "Collectives", collectives(told)), ("cluster", "The cluster", cluster(told))]
    return page(f"simulation of {told.title}", in_sections(told.title, parts),
                styles=[asset("charts.css"), asset("report.css"), asset("simulate.css")])


def summary(told: Simulation) -> str:
    """The totals of a step."""
    line, memory = told.timeline, told.cluster.memory
    share = 100 / line.total if line.total else 0.0
    peak = size_text(told.peak) + (f" of {size_text(memory)}" if memory else "")
    rows: list[Cells] = [
        ("cluster", told.cluster.name), ("mesh", told.mesh_text or NO_MESH),
        ("devices", f"{told.devices:,}"), ("a step", time_text(line.total)),
        ("kernels", f"{time_text(line.kernels)}, {line.kernels * share:.0f}% of it"),
        ("exposed communication", f"{time_text(line.exposed)}, {line.exposed * share:.0f}% of it"),
        ("communication", time_text(line.communication)), ("sent by a device", size_text(int(told.sent))),
        ("peak memory of a device", peak + (": it does not fit" if told.fits is False else ""))]
    if told.unknown:
        rows.append(("counted as nothing", ", ".join(told.unknown)))
    return table("Summary", ("", ""), rows, "") + (
        '<p class="faint">Predicted: all devices run the same program, and one is replayed.</p>')


def shapes_section(shapes: Sequence[Shape]) -> str:
    """All meshes that were compared."""
    if not shapes:
        return ""
    names = list(shapes[0].mesh)
    rows: list[Cells] = []
    for shape in shapes[:MOST_ROWS]:
        sizes, told = [f"{shape.mesh[name]:,}" for name in names], shape.told
        if told is None:
            rows.append((*sizes, "", "", "", "", "", shape.problem))
            continue
        line = told.timeline
        rows.append((*sizes, time_text(line.total), time_text(line.kernels), time_text(line.exposed),
                     size_text(int(told.sent)), size_text(told.peak), "does not fit" if told.fits is False else ""))
    heads = (*names, "step", "kernels", "exposed", "sent by a device", "peak memory", "")
    return table("Meshes", heads, rows, "t" * (len(names) + 5) + "l")


def timeline(told: Simulation) -> str:
    """The chart and its key."""
    chart = timeline_chart(told.timeline.slices, told.timeline.total)
    if not chart:
        return ""
    key = "".join(f'<span class="{kind}"></span>{name}' for kind, name in (
        ("kernel", "kernels"), ("wait", "exposed communication"), ("transfer", "collectives"),
        ("rest", "further iterations of a loop")))
    return f'<p class="key">{key}</p><div class="wide">{chart}</div>'


def traffic(told: Simulation) -> str:
    """A row for each set of axes along which devices exchange; a column for each kind of link."""
    levels = [level.name for level in told.cluster.levels]
    rows = [(t.axes or "none", f"{t.groups:,}", f"{t.runs:,}", *(size_text(int(n)) if n else "" for n in t.sent),
             time_text(t.seconds), time_text(t.exposed)) for t in told.traffic[:MOST_ROWS]]
    heads = ("axes", "devices together", "collectives", *(f"over {name}" for name in levels), "time", "exposed")
    return table("Traffic", heads, rows, "l" + "t" * (4 + len(levels))) if rows else "<p>Nothing is sent.</p>"


def collectives(told: Simulation) -> str:
    """Those that take longest first."""
    longest = sorted(told.timeline.transfers.values(), key=lambda t: -t.seconds)
    rows = []
    for one in longest[:MOST_ROWS]:
        i, how = one.instruction, told.exchanges[one.instruction]
        rows.append((i.name, base_of(i), told.axes[i] or "none", f"{one.runs:,}", how.algorithm,
                     size_text(int(sum(how.sent))), time_text(one.seconds), time_text(one.exposed),
                     next(map(str, i.written_at()), "")))
    heads = ("collective", "what", "axes", "runs", "algorithm", "sent, each time", "time", "exposed", "source")
    if not rows:
        return ""
    return table("Collectives", heads, rows, "llltltttl") + rest_line(len(longest), MOST_ROWS, "collectives")


def cluster(told: Simulation) -> str:
    """Its links, and where the figures come from."""
    rows = [(level.name, f"{level.joins:,}", f"{level.bandwidth / 1e9:.4g} GB/s", time_text(level.latency),
             "the devices of a unit share a port" if level.shared else "a port for each device")
            for level in told.cluster.levels]
    heads = ("link", "joins", "in one direction", "latency", "")
    sources = [(name, said) for name, said in (told.cluster.sources or {}).items()]
    return (f"<p>{text(told.cluster.about)}</p>" + table("Links", heads, rows, "ltttl")
            + (table("Sources", ("figures", "source"), sources, "") if sources else ""))
