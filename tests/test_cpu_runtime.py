"""The CPU runtime (hloc/targets/cpu/runtime) against NumPy: pool, products, convolutions, sorting, FFT, top-k."""
import ctypes
import dataclasses
import itertools
import threading

import ml_dtypes
import numpy as np
import pytest
from native import build_runtime, pointer

from hloc.machine import Machine
from hloc.targets.cpu.plans.convolution import Choices, arguments
from hloc.targets.cpu.plans.convolutions import plan_of_convolution
from hloc.targets.cpu.plans.matmul import Constants, Product
from hloc.targets.cpu.plans.matmul_choice import plan_of
from hloc.targets.cpu.plans.sorts import groups_of

LONG, POINTER, INT = ctypes.c_long, ctypes.c_void_p, ctypes.c_int
LONG3 = LONG * 3


class GemmArgs(ctypes.Structure):
    _fields_ = [*[(name, LONG) for name in ("batches", "inner_batches", "m", "n", "k")],
                ("a", POINTER), *[(name, LONG) for name in ("a_outer", "a_inner", "a_row", "a_column")],
                ("b", POINTER), *[(name, LONG) for name in ("b_outer", "b_inner", "b_row", "b_column")],
                ("c", POINTER), *[(name, LONG) for name in ("c_outer", "c_inner", "c_row", "c_column")],
                ("c_is_narrow", INT), ("epilogue", POINTER), ("epilogue_args", POINTER),
                ("b_packed", POINTER), ("pack_to", POINTER), ("plan", POINTER)]


class GemmPlan(ctypes.Structure):
    _fields_ = [(name, INT if isinstance(default, bool) else LONG)
                for name, default in {"batches": 1, "m": 1, **Constants._field_defaults}.items()]


class ConvChoices(ctypes.Structure):
    _fields_ = [(name, INT if isinstance(default, bool) else LONG)
                for name, default in Choices._field_defaults.items()]


class ConvArgs(ctypes.Structure):
    _fields_ = [*[(name, LONG) for name in ("batch", "x_features", "y_features", "feature_groups", "batch_groups")],
                *[(name, LONG3) for name in ("x_size", "window", "y_size", "stride", "pad_low", "base_dilation",
                                             "window_dilation")], ("reversed", INT * 3),
                ("x", POINTER), ("x_n", LONG), ("x_c", LONG), ("x_s", LONG3),
                ("w", POINTER), ("w_i", LONG), ("w_o", LONG), ("w_s", LONG3),
                ("y", POINTER), ("y_n", LONG), ("y_c", LONG), ("y_s", LONG3), ("y_is_narrow", INT),
                ("epilogue", POINTER), ("epilogue_args", POINTER), ("epilogue_is_transposed", INT), ("w_packed", POINTER),
                ("pack_to", POINTER), ("products", POINTER), ("choices", ConvChoices)]


ROWS_OF_NETWORKS = (2, 3, 5, 16, 37, 64, 129, 300, 512)
NETWORK = """
#define HLOC_SORT network{n}
#define HLOC_SORT_LENGTH {n}
#define HLOC_SORT_KEY_BITS 32
#define network{n}_element argsort_element
#define network{n}_key keysort_key
#define network{n}_get argsort_get
#define network{n}_put argsort_put
#include "sort_network.h"
int sort_rows_of_{n}(const float* x, float* values, int* places, long rows) {{
  void* args[] = {{(void*)x, values, places, (void*){n}}};
  return network{n}(args, rows, {n});
}}"""
EXTRA = r"""
#include "conv.h"
#include "scalar.h"
#define HLOC_SORT argsort
typedef struct { float v0; int v1; } argsort_element;
static inline int argsort_less(const argsort_element* a, const argsort_element* b) {
  return hloc_compare_lt_total_f32(a->v0, b->v0);
}
static inline void argsort_get(void* const* args, long row, long i, argsort_element* e) {
  e->v0 = ((const float*)args[0])[row * (long)args[3] + i];
  e->v1 = (int)i;
}
static inline void argsort_put(void* const* args, long row, long i, const argsort_element* e) {
  ((float*)args[1])[row * (long)args[3] + i] = e->v0;
  ((int*)args[2])[row * (long)args[3] + i] = e->v1;
}
#include "sort.h"
#define HLOC_SORT keysort
#define HLOC_SORT_KEY_BITS 32
#define keysort_element argsort_element
#define keysort_less argsort_less
#define keysort_get argsort_get
#define keysort_put argsort_put
static inline hloc_u64 keysort_key(const argsort_element* e);
#include "sort.h"
static inline hloc_u64 keysort_key(const argsort_element* e) { return hloc_sort_key_f32(e->v0); }
#define HLOC_SORT piecesort
#define HLOC_SORT_BY_PIECES 1
#define piecesort_element argsort_element
#define piecesort_less argsort_less
#define piecesort_get argsort_get
#define piecesort_put argsort_put
#include "sort.h"
#define HLOC_SORT keypiecesort
#define HLOC_SORT_BY_PIECES 1
#define HLOC_SORT_KEY_BITS 32
#define keypiecesort_element argsort_element
#define keypiecesort_less argsort_less
#define keypiecesort_get argsort_get
#define keypiecesort_put argsort_put
#define keypiecesort_key keysort_key
#include "sort.h"
int sort_rows(int by_key, int by_pieces, const float* x, float* values, int* places, long rows, long n) {
  void* args[] = {(void*)x, values, places, (void*)n};
  if (by_pieces) return by_key ? keypiecesort(args, rows, n) : piecesort(args, rows, n);
  return by_key ? keysort(args, rows, n) : argsort(args, rows, n);
}

NETWORKS

/* y = relu(sum + bias[column]), stored transposed */
void bias_relu(void* const* args, long batch, long row, long column, long rows, long columns, const void* tile,
               long stride) {
  float* y = args[0];
  const float *bias = args[1], *sums = tile;
  long m = (long)args[2], n = (long)args[3];
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < columns; j++)
      y[(batch * n + column + j) * m + row + i] = hloc_maximum_f32(sums[i * stride + j] + bias[column + j], 0.0f);
}
/* y += sum + (1, 2) */
void add_sums(void* const* args, long batch, long row, long column, long rows, long columns, const void* tile,
              long stride) {
  const hloc_c64 *sums = tile, one = {1, 2};
  const long m = (long)args[1], n = (long)args[2];
  for (long i = 0; i < rows; i++)
    for (long j = 0; j < columns; j++) {
      hloc_c64* to = (hloc_c64*)args[0] + (batch * m + row + i) * n + column + j;
      *to = hloc_add_c64(*to, hloc_add_c64(sums[i * stride + j], one));
    }
}
static void count_up(void* const* args, long begin, long end) {
  for (long i = begin; i < end; i++) ((int*)args[0])[i]++;
}
void count_all(int* counts, long n, long grain) {
  void* args[] = {counts};
  hloc_parallel(count_up, args, n, grain);
}
"""


@pytest.fixture(scope="module")
def runtime():
    networks = "\n".join(NETWORK.format(n=n) for n in ROWS_OF_NETWORKS)
    library = build_runtime('#include "pool.h"\n' + EXTRA.replace("NETWORKS", networks))
    library.hloc_pool_start(THREADS, 200)
    yield library
    library.hloc_pool_stop()


def strides(array):
    return [s // array.itemsize for s in array.strides]


TYPE_NAMES = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "float16": "f16", "int8": "s8", "int16": "s16",
              "int32": "s32", "int64": "s64", "complex64": "c64", "complex128": "c128", "uint8": "u8", "uint16": "u16",
              "uint32": "u32"}
THREADS = 3


def machine():
    return dataclasses.replace(Machine.host(), cores=THREADS)


def plans_of(products, machine):
    """The plans of matmuls, the last one empty; they live as long as the process."""
    found = [plan.constants for g in products if (plan := plan_of(g, machine))]
    array = (GemmPlan * (len(found) + 1))(*(GemmPlan(*p) for p in found))
    KEPT.append(array)
    return ctypes.addressof(array) if found else None


KEPT: list = []


def gemm_args(a, b, c, on=None, **more):
    """Arguments for 3-D views a [batch, m, k], b [batch, k, n], c [batch, m, n] of any strides; without c for an
    epilogue. on: the machine; more: of the Product."""
    g = GemmArgs(batches=a.shape[0], inner_batches=1, m=a.shape[1], k=a.shape[2], n=b.shape[2])
    g.a, g.b, g.c = a.ctypes.data, b.ctypes.data, c.ctypes.data if c is not None else None
    g.a_outer, g.a_row, g.a_column = strides(a)
    g.b_outer, g.b_row, g.b_column = strides(b)
    if c is not None:
        g.c_outer, g.c_row, g.c_column = strides(c)
        g.c_is_narrow = int(c.itemsize == 2 and c.dtype.kind != "i")
    product = Product(TYPE_NAMES[a.dtype.name], g.batches, g.m, g.n, g.k, (g.a_outer, 0, g.a_row, g.a_column),
                      (g.b_outer, 0, g.b_row, g.b_column), (g.c_row, g.c_column), c is None, is_narrow=bool(g.c_is_narrow))
    g.plan = plans_of([product._replace(**more)], on or machine())
    return g


def whole_numbers(rng, shape, dtype, limit=8):
    low = 0 if np.dtype(dtype).kind == "u" else -limit
    numbers = rng.integers(low, limit + 1, shape).astype(np.float32)
    if np.dtype(dtype).kind == "c":
        numbers = numbers + 1j * rng.integers(low, limit + 1, shape)
    return numbers.astype(dtype)


def in_order(rng, shape, dtype, order):
    """Random whole numbers of a logical shape, whose memory order is the permutation `order`."""
    stored = whole_numbers(rng, [shape[i] for i in order], dtype)
    return stored.transpose(np.argsort(order))


def gemm_shapes():
    sizes, rng = [1, 2, 3, 5, 8, 13, 14, 15, 31, 32, 33, 64, 100], np.random.default_rng(7)
    shapes = [(1, *rng.choice(sizes, 3)) for _ in range(25)] + [(5, *rng.choice(sizes, 3)) for _ in range(8)]
    ways = [(1, 150, 600, 1300), (1, 40, 70, 2000), (1, 1, 500, 700), (1, 300, 2, 900), (3, 2, 200, 300), (1, 5, 6, 0)]
    ways += [(1, 12, 400, 700), (1, 33, 400, 700), (1, 72, 200, 700), (1, 130, 90, 600), (1, 500, 100, 130)]
    ways += [(1, 1, 600, 100), (1, 3, 203, 64), (2, 4, 530, 50), (1, 2, 700, 150), (3, 1, 150, 70), (1, 1, 1003, 90)]
    ways += [(1, 500, 7, 90), (1, 300, 16, 1024), (2, 90, 12, 40), (1, 70, 9, 1030), (1, 8, 8, 3000), (1, 600, 5, 16)]
    ways += [(1, 12, 12, 4000), (1, 13, 40, 900), (1, 24, 20, 300), (1, 20, 30, 3000), (1, 70, 9, 5001)]
    ways += [(1, 100, 2, 9000), (2, 13, 40, 2500), (1, 90, 3, 12), (1, 3, 1500, 600), (1, 1, 1100, 1030), (1, 9, 1024, 300)]
    return shapes + ways


@pytest.mark.parametrize("dtype", [np.float32, np.float64, ml_dtypes.bfloat16, np.float16, np.int8, np.int16, np.int32,
                                   np.int64, np.complex64, np.complex128], ids=str)
def test_matrix_products(runtime, dtype):
    """Whole numbers: every sum is exact, so results must be equal in any order of summation."""
    name = TYPE_NAMES[np.dtype(dtype).name]
    sums = {"f64": np.float64, "s8": np.int32, "s16": np.int32, "s32": np.int32, "s64": np.int64, "c64": dtype, "c128": dtype}.get(name, np.float32)
    wide = np.complex128 if name in ("c64", "c128") else np.float64
    rng = np.random.default_rng(1)
    for trial, (batch, m, n, k) in enumerate(gemm_shapes()):
        orders = [[0, 1, 2], [0, 2, 1], [1, 2, 0] if trial % 4 == 3 else [1, 0, 2]]
        a = in_order(rng, (batch, m, k), dtype, orders[rng.integers(3)])
        b = in_order(rng, (batch, k, n), dtype, orders[rng.integers(3)])
        result_type = dtype if name in ("bf16", "f16") and trial % 2 else sums
        c = in_order(rng, (batch, m, n), result_type, orders[trial % 3])
        assert getattr(runtime, f"hloc_gemm_{name}")(ctypes.byref(gemm_args(a, b, c))) == 0
        want = (a.astype(wide) @ b.astype(wide)).astype(sums).astype(result_type)
        np.testing.assert_array_equal(c.astype(wide), want.astype(wide), err_msg=str((batch, m, n, k)))


@pytest.mark.parametrize("name, dtype", [("f32", np.float32), ("f64", np.float64), ("bf16", ml_dtypes.bfloat16)])
@pytest.mark.parametrize("m", [1, 3])
def test_few_rows_against_matrices_anywhere(runtime, name, dtype, m):
    """Matrices that begin between cache lines, of rows that are whole lines, halves of them, and neither."""
    rng, wide = np.random.default_rng(m), np.float32 if name == "bf16" else dtype
    for k, n, ahead in [(70, n, ahead) for n in (16, 17, 24, 63, 100, 144, 400) for ahead in (0, 1, 2, 5)] + [(900, 288, 3)]:
        memory = np.empty(k * n + 72, dtype)
        start = -memory.ctypes.data // memory.itemsize % 64 + ahead
        b = memory[start:start + k * n].reshape(1, k, n)
        b[:] = whole_numbers(rng, b.shape, dtype)
        a, c = whole_numbers(rng, (1, m, k), dtype), np.empty((1, m, n), wide)
        assert getattr(runtime, f"hloc_gemm_{name}")(ctypes.byref(gemm_args(a, b, c))) == 0
        np.testing.assert_array_equal(c, (a.astype(wide) @ b.astype(wide)), err_msg=str((k, n, ahead)))


@pytest.mark.parametrize("k", [16, 63, 64, 100, 288])
def test_few_rows_of_extreme_bytes(runtime, k):
    """Where bytes are multiplied as unsigned ones, the largest and smallest are still right."""
    rng = np.random.default_rng(k)
    for m in range(1, 5):
        a, b = (rng.choice([-128, -127, -1, 0, 127], (1, rows, k)).astype(np.int8) for rows in (m, 300))
        c = np.empty((1, m, 300), np.int32)
        assert runtime.hloc_gemm_s8(ctypes.byref(gemm_args(a, b.transpose(0, 2, 1), c))) == 0
        np.testing.assert_array_equal(c, a.astype(np.int32) @ b.transpose(0, 2, 1).astype(np.int32))


@pytest.mark.parametrize("m,n,k", [(200, 3, 40), (3, 200, 40), (1, 70, 5), (70, 1, 5), (40, 50, 0)])
def test_epilogue_of_complex_products(runtime, m, n, k):
    """Each operand read along and across k: tiles of complex sums come out whole, each element once."""
    rng = np.random.default_rng(6)
    for order in itertools.product([[0, 1, 2], [0, 2, 1]], repeat=2):
        a, b = (in_order(rng, shape, np.complex64, o) for shape, o in zip(((2, m, k), (2, k, n)), order))
        y, g = np.zeros((2, m, n), np.complex64), gemm_args(a, b, None)
        epilogue_args = (POINTER * 3)(y.ctypes.data, m, n)
        g.epilogue = ctypes.cast(runtime.add_sums, POINTER)
        g.epilogue_args = ctypes.cast(epilogue_args, POINTER)
        assert runtime.hloc_gemm_c64(ctypes.byref(g)) == 0
        np.testing.assert_array_equal(y, a @ b + (1 + 2j))


@pytest.mark.parametrize("name,dtype", [("u16", np.uint16), ("u8", np.uint8), ("pred", np.uint8)])
def test_plain_matrix_products(runtime, name, dtype):
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 2 if name == "pred" else 9, s).astype(dtype) for s in ((2, 17, 40), (2, 40, 35)))
    c = np.zeros((2, 17, 35), dtype)
    assert getattr(runtime, f"hloc_gemm_{name}")(ctypes.byref(gemm_args(a, b, c))) == 0
    np.testing.assert_array_equal(c, (a @ b != 0).astype(dtype) if name == "pred" else a @ b)


@pytest.mark.parametrize("m,n,k", [(100, 70, 50), (3, 200, 300), (200, 3, 40), (30, 90, 1500), (1, 64, 64),
                                   (120, 200, 300), (500, 70, 120), (256, 600, 64), (300, 40, 700)])
def test_epilogue(runtime, m, n, k):
    rng = np.random.default_rng(3)
    a, b, bias = whole_numbers(rng, (2, m, k), np.float32), whole_numbers(rng, (2, k, n), np.float32), np.arange(n)
    bias = bias.astype(np.float32)
    want = np.maximum(a @ b + bias, 0).swapaxes(1, 2)
    for arrays in (1, 6):
        y = np.full((2, n, m), np.nan, np.float32)
        g = gemm_args(a, b, None, epilogue_arrays=arrays)
        epilogue_args = (POINTER * 4)(y.ctypes.data, bias.ctypes.data, m, n)
        g.epilogue = ctypes.cast(runtime.bias_relu, POINTER)
        g.epilogue_args = ctypes.cast(epilogue_args, POINTER)
        assert runtime.hloc_gemm_f32(ctypes.byref(g)) == 0
        np.testing.assert_array_equal(y, want)


def test_two_level_batches(runtime):
    """Heads inside of sequences: [batch, sequence, head, width] read as batch x head matrices without a transpose."""
    rng = np.random.default_rng(5)
    q, k = whole_numbers(rng, (2, 20, 3, 16), np.float32), whole_numbers(rng, (2, 24, 3, 16), np.float32)
    c = np.zeros((2, 3, 20, 24), np.float32)
    g = GemmArgs(batches=6, inner_batches=3, m=20, n=24, k=16, a=q.ctypes.data, a_outer=20 * 48, a_inner=16, a_row=48,
                 a_column=1, b=k.ctypes.data, b_outer=24 * 48, b_inner=16, b_row=1, b_column=48, c=c.ctypes.data,
                 c_outer=3 * 480, c_inner=480, c_row=24, c_column=1)
    g.plan = plans_of([Product("f32", 6, 20, 24, 16, (20 * 48, 16, 48, 1), (24 * 48, 16, 1, 48), (24, 1))], machine())
    assert runtime.hloc_gemm_f32(ctypes.byref(g)) == 0
    np.testing.assert_array_equal(c, np.einsum("bshd,bthd->bhst", q, k))


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
    plans = plans_of(plan.products, on)
    if plan.algorithm == "product":
        p, sides = plan.products[0], {}
        for side, strides in (("a", p.a), ("b", p.b)):
            sides |= dict(zip((f"{side}_outer", f"{side}_inner", f"{side}_row", f"{side}_column"), strides))
        return f"hloc_gemm_{p.type}", GemmArgs(
            batches=1, inner_batches=1, m=p.m, n=p.n, k=p.k, a=c.x, b=c.w, c=c.y, c_row=p.c[0], c_column=p.c[1],
            c_is_narrow=c.y_is_narrow, epilogue=c.epilogue, epilogue_args=c.epilogue_args, plan=plans, **sides)
    c.products, c.choices, made = plans, ConvChoices(*plan.choices), plan.convolution
    c.x_c, c.x_s, c.x_size = made.x_c, LONG3(*made.x_s), LONG3(*made.x_size)
    c.stride, c.y_s = LONG3(*made.stride), LONG3(*made.y_s)
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


@pytest.mark.parametrize("by_key", [0, 1])
@pytest.mark.parametrize("by_pieces", [0, 1])
@pytest.mark.parametrize("rows,n", [(3, 1), (40, 37), (5, 5000), (1, 300000), (2, 70000)])
def test_sort(runtime, by_key, by_pieces, rows, n):
    rng = np.random.default_rng(8)
    x = rng.integers(-50, 50, (rows, n)).astype(np.float32)
    x[:, : n // 9] = rng.normal(size=(rows, n // 9))
    values, places = np.empty_like(x), np.empty((rows, n), np.int32)
    assert runtime.sort_rows(by_key, by_pieces, pointer(x), pointer(values), pointer(places), LONG(rows), LONG(n)) == 0
    want = np.argsort(x + np.float32(0), axis=1, kind="stable")
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, 1))


@pytest.mark.parametrize("n", ROWS_OF_NETWORKS)
@pytest.mark.parametrize("rows", [1, 15, 16, 100])
def test_sort_by_networks(runtime, rows, n):
    """Equals keep their order; blocks of rows are full or not."""
    rng = np.random.default_rng(n)
    x = rng.integers(-20, 20, (rows, n)).astype(np.float32)
    x[:, : n // 3] = rng.normal(size=(rows, n // 3))
    values, places = np.empty_like(x), np.empty((rows, n), np.int32)
    assert getattr(runtime, f"sort_rows_of_{n}")(pointer(x), pointer(values), pointer(places), LONG(rows)) == 0
    want = np.argsort(x, axis=1, kind="stable")
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, 1))


def test_sort_keeps_the_total_order(runtime):
    x = np.array([[np.nan, 0.0, -0.0, -np.inf, np.inf, -1.0, -np.nan] * 20], np.float32)
    for by_key in (0, 1):
        values, places = np.empty_like(x), np.empty(x.shape, np.int32)
        runtime.sort_rows(by_key, int(x.size > 65536), pointer(x), pointer(values), pointer(places), LONG(1), LONG(x.size))
        want = np.repeat(np.array([-np.nan, -np.inf, -1.0, -0.0, 0.0, np.inf, np.nan], np.float32), 20)
        assert (np.signbit(values[0]) == np.signbit(want)).all()
        np.testing.assert_array_equal(values[0], want)


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_turn(runtime, bits):
    """Rows become columns; what lies between rows stays as it was, and nothing behind the last one is read (there are
    only as many elements)."""
    rng, dtype = np.random.default_rng(bits), np.dtype(f"u{bits // 8}")
    sizes = [*itertools.product((1, 3, 4, 7, 8, 13), repeat=2), (128, 5), (5, 128), (128, 31), (40, 70), (33, 17), (16, 32)]
    for (rows, columns), more, apart in itertools.product(sizes, (0, 3), (0, 2)):
        source = rng.integers(0, 256, ((rows - 1) * (columns + more) + columns) * dtype.itemsize, "u1").view(dtype)
        target = rng.integers(0, 256, ((columns - 1) * (rows + apart) + rows) * dtype.itemsize, "u1").view(dtype)
        want = target.copy()
        for r, c in np.ndindex(rows, columns):
            want[c * (rows + apart) + r] = source[r * (columns + more) + c]
        getattr(runtime, f"hloc_transpose_{bits}")(pointer(source), LONG(columns + more), pointer(target), LONG(rows + apart),
                                              LONG(rows), LONG(columns))
        np.testing.assert_array_equal(target, want, f"{rows} x {columns}, {more} and {apart} between rows")


@pytest.mark.parametrize("n,k", [(1, 1), (7, 7), (5, 1), (64, 16), (60, 2), (64, 17), (300, 20), (511, 3), (512, 3),
                                 (1000, 10), (1000, 900), (5000, 300), (50000, 1), (50000, 40)])
def test_topk(runtime, n, k):
    x = np.random.default_rng(9).integers(-200, 200, (6, n)).astype(np.float32)
    values, places = np.empty((6, k), np.float32), np.empty((6, k), np.int32)
    assert runtime.hloc_topk_f32(pointer(x), pointer(values), pointer(places), LONG(6), LONG(n), LONG(k), LONG(n),
                                 LONG(groups_of(n, k))) == 0
    want = np.argsort(-x, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, 1))


FFT, IFFT, RFFT, IRFFT = range(4)


@pytest.mark.parametrize("lengths", [[1], [2], [3], [8], [12], [30], [35], [97], [101], [105], [194], [961], [1024],
                                     [1000], [6000], [4, 6], [5, 16], [6, 7], [3, 2048], [3, 4, 10]])
@pytest.mark.parametrize("batch", [3, 21])                      # 21: more than a vector's lanes
@pytest.mark.parametrize("name,real,point", [("f32", np.float32, np.complex64), ("f64", np.float64, np.complex128)])
def test_fft(runtime, lengths, batch, name, real, point):
    rng, axes = np.random.default_rng(10), tuple(range(1, len(lengths) + 1))
    half = [*lengths[:-1], lengths[-1] // 2 + 1]
    z = (rng.normal(size=(batch, *lengths)) + 1j * rng.normal(size=(batch, *lengths))).astype(point)
    r = rng.normal(size=(batch, *lengths)).astype(real)
    spectrum = np.fft.rfftn(r, axes=axes).astype(point)
    for kind, source, shape, want in (
        (FFT, z, lengths, np.fft.fftn(z, axes=axes)), (IFFT, z, lengths, np.fft.ifftn(z, axes=axes)),
        (RFFT, r, half, np.fft.rfftn(r, axes=axes)), (IRFFT, spectrum, lengths, np.fft.irfftn(spectrum, lengths, axes)),
    ):
        got = np.empty((batch, *shape), real if kind == IRFFT else point)
        call = getattr(runtime, f"hloc_fft_{name}")
        assert call(kind, len(lengths), (LONG * len(lengths))(*lengths), LONG(batch), pointer(source), pointer(got)) == 0
        np.testing.assert_allclose(got, want, atol=(2e-6 if name == "f32" else 1e-14) * np.abs(want).max())


@pytest.mark.parametrize("kind,n", [(FFT, 24), (RFFT, 24), (RFFT, 45)])
def test_nan_stays_in_its_line(runtime, kind, n):
    x = np.ones((40, n), np.complex64 if kind == FFT else np.float32)
    x[17, 5] = np.nan
    got = np.empty((40, n if kind == FFT else n // 2 + 1), np.complex64)
    assert runtime.hloc_fft_f32(kind, 1, (LONG * 1)(n), LONG(40), pointer(x), pointer(got)) == 0
    assert np.isnan(got).any(axis=1).nonzero()[0].tolist() == [17]


def test_pool_runs_every_range_once(runtime):
    for n, grain in ((0, 1), (1, 1), (1000, 7), (100000, 1), (5, 100)):
        counts = np.zeros(max(n, 1), np.int32)
        runtime.count_all(pointer(counts), LONG(n), LONG(grain))
        assert (counts[:n] == 1).all()


def test_pool_serves_several_threads(runtime):
    """A second caller does its work alone while the first has the pool."""
    arrays = [np.zeros(20000, np.int32) for _ in range(4)]

    def repeat(counts):
        for _ in range(50):
            runtime.count_all(pointer(counts), LONG(counts.size), LONG(100))

    threads = [threading.Thread(target=repeat, args=(a,)) for a in arrays]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all((a == 50).all() for a in arrays)


def test_pool_restarts(runtime):
    runtime.hloc_pool_stop()
    assert runtime.hloc_pool_threads() == 1
    runtime.hloc_pool_start(3, 200)
    test_pool_runs_every_range_once(runtime)


def test_no_bytes_of_scratch(runtime):
    """A thread that has asked for nothing yet gets an address: NULL means that memory is exhausted."""
    scratch = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)(("hloc_scratch", runtime))
    found = []
    thread = threading.Thread(target=lambda: found.append(scratch(1, 0)))
    thread.start()
    thread.join()
    assert found[0] is not None
