"""Loops that transpose element by element: calls of runtime/transpose.h, which shuffles registers.

In: a For before printing. Out: the calls that replace it, or none if it does anything else.

    for i < 128: t[i] = x[10 i]; t[i + 128] = x[10 i + 1] ...     ->    hloc_transpose_32(x, 10, t, 128, 128, 10);
    for j < 64: for i < 32 (VECTOR): t[64 i + j] = x[500 j + i]   ->    hloc_transpose_32(x, 500, t, 64, 64, 32);
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.ir.narrowing import all_known
from hloc.kernels.affine import Affine, of_names
from hloc.kernels.ir import Expr, For, Let, Store
from hloc.targets.c_expressions import Call, ExpressionPrinter
from hloc.targets.cpu.vector_loops.copies import copied_by, is_copy, length_of, named_positions, place, pointer

SIZES = (1, 2, 4, 8)            # bytes of an element
FEWEST = 4                      # rows, and columns: fewer fill too little of a register
COLUMN = "<column>"             # the counter of unrolled copies: not a name of C
FUNCTION = "transpose_"


class _Loop(NamedTuple):
    counter: str
    extent: int | Expr


def transpose_calls(loop: For, printer: ExpressionPrinter) -> list[Call]:
    """The calls, one for each pair of arrays; none if the loop stays."""
    inner = loop.body[-1] if loop.body else None
    calls = [_of_nest(loop, inner, printer)] if isinstance(inner, For) else _of_columns(loop, printer)
    return [call for call in calls if call] if all(calls) else []


def _of_nest(loop: For, inner: For, printer: ExpressionPrinter) -> Call | None:
    """Two nested loops around one copy."""
    named = named_positions((*loop.body[:-1], *inner.body[:-1]))
    store = inner.body[-1] if inner.body else None
    if named is None or not is_copy(store):
        return None
    target, source = place(store.position, named), place(copied_by(store).position, named)
    length = length_of(inner, loop, named)
    if target is None or source is None or length is None:
        return None
    return _call(store, target, source, _Loop(loop.name, loop.extent), _Loop(inner.name, length), printer)


def _of_columns(loop: For, printer: ExpressionPrinter) -> list[Call | None]:
    """A loop around unrolled copies of adjacent elements, of one array or of several."""
    copies = [s for s in loop.body if is_copy(s)]
    named = named_positions([s for s in loop.body if isinstance(s, Let)])
    if named is None or not all(isinstance(s, Let) or is_copy(s) for s in loop.body):
        return []
    pairs: dict[tuple[str, str], list[Store]] = {}
    for s in copies:
        pairs.setdefault((s.buffer, copied_by(s).buffer), []).append(s)
    targets = {target for target, _ in pairs}
    if len(targets) < len(pairs) or any(source in targets for _, source in pairs):      # their order matters
        return []
    return [_of_pair(loop, own, named, printer) for own in pairs.values()]


def _of_pair(loop: For, stores: list[Store], named: Mapping[str, Affine],
             printer: ExpressionPrinter) -> Call | None:
    target = _progression([place(s.position, named) for s in stores])
    source = _progression([place(copied_by(s).position, named) for s in stores])
    if target is None or source is None:
        return None
    return _call(stores[0], target, source, _Loop(loop.name, loop.extent), _Loop(COLUMN, len(stores)), printer)


def _progression(places: list[Affine | None]) -> Affine | None:
    """Positions that differ by equally growing constants, as one position that COLUMN moves."""
    if not all_known(places) or any(p.terms != places[0].terms for p in places):
        return None
    steps = {b.constant - a.constant for a, b in zip(places, places[1:])}
    return places[0] + of_names({COLUMN: steps.pop()}) if len(steps) == 1 else None


def _call(store: Store, target: Affine, source: Affine, outer: _Loop, inner: _Loop,
          printer: ExpressionPrinter) -> Call | None:
    """The call for two loops, if one array is contiguous along one loop, and the other along the other."""
    for row, column in ((outer, inner), (inner, outer)):
        if target.factor(row.counter) == source.factor(column.counter) == 1:
            break
    else:
        return None
    size = ELEMENT_TYPES[store.value.type].bytes
    pitches = source.factor(row.counter), target.factor(column.counter)
    if size not in SIZES or min(pitches) < 1 \
            or any(isinstance(loop.extent, int) and loop.extent < FEWEST for loop in (row, column)):
        return None
    start, to = (pointer(name, form.without(outer.counter, inner.counter), printer)
                 for name, form in ((copied_by(store).buffer, source), (store.buffer, target)))
    rows, columns = (printer.extent(n.extent) for n in (row, column))
    return f"{FUNCTION}{8 * size}", start, str(pitches[0]), to, str(pitches[1]), rows, columns
