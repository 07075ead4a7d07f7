"""Replaces the calls of hloc/ops/vendors/ by HLO.

    y = f32[8] custom-call(x), custom_call_target="AwsNeuronTransferWithStaticRing"      =>   y is x
    y = bf16[8] custom-call(x), custom_call_target="AwsNeuronSilu"                       =>   convert(z * logistic(z)),
                                                                                              z = convert(x) to f32
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Union

from hloc.ir import Instruction, Module
from hloc.ops.checks import target_of
from hloc.ops.vendors import neuron, poplar
from hloc.ops.vendors.linear_algebra import result_shapes
from hloc.ops.vendors.values import check_alike, check_handed_on, handed_on
from hloc.passes.expressions import Expressions
from hloc.passes.library_calls import STEPS, mean, over_rows, results, softmax_along, widened

Write = Callable[[Module, Expressions, Instruction], Union[Instruction, None]]


def vendor_value(module: Module, e: Expressions, instruction: Instruction) -> Instruction | None:
    """The replacement of a vendor's call; None for other calls."""
    write = ROWS.get(target_of(instruction))
    return write(module, e, instruction) if write else None


def marker(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    check_handed_on(instruction)
    operands = instruction.operands
    return e.op("tuple", *operands) if instruction.shape.is_tuple and len(operands) > 1 else operands[0]


def elementwise(function: Callable[..., Instruction]) -> Write:
    """function(e, *operands in f32 or f64)"""
    def write(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
        check_alike(instruction)
        return results(e, instruction, [function(e, *(widened(e, o) for o in instruction.operands))])

    return write


def step(name: str) -> Write:
    return elementwise(lambda e, x: STEPS[name](e, x, None, 1))


def one_minus(e: Expressions, x: Instruction) -> Instruction:
    return e.op("subtract", e.like(1, x), x)


def product(e: Expressions, *factors: Instruction) -> Instruction:
    whole = factors[0]
    for factor in factors[1:]:
        whole = e.op("multiply", whole, factor)
    return whole


# -- AWS Neuron --------------------------------------------------------------------------------------------------------

def rms_norm(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    axis = neuron.check_rms_norm(instruction)
    x, weight, epsilon = (widened(e, o) for o in instruction.operands)
    weight, epsilon = (e.convert(v, x.shape.element_type) for v in (weight, epsilon))
    square = mean(module, e, product(e, x, x), (axis,))
    factor = e.op("rsqrt", e.op("add", square, e.spread(e.reshape(epsilon), x.shape)))
    return results(e, instruction, [product(e, x, factor, e.broadcast(weight, (axis,), x.shape.dimensions))])


def softmax(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    check_alike(instruction)
    x = widened(e, instruction.operands[0])
    return results(e, instruction, [softmax_along(module, e, x, neuron.dimension(instruction))])


def softmax_gradient(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    check_alike(instruction)
    gradient, y = (widened(e, o) for o in instruction.operands)
    along = over_rows(module, e, product(e, gradient, y), "add", (neuron.dimension(instruction),), 0)
    return results(e, instruction, [product(e, y, e.op("subtract", gradient, along))])


def gelu_derivative(e: Expressions, x: Instruction) -> Instruction:
    below = product(e, e.like(0.5, x), e.op("add", e.like(1, x), e.op("erf", product(e, x, e.like(math.sqrt(0.5), x)))))
    bell = e.op("exponential", product(e, x, x, e.like(-0.5, x)))
    return e.op("add", below, product(e, x, bell, e.like(1 / math.sqrt(2 * math.pi), x)))


def place_of(opcode: str, start: float) -> Write:
    """The first place where the largest, or smallest, stands; a NaN is both."""
    def write(module: Module, e: Expressions, instruction: Instruction) -> Instruction | None:
        x, axis = instruction.operands[0], neuron.dimension(instruction)
        size = x.shape.dimensions[axis]
        if x.shape.kind not in ("float", "signed", "unsigned") or not 0 < size < 1 << 31:
            return None
        x = widened(e, x) if x.shape.kind == "float" else e.convert(x, "s64") if x.shape.element_type != "u64" else x
        if x.shape.kind == "float":
            stands = e.op("or", e.compare(x, "EQ", over_rows(module, e, x, opcode, (axis,), start)),
                          e.compare(x, "NE", x))
        else:
            least = 0 if x.shape.kind == "unsigned" else -(1 << 63)
            most = least + (1 << 64) - 1
            stands = e.compare(x, "EQ", over_rows(module, e, x, opcode, (axis,), least if start < 0 else most))
        places = e.iota("s32", x.shape.dimensions, axis)
        first = e.reduce(module, e.chosen(stands, places, e.like(size - 1, places)), "minimum", (axis,), size - 1)
        return results(e, instruction, [first])

    return write


def top_k(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    made = e.op("topk", instruction.operands[0], k=neuron.top_count(instruction), largest=True)
    parts = [e.op("get-tuple-element", made, index=n) for n in range(2)]
    return e.op("tuple", *(e.convert(p, s.element_type) for p, s in zip(parts, result_shapes(instruction))))


# -- Poplar ------------------------------------------------------------------------------------------------------------

def last_softmax(module: Module, e: Expressions, instruction: Instruction) -> Instruction:
    poplar.check_rows(instruction)
    x = widened(e, instruction.operands[0])
    return results(e, instruction, [softmax_along(module, e, x, x.shape.rank - 1)])


def hard_sigmoid(e: Expressions, x: Instruction) -> Instruction:
    line = e.op("add", product(e, x, e.like(0.2, x)), e.like(0.5, x))
    return e.op("minimum", e.op("maximum", line, e.like(0, x)), e.like(1, x))


ROWS: dict[str, Write] = {
    **{name: marker for calls in (neuron.NEURON_CALLS, poplar.POPLAR_CALLS)
       for name, meaning in calls.items() if meaning is handed_on},
    "AwsNeuronRmsNorm": rms_norm,
    "AwsNeuronSoftmax": softmax,
    "AwsNeuronSoftmaxBackward": softmax_gradient,
    "AwsNeuronErf": elementwise(lambda e, x: e.op("erf", x)),
    "AwsNeuronGelu": step("gelu_erf"),
    "AwsNeuronGeluApprxTanh": step("gelu_tanh"),
    "AwsNeuronGeluBackward": elementwise(gelu_derivative),
    "AwsNeuronSilu": step("swish"),
    "AwsNeuronArgMax": place_of("maximum", -math.inf),
    "AwsNeuronArgMin": place_of("minimum", math.inf),
    "AwsNeuronTopK": top_k,
    "Relu": step("relu"),
    "Gelu": step("gelu_tanh"),
    "GeluErf": step("gelu_erf"),
    "Sigmoid": step("sigmoid"),
    "HardSigmoid": elementwise(hard_sigmoid),
    "Swish": step("swish"),
    "Softmax": last_softmax,
    "StableSoftmax": last_softmax,
    "ReluGrad": elementwise(lambda e, y, dy: e.chosen(e.compare(y, "GT", e.like(0, y)), dy, e.like(0, dy))),
    "SigmoidGrad": elementwise(lambda e, y, dy: product(e, dy, y, one_minus(e, y))),
    "TanhGrad": elementwise(lambda e, y, dy: product(e, dy, one_minus(e, product(e, y, y)))),
}
