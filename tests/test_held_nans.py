"""Roundings to bf16 that leave NaNs to the addition (hloc/targets/cpu/vector_loops/nan_check_elimination.py): every bf16 through every
operation that hands NaNs on, and NaNs of f32, which need care."""
from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import hloc
from hloc.ops.table import OPS
from hloc.targets.cpu.vector_loops.nan_check_elimination import KEEPS_NANS

BITS = np.arange(1 << 16, dtype=np.uint16)
UNARY = sorted(o for o, row in OPS.items() if row.scalar in KEEPS_NANS and row.arity == 1)
BINARY = sorted(o for o, row in OPS.items() if row.scalar in KEEPS_NANS and row.arity == 2)


def compiled(body: str) -> hloc.Executable:
    return hloc.compile(hloc.load("HloModule m\nENTRY e {\n" + body + "}\n"), target="cpu")


def test_every_operation_is_tried():
    tried = {OPS[o].scalar for o in UNARY + BINARY} | {OPS["clamp"].scalar}
    assert tried == KEEPS_NANS


@pytest.mark.parametrize("count", [1 << 16, 4093])          # 4093: no whole vectors
@pytest.mark.parametrize("opcode", UNARY)
def test_nan_through_one_operand(opcode, count):
    module = f"  x = bf16[{count}] parameter(0)\n  ROOT r = bf16[{count}] {opcode}(x)\n"
    x = BITS[-count:].view(ml_dtypes.bfloat16)
    result = np.asarray(compiled(module)(x)[0], np.float32)
    assert np.isnan(result[np.isnan(x.astype(np.float32))]).all()


@pytest.mark.parametrize("other", [1.5, -0.0, np.inf, np.nan])
@pytest.mark.parametrize("opcode", BINARY)
def test_nan_through_two_operands(opcode, other):
    module = f"  x = bf16[65536] parameter(0)\n  y = bf16[65536] parameter(1)\n  ROOT r = bf16[65536] {opcode}(x, y)\n"
    exe, x, y = compiled(module), BITS.view(ml_dtypes.bfloat16), np.full(1 << 16, other, ml_dtypes.bfloat16)
    nans = np.isnan(x.astype(np.float32))
    if opcode == "power":                                    # 1 to the power of anything is 1, x to that of 0 is 1
        nans &= other != 0.0
    for a, b in ((x, y), (y, x)):
        assert np.isnan(np.asarray(exe(a, b)[0], np.float32)[nans]).all()


def test_nans_of_f32_stay():
    bits = np.array([0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff, 0x7fff8000, 0x7f80ffff], np.uint32)
    x = np.tile(bits, 11).view(np.float32)
    exe = compiled("  x = f32[66] parameter(0)\n  one = bf16[66] parameter(1)\n  y = bf16[66] convert(x)\n"
                   "  ROOT r = bf16[66] add(y, one)\n")
    assert np.isnan(np.asarray(exe(x, np.ones(66, ml_dtypes.bfloat16))[0], np.float32)).all()
