"""Evaluators with the roundings of other correct implementations (causes.py finds out which one explains a result).

    Contracting(module, 0).run(arrays)       a multiply and the add that reads it are rounded once
    Flushing(module).run(arrays)             arithmetic takes subnormal numbers for zero
    Reordering(module, seed).run(arrays)     sums add their terms in another order
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hloc.evaluate import CustomCall, Evaluator
from hloc.ir import Instruction, Module
from hloc.ops.table import OPS
from hloc.ops.values import Value
from hloc.tools.stability import EXACT, SUMS, AlteredEvaluator

WIDER: dict[np.dtype, np.dtype] = {np.dtype(np.float32): np.dtype(np.float64),
                                   np.dtype(np.float64): np.dtype(np.longdouble)}


class Contracting(AlteredEvaluator):
    """A multiply that an add reads is exact; if an add reads two, that of the operand `first`."""

    def __init__(self, module: Module, first: int, calls: Mapping[str, CustomCall] | None):
        super().__init__(module, custom_calls=calls)
        self.first = first
        self.products: dict[Instruction, np.ndarray] = {}

    def altered(self, function: Callable, instruction: Instruction) -> Callable:
        if instruction.opcode == "multiply":
            return self._keeping(function)
        return self._with_products(function, product_of(instruction, self.first))

    def _keeping(self, function: Callable) -> Callable:
        def run(evaluator: Evaluator, instruction: Instruction, x: Value, y: Value) -> Value:
            wide = WIDER.get(np.asarray(x).dtype)
            if wide is not None:
                with np.errstate(all="ignore"):
                    self.products[instruction] = np.multiply(x, y, dtype=wide)
            return function(evaluator, instruction, x, y)
        return run

    def _with_products(self, function: Callable, product: Instruction | None) -> Callable:
        if product is None:
            return function

        def run(evaluator: Evaluator, instruction: Instruction, x: Value, y: Value) -> Value:
            if product not in self.products:
                return function(evaluator, instruction, x, y)
            exact = self.products[product]
            left, right = (exact if o is product else v for o, v in zip(instruction.operands, (x, y)))
            operation = np.add if instruction.opcode == "add" else np.subtract
            with np.errstate(all="ignore"):
                return operation(left, right, dtype=exact.dtype).astype(np.asarray(x).dtype)
        return run


def product_of(instruction: Instruction, first: int) -> Instruction | None:
    """The multiply that an add reads; of two that of the operand `first`."""
    if instruction.opcode not in ("add", "subtract"):
        return None
    order = instruction.operands if first == 0 else instruction.operands[::-1]
    return next((o for o in order if o.opcode == "multiply"), None)


class Flushing(AlteredEvaluator):
    """Subnormal numbers are zero in arithmetic."""

    def altered(self, function: Callable, instruction: Instruction) -> Callable:
        opcode = instruction.opcode
        if opcode not in SUMS and (opcode in EXACT or not OPS[opcode].is_elementwise):
            return function

        def run(evaluator: Evaluator, instruction: Instruction, *operands: Value) -> Value:
            return _flushed(function(evaluator, instruction, *map(_flushed, operands)))
        return run


def _flushed(value: Value) -> Value:
    if not isinstance(value, np.ndarray) or value.dtype not in WIDER:
        return value
    tiny = np.finfo(value.dtype).tiny
    return np.where(np.abs(value) < tiny, np.copysign(value.dtype.type(0), value), value)


class Reordering(AlteredEvaluator):
    """Additive reductions, dots and convolutions add their terms in another order; in the first two runs reductions
    add them one after the other, forwards and backwards."""

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
        """The operands with the dimensions `left` of the first and `right` of the second in the same new order."""
        def run(evaluator: Evaluator, instruction: Instruction, x: Value, y: Value) -> Value:
            for number, dimension in enumerate(left):
                order = self.generator.permutation(x.shape[dimension])
                x = np.take(x, order, dimension)
                if right:
                    y = np.take(y, order, right[number])
            return function(evaluator, instruction, x, y)
        return run

    def _one_by_one(self, dimensions: Sequence[int]) -> Callable:
        def run(evaluator: Evaluator, instruction: Instruction, x: Value, start: Value) -> Value:
            kept = [d for d in range(x.ndim) if d not in dimensions]
            rows = np.transpose(x, [*kept, *dimensions]).reshape([x.shape[d] for d in kept] + [-1])
            rows = rows if self.seed == 0 else rows[..., ::-1]
            total = np.broadcast_to(np.asarray(start, x.dtype), rows.shape[:-1])[..., None]
            with np.errstate(all="ignore"):
                return np.add.accumulate(np.concatenate([total, rows], -1), -1, dtype=x.dtype)[..., -1]
        return run
