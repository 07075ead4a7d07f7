"""The matmuls of the CPU runtime (hloc/targets/cpu/runtime/gemm.h) against NumPy."""
import ctypes
import itertools

import ml_dtypes
import numpy as np
import pytest
from runtime_arguments import (
    POINTER,
    TYPE_NAMES,
    GemmArgs,
    gemm_args,
    gemm_shapes,
    in_order,
    machine,
    plans_of,
    started,
    whole_numbers,
)

from hloc.targets.cpu.plans.matmul import Product


@pytest.fixture(scope="module")
def runtime():
    yield from started()


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
