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

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hloc.errors import HlocError
from hloc.evaluate import CustomCall, Evaluator
from hloc.inputs import Named
from hloc.ir import Instruction, Module
from hloc.ops.table import OPS
from hloc.ops.values import Value
from hloc.tools.compare import Difference, compare
from hloc.tools.stability import EXACT, SUMS, AlteredEvaluator
from hloc.tools.widened import widened_run

EXPLAINED = 0.1                 # of the difference may be left where a cause holds
ORDERS = 6                      # of each sum: the terms one after the other, from both ends, then drawn orders
ORDER_FACTOR = 4.0              # two right orders differ by some times what one moves
SUMMING = frozenset({"reduce", "dot", "convolution"})
WIDER = {np.dtype(np.float32): np.dtype(np.float64), np.dtype(np.float64): np.dtype(np.longdouble)}

Results = Sequence[np.ndarray]


def causes_of(module: Module, arrays: Results, rows: Sequence[Difference], results: Sequence[Named], got: Results,
              want: Results, custom_calls: Mapping[str, CustomCall] | None = None,
              names: tuple[str, str] = ("one side", "the other")) -> list[tuple[str, ...]]:
    """The causes of each row, which does not agree; `names` of the sides of got and want."""
    found: list[list[str]] = [[] for _ in rows]
    plain = _results(lambda: Evaluator(module, custom_calls=custom_calls).run(arrays))
    if plain is None:
        return [() for _ in rows]
    for text, run in _hypotheses(module, arrays, custom_calls):
        altered = _results(run)
        if altered is None:
            continue
        for name, theirs, other in ((names[0], got, want), (names[1], want, got)):
            near, far = compare(results, theirs, altered, 0.0), compare(results, other, plain, 0.0)
            for place, row in enumerate(rows):
                if not row.agrees and _matches(near[place], row) and _matches(far[place], row):
                    found[place].append(text.format(side=name))
    if any(not row.agrees and not row.note for row in rows) and any(i.opcode in SUMMING for i in module.instructions()):
        moved = _moved_by_order(module, arrays, results, plain, custom_calls)
        for place, row in enumerate(rows):
            if not row.agrees and not row.note and 0 < row.error <= ORDER_FACTOR * moved[place]:
                found[place].append(f"order of a sum: other orders of the terms move it by {moved[place]:.1e}")
    return [tuple(dict.fromkeys(each)) for each in found]


def _matches(near: Difference, row: Difference) -> bool:
    """Whether a run explains a side: what is left is within the tolerance, or little of the difference."""
    return not near.note and near.error <= max(row.tolerance, EXPLAINED * row.error if np.isfinite(row.error) else 0.0)


def _results(run: Callable[[], Results]) -> Results | None:
    """None where the evaluator cannot run so."""
    try:
        return run()
    except HlocError:
        return None


def _hypotheses(module: Module, arrays: Results, calls: Mapping[str, CustomCall] | None):
    """What is printed where it holds, and the run that finds out."""
    contracted = "contraction (fma): {side} rounds a product and the sum behind it once"
    if any(_product_of(i, 0) is not None for i in module.instructions()):
        yield contracted, lambda: _Contracting(module, 0, calls).run(arrays)
        yield contracted, lambda: _Contracting(module, 1, calls).run(arrays)
    yield "flushed subnormal: {side} takes subnormal numbers for zero", lambda: _Flushing(
        module, custom_calls=calls).run(arrays)
    wide = widened_run(module, calls)
    if wide is not None:
        yield ("rounding of an intermediate type: {side} keeps in f32 what the module rounds to 16 bits",
               lambda: wide(arrays))


class _Contracting(AlteredEvaluator):
    """Products that sums read are exact; where a sum reads two, that of the operand `first`."""

    def __init__(self, module: Module, first: int, calls: Mapping[str, CustomCall] | None):
        super().__init__(module, custom_calls=calls)
        self.first = first
        self.products: dict[Instruction, np.ndarray] = {}

    def altered(self, function: Callable, instruction: Instruction) -> Callable:
        if instruction.opcode == "multiply":
            return self._keeping(function)
        return self._with_products(function, _product_of(instruction, self.first))

    def _keeping(self, function: Callable) -> Callable:
        def run(evaluator, instruction, x: Value, y: Value) -> Value:
            if np.asarray(x).dtype in WIDER:
                wide = WIDER[np.asarray(x).dtype]
                with np.errstate(all="ignore"):
                    self.products[instruction] = np.multiply(x, y, dtype=wide)
            return function(evaluator, instruction, x, y)
        return run

    def _with_products(self, function: Callable, product: Instruction | None) -> Callable:
        if product is None:
            return function

        def run(evaluator, instruction, x: Value, y: Value) -> Value:
            if product not in self.products:
                return function(evaluator, instruction, x, y)
            exact = self.products[product]
            left, right = (exact if o is product else v for o, v in zip(instruction.operands, (x, y)))
            operation = np.add if instruction.opcode == "add" else np.subtract
            with np.errstate(all="ignore"):
                return operation(left, right, dtype=exact.dtype).astype(np.asarray(x).dtype)
        return run


def _product_of(instruction: Instruction, first: int) -> Instruction | None:
    """The product that a sum reads; of two that of the operand `first`."""
    if instruction.opcode not in ("add", "subtract"):
        return None
    order = instruction.operands if first == 0 else instruction.operands[::-1]
    return next((o for o in order if o.opcode == "multiply"), None)


class _Flushing(AlteredEvaluator):
    """Subnormal numbers are zero in arithmetic."""

    def altered(self, function: Callable, instruction: Instruction) -> Callable:
        opcode = instruction.opcode
        if opcode not in SUMS and (opcode in EXACT or not OPS[opcode].is_elementwise):
            return function

        def run(evaluator, instruction, *operands: Value) -> Value:
            return _flushed(function(evaluator, instruction, *map(_flushed, operands)))
        return run


def _flushed(value: Value) -> Value:
    if not isinstance(value, np.ndarray) or value.dtype not in WIDER:
        return value
    tiny = np.finfo(value.dtype).tiny
    return np.where(np.abs(value) < tiny, np.copysign(value.dtype.type(0), value), value)


def _moved_by_order(module: Module, arrays: Results, results: Sequence[Named], plain: Results,
                    calls: Mapping[str, CustomCall] | None) -> list[float]:
    """How far each result goes with the terms of its sums in other orders, at most."""
    moved = [0.0] * len(results)
    for seed in range(ORDERS):
        other = _results(lambda seed=seed: _Reordering(module, seed, calls).run(arrays))
        for place, row in enumerate(compare(results, other, plain) if other is not None else ()):
            moved[place] = max(moved[place], 0.0 if row.note else row.error)
    return moved


class _Reordering(AlteredEvaluator):
    """The terms of reductions that add, of dots and of convolutions come in another order; in the first two runs
    the terms of reductions are added one after the other, forwards and backwards."""

    def __init__(self, module: Module, seed: int, calls: Mapping[str, CustomCall] | None):
        super().__init__(module, custom_calls=calls)
        self.seed = seed
        self.generator = np.random.default_rng(seed)

    def altered(self, function: Callable, instruction: Instruction) -> Callable:
        if instruction.opcode == "reduce" and len(instruction.operands) == 2 \
                and instruction.get("to_apply").root.opcode == "add":
            dimensions = instruction.get("dimensions")
            return self._one_by_one(dimensions) if self.seed < 2 else self._permuted(function, dimensions, ())
        if instruction.opcode == "dot":
            return self._permuted(function, instruction.get("lhs_contracting_dims", ()),
                                  instruction.get("rhs_contracting_dims", ()))
        numbers = instruction.get("dim_labels")
        if instruction.opcode == "convolution" and numbers and instruction.get("feature_group_count", 1) == 1 \
                and instruction.get("batch_group_count", 1) == 1:
            return self._permuted(function, (numbers.input_feature,), (numbers.kernel_input_feature,))
        return function

    def _permuted(self, function: Callable, left: Sequence[int], right: Sequence[int]) -> Callable:
        """The dimensions `left` of the first operand and `right` of the second, in the same new order."""
        def run(evaluator, instruction, x: Value, y: Value) -> Value:
            for number, dimension in enumerate(left):
                order = self.generator.permutation(x.shape[dimension])
                x = np.take(x, order, dimension)
                if right:
                    y = np.take(y, order, right[number])
            return function(evaluator, instruction, x, y)
        return run

    def _one_by_one(self, dimensions: Sequence[int]) -> Callable:
        def run(evaluator, instruction, x: Value, start: Value) -> Value:
            kept = [d for d in range(x.ndim) if d not in dimensions]
            rows = np.transpose(x, [*kept, *dimensions]).reshape([x.shape[d] for d in kept] + [-1])
            rows = rows if self.seed == 0 else rows[..., ::-1]
            total = np.broadcast_to(np.asarray(start, x.dtype), rows.shape[:-1])[..., None]
            with np.errstate(all="ignore"):
                return np.add.accumulate(np.concatenate([total, rows], -1), -1, dtype=x.dtype)[..., -1]
        return run
