"""Specialization: VECTOR loops with conditions become loops without them, each for some iterations or for one case.

In: a Kernel. Out: the kernel with such loops replaced. Conditions on the counter cut it (index set splitting), as for
shifted, padded and concatenated arrays:

    for i < 128 (VECTOR):                         for i < 1 (VECTOR):      v = x[i + 127]; ...
      if (i < 1) v = x[i + 127]             ->    for i_1 < 127 (VECTOR):  v = x[i_1 + 1 - 1]; ...
      if (i >= 1) v = x[i - 1]; ...

Conditions that are the same for all iterations are moved around the loop (unswitching), as for rows that are padded and
concatenated:

    for i < 32 (VECTOR):                       if (row < 1)  for i < 32 (VECTOR): out[i] = x[i]
      if (row < 1) v = x[i]              ->    else          for i < 32 (VECTOR): out[i] = y[i - 32]
      if (row >= 1) v = y[i - 32]
      out[i] = v

Compilers do not vectorize loops with loads under conditions. A loop of up to four iterations is unrolled: compilers
unroll it themselves only if its body is small (a step of an oscillator in f16: 0.3 of the time).
"""
from __future__ import annotations

from collections.abc import Callable, Iterable

from hloc.kernels import ir
from hloc.kernels.indexing import index_apply
from hloc.kernels.walks import loads, parts, varying, walk, with_all_expressions, with_values, with_vector_loops
from hloc.machine import Machine

MOST_PARTS = 4
FEWEST_CONDITIONS = 3       # that are the same for the whole loop: compilers handle fewer
MOST_SPLITS = 15            # of one loop by them: 16 cases
MOST_STATEMENTS = 500       # of all loops that replace one
FIRST_BEYOND = {"compare_lt": 0, "compare_ge": 0, "compare_le": 1, "compare_gt": 1}    # start of the second side - c
OPPOSITE = {"compare_lt": "compare_ge", "compare_ge": "compare_lt", "compare_le": "compare_gt",
            "compare_gt": "compare_le", "compare_eq": "compare_ne", "compare_ne": "compare_eq"}

Fact = Callable[[ir.Expr], bool | None]     # what is known of a condition


def specialization(kernel: ir.Kernel, machine: Machine) -> ir.Kernel:
    """The kernel without conditions in VECTOR loops, as far as that takes few more loops."""
    return kernel._replace(body=with_vector_loops(kernel.body, _specialized))


def _specialized(loop: ir.For) -> tuple[ir.Stmt, ...]:
    inside = list(walk(loop.body))
    if not all(isinstance(s, (ir.Let, ir.Mutable, ir.Assign, ir.Store, ir.If)) for s in inside):
        return (loop,)
    return tuple(map(_by_cases, _index_sets(loop, inside) or [loop]))


def _conditions(statements: Iterable[ir.Stmt]) -> list[ir.Expr]:
    return [s.condition for s in walk(statements) if isinstance(s, ir.If)]


# -- what is known -----------------------------------------------------------------------------------------------------

def _known(statements: Iterable[ir.Stmt], fact: Fact) -> tuple[ir.Stmt, ...]:
    """The statements without conditions that are known."""
    result: list[ir.Stmt] = []
    for s in statements:
        if not isinstance(s, ir.If):
            result.append(s)
            continue
        condition = _remaining(s.condition, fact)
        then, otherwise = (_known(branch, fact) for branch in (s.then, s.otherwise))
        if isinstance(condition, bool):
            result += then if condition else otherwise
        else:
            result.append(ir.If(condition, then, otherwise))
    return tuple(result)


def _remaining(condition: ir.Expr, fact: Fact) -> ir.Expr | bool:
    """What remains of a condition; True or False if it is known."""
    known = fact(condition)
    if known is not None or not isinstance(condition, ir.Apply) or condition.op != "and":
        return condition if known is None else known
    left = [r for r in (_remaining(a, fact) for a in condition.arguments) if r is not True]
    exprs = tuple(r for r in left if not isinstance(r, bool))
    if len(exprs) < len(left) or not left:
        return not left
    return exprs[0] if len(exprs) == 1 else condition._replace(arguments=exprs)


def _case(condition: ir.Expr, value: bool) -> Fact:
    """What is known where a condition has a value."""
    known = {condition: value}
    if isinstance(condition, ir.Apply) and condition.op in OPPOSITE:
        known[condition._replace(op=OPPOSITE[condition.op])] = not value
    return known.get


def _within(name: str, first: int, count: int) -> Fact:
    """What is known in `count` iterations from `first` on."""
    def fact(asked: ir.Expr) -> bool | None:
        beyond = _first_beyond(asked, name)
        if beyond is None or not isinstance(asked, ir.Apply) or first < beyond < first + count:
            return None
        return (beyond <= first) == (asked.op in ("compare_ge", "compare_gt"))
    return fact


def _first_beyond(condition: ir.Expr, name: str) -> int | None:
    """The first counter value that a comparison separates from those before."""
    if not isinstance(condition, ir.Apply) or condition.op not in FIRST_BEYOND \
            or condition.arguments[0] != ir.Var(name, ir.INDEX):
        return None
    bound = condition.arguments[1]
    return bound.integer + FIRST_BEYOND[condition.op] if isinstance(bound, ir.Const) else None


# -- conditions on the counter -----------------------------------------------------------------------------------------

def _index_sets(loop: ir.For, inside: list[ir.Stmt]) -> list[ir.For]:
    """The loops between the iterations at which conditions change; none if there is no gain."""
    if not isinstance(loop.extent, int):
        return []
    places = {_first_beyond(e, loop.name) for e in parts(_conditions(loop.body))}
    cuts = [0, *sorted(c for c in places if c is not None and 0 < c < loop.extent), loop.extent]
    lengths = [b - a for a, b in zip(cuts, cuts[1:])]
    is_tiny = loop.extent <= MOST_PARTS                 # almost every condition is constant in each part
    most = MOST_PARTS * MOST_STATEMENTS if is_tiny else MOST_STATEMENTS
    if not 1 < len(lengths) <= MOST_PARTS or len(lengths) * len(inside) > most:
        return []
    return [_part(loop, first, n) for first, n in zip(cuts, lengths)]


def _part(loop: ir.For, first: int, count: int) -> ir.For:
    """The loop over some iterations; later passes derive names from its counter, so each part has its own."""
    counter = f"{loop.name}_{first}" if first else loop.name
    moved = {ir.Var(loop.name, ir.INDEX): index_apply("add", ir.Var(counter, ir.INDEX), ir.Const(first, ir.INDEX))}
    body = _known(loop.body, _within(loop.name, first, count))
    return ir.For(counter, count, ir.VECTOR, with_all_expressions(body, lambda e: with_values(e, moved)))


# -- conditions that are the same for all iterations -------------------------------------------------------------------

def _by_cases(loop: ir.For) -> ir.Stmt:
    """The loops that replace one, under conditions; the loop itself if it has few conditions or too many. f16 that is
    read under a condition is loaded in lanes without one (loop_schedules.py): then one condition is enough."""
    conditions = len(set(_invariant(loop)))
    reads_halves = any(load.type == "f16" for s in walk(loop.body) if isinstance(s, ir.If) for load in loads([s]))
    if conditions < FEWEST_CONDITIONS and not (conditions and reads_halves):
        return loop
    made = _cases(loop, [MOST_SPLITS])
    return made if made is not None and sum(1 for _ in walk([made])) <= MOST_STATEMENTS else loop


def _cases(loop: ir.For, left: list[int]) -> ir.Stmt | None:
    """A loop whose first condition is moved around it, in both cases; None if `left` splits are not enough. They are
    counted on the way down: n nested conditions may give 2^n cases."""
    condition = next(iter(_invariant(loop)), None)
    if condition is None:
        return loop
    left[0] -= 1
    if left[0] < 0:
        return None
    branches = []
    for value in (True, False):
        case = _cases(loop._replace(body=_known(loop.body, _case(condition, value))), left)
        if case is None:
            return None
        branches.append((case,))
    return ir.If(condition, *branches)


def _invariant(loop: ir.For) -> list[ir.Expr]:
    """The conditions that are the same for all iterations, in order."""
    changing = {loop.name} | varying(loop.body)
    return [c for c in _conditions(loop.body) if not any(
        isinstance(e, ir.Load) or isinstance(e, ir.Var) and e.name in changing for e in parts([c]))]
