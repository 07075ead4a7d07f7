"""A timeline as SVG: kernels, waits and collectives of one device over time.

    timeline_chart(slices, total)        two rows: what the device does, what it sends
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence

from hloc.analysis.timeline import LOOP, TRANSFER, Slice
from hloc.pages.page import text
from hloc.tools.formatting import time_text

WIDTH, ROW, LEFT, RIGHT, TOP = 1000, 34, 110, 12, 8
HEIGHT = TOP + 2 * (ROW + 10) + 30
NARROW = 0.4                        # pixels: slices of a kind that are narrower and follow each other are drawn as one
TICKS = 6


def timeline_chart(slices: Sequence[Slice], total: float) -> str:
    """"" where nothing takes time."""
    if not total:
        return ""
    parts = [f'<svg class="chart timeline" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" '
             f'aria-label="Kernels, waits and collectives over {text(time_text(total))}">']
    for n in range(TICKS + 1):
        x = _x(total * n / TICKS, total)
        parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - 26}"/><text class="tick" x="{x}" '
                     f'y="{HEIGHT - 10}" text-anchor="middle">{text(time_text(total * n / TICKS))}</text>')
    for n, name in enumerate(("device", "communication")):
        parts.append(f'<text class="label" x="{LEFT - 8}" y="{_y(n) + ROW // 2 + 4}" text-anchor="end">{name}</text>')
    for s, names in _drawn(slices, total):
        left, right = _x(s.begin, total), _x(s.end, total)
        said = f"{names}, {time_text(s.end - s.begin)}"
        parts.append(f'<rect class="slice {s.kind}" x="{left}" width="{max(round(right - left, 2), NARROW)}" '
                     f'y="{_y(s.kind == TRANSFER)}" height="{ROW}"><title>{text(said)}</title></rect>')
    return "".join([*parts, "</svg>"])


def _x(seconds: float, total: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * seconds / total, 2)


def _y(row: int) -> int:
    return TOP + int(row) * (ROW + 10)


def _drawn(slices: Sequence[Slice], total: float) -> Iterator[tuple[Slice, str]]:
    """Those that have a width, with their names; runs of narrow ones as one."""
    least = NARROW * total / (WIDTH - LEFT - RIGHT)
    runs: dict[bool, list[Slice]] = {}

    def run(row: bool) -> Iterator[tuple[Slice, str]]:
        held = runs.pop(row, [])
        if held:
            whole = held[0]._replace(end=held[-1].end)
            yield whole, f"{len(held):,} {whole.kind}s" if len(held) > 1 else whole.title
    for s in slices:
        if s.kind == LOOP:
            continue
        row = s.kind == TRANSFER
        held = runs.get(row)
        if held and (held[0].kind != s.kind or s.begin - held[-1].end > least or s.end - held[0].begin > 2 * least):
            yield from run(row)
        if s.end - s.begin >= least:
            yield from run(row)
            yield s, s.title
        else:
            runs.setdefault(row, []).append(s)
    for row in list(runs):
        yield from run(row)
