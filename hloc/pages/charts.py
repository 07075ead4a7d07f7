"""Charts as SVG in a page, drawn here: no script is needed to see or to print them; scripts may add to them.

    roofline([Dot("fusion.1", "#k1", 4.0, 2e12, 0.3), ...], [Roof("f32", 67e12)], 3.3e12)
    memory_chart(live, peak_at)       bytes in use at each position of the schedule

Colours are those of page.css and charts.css, so that charts follow light, dark and print.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hloc.pages.page import text
from hloc.tools.formatting import size_text

WIDTH, HEIGHT = 760, 340
LEFT, RIGHT, TOP, BOTTOM = 78, 16, 14, 44
MOST_STEPS = 1_500                    # of a line: more are thinner than a pixel
SMALLEST, LARGEST = 4.0, 15.0         # radius of a dot
UNITS = ("", "k", "M", "G", "T", "P")


class Dot(NamedTuple):
    """A kernel. link: where a click goes; intensity: flops a byte; rate: flops a second; share: of the time, 0 to 1;
    kind: a class of charts.css."""

    name: str
    link: str
    intensity: float
    rate: float
    share: float
    kind: str = "predicted"


class Roof(NamedTuple):
    """flops: the most in a second of such operations."""

    name: str
    flops: float


class _Scale(NamedTuple):
    """Logarithms of the ends of an axis, and the pixels there."""

    low: float
    high: float
    first: float
    last: float

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 1)

    def ticks(self) -> list[float]:
        """Powers of ten, with twice and five times each where these are few."""
        powers = range(math.floor(self.low), math.ceil(self.high) + 1)
        factors = (1, 2, 5) if self.high - self.low < 2.5 else (1,)
        values = [f * 10.0 ** n for n in powers for f in factors]
        return [v for v in values if self.low <= math.log10(v) <= self.high]


def roofline(dots: Sequence[Dot], roofs: Sequence[Roof], bandwidth: float) -> str:
    """Dots on two logarithmic axes, under what the memory's bandwidth (bytes a second) and the units allow. Dots
    without flops have no place on it. "" where none has one."""
    dots = [d for d in dots if d.intensity > 0 and d.rate > 0]
    if not dots:
        return ""
    best = max(r.flops for r in roofs)
    xs = [d.intensity for d in dots] + [best / bandwidth]
    ys = [d.rate for d in dots] + [best]
    x = _Scale(math.log10(min(xs)) - 0.3, math.log10(max(xs)) + 0.5, LEFT, WIDTH - RIGHT)
    y = _Scale(math.log10(min(ys)) - 0.3, math.log10(max(ys)) + 0.3, HEIGHT - BOTTOM, TOP)
    parts = [_frame("roofline", "Roofline: flops per second over flops per byte")]
    parts += [f'<line class="grid" x1="{x(v)}" x2="{x(v)}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
              f'<text class="tick" x="{x(v)}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_tick(v)}</text>'
              for v in x.ticks()]
    parts += [f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(v)}" y2="{y(v)}"/>'
              f'<text class="tick" x="{LEFT - 6}" y="{y(v) + 4}" text-anchor="end">{_tick(v)}</text>'
              for v in y.ticks()]
    parts.append(_axis_titles("flops per byte", "flops per second"))
    parts += [_roof(r, bandwidth, x, y) for r in roofs]
    parts += [_dot(d, x, y) for d in sorted(dots, key=lambda d: -d.share)]
    return "".join([*parts, "</svg>"])


def _roof(roof: Roof, bandwidth: float, x: _Scale, y: _Scale) -> str:
    """Up with the bandwidth until the units are busy, then level."""
    left, right = 10 ** x.low, 10 ** x.high
    start = max(left, 10 ** y.low / bandwidth)
    ridge = min(max(roof.flops / bandwidth, start), right)
    points = [(start, start * bandwidth), (ridge, min(ridge * bandwidth, roof.flops)), (right, roof.flops)]
    path = " ".join(f"{x(a)},{y(max(b, 10 ** y.low))}" for a, b in points)
    label = f"{roof.name}: {short(roof.flops)}flop/s"
    return (f'<polyline class="roof" points="{path}"/><text class="label" x="{WIDTH - RIGHT - 4}" '
            f'y="{y(roof.flops) - 5}" text-anchor="end">{text(label)}</text>')


def _dot(dot: Dot, x: _Scale, y: _Scale) -> str:
    radius = SMALLEST + (LARGEST - SMALLEST) * math.sqrt(min(max(dot.share, 0.0), 1.0))
    about = (f"{dot.name}: {dot.intensity:.3g} flops per byte, {short(dot.rate)}flop/s {dot.kind}, "
             f"{100 * dot.share:.1f}% of the time")
    return (f'<a href="{text(dot.link)}" aria-label="{text(about)}"><circle class="dot {text(dot.kind)}" '
            f'cx="{x(dot.intensity)}" cy="{y(dot.rate)}" r="{radius:.1f}"><title>{text(about)}</title></circle></a>')


def memory_chart(live: Sequence[int], peak_at: int) -> str:
    """A line of bytes over the positions of a schedule, with a mark at the peak. A script may move the line of class
    "instant" (report.js): data-count is the number of positions."""
    if not live or not max(live):
        return ""
    top, count = max(live), len(live)
    step = nice_step(top)
    high = math.ceil(top / step) * step

    def x(position: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * position / count, 1)

    def y(size: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * size / high, 1)

    about = f"Bytes of the arena in use at each of {count:,} instructions; the most: {size_text(top)}"
    parts = [_frame("memory", about, f' data-count="{count}" data-left="{LEFT}" data-right="{WIDTH - RIGHT}"')]
    for n in range(round(high / step) + 1):
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(n * step)}" y2="{y(n * step)}"/>'
                     f'<text class="tick" x="{LEFT - 6}" y="{y(n * step) + 4}" text-anchor="end">'
                     f"{size_text(round(n * step))}</text>")
    for position in dict.fromkeys((0, count // 2, count)):
        parts.append(f'<text class="tick" x="{x(position)}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
                     f"{position:,}</text>")
    parts.append(_axis_titles("instruction of the schedule", "bytes of the arena"))
    path = [f"M{x(0)} {y(0)}"]
    for _, last, size in steps(live, MOST_STEPS):
        path.append(f"V{y(size)}H{x(last + 1)}")
    parts.append(f'<path class="area" d="{"".join(path)}V{y(0)}Z"/>')
    middle = x(peak_at + 0.5)
    parts.append(f'<line class="instant" x1="{middle}" x2="{middle}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/></svg>')
    return "".join(parts)


def steps(live: Sequence[int], most: int) -> list[tuple[int, int, int]]:
    """First and last position and height of at most `most` pieces: of several positions in one the highest counts."""
    width = max(1, -(-len(live) // most))
    pieces: list[tuple[int, int, int]] = []
    for first in range(0, len(live), width):
        last = min(first + width, len(live)) - 1
        height = max(live[first:last + 1])
        if pieces and pieces[-1][2] == height:
            pieces[-1] = (pieces[-1][0], last, height)
        else:
            pieces.append((first, last, height))
    return pieces


def nice_step(top: int) -> int:
    """Bytes between two lines of a grid: a power of two, four to eight of them."""
    return 1 << max(0, math.ceil(math.log2(top / 6)))


def _frame(kind: str, about: str, more: str = "") -> str:
    return (f'<svg class="chart {kind}" viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{text(about)}"{more}>')


def _axis_titles(x: str, y: str) -> str:
    across, down = (LEFT + WIDTH - RIGHT) // 2, (TOP + HEIGHT - BOTTOM) // 2
    return (f'<text class="title" x="{across}" y="{HEIGHT - 8}" text-anchor="middle">{text(x)}</text>'
            f'<text class="title" transform="translate(14 {down}) rotate(-90)" text-anchor="middle">{text(y)}</text>')


def _tick(value: float) -> str:
    """0.01, 100, 10 G."""
    return f"{value:g}" if value < 1000 else short(value).strip()


def short(value: float) -> str:
    """1.23 T, with a space behind: a unit follows."""
    power = min(len(UNITS) - 1, max(0, int(math.log10(value) // 3))) if value >= 1 else 0
    return f"{value / 1000 ** power:.3g} {UNITS[power]}"
