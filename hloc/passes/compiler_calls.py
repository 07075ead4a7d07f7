"""Writes the calls of hloc/ops/vendors/tpu_compiler.py as the ops that they stand for.

    lo = u32[4] custom-call(u64[4] x), custom_call_target="X64SplitLow"       =>   lo = convert(x)
    t = (f32[2,8], s32[2,8]) custom-call(x, i, a, b), custom_call_target="PartialReduce", called_computations={before}
        =>   the first 8 of sort(x, i), to_apply=before

Other calls run in NumPy.
"""
from __future__ import annotations

from collections.abc import Callable

from hloc.ir import Instruction, Module, Shape, array
from hloc.ops.checks import target_of
from hloc.ops.vendors.linear_algebra import result_shapes
from hloc.ops.vendors.tpu_compiler import (
    BUILDER_MATH,
    HALVES,
    equation,
    joined_dimension,
    the_computation,
    top_arguments,
)
from hloc.passes.expressions import Expressions


def compiler_value(module: Module, e: Expressions, instruction: Instruction) -> Instruction | None:
    """The replacement of the call; None for other calls."""
    target = target_of(instruction)
    if target in BUILDER_MATH and instruction.operands[0].shape.compatible(instruction.shape):
        return e.op(BUILDER_MATH[target][0], *instruction.operands)
    write = ROWS.get(target)
    return write(e, instruction) if write else None


# -- 64-bit values in two halves ---------------------------------------------------------------------------------------

def split_low(e: Expressions, instruction: Instruction) -> Instruction | None:
    x, half = instruction.operands[0], instruction.shape.element_type
    if x.shape.kind == "complex" and instruction.shape.kind == "float":
        return e.op("real", x)
    return e.convert(x, half) if HALVES.get(x.shape.element_type) == half else None


def split_high(e: Expressions, instruction: Instruction) -> Instruction | None:
    x, half = instruction.operands[0], instruction.shape.element_type
    if x.shape.kind == "complex" and instruction.shape.kind == "float":
        return e.op("imag", x)
    if HALVES.get(x.shape.element_type) != half or x.shape.kind == "complex":
        return None
    if x.shape.kind != "float":
        return e.convert(e.op("shift-right-logical", x, e.like(32, x)), half)
    rest = e.op("subtract", x, e.convert(e.convert(x, half), x.shape.element_type))
    return e.convert(e.chosen(e.op("is-finite", rest), rest, e.like(0, x)), half)


def combine(e: Expressions, instruction: Instruction) -> Instruction | None:
    low, high = instruction.operands
    whole = instruction.shape.element_type
    if instruction.shape.kind == "complex" and low.shape.kind == "float":
        return e.op("complex", low, high)
    if HALVES.get(whole) != high.shape.element_type and whole not in ("s64", "u64"):
        return None
    if instruction.shape.kind not in ("signed", "unsigned"):
        return e.op("add", e.convert(low, whole), e.convert(high, whole))
    low, high = (e.convert(e.bits(x, "u32"), "u64") for x in (low, high))
    return e.bits(e.op("or", low, e.op("shift-left", high, e.like(32, high))), whole)


# -- blocks of matrices ------------------------------------------------------------------------------------------------

def tpu_cholesky(e: Expressions, instruction: Instruction) -> Instruction | None:
    if len(instruction.operands) == 1:
        return e.op("cholesky", instruction.operands[0], lower=True)
    factor = e.op("cholesky", e.op("complex", *instruction.operands), lower=True)
    return e.op("tuple", e.op("real", factor), e.op("imag", factor))


def invert_lower(e: Expressions, instruction: Instruction) -> Instruction | None:
    a = instruction.operands[0]
    sizes, rank = a.shape.dimensions, a.shape.rank
    diagonal = e.compare(e.iota("s32", sizes, rank - 2), "EQ", e.iota("s32", sizes, rank - 1))
    one = e.convert(diagonal, a.shape.element_type)
    return e.op("triangular-solve", a, one, left_side=True, lower=True, unit_diagonal=False,
                transpose_a="NO_TRANSPOSE")


def concat_bitcast(e: Expressions, instruction: Instruction) -> Instruction | None:
    return e.op("concatenate", *instruction.operands, dimensions=(joined_dimension(instruction),))


# -- calls with a computation ------------------------------------------------------------------------------------------

def host_execute(e: Expressions, instruction: Instruction) -> Instruction | None:
    return e.op("call", *instruction.operands, shape=instruction.shape, to_apply=the_computation(instruction))


def approximate_top(e: Expressions, instruction: Instruction) -> Instruction | None:
    count, axis, size = top_arguments(instruction)
    arrays = instruction.operands[:count]
    shapes = [a.shape.with_default_layout() for a in arrays]
    made = e.op("sort", *arrays, shape=Shape.tuple(shapes) if count > 1 else shapes[0], dimensions=(axis,),
                is_stable=True, to_apply=the_computation(instruction))
    parts = [e.op("get-tuple-element", made, index=n) for n in range(count)] if count > 1 else [made]
    parts = [e.slice(p, {axis: (0, size)}) for p in parts]
    return e.op("tuple", *parts) if instruction.shape.is_tuple else parts[0]


# -- composites of XLA's builder ---------------------------------------------------------------------------------------

def arc_tangent(e: Expressions, instruction: Instruction) -> Instruction | None:
    x = instruction.operands[0]
    return e.op("atan2", x, e.like(1, x)) if x.shape.kind == "float" else None


def next_after(e: Expressions, instruction: Instruction) -> Instruction | None:
    """The number whose bits are one more or less; past zero the smallest of the other sign."""
    x, y = instruction.operands
    if x.shape.element_type not in ("f16", "bf16", "f32", "f64"):
        return None
    width = {"f16": "s16", "bf16": "s16", "f32": "s32", "f64": "s64"}[x.shape.element_type]
    bits, zero = e.bits(x, width), e.like(0, x)
    outward = e.op("xor", e.compare(x, "LT", y), e.compare(x, "LT", zero))
    one = e.like(1, bits)
    moved = e.bits(e.op("add", bits, e.chosen(outward, one, e.op("negate", one))), x.shape.element_type)
    smallest = e.bits(one, x.shape.element_type)
    from_zero = e.chosen(e.compare(y, "LT", zero), e.op("negate", smallest), smallest)
    moved = e.chosen(e.compare(x, "EQ", zero), from_zero, moved)
    moved = e.chosen(e.compare(x, "EQ", y), y, moved)
    nan = e.op("or", e.compare(x, "NE", x), e.compare(y, "NE", y))
    return e.chosen(nan, e.op("add", x, y), moved)


def einsum(e: Expressions, instruction: Instruction) -> Instruction | None:
    """A dot and a transpose; None where a letter stands twice in an operand or is summed within one."""
    given, _, wanted = equation(instruction).replace(" ", "").partition("->")
    sides = given.split(",")
    if len(sides) != 2 or not (given.replace(",", "") + wanted).isalpha() or any(
            len(set(s)) != len(s) for s in (*sides, wanted)):
        return None
    x, y = sides
    if [len(x), len(y)] != [o.shape.rank for o in instruction.operands] or set(x) ^ set(y) != set(wanted) - (
            set(x) & set(y)):
        return None
    batch = [c for c in x if c in y and c in wanted]
    summed = [c for c in x if c in y and c not in wanted]
    order = batch + [c for c in x if c not in y] + [c for c in y if c not in x]
    sizes = {c: n for s, o in zip(sides, instruction.operands) for c, n in zip(s, o.shape.dimensions)}
    numbers = {"lhs_batch_dims": [x.index(c) for c in batch], "rhs_batch_dims": [y.index(c) for c in batch],
               "lhs_contracting_dims": [x.index(c) for c in summed],
               "rhs_contracting_dims": [y.index(c) for c in summed]}
    made = e.op("dot", *instruction.operands,
                shape=array(result_shapes(instruction)[0].element_type, *(sizes[c] for c in order)),
                **{key: tuple(value) for key, value in numbers.items() if value})
    places = tuple(order.index(c) for c in wanted)
    return made if places == tuple(range(len(places))) else e.op("transpose", made, dimensions=places)


ROWS: dict[str, Callable[[Expressions, Instruction], Instruction | None]] = {
    "X64SplitLow": split_low, "X64SplitHigh": split_high, "X64Combine": combine,
    "Cholesky": tpu_cholesky, "InvertDiagBlocksLowerTriangular": invert_lower, "ConcatBitcast": concat_bitcast,
    "HostExecute": host_execute, "PartialReduce": approximate_top, "ApproxTopK": approximate_top,
    "xla_builder.math.Atan": arc_tangent,
    "xla_builder.math.NextAfter": next_after,
    "xla_builder.matrix.Einsum": einsum,
}
