"""Differences that have a name: what two right evaluations of one module may do otherwise.

In: a module, its inputs, and what two sides gave for them. Out: per result the causes that hold. Each is tried: the
evaluator runs the module once more, as if the cause were at work, and the cause holds where one side gave what that run
gives, and the other what the plain run gives.

    causes_of(module, arrays, rows, results, got, want)[0]     ("contraction (fma): got rounds a product and ...",)

contraction          a product and the sum behind it are rounded once (Muller et al., Handbook of Floating-Point
                     Arithmetic, chapter 7: fused multiply-add)
flushed subnormal    arithmetic takes subnormal numbers for zero, and gives zero for them
intermediate type    what the module rounds to bf16 or f16 in between is kept in f32
order of a sum       other orders of the terms move the result as far as the two sides differ
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from hloc.errors import HlocError
from hloc.evaluate import CustomCall, Evaluator
from hloc.inputs import Named
from hloc.ir import Module
from hloc.tools.altered import Contracting, Flushing, Reordering, product_of
from hloc.tools.compare import Difference, compare
from hloc.tools.widened import widened_run

EXPLAINED = 0.1                 # of the difference may be left where a cause holds
ORDERS = 6                      # of each sum: the terms one after the other, from both ends, then drawn orders
ORDER_FACTOR = 4.0              # two right orders differ by some times what one moves
SUMMING = frozenset({"reduce", "dot", "convolution"})
FAR = 1000.0                    # times what rounding moves a result: no cause that is one rounding goes so far

Results = Sequence[np.ndarray]


def causes_of(module: Module, arrays: Results, rows: Sequence[Difference], results: Sequence[Named], got: Results,
              want: Results, custom_calls: Mapping[str, CustomCall] | None = None,
              names: tuple[str, str] = ("one side", "the other")) -> list[tuple[str, ...]]:
    """The causes of each row, which does not agree; `names` of the sides of got and want."""
    found: list[list[str]] = [[] for _ in rows]
    plain = _results(lambda: Evaluator(module, custom_calls=custom_calls).run(arrays))
    if plain is None:
        return [() for _ in rows]
    rounds = any(_is_near(row) for row in rows)
    for text, run in _hypotheses(module, arrays, custom_calls, rounds):
        altered = _results(run)
        if altered is None:
            continue
        for name, theirs, other in ((names[0], got, want), (names[1], want, got)):
            near, far = compare(results, theirs, altered, 0.0), compare(results, other, plain, 0.0)
            for place, row in enumerate(rows):
                if not row.agrees and _matches(near[place], row) and _matches(far[place], row):
                    found[place].append(text.format(side=name))
    if rounds and any(i.opcode in SUMMING for i in module.instructions()):
        moved = _moved_by_order(module, arrays, results, plain, custom_calls)
        for place, row in enumerate(rows):
            if _is_near(row) and 0 < row.error <= ORDER_FACTOR * moved[place]:
                found[place].append(f"order of a sum: other orders of the terms move it by {moved[place]:.1e}")
    return [tuple(dict.fromkeys(each)) for each in found]


def _is_near(row: Difference) -> bool:
    """Whether another rounding may be the cause; each cause takes runs of the evaluator, which are not cheap."""
    return not row.agrees and not row.note and (row.moved == 0 or row.error <= FAR * row.moved)


def _matches(near: Difference, row: Difference) -> bool:
    """Whether a run explains a side: what is left is within the tolerance, or little of the difference."""
    return not near.note and near.error <= max(row.tolerance, EXPLAINED * row.error if np.isfinite(row.error) else 0.0)


def _results(run: Callable[[], Results]) -> Results | None:
    """None where the evaluator cannot run so."""
    try:
        return run()
    except HlocError:
        return None


def _hypotheses(module: Module, arrays: Results, calls: Mapping[str, CustomCall] | None,
                rounds: bool) -> Iterator[tuple[str, Callable[[], Results]]]:
    """What is printed where it holds, and the run that finds out. rounds: also those that are one other rounding."""
    yield "flushed subnormal: {side} takes subnormal numbers for zero", lambda: Flushing(
        module, custom_calls=calls).run(arrays)
    if not rounds:
        return
    contracted = "contraction (fma): {side} rounds a product and the sum behind it once"
    for first in (0, 1) if any(product_of(i, 0) is not None for i in module.instructions()) else ():
        yield contracted, lambda first=first: Contracting(module, first, calls).run(arrays)
    wide = widened_run(module, calls)
    if wide is not None:
        yield ("rounding of an intermediate type: {side} keeps in f32 what the module rounds to 16 bits",
               lambda: wide(arrays))


def _moved_by_order(module: Module, arrays: Results, results: Sequence[Named], plain: Results,
                    calls: Mapping[str, CustomCall] | None) -> list[float]:
    """How far each result goes with the terms of its sums in other orders, at most."""
    moved = [0.0] * len(results)
    for seed in range(ORDERS):
        other = _results(lambda seed=seed: Reordering(module, seed, calls).run(arrays))
        for place, row in enumerate(compare(results, other, plain) if other is not None else ()):
            moved[place] = max(moved[place], 0.0 if row.note else row.error)
    return moved
