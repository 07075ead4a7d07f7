"""Reversed, padded, repeated or concatenated pixels of a few bytes: shuffles of a vector that holds some of them.
Compilers store element by element (they interleave only two, three, four or eight elements).

In: a Kernel. Out: the kernel whose loops that write adjacent pixels do so by vectors of 16 bytes, but for the last
iterations: vectors extend beyond their pixels, over what the next iterations write.

    for i < n (VECTOR): y[3 i] = x[381 - 3 i]; y[3 i + 1] = x[382 - 3 i]; y[3 i + 2] = x[383 - 3 i]
    ->  for b < (n - 1) / 5: y[15 b]:u8x16 = shuffle(x[368 - 15 b]:u8x16, 13, 14, 15, 10, 11, 12, 7 ...)

Mirroring images of three bytes takes 0.25 of the time, padding to eight channels 0.17, enlarging 0.1 (on a Zen 4).
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import constant_of, plus, stride, without
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, PARALLEL, SERIAL, Apply, Const, Expr, For, Kernel, Let, Load, Stmt, Store, Var
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.vectors import is_lane, vector
from hloc.kernels.walks import parts, with_loops, with_values
from hloc.machine import Machine

REGISTER = 16                   # bytes
SIZES = (1, 2, 4)               # bytes of an element
LEAST = 8                       # minimum bytes written by a shuffle
FEWEST = 16                     # iterations
EASY = (1, 2, 3, 4, 8)          # strides between pixels, in elements, that compilers interleave


class Pixels(NamedTuple):
    """Pixels of an array: the form of the position of the first element, the signed distance to the next pixel, and the
    elements of each."""

    buffer: str
    first: Expr
    step: int
    width: int

    def place(self, element: Load) -> int | None:
        """Which element of a register that begins with the first pixel this is; None if it is none."""
        place = constant_of(element.position) - constant_of(self.first)
        is_near = self.buffer == element.buffer and element.position == plus(self.first, place)
        return place if is_near and 0 <= place < REGISTER // ELEMENT_TYPES[element.type].bytes else None

    def before(self, lanes: int) -> int:
        """The elements before a pixel in its vector, which ends with it where the next pixel lies below."""
        return lanes - self.width if self.step < 0 else 0

    def vector_at(self, loop: For, pixel: Expr, lanes: int) -> Expr:
        """Where the vector of a pixel begins."""
        return plus(plus(without(self.first, loop.name), -self.before(lanes)), pixel, self.step)


def pixel_shuffles(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with shuffles for such loops."""
    return kernel._replace(body=with_loops(kernel.body, _by_vectors))


def _by_vectors(loop: For) -> tuple[Stmt, ...] | None:
    """The statements that replace a loop; None if it does anything else."""
    if loop.kind == PARALLEL or isinstance(loop.extent, int) and loop.extent < FEWEST:
        return None
    try:
        return _shuffled(loop, sorted(_written_out(loop.body, {}), key=lambda s: constant_of(s.position)))
    except Refused:
        return None


def _shuffled(loop: For, stores: Sequence[Store]) -> tuple[Stmt, ...]:
    """The loop over vectors, and that over the remaining iterations. stores: those of an iteration, in order. Raises
    Refused."""
    values = [s.value for s in stores]
    others = list(dict.fromkeys(v for v in values if not isinstance(v, Load)))
    written = [Load(s.buffer, s.position, s.value.type) for s in stores]
    target, *more = _pixels(loop, written)
    sources = _pixels(loop, [v for v in values if isinstance(v, Load)])
    type, size = values[0].type, ELEMENT_TYPES[values[0].type].bytes
    lanes = REGISTER // size
    if more or [target.place(w) for w in written] != list(range(target.step)) or not 1 < target.step <= lanes:
        raise Refused("iterations do not write one pixel after another")
    if not sources or len(sources) + len(others) > 2 or any(
            isinstance(e, Load) or e == Var(loop.name, INDEX) for e in parts(others)):
        raise Refused("it reads more than two pixels, or one and another value")
    moved = {v.buffer for k, v in enumerate(values) if isinstance(v, Load) and v.position != plus(target.first, k)}
    if any(s.buffer not in moved - {target.buffer} for s in sources):
        raise Refused("what is read may be what is written, which vectors write beyond their pixels")
    if all(p.step in EASY for p in (target, *sources)) and not any(isinstance(s, For) for s in loop.body):
        raise Refused("compilers do the same")
    per = min(lanes // target.step, *((lanes - s.width) // abs(s.step) + 1 for s in sources))
    if per * target.step * size < LEAST:
        raise Refused("a vector holds too few pixels")
    mix = list(range(lanes))
    for k, (e, value) in product(range(per), enumerate(values)):
        mix[k * target.step + e] = next(
            (n * lanes + s.before(lanes) + k * s.step + place for n, s in enumerate(sources)
             if isinstance(value, Load) and (place := s.place(value)) is not None), lanes)
    block, rest = Var(f"{loop.name}_block", INDEX), Var(f"{loop.name}_rest", INDEX)
    pixel, wide = index_apply("multiply", block, Const(per, INDEX)), vector(type, lanes)
    read: list[Expr] = [Load(s.buffer, s.vector_at(loop, pixel, lanes), wide) for s in sources]
    read += [Apply("splat", (value,), wide) for value in others]
    mixed = Store(target.buffer, target.vector_at(loop, pixel, lanes),
                  Apply("shuffle", (read[0], read[-1]), wide, tuple(mix)))
    beyond = max(-(-(lanes - p.width) // abs(p.step)) for p in (target, *sources))         # pixels that a vector meets
    total = Const(loop.extent, INDEX) if isinstance(loop.extent, int) else loop.extent
    blocks = index_apply("divide", index_apply("add", total, Const(per - 1 - beyond, INDEX)), Const(per, INDEX))
    if not isinstance(blocks, Const):
        blocks = Apply("maximum", (blocks, Const(0, INDEX)), INDEX)
    done = index_apply("multiply", blocks, Const(per, INDEX))
    return (_loop(block, blocks, mixed), _loop(rest, index_apply("subtract", total, done),
                                               Let(loop.name, index_apply("add", done, rest)), *loop.body))


def _loop(counter: Var, extent: Expr, *body: Stmt) -> For:
    return For(counter.name, extent.integer if isinstance(extent, Const) else extent, SERIAL, body)


def _pixels(loop: For, elements: Iterable[Load]) -> list[Pixels]:
    """The pixels that these elements of an iteration are, or rows of them if these are further apart than a register.
    Raises Refused where iterations have no pixels of their own."""
    found: list[Pixels] = []
    for element in sorted(elements, key=lambda e: (e.buffer, constant_of(e.position))):
        step = stride(element.position, loop.name, ())
        if not step or not is_lane(element.type) or ELEMENT_TYPES[element.type].bytes not in SIZES:
            raise Refused("iterations have no pixels of their own")
        for n, pixels in enumerate(found):
            if (place := pixels.place(element)) is not None:
                found[n] = pixels._replace(width=place + 1)
                break
        else:
            found.append(Pixels(element.buffer, element.position, step, 1))
    return found


def _written_out(body: Sequence[Stmt], named: Mapping[Var | Load, Expr]) -> list[Store]:
    """The stores of one iteration, without names; short loops of constant extent are unrolled. Raises Refused if there
    is anything else, or more than a register holds."""
    found: list[Store] = []
    known = dict(named)
    for s in body:
        if isinstance(s, Let) and _is_moved(s.value):
            known[Var(s.name, s.value.type)] = with_values(s.value, known)
        elif isinstance(s, Store) and _is_moved(s.value):
            found.append(Store(s.buffer, with_values(s.position, known), with_values(s.value, known)))
        elif isinstance(s, For) and isinstance(s.extent, int) and s.extent <= REGISTER:
            for k in range(s.extent):
                found += _written_out(s.body, {**known, Var(s.name, INDEX): Const(k, INDEX)})
        else:
            raise Refused("it does more than to move elements")
    if not 0 < len(found) <= REGISTER:
        raise Refused("a register holds no such pixel")
    return found


def _is_moved(value: Expr) -> bool:
    """Whether a value is only loaded and converted."""
    return all(e.type == INDEX or e.op in ("convert", "convert_held") for e in parts([value]) if isinstance(e, Apply))
