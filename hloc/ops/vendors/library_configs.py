"""The computation of a library call of an optimized module, from its backend_config and operand order.

In: a custom-call by which XLA's compilers replace a dot or convolution. Out: a LibraryCall: one matmul or convolution,
and the steps on it, each of which computes a value from earlier ones.

    (f32[4,5], s8[99]) custom-call(a, b, bias), custom_call_target="__cublas$lt$matmul",
        backend_config={"gemm_backend_config":{"alpha_real":2, "dot_dimension_numbers":{...}, "epilogue":"BIAS_RELU"}}
    LibraryCall(Matmul(...), (Step("scale", value=2), Step("add", operand=2, dimensions=(1,)), Step("relu")), (0,))

library_calls.py evaluates it in NumPy; hloc/passes/library_calls.py replaces it by HLO.
"""
from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from hloc.errors import UnsupportedError
from hloc.ir import ConvolutionDimensionNumbers, Instruction, Shape, Window, WindowDim, array
from hloc.ops.checks import text, unquoted
from hloc.ops.convolution import infer_convolution
from hloc.ops.products import DotDimensions, infer_dot

FLOAT8 = frozenset(["f8e4m3fn", "f8e5m2"])          # types to which libraries saturate


class Step(NamedTuple):
    """A value from earlier ones: the product is value 0, step n makes value n + 1.

    scale          times `value`                      add       plus `value` times the operand
    multiply, divide, minimum   with the operand      sum, maximum     of two earlier values
    relu relu6 elu tanh sigmoid swish gelu_tanh gelu_erf leaky_relu    (slope `value` below zero)
    amax           the largest magnitude, a scalar    round     to `element_type`, its largest number where beyond
    `dimensions` says where the operand's dimensions stand in the result; None: the last ones, sizes of 1 spread.
    """

    name: str
    inputs: tuple[int, ...] = (-1,)
    operand: int = -1
    value: complex = 0.0
    dimensions: tuple[int, ...] | None = None
    element_type: str = ""


class Matmul(NamedTuple):
    """Orders that both sides, and the result, are seen in before and after; () where they are as written."""

    dims: DotDimensions
    lhs_order: tuple[int, ...] = ()
    rhs_order: tuple[int, ...] = ()
    result_order: tuple[int, ...] = ()


class Convolution(NamedTuple):
    """Window, numbers and groups are those of the forward convolution; wanted: its "output", "input" or "kernel",
    from the two others in the order input, kernel, output (but the gradient of the output comes before the kernel)."""

    wanted: str
    window: tuple[WindowDim, ...]
    numbers: ConvolutionDimensionNumbers
    groups: int


class LibraryCall(NamedTuple):
    """results: numbers of the values that are the call's first results; what follows them is workspace."""

    product: Matmul | Convolution
    steps: tuple[Step, ...]
    results: tuple[int, ...]


class Steps:
    """Steps under construction."""

    def __init__(self) -> None:
        self.made: list[Step] = []

    def then(self, name: str, **more: Any) -> int:
        """A step on the last value; the number of the new one."""
        self.made.append(Step(name, (len(self.made),), **more))
        return len(self.made)

    def call(self, product: Matmul | Convolution, *more: int) -> LibraryCall:
        last = max((n for n in range(len(self.made) + 1) if n not in more), default=0)
        return LibraryCall(product, tuple(self.made), (last, *more))


# -- configurations ----------------------------------------------------------------------------------------------------

def refuse(instruction: Instruction, what: str) -> NoReturn:
    raise UnsupportedError(f"custom-call to {unquoted(instruction.get('custom_call_target', ''))!r}: {what}",
                           instruction.span)


def configuration(instruction: Instruction, part: str) -> dict:
    """The JSON of backend_config, and of it the member `part` where there is one. {} where nothing is written."""
    text = unquoted(str(instruction.get("backend_config", "")))
    try:
        whole = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        refuse(instruction, "backend_config is not JSON")
    if not isinstance(whole, dict):
        refuse(instruction, "backend_config is not an object")
    found = whole.get(part, whole)
    return found if isinstance(found, dict) else refuse(instruction, f"{part} is not an object")


def integers(values: Any) -> tuple[int, ...]:
    """64-bit integers stand in JSON as strings."""
    return tuple(int(v) for v in values or ())


def float_of_bits(bits: Any) -> float:
    """oneDNN's configurations hold an f32 as the integer of the same bits."""
    return float(np.array(int(bits) & 0xFFFFFFFF, np.uint32).view(np.float32))


def result_array(instruction: Instruction) -> Shape:
    """The shape of the first result."""
    return instruction.shape.tuple_shapes[0] if instruction.shape.is_tuple else instruction.shape


# -- cuBLAS ------------------------------------------------------------------------------------------------------------

ACTIVATIONS = {"RELU": "relu", "GELU": "gelu_tanh", "SILU": "swish"}


def cublas_matmul(instruction: Instruction) -> LibraryCall:
    """__cublas$gemm, __cublas$lt$matmul, __cublas$lt$matmul$f8: act(alpha * a @ b + beta * c + bias).

    Operands: a, b, c where beta is not 0, for f8 the scales of a and b, the bias of the columns where the epilogue has
    one, for an f8 result its scale. Results: d, then what the activation saw (AUX) or the largest magnitude (amax)."""
    config = configuration(instruction, "gemm_backend_config")
    if "dot_dimension_numbers" not in config:
        refuse(instruction, "backend_config has no dot_dimension_numbers")
    steps, following, extra = Steps(), 2, []
    alpha, beta = complex(config.get("alpha_real", 1), config.get("alpha_imag", 0)), float(config.get("beta", 0))
    epilogue = str(config.get("epilogue", "DEFAULT")).split("_")
    c = None
    if beta:
        c, following = 2, 3
    scales = instruction.operands[following:]
    if unquoted(instruction.get("custom_call_target")).endswith("$f8"):
        following += _input_scales(instruction, steps, following)
        scales = instruction.operands[following:]
    if instruction.operands[0].shape.kind != "complex" or not alpha.imag:    # of real numbers XLA takes the real part
        alpha = alpha.real
    if alpha != 1:
        steps.then("scale", value=alpha)
    if c is not None:
        steps.then("add", operand=c, value=beta)
    if "BIAS" in epilogue:
        bias = next((following + n for n, o in enumerate(scales) if o.shape.rank), None)
        if bias is None:
            refuse(instruction, "the epilogue has a bias, the call has no operand for it")
        steps.then("add", operand=bias, value=1.0, dimensions=_bias_dimensions(instruction, bias))
    if "AUX" in epilogue:
        extra.append(len(steps.made))
    for name in epilogue:
        if name in ACTIVATIONS:
            steps.then(ACTIVATIONS[name])
        elif name not in ("DEFAULT", "BIAS", "AUX"):
            refuse(instruction, f"the epilogue {config['epilogue']} is not known")
    _result_scale(instruction, config, steps, following, extra)
    return steps.call(Matmul(_dot_dimensions(config["dot_dimension_numbers"])), *extra)


def _input_scales(instruction: Instruction, steps: Steps, first: int) -> int:
    """The factors of a and b: how many operands they are."""
    count = 0
    for number in (first, first + 1):
        if number < len(instruction.operands) and instruction.operands[number].shape.rank == 0:
            steps.then("multiply", operand=number)
            count += 1
    return count


def _result_scale(instruction: Instruction, config: dict, steps: Steps, first: int, extra: list[int]) -> None:
    """An f8 result is multiplied by the last scalar operand, and saturates; its magnitude is taken before that."""
    result, last = result_array(instruction), len(steps.made)
    if result.element_type in FLOAT8:
        scalars = [n for n in range(first, len(instruction.operands)) if instruction.operands[n].shape.rank == 0]
        if scalars:
            steps.then("multiply", operand=scalars[-1])
        steps.then("round", element_type=result.element_type)
    if config.get("damax_output"):
        steps.made.append(Step("amax", (last,)))
        extra.append(len(steps.made))


def _bias_dimensions(instruction: Instruction, operand: int) -> tuple[int, ...]:
    """The bias lies along the fastest dimensions of the result: logical ones, by both layouts."""
    result, bias = result_array(instruction), instruction.operands[operand].shape
    places = dict(zip(minor_to_major(bias), minor_to_major(result)))
    return tuple(places[d] for d in range(bias.rank))


def minor_to_major(shape: Shape) -> tuple[int, ...]:
    return shape.layout.minor_to_major if shape.layout else tuple(reversed(range(shape.rank)))


def _dot_dimensions(numbers: dict) -> DotDimensions:
    return DotDimensions(*(integers(numbers.get(f"{side}_{kind}_dimensions")) for kind in ("batch", "contracting")
                           for side in ("lhs", "rhs")))


# -- cuDNN -------------------------------------------------------------------------------------------------------------

CUDNN_ACTIVATIONS = {"kNone": "", "kRelu": "relu", "kRelu6": "relu6", "kElu": "elu", "kLeakyRelu": "leaky_relu",
                     "kSigmoid": "sigmoid", "kTanh": "tanh", "0": "", "1": "sigmoid", "2": "relu", "3": "relu6",
                     "5": "tanh", "7": "elu", "8": "leaky_relu"}               # numbers in older configurations
WANTED = {"__cudnn$convForward": "output", "__cudnn$convBiasActivationForward": "output",
          "__cudnn$convForwardGraph": "output", "__cudnn$convBackwardInput": "input",
          "__cudnn$convBackwardFilter": "kernel"}


def cudnn_convolution(instruction: Instruction) -> LibraryCall:
    """__cudnn$conv*: act(conv_result_scale * conv + bias + side_input_scale * side input), or a graph of steps.

    Operands: the two of the product, then the bias of the features and the side input, or those of the graph."""
    config, target = configuration(instruction, "cudnn_conv_backend_config"), unquoted(
        instruction.get("custom_call_target"))
    numbers: ConvolutionDimensionNumbers | None = instruction.get("dim_labels")
    if numbers is None or instruction.operands[0].shape.rank != len(numbers.input_spatial) + 2:
        refuse(instruction, "dim_labels must name all dimensions")
    product = Convolution(WANTED[target], _window(instruction, len(numbers.input_spatial)), numbers,
                          instruction.get("feature_group_count", 1))
    steps = Steps()
    if float(config.get("conv_result_scale", 1)) != 1:
        steps.then("scale", value=float(config["conv_result_scale"]))
    if target == "__cudnn$convForwardGraph":
        return steps.call(product, *_graph(instruction, str(config.get("serialized_graph", "")), steps))
    if target == "__cudnn$convBiasActivationForward":
        steps.then("add", operand=2, value=1.0, dimensions=(numbers.output_feature,))
        side = float(config.get("side_input_scale", 0))
        if side and len(instruction.operands) > 3:
            steps.then("add", operand=3, value=side)
    activation = CUDNN_ACTIVATIONS.get(str(config.get("activation_mode", "kNone")))
    if activation is None:
        refuse(instruction, f"the activation {config['activation_mode']} is not known")
    if activation:
        steps.then(activation, value=float(config.get("leakyrelu_alpha", 0)))
    return steps.call(product)


def _window(instruction: Instruction, rank: int) -> tuple[WindowDim, ...]:
    window = instruction.get("window")
    dimensions = window.dimensions if window and window.dimensions else (WindowDim(),) * rank
    if any(w.base_dilation != 1 or w.padding_low < 0 or w.padding_high < 0 for w in dimensions):
        refuse(instruction, "windows with base dilation or negative padding are not known")
    return dimensions


GRAPH_STEP = re.compile(r"(\d+):\[(\w+)\](\w+)\(([\d,]*)\)")
GRAPH_OPERATIONS: dict[str, str] = {"scale": "multiply", "invscale": "divide", "min": "minimum", "relu": "relu",
                                    "elu": "elu", "amax": "amax", "add": "add", "max": "maximum"}


def _graph(instruction: Instruction, text: str, steps: Steps) -> list[int]:
    """Steps of "1:[f32]conv();2:[f32]add(1);": what an operation does not take from others comes from the next
    operand. The values that are results behind the first: amax."""
    values: dict[str, int] = {}
    operand, extra = 2, []
    for uid, element_type, name, inputs in GRAPH_STEP.findall(text):
        sources = tuple(values[u] for u in inputs.split(",") if u in values)
        if name == "conv":
            values[uid] = len(steps.made)
            continue
        if name not in GRAPH_OPERATIONS or not sources:
            refuse(instruction, f"{name!r} of the graph is not known")
        kind = GRAPH_OPERATIONS[name]
        outside = kind in ("multiply", "divide", "minimum") or (kind == "add" and len(sources) == 1)
        steps.made.append(Step("sum" if kind == "add" and not outside else kind, sources, operand if outside else -1,
                               1.0))
        operand += outside
        if kind == "amax":
            extra.append(len(steps.made))
        elif element_type in FLOAT8:
            steps.made.append(Step("round", (len(steps.made),), element_type=element_type))
        values[uid] = len(steps.made)
    if not extra and not steps.made and result_array(instruction).element_type in FLOAT8:
        steps.then("round", element_type=result_array(instruction).element_type)
    return extra


# -- oneDNN ------------------------------------------------------------------------------------------------------------

ONEDNN_STEPS = {"RELU": "relu", "TANH": "tanh", "GELU_ERF": "gelu_erf", "GELU_TANH": "gelu_tanh", "RELU6": "relu6",
                "SIGMOID": "sigmoid", "SWISH": "swish", "ELU": "elu"}


def onednn_matmul(instruction: Instruction) -> LibraryCall:
    """__onednn$matmul: a @ b in the last two dimensions, after permuting and transposing them, and fused steps."""
    config = configuration(instruction, "onednn_matmul_config")
    rank, other = (instruction.operands[n].shape.rank for n in (0, 1))
    orders = [tuple(d - 1 for d in integers(_member(config, side, "tensor", "dimensions")))
              for side in ("lhs", "rhs", "result")]
    contracting = ((rank - 2 if config.get("transpose_a") else rank - 1,) if rank > 1 else (0,),
                   (other - 1 if config.get("transpose_b") else other - 2,) if other > 1 else (0,))
    batch = tuple(range(max(0, min(rank, other) - 2)))
    steps = _onednn_steps(instruction, config, None)
    return steps.call(Matmul(DotDimensions(batch, batch, *contracting), *orders))


def onednn_convolution(instruction: Instruction) -> LibraryCall:
    """__onednn$convolution: the window and the dimension numbers stand in the configuration."""
    config = configuration(instruction, "onednn_conv_config")
    rank = instruction.operands[0].shape.rank
    x, _ = _places(instruction, _member(config, "input", "data"), ("batch_dim", "feature_dim"), rank)
    kernel, shift = _places(instruction, _member(config, "kernel", "filter"),
                            ("input_feature_dim", "output_feature_dim"), rank)
    y, _ = _places(instruction, _member(config, "output", "data"), ("batch_dim", "feature_dim"), rank)
    numbers = ConvolutionDimensionNumbers(x[0], x[1], x[2:], kernel[0], kernel[1], kernel[2:], y[0], y[1], y[2:])
    window, sizes = config.get("window") or {}, instruction.operands[1].shape.dimensions
    strides, low, high, dilations = ([v - shift for v in integers(window.get(k))] or [default] * (rank - 2)
                                     for k, default in (("strides", 1), ("pad_left", 0), ("pad_right", 0),
                                                        ("window_dilations", 1)))
    dimensions = tuple(WindowDim(sizes[d], stride, before, behind, 1, dilation) for d, stride, before, behind, dilation
                       in zip(kernel[2:], strides, low, high, dilations))
    steps = _onednn_steps(instruction, config, numbers.output_feature)
    return steps.call(Convolution("output", dimensions, numbers, int(config.get("feature_groups", 1) or 1)))


def _places(instruction: Instruction, part: dict, names: tuple[str, str], rank: int) -> tuple[tuple[int, ...], int]:
    """Two dimensions by name and the spatial ones; and 1 where these, like all of the window, count from 1, as they do
    in older configurations: then they are no permutation of the dimensions otherwise."""
    named, spatial = tuple(int(part.get(n, 0)) for n in names), integers(part.get("spatial_dims"))[:rank - 2]
    for shift in (0, 1):
        places = (*named, *(d - shift for d in spatial))
        if sorted(places) == list(range(rank)):
            return places, shift
    return refuse(instruction, f"dimensions {named + spatial} are not those of an array of rank {rank}")


def _member(config: dict, *path: str) -> Any:
    for name in path:
        config = config.get(name) or {}
    return config


def _onednn_steps(instruction: Instruction, config: dict, feature: int | None) -> Steps:
    """The fused operations; `feature` is the dimension of a bias of one dimension (None: the last)."""
    if _member(config, "optimization_config", "weights_prepacked") or config.get("quant_config"):
        refuse(instruction, "packed weights and quantized operands are not known")
    fusions, steps, operand, linear = config.get("fusions") or {}, Steps(), 2, 0
    names = fusions.get("ops") or config.get("fused_ops") or []
    for name in names:
        if name in ("BIAS", "BINARY_ADD", "SUM"):
            if operand >= len(instruction.operands):
                refuse(instruction, f"{name} has no operand")
            along = instruction.operands[operand].shape.rank == 1 and feature is not None
            steps.then("add", operand=operand, value=1.0, dimensions=(feature,) if along else None)
            operand += 1
        elif name == "LINEAR":
            steps.then("scale", value=_linear_factor(fusions, linear))
            linear += 1
        elif name in ONEDNN_STEPS:
            steps.then(ONEDNN_STEPS[name])
        else:
            refuse(instruction, f"the fused operation {name} is not known")
    return steps


def _linear_factor(fusions: dict, number: int) -> float:
    if fusions.get("alpha"):
        return float(fusions["alpha"][number])
    bits = fusions.get("alpha_typecast", 0)
    return float_of_bits(bits[number] if isinstance(bits, list) else bits)


READERS: dict[str, Callable[[Instruction], LibraryCall]] = {
    **dict.fromkeys(["__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"], cublas_matmul),
    **dict.fromkeys(WANTED, cudnn_convolution),
    "__onednn$matmul": onednn_matmul,
    "__onednn$convolution": onednn_convolution,
}


# -- reading and checking ----------------------------------------------------------------------------------------------

def library_call(instruction: Instruction) -> LibraryCall:
    """The computation of a call to one of READERS. Raises UnsupportedError, located, for an unsupported configuration,
    and VerifyError if shapes do not fit it."""
    if len(instruction.operands) < 2 or not all(o.shape.is_array for o in instruction.operands):
        refuse(instruction, "needs two arrays or more")
    try:
        call = READERS[unquoted(instruction.get("custom_call_target"))](instruction)
    except (ValueError, TypeError, AttributeError, KeyError, IndexError):
        refuse(instruction, "backend_config does not fit the operands")
    shape = product_shape(instruction, call.product)
    if shape.dimensions != result_array(instruction).dimensions:
        refuse(instruction, f"the matmul is {text(shape)}, the result {text(result_array(instruction))}")
    for step in call.steps:
        if step.operand >= 0:
            _check_operand(instruction, step, shape.dimensions)
    return call


def _check_operand(instruction: Instruction, step: Step, sizes: tuple[int, ...]) -> None:
    if step.operand >= len(instruction.operands):
        refuse(instruction, f"there is no operand {step.operand}")
    shape = instruction.operands[step.operand].shape
    places = step.dimensions if step.dimensions is not None else range(len(sizes) - shape.rank, len(sizes))
    spread = step.dimensions is None
    fits = len(places) == shape.rank and all(
        0 <= p < len(sizes) and (n == sizes[p] or (spread and n == 1)) for p, n in zip(places, shape.dimensions))
    if not fits:
        refuse(instruction, f"operand {step.operand}, {text(shape)}, does not fit the result")


def product_shape(instruction: Instruction, product: Matmul | Convolution) -> Shape:
    """The shape of the product, in f32; checks that its operands make one."""
    lhs, rhs = (o.shape for o in instruction.operands[:2])
    if isinstance(product, Matmul):
        lhs, rhs = ordered(lhs, product.lhs_order), ordered(rhs, product.rhs_order)
        shape = infer_dot(draft("dot", lhs, rhs, instruction, **dot_attributes(product.dims)))
        return ordered(shape, inverse(product.result_order))
    result = result_array(instruction)
    x, kernel = {"output": (lhs, rhs), "input": (result, rhs), "kernel": (lhs, result)}[product.wanted]
    shape = infer_convolution(draft("convolution", x, kernel, instruction, window=Window(product.window),
                                    dim_labels=product.numbers, feature_group_count=product.groups))
    if product.wanted == "output":
        return shape
    given = rhs if product.wanted == "kernel" else lhs
    if shape.dimensions != given.dimensions:
        refuse(instruction, f"the convolution gives {text(shape)}, the call has {text(given)}")
    return result


def draft(opcode: str, lhs: Shape, rhs: Shape, like: Instruction, **attributes: Any) -> Instruction:
    """An instruction to infer the shape of."""
    operands = [Instruction("x", "parameter", array("f32", *s.dimensions)) for s in (lhs, rhs)]
    return Instruction(opcode, opcode, array("f32"), operands, attributes, span=like.span)


def dot_attributes(dims: DotDimensions) -> dict[str, tuple[int, ...]]:
    names = ("lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims")
    return {name: numbers for name, numbers in zip(names, dims) if numbers}


def ordered(shape: Shape, order: tuple[int, ...]) -> Shape:
    """The shape of a transpose; `order` () is none."""
    return array(shape.element_type, *(shape.dimensions[d] for d in order)) if order else shape


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
