"""A Report as a page: summary, kernels with their texts, passes with their diffs, charts, why kernels were not fused.

    report_page(make_report(module, find("cpu")))        markup of a whole page

Everything is there without a script; the script (report.js) links lines, and moves along the memory chart.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hloc.analysis.cost import main_operation
from hloc.errors import printable
from hloc.ir import Instruction
from hloc.pages import charts
from hloc.pages.charts import short
from hloc.pages.diff_page import sections
from hloc.pages.page import Cells, asset, in_sections, page, rest_line, table, text
from hloc.tools.explain import reason_text
from hloc.tools.formatting import size_text, time_text
from hloc.tools.report.kernels import KernelReport
from hloc.tools.report.lines import Line
from hloc.tools.report.report import PassReport, Report

MOST_PASS_ROWS = 500            # lines of one pass's diff
MOST_DIFF_CHARACTERS = 1_500_000    # of the diffs of all passes, as markup
MOST_ROWS = 200                 # of a table
MOST_DOTS = 400
MOST_BUFFERS = 20_000           # that the memory chart lets one look at
MOST_PLACES = 40                # buffers that are listed without a script


def report_page(told: Report) -> str:
    """The whole page."""
    parts = [("summary", "Summary", summary(told)), ("kernels", "Kernels", kernels_section(told)),
             ("roofline", "Roofline", roofline_section(told)), ("memory", "Memory over time", memory_section(told)),
             ("edges", "Why kernels were not fused", edges_section(told)), ("passes", "Passes", passes_section(told)),
             ("compiling", "Compile time", compile_section(told)),
             ("collectives", "Collectives", collectives_section(told)), ("texts", "Code of the kernels", texts(told))]
    return page(f"report on {told.title}", in_sections(told.title, parts), scripts=[asset("report.js")],
                data={"memory-data": memory_data(told)},
                styles=[asset("diff.css"), asset("charts.css"), asset("report.css")])


# -- summary -----------------------------------------------------------------------------------------------------------

def summary(told: Report) -> str:
    """Sizes of the module and of a run, and its predicted time on each target."""
    machine = told.target.machine
    after = sum(len(c.instructions) for c in told.module.computations)
    rows: list[Cells] = [("target", f"{told.target.name}" + (f" ({machine.name})" if machine.kind == "gpu" else "")),
                         ("instructions as read", f"{told.read:,}"),
                         ("instructions after the passes", f"{after:,}")]
    if told.program is not None:
        rows += [("kernels", f"{len(told.kernels):,}, launched {told.launches:,} times in a run"),
                 ("flops of a run", f"{short(told.flops)}flop"), ("bytes that kernels move", size_text(told.moved)),
                 ("peak memory", size_text(told.program.peak)), ("predicted time", time_text(told.seconds))]
    if told.measured is not None:
        rows.append(("measured time", time_text(told.measured)))
    parts = [table("Summary", ("", ""), rows, "")]
    if told.problem:
        parts.append(f"<p>There is no plan for this module, so there are no kernels: {text(told.problem)}</p>")
    if told.others:
        others = [(o.name, time_text(o.seconds) if not o.problem else "", f"{o.launches:,}" if not o.problem else "",
                   o.problem) for o in told.others]
        parts.append("<h3>Predicted time of a run</h3>" + table(
            "Predicted time by target", ("target", "time", "launches", ""), others, "ltt"))
        parts.append('<p class="faint">Each target has its own passes and kernels. Times of GPUs are by a model that '
                     "was fitted to an H200; those of the CPU are right to one digit.</p>")
    return "".join(parts)


# -- kernels -----------------------------------------------------------------------------------------------------------

def kernels_section(told: Report) -> str:
    """A row for each kernel, those that take longest first."""
    if not told.kernels:
        return ""
    has_times = any(k.measured is not None for k in told.kernels)
    whole = told.seconds or 1.0
    rows = [[_kernel_link(k), time_text(k.predicted), f"{100 * k.predicted / whole:.1f}%",
             *([time_text(k.measured) if k.measured is not None else ""] if has_times else []), f"{k.runs:,}", k.bound,
             size_text(k.bytes), short(k.flops).strip(), f"{k.intensity:.3g}", *_computes(k)]
            for k in told.kernels[:MOST_ROWS]]
    heads = ["kernel", "predicted", "share", *(["measured"] if has_times else []), "runs", "bound by", "bytes", "flops",
             "flops/byte", "computes", "source"]
    numeric = "ltt" + "t" * has_times + "tlttt" + "ll"
    return table("Kernels", heads, rows, numeric, raw=(0,)) + rest_line(len(told.kernels), MOST_ROWS, "kernels")


def _kernel_link(k: KernelReport) -> str:
    name = f"<code>{text(k.name)}</code>"
    return f'<a href="#k{k.number}">{name}</a>' if k.code else name


def _computes(k: KernelReport) -> tuple[str, str]:
    """The main operation of the first instruction, how many more there are, and where it was written."""
    first = k.instructions[0]
    main = main_operation(first)
    more = f" and {len(k.instructions) - 1:,} more" if len(k.instructions) > 1 else ""
    return f"{main.opcode} {first.name}{more}", _source(main) or _source(first)


def _source(instruction: Instruction) -> str:
    return next(map(str, instruction.written_at()), "")


def texts(told: Report) -> str:
    """HLO, loop IR and C, or CUDA C, of each kernel side by side."""
    language = "CUDA C" if told.target.machine.kind == "gpu" else "C"
    shown = [k for k in told.kernels if k.code]
    if not shown:
        return ""
    told_more = rest_line(len(told.kernels), len(shown), "kernels, without their texts")
    return ("<p>Point at a line, or choose it, to mark what it came from and what it became. "
            f"Up and down go through lines that can be chosen.</p>{''.join(_texts(k, language) for k in shown)}"
            f"{told_more}")


def _texts(k: KernelReport, language: str) -> str:
    columns = "".join(f'<div><h3>{title}</h3>{lines_markup(lines)}</div>'
                      for title, lines in (("HLO", k.hlo), ("Loop IR", k.loops), (language, k.code)))
    others = ", ".join(i.name for i in k.instructions[1:10]) + (", ..." if len(k.instructions) > 10 else "")
    shared = f'<p class="faint">It also computes {text(others)}.</p>' if others else ""
    return (f'<details class="kernel" id="k{k.number}"><summary><code>{text(k.name)}</code> '
            f'<span class="faint">{time_text(k.predicted)}, {text(k.instructions[0].name)}</span></summary>'
            f'{shared}<div class="sides">{columns}</div></details>')


def lines_markup(lines: Iterable[Line]) -> str:
    """A text whose lines report.js links by their keys."""
    return '<pre class="code lines">' + "".join(
        f'<span class="line" data-keys="{text(" ".join(line.keys))}">{text(line.text)}\n</span>' if line.keys
        else f'{text(line.text)}\n' for line in lines) + "</pre>"


# -- charts ------------------------------------------------------------------------------------------------------------

def roofline_section(told: Report) -> str:
    """The chart, of measured times or else of predicted ones."""
    if not told.kernels:
        return ""
    roof = told.roof
    roofs = [charts.Roof("f32", roof.flops)] + ([charts.Roof("bf16 tensor cores", roof.tensor)] if roof.tensor else [])
    chart = charts.roofline(_dots(told), roofs, roof.bytes)
    if not chart:
        return "<p>No kernel computes anything: they move data.</p>"
    without = sum(not k.flops for k in told.kernels)
    said = f" {without:,} kernels without flops are not shown." if without else ""
    nominal = "" if told.target.machine.kind == "gpu" else " The roof of a CPU is nominal."
    return (f'<p>A dot is a kernel, its size the share of the time. Memory gives {short(roof.bytes)}B/s.'
            f'{nominal}{said}{rest_line(len(told.kernels) - without, MOST_DOTS, "kernels")}</p>{chart}')


def _dots(told: Report) -> list[charts.Dot]:
    whole = sum(_seconds(k) for k in told.kernels) or 1.0
    return [charts.Dot(k.name, f"#k{k.number}" if k.code else "#kernels", k.intensity,
                       k.flops * k.runs / _seconds(k), _seconds(k) / whole,
                       "measured" if k.measured is not None else "predicted")
            for k in [k for k in told.kernels if k.flops][:MOST_DOTS] if _seconds(k) > 0]


def _seconds(k: KernelReport) -> float:
    return k.predicted if k.measured is None else k.measured


def memory_section(told: Report) -> str:
    """The chart, and the buffers at the peak, or where the reader goes."""
    over = told.memory
    if over is None:
        return ""
    chart = charts.memory_chart(over.live, over.peak_at)
    outside = f"<p>Parameters, results and constants take {size_text(over.outside)} all the time."
    if not chart:
        return outside + " No other array is kept in memory.</p>"
    alive = over.alive(over.peak_at)
    rows = [(size_text(b.size), b.region, b.name, b.instructions[0].shape.to_string(False) if b.instructions else "",
             _source(b.instructions[0]) if b.instructions else "") for b in alive[:MOST_PLACES]]
    last = len(over.live) - 1
    control = (f'<p class="controls"><label>Instruction <input type="range" id="instant" min="0" max="{last}" '
               f'value="{over.peak_at}"></label></p>')
    at = over.instructions[over.peak_at].name
    told_at = (f'<p id="instant-said" role="status">{over.peak_at:,}: {text(at)}, '
               f'{size_text(over.live[over.peak_at])} in use (the peak)</p>')
    notes = (" Loops and branches stand where they are called, once. Arrays of the region lent lie in the memory of "
             "results that are written later.</p>")
    return (outside + notes + chart + control + told_at
            + table("Buffers in use", ("bytes", "region", "buffer", "shape", "source"), rows, "tllll", key="buffers"))


def memory_data(told: Report) -> dict[str, Any]:
    """What the script shows of an instant: [bytes, region, name, shape, source, first, last] for each buffer."""
    over = told.memory
    if over is None or not over.buffers or len(over.buffers) > MOST_BUFFERS:
        return {}
    rows = [[b.size, b.region, plain(b.name), plain(b.instructions[0].shape.to_string(False)) if b.instructions else "",
             plain(_source(b.instructions[0])) if b.instructions else "", b.first, b.last] for b in over.buffers]
    return {"buffers": rows, "live": list(over.live), "names": [plain(i.name) for i in over.instructions],
            "most": MOST_PLACES}


def plain(value: str) -> str:
    """A text as scripts put it into a page: without characters that cannot be shown, and not too long."""
    return printable(value[:200])


# -- passes, edges, time, collectives ----------------------------------------------------------------------------------

def passes_section(told: Report) -> str:
    """The changes of each pass."""
    parts = [f"<p>{len(told.passes):,} of {len(told.timings):,} runs of passes changed the module.</p>"]
    left = MOST_DIFF_CHARACTERS
    for number, one in enumerate(told.passes):
        markup = _pass(number, one, left > 0)
        parts.append(markup)
        left -= len(markup)
    return "".join(parts)


def _pass(number: int, one: PassReport, has_room: bool) -> str:
    counts = ", ".join(f"{kind} {count:,}" for kind, count in one.found.counts.items()) if one.found else "not compared"
    if one.found is None or not one.found.changes:
        diff = "<p>No lines to show.</p>"
    elif not has_room:
        diff = "<p>This page is long enough: hloc opt --dump-dir writes the differences of all passes.</p>"
    else:
        diff = "".join(sections(one.found, MOST_PASS_ROWS))
    return (f'<details class="pass" id="pass-{number}"><summary><code>{text(one.name)}</code> <span class="faint">'
            f"{text(counts or 'names or order')}; {one.instructions:,} instructions, {time_text(one.seconds)}</span>"
            f"</summary>{diff}</details>")


def edges_section(told: Report) -> str:
    """The reasons why arrays go through memory."""
    if not told.edges:
        return ""
    reasons = [(r.reason, f"{r.edges:,}", size_text(r.size)) for r in told.reasons[:MOST_ROWS]]
    edges = [(size_text(e.size), *_end(e.producer, e.producer_kernel), *_end(e.reader, e.reader_kernel), reason_text(e))
             for e in told.edges[:MOST_ROWS]]
    size = size_text(sum(e.size for e in told.edges))
    return (f"<p>{len(told.edges):,} arrays, {size}, go from kernel to kernel through memory.</p>"
            + table("Reasons", ("reason", "arrays", "bytes"), reasons, "ltt")
            + "<details><summary>The largest arrays, each with its reason</summary>"
            + table("Arrays between kernels", ("bytes", "from", "source", "to", "source", "reason"), edges, "tlllll")
            + rest_line(len(told.edges), MOST_ROWS, "arrays") + "</details>")


def _end(instruction: Instruction, kernel: str) -> tuple[str, str]:
    name = instruction.name if kernel == instruction.name else f"{instruction.name} in {kernel}"
    return name, _source(instruction)


def compile_section(told: Report) -> str:
    """Seconds of stages, of passes, and of the C compiler for kernels."""
    stages = [(name, time_text(seconds)) for name, seconds in told.stages.items()]
    spent: dict[str, list] = {}
    for timing in told.timings:
        row = spent.setdefault(timing.name, [0.0, 0, 0])
        row[0] += timing.seconds
        row[1] += 1
        row[2] += timing.changed
    passes = [(name, time_text(row[0]), row[1], row[2]) for name, row in
              sorted(spent.items(), key=lambda item: -item[1][0])[:15]]
    parts = [table("Stages", ("stage", "time"), stages, "lt"), "<h3>The longest passes</h3>",
             table("Passes", ("pass", "time", "runs", "changed"), passes, "lttt")]
    compiled = sorted(told.compiling.items(), key=lambda item: -item[1])[:25]
    if compiled:
        parts += ["<h3>The C compiler, by kernel</h3>", table("Kernels", ("kernel", "estimated part"), [
            (name, time_text(seconds)) for name, seconds in compiled], "lt")]
    elif told.measured is not None:
        parts.append("<p>The C compiler compiled nothing: the program was in the cache.</p>")
    return "".join(parts)


def collectives_section(told: Report) -> str:
    """Collectives by kind and by group of devices."""
    if not told.collectives:
        return ""
    rows = [(r.opcode, r.axis, r.groups, f"{r.instructions:,}", size_text(r.size))
            for r in told.collectives[:MOST_ROWS]]
    heads = ("collective", "axis", "devices that work together", "number", "bytes on a device")
    return table("Collectives", heads, rows, "llltt")
