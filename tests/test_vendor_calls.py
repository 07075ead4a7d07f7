"""Custom calls of AWS Neuron, Poplar and old hipSOLVER, on the evaluator and in compiled C, against NumPy."""
from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from library_check import check, draw

import hloc
from hloc.errors import UnsupportedError
from hloc.ops.vendors.linear_algebra import permutation
from hloc.ops.vendors.neuron import MARKERS

erf = np.vectorize(math.erf)


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def call(target, operands, wanted, config=None, **more):
    check(target, operands, wanted, config=config, workspace=False, **more)


@pytest.mark.parametrize("target", [*MARKERS, "AssumeEqualAcrossReplicas", "Barrier"])
def test_markers_hand_on_what_they_are_given(target):
    x, y = draw(3, 2), draw(4, dtype=np.int32)
    call(target, [x], [x])
    call(target, [x, y], [x, y])
    with pytest.raises(UnsupportedError, match="is not what it is given"):
        call(target, [x], [y])


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float64])
def test_rms_norm(dtype):
    epsilon = np.float32(1e-5)
    for axis, sizes in ((0, (6, 1, 4)), (2, (2, 3, 5))):
        x, weight = draw(*sizes, dtype=dtype), draw(sizes[axis], dtype=dtype)
        wide = x.astype(np.float64)
        wanted = wide / np.sqrt((wide ** 2).mean(axis, keepdims=True) + float(epsilon)) * weight.reshape(
            [-1 if d == axis else 1 for d in range(3)])
        call("AwsNeuronRmsNorm", [x, weight, epsilon], [wanted.astype(dtype)], str(axis))
    with pytest.raises(UnsupportedError, match="are not an array, a weight of 5 and an epsilon"):
        call("AwsNeuronRmsNorm", [draw(2, 5), draw(2), np.float32(0)], [draw(2, 5)], "1")
    with pytest.raises(UnsupportedError, match="backend_config must be a dimension of operand 0, below 2"):
        call("AwsNeuronRmsNorm", [draw(2, 5), draw(2), np.float32(0)], [draw(2, 5)], "2")


def test_neuron_softmax():
    x, dy = draw(3, 4, 5), draw(3, 4, 5)
    y = softmax(x, 1)
    call("AwsNeuronSoftmax", [x], [y], "1")
    call("AwsNeuronSoftmaxBackward", [dy, y], [y * (dy - (dy * y).sum(1, keepdims=True))], "1")


X = np.float32([-3, -1, -0.25, 0, 0.5, 2, 30])
SIGMOID = 1 / (1 + np.exp(-X))
GELU_TANH = X / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (X + 0.044715 * X ** 3)))


@pytest.mark.parametrize("target, wanted", [
    ("AwsNeuronErf", erf(X)), ("AwsNeuronGelu", X / 2 * (1 + erf(X / math.sqrt(2)))), ("AwsNeuronSilu", X * SIGMOID),
    ("AwsNeuronGeluApprxTanh", GELU_TANH),
    ("AwsNeuronGeluBackward", (1 + erf(X / math.sqrt(2))) / 2 + X * np.exp(-X * X / 2) / math.sqrt(2 * math.pi)),
    ("Relu", np.maximum(X, 0)), ("Gelu", GELU_TANH), ("GeluErf", X / 2 * (1 + erf(X / math.sqrt(2)))), ("Sigmoid", SIGMOID),
    ("HardSigmoid", np.clip(0.2 * X + 0.5, 0, 1)), ("Swish", X * SIGMOID), ("Softmax", softmax(X)), ("StableSoftmax", softmax(X)),
])
def test_activations(target, wanted):
    for dtype in (np.float32, np.float16):
        call(target, [X.astype(dtype)], [wanted.astype(dtype)])
    with pytest.raises(UnsupportedError, match="are not floats of the same sizes"):
        call(target, [np.int32([1, 2])], [np.int32([1, 2])], "0")


@pytest.mark.parametrize("target, function", [
    ("ReluGrad", lambda y, dy: np.where(y > 0, dy, 0)), ("SigmoidGrad", lambda y, dy: dy * y * (1 - y)),
    ("TanhGrad", lambda y, dy: dy * (1 - y * y)),
])
def test_gradients_of_activations(target, function):
    y, dy = draw(3, 4), draw(3, 4)
    call(target, [y, dy], [function(y, dy)])


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint32])
def test_places_and_the_largest(dtype):
    x = np.array([[3, 7, 7, 1], [5, 0, 2, 0]], dtype)
    call("AwsNeuronArgMax", [x], [np.argmax(x, 1).astype(np.uint32)], "1")
    call("AwsNeuronArgMin", [x], [np.argmin(x, 0).astype(np.int32)], "0")
    call("AwsNeuronTopK", [x], [-np.sort(-x.astype(np.int64))[:, :3].astype(dtype),
                                np.argsort(-x.astype(np.int64), 1, "stable")[:, :3].astype(np.uint32)], "3")


def test_places_of_nans_and_infinities():
    x = np.float32([[1, np.nan, np.nan, 9], [-np.inf, -np.inf, -np.inf, -np.inf]])
    for target in ("AwsNeuronArgMax", "AwsNeuronArgMin"):
        call(target, [x], [np.int32([1, 0])], "1")


@pytest.mark.parametrize("target", ["hipsolver_syevd", "hipsolver_syevj", "cusolver_syevd", "cusolver_syevj"])
def test_eigenvectors_by_calls_older_than_the_ffi(target):
    a = np.float32([[2, 1], [1, 2]])
    values, vectors = np.linalg.eigh(a)
    for lower, upper in ((a, np.float32([[2, 1], [9, 2]])), (np.float32([[2, 9], [1, 2]]), a)):
        for triangle, m in ((r"\172", lower), (r"\000", lower), (r"\171", upper), (r"\001", upper)):
            text = f"""ENTRY e {{ a = f32[2,2] parameter(0)
                ROOT r = (f32[2,2], f32[2], s32[], f32[7]) custom-call(a), custom_call_target="{target}",
                    api_version=API_VERSION_STATUS_RETURNING,
                    backend_config="\\000\\000\\000\\000{triangle}\\000\\000\\000\\001\\000\\000\\000" }}"""
            for place in ("cpu", "reference"):
                got = hloc.compile(text, place)(m)
                assert np.allclose(got[1], values) and np.allclose(np.abs(got[0]), np.abs(vectors)) and got[2] == 0


def test_pivots_beyond_the_size():
    """As JAX has it where it writes the loop out: reads are clamped, writes beyond are dropped, negative ones wrap."""
    for pivots, wanted in (([2, 7, 2], [2, 4, 0, 3, 4]), ([2, -1, 2], [2, 4, 0, 3, 1]), ([2, 1, 2], [2, 1, 0, 3, 4])):
        assert permutation(np.int32(pivots), 5).tolist() == wanted
        call("cu_lu_pivots_to_permutation", [np.int32(pivots)], [np.int32(wanted)])
