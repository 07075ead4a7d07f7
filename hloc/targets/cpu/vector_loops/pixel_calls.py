"""Reversed, padded, repeated or concatenated pixels of a few bytes: calls of runtime/pixels.h, which shuffles
registers. Compilers store element by element (they interleave only two, three, four or eight elements).

In: a For before printing, whose iterations write adjacent pixels. Out: the call that does most of the iterations, and
returns how many; the loop continues from there. None if the loop does anything else.

    for i < n (VECTOR): y[3 i] = x[381 - 3 i]; y[3 i + 1] = x[382 - 3 i]; y[3 i + 2] = x[383 - 3 i]
    ->  hloc_move_pixels(x + 381, -3, 3, {}, y, 3, n, 5, {13, 14, 15, 10, 11, 12 ...})

Mirroring images of three bytes takes 0.25 of the time, padding to eight channels 0.17, enlarging 0.1 (on a Zen 4).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple, TypeGuard

import numpy as np

from hloc.ir import ELEMENT_TYPES, numpy_dtype
from hloc.ir.narrowing import all_known
from hloc.kernels.affine import constant_of, factor_of, plus, without
from hloc.kernels.ir import INDEX, PARALLEL, Apply, Const, Expr, For, Let, Load, Stmt, Store, Var
from hloc.kernels.vectors import is_vector
from hloc.kernels.walks import with_values
from hloc.targets.c_expressions import Call, ExpressionPrinter
from hloc.targets.cpu.vector_loops.copy_calls import place, pointer

FUNCTIONS = ("move_pixels", "join_pixels")
REGISTER = 16                   # bytes
SIZES = (1, 2, 4)               # bytes of an element
ROUNDED = ("bf16", "f16")       # constants of these types are converted as NumPy converts them
LEAST = 8                       # minimum bytes written by a shuffle
FEWEST = 16                     # iterations
NOWHERE = Const(0, INDEX)
EASY = (1, 2, 3, 4, 8)          # strides between pixels, in elements, that compilers interleave


class Piece(NamedTuple):
    """An element of a pixel: source, "" for a constant; its position, in elements; bytes: those of a constant."""

    source: str
    place: Expr
    bytes: bytes


class Source(NamedTuple):
    """An array: the position of its first pixel, the signed distance to the next pixel in elements, and the elements
    per pixel."""

    name: str
    place: Expr
    step: int
    width: int

    def holds(self, piece: Piece, most: int) -> bool:
        """Whether an element belongs to one of these pixels, and then spans at most `most` elements."""
        inside = constant_of(piece.place) - constant_of(self.place)
        return piece.source == self.name and 0 <= inside < most and piece.place == plus(self.place, inside)


class Pixels(NamedTuple):
    """Pixels of the result: the position of the first one, in elements of `size` bytes, and its pieces."""

    buffer: str
    place: Expr
    pieces: list[Piece]
    size: int


def pixel_call(loop: For, printer: ExpressionPrinter) -> Call | None:
    """The call; its result is the number of iterations that it does."""
    if isinstance(loop.extent, int) and loop.extent < FEWEST:
        return None
    pixels = _pixels(loop)
    sources = _sources(pixels, loop.name) if pixels is not None else None
    if pixels is None or sources is None or not 0 < len(sources) < 3 \
            or len(sources) == 2 and not all(p.source for p in pixels.pieces):
        return None
    if _may_be_in_place(pixels, sources) or _is_easy(loop, pixels, sources):
        return None
    step, size, most = len(pixels.pieces), pixels.size, REGISTER // pixels.size
    per = min(most // step, *((most - s.width) // abs(s.step) + 1 for s in sources))
    return _call(loop, pixels, sources, per, printer) if per * step * size >= LEAST else None


def _pixels(loop: For) -> Pixels | None:
    """The stores of an iteration, if they are one pixel after the previous one."""
    stores = _written_out(loop.body, {})
    if not stores or len({s.buffer for s in stores}) > 1 or any(is_vector(s.value.type) for s in stores):
        return None
    places, pieces = [p for s in stores if (p := place(s.position, {})) is not None], [_piece(s.value) for s in stores]
    size = ELEMENT_TYPES[stores[0].value.type].bytes
    if size not in SIZES or len(stores) * size > REGISTER or len(places) < len(stores) or not all_known(pieces):
        return None
    starts = [constant_of(p) for p in places]
    order = sorted(range(len(stores)), key=starts.__getitem__)
    first = places[order[0]]
    fills = factor_of(first, loop.name) == len(stores) > 1 and all(
        places[n] == plus(first, k) for k, n in enumerate(order))
    return Pixels(stores[0].buffer, first, [pieces[n] for n in order], size) if fills else None


def _may_be_in_place(pixels: Pixels, sources: Sequence[Source]) -> bool:
    """Whether all elements of an array are read at the positions where they are written: then it may be the written
    memory, of which registers extend beyond their pixels."""
    def stays(k: int, piece: Piece) -> bool:
        return piece.place == plus(pixels.place, k)
    return any(all(stays(k, p) for k, p in enumerate(pixels.pieces) if p.source == s.name) for s in sources)


def _is_easy(loop: For, pixels: Pixels, sources: Sequence[Source]) -> bool:
    """Whether compilers do the same."""
    is_flat = not any(isinstance(s, For) for s in loop.body)
    return is_flat and all(n in EASY for n in (len(pixels.pieces), *(s.step for s in sources)))


def _written_out(body: Sequence[Stmt], named: Mapping[Var | Load, Expr]) -> list[Store] | None:
    """The stores of one iteration, without names; short loops of constant extent are unrolled. None if there is
    anything else, or more than a register holds."""
    found: list[Store] = []
    known = dict(named)
    for s in body:
        if isinstance(s, Let) and (s.value.type == INDEX or _is_moved(s.value)):
            known[Var(s.name, s.value.type)] = with_values(s.value, known)
        elif isinstance(s, Store):
            if not _is_moved(s.value):
                return None
            found.append(Store(s.buffer, with_values(s.position, known), with_values(s.value, known)))
        elif isinstance(s, For) and isinstance(s.extent, int) and 0 < s.extent <= REGISTER:
            for k in range(s.extent):
                inner = _written_out(s.body, {**known, Var(s.name, INDEX): Const(k, INDEX)})
                if inner is None:
                    return None
                found += inner
        else:
            return None
        if len(found) > REGISTER:
            return None
    return found


def _piece(value: Expr) -> Piece | None:
    """An element of memory, or a constant; a bf16 one may be widened in between."""
    inner = value.arguments[0] if _is_conversion(value) else None
    if inner is not None and value.type == "bf16" and _is_conversion(inner) and inner.arguments[0].type == "bf16":
        return _piece(inner.arguments[0])
    if isinstance(value, Load):
        form = place(value.position, {})
        return None if form is None else Piece(value.buffer, form, b"")
    if isinstance(value, Const):
        number = np.asarray(value.value)
    elif value.type in ROUNDED and isinstance(inner, Const) and inner.type == "f32":
        number = np.asarray(inner.value, np.float32)
    else:
        return None
    return Piece("", NOWHERE, number.astype(numpy_dtype(value.type)).tobytes())


def _is_moved(value: Expr) -> bool:
    """Whether a value is only loaded and converted."""
    while _is_conversion(value):
        value = value.arguments[0]
    return isinstance(value, (Load, Const, Var))


def _is_conversion(value: Expr) -> TypeGuard[Apply]:
    return isinstance(value, Apply) and value.op in ("convert", "convert_held")


def _sources(pixels: Pixels, counter: str) -> list[Source] | None:
    """The source arrays of pixels, or their rows if these are further apart than a register; None if their pixels do
    not have the same stride."""
    found: list[Source] = []
    pieces = sorted((p for p in pixels.pieces if p.source), key=lambda p: (p.source, constant_of(p.place)))
    for piece in pieces:
        step, at = factor_of(piece.place, counter), constant_of(piece.place)
        if step == 0:
            return None
        own = next((s for s in found if s.holds(piece, REGISTER // pixels.size)), None)
        if own is None:
            found.append(Source(piece.source, piece.place, step, 1))
        else:
            found[found.index(own)] = own._replace(width=at - constant_of(own.place) + 1)
    return found


def _call(loop: For, pixels: Pixels, sources: list[Source], per: int, printer: ExpressionPrinter) -> Call:
    size, step = pixels.size, len(pixels.pieces)
    mix, constants = list(range(REGISTER)), [0] * REGISTER
    for k, (e, piece), byte in product(range(per), enumerate(pixels.pieces), range(size)):
        to = (k * step + e) * size + byte
        if not piece.source:
            mix[to], constants[to] = REGISTER + to, piece.bytes[byte]
            continue
        number, s = next((n, s) for n, s in enumerate(sources) if s.holds(piece, REGISTER // size))
        start = REGISTER - s.width * size if s.step < 0 else 0
        inside = constant_of(piece.place) - constant_of(s.place)
        mix[to] = number * REGISTER + start + (k * s.step + inside) * size + byte
    arrays = [(_pointer(s.name, s.place, loop, printer), str(s.step * size), str(s.width * size)) for s in sources]
    other = arrays[1] if len(arrays) == 2 else (_vector(constants),)
    count = "end - begin" if loop.kind == PARALLEL else printer.extent(loop.extent)
    return (FUNCTIONS[len(arrays) - 1], *arrays[0], *other, _pointer(pixels.buffer, pixels.place, loop, printer),
            str(step * size), count, str(per), _vector(mix))


def _pointer(name: str, form: Expr, loop: For, printer: ExpressionPrinter) -> str:
    """The position of the first pixel; of a PARALLEL loop, that of iteration `begin`."""
    begin = factor_of(form, loop.name) if loop.kind == PARALLEL else 0
    return pointer(name, plus(without(form, loop.name), Var("begin", INDEX), begin), printer)


def _vector(numbers: Sequence[int]) -> str:
    return f"(hloc_pixels){{{', '.join(map(str, numbers))}}}"
