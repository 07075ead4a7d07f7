"""Replaces the library calls of optimized modules by HLO.

    (f32[4,5], s8[9]) custom-call(a, b, bias), custom_call_target="__cublas$lt$matmul", epilogue BIAS_RELU
        =>   tuple(maximum(add(dot(a, b), broadcast(bias)), 0), 0)

hloc/ops/vendors/library_configs.py reads what a call computes. Steps are taken in f32 (f64, complex where the operands
are) and rounded once at the end, as libraries do it; eight-bit floats saturate.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hloc.ir import ConvolutionDimensionNumbers, Instruction, Module, Shape, Window, WindowDim, array
from hloc.ops.checks import target_of
from hloc.ops.vendors.cudnn_attention import BACKWARD, FORWARD
from hloc.ops.vendors.cudnn_vectors import Move, reorder_moves, without_vectors
from hloc.ops.vendors.library_calls import (
    LARGEST,
    check_block_scales,
    layer_norm_epsilon,
    norm_configuration,
    softmax_axis,
    sorts_down,
)
from hloc.ops.vendors.library_configs import (
    READERS,
    Convolution,
    Matmul,
    Step,
    dot_attributes,
    inverse,
    library_call,
    product_shape,
    result_array,
)
from hloc.ops.vendors.linear_algebra import result_shapes
from hloc.passes import attention_calls
from hloc.passes.expressions import Body, Expressions
from hloc.passes.scaled_dot_rewriter import scaled as scaled_blocks

WIDE = {"f64": "f64", "c64": "c64", "c128": "c128"}


def library_value(module: Module, e: Expressions, instruction: Instruction) -> Instruction | None:
    """The replacement of a library call; None for other calls."""
    target = target_of(instruction)
    if target in READERS:
        return product_and_steps(module, e, instruction)
    rewrite = ROWS.get(target)
    return rewrite(module, e, instruction) if rewrite else None


def results(e: Expressions, instruction: Instruction, parts: Sequence[Instruction]) -> Instruction:
    """The parts in the types and shapes of the call's results; results behind them (workspaces) are zeros."""
    made = []
    for number, shape in enumerate(result_shapes(instruction)):
        if number >= len(parts):
            made.append(e.full(0, shape))
            continue
        part = e.reshape(parts[number], *shape.dimensions)
        made.append(rounded(e, part, shape.element_type))
    return e.op("tuple", *made) if instruction.shape.is_tuple else made[0]


def rounded(e: Expressions, x: Instruction, element_type: str) -> Instruction:
    """`x` as another type; integers are rounded to the nearest."""
    if x.shape.kind == "float" and array(element_type).kind in ("signed", "unsigned"):
        x = e.op("round-nearest-even", x)
    return e.convert(x, element_type)


# -- products ----------------------------------------------------------------------------------------------------------

def product_and_steps(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    plain = without_vectors(instruction)
    if plain is None:
        return results(e, instruction, values_of(module, e, instruction))
    operands = [moved(e, x, moves) for x, moves in zip(instruction.operands, plain.operands)]
    first, *rest = values_of(module, e, plain.instruction.copy(operands=operands))
    return results(e, instruction, [moved(e, first, plain.result), *rest])


def moved(e: Expressions, x: Instruction, moves: Sequence[Move]) -> Instruction:
    """hloc/ops/vendors/cudnn_vectors.py says what moves there are."""
    for name, numbers in moves:
        x = e.reshape(x, *numbers) if name == "reshape" else e.op("transpose", x, dimensions=numbers)
    return x


def reordered(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    return results(e, instruction, [moved(e, x, m) for x, m in zip(instruction.operands, reorder_moves(instruction))])


def values_of(module: Module, e: Expressions, instruction: Instruction) -> list[Instruction]:
    """The call's first results, before they are rounded."""
    call = library_call(instruction)
    result = result_array(instruction)
    kinds = {o.shape.element_type for o in instruction.operands[:2]}
    whole = all(array(k).kind in ("signed", "unsigned", "pred") for k in kinds)
    type_ = next((WIDE[k] for k in ("c128", "c64", "f64") if k in kinds | {result.element_type}), "f32")
    if not call.steps and not whole:
        type_ = result.element_type
    computed = "s32" if whole else type_
    value = matmul(e, instruction, call.product, computed) if isinstance(call.product, Matmul) else \
        convolution(e, instruction, call.product, computed)
    if whole and (call.steps or result.element_type != "s32"):
        value = e.convert(value, type_)
    values = [value]
    for step in call.steps:
        operand = instruction.operands[step.operand] if step.operand >= 0 else None
        values.append(applied(module, e, step, [values[n] for n in step.inputs], operand))
    return [values[n] for n in call.results]


def matmul(e: Expressions, instruction: Instruction, product: Matmul, type_: str) -> Instruction:
    lhs, rhs = (e.op("transpose", x, dimensions=order) if order else x
                for x, order in zip(instruction.operands, (product.lhs_order, product.rhs_order)))
    sizes = product_shape(instruction, product).dimensions
    written = tuple(sizes[d] for d in product.result_order) if product.result_order else sizes
    made = e.op("dot", lhs, rhs, shape=array(type_, *written), **dot_attributes(product.dims))
    return e.op("transpose", made, dimensions=inverse(product.result_order)) if product.result_order else made


def applied(module: Module, e: Expressions, step: Step, values: list[Instruction],
            operand: Instruction | None) -> Instruction:
    x = values[0]
    if step.name == "amax":
        return e.reduce(module, e.op("abs", x), "maximum", range(x.shape.rank), 0)
    if step.name == "round":
        bound = LARGEST[step.element_type]
        kept = e.op("clamp", e.constant(-bound, x.shape.element_type), x, e.constant(bound, x.shape.element_type))
        return e.convert(e.convert(kept, step.element_type), x.shape.element_type)
    if operand is not None:
        return STEPS[step.name](e, x, placed(e, e.convert(operand, x.shape.element_type), x.shape, step), step.value)
    return STEPS[step.name](e, x, values[-1], step.value)


def placed(e: Expressions, operand: Instruction, onto: Shape, step: Step) -> Instruction:
    """An operand spread over the result: at the dimensions that the step names, else along the last ones."""
    if step.dimensions is not None:
        return e.broadcast(operand, step.dimensions, onto.dimensions)
    first = onto.rank - operand.shape.rank
    kept = [d for d, n in enumerate(operand.shape.dimensions) if n == onto.dimensions[first + d]]
    operand = e.reshape(operand, *(operand.shape.dimensions[d] for d in kept))
    return e.broadcast(operand, [first + d for d in kept], onto.dimensions)


def scaled(e: Expressions, x: Instruction, value: complex) -> Instruction:
    return x if value == 1 else e.op("multiply", x, e.like(value, x))


def positive(e: Expressions, x: Instruction, otherwise: Instruction) -> Instruction:
    """`x` where it is more than 0."""
    return e.chosen(e.compare(x, "GT", e.like(0, x)), x, otherwise)


def gelu_tanh(e: Expressions, x: Instruction, *_: object) -> Instruction:
    cube = e.op("multiply", e.op("multiply", x, x), x)
    inner = scaled(e, e.op("add", x, scaled(e, cube, 0.044715)), math.sqrt(2 / math.pi))
    return e.op("multiply", scaled(e, x, 0.5), e.op("add", e.like(1, x), e.op("tanh", inner)))


def gelu_erf(e: Expressions, x: Instruction, *_: object) -> Instruction:
    inner = e.op("erf", scaled(e, x, math.sqrt(0.5)))
    return e.op("multiply", scaled(e, x, 0.5), e.op("add", e.like(1, x), inner))


STEPS: dict[str, Callable[..., Instruction]] = {
    "scale": lambda e, x, _, value: scaled(e, x, value),
    "multiply": lambda e, x, y, _: e.op("multiply", x, y),
    "divide": lambda e, x, y, _: e.op("divide", x, y),
    "add": lambda e, x, y, value: e.op("add", x, scaled(e, y, value)),
    "sum": lambda e, x, y, _: e.op("add", x, y),
    "minimum": lambda e, x, y, _: e.op("minimum", x, y),
    "maximum": lambda e, x, y, _: e.op("maximum", x, y),
    "relu": lambda e, x, *_: e.op("maximum", x, e.like(0, x)),
    "relu6": lambda e, x, *_: e.op("minimum", e.op("maximum", x, e.like(0, x)), e.like(6, x)),
    "leaky_relu": lambda e, x, _, value: positive(e, x, scaled(e, x, value)),
    "elu": lambda e, x, *_: positive(e, x, e.op("exponential-minus-one", x)),
    "tanh": lambda e, x, *_: e.op("tanh", x),
    "sigmoid": lambda e, x, *_: e.op("logistic", x),
    "swish": lambda e, x, *_: e.op("multiply", x, e.op("logistic", x)),
    "gelu_tanh": gelu_tanh,
    "gelu_erf": gelu_erf,
}


# -- convolutions ------------------------------------------------------------------------------------------------------

def convolution(e: Expressions, instruction: Instruction, product: Convolution, type_: str) -> Instruction:
    result = array(type_, *result_array(instruction).dimensions)
    if product.wanted == "input":
        return input_gradient(e, instruction, product, result)
    if product.wanted == "kernel":
        return kernel_gradient(e, instruction, product, result)
    return e.op("convolution", *instruction.operands[:2], shape=result, window=Window(product.window),
                dim_labels=product.numbers, **grouped("feature", product))


def grouped(what: str, product: Convolution) -> dict[str, int]:
    return {f"{what}_group_count": product.groups} if product.groups > 1 else {}


def reach(w: WindowDim) -> int:
    return (w.size - 1) * w.window_dilation + 1


def input_gradient(e: Expressions, instruction: Instruction, product: Convolution, result: Shape) -> Instruction:
    """The output's gradient, strided apart, under the kernel turned around, its features exchanged."""
    gradient, kernel = instruction.operands[:2]
    n = product.numbers
    window = []
    for w, wide, narrow in zip(product.window, n.input_spatial, n.output_spatial):
        spread = (gradient.shape.dimensions[narrow] - 1) * w.stride + 1
        low = reach(w) - 1 - w.padding_low
        high = result.dimensions[wide] - spread - low + reach(w) - 1
        window.append(WindowDim(w.size, 1, low, high, w.stride, w.window_dilation, not w.reversal))
    kernel = exchanged(e, kernel, product)
    numbers = ConvolutionDimensionNumbers(
        n.output_batch, n.output_feature, n.output_spatial, n.kernel_output_feature, n.kernel_input_feature,
        n.kernel_spatial, n.input_batch, n.input_feature, n.input_spatial)
    return e.op("convolution", gradient, kernel, shape=result, window=Window(tuple(window)), dim_labels=numbers,
                **grouped("feature", product))


def exchanged(e: Expressions, kernel: Instruction, product: Convolution) -> Instruction:
    """A kernel of groups with the groups on the input features' side: [g * O, I] as [O, g * I]."""
    if product.groups == 1:
        return kernel
    outputs, inputs = product.numbers.kernel_output_feature, product.numbers.kernel_input_feature
    sizes = kernel.shape.dimensions
    split = (*sizes[:outputs], product.groups, sizes[outputs] // product.groups, *sizes[outputs + 1:])
    place = inputs + (inputs > outputs)                            # of the input features, behind the split
    order = [d for d in range(len(split)) if d != outputs]
    order.insert(order.index(place), outputs)
    joined = list(sizes)
    joined[outputs], joined[inputs] = sizes[outputs] // product.groups, sizes[inputs] * product.groups
    return e.reshape(e.op("transpose", e.reshape(kernel, *split), dimensions=tuple(order)), *joined)


def kernel_gradient(e: Expressions, instruction: Instruction, product: Convolution, result: Shape) -> Instruction:
    """The input under the output's gradient, with batch and features exchanged; groups become batch groups."""
    x, gradient = instruction.operands[:2]
    n = product.numbers
    window = []
    for w, wide, narrow in zip(product.window, n.input_spatial, n.output_spatial):
        places = gradient.shape.dimensions[narrow]
        high = reach(w) + (places - 1) * w.stride - x.shape.dimensions[wide] - w.padding_low
        window.append(WindowDim(places, w.window_dilation, w.padding_low, high, 1, w.stride))
    numbers = ConvolutionDimensionNumbers(
        n.input_feature, n.input_batch, n.input_spatial, n.output_batch, n.output_feature, n.output_spatial,
        n.kernel_input_feature, n.kernel_output_feature, n.kernel_spatial)
    made = e.op("convolution", x, gradient, shape=result, window=Window(tuple(window)), dim_labels=numbers,
                **grouped("batch", product))
    flipped = tuple(d for d, w in zip(n.kernel_spatial, product.window) if w.reversal)
    return e.op("reverse", made, dimensions=flipped) if flipped else made


# -- rows --------------------------------------------------------------------------------------------------------------

def over_rows(module: Module, e: Expressions, x: Instruction, opcode: str, dimensions: Sequence[int],
              start: float) -> Instruction:
    """A reduction, spread over what it was taken of."""
    kept = [d for d in range(x.shape.rank) if d not in dimensions]
    return e.broadcast(e.reduce(module, x, opcode, dimensions, start), kept, x.shape.dimensions)


def mean(module: Module, e: Expressions, x: Instruction, dimensions: Sequence[int]) -> Instruction:
    count = math.prod(x.shape.dimensions[d] for d in dimensions)
    return scaled(e, over_rows(module, e, x, "add", dimensions, 0), 1 / max(count, 1))


def widened(e: Expressions, x: Instruction) -> Instruction:
    return e.convert(x, WIDE.get(x.shape.element_type, "f32"))


def softmax(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    x = widened(e, instruction.operands[0])
    return results(e, instruction, [softmax_along(module, e, x, softmax_axis(instruction))])


def softmax_along(module: Module, e: Expressions, x: Instruction, axis: int) -> Instruction:
    parts = e.op("exponential", e.op("subtract", x, over_rows(module, e, x, "maximum", (axis,), -math.inf)))
    return e.op("divide", parts, over_rows(module, e, parts, "add", (axis,), 0))


def normalized(module: Module, e: Expressions, x: Instruction, dimensions: Sequence[int],
               epsilon: float) -> tuple[Instruction, Instruction, Instruction]:
    """(x - mean) / deviation; the mean and 1 / deviation, spread."""
    middle = mean(module, e, x, dimensions)
    centered = e.op("subtract", x, middle)
    variance = mean(module, e, e.op("multiply", centered, centered), dimensions)
    factor = e.op("rsqrt", e.op("add", variance, e.like(epsilon, variance)))
    return e.op("multiply", centered, factor), middle, factor


def layer_norm(module: Module, e: Expressions, instruction: Instruction) -> Instruction | None:
    x, *more = (widened(e, o) for o in instruction.operands)
    last = x.shape.rank - 1
    if last < 0 or len(more) > 2 or any(m.shape.dimensions != x.shape.dimensions[-1:] for m in more):
        return None
    value, _, _ = normalized(module, e, x, (last,), layer_norm_epsilon(instruction))
    for opcode, operand in zip(("multiply", "add"), more):
        value = e.op(opcode, value, e.broadcast(operand, (last,), x.shape.dimensions))
    return results(e, instruction, [value])


def norm(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    """Arrays are [rows, ...]; scale and bias have one row, mean and 1 / deviation one column."""
    kind, epsilon = norm_configuration(instruction)
    x, scale, *more = (widened(e, o) for o in instruction.operands)
    inner, sizes = tuple(range(1, x.shape.rank)), x.shape.dimensions
    rows = [e.broadcast(e.reshape(m, *sizes[1:]), inner, sizes) for m in (scale, more[0])[:2 - (kind == "LAYER_BWD")]]
    if kind != "LAYER_BWD":
        value, middle, factor = normalized(module, e, x, inner, epsilon)
        value = e.op("add", e.op("multiply", value, rows[0]), rows[1])
        columns = [e.slice(c, {d: (0, 1) for d in inner}) for c in (middle, factor)]
        return results(e, instruction, [value, *columns][:3 if kind == "LAYER_FWD_TRAIN" else 1])
    dy, middle, factor = more[0], *(e.broadcast(e.reshape(m, sizes[0]), (0,), sizes) for m in more[1:3])
    value, weighted = e.op("multiply", e.op("subtract", x, middle), factor), e.op("multiply", dy, rows[0])
    along = e.op("multiply", value, mean(module, e, e.op("multiply", weighted, value), inner))
    dx = e.op("subtract", e.op("subtract", weighted, mean(module, e, weighted, inner)), along)
    sums = [e.reduce(module, part, "add", (0,), 0) for part in (e.op("multiply", dy, value), dy)]
    return results(e, instruction, [e.op("multiply", factor, dx), *sums])


# -- sorts -------------------------------------------------------------------------------------------------------------

def radix_sort(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    operands = list(instruction.operands)
    body = Body(instruction.span)
    scalars = [body.parameter(2 * n + side, array(o.shape.element_type))
               for n, o in enumerate(operands) for side in (0, 1)]
    total: dict[str, Any] = {"type": "TOTALORDER"} if operands[0].shape.kind == "float" else {}
    before = Expressions(body, instruction.span).op(
        "compare", *scalars[:2], direction="GT" if sorts_down(instruction) else "LT", **total)
    shapes = [o.shape.with_default_layout() for o in operands]
    made = e.op("sort", *operands, shape=Shape.tuple(shapes) if len(shapes) > 1 else shapes[0],
                dimensions=(operands[0].shape.rank - 1,), is_stable=True,
                to_apply=body.finish(module, "before", before))
    parts = [made] if len(shapes) == 1 else [e.op("get-tuple-element", made, index=n) for n in range(len(shapes))]
    return results(e, instruction, parts)


# -- products of scaled blocks -----------------------------------------------------------------------------------------

def block_scaled_dot(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    check_block_scales(instruction)
    lhs, rhs, *scales = instruction.operands
    rank = lhs.shape.rank
    lhs = scaled_blocks(e, lhs, scales[0], "f32")
    rhs = scaled_blocks(e, rhs, scales[1], "f32") if len(scales) > 1 else e.convert(rhs, "f32")
    batch = {"lhs_batch_dims": (0,), "rhs_batch_dims": (0,)} if rank == 3 else {}
    product = e.op("dot", lhs, rhs, shape=array("f32", *result_array(instruction).dimensions), **batch,
                   lhs_contracting_dims=(rank - 1,), rhs_contracting_dims=(rank - 1,))
    if len(scales) > 2:
        factor = e.spread(e.convert(e.reshape(scales[2]), "f32"), product.shape)
        product = e.op("multiply", product, factor)
    return results(e, instruction, [product])


def attention(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    write = attention_calls.backward if target_of(instruction) in BACKWARD else attention_calls.forward
    return results(e, instruction, write(module, e, instruction))


ROWS: dict[str, Callable[[Module, Expressions, Instruction], Instruction | None]] = {
    **dict.fromkeys(["__cudnn$convReorderFilter", "__cudnn$convReorderFilterAndBias"], reordered),
    "__op$block_scaled_dot": block_scaled_dot,
    **dict.fromkeys(FORWARD, attention),
    **dict.fromkeys(BACKWARD, attention),
    "__onednn$softmax": softmax,
    "__onednn$layernorm": layer_norm,
    "__cudnn$norm": norm,
    **dict.fromkeys(["__cub$DeviceRadixSort", "__cub$DeviceRadixSortUnassignedScratchSize"], radix_sort),
}
