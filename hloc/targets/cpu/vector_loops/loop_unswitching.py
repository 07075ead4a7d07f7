"""Loop unswitching: loop-invariant conditions in VECTOR loops are moved around loops without them.

In: a Kernel. Out: the kernel with a copy of such loops for each case, as for rows that are padded and concatenated.

    for i < 32 (VECTOR):                       if (row < 1)  for i < 32 (VECTOR): out[i] = x[i]
      if (row < 1) v = x[i]              ->    else          for i < 32 (VECTOR): out[i] = y[i - 32]
      if (row >= 1) v = y[i - 32]
      out[i] = v

C compilers also do this, for few conditions in short loops; they do not vectorize other loops. After this pass rows of
f16 are read by vectors, so for these one condition is enough.
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.kernels import ir
from hloc.kernels.walks import expressions, parts, walk, with_vector_loops
from hloc.machine import Machine

FEWEST_CONDITIONS = 3       # compilers handle fewer
MOST_SPLITS = 15            # of one loop: 16 cases
MOST_STATEMENTS = 500       # of all cases together
OPPOSITE = {"compare_lt": "compare_ge", "compare_ge": "compare_lt", "compare_le": "compare_gt",
            "compare_gt": "compare_le", "compare_eq": "compare_ne", "compare_ne": "compare_eq"}


def loop_unswitching(kernel: ir.Kernel, machine: Machine) -> ir.Kernel:
    """The kernel without loop-invariant conditions in VECTOR loops that have several of them."""
    return kernel._replace(body=with_vector_loops(kernel.body, lambda loop: (_by_cases(loop),)))


def _by_cases(loop: ir.For) -> ir.Stmt:
    """The loops that replace one, under conditions; the loop itself if it has few conditions or too many."""
    if not all(isinstance(s, (ir.Let, ir.Mutable, ir.Assign, ir.Store, ir.If)) for s in walk(loop.body)):
        return loop
    conditions = len(set(_conditions(loop)))
    if conditions < FEWEST_CONDITIONS and not (conditions and _loads_halves(loop)):
        return loop
    made = _case(loop, [MOST_SPLITS])
    return made if made is not None and sum(1 for _ in walk([made])) <= MOST_STATEMENTS else loop


def _loads_halves(loop: ir.For) -> bool:
    """Whether f16 is read under a condition: its lanes are loaded together without one (loop_schedules.py)."""
    return any(isinstance(e, ir.Load) and e.type == "f16" for s in walk(loop.body) if isinstance(s, ir.If)
               for inner in walk([s]) for e in parts(expressions(inner)))


def _case(loop: ir.For, left: list[int]) -> ir.Stmt | None:
    """A loop whose first condition is moved around it, in both cases; None if `left` splits are not enough. They are
    counted on the way down: n nested conditions may give 2^n cases."""
    condition = next(iter(_conditions(loop)), None)
    if condition is None:
        return loop
    left[0] -= 1
    if left[0] < 0:
        return None
    branches = []
    for value in (True, False):
        case = _case(loop._replace(body=_known(loop.body, condition, value)), left)
        if case is None:
            return None
        branches.append((case,))
    return ir.If(condition, *branches)


def _conditions(loop: ir.For) -> Iterable[ir.Expr]:
    """The loop-invariant conditions, in order."""
    inside = list(walk(loop.body))
    changing = {loop.name, *(s.name for s in inside if isinstance(s, (ir.Let, ir.Mutable, ir.Assign)))}
    for s in inside:
        if isinstance(s, ir.If) and not any(isinstance(e, ir.Load) or isinstance(e, ir.Var) and e.name in changing
                                         for e in parts([s.condition])):
            yield s.condition


def _known(statements: Iterable[ir.Stmt], condition: ir.Expr, value: bool) -> tuple[ir.Stmt, ...]:
    """The statements where a condition is known to be true, or false."""
    result: list[ir.Stmt] = []
    for s in statements:
        if not isinstance(s, ir.If):
            result.append(s)
            continue
        then, otherwise = (_known(branch, condition, value) for branch in (s.then, s.otherwise))
        decided = _decided(s.condition, condition, value)
        if decided is None:
            result.append(ir.If(s.condition, then, otherwise))
        else:
            result += then if decided else otherwise
    return tuple(result)


def _decided(asked: ir.Expr, condition: ir.Expr, value: bool) -> bool | None:
    """Whether a condition is true if another one is true, or false; None if that does not decide it."""
    if asked == condition:
        return value
    if isinstance(asked, ir.Apply) and asked.op in OPPOSITE and asked._replace(op=OPPOSITE[asked.op]) == condition:
        return not value
    if isinstance(asked, ir.Apply) and asked.op == "and" and any(_decided(a, condition, value) is False
                                                              for a in asked.arguments):
        return False
    return None
