"""How Fourier transforms are computed: the steps of each length, lines side by side, what is split, scratch memory.

In: a Tile of the library kernel "fft". Out: an FftPlan, which tiles/fft.py prints as constants of runtime/fft.h, whose
names it shares. With vectors of 64 bytes:

    c64[32,60]      lines of 60 points by steps of radix 4, 3 and 5, 16 lines at a time
    f32[3,2000]     each line as 1,000 complex points, split: 40 columns of 25 points, then 25 rows of 40
    c64[2,101]      a prime length: by a convolution of 240 points
"""
from __future__ import annotations

from math import isqrt, prod
from typing import NamedTuple

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.plans.slots import Scratch, aligned, busy_threads

LARGEST_FACTOR = 31                                         # of a step; HLOC_FFT_LARGEST_FACTOR of runtime/fft.h
CHIRP_FACTORS = (1, 3, 5, 9, 15)                            # times powers of two: lengths of convolutions with a chirp
PLAN_BYTES = 128                                            # HLOC_FFT_PLAN_BYTES of runtime/fft.h
LONGEST_KEPT = 1 << 20                                      # points whose roots a program keeps
LONGEST_IN_LANES = 1 << 16                                  # bytes of a line of many side by side: caches
TASK = 8192                                                 # points of a task
INVERSE = {"IFFT", "IRFFT"}


class Points(NamedTuple):
    """The transform of n points, whose roots of unity are made once: by steps of radix `factors`; or, with a large
    prime factor, by a convolution with a chirp of `wide` points; or as columns, which are transformed by `column`, and
    then rows. real: they are the halves of a real line of 2 n points. bytes: of all roots."""

    n: int
    bytes: int
    real: bool = False
    factors: tuple[int, ...] = ()
    wide: Points | None = None
    column: Points | None = None
    row: Points | None = None

    @property
    def spare(self) -> int:
        """Points of scratch memory beside those of a line."""
        return 2 * self.wide.n if self.wide else self.n


class Places(NamedTuple):
    """Line l begins at l / inner * outer_step + l % inner; its points are `step` apart."""

    inner: int
    outer_step: int
    step: int


class Lines(NamedTuple):
    """The lines of one dimension, `lanes` side by side.

    folded       real lines are transformed as complex ones of half the length; n: of the real line
    from_reals   the first step takes real numbers
    grain, own   blocks of lines that a thread takes at once; bytes of its scratch memory
    start, end   where complex lines are read and written
    split        the columns of each line, and its rows
    """

    points: Points
    kind: str
    n: int
    lines: int
    folded: bool = False
    from_reals: bool = False
    lanes: int = 1
    grain: int = 1
    own: int = 0
    start: Places = Places(1, 0, 1)
    end: Places = Places(1, 0, 1)
    split: tuple[Lines, ...] = ()


class FftPlan(NamedTuple):
    """dimensions: in their order. first: bytes of scratch memory, where the results of all dimensions but the last lie
    if through_scratch; `middle` points after its begin are those of a split line."""

    dimensions: tuple[Lines, ...]
    first: int
    middle: int
    through_scratch: bool
    scratch: Scratch

    @property
    def kept_points(self) -> set[Points]:
        """Those whose roots the program keeps."""
        return {lines.points for lines in self.dimensions if lines.points.n <= LONGEST_KEPT}


class _Type(NamedTuple):
    """point: bytes of a complex number; lanes: real numbers of a vector."""

    point: int
    lanes: int

    def fits_lanes(self, n: int) -> bool:
        return (n if is_smooth(n) else 2 * _chirp_length(n)) * self.point <= LONGEST_IN_LANES


def plan_of_fft(tile: Tile, machine: Machine) -> FftPlan:
    """Parameters as in hloc/kernels/library_kernels/whole_arrays.py."""
    given, point = dict(tile.parameters), 16 if tile.buffers[1].type in ("c128", "f64") else 8
    kind, lengths, batch = given["kind"], given["lengths"], given["batch"]
    type = _Type(point, 2 * machine.vector_bytes // point)
    *outer, last = lengths
    sizes = [*outer, last // 2 + 1 if kind in ("RFFT", "IRFFT") else last]
    complex_kind = "IFFT" if kind in INVERSE else "FFT"
    through_scratch = kind == "IRFFT" and len(lengths) > 1
    dimensions = [_lines(complex_kind, sizes, d, n, batch, type) for d, n in enumerate(outer)]
    dimensions.insert(len(outer) if through_scratch else 0, _lines(kind, sizes, len(outer), last, batch, type))
    inner = batch * prod(sizes) if through_scratch else 0
    first = (inner + sum(lines.points.n for lines in dimensions if lines.split)) * point
    second = max(0 if lines.points.n <= LONGEST_KEPT else lines.points.bytes for lines in dimensions)
    total = Scratch.of(first=first, second=second)
    for lines in dimensions:
        for part in lines.split or (lines,):
            threads = busy_threads(-(-part.lines // part.lanes), part.grain, machine)
            total = total.joined(Scratch.of(own=part.own, threads=threads))
    return FftPlan(tuple(dimensions), first, inner, through_scratch, total)


def _lines(kind: str, sizes: list[int], d: int, n: int, batch: int, type: _Type) -> Lines:
    """Those of dimension d, of length n. sizes: of the complex side. The last dimension may be split."""
    step, count = prod(sizes[d + 1:]), batch * prod(sizes) // sizes[d]
    real, places = kind in ("RFFT", "IRFFT"), Places(step, step * sizes[d], step)
    folded = real and n % 2 == 0
    of_line = n // 2 if folded else n
    rows = _rows_of(of_line, count, type) if d == len(sizes) - 1 and (folded or not real) else 0
    if rows:
        points = _split_points(of_line, rows, folded, type)
        return Lines(points, kind, n, count, folded, split=_split(kind, rows, of_line // rows, points, type))
    points = _points(of_line, folded, type)
    lanes = type.lanes if type.fits_lanes(of_line) and count >= type.lanes // 4 else 1
    from_reals = kind == "RFFT" and not folded and n > 1 and not points.wide
    return _tasks(Lines(points, kind, n, count, folded, from_reals, lanes, start=places, end=places), type)


def _split(kind: str, rows: int, columns: int, points: Points, type: _Type) -> tuple[Lines, Lines]:
    """One line as a matrix: its columns in place, then its rows, which are written as columns."""
    assert points.column and points.row
    kind, n = "IFFT" if kind in INVERSE else "FFT", rows * columns
    down, along, transposed = Places(columns, n, columns), Places(1, columns, 1), Places(rows, n, rows)
    return (_tasks(Lines(points.column, kind, rows, columns, lanes=type.lanes, start=down, end=down), type),
            _tasks(Lines(points.row, kind, columns, rows, lanes=type.lanes, start=along, end=transposed), type))


def _tasks(lines: Lines, type: _Type) -> Lines:
    lanes, n = lines.lanes, lines.n
    return lines._replace(grain=TASK // (lanes * (n + 1)) + 1, own=(n + 1 + lines.points.spare) * lanes * type.point)


def _rows_of(n: int, lines: int, type: _Type) -> int:
    """The rows into which long lines are split, as close to a square as possible, if there are too few lines for the
    lanes or they are too long to be transformed in lanes; 0: not split."""
    if lines >= type.lanes and type.fits_lanes(n) or not is_smooth(n):
        return 0
    return next((rows for rows in range(isqrt(n), type.lanes - 1, -1) if n % rows == 0), 0)


def _points(n: int, real: bool, type: _Type) -> Points:
    factors, rest = [], n
    for r in (4, *range(2, LARGEST_FACTOR + 1)):
        while rest > 1 and rest % r == 0:
            factors.append(r)
            rest //= r
    size = PLAN_BYTES + _turns(n, real, type) + aligned(n * type.point)
    if rest == 1:
        return Points(n, size, real, tuple(factors))
    wide = _points(_chirp_length(n), False, type)
    return Points(n, size + 2 * aligned(wide.n * type.point) + wide.bytes, real, wide=wide)


def _split_points(n: int, rows: int, real: bool, type: _Type) -> Points:
    column, row = _points(rows, False, type), _points(n // rows, False, type)
    between = aligned((n + type.lanes) * type.point)
    size = PLAN_BYTES + between + _turns(n, real, type) + column.bytes + row.bytes
    return Points(n, size, real, column=column, row=row)


def _turns(n: int, real: bool, type: _Type) -> int:
    return aligned((n // 2 + 1) * type.point) if real else 0


def is_smooth(n: int) -> bool:
    """Whether steps transform n points: it has no prime factor above LARGEST_FACTOR."""
    for r in range(2, LARGEST_FACTOR + 1):
        while n > 1 and n % r == 0:
            n //= r
    return n == 1


def _chirp_length(n: int) -> int:
    return min(start << (-(-2 * n // start) - 1).bit_length() for start in CHIRP_FACTORS)
