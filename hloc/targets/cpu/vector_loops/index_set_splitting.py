"""Index set splitting: VECTOR loops with conditions on the counter become several loops in which these are constant.

In: a Kernel. Out: the kernel with such loops split, as for shifted, padded and concatenated arrays.

    for i < 128 (VECTOR):                         for i < 1 (VECTOR):      v = x[i + 127]; ...
      if (i < 1) v = x[i + 127]             ->    for i_1 < 127 (VECTOR):  v = x[i_1 + 1 - 1]; ...
      if (i >= 1) v = x[i - 1]; ...

A condition that compares the counter with a data-dependent bound is split likewise, as in arrays rolled by a variable.

    for i < 100 (VECTOR):                         c = clamp(0, 100 - p, 100)
      if (i + p < 100) v = x[i + p]         ->    for i < c (VECTOR):            v = x[i + p]; ...
      if (i + p >= 100) v = x[i + p - 100]        for i_rest < 100 - c (VECTOR): i = c + i_rest; v = x[i + p - 100]; ...

Compilers do not vectorize loops with loads under conditions. A loop of up to four iterations is unrolled: compilers
unroll it themselves only if its body is small (a step of an oscillator in f16: 0.3 of the time).
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.affine import Along
from hloc.kernels.indexing import index_apply
from hloc.kernels.walks import operation, parts, walk, with_expressions, with_parts
from hloc.machine import Machine

SHORTEST = 16               # minimum iterations of the longest part: shorter loops use masked lanes,
SHORTEST_NARROW = 2         # which elements of less than 32 bits have only with AVX-512
MOST_PARTS = 4
MOST_STATEMENTS = 500       # of all parts together
FIRST_BEYOND = {"compare_lt": 0, "compare_ge": 0, "compare_le": 1, "compare_gt": 1}    # start of the second side - c


def index_set_splitting(kernel: ir.Kernel, machine: Machine) -> ir.Kernel:
    """The kernel without conditions on the counters of VECTOR loops, if that takes few more loops."""
    return kernel._replace(body=_statements(kernel.body))


def _statements(statements: Iterable[ir.Stmt]) -> tuple[ir.Stmt, ...]:
    result: list[ir.Stmt] = []
    for s in statements:
        if isinstance(s, ir.For):
            result += _parts(s) if s.kind == ir.VECTOR else [s._replace(body=_statements(s.body))]
        else:
            result.append(s)
    return tuple(result)


def _parts(loop: ir.For) -> list[ir.Stmt]:
    """The loops that replace one; the loop itself if there is no gain."""
    inside = list(walk(loop.body))
    simple = all(isinstance(s, (ir.Let, ir.Mutable, ir.Assign, ir.Store, ir.If)) for s in inside)
    is_short = isinstance(loop.extent, int) and loop.extent < SHORTEST
    if simple and not is_short and len(inside) <= MOST_STATEMENTS // 2 and (sides := _sides(loop, inside)):
        return sides
    if not isinstance(loop.extent, int) or not simple:
        return [loop]
    conditions = [s.condition for s in inside if isinstance(s, ir.If)]
    places = {_first_beyond(e, loop.name) for e in parts(conditions) if isinstance(e, ir.Apply)}
    cuts = [0, *sorted(c for c in places if c is not None and 0 < c < loop.extent), loop.extent]
    lengths = [b - a for a, b in zip(cuts, cuts[1:])]
    is_tiny = loop.extent <= MOST_PARTS                 # almost every condition is constant in each part
    most = MOST_PARTS * MOST_STATEMENTS if is_tiny else MOST_STATEMENTS
    if not 1 < len(lengths) <= MOST_PARTS or not (is_tiny or max(lengths) >= _shortest(inside)) \
            or len(lengths) * len(inside) > most:
        return [loop]
    return [ir.For(_counter(loop.name, first), n, ir.VECTOR, _known(loop.body, loop.name, first, n))
            for first, n in zip(cuts, lengths)]


def _shortest(statements: list[ir.Stmt]) -> int:
    """The minimum length of the longest part."""
    stored = [ELEMENT_TYPES[s.value.type].bits for s in statements if isinstance(s, ir.Store)]
    return SHORTEST_NARROW if stored and max(stored) < 32 else SHORTEST


def _sides(loop: ir.For, inside: list[ir.Stmt]) -> list[ir.Stmt]:
    """Two loops for one all of whose conditions compare with one boundary; none if they compare with more."""
    conditions = [s.condition for s in inside if isinstance(s, ir.If)]
    asked = {(c.op, c.arguments) for c in conditions if isinstance(c, ir.Apply)}
    if not all(isinstance(c, ir.Apply) for c in conditions) \
            or sorted(op for op, _ in asked) != ["compare_ge", "compare_lt"] or len({of for _, of in asked}) != 1:
        return []
    _, (place, bound) = asked.pop()
    along = Along(loop)
    still = along.start(place)
    if along.step(place) != 1 or isinstance(still, ir.Const) or not isinstance(bound, ir.Const):
        return []
    left, none = index_apply("subtract", bound, still), ir.Const(0, ir.INDEX)
    most = ir.Const(loop.extent, ir.INDEX) if isinstance(loop.extent, int) else loop.extent
    cut = ir.Let(f"{loop.name}_cut", ir.Apply("minimum", (ir.Apply("maximum", (left, none), ir.INDEX), most), ir.INDEX))
    before, rest = ir.Var(cut.name, ir.INDEX), f"{loop.name}_rest"
    here = ir.Let(loop.name, index_apply("add", before, ir.Var(rest, ir.INDEX)))
    return [cut, ir.For(loop.name, before, ir.VECTOR, _on_side(loop.body, "compare_lt")),
            ir.For(rest, index_apply("subtract", most, before), ir.VECTOR, (here, *_on_side(loop.body, "compare_ge")))]


def _on_side(statements: Iterable[ir.Stmt], op: str) -> tuple[ir.Stmt, ...]:
    """The statements where each condition of this kind is true, and every other one is false."""
    result: list[ir.Stmt] = []
    for s in statements:
        if isinstance(s, ir.If):
            result += _on_side(s.then if operation(s.condition).op == op else s.otherwise, op)
        else:
            result.append(s)
    return tuple(result)


def _counter(name: str, first: int) -> str:
    """The counter of the part from `first` on: later passes derive names from it, so it must differ between parts."""
    return f"{name}_{first}" if first else name


def _first_beyond(condition: ir.Apply, name: str) -> int | None:
    """The first counter value that a comparison separates from those before."""
    if condition.op not in FIRST_BEYOND or condition.arguments[0] != ir.Var(name, ir.INDEX):
        return None
    bound = condition.arguments[1]
    return bound.integer + FIRST_BEYOND[condition.op] if isinstance(bound, ir.Const) else None


def _known(statements: Iterable[ir.Stmt], name: str, first: int, count: int) -> tuple[ir.Stmt, ...]:
    """The statements for counters from `first` on, as a loop from 0."""
    result: list[ir.Stmt] = []
    for s in statements:
        if not isinstance(s, ir.If):
            result.append(with_expressions(s, lambda e: _moved(e, name, first)))
            continue
        condition = _decided(s.condition, name, first, count)
        then, otherwise = (_known(branch, name, first, count) for branch in (s.then, s.otherwise))
        if isinstance(condition, bool):
            result += then if condition else otherwise
        else:
            result.append(ir.If(_moved(condition, name, first), then, otherwise))
    return tuple(result)


def _decided(condition: ir.Expr, name: str, first: int, count: int) -> ir.Expr | bool:
    """The remaining condition for `count` iterations from `first` on; True or False if it is constant."""
    if not isinstance(condition, ir.Apply):
        return condition
    beyond = _first_beyond(condition, name)
    if beyond is not None and (beyond <= first or beyond >= first + count):
        return (beyond <= first) == (condition.op in ("compare_ge", "compare_gt"))
    if condition.op != "and":
        return condition
    decided = [_decided(a, name, first, count) for a in condition.arguments]
    left = [a for a in decided if not isinstance(a, bool)]
    if False in decided or not left:
        return False not in decided
    return left[0] if len(left) == 1 else condition._replace(arguments=tuple(left))


def _moved(expr: ir.Expr, name: str, first: int) -> ir.Expr:
    """An expression of the whole loop's counter, in terms of a part's counter."""
    if first and expr == ir.Var(name, ir.INDEX):
        return index_apply("add", ir.Var(_counter(name, first), ir.INDEX), ir.Const(first, ir.INDEX))
    return with_parts(expr, lambda part: _moved(part, name, first))
