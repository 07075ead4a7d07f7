"""Products by AMX (hloc/targets/cpu/runtime/gemm_amx.h) against NumPy, where the system allows it and where it does not:
a program that was compiled elsewhere then does without."""
import ctypes
import dataclasses

import ml_dtypes
import numpy as np
import pytest
from native import FLAGS, build
from runtime_arguments import gemm_args, gemm_shapes, in_order

from hloc.machine import Machine, cpu_flags, has_amx

SOURCE = '#include "pool.c"\n#include "gemm_bf16.c"\n#include "gemm_s8.c"\n'
AMX = dataclasses.replace(Machine.host(), cores=2, vector_bytes=64, dots=("bf16", "s8", "s16"), amx=True)
NO_FEATURE = "-DHLOC_XTILEDATA=63"             # Linux knows no such one


@pytest.fixture(scope="module", params=["allowed", "denied"])
def products(request, tmp_path_factory):
    if not {"avx512_bf16", "avx512_vnni"} <= cpu_flags():
        pytest.skip("this CPU has no AVX512-BF16, or no VNNI")
    if request.param == "allowed" and not has_amx():
        pytest.skip("this CPU has no AMX, or the system does not let programs use it")
    denied = [NO_FEATURE] if request.param == "denied" else []
    library = build(SOURCE, tmp_path_factory.mktemp("amx"), [*FLAGS, "-DHLOC_AMX", *denied])
    library.hloc_pool_start(2, 200)
    yield library
    library.hloc_pool_stop()


@pytest.mark.parametrize("name,dtype,sums", [("bf16", ml_dtypes.bfloat16, np.float32), ("s8", np.int8, np.int32)],
                         ids=["bf16", "s8"])
def test_products(products, name, dtype, sums):
    """Whole numbers: every sum is exact. Odd sizes: rests of k, of rows and of columns, in place and packed."""
    rng = np.random.default_rng(3)
    for trial, (batch, m, n, k) in enumerate(gemm_shapes()):
        orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2]]
        a = in_order(rng, (batch, m, k), dtype, orders[rng.integers(3)])
        b = in_order(rng, (batch, k, n), dtype, orders[rng.integers(3)])
        c = in_order(rng, (batch, m, n), dtype if name == "bf16" and trial % 2 else sums, orders[trial % 3])
        assert getattr(products, f"hloc_gemm_{name}")(ctypes.byref(gemm_args(a, b, c, on=AMX))) == 0
        want = (a.astype(np.float64) @ b.astype(np.float64)).astype(c.dtype)
        np.testing.assert_array_equal(c.astype(np.float64), want.astype(np.float64), err_msg=str((batch, m, n, k)))


def test_extreme_bytes(products):
    """-128 times -128, whose sums fill 25 bits."""
    a, b = np.full((1, 21, 900), -128, np.int8), np.full((1, 900, 50), -128, np.int8)
    c = np.zeros((1, 21, 50), np.int32)
    assert products.hloc_gemm_s8(ctypes.byref(gemm_args(a, b, c, on=AMX))) == 0
    assert (c == 900 * 128 * 128).all()


def test_what_is_not_finite_stays_in_its_sums(products):
    """Zeros that fill up tiles meet no infinity of another row or column."""
    a, b = np.ones((1, 19, 37), ml_dtypes.bfloat16), np.ones((1, 37, 35), ml_dtypes.bfloat16)
    a[0, 18, 36], b[0, 36, 34] = np.nan, np.inf
    c = np.zeros((1, 19, 35), np.float32)
    assert products.hloc_gemm_bf16(ctypes.byref(gemm_args(a, b, c, on=AMX))) == 0
    assert np.isnan(c[0, 18]).all() and np.isposinf(c[0, :18, 34]).all() and (c[0, :18, :34] == 37).all()
