"""Named differences: where two correct implementations of a module may differ.

In: a module, its inputs, and the results of two sides. Out: the causes of each result's difference. The evaluator runs
the module once more for each cause, with that change. The cause is named if one side gives the results of that run,
and the other side those of the plain run.

    causes_of(module, arrays, rows, results, got, want)[0]     ("contraction (fma): got rounds a product and ...",)

contraction          a multiply and the add after it are rounded once (Muller et al., Handbook of Floating-Point
                     Arithmetic, chapter 7: fused multiply-add)
flushed subnormal    arithmetic takes subnormal numbers for zero, and gives zero for them
intermediate type    intermediate values of bf16 or f16 are kept in f32
order of a sum       other orders of the terms change the result by as much as the two sides differ
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from hloc.errors import HlocError
from hloc.evaluate import CustomCall, Evaluator
from hloc.inputs import Named
from hloc.ir import Module
from hloc.tools.compare import Difference, compare
from hloc.tools.rounding_variants import Contracting, Flushing, Reordering, product_of
from hloc.tools.widened import widened_run

EXPLAINED = 0.1                 # of the difference may remain if a cause is named
ORDERS = 6                      # of each sum: one after the other, from both ends, then random orders
ORDER_FACTOR = 4.0              # two correct orders may differ by several times one change
SUMMING = frozenset({"reduce", "dot", "convolution"})
FAR = 1000.0                    # times the effect of rounding: no cause of one rounding has a larger one

Results = Sequence[np.ndarray]


def causes_of(module: Module, arrays: Results, rows: Sequence[Difference], results: Sequence[Named], got: Results,
              want: Results, custom_calls: Mapping[str, CustomCall] | None = None,
              names: tuple[str, str] = ("one side", "the other")) -> list[tuple[str, ...]]:
    """The causes of each row that does not agree; `names` of the sides of got and want."""
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
    """Whether different rounding may be the cause: each cause takes expensive runs of the evaluator."""
    return not row.agrees and not row.note and (row.moved == 0 or row.error <= FAR * row.moved)


def _matches(near: Difference, row: Difference) -> bool:
    """Whether a run explains a side: the rest is within the tolerance, or a small part of the difference."""
    return not near.note and near.error <= max(row.tolerance, EXPLAINED * row.error if np.isfinite(row.error) else 0.0)


def _results(run: Callable[[], Results]) -> Results | None:
    """The results, or None if the evaluator cannot run it."""
    try:
        return run()
    except HlocError:
        return None


def _hypotheses(module: Module, arrays: Results, calls: Mapping[str, CustomCall] | None,
                rounds: bool) -> Iterator[tuple[str, Callable[[], Results]]]:
    """For each cause, its text and the run that tests it. rounds: include causes of one different rounding."""
    yield "flushed subnormal: {side} takes subnormal numbers for zero", lambda: Flushing(
        module, custom_calls=calls).run(arrays)
    if not rounds:
        return
    contracted = "contraction (fma): {side} rounds a multiply and the add after it once"
    for first in (0, 1) if any(product_of(i, 0) is not None for i in module.instructions()) else ():
        yield contracted, partial(Contracting(module, first, calls).run, arrays)
    wide = widened_run(module, calls)
    if wide is not None:
        yield ("rounding of an intermediate type: {side} keeps in f32 what the module rounds to 16 bits",
               lambda: wide(arrays))


def _moved_by_order(module: Module, arrays: Results, results: Sequence[Named], plain: Results,
                    calls: Mapping[str, CustomCall] | None) -> list[float]:
    """The largest change of each result if its sums add their terms in other orders."""
    moved = [0.0] * len(results)
    for seed in range(ORDERS):
        other = _results(partial(Reordering(module, seed, calls).run, arrays))
        for place, row in enumerate(compare(results, other, plain) if other is not None else ()):
            moved[place] = max(moved[place], 0.0 if row.note else row.error)
    return moved
