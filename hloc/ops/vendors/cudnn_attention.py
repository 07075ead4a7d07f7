"""cuDNN's attention calls, as JAX writes them: their configuration, and their evaluation in NumPy.

In: queries, keys and values [batch, heads, rows, features] or [batch, rows, heads, features]. Out: the weighted values
[batch, heads, rows, features] and, for training, the logarithms of the sums of each row's exponentials.

    scores = scale * q @ k + bias, -inf where masked;  out = softmax(scores) @ v

Operands: q, k, v, bias where the call has one, and with padding the lengths of q and of k, one a batch. Backward: q, k,
v, the logarithms, the gradient of out, bias, out, the lengths; the results are the gradients of q, k and v as [batch,
heads, rows, features], and of the bias if there is such a result. A head of k and v may be shared by several of q. A
fully masked row gives zeros, and the logarithm of zero. Dropout, packed sequences and pages are refused.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hloc.ir import Instruction
from hloc.ops.checks import unquoted
from hloc.ops.linalg import wide
from hloc.ops.products import DotDimensions, dot
from hloc.ops.vendors.library_configs import configuration, integers, refuse
from hloc.ops.vendors.linear_algebra import fitted, result_shapes

FORWARD = ("__cudnn$fmhaSoftmax", "__cudnn$fmhaScaleBiasSoftmax")
BACKWARD = ("__cudnn$fmhaSoftmaxBackward", "__cudnn$fmhaScaleBiasSoftmaxBackward")
BACKWARD_PRODUCTS = ("bmm2_grad_gemm2", "bmm2_grad_gemm1", "bmm1_grad_gemm2", "bmm1_grad_gemm1")
NOT_KNOWN = ("dropout_rate", "is_paged_attention")
MASKS = {"NO_MASK": (False, False), "CAUSAL": (True, False), "PADDING": (False, True), "PADDING_CAUSAL": (True, True)}


class Attention(NamedTuple):
    """scores: q by k. values: probabilities by v (backward: by the gradient of out, which gives that of v).
    rows, columns (backward): gradients of the scores by k and by q. sums: out by its gradient, over features.
    window: how many columns a row may read, up to its own (0: all). groups: heads of q for each of k and v."""

    scale: float
    causal: bool
    padding: bool
    window: int
    bias: bool
    bias_gradient: bool
    groups: int
    scores: DotDimensions
    values: DotDimensions
    rows: DotDimensions | None
    columns: DotDimensions | None
    sums: DotDimensions | None


def attention_of(instruction: Instruction) -> Attention:
    """Raises UnsupportedError, located, for an unsupported configuration."""
    config, target = configuration(instruction, "cudnn_fmha_backend_config"), unquoted(
        instruction.get("custom_call_target"))
    for key in NOT_KNOWN:
        if config.get(key):
            refuse(instruction, f"{key}={config[key]} is not known")
    mask, backward, bias = config.get("mask_type", "NO_MASK"), target in BACKWARD, "Bias" in target
    if mask not in MASKS or int(config.get("max_seg_per_batch") or 1) > 1:
        refuse(instruction, f"mask_type={mask} and packed sequences are not known")
    causal, padding = MASKS[mask]
    count = (6 if backward else 3) + bias + 2 * padding
    if len(instruction.operands) != count or any(o.shape.rank != 4 for o in instruction.operands[:3]):
        refuse(instruction, f"takes {count} operands, of which three arrays of rank 4")
    names = BACKWARD_PRODUCTS if backward else ("bmm1", "bmm2")
    found = [_dimensions(instruction, config.get(f"{name}_dot_dimension_numbers")) for name in names]
    rows, columns, sums = None, None, None
    if backward:
        rows, columns = found[2:]
        batch = found[0].lhs_batch
        free = tuple(d for d in range(4) if d not in (*batch, *found[0].lhs_contracting))
        sums = DotDimensions(batch + free, batch + free, found[0].lhs_contracting, found[0].lhs_contracting)

    heads = [o.shape.dimensions[batch[1]] for o, batch in zip(instruction.operands, found[0][:2])]
    if heads[0] % heads[1]:
        refuse(instruction, f"{heads[1]} heads of keys do not divide {heads[0]} of queries")
    shapes = result_shapes(instruction)
    bias_gradient = backward and bias and len(shapes) > 3 and shapes[3].rank == 4
    return Attention(float(config.get("fmha_scale", 1)), causal, padding, int(config.get("sliding_window_length") or 0),
                     bias, bias_gradient, heads[0] // heads[1], found[0], found[1], rows, columns, sums)


def _dimensions(instruction: Instruction, numbers: Any) -> DotDimensions:
    if not isinstance(numbers, dict):
        refuse(instruction, "backend_config lacks dimension numbers")
    return DotDimensions(*(integers(numbers.get(f"{side}_{kind}_dimensions")) for kind in ("batch", "contracting")
                           for side in ("lhs", "rhs")))


# -- NumPy -------------------------------------------------------------------------------------------------------------

def attention_forward(instruction: Instruction, *operands: np.ndarray):
    call = attention_of(instruction)
    q, k, v, *bias = map(wide, operands[:3 + call.bias])
    k, v = _for_each_head(call, k, call.scores), _for_each_head(call, v, call.values)
    scores = _scores(call, q, k, bias, operands[3 + call.bias:])
    largest = np.maximum(scores.max(-1), -np.finfo(np.float64).max)          # finite in masked rows
    sums = np.exp(scores - largest[..., None]).sum(-1)
    with np.errstate(divide="ignore"):
        logarithms = np.log(sums) + largest
    weights = np.exp(scores - largest[..., None]) / np.maximum(sums, 1)[..., None]       # sums: at least exp(0), or 0
    training = len(instruction.shape.tuple_shapes) == 3
    return fitted(instruction, [_product(weights, v, call.values), logarithms][:1 + training])


def attention_backward(instruction: Instruction, *operands: np.ndarray):
    call = attention_of(instruction)
    count = 6 + call.bias
    q, k, v, logarithms, gradient, *bias, out = map(wide, operands[:count])
    k, v = _for_each_head(call, k, call.scores), _for_each_head(call, v, call.scores)
    scores = _scores(call, q, k, bias, operands[count:])
    assert call.sums is not None and call.rows is not None and call.columns is not None
    with np.errstate(invalid="ignore"):
        weights = np.where(scores == -np.inf, 0, np.exp(scores - logarithms[..., None]))
    inner = weights * (_product(gradient, v, call.scores) - _product(gradient, out, call.sums)[..., None])
    change = inner * call.scale
    results = [_product(change, k, call.rows), _of_each_group(call, _product(change, q, call.columns)),
               _of_each_group(call, _product(weights, gradient, call.values))]
    if call.bias_gradient:
        spread = tuple(d for d, n in enumerate(bias[0].shape) if n == 1)
        results.append(inner.sum(spread, keepdims=True))
    return fitted(instruction, results)


def _for_each_head(call: Attention, x: np.ndarray, dims: DotDimensions) -> np.ndarray:
    """Keys or values with as many heads as the queries."""
    return np.repeat(x, call.groups, dims.rhs_batch[1]) if call.groups > 1 else x


def _of_each_group(call: Attention, x: np.ndarray) -> np.ndarray:
    """Gradients [batch, heads, rows, features] of keys or values, summed over the heads of the queries they serve."""
    batch, heads, *rest = x.shape
    return x.reshape(batch, heads // call.groups, call.groups, *rest).sum(2)


def _scores(call: Attention, q: np.ndarray, k: np.ndarray, bias: list[np.ndarray], lengths) -> np.ndarray:
    scores = _product(q, k, call.scores) * call.scale + (bias[0] if bias else 0)
    row, column = np.ogrid[:scores.shape[2], :scores.shape[3]]
    seen = column <= row if call.causal else np.True_
    if call.window:
        seen = seen & (column > row - call.window)
    if call.padding:
        rows, columns = (np.asarray(n).reshape(-1, 1, 1, 1) for n in lengths)
        seen = seen & (row < rows) & (column < columns)
    return np.where(seen, scores, -np.inf)


def _product(a: np.ndarray, b: np.ndarray, dims: DotDimensions) -> np.ndarray:
    return dot(a, b, dims, np.result_type(a, b))
