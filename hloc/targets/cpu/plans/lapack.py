"""JAX's calls of LAPACK from compiled C: the arguments of each routine, what is moved before and after, scratch memory.

In: a host call of a plan. Out: the constant of the driver that runtime/lapack.c executes, or None if Python makes the
call: SciPy is not installed, or the call has another form than those below.

    lapack_call(HostCall("lapack_sgetrf_ffi", ...))    "{4, 16, 1, 16448, {{HLOC_MOVE_TRANSPOSE, ...}}, ...}"
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES, Instruction, Shape
from hloc.ir.narrowing import known
from hloc.kernels.plan import HostCall
from hloc.machine import Machine
from hloc.ops.vendors.linear_algebra import option
from hloc.targets.cpu.execution.lapack import (
    INTEGER,
    LETTERS,
    ROUTINES,
    SCRATCH,
    Argument,
    Length,
    Place,
    Work,
    function_number,
    work_sizes,
)
from hloc.targets.cpu.plans.slots import NOTHING, Scratch, aligned, busy_threads

WHOLES = {"f32": "c64", "f64": "c128"}
MOST = (1 << 31) - 1
LARGE, PIECE = 192, 40000             # rows of a matrix for which LAPACK has threads; multiply-adds of a piece
INFO = Place(SCRATCH, 0)
DIAGONALS = 3                         # of a tridiagonal matrix: the columns of one that gtsv is given


class Move(NamedTuple):
    """hloc_lapack_move of runtime/lapack.h."""

    what: str
    if_failed: int
    source: Place
    target: Place
    beside: Place
    rows: int
    columns: int
    element: int


class OtherForm(Exception):
    """The call is none that C makes."""


@dataclass
class _Call:
    """A call for one matrix. operands, results: (element type, dimensions), in order; other: right sides, reflections;
    own: bytes of scratch memory, where LAPACK's info lies first."""

    made_of: Instruction
    given: list[Shape]
    element: str
    real: str
    rows: int
    columns: int
    other: int = 0
    own: int = aligned(4)
    operands: list[tuple] = field(default_factory=list)
    results: list[tuple] = field(default_factory=list)
    before: list[Move] = field(default_factory=list)
    after: list[Move] = field(default_factory=list)

    @property
    def is_complex(self) -> bool:
        return self.element != self.real

    @property
    def small(self) -> int:
        return min(self.rows, self.columns)

    def letter(self, name: str, known: str) -> str:
        """An option as LAPACK's letter; the first of `known` if it is not written."""
        code = option(self.made_of, name, ord(known[0]))
        require(code in map(ord, known))
        return chr(code)

    def number(self, name: str, known: int) -> int:
        """An option that has this value, also if it is not written."""
        require(option(self.made_of, name, known) == known)
        return known

    def operand(self, *dimensions: int) -> Place:
        self.operands.append((self.element, dimensions))
        return Place(len(self.operands) - 1, prod(dimensions) * _bytes(self.element))

    def result(self, type: str, *dimensions: int) -> Place:
        self.results.append((type, dimensions))
        return Place(len(self.given) + len(self.results) - 1, prod(dimensions) * _bytes(type))

    def room(self, elements: int, type: str) -> Place:
        at, self.own = self.own, self.own + aligned(elements * _bytes(type))
        return Place(SCRATCH, at)

    def move(self, what: str, source: Place, target: Place, rows: int, columns: int = 1, type: str = "",
             beside: Place = INFO, if_failed: bool = False) -> Move:
        return Move(f"HLOC_MOVE_{what}", int(if_failed), source, target, beside, rows, columns,
                    _bytes(type or self.element))

    def load(self, rows: int, columns: int) -> Place:
        """The next operand in scratch memory, column by column."""
        room = self.room(rows * columns, self.element)
        self.before.append(self.move("TRANSPOSE", self.operand(rows, columns), room, rows, columns))
        return room

    def store(self, matrix: Place, rows: int, columns: int, what: str = "TRANSPOSE") -> None:
        """Columns as the next result."""
        self.after.append(self.move(what, matrix, self.result(self.element, rows, columns), columns, rows))

    def nan(self, place: Place, elements: int) -> None:
        """If there is no factorization."""
        self.after.append(self.move("NAN", place, place, elements, 1 + self.is_complex, self.real, if_failed=True))

    def factored(self) -> Place:
        """The matrix, which is overwritten, and is a result."""
        a = self.load(self.rows, self.columns)
        self.store(a, self.rows, self.columns)
        return a

    def work(self, type: str = "") -> list[Argument]:
        """A work array and its length, which LAPACK is asked for."""
        work = Work(type or self.element)
        return [work, Length(work)]


def require(holds: bool) -> None:
    if not holds:
        raise OtherForm


def _bytes(type: str) -> int:
    return ELEMENT_TYPES[type].bytes


# -- routines: arguments but for info, which is the last one; c.rows of a square matrix: n ----------------------------

def _potrf(c: _Call) -> list[Argument]:
    uplo, n = c.letter("uplo", "LU"), c.rows
    a = c.load(n, n)
    c.after.append(c.move("LOWER" if uplo == "L" else "UPPER", a, a, n, n))
    c.nan(a, n * n)
    c.store(a, n, n)
    return [uplo, n, a, n]


def _orgqr(c: _Call) -> list[Argument]:
    require(len(c.given) == 2 and c.given[1].rank > 0)
    c.other = c.given[1].dimensions[-1]
    require(c.rows >= c.columns >= c.other)
    return [c.rows, c.columns, c.other, c.factored(), c.rows, c.operand(c.other), *c.work()]


def _singular_values(c: _Call, *, divides: bool) -> list[Argument]:
    """gesdd, which divides and conquers, and gesvd. The matrix is a result as it was given."""
    job, rows, columns, small, large = c.letter("mode", "ASN"), c.rows, c.columns, c.small, max(c.rows, c.columns)
    left, right = (small, small) if job == "S" else (rows, columns)
    a, u, v = c.load(rows, columns), c.room(rows * left, c.element), c.room(right * columns, c.element)
    c.after.append(c.move("COPY", c.before[0].source, c.result(c.element, rows, columns), rows, columns))
    values = c.result(c.real, small)
    what = "ZERO" if job == "N" else "TRANSPOSE"
    c.store(u, rows, left, what)
    c.store(v, right, columns, what)
    reals = small * max(5 * small + 7, 2 * large + 2 * small + 1) if divides else 5 * small
    return [*job * (2 - divides), rows, columns, a, rows, values, u, rows, v, right, *c.work(),
            *[Work(c.real, reals)] * c.is_complex, *[Work(INTEGER, 8 * small)] * divides]


def _trsm(c: _Call) -> list[Argument]:
    require(len(c.given) == 2 and c.given[1].rank >= 2)
    letters = [c.letter("side", "LR"), c.letter("uplo", "LU"), c.letter("trans_x", "NTC"), c.letter("diag", "NU")]
    n, c.other = c.rows, c.given[1].dimensions[-1 if letters[0] == "L" else -2]
    rows, columns = (n, c.other) if letters[0] == "L" else (c.other, n)
    a, b = c.load(n, n), c.load(rows, columns)
    c.store(b, rows, columns)
    return [*letters, rows, columns, 1.0, a, n, b, rows]


def _gtsv(c: _Call) -> list[Argument]:
    """The diagonals are results, too, as they were given; LAPACK overwrites copies of them."""
    n, c.other = c.rows, c.given[-1].dimensions[-1] if c.given[-1].rank else 0
    rooms = [c.room(n, c.element) for _ in range(DIAGONALS)]
    for room in rooms:
        given, made = c.operand(n), c.result(c.element, n)
        c.before += [c.move("COPY", given, target, n) for target in (room, made)]
    b = c.load(n, c.other)
    c.nan(b, n * c.other)
    c.store(b, n, c.other)
    return [n, c.other, rooms[0]._replace(bytes=rooms[0].bytes + _bytes(c.element)), *rooms[1:], b, n]


def _gees(c: _Call) -> list[Argument]:
    """Nothing is selected: eigenvalues are not reordered."""
    job, sort, n, vectors = c.letter("mode", "V"), c.letter("sort", "N"), c.rows, c.room(c.rows ** 2, c.element)
    a = c.factored()
    c.store(vectors, n, n)
    values = [c.result(c.element, n) for _ in range(2 - c.is_complex)]
    return [job, sort, a, n, a, n, c.result(INTEGER), *values, vectors, n, *c.work(),
            *[Work(c.real, n)] * c.is_complex, a]


def _geev(c: _Call) -> list[Argument]:
    """Eigenvalues, of real matrices in two parts, and left and right eigenvectors, which are complex."""
    jobs, n, whole = [c.letter(name, "VN") for name in ("compute_left", "compute_right")], c.rows, WHOLES.get(c.element)
    a, vectors = c.load(n, n), [c.room(n * n, c.element) for _ in jobs]
    values = [c.result(c.element, n) for _ in range(2 - c.is_complex)]
    c.nan(values[0], n)
    c.after += [c.move("ZERO", imaginary, imaginary, n, if_failed=True) for imaginary in values[1:]]
    for job, matrix in zip(jobs, vectors):
        c.nan(matrix, n * n)
        made = c.result(whole or c.element, n, n)
        c.after.append(c.move("ZERO", made, made, n, n, whole or "") if job == "N" else
                       c.move("PAIRS" if whole else "TRANSPOSE", matrix, made, n, n, beside=values[-1]))
    return [*jobs, n, a, n, *values, vectors[0], n, vectors[1], n, *c.work(), *[Work(c.real, 2 * n)] * c.is_complex]


FORMS: dict[str, Callable[[_Call], list[Argument]]] = {
    "potrf": _potrf, "orgqr": _orgqr, "trsm": _trsm, "gtsv": _gtsv, "gees": _gees, "geev": _geev,
    "getrf": lambda c: [c.rows, c.columns, c.factored(), c.rows, c.result(INTEGER, c.small)],
    "geqrf": lambda c: [c.rows, c.columns, c.factored(), c.rows, c.result(c.element, c.small), *c.work()],
    "syevd": lambda c: [c.letter("mode", "V"), c.letter("uplo", "LU"), c.rows, c.factored(), c.rows,
                        c.result(c.real, c.rows), *c.work(), *c.work(c.real) * c.is_complex, *c.work(INTEGER)],
    "gesdd": partial(_singular_values, divides=True), "gesvd": partial(_singular_values, divides=False),
    "gehrd": lambda c: [c.rows, c.number("low", 1), c.number("high", c.rows), c.factored(), c.rows,
                        c.result(c.element, c.rows - 1), *c.work()],
    "sytrd": lambda c: [c.letter("uplo", "LU"), c.rows, c.factored(), c.rows, c.result(c.real, c.rows),
                        c.result(c.real, c.rows - 1), c.result(c.element, c.rows - 1), *c.work()]}
OF_ANY_SIDES = ("getrf", "geqrf", "orgqr", "gesdd", "gesvd", "gtsv")


# -- the call of a batch -----------------------------------------------------------------------------------------------

class _Batch(NamedTuple):
    """A hloc_lapack_call."""

    function: int
    matrices: int
    grain: int
    own: int
    before: tuple[Move, ...]
    after: tuple[Move, ...]
    arguments: tuple


def lapack_call(step: HostCall) -> str | None:
    """The initializer of a hloc_lapack_call."""
    made = _batch_of(step)
    return _initializer(made) if made else None


def _initializer(value: object) -> str:
    return "{" + (", ".join(map(_initializer, value)) or "0") + "}" if isinstance(value, tuple) else str(value)


def lapack_scratch(step: HostCall, machine: Machine) -> Scratch:
    """The scratch memory of runtime/lapack.c for a call; none if Python makes it."""
    made = _batch_of(step)
    return Scratch.of(own=made.own, threads=busy_threads(made.matrices, made.grain, machine)) if made else NOTHING


def _batch_of(step: HostCall) -> _Batch | None:
    found = function_number(step.target)
    given, made = ([shape for _, shape in side] for side in (step.arguments, step.results))
    if found is None or not given:
        return None
    routine, letter = list(ROUTINES)[found // 4], "sdcz"[found % 4]
    last = 1 if routine == "gtsv" else 2
    batch, sizes = given[0].dimensions[:-last], (*given[0].dimensions[-last:], DIAGONALS)[:2]
    if given[0].rank < last or 0 in sizes or sizes[0] != sizes[1] and routine not in OF_ANY_SIDES:
        return None
    call = _Call(known(step.instruction), given, *LETTERS[letter], sizes[0], sizes[1])
    try:
        arguments = FORMS[routine](call)
    except OtherForm:
        return None
    with_info = _fits(made, [*call.results, (INTEGER, ())], batch)
    if not (with_info or _fits(made, call.results, batch)) or not _fits(given, call.operands, batch) \
            or max(prod(batch), *sizes, call.other) > MOST or routine in ("trsm", "gtsv") and call.other == 0:
        return None
    if with_info:
        call.after.append(call.move("COPY", INFO, call.result(INTEGER), 1, type=INTEGER))
    counts = work_sizes(found, (*arguments, INFO))
    rooms = {work: call.room(count, work.type) for work, count in counts.items()}

    def argument(a: Argument) -> tuple:
        a = rooms[a] if isinstance(a, Work) else counts[a.of] if isinstance(a, Length) else a
        if isinstance(a, Place):
            return a.array, f"{{.bytes = {a.bytes}}}"
        number = f".{'narrow' if call.real == 'f32' else 'wide'} = {{{a}}}" if isinstance(a, float) else \
            f".whole = {ord(a) if isinstance(a, str) else a}"
        return "HLOC_NUMBER", f"{{{number}}}"
    has_threads = routine != "gtsv" and max(sizes) > LARGE
    grain = prod(batch) if has_threads else 1 + int(PIECE / (prod(sizes) * max(call.small, call.other) + 1))
    return _Batch(found, prod(batch), grain, call.own, tuple(call.before), tuple(call.after),
                  tuple(map(argument, (*arguments, INFO))))


def _fits(shapes: list[Shape], wanted: list[tuple], batch: tuple[int, ...]) -> bool:
    return [(s.element_type, s.dimensions) for s in shapes] == [(t, (*batch, *d)) for t, d in wanted]
