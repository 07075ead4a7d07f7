"""Computes 64-bit indices in 32 bits if they fit: vectors then hold twice as many.

    eq = pred[256,8192] compare(iota, convert(n)), direction=LT           // iota: s64[256,8192], n: s32[256,8192]
    =>
    eq = pred[256,8192] compare(s32[256,8192] iota(), n), direction=LT

    distance = f32[8,8] convert(subtract(s64[8,8] iota, s64[8,8] iota))
    =>
    distance = f32[8,8] convert(subtract(s32[8,8] iota, s32[8,8] iota))

    best = (s8[256], s64[256]) reduce(x, iota, low, zero), dimensions={1}, to_apply=largest_and_its_place
    =>
    narrow = (s8[256], s32[256]) reduce(x, s32[256,1000] iota(), low, s32[] zero), ...
    best = tuple(s8[256] narrow#0, convert(s32[256] narrow#1))

    sum = u8[99] convert(reduce(u64[99,8] convert(bits), zero)), dimensions={1}, to_apply=add       // bits: u8[99,8]
    =>
    sum = u8[99] reduce(bits, u8[] zero), dimensions={1}, to_apply=add

The compared, selected or converted values must be known to fit (hloc/analysis/integer_ranges.py), and be available in
32 bits without more reads: an iota, a constant, or widened from at most 32 bits.
"""
from __future__ import annotations

from collections.abc import Iterable

from hloc.analysis.integer_ranges import SAME, interval, interval_of_type
from hloc.ir import ELEMENT_TYPES, Computation, Instruction, Module, Shape
from hloc.ir.narrowing import all_known
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module

WIDE = ("s64", "u64")
NARROW = "s32"
LEAST, GREATEST = interval_of_type(NARROW)
ARITHMETIC = frozenset(["add", "subtract", "maximum", "minimum"])
OF_LOW_BITS = ("add", "multiply", "and", "or", "xor")   # whose low bits depend on those of the operands alone
DEEPEST = 6                     # operands of operands


def index_narrowing(module: Module, context: PassContext) -> bool:
    """Compare, select and convert indices in 32 bits if they fit. True if any did."""
    reducers: dict[Computation, Computation] = {}

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if instruction.opcode == "compare":
            return narrow_compare(instruction, rewriter)
        if instruction.opcode == "convert":
            return narrow_convert(instruction, rewriter) or narrow_sum(module, instruction, rewriter)
        return narrow_reduce(module, instruction, rewriter, reducers)
    return rewrite_module(module, visit, opcodes=("compare", "convert", "reduce"))


def narrow_compare(compare: Instruction, rewriter: Rewriter) -> Instruction | None:
    """compare(iota, convert(x)) => the same in 32 bits; scalars are not changed, nor loop conditions"""
    if compare.operands[0].shape.element_type not in WIDE or not compare.shape.dimensions:
        return None
    operands = [narrowed(o, rewriter) for o in compare.operands]
    if not all_known(operands):
        return None
    return rewriter.add("compare", compare.shape, operands, {"direction": compare.get("direction")})


def narrow_convert(convert: Instruction, rewriter: Rewriter) -> Instruction | None:
    """convert(iota) => convert(iota in 32 bits), to a float: CPUs have no vectors of 64 bits for that"""
    source = convert.operands[0]
    if convert.shape.kind != "float" or source.shape.element_type not in WIDE or not convert.shape.dimensions:
        return None
    operand = narrowed(source, rewriter)
    return rewriter.change(convert, operands=[operand]) if operand is not None else None


def narrowed(x: Instruction, rewriter: Rewriter, depth: int = DEEPEST) -> Instruction | None:
    """An integer instruction in 32 bits; None if it may not fit, or has no such form."""
    shape = x.shape.with_element_type(NARROW)
    low, high = interval(x)
    if low < LEAST or high > GREATEST or x.shape.dynamic_dimensions or depth == 0:
        return None
    if x.opcode == "iota":
        return rewriter.change(x, shape=shape)
    if x.opcode == "constant":
        return rewriter.add("constant", shape, literal=x.elements.astype(ELEMENT_TYPES[NARROW].dtype))
    if x.opcode == "convert":
        source, row = x.operands[0], ELEMENT_TYPES[x.operands[0].shape.element_type]
        fits = row.kind in ("signed", "unsigned", "pred") and row.bits <= (32 if row.kind == "signed" else 31)
        return rewriter.add("convert", shape, [source]) if fits else None
    if x.opcode not in SAME and (x.opcode not in ARITHMETIC or rewriter.uses(x) > 1):
        return None
    operands = [narrowed(o, rewriter, depth - 1) for o in x.operands]
    return rewriter.change(x, operands=operands, shape=shape) if all_known(operands) else None


def narrow_reduce(module: Module, reduce: Instruction, rewriter: Rewriter,
                  reducers: dict[Computation, Computation]) -> Instruction | None:
    """reduce(x, iota, a, b) => the same with indices of 32 bits, if it only compares and selects them"""
    if len(reduce.operands) != 4 or reduce.operands[1].shape.element_type not in WIDE:
        return None
    chosen = chosen_places(reduce.get("to_apply"))
    if not chosen:
        return None
    x, low = reduce.operands[0], reduce.operands[2]
    places, first = (narrowed(reduce.operands[n], rewriter) for n in (1, 3))
    if places is None or first is None:
        return None
    values, wide = reduce.shape.tuple_shapes
    shape = Shape.tuple([values, wide.with_element_type(NARROW)])
    old = reduce.get("to_apply")
    if old not in reducers:
        reducers[old] = narrow_reducer(module, old, chosen)
    new = rewriter.change(reduce, operands=[x, places, low, first], shape=shape, to_apply=reducers[old], sharding=None)
    parts = [rewriter.add("get-tuple-element", part, [new], {"index": n}) for n, part in enumerate(shape.tuple_shapes)]
    return rewriter.add("tuple", reduce.shape, [parts[0], rewriter.add("convert", wide, [parts[1]])])


def narrow_sum(module: Module, convert: Instruction, rewriter: Rewriter) -> Instruction | None:
    """convert(reduce-add(convert(x))) => reduce-add(convert(x)), from integers to integers of fewer bits"""
    reduce = convert.operands[0]
    if reduce.opcode != "reduce" or len(reduce.operands) != 2 or rewriter.uses(reduce) > 1:
        return None
    type, reducer, wide = convert.shape.element_type, reduce.get("to_apply"), reduce.operands[0]
    kinds = {convert.shape.kind, reduce.shape.kind, *(o.shape.kind for o in wide.operands)}
    if wide.opcode != "convert" or not kinds <= {"signed", "unsigned"} \
            or ELEMENT_TYPES[type].bits >= ELEMENT_TYPES[reduce.shape.element_type].bits:
        return None
    if reducer.root.opcode not in OF_LOW_BITS or set(reducer.root.operands) != set(reducer.parameters):
        return None
    operands = [rewriter.add("convert", o.shape.with_element_type(type), [o])
                for o in (wide.operands[0], reduce.operands[1])]
    narrow = narrow_reducer(module, reducer, reducer.instructions, type)
    return rewriter.change(reduce, operands=operands, shape=convert.shape, to_apply=narrow)


def chosen_places(reducer: Computation) -> set[Instruction]:
    """The instructions on indices in a reducer of (value, index) that only compares them and returns one of them;
    empty if it does anything else with them."""
    chosen = {p for p in reducer.parameters if p.parameter_number in (1, 3)}
    root = reducer.root
    for i in reducer.instructions:
        if i.opcode == "select" and chosen.issuperset(i.operands[1:]):
            chosen.add(i)
        elif i is root:
            if i.opcode != "tuple" or i.operands[0] in chosen or i.operands[1] not in chosen:
                return set()
        elif not chosen.isdisjoint(i.operands) and not (i.opcode == "compare" and chosen.issuperset(i.operands)):
            return set()
    return chosen if root not in chosen else set()


def narrow_reducer(module: Module, reducer: Computation, chosen: Iterable[Instruction],
                   type: str = NARROW) -> Computation:
    """A copy of a reducer with these instructions in fewer bits, put into the module before its callers."""
    made: dict[Instruction, Instruction] = {}
    for old in reducer.instructions:
        shape = old.shape.with_element_type(type) if old in chosen else old.shape
        if old is reducer.root and old.shape.is_tuple:
            shape = Shape.tuple([made[o].shape for o in old.operands])
        made[old] = old.copy(operands=[made[o] for o in old.operands], shape=shape)
        if old.opcode == "compare" and old.operands[0] in chosen:
            made[old].attributes.pop("type", None)
    taken = {c.name for c in module.computations}
    number = next(n for n in range(len(taken) + 1) if f"{reducer.name}.{n}" not in taken)
    new = Computation(f"{reducer.name}.{number}", made.values(), made[reducer.root], dict(reducer.attributes),
                      reducer.span)
    module.computations.insert(module.computations.index(reducer) + 1, new)
    return new
