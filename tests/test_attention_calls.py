"""cuDNN's attention calls, on the evaluator and in compiled C, against NumPy written from their definitions."""
from __future__ import annotations

import itertools

import numpy as np
import pytest
from library_check import check, draw

from hloc.errors import UnsupportedError


def numbers(contracting, batch) -> dict:
    return {f"{side}_{kind}_dimensions": [str(d) for d in values[n]] for kind, values in (
        ("contracting", [(c,) for c in contracting]), ("batch", batch)) for n, side in enumerate(("lhs", "rhs"))}


def attention_config(rows_first: bool, **more) -> dict:
    """As JAX writes it; arrays are [batch, rows, heads, features] where rows_first, else [batch, heads, rows, ...]."""
    own, last = ((0, 2), 1) if rows_first else ((0, 1), 2)
    both, mixed = (own, own), ((0, 1), own)
    return {"cudnn_fmha_backend_config": {
        "fmha_scale": 0.25, "dropout_rate": 0, "mask_type": "NO_MASK", "sliding_window_length": 0,
        "bmm1_dot_dimension_numbers": numbers((3, 3), both), "bmm2_dot_dimension_numbers": numbers((3, last), mixed),
        "bmm1_grad_gemm1_dot_dimension_numbers": numbers((2, last), mixed),
        "bmm1_grad_gemm2_dot_dimension_numbers": numbers((3, last), mixed),
        "bmm2_grad_gemm1_dot_dimension_numbers": numbers((2, last), mixed),
        "bmm2_grad_gemm2_dot_dimension_numbers": numbers((3, 3), both), **more}}


def seen_by_hand(mask: str, rows: int, columns: int, window: int, lengths) -> np.ndarray:
    """[batch, 1, rows, columns]: what each row may look at."""
    seen = np.zeros((len(lengths), 1, rows, columns), bool)
    for batch, (queries, keys) in enumerate(lengths):
        for row in range(queries if "PADDING" in mask else rows):
            for column in range(keys if "PADDING" in mask else columns):
                seen[batch, 0, row, column] = ("CAUSAL" not in mask or column <= row) and (
                    not window or column > row - window)
    return seen


def attention_by_hand(q, k, v, bias, seen):
    """Of [batch, heads, rows, features], in f64: out, logarithms, weights."""
    parts = np.where(seen, np.exp(0.25 * np.einsum("bnth,bnsh->bnts", q, k) + bias), 0)
    sums = parts.sum(-1)
    weights = parts / np.where(sums == 0, 1, sums)[..., None]
    with np.errstate(divide="ignore"):
        return np.einsum("bnts,bnsh->bnth", weights, v), np.log(sums), weights


ATTENTIONS = [(*case, 0, 1) for case in itertools.product([False, True], ["NO_MASK", "CAUSAL"], [False, True])] + [
    (True, "PADDING", False, 0, 1), (False, "PADDING_CAUSAL", True, 0, 3), (True, "CAUSAL", False, 2, 1),
    (False, "PADDING_CAUSAL", False, 3, 1), (True, "NO_MASK", False, 0, 3)]


@pytest.mark.parametrize("rows_first, mask, biased, window, groups", ATTENTIONS)
def test_attention(rows_first, mask, biased, window, groups):
    order = (0, 2, 1, 3) if rows_first else (0, 1, 2, 3)
    q, k, v = draw(2, 3, 6, 8), draw(2, 3 // groups, 5, 8), draw(2, 3 // groups, 5, 8)
    keys, values = (np.repeat(x, groups, 1) for x in (k, v))
    bias = draw(1, 3, 6, 5) if biased else np.float32(0)
    lengths = np.array([[4, 2], [6, 5]], np.int32)
    seen = seen_by_hand(mask, 6, 5, window, lengths)
    out, logarithms, weights = attention_by_hand(*(x.astype(np.float64) for x in (q, keys, values)), bias, seen)
    as_given = [np.ascontiguousarray(x.transpose(order)) for x in (q, k, v)]
    extra, name = ([bias], "ScaleBiasSoftmax") if biased else ([], "Softmax")
    sizes = [lengths[:, 0].copy(), lengths[:, 1].copy()] if "PADDING" in mask else []
    config = attention_config(rows_first, mask_type=mask, sliding_window_length=window)
    out, logarithms = out.astype(np.float32), logarithms.astype(np.float32)
    check(f"__cudnn$fmha{name}", as_given + extra + sizes, [out], config=config, tolerance=1e-5)
    check(f"__cudnn$fmha{name}", as_given + extra + sizes, [out, logarithms], config=config, tolerance=1e-5)
    gradient = draw(2, 3, 6, 8)
    inner = weights * (np.einsum("bnth,bnsh->bnts", gradient, values) - (gradient * out).sum(-1)[..., None])
    wanted = [np.einsum("bnts,bnsh->bnth", 0.25 * inner, keys), np.einsum("bnts,bnth->bnsh", 0.25 * inner, q),
              np.einsum("bnts,bnth->bnsh", weights, gradient)]
    wanted = [wanted[0], *(w.reshape(2, 3 // groups, groups, 5, 8).sum(2) for w in wanted[1:])]
    given = [*as_given, logarithms, np.ascontiguousarray(gradient.transpose(order)), *extra,
             np.ascontiguousarray(out.transpose(order)), *sizes]
    with_bias = [*wanted, inner.sum(0, keepdims=True)] if biased else wanted
    for results in (wanted, with_bias):
        check(f"__cudnn$fmha{name}Backward", given, [w.astype(np.float32) for w in results], config=config,
              tolerance=1e-5)


@pytest.mark.parametrize("more", [{"dropout_rate": 0.1}, {"mask_type": "ALIBI"}, {"max_seg_per_batch": 2},
                                  {"is_paged_attention": True}])
def test_attention_that_is_not_known_is_refused(more):
    x = draw(1, 1, 2, 4)
    with pytest.raises(UnsupportedError, match="not known"):
        check("__cudnn$fmhaSoftmax", [x, x, x], [x], config=attention_config(False, **more))
