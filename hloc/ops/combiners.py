"""Combiners: the scalar computations of reduce, scatter, sort ..., applied to whole arrays.

In: a computation such as add(a, b). Out: a Combiner; if the computation is one op on its two parameters, it uses
NumPy's ufunc, and sums and products of floats are computed in f64 (XLA leaves the order free; this is most accurate).
If XLA stores each sum before it adds the next, as in scatter, floats of at most two bytes are rounded each time.

    combiner = Combiner(evaluator, instruction.get("to_apply"))
    (total,) = combiner(combiner.widen([a]), combiner.widen([b]))
"""
from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from hloc.ir import ELEMENT_TYPES, Computation, Instruction, numpy_dtype
from hloc.ops.checks import root_parts
from hloc.ops.numerics import narrow

_UFUNCS = {
    "add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}
_WIDENED = ("add", "multiply")
_SHORT_INTEGERS = ("int4", "uint4", "int2", "uint2", "int1", "uint1")
SHORT_AXIS = 32             # NumPy's loops run along the last axis, so a short one is combined last
_PRED_UFUNCS = {"add": np.logical_or, "multiply": np.logical_and, "maximum": np.logical_or, "minimum": np.logical_and,
                "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def sole_root(computation: Computation) -> Instruction:
    """The root, or the only element of a root that is a tuple of one."""
    root = computation.root
    return root.operands[0] if root.opcode == "tuple" and len(root.operands) == 1 else root


def plain_opcode(computation: Computation) -> str | None:
    """"add", "maximum" ... if the computation is that op on its parameters 0 and 1; "second" for its parameter 1.

    Compilers that have no arithmetic of narrow floats write bf16(f32(a) + f32(b)): the same sum, rounded to the type of
    the parameters. A conversion to a type that does not hold all their numbers makes it another function."""
    root = sole_root(computation)
    if root.opcode == "parameter" and len(computation.parameters) == 2:
        return "second" if root.parameter_number == 1 else "first"
    if len(computation.parameters) != 2:
        return None
    root = _unconverted(root, computation)
    if root.opcode not in _UFUNCS:
        return None
    operands = [_unconverted(o, computation) for o in root.operands]
    numbers = sorted(o.parameter_number for o in operands if o.parameter_number is not None)
    return root.opcode if numbers == [0, 1] else None


def _unconverted(node: Instruction, computation: Computation) -> Instruction:
    """The operand of conversions between floats that hold all values of the parameters."""
    types = {p.shape.element_type for p in computation.parameters}
    while node.opcode in ("convert", "copy", "bitcast", "reshape") and len(types) == 1:
        source, (type,) = node.operands[0], types
        if not all(holds(t, type) for t in (node.shape.element_type, source.shape.element_type)):
            break
        node = source
    return node


def holds(element_type: str, other: str) -> bool:
    """Whether a float type of at most 32 bits holds all values of another."""
    rows = [ELEMENT_TYPES[t] for t in (element_type, other)]
    if element_type == other:
        return True
    if any(row.kind != "float" or row.bits > 32 for row in rows):
        return False
    wide, narrow_ = (ml_dtypes.finfo(row.dtype) for row in rows)
    return wide.nmant >= narrow_.nmant and wide.maxexp >= narrow_.maxexp and wide.minexp <= narrow_.minexp \
        and rows[0].bits > rows[1].bits and other != "f8e8m0fnu"


def is_short_float(dtype: np.dtype) -> bool:
    """f16, bf16 and narrower; ml_dtypes' are of kind "V" or "f"."""
    return dtype.itemsize <= 2 and dtype.kind in "fV" and dtype.name not in _SHORT_INTEGERS


class Combiner:
    """combiner(left, right): both are lists of arrays, one per reduced operand; so is the result.

    opcode  as returned by plain_opcode
    ufunc   NumPy's function for it, or None
    """

    def __init__(self, evaluator, computation: Computation):
        self.evaluator = evaluator
        self.computation = computation
        self.opcode = plain_opcode(computation)
        self.types = [numpy_dtype(s.element_type) for s in root_parts(computation)]
        table = _PRED_UFUNCS if self.types[0] == np.bool_ else _UFUNCS
        self.ufunc: np.ufunc | None = table.get(self.opcode) if self.opcode is not None else None

    def __call__(self, left: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> list[np.ndarray]:
        if self.ufunc is not None:
            return [self.ufunc(left[0], right[0])]
        return list(self.evaluator.apply(self.computation, *left, *right))

    def widen(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The types to combine in."""
        return [np.asarray(a).astype(self._wide(t), copy=False) for a, t in zip(arrays, self.types)]

    def widen_stored(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The types to combine in if each result is stored before the next update."""
        if any(is_short_float(t) for t in self.types):
            return [np.asarray(a).astype(t, copy=False) for a, t in zip(arrays, self.types)]
        return self.widen(arrays)

    def _wide(self, dtype: np.dtype) -> np.dtype:
        if self.ufunc is None or dtype.kind in "biu":
            return dtype
        if dtype.kind == "c":
            return np.dtype(np.complex128)
        if dtype.name in _SHORT_INTEGERS:
            return np.dtype(np.int64)
        if self.opcode in _WIDENED:
            return np.dtype(np.float64)
        return dtype if dtype.kind == "f" else np.dtype(np.float32)       # NumPy has no fast max of bf16 and f8

    def reduce(self, array: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Combine all elements along `axes`; only with a ufunc."""
        if array.dtype != self.types[0] or array.dtype.kind == "V":
            (array,) = self.widen([array])
        assert self.ufunc is not None
        wide, last = self._wide(self.types[0]), array.ndim - 1
        if len(axes) > 1 and last in axes and array.shape[last] < SHORT_AXIS:
            array = self.ufunc.reduce(array, axis=tuple(a for a in axes if a != last), dtype=wide, keepdims=True)
            return self.ufunc.reduce(array, axis=axes, dtype=wide)
        return self.ufunc.reduce(array, axis=axes, dtype=wide)

    def narrow(self, arrays: Sequence[np.ndarray], dtypes: Sequence[np.dtype]) -> list[np.ndarray]:
        """Back to the types of the results; each is rounded once."""
        return [narrow(a, t) for a, t in zip(arrays, dtypes)]
