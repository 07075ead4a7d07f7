"""The convolutions of the CPU runtime (hloc/targets/cpu/runtime/conv.h) against their definition."""
import ctypes

import ml_dtypes
import numpy as np
import pytest
from runtime_arguments import (
    INT,
    LONG3,
    POINTER,
    ConvArgs,
    ConvChoices,
    in_order,
    machine,
    plans_of,
    started,
    strides,
    whole_numbers,
)

from hloc.targets.cpu.plans.convolution import arguments
from hloc.targets.cpu.plans.convolutions import plan_of_convolution


@pytest.fixture(scope="module")
def runtime():
    yield from started()


def convolution(x, w, y_size, stride, pad, base, dilation, flipped, feature_groups, batch_groups):
    """x [n, s0, s1, s2, c], w [k0, k1, k2, i, o] -> [n / batch groups, y_size.., o], straight from the definition."""
    n, out = x.shape[0] // batch_groups, np.zeros((x.shape[0] // batch_groups, *y_size, w.shape[4]), x.dtype)
    wide = np.zeros((x.shape[0], *[(s - 1) * b + 1 for s, b in zip(x.shape[1:4], base)], x.shape[4]), x.dtype)
    wide[:, ::base[0], ::base[1], ::base[2]] = x
    inputs, groups = x.shape[4] // feature_groups, max(feature_groups, batch_groups)
    outputs = w.shape[4] // groups
    for k in np.ndindex(*w.shape[:3]):
        read = [w.shape[d] - 1 - k[d] if flipped[d] else k[d] for d in range(3)]
        place = [np.arange(y_size[d]) * stride[d] - pad[d] + dilation[d] * read[d] for d in range(3)]
        ok = [(p >= 0) & (p < wide.shape[1 + d]) for d, p in enumerate(place)]
        part = wide[:, np.where(ok[0], place[0], 0)][:, :, np.where(ok[1], place[1], 0)]
        part = part[:, :, :, np.where(ok[2], place[2], 0)]
        part = part * (ok[0][:, None, None, None] & ok[1][:, None, None] & ok[2][:, None])
        for g in range(groups):
            features = part[g * n:(g + 1) * n] if batch_groups > 1 else part[..., g * inputs:(g + 1) * inputs]
            columns = slice(g * outputs, (g + 1) * outputs)
            out[..., columns] += features @ w[k][:, columns]
    return out


def conv_args(x, w, y, stride, pad, base, dilation, flipped, feature_groups, batch_groups):
    c = ConvArgs(batch=x.shape[0], x_features=x.shape[4], y_features=w.shape[4], feature_groups=feature_groups,
                 batch_groups=batch_groups, x=x.ctypes.data, w=w.ctypes.data, y=y.ctypes.data)
    c.x_size, c.window, c.y_size = LONG3(*x.shape[1:4]), LONG3(*w.shape[:3]), LONG3(*y.shape[1:4])
    c.stride, c.pad_low, c.base_dilation, c.window_dilation = (LONG3(*v) for v in (stride, pad, base, dilation))
    c.reversed = (INT * 3)(*flipped)
    c.x_n, *spatial, c.x_c = strides(x)
    c.x_s = LONG3(*spatial)
    *spatial, c.w_i, c.w_o = strides(w)
    c.w_s = LONG3(*spatial)
    c.y_n, *spatial, c.y_c = strides(y)
    c.y_s = LONG3(*spatial)
    c.y_is_narrow = int(y.itemsize == 2 and y.dtype.kind != "i")
    return c


def draw_convolution(rng, kind):
    """Sizes and window of a random convolution of a kind that takes its own way through the runtime."""
    rank = int(rng.integers(1, 4))

    def per_dimension(low, high):
        return [1] * (3 - rank) + [int(v) for v in rng.integers(low, high, rank)]

    p = {"n": int(rng.integers(1, 4)), "ci": int(rng.choice([1, 3, 8, 16, 20])),
         "co": int(rng.choice([1, 3, 16, 33, 40])), "fg": 1, "bg": 1,
         "window": per_dimension(1, 4), "x": per_dimension(1, 9), "stride": per_dimension(1, 3),
         "base": per_dimension(1, 3) if rng.random() < 0.4 else [1] * 3,
         "dilation": per_dimension(1, 3) if rng.random() < 0.3 else [1] * 3}
    if kind == "groups":
        p |= {"fg": 3, "ci": 3 * p["ci"], "co": 3 * p["co"]}
    if kind == "depthwise":
        p |= {"ci": 70, "co": 70, "fg": 70, "base": [1] * 3}
    if kind == "batch_groups":
        p |= {"bg": 2, "n": 2 * p["n"], "co": 2 * p["co"]}
    if kind == "channel_gradient":
        p |= {"n": 37, "co": 37, "bg": 37, "ci": int(rng.choice([1, 5])), "base": [1] * 3, "window": per_dimension(1, 9)}
    if kind == "filter_gradient":
        p |= {"window": per_dimension(5, 12), "n": int(rng.choice([3, 14, 40])), "stride": [1] * 3, "base": [1] * 3}
        p["x"] = [w + int(rng.integers(0, 3)) if w > 1 else 1 for w in p["window"]]
    if kind == "sums_everything":                       # filter gradients of one_by_one
        p |= {"x": p["window"], "base": [1] * 3, "dilation": [1] * 3, "n": int(rng.choice([3, 14, 40]))}
    if kind == "one_by_one":
        p |= {"window": [1] * 3, "stride": [1] * 3, "base": [1] * 3}
    if kind == "wide":
        p |= {"ci": 20, "co": 300}
    if kind == "colliding":                             # positions 4096 bytes apart, or 4096 over the stride
        p |= {"ci": int(rng.choice([512, 1024])), "co": 130, "x": per_dimension(3, 6)}
    if kind == "few_results":                           # dot products along the input features
        fg = int(rng.integers(1, 3))
        p |= {"fg": fg, "ci": fg * int(rng.choice([16, 20, 67])), "co": fg * int(rng.integers(1, 9))}
    if kind == "few_channels":
        p |= {"ci": 3, "base": [1] * 3, "dilation": [1] * 3}
    if kind == "transposed":                            # by runtime/conv_transposed.c, in pieces where y is long
        p |= {"ci": int(rng.choice([8, 13])), "co": int(rng.choice([1, 3, 20])), "base": per_dimension(1, 4)[:2] + [3],
              "stride": [1] * 3, "dilation": per_dimension(1, 3)[:2] + [1], "window": per_dimension(1, 5)}
        p["x"] = [*p["x"][:2], int(rng.choice([4, 700]))]
    if kind == "blocks":                                # by runtime/conv_winograd.c
        rank = 2
        p |= {"ci": int(rng.choice([16, 48, 80])), "co": int(rng.choice([32, 48, 256])), "window": [1, 3, 3],
              "x": [1, *(int(v) for v in rng.integers(8, 22, 2))], **dict.fromkeys(("stride", "base", "dilation"), [1] * 3)}
    real = [d >= 3 - rank for d in range(3)]
    low, high = ([int(rng.integers(-1, 3)) if r and kind not in ("one_by_one", "sums_everything") else 0
                  for r in real] for _ in range(2))
    p["pad"], p["flipped"] = low, [int(r and rng.random() < 0.25) for r in real]
    padded = [(p["x"][d] - 1) * p["base"][d] + 1 + low[d] + high[d] for d in range(3)]
    p["y"] = [(padded[d] - (p["window"][d] - 1) * p["dilation"][d] - 1) // p["stride"][d] + 1 for d in range(3)]
    return p


CONV_TYPES = [("f32", np.float32, np.float32), ("f16", np.float16, np.float16),
              ("bf16", ml_dtypes.bfloat16, np.float32), ("f64", np.float64, np.float64),
              ("s8_s32", np.int8, np.int32), ("u8_s32", np.uint8, np.int32), ("u32", np.uint32, np.uint32),
              ("c64", np.complex64, np.complex64)]


@pytest.mark.parametrize("kind", ["plain", "groups", "depthwise", "batch_groups", "filter_gradient", "one_by_one",
                                  "few_channels", "few_results", "wide", "colliding", "sums_everything", "transposed",
                                  "channel_gradient", "blocks"])
@pytest.mark.parametrize("name,dtype,result", CONV_TYPES)
def test_convolutions(runtime, kind, name, dtype, result):
    rng = np.random.default_rng(len(kind) * 100 + len(name))
    for _ in range(40 if name == "f32" else 8):
        p = draw_convolution(rng, kind)
        if min(p["y"]) < 1:
            continue
        orders = [rng.permutation(5) if rng.random() < 0.4 else range(5) for _ in range(3)]
        if kind in ("filter_gradient", "sums_everything") or (kind == "channel_gradient" and rng.random() < 0.6):
            orders[0] = [4, 1, 2, 3, 0]
        x = in_order(rng, (p["n"], *p["x"], p["ci"]), dtype, orders[0])
        w = in_order(rng, (*p["window"], p["ci"] // p["fg"], p["co"]), dtype, orders[1])
        y = in_order(rng, (p["n"] // p["bg"], *p["y"], p["co"]), result, orders[2])
        window = [p[key] for key in ("stride", "pad", "base", "dilation", "flipped", "fg", "bg")]
        exact = np.complex128 if dtype == np.complex64 else np.float64
        want = convolution(x.astype(exact), w.astype(exact), p["y"], *window).astype(result)
        args = conv_args(x, w, y, *window)
        entry, planned = planned_call(args, name)
        y[...] = 99
        assert getattr(runtime, entry)(ctypes.byref(planned)) == 0
        np.testing.assert_array_equal(y, want, err_msg=f"{entry} {p}")


def planned_call(c, name, on=None):
    """The function for a convolution of a type ("s8_s32": and of sums), and its arguments with a plan."""
    operand, _, total = name.partition("_")
    given = {"types": (operand, total or operand), "batch": c.batch, "lhs_features": c.x_features,
             "features": c.y_features, "feature_groups": c.feature_groups, "batch_groups": c.batch_groups,
             "lhs_size": c.x_size, "window": c.window, "size": c.y_size, "stride": c.stride, "padding_low": c.pad_low,
             "base_dilation": c.base_dilation, "window_dilation": c.window_dilation, "reversal": c.reversed,
             "lhs": (0, c.x_n, c.x_c, *c.x_s), "rhs": (0, c.w_i, c.w_o, *c.w_s), "result": (c.y_n, c.y_c, *c.y_s)}
    on = on or machine()
    plan = plan_of_convolution(arguments(given, bool(c.epilogue), bool(c.y_is_narrow)), given["types"], on)
    c.products, c.choices, made = plans_of(plan.products, on), ConvChoices(*plan.choices), plan.convolution
    c.batch, c.y_features = made.batch * made.batch_groups, made.y_features * made.batch_groups
    c.batch_groups, c.feature_groups, c.x_features = made.batch_groups, made.feature_groups, made.x_features
    c.x_n, c.x_c, c.reversed = made.x_n, made.x_c, (INT * 3)(*made.reversed)
    for name_of_three in ("x_s", "x_size", "window", "w_s", "window_dilation", "stride", "y_s"):
        setattr(c, name_of_three, LONG3(*getattr(made, name_of_three)))
    return f"hloc_conv_{plan.algorithm}_{name}" if plan.algorithm else f"hloc_conv_{name}", c


def test_convolution_epilogue(runtime):
    """Rows of the epilogue are output positions, also in the phases of a base dilation and in batch groups."""
    rng = np.random.default_rng(6)
    for base, groups, window in (([1, 1, 1], 1, [1, 3, 3]), ([1, 2, 2], 1, [1, 3, 3]), ([1, 1, 1], 2, [1, 1, 1])):
        x, w = whole_numbers(rng, (4, 1, 7, 7, 5), np.float32), whole_numbers(rng, (*window, 5, 40), np.float32)
        fixed = [[1, 1, 1], [0, 1, 1], base, [1, 1, 1], [0, 0, 0], 1, groups]
        size = [1] + [(7 - 1) * base[1] + 1 + 2 - window[1] + 1] * 2
        want = convolution(x, w, size, *fixed)
        positions = want.size // 40
        y, bias = np.full((40, positions), np.nan, np.float32), np.arange(40, dtype=np.float32)
        c = conv_args(x, w, np.zeros_like(want), *fixed)
        args = (POINTER * 4)(y.ctypes.data, bias.ctypes.data, positions, 40)
        c.y, c.epilogue, c.epilogue_args = None, ctypes.cast(runtime.bias_relu, POINTER), ctypes.cast(args, POINTER)
        entry, c = planned_call(c, "f32")
        assert getattr(runtime, entry)(ctypes.byref(c)) == 0
        np.testing.assert_array_equal(y.T, np.maximum(want.reshape(positions, 40) + bias, 0))
