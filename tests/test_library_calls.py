"""Library calls of optimized modules, on the evaluator and in compiled C, against NumPy written from their definitions."""
from __future__ import annotations

import itertools
import json
import math
import warnings

import ml_dtypes
import numpy as np
import pytest
from library_check import check, draw, rng, shape_of

import hloc
from hloc.api import optimize
from hloc.errors import HlocError, UnsupportedError, VerifyError
from hloc.evaluate import evaluate
from hloc.ir import numpy_dtype
from hloc.ir.clone import clone_module
from hloc.ops.known_calls import CUSTOM_CALLS
from hloc.targets import find
from hloc.text import parse_module

# -- cuBLAS ------------------------------------------------------------------------------------------------------------

def gemm(lhs_contracting=(1,), rhs_contracting=(0,), batch=(), **more) -> dict:
    numbers = {f"{side}_{kind}_dimensions": [str(d) for d in values] for side, kind, values in (
        ("lhs", "contracting", lhs_contracting), ("rhs", "contracting", rhs_contracting),
        ("lhs", "batch", batch), ("rhs", "batch", batch))}
    return {"operation_queue_id": "0", "gemm_backend_config": {
        "alpha_real": 1, "alpha_imag": 0, "beta": 0, "dot_dimension_numbers": numbers, "epilogue": "DEFAULT",
        "precision_config": {"operand_precision": ["DEFAULT", "DEFAULT"]}, **more}}


def relu(x):
    return np.maximum(x, 0)


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


@pytest.mark.parametrize("target", ["__cublas$gemm", "__cublas$lt$matmul"])
def test_gemm(target):
    a, b, c = draw(5, 3), draw(3, 4), draw(5, 4)
    check(target, [a, b], [a @ b], config=gemm())
    check(target, [a, b], [a @ b], config=gemm(), workspace=False)
    check(target, [a.T.copy(), b], [3 * (a @ b)], config=gemm((0,), (0,), alpha_real=3))
    check(target, [a, b, c], [2 * (a @ b) - 0.5 * c], config=gemm(alpha_real=2, beta=-0.5))
    check(target, [a, b], [2 * (a @ b)], config=gemm(alpha_real=2, alpha_imag=1))           # only complex numbers have it


def test_gemm_with_batches_and_types():
    a, b = draw(2, 5, 3), draw(2, 4, 3)
    check("__cublas$gemm", [a, b], [np.einsum("bmk,bnk->bmn", a, b)], config=gemm((2,), (2,), (0,)))
    a, b = draw(5, 3, dtype=np.complex64), draw(3, 4, dtype=np.complex64)
    check("__cublas$gemm", [a, b], [((1 + 2j) * (a @ b)).astype(np.complex64)], config=gemm(alpha_imag=2))
    a, b = draw(5, 3, dtype=np.int8), draw(3, 4, dtype=np.int8)
    whole = a.astype(np.int32) @ b.astype(np.int32)
    check("__cublas$gemm", [a, b], [whole], config=gemm())
    a, b = draw(5, 3, dtype=ml_dtypes.bfloat16), draw(3, 4, dtype=ml_dtypes.bfloat16)
    check("__cublas$gemm", [a, b], [(a.astype(float) @ b.astype(float)).astype(ml_dtypes.bfloat16)], config=gemm())
    check("__cublas$gemm", [a, b], [(a.astype(float) @ b.astype(float)).astype(np.float32)], config=gemm())


def test_older_configuration_is_a_string_without_its_own_name():
    a, b = draw(5, 3), draw(3, 4)
    check("__cublas$gemm", [a, b], [2 * (a @ b)],
          config=json.dumps(gemm(alpha_real=2)["gemm_backend_config"]))


@pytest.mark.parametrize("epilogue,function", [
    ("BIAS", lambda x: x), ("RELU", relu), ("BIAS_RELU", relu), ("GELU", gelu), ("BIAS_GELU", gelu),
    ("SILU", lambda x: x / (1 + np.exp(-x))), ("BIAS_SILU", lambda x: x / (1 + np.exp(-x)))])
def test_epilogue(epilogue, function):
    a, b, c, bias = draw(5, 3), draw(3, 4), draw(5, 4), draw(4)
    added = bias if "BIAS" in epilogue else 0
    operands = [bias] if "BIAS" in epilogue else []
    check("__cublas$lt$matmul", [a, b, *operands], [function(a @ b + added).astype(np.float32)],
          config=gemm(epilogue=epilogue))
    check("__cublas$lt$matmul", [a, b, c, *operands], [function(a @ b + c + added).astype(np.float32)],
          config=gemm(epilogue=epilogue, beta=1))


def test_auxiliary_output_is_what_the_activation_sees():
    a, b, bias = draw(5, 3), draw(3, 4), draw(4)
    seen = a @ b + bias
    check("__cublas$lt$matmul", [a, b, bias], [gelu(seen).astype(np.float32), seen], config=gemm(
        epilogue="BIAS_GELU_AUX"))


def test_bias_lies_along_the_fastest_dimension():
    a, b, bias = draw(5, 3), draw(3, 4), draw(5)
    check("__cublas$lt$matmul", [a, b, bias], [a @ b + bias[:, None]], config=gemm(epilogue="BIAS"), workspace=False,
          layout="{0,1}")


def test_f8_with_scales():
    e4m3 = ml_dtypes.float8_e4m3fn
    a, b = draw(16, 32, dtype=e4m3), draw(16, 32, dtype=e4m3)
    c, bias = draw(16, 16, dtype=ml_dtypes.bfloat16), draw(16, dtype=ml_dtypes.bfloat16)
    sa, sb, sd = np.float32(2), np.float32(0.25), np.float32(64)
    product = (a.astype(float) @ b.astype(float).T) * 0.5
    config = dict(lhs_contracting=(1,), rhs_contracting=(1,))
    target = "__cublas$lt$matmul$f8"
    check(target, [a, b, sa, sb], [product.astype(ml_dtypes.bfloat16)], config=gemm(**config))
    check(target, [a, b, c, sa, sb, bias],
          [relu(product + c.astype(float) + bias.astype(float)).astype(np.float32)],
          config=gemm(**config, beta=1, epilogue="BIAS_RELU"), tolerance=2e-6)
    clipped = np.clip(product * 64, -448, 448).astype(e4m3)
    check(target, [a, b, sa, sb, sd], [clipped, np.float32(np.abs(product).max()).reshape(())],
          config=gemm(**config, damax_output=True))
    check(target, [a, b, sa, sb, np.float32(1), sd], [clipped], config=gemm(**config))      # with the scale of c


@pytest.mark.parametrize("config,words", [
    ({}, "no dot_dimension_numbers"), (gemm(epilogue="TANH"), "TANH"), (gemm(epilogue="BIAS"), "bias"),
    (gemm(beta=1), "no operand 2"), ("{", "not JSON"), ([1], "not an object"), (gemm(alpha_real="x"), "does not fit"),
    ({"gemm_backend_config": {"dot_dimension_numbers": 3}}, "does not fit"), ("[" * 100_000, "not JSON"),
    (gemm((7,), (0,)), "no dimension 7"), (gemm((-1,), (0,)), "no dimension -1"), (gemm(alpha_real=[]), "does not fit")],
    ids=lambda v: str(v)[:40])
def test_what_is_not_understood_is_named(config, words):
    written = json.dumps(config if isinstance(config, str) else json.dumps(config))
    text = f"""HloModule m
ENTRY e {{
  a = f32[4,4] parameter(0)
  ROOT r = f32[4,4] custom-call(a, a), custom_call_target="__cublas$lt$matmul", backend_config={written}
}}"""
    for run in (lambda: evaluate(parse_module(text), [draw(4, 4)]), lambda: hloc.compile(text, "cpu")):
        with pytest.raises((UnsupportedError, VerifyError), match=words) as caught:
            run()
        assert ":4:8: " in str(caught.value)


# -- convolutions ------------------------------------------------------------------------------------------------------

def places_of(x, kernel, stride, padding, dilation):
    return [(n + 2 * p - ((k - 1) * d + 1)) // s + 1 for n, p, k, d, s in zip(
        x[2:], padding, kernel[2:], dilation, stride)]


def triples(x, kernel, stride, padding, dilation, groups, flipped):
    """(index of x, index of the kernel, index of the output) that are multiplied and added: [N,C,H,W], [O,I,H,W]."""
    sizes = places_of(x, kernel, stride, padding, dilation)
    inputs, outputs = kernel[1], kernel[0] // groups
    for n, o, i in itertools.product(range(x[0]), range(kernel[0]), range(inputs)):
        for places in itertools.product(*(range(k) for k in kernel[2:])):
            for spots in itertools.product(*(range(s) for s in sizes)):
                at = [q * s + t * d - p for q, s, t, d, p in zip(spots, stride, places, dilation, padding)]
                if all(0 <= v < size for v, size in zip(at, x[2:])):
                    taken = tuple(k - 1 - t for k, t in zip(kernel[2:], places)) if flipped else places
                    yield (n, o // outputs * inputs + i, *at), (o, i, *taken), (n, o, *spots)


CASES = {"plain": {}, "strided": {"stride": (2, 3), "padding": (1, 0)}, "dilated": {"dilation": (2, 1), "padding": (1, 2)},
         "grouped": {"groups": 2, "stride": (2, 1), "padding": (1, 1)}, "flipped": {"flipped": True, "padding": (1, 1)}}


@pytest.mark.parametrize("labels", ["bf01_oi01->bf01", "b01f_01io->b01f"])
@pytest.mark.parametrize("case", CASES)
def test_convolution_and_its_gradients(case, labels):
    options = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1, "flipped": False, **CASES[case]}
    x = draw(2, 4, 6, 5, dtype=np.float64)
    kernel = draw(6, 4 // options["groups"], 3, 2, dtype=np.float64)
    links = list(triples(x.shape, kernel.shape, **options))
    y = np.zeros((2, 6, *places_of(x.shape, kernel.shape, *(options[k] for k in ("stride", "padding", "dilation")))))
    gradient = draw(*y.shape, dtype=np.float64)
    of_x, of_kernel = np.zeros(x.shape), np.zeros(kernel.shape)
    for at, tap, out in links:
        y[out] += x[at] * kernel[tap]
        of_x[at] += gradient[out] * kernel[tap]
        of_kernel[tap] += gradient[out] * x[at]

    def turned(array, is_kernel=False):
        if labels.startswith("bf"):
            return array
        return np.ascontiguousarray(array.transpose((2, 3, 1, 0) if is_kernel else (0, 2, 3, 1)))
    window = "window={size=3x2" + "".join(f" {key}={'x'.join(map(str, values))}" for key, values in (
        ("stride", options["stride"]), ("pad", [f"{p}_{p}" for p in options["padding"]]),
        ("rhs_dilate", options["dilation"]), ("rhs_reversal", [int(options["flipped"])] * 2))) + "}"
    more = f", {window}, dim_labels={labels}, feature_group_count={options['groups']}"
    config = {"cudnn_conv_backend_config": {"conv_result_scale": 1, "activation_mode": "kNone", "side_input_scale": 0}}
    x, y, gradient, of_x = (turned(v) for v in (x, y, gradient, of_x))
    kernel, of_kernel = turned(kernel, True), turned(of_kernel, True)
    check("__cudnn$convForward", [x, kernel], [y], config=config, more=more)
    check("__cudnn$convBackwardInput", [gradient, kernel], [of_x], config=config, more=more)
    check("__cudnn$convBackwardFilter", [x, gradient], [of_kernel], config=config, more=more)


def one_by_one(x, kernel):
    """A convolution with a kernel of one place: [N,H,W,C], [O,C,1,1]."""
    return np.einsum("nhwc,oc->nhwo", x.astype(np.float64), kernel[:, :, 0, 0].astype(np.float64))


@pytest.mark.parametrize("mode,function", [
    ("kNone", lambda x: x), ("kRelu", relu), ("kRelu6", lambda x: np.clip(x, 0, 6)),
    ("kElu", lambda x: np.where(x > 0, x, np.expm1(x))), ("kLeakyRelu", lambda x: np.where(x > 0, x, 0.2 * x))])
def test_convolution_with_bias_side_input_and_activation(mode, function):
    x, kernel, bias, side = draw(2, 3, 3, 4), draw(5, 4, 1, 1), draw(5), draw(2, 3, 3, 5)
    config = {"cudnn_conv_backend_config": {"activation_mode": mode, "conv_result_scale": 3, "side_input_scale": 0.5,
                                            "leakyrelu_alpha": 0.2}}
    more = ", window={size=1x1}, dim_labels=b01f_oi01->b01f"
    want = function(3 * one_by_one(x, kernel) + bias + 0.5 * side).astype(np.float32)
    check("__cudnn$convBiasActivationForward", [x, kernel, bias, side], [want], config=config, more=more)
    config["cudnn_conv_backend_config"]["side_input_scale"] = 0
    want = function(3 * one_by_one(x, kernel) + bias).astype(np.float32)
    check("__cudnn$convBiasActivationForward", [x, kernel, bias], [want], config=config, more=more)


def test_convolution_of_integers_is_rounded_and_saturates():
    x, kernel, bias = draw(1, 2, 2, 4, dtype=np.int8), draw(3, 4, 1, 1, dtype=np.int8), draw(3)
    config = {"cudnn_conv_backend_config": {"activation_mode": "kRelu", "conv_result_scale": 5}}
    want = np.clip(np.rint(relu(5 * one_by_one(x, kernel) + bias)), -128, 127).astype(np.int8)
    check("__cudnn$convBiasActivationForward", [x, kernel, bias], [want], config=config,
          more=", window={size=1x1}, dim_labels=b01f_oi01->b01f")


def vectors(x, feature: int, size: int, place: int):
    """`x` with its features in vectors of `size`, along a dimension put at `place`."""
    sizes = x.shape
    split = x.reshape(*sizes[:feature], sizes[feature] // size, size, *sizes[feature + 1:])
    return np.ascontiguousarray(np.moveaxis(split, feature + 1, place))


@pytest.mark.parametrize("labels, place", [("bf01_oi01->bf01", 4), ("bf?01_oi?01->bf?01", 2)])
def test_convolution_of_vectorized_features(labels, place):
    x, kernel, bias = draw(2, 8, 3, 3, dtype=np.int8), draw(12, 8, 1, 1, dtype=np.int8), draw(12)
    side = draw(2, 12, 3, 3, dtype=np.int8)
    value = one_by_one(x.transpose(0, 2, 3, 1), kernel).transpose(0, 3, 1, 2)
    want = np.clip(np.rint(relu(value + bias[:, None, None] + 0.5 * side)), -128, 127).astype(np.int8)
    config = {"cudnn_conv_backend_config": {"activation_mode": "2", "conv_result_scale": 1, "side_input_scale": 0.5}}
    check("__cudnn$convBiasActivationForward",
          [vectors(x, 1, 4, place), vectors(kernel, 1, 4, place), bias, vectors(side, 1, 4, place)],
          [vectors(want, 1, 4, place)], config=config, more=f", window={{size=1x1}}, dim_labels={labels}")


def reordered_by_hand(kernel, bias):
    """As cuDNN orders filters [O, I/32, H, W, 32] for its tensor cores."""
    outputs, inputs, height, width, _ = kernel.shape
    made = np.zeros((inputs, height, width, outputs // 8, 2, 8, 4, 4), np.int8)
    for o in range(outputs):
        block, row, half = o // 8, o % 8 // 2, o % 2
        for c in range(32):
            made[:, :, :, block, half, c // 4, row, c % 4] = kernel[o, :, :, :, c]
    order = [32 * block + 8 * row + 4 * half + n for block in range(outputs // 32) for half in range(2)
             for row in range(4) for n in range(4)]
    return made.reshape(kernel.shape), bias[order]


def test_convolution_with_a_reordered_filter():
    x, kernel, bias = draw(1, 32, 3, 3, dtype=np.int8), draw(64, 32, 2, 2, dtype=np.int8), draw(64)
    vector_kernel = vectors(kernel, 1, 32, 4)
    made = reordered_by_hand(vector_kernel, bias)
    check("__cudnn$convReorderFilterAndBias", [vector_kernel, bias], list(made), workspace=False)
    check("__cudnn$convReorderFilter", [vector_kernel], [made[0]], workspace=False)
    value = sum(np.einsum("nchw,oc->nohw", x[:, :, i:i + 2, j:j + 2].astype(np.float64), kernel[:, :, i, j])
                for i in range(2) for j in range(2)) + bias[:, None, None]
    config = {"cudnn_conv_backend_config": {"activation_mode": "kNone", "conv_result_scale": 1,
                                            "reordered_int8_nchw_vect": True}}
    check("__cudnn$convBiasActivationForward", [vectors(x, 1, 32, 4), *made],
          [vectors(value.astype(np.float32), 1, 32, 4)], config=config,
          more=", window={size=2x2}, dim_labels=bf01_oi01->bf01")


@pytest.mark.parametrize("sizes, words", [("32,1,1,1,4", "is no filter"), ("33,1,1,1,32", "is no filter")])
def test_filters_that_cannot_be_reordered_are_refused(sizes, words):
    text = f"""ENTRY e {{ k = s8[{sizes}] parameter(0)
        ROOT r = s8[{sizes}] custom-call(k), custom_call_target="__cudnn$convReorderFilter" }}"""
    with pytest.raises(UnsupportedError, match=words):
        hloc.compile(text, "cpu")


def test_convolution_graph():
    x, kernel = draw(1, 3, 3, 4, dtype=ml_dtypes.float8_e4m3fn), draw(5, 4, 1, 1, dtype=ml_dtypes.float8_e4m3fn)
    added, factor = draw(1, 3, 3, 5), np.float32(8)
    value = relu(one_by_one(x, kernel) + added)
    graph = "11:[f32]conv();13:[f32]add(11);15:[f32]relu(13);16:[f8e4m3fn]scale(15);18:[f32]amax(15);"
    config = {"cudnn_conv_backend_config": {"activation_mode": "kNone", "conv_result_scale": 1,
                                            "serialized_graph": graph}}
    check("__cudnn$convForwardGraph", [x, kernel, added, factor],
          [(value * 8).astype(ml_dtypes.float8_e4m3fn), np.float32(value.max()).reshape(())], config=config,
          more=", window={size=1x1}, dim_labels=b01f_oi01->b01f")
    graph = "1:[f32]conv();2:[f32]min(1);3:[f32]scale(2);4:[f32]max(3,1);5:[f32]add(4,1);6:[f32]elu(5);7:[f32]invscale(6);"
    config["cudnn_conv_backend_config"]["serialized_graph"] = graph
    product = one_by_one(x, kernel)
    summed = np.maximum(np.minimum(product, added) * 8, product) + product
    check("__cudnn$convForwardGraph", [x, kernel, added, factor, np.float32(4)],
          [(np.where(summed > 0, summed, np.expm1(summed)) / 4).astype(np.float32)], config=config,
          more=", window={size=1x1}, dim_labels=b01f_oi01->b01f")


# -- oneDNN ------------------------------------------------------------------------------------------------------------

def test_onednn_matmul():
    a, b, bias = draw(2, 5, 3), draw(2, 3, 4), draw(4)
    target, part = "__onednn$matmul", "onednn_matmul_config"
    check(target, [a, b], [a @ b], config={part: {}}, workspace=False)
    check(target, [a.swapaxes(1, 2).copy(), b.swapaxes(1, 2).copy()], [a @ b], workspace=False,
          config={part: {"transpose_a": True, "transpose_b": True}})
    erf = np.vectorize(math.erf)
    x = a @ b + bias
    check(target, [a, b, bias], [(0.5 * x * (1 + erf(x / math.sqrt(2)))).astype(np.float32)], workspace=False,
          config={part: {"fusions": {"ops": ["BIAS", "GELU_ERF"]}, "optimization_config": {"bias_broadcast": True}}})
    more = draw(1, 5, 4)
    factor = int(np.float32(0.5).view(np.int32))
    check(target, [a, b, bias, more], [np.tanh((a @ b + bias) * 0.5 + more).astype(np.float32)], config={
        part: {"fusions": {"ops": ["BIAS", "LINEAR", "BINARY_ADD", "TANH"], "alpha_typecast": [factor]}}})


def test_onednn_matmul_of_permuted_operands():
    a, b = draw(5, 2, 3), draw(2, 3, 4)
    config = {"onednn_matmul_config": {"lhs": {"tensor": {"dimensions": ["2", "1", "3"]}},
                                       "result": {"tensor": {"dimensions": ["2", "1", "3"]}}}}
    check("__onednn$matmul", [a, b], [np.einsum("mbk,bkn->mbn", a, b)], config=config, workspace=False)


@pytest.mark.parametrize("first", [0, 1])
def test_onednn_convolution(first):
    """Older configurations count strides, padding and spatial dimensions from 1."""
    x, kernel, bias = draw(2, 6, 5, 4), draw(3, 2, 4, 6), draw(6)
    y = np.zeros((2, 3, 2, 6), np.float32)
    options = {"stride": (2, 3), "padding": (1, 0), "dilation": (1, 1), "groups": 1, "flipped": False}
    for (n, c, h, w), (o, i, p, q), (_, _, r, s) in triples((2, 4, 6, 5), (6, 4, 3, 2), **options):
        y[n, r, s, o] += x[n, h, w, c] * kernel[p, q, i, o]
    data = {"data": {"batch_dim": "0", "feature_dim": "3", "spatial_dims": [str(1 + first), str(2 + first)]}}
    config = {"onednn_conv_config": {
        "dims": "4", "input": data, "output": data, "feature_groups": "1",
        "kernel": {"filter": {"input_feature_dim": "2", "output_feature_dim": "3",
                              "spatial_dims": [str(first), str(1 + first)]}},
        "window": {key: [str(v + first) for v in values] for key, values in (
            ("strides", (2, 3)), ("pad_left", (1, 0)), ("pad_right", (1, 0)), ("window_dilations", (1, 1)))},
        "fusions": {"ops": ["BIAS", "RELU"]}}}
    check("__onednn$convolution", [x, kernel, bias], [relu(y + bias)], config=config, workspace=False)


def test_onednn_rows():
    x, scale, shift = draw(4, 3, 7), draw(7), draw(7)
    parts = np.exp(x.astype(float))
    check("__onednn$softmax", [x], [(parts / parts.sum(1, keepdims=True)).astype(np.float32)], workspace=False,
          config={"onednn_softmax_config": {"softmax_axis": 1}})
    bits = int(np.float32(1e-3).view(np.int32))
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)
    check("__onednn$layernorm", [x, scale, shift], [normal * scale + shift], workspace=False,
          config={"onednn_layer_norm_config": {"rescale": "SCALE_AND_SHIFT", "epsilon_typecast": bits}})


# -- norm, sort, random, factorizations --------------------------------------------------------------------------------

def test_cudnn_norm():
    x, scale, bias, dy = draw(4, 6, 1, 1), draw(1, 6, 1, 1), draw(1, 6, 1, 1), draw(4, 6, 1, 1)
    mean, factor = x.mean((1, 2, 3), keepdims=True), 1 / np.sqrt(x.var((1, 2, 3), keepdims=True) + 0.01)
    normal = (x - mean) * factor
    config = {"cudnn_norm_backend_config": {"epsilon": 0.01, "kind": "LAYER_FWD_TRAIN"}}
    y = normal * scale + bias
    check("__cudnn$norm", [x, scale, bias], [y, mean, factor], config=config)
    config["cudnn_norm_backend_config"]["kind"] = "LAYER_FWD_INFER"
    check("__cudnn$norm", [x, scale, bias], [y], config=config)
    config["cudnn_norm_backend_config"]["kind"] = "LAYER_BWD"
    weighted = dy * scale                                     # d y_i / d x_j = factor (1_ij - 1/n - normal_i normal_j / n)
    dx = np.zeros_like(x)
    for row in range(4):
        z, n = normal[row].ravel(), 6
        jacobian = factor[row].item() * (np.eye(n) - 1 / n - np.outer(z, z) / n)
        dx[row] = (jacobian.T @ weighted[row].ravel()).reshape(6, 1, 1)
    check("__cudnn$norm", [x, scale, dy, mean, factor],
          [dx, (dy * normal).sum(0, keepdims=True), dy.sum(0, keepdims=True)], config=config)


@pytest.mark.parametrize("down", [False, True])
def test_radix_sort(down):
    keys, values = draw(3, 8), np.arange(24, dtype=np.int32).reshape(3, 8)
    order = np.argsort(-keys if down else keys, axis=-1)
    wanted = [np.take_along_axis(keys, order, -1), np.take_along_axis(values, order, -1)]
    check("__cub$DeviceRadixSort", [keys, values], wanted, config={"descending": down})
    check("__cub$DeviceRadixSort", [keys], wanted[:1], config={"descending": down})


def test_threefry():
    """Known answers of Threefry-2x32 with 20 rounds."""
    words = [[0, 0, 0, 0], [0xFFFFFFFF] * 4, [0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3]]
    wanted = [[0x6B200159, 0x99BA4EFE], [0x1CB996FC, 0xBB002BE7], [0xC4923A9C, 0x483DF7A0]]
    check("cu_threefry2x32_ffi", [np.array(w, np.uint32) for w in zip(*words)],
          [np.array(w, np.uint32) for w in zip(*wanted)], workspace=False)


def test_cholesky_and_triangular_solve_as_xla_calls_them():
    a, b = draw(4, 4, dtype=np.float64), draw(4, 2, dtype=np.float64)
    a = a @ a.T + 4 * np.eye(4)
    factor = np.linalg.cholesky(a)
    check("__cusolver$cholesky", [a], [factor, np.zeros(9), np.zeros((), np.int32)], workspace=False,
          config={"cholesky_options": {"lower": True}})
    config = {"left_side": True, "lower": True, "unit_diagonal": False, "transpose_a": "TRANSPOSE"}
    check("__cublas$triangularSolve", [factor, b], [np.linalg.solve(factor.T, b)], config=config)


REAL = [np.float64, np.complex128]


def both(target: str, options: str, results: str, *operands):
    """The results of a call as JAX writes it: the evaluator's and the CPU's, which may be LAPACK's."""
    lines = [f"  p{n} = {shape_of(x)} parameter({n})" for n, x in enumerate(operands)]
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    text = "\n".join(["HloModule linalg", "ENTRY e {", *lines,
                      f'  ROOT r = {results} custom-call({names}), custom_call_target="{target}", '
                      f"api_version=API_VERSION_TYPED_FFI, backend_config={{{options}}}", "}"])
    return evaluate(parse_module(text), operands), hloc.compile(text, "cpu")(*operands)


def call(target: str, options: str, results: str, *operands):
    """The same where both are equal."""
    found, compiled = both(target, options, results, *operands)
    for mine, theirs in zip(found, compiled):
        np.testing.assert_array_equal(mine, theirs)
    return found


def names(dtype, of_real: str, of_complex: str | None = None) -> tuple[str, str]:
    whole = np.dtype(dtype).kind != "c"
    return f"lapack_{'d' if whole else 'z'}{of_real if whole else of_complex or of_real}_ffi", "f64" if whole else "c128"


@pytest.mark.parametrize("dtype", REAL)
def test_eigenvectors(dtype):
    a = draw(5, 5, dtype=dtype)
    target, kind = names(dtype, "geev")
    parts = "f64[5], f64[5]" if kind == "f64" else "c128[5]"
    for *w, left, right, info in both(target, "compute_left = 86 : ui8, compute_right = 86 : ui8",
                                      f"({parts}, c128[5,5], c128[5,5], s32[])", a):
        w = w[0] + 1j * w[1] if kind == "f64" else w[0]
        np.testing.assert_allclose(a @ right, right * w, atol=1e-10)
        np.testing.assert_allclose(np.conj(left.T) @ a, w[:, None] * np.conj(left.T), atol=1e-10)
        assert info == 0


@pytest.mark.parametrize("dtype", REAL)
def test_schur(dtype):
    a = draw(6, 6, dtype=dtype)
    target, kind = names(dtype, "gees")
    parts = "f64[6], f64[6]" if kind == "f64" else "c128[6]"
    for t, z, *w, selected, info in both(target, "mode = 86 : ui8, sort = 78 : ui8",
                                         f"({kind}[6,6], {kind}[6,6], {parts}, s32[], s32[])", a):
        np.testing.assert_allclose(z @ t @ np.conj(z.T), a, atol=1e-10)
        np.testing.assert_allclose(np.conj(z.T) @ z, np.eye(6), atol=1e-10)
        assert not np.any(np.tril(t, -2 if kind == "f64" else -1)) and info == selected == 0
        w = w[0] + 1j * w[1] if kind == "f64" else w[0]
        np.testing.assert_allclose(np.sort_complex(w), np.sort_complex(np.linalg.eigvals(a).astype(complex)), atol=1e-9)


def reflections(packed, taus, first: int):
    """The product of 1 - tau v v^H, v standing in the columns from `first` rows below the diagonal, with a 1 on top."""
    size = len(packed)
    q = np.eye(size, dtype=packed.dtype)
    for k, tau in enumerate(taus):
        v = packed[:, k].copy()
        v[:k + first], v[k + first] = 0, 1
        q = q @ (np.eye(size) - tau * np.outer(v, np.conj(v)))
    return q


@pytest.mark.parametrize("dtype", REAL)
def test_hessenberg_and_tridiagonal(dtype):
    a = draw(5, 5, dtype=dtype)
    target, kind = names(dtype, "gehrd")
    for packed, taus, _ in both(target, "low = 1 : i32, high = 5 : i32", f"({kind}[5,5], {kind}[4], s32[])", a):
        q = reflections(packed, taus, 1)
        np.testing.assert_allclose(q @ np.triu(packed, -1) @ np.conj(q.T), a, atol=1e-12)
    a = a + np.conj(a.T)
    target, _ = names(dtype, "sytrd", "hetrd")
    for packed, diagonal, beside, taus, _ in both(
            target, "uplo = 76 : ui8", f"({kind}[5,5], f64[5], f64[4], {kind}[4], s32[])", a):
        q = reflections(packed, taus, 1)
        t = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        np.testing.assert_allclose(q @ t @ np.conj(q.T), a, atol=1e-12)


@pytest.mark.parametrize("dtype", REAL)
def test_qr_with_exchanged_columns_and_products_with_q(dtype):
    a, c = draw(5, 3, dtype=dtype), draw(5, 2, dtype=dtype)
    target, kind = names(dtype, "geqp3")
    packed, places, taus = call(target, "", f"({kind}[5,3], s32[3], {kind}[3])", a, np.zeros(3, np.int32))
    q, r = reflections(packed, taus, 0), np.triu(packed)
    np.testing.assert_allclose(q @ r, a[:, places - 1], atol=1e-12)
    assert list(np.abs(r.diagonal())) == sorted(np.abs(r.diagonal()), reverse=True)
    target, _ = names(dtype, "ormqr", "unmqr")
    for left, transpose in itertools.product(("true", "false"), repeat=2):
        other = c if left == "true" else np.ascontiguousarray(c.T)
        turned = np.conj(q.T) if transpose == "true" else q
        got, = call(target, f"left = {left}, transpose = {transpose}", shape_of(other), packed, taus, other)
        np.testing.assert_allclose(got, turned @ other if left == "true" else other @ turned, atol=1e-12)


def test_singular_values_in_each_order():
    a = draw(3, 5, dtype=np.float64)
    shapes = {"cusolver_gesvdj_ffi": "(f64[3,5], f64[3], f64[3,3], f64[5,5], s32[])",
              "cusolver_gesvd_ffi": "(f64[3,5], f64[3], f64[3,5], f64[3,3], s32[])",
              "lapack_dgesvd_ffi": "(f64[3,5], f64[3], f64[3,3], f64[3,5], s32[])"}
    _, s, u, v, _ = call("cusolver_gesvdj_ffi", "", shapes["cusolver_gesvdj_ffi"], a)
    np.testing.assert_allclose((u * s) @ v[:, :3].T, a, atol=1e-12)
    _, s, v, u, _ = call("cusolver_gesvd_ffi", "transposed = true", shapes["cusolver_gesvd_ffi"], a)
    np.testing.assert_allclose((u * s) @ v, a, atol=1e-12)
    for _, s, u, v, _ in both("lapack_dgesvd_ffi", "mode = 83 : ui8", shapes["lapack_dgesvd_ffi"], a):
        np.testing.assert_allclose((u * s) @ v, a, atol=1e-12)
        np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=1e-12)


def test_tridiagonal_system():
    below, diagonal, above, b = (draw(5, dtype=np.float64) + n for n, _ in zip((0, 4, 0, 0), range(4)))
    m = np.diag(diagonal) + np.diag(below[1:], -1) + np.diag(above[:-1], 1)
    x, = call("cusparse_gtsv2_ffi", "", "f64[5,1]", below, diagonal, above, b[:, None])
    np.testing.assert_allclose(m @ x[:, 0], b, atol=1e-12)


def test_pivots_of_complex_matrices_go_by_the_sum_of_parts():
    a = np.array([[3.0 + 0j, 0], [2 + 2j, 1]])
    _, pivots, _ = call("lapack_zgetrf_ffi", "", "(c128[2,2], s32[2], s32[])", a)
    assert list(pivots) == [2, 2]


STRANGE_OPERANDS = ("", "x", "m, m, m", "t", "c, c, x")
STRANGE_RESULTS = ("f32[3]", "(f32[3], s32[3])", "()")


@pytest.mark.parametrize("target", sorted(CUSTOM_CALLS))
def test_calls_unlike_the_librarys_are_located_errors(target):
    """Whatever operands, options and results a text writes for a known target: a result, or an HlocError."""
    for operands in STRANGE_OPERANDS:
        for shape in STRANGE_RESULTS:
            module = parse_module(f"""ENTRY e {{ x = f32[3] parameter(0)  m = f32[3,3] parameter(1)  t = (f32[3]) tuple(x)
                z = f32[0,3] parameter(2)  c = c64[2,3,3] parameter(3)
                ROOT r = {shape} custom-call({operands}), custom_call_target="{target}", backend_config="{{}}" }}""")
            arrays = [np.ones(p.shape.dimensions, numpy_dtype(p.shape.element_type)) for p in module.entry.parameters]
            for way in (lambda m: evaluate(m, arrays), lambda m: optimize(m, find("cpu"))):  # noqa: B023
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        way(clone_module(module))
                except HlocError as error:
                    assert error.span is not None


# -- products of scaled blocks -----------------------------------------------------------------------------------------

def blocks(scale, like):
    """A scale for each element."""
    for axis, size in enumerate(like.shape):
        scale = np.repeat(scale, size // scale.shape[axis], axis)
    return scale.astype(np.float32)


@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("operands", [3, 4, 5])
def test_block_scaled_dot(batch, operands):
    a, b = draw(*batch, 3, 64, dtype=ml_dtypes.float8_e4m3fn), draw(*batch, 5, 64, dtype=ml_dtypes.float8_e4m3fn)
    s = np.exp2(rng.integers(-3, 3, (*batch, 3, 2))).astype(ml_dtypes.float8_e8m0fnu)
    t = np.exp2(rng.integers(-3, 3, (*batch, 5, 4))).astype(ml_dtypes.float8_e8m0fnu)
    left, right = a.astype(np.float32) * blocks(s, a), b.astype(np.float32)
    if operands > 3:
        right = right * blocks(t, b)
    wanted = left @ np.swapaxes(right, -1, -2) * (np.float32(1.5) if operands == 5 else 1)
    given = [a, b, s, t, np.array(1.5, np.float32)][:operands]
    check("__op$block_scaled_dot", given, [wanted], workspace=False, tolerance=1e-5)


def test_block_scales_that_divide_nothing_are_refused():
    text = """HloModule m
        ENTRY e { a = f8e4m3fn[3,64] parameter(0)  s = f8e8m0fnu[3,5] parameter(1)
                  ROOT r = f32[3,3] custom-call(a, a, s, s), custom_call_target="__op$block_scaled_dot" }"""
    with pytest.raises(UnsupportedError, match="are no scales of"):
        hloc.compile(text, "cpu")
