"""Element rules with loops of their own: one element of a reduce, a reduce-window, a dot or a convolution.

They are used if such an op has no faster lowering: inside another fusion, or in a shape that the tiles refuse. They are
correct and slow. Narrow floats accumulate in f32 and are rounded once at the end.
"""
from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import reduce as reduce_left

from hloc.analysis.cost import contracted_elements
from hloc.ir import Instruction, WindowDim, window_of
from hloc.kernels import indexing, scalars
from hloc.kernels.elements import Asking, Elements, Indices, Rule, Steps, elements_at
from hloc.kernels.indexing import Index
from hloc.kernels.ir import SERIAL, VECTOR, Apply, Expr, Var
from hloc.kernels.monoids import can_reassociate
from hloc.kernels.rules.elementwise import undilated, zero
from hloc.ops.products import dot_dimensions

MOST_WRITTEN_OUT = 8        # terms of a sum


def started(e: Elements, instruction: Instruction) -> Asking[list[Var]]:
    """Accumulators of a reduce or a reduce-window, with their initial values."""
    values = yield from elements_at(instruction.operands[len(instruction.operands) // 2:], ())
    return [e.builder.mutable(value.type, value) for value in values]


def accumulate(e: Elements, accumulators: list[Var], values: Sequence[Expr], instruction: Instruction) -> None:
    """accumulators = to_apply(accumulators, values), all at once."""
    with e.builder.pinned([a.name for a in accumulators]):
        results = e.combined(instruction, [*accumulators, *values])
        if len(results) > 1:
            results = [e.builder.bind(r) for r in results]
        for accumulator, result in zip(accumulators, results):
            e.builder.assign(accumulator, result)


def take_in(e: Elements, accumulators: list[Var], instruction: Instruction, index: Indices) -> Asking[list[Expr]]:
    """Accumulate the elements of the operands at one index. Returns the results, which are final after the last."""
    values = yield from elements_at(instruction.operands[:len(accumulators)], index)
    accumulate(e, accumulators, values, instruction)
    return [scalars.rounded(a, t) for a, t in zip(accumulators, element_types(instruction))]


def element_types(instruction: Instruction) -> list[str]:
    """Element types of the results of a (variadic) reduce."""
    shape = instruction.shape
    return [s.element_type for s in shape.tuple_shapes] if shape.is_tuple else [shape.element_type]


def reduce_values(e: Elements, instruction: Instruction, index: Indices) -> Asking[list[Expr]]:
    """The results of a reduce at one output index."""
    accumulators = yield from started(e, instruction)
    reduced = set(instruction.get("dimensions", ()))
    kept = iter(index)
    with ExitStack() as loops:
        full: list[Index] = []
        for d, size in enumerate(instruction.operands[0].shape.dimensions):
            full.append(loops.enter_context(e.builder.loop(size)) if d in reduced else next(kept))
        return (yield from take_in(e, accumulators, instruction, tuple(full)))


def window_source(e: Elements, output: Index, tap: Index, window: WindowDim, size: int) -> tuple[Index, list[Expr]]:
    """The input position that a tap of a window reads, and the conditions for it to be one."""
    if window.reversal:
        tap = indexing.subtract(indexing.constant(window.size - 1), tap)
    source = indexing.add(indexing.scale(output, window.stride), indexing.scale(tap, window.window_dilation))
    return undilated(e, indexing.shift(source, -window.padding_low), window.base_dilation, size)


def is_plain(window: WindowDim) -> bool:
    """The dimension has no window: output and input positions are the same."""
    return window._replace(window_dilation=1, reversal=False) == WindowDim()


def taps_of(e: Elements, loops: ExitStack, windows: Sequence[WindowDim], sizes: Sequence[int], output: Sequence[Index]
            ) -> tuple[list[Index], list[Expr], Index]:
    """Open the loops over the taps of a window: the input position that a tap reads, the conditions for it to be one,
    and the tap's number."""
    taps = [loops.enter_context(e.builder.loop(window.size)) for window in windows]
    found = [window_source(e, *one) for one in zip(output, taps, windows, sizes)]
    return [source for source, _ in found], [c for _, conditions in found for c in conditions], \
        indexing.linearize(taps, [window.size for window in windows])


def reduce_window_values(e: Elements, instruction: Instruction, index: Indices) -> Asking[list[Expr]]:
    accumulators = yield from started(e, instruction)
    with ExitStack() as loops:
        sizes = instruction.operands[0].shape.dimensions
        wanted, conditions, _ = taps_of(e, loops, window_of(instruction), sizes, index)
        loops.enter_context(e.builder.guard(conditions))
        return (yield from take_in(e, accumulators, instruction, tuple(wanted)))


VALUES = {"reduce": reduce_values, "reduce-window": reduce_window_values}


def first_value(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    return (yield from VALUES[instruction.opcode](e, instruction, index))[0]


def accumulator_type(instruction: Instruction) -> str:
    """The type in which a product accumulates."""
    type = scalars.computation_type(instruction.shape.element_type)
    return "s32" if type in ("s8", "s16") else "u32" if type in ("u8", "u16") else type


def product_of(left: Expr, right: Expr, type: str) -> Expr:
    """left * right in that type."""
    return Apply("multiply", (scalars.convert_to(left, type), scalars.convert_to(right, type)), type)


def multiply_add(e: Elements, accumulator: Var, left: Expr, right: Expr) -> None:
    """accumulator += left * right, in the accumulator's type."""
    product = product_of(left, right, accumulator.type)
    e.builder.assign(accumulator, Apply("add", (accumulator, product), accumulator.type))


def dot(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    left, right = instruction.operands[:2]
    if is_short(instruction):
        return product_result((yield from written_out(instruction, index)), instruction.shape.element_type)
    type, contracting = accumulator_type(instruction), dot_dimensions(instruction).lhs_contracting
    in_lanes = e.sums_in_lanes and can_reassociate("add", type)
    accumulator = e.builder.mutable(type, zero(type), "add" if in_lanes else "")
    kinds = [SERIAL] * (len(contracting) - 1) + [VECTOR if in_lanes else SERIAL]
    with ExitStack() as loops:
        depth = [loops.enter_context(e.builder.loop(left.shape.dimensions[d], kind))
                 for d, kind in zip(contracting, kinds)]
        a, b = factors_at(instruction, index, depth)
        with e.builder.pinned([accumulator.name]):
            x = yield left, a
            y = yield right, b
            multiply_add(e, accumulator, x, y)
    return product_result(accumulator, instruction.shape.element_type)


def is_short(dot: Instruction) -> bool:
    """Whether sums have few terms: without a loop over these, vectors run along the results."""
    sizes = [dot.operands[0].shape.dimensions[d] for d in dot_dimensions(dot).lhs_contracting]
    return len(sizes) == 1 and 1 < sizes[0] <= MOST_WRITTEN_OUT


def written_out(dot: Instruction, index: Indices) -> Steps:
    """The sum, in order. Of a single number as a tree, as iterations of a loop around it may wait for each other: its
    depth is the logarithm of its length."""
    left, right = dot.operands[:2]
    type, terms = accumulator_type(dot), list[Expr]()
    for k in range(contracted_elements(dot)):
        a, b = factors_at(dot, index, [indexing.constant(k)])
        x = yield left, a
        y = yield right, b
        terms.append(product_of(x, y, type))
    if dot.shape.num_elements > 1:
        total: Expr = zero(type)
        return reduce_left(lambda total, term: Apply("add", (total, term), type), terms, total)
    while len(terms) > 1:
        half = (len(terms) + 1) // 2
        terms = [Apply("add", pair, type) for pair in zip(terms, terms[half:])] + terms[len(terms) // 2:half]
    return terms[0]


def product_result(accumulator: Expr, element_type: str) -> Expr:
    type = scalars.computation_type(element_type)
    return scalars.rounded(scalars.convert_to(accumulator, type), element_type)


def factors_at(dot: Instruction, index: Sequence[Index], depth: Sequence[Index]) -> tuple[Indices, Indices]:
    """The index in each operand of a dot at `depth` of the sum of the result's element at `index`."""
    dims, (left, right) = dot_dimensions(dot), (o.shape.rank for o in dot.operands[:2])
    batch, free = len(dims.lhs_batch), dims.lhs_free(left)
    rows = batch + len(free)
    lhs = dict(zip((*dims.lhs_batch, *free, *dims.lhs_contracting), (*index[:rows], *depth)))
    rhs = dict(zip((*dims.rhs_batch, *dims.rhs_free(right), *dims.rhs_contracting),
                   (*index[:batch], *index[rows:], *depth)))
    return tuple(lhs[d] for d in range(left)), tuple(rhs[d] for d in range(right))


def convolution(e: Elements, instruction: Instruction, index: Indices) -> Steps:
    numbers = instruction.get("dim_labels")
    left, right = instruction.operands
    channels = right.shape.dimensions[numbers.kernel_input_feature]
    x, w = convolution_groups(instruction, index)
    accumulator = e.builder.mutable(accumulator_type(instruction), zero(accumulator_type(instruction)))
    with ExitStack() as loops:
        conditions = open_taps(e, loops, instruction, index, x, w)
        channel = loops.enter_context(e.builder.loop(channels))
        loops.enter_context(e.builder.guard(conditions))
        x[numbers.input_feature] = indexing.add(x[numbers.input_feature], channel)
        w[numbers.kernel_input_feature] = channel
        with e.builder.pinned([accumulator.name]):
            a = yield left, tuple(x)
            b = yield right, tuple(w)
            multiply_add(e, accumulator, a, b)
    return product_result(accumulator, instruction.shape.element_type)


def open_taps(e: Elements, loops: ExitStack, instruction: Instruction, index: Sequence[Index], x: list[Index],
              w: list[Index], without: int | None = None) -> list[Expr]:
    """Open the loops over a convolution's window, `without` one dimension of it, and set the positions where x and w
    are read. Returns the conditions for these to be inside the image."""
    numbers, sizes = instruction.get("dim_labels"), instruction.operands[0].shape.dimensions
    conditions: list[Expr] = []
    for n, window in enumerate(window_of(instruction)):
        if n == without:
            continue
        tap = loops.enter_context(e.builder.loop(window.size))
        source, needed = window_source(e, index[numbers.output_spatial[n]], tap, window._replace(reversal=False),
                                       sizes[numbers.input_spatial[n]])
        last = indexing.constant(window.size - 1)
        w[numbers.kernel_spatial[n]] = indexing.subtract(last, tap) if window.reversal else tap
        x[numbers.input_spatial[n]] = source
        conditions += needed
    return conditions


def convolution_groups(instruction: Instruction, index: Indices) -> tuple[list[Index], list[Index]]:
    """Indices into input and kernel that follow from batch, output feature and groups."""
    numbers = instruction.get("dim_labels")
    left, right = (o.shape.dimensions for o in instruction.operands)
    feature_groups = instruction.get("feature_group_count", 1)
    batch_groups = instruction.get("batch_group_count", 1)
    feature = index[numbers.output_feature]
    features = right[numbers.kernel_output_feature]
    x, w = [indexing.ZERO] * len(left), [indexing.ZERO] * len(right)
    w[numbers.kernel_output_feature] = feature
    group = indexing.floor_divide(feature, max(1, features // feature_groups))
    x[numbers.input_feature] = indexing.scale(group, right[numbers.kernel_input_feature])
    part = indexing.floor_divide(feature, max(1, features // batch_groups))
    batches = left[numbers.input_batch] // batch_groups
    x[numbers.input_batch] = indexing.add(index[numbers.output_batch], indexing.scale(part, batches))
    return x, w


LOOP_RULES: dict[str, Rule] = {
    **dict.fromkeys(VALUES, first_value), "dot": dot, "convolution": convolution,
}
