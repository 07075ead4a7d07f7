"""What the tests of the CPU runtime's matmuls and convolutions share: the runtime with C functions that it calls back, and
its arguments with the plans that hloc makes for them (no test of its own)."""
import ctypes
import dataclasses
from collections.abc import Iterator

import numpy as np
from native import build_runtime

from hloc.machine import Machine
from hloc.targets.cpu.plans.convolution import Choices
from hloc.targets.cpu.plans.matmul import Constants, Product
from hloc.targets.cpu.plans.matmul_choice import plan_of

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


EXTRA = r"""
#include "conv.h"
#include "pool.h"
#include "scalar.h"
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


def started() -> Iterator[ctypes.CDLL]:
    """The runtime with its threads, for a fixture."""
    library = build_runtime(EXTRA)
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
