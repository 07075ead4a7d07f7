"""Panes of figures: why kernels are as they are, what they would take on GPUs, and memory while a program runs."""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hloc.errors import HlocError
from hloc.explore.content import NO_LINES, Content, Lines, Row, table, tables
from hloc.explore.work import Optimized, Work, lines_of, own_line
from hloc.ir import Instruction
from hloc.ir.clone import clone_module
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.memory import Buffer, memory_over_time
from hloc.machine import Machine
from hloc.pages.charts import memory_chart
from hloc.targets.target import Target
from hloc.tools.explain import Explanation, explain, reason_text
from hloc.tools.formatting import size_text
from hloc.verify.unverified import blaming_faults

MOST_POINTS = 100_000              # instructions whose memory is told one by one
MOST_BUFFERS = 5_000
MOST_MEMBERS = 100                 # characters


# -- decisions ---------------------------------------------------------------------------------------------------------

def decisions(work: Work, chosen: Mapping[str, str]) -> Content:
    """Kernels, why they were not fused, and on a GPU the schedules that the cost model chose from."""
    done = work.on(chosen["target"])
    told = _explained(work, done.target)
    parts = [_kernels(told), _edges(told)]
    if done.target.machine.kind == "gpu":
        parts.append(_candidates(done, done.target.machine))
    kernels = "1 kernel" if len(told.kernels) == 1 else f"{len(told.kernels):,} kernels"
    note = f"{told.instructions:,} instructions became {kernels}"
    return tables(parts, note if not told.not_planned else f"{note}; not planned: {told.not_planned}")


def _explained(work: Work, target: Target) -> Explanation:
    module = clone_module(work.module)
    module.faults = work.module.faults
    with blaming_faults(module, "hloc explain"):
        return explain(module, target)


def _kernels(told: Explanation) -> Content:
    rows = [Row((k.instruction.name, k.kind, size_text(k.size), f"{k.flops:,}", " ".join(k.members)[:MOST_MEMBERS]),
                lines_of(k.instruction)) for k in told.kernels]
    return table("Kernels", ("kernel", "kind", "bytes", "flops", "holds"), rows, right=(2, 3))


def _edges(told: Explanation) -> Content:
    rows = [Row((size_text(e.size), e.producer.name, e.reader.name, reason_text(e)),
                own_line(e.producer) | own_line(e.reader)) for e in told.edges]
    return table("Arrays between kernels, and why these were not fused", ("bytes", "from", "to", "reason"), rows,
                 right=(0,))


class Candidate(NamedTuple):
    """One variant to compute a kernel, and its predicted time."""

    variant: str
    us: float
    bound: str


def _candidates(done: Optimized, gpu: Machine) -> Content:
    """Of each library kernel that can be cut in several variants, all of them; the first is the cost model's choice."""
    from hloc.targets.cuda.tiles.source import variants
    rows = []
    for number, kernel in enumerate(done.program.kernels):
        found = variants(kernel, gpu) if isinstance(kernel, Tile) else []
        for n, variant in enumerate(found if len(found) > 1 else ()):
            us, bound = _predicted(kernel, gpu, variant)
            rows.append(Row(("chosen" if n == 0 else "", kernel.name, variant, us, bound), done.kernel_lines(number)))
    return table("Schedules of library kernels", ("", "kernel", "schedule", "µs", "bound"), rows, right=(3,))


def _predicted(kernel: Kernel | Tile, gpu: Machine, variant: str) -> tuple[str, str]:
    """The predicted time of a schedule; "" where the cost model has none, as for NVIDIA's libraries."""
    from hloc.targets.cuda.costs.model import estimate
    from hloc.targets.cuda.costs.program import works_of_kernel
    from hloc.targets.cuda.tiles.source import CUDNN, LIBRARY
    if variant in (LIBRARY, CUDNN):
        return "", "not predicted"
    found = [estimate(work, gpu) for work in works_of_kernel(kernel, gpu, variant)]
    longest = max(found, key=lambda e: e.us)
    return f"{sum(e.us for e in found):,.1f}", longest.bound


# -- times -------------------------------------------------------------------------------------------------------------

def times(work: Work, chosen: Mapping[str, str]) -> Content:
    """Of each kernel on one GPU, and of the whole program on others."""
    from hloc.tools.gpu_times import WHAT_IF, program_times
    done = work.on(chosen["target"])
    own = program_times(done.program, done.target.machine)
    rows = [Row((f"{k.us * k.uses:,.1f}", k.uses, k.bound, k.name), _lines(k.instruction)) for k in own.kernels]
    others = [_whole(work, name) for name in dict.fromkeys((chosen["target"], *WHAT_IF))]
    return tables([table("The whole program", ("GPU", "µs", "kernels", "longest kernel"), others, right=(1, 2)),
                   table(f"Kernels on {own.gpu}", ("µs", "runs", "bound", "kernel"), rows, right=(0, 1))],
                  f"{own.us:,.1f} µs for a run on {own.gpu}")


def _whole(work: Work, name: str) -> Row:
    from hloc.tools.gpu_times import program_times
    try:
        done = work.on(name)
        found = program_times(done.program, done.target.machine)
    except HlocError as error:
        return Row((name, "", "", error.message))
    longest = found.kernels[0] if found.kernels else None
    return Row((name, f"{found.us:,.1f}", len(found.kernels), longest.name if longest else ""),
               _lines(longest.instruction if longest else None))


def _lines(instruction: Instruction | None) -> Lines:
    return lines_of(instruction) if instruction is not None else NO_LINES


# -- memory ------------------------------------------------------------------------------------------------------------

def memory(work: Work, chosen: Mapping[str, str]) -> Content:
    """Bytes of the arena at each instruction of the schedule, and the buffers with their lives."""
    done = work.on(chosen["target"])
    with blaming_faults(done.module, "the planner"):
        over = memory_over_time(done.module, done.target.machine, done.target.workspace)
    buffers = sorted(over.buffers, key=lambda b: -b.size)[:MOST_BUFFERS]
    points = over.instructions[:MOST_POINTS]
    return {"is": "memory", "chart": memory_chart(over.live, over.peak_at), "live": list(over.live[:MOST_POINTS]),
            "names": [i.name for i in points], "lines": [sorted(lines_of(i)) for i in points], "peak": over.peak_at,
            "buffers": [_buffer(b) for b in buffers],
            "note": f"at most {size_text(max(over.live, default=0))} in use, beside {size_text(over.outside)} of "
                    "parameters, results and constants"}


def _buffer(buffer: Buffer) -> Content:
    return {"name": buffer.name, "size": buffer.size, "first": buffer.first, "last": buffer.last,
            "lines": sorted(NO_LINES.union(*map(lines_of, buffer.instructions[:MOST_MEMBERS])))}
