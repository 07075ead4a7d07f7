"""cuDNN's attention calls, as JAX writes them: what their configuration says, and what they give, in NumPy.

In: queries, keys and values [batch, heads, rows, features] or [batch, rows, heads, features]. Out: the weighted values
[batch, heads, rows, features] and, for training, the logarithms of the sums of each row's exponentials.

    scores = scale * q @ k + bias, -inf above the diagonal where causal;  out = softmax(scores) @ v

Operands: q, k, v, bias where the call has one. Backward: q, k, v, the logarithms, the gradient of out, bias, out; it
gives the gradients of q, k and v as [batch, heads, rows, features]. Dropout, padding, windows and pages are refused.
"""
from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hloc.ir import Instruction
from hloc.ops.checks import unquoted
from hloc.ops.custom_linalg import fitted
from hloc.ops.library_configs import configuration, integers, refuse
from hloc.ops.linalg import wide
from hloc.ops.products import DotDimensions, dot

FORWARD = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaScaleBiasSoftmax")
BACKWARD = ("__cudnn$fmhaSoftmaxBackward", "__cudnn$fmhaScaleBiasSoftmaxBackward")
BACKWARD_PRODUCTS = ("bmm2_grad_gemm2", "bmm2_grad_gemm1", "bmm1_grad_gemm2", "bmm1_grad_gemm1")
NOT_KNOWN = ("dropout_rate", "sliding_window_length", "is_paged_attention")


class Attention(NamedTuple):
    """scores: q by k. values: probabilities by v (backward: by the gradient of out, which gives that of v).
    rows, columns (backward): gradients of the scores by k and by q. sums: out by its gradient, over features."""

    scale: float
    causal: bool
    bias: bool
    scores: DotDimensions
    values: DotDimensions
    rows: DotDimensions | None
    columns: DotDimensions | None
    sums: DotDimensions | None


def attention_of(instruction: Instruction) -> Attention:
    """Raises UnsupportedError, located, where the configuration says something else than is known here."""
    config, target = configuration(instruction, "cudnn_fmha_backend_config"), unquoted(
        instruction.get("custom_call_target"))
    for key in NOT_KNOWN:
        if config.get(key):
            refuse(instruction, f"{key}={config[key]} is not known")
    mask, backward, bias = config.get("mask_type", "NO_MASK"), target in BACKWARD, "Bias" in target
    if mask not in ("NO_MASK", "CAUSAL") or int(config.get("max_seg_per_batch") or 1) > 1:
        refuse(instruction, f"mask_type={mask} and packed sequences are not known")
    count = (6 if backward else 3) + bias
    if len(instruction.operands) != count or any(o.shape.rank != 4 for o in instruction.operands[:3]):
        refuse(instruction, f"takes {count} operands, of which three arrays of rank 4")
    names = BACKWARD_PRODUCTS if backward else ("bmm1", "bmm2")
    found = [_dimensions(instruction, config.get(f"{name}_dot_dimension_numbers")) for name in names]
    sums = None
    if backward:
        batch = found[0].lhs_batch
        free = tuple(d for d in range(4) if d not in (*batch, *found[0].lhs_contracting))
        sums = DotDimensions(batch + free, batch + free, found[0].lhs_contracting, found[0].lhs_contracting)
    missing = [None] * (4 - len(found))
    return Attention(float(config.get("fmha_scale", 1)), mask == "CAUSAL", bias, *found, *missing, sums)


def _dimensions(instruction: Instruction, numbers: object) -> DotDimensions:
    if not isinstance(numbers, dict):
        refuse(instruction, "backend_config lacks dimension numbers")
    return DotDimensions(*(integers(numbers.get(f"{side}_{kind}_dimensions")) for kind in ("batch", "contracting")
                           for side in ("lhs", "rhs")))


# -- NumPy -------------------------------------------------------------------------------------------------------------

def attention_forward(instruction: Instruction, *operands: np.ndarray):
    call = attention_of(instruction)
    q, k, v, *bias = map(wide, operands)
    scores = _scores(call, q, k, bias)
    logarithms = np.log(np.exp(scores - scores.max(-1, keepdims=True)).sum(-1)) + scores.max(-1)
    weights = np.exp(scores - logarithms[..., None])
    training = len(instruction.shape.tuple_shapes) == 3
    return fitted(instruction, [_product(weights, v, call.values), logarithms][:1 + training])


def attention_backward(instruction: Instruction, *operands: np.ndarray):
    call = attention_of(instruction)
    q, k, v, logarithms, gradient, *bias, out = map(wide, operands)
    weights = np.exp(_scores(call, q, k, bias) - logarithms[..., None])
    inner = _product(gradient, v, call.scores) - _product(gradient, out, call.sums)[..., None]
    change = weights * inner * call.scale
    return fitted(instruction, [_product(change, k, call.rows), _product(change, q, call.columns),
                                _product(weights, gradient, call.values)])


def _scores(call: Attention, q: np.ndarray, k: np.ndarray, bias: list[np.ndarray]) -> np.ndarray:
    scores = _product(q, k, call.scores) * call.scale + (bias[0] if bias else 0)
    return np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf) if call.causal else scores


def _product(a: np.ndarray, b: np.ndarray, dims: DotDimensions) -> np.ndarray:
    return dot(a, b, dims, np.result_type(a, b))
