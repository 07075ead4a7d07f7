"""The CPU library kernel of attention (runtime/attention.h) alone, with registers of every width, against NumPy in f64."""
from __future__ import annotations

import ctypes
import dataclasses
import subprocess
from itertools import product
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from native import FLAGS, INCLUDE, once

from hloc.machine import Machine
from hloc.targets.cpu.plans.attention import Attention, AttentionChoices, Operand, plan_of_attention

LONG, POINTER, INT, FLOAT = ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_float
PAIRS = 0                       # in the place of a number of queries
WIDTHS = {"native": [], "32 bytes": ["-mno-avx512f"], "16 bytes": ["-march=x86-64"]}
MOST_BYTES = {"native": 64, "32 bytes": 32, "16 bytes": 16}


class Array(ctypes.Structure):
    _fields_ = [("at", POINTER), ("type", INT), ("row", LONG), ("column", LONG), ("batch", POINTER)]


class Choices(ctypes.Structure):
    _fields_ = [(name, INT if isinstance(default, bool) else LONG)
                for name, default in AttentionChoices._field_defaults.items()]


class Arguments(ctypes.Structure):
    _fields_ = [("dims", LONG), ("batch", POINTER), *[(n, LONG) for n in ("rows", "columns", "depth", "features")],
                *[(n, Array) for n in ("q", "k", "v", "out")], ("score", POINTER), ("score_args", POINTER),
                ("score_by_columns", INT), ("live", POINTER), ("masked", FLOAT), ("choices", Choices)]


@pytest.fixture(scope="module", params=WIDTHS, ids=lambda width: width.replace(" ", "-"))
def entries(request):
    """The entries of attention.h for a number of queries, compiled for one width of vectors."""
    names = ("attention", "attention_pairs", "pool")
    flags = [*FLAGS, *WIDTHS[request.param]]

    def make(folder: Path) -> Path:
        subprocess.run(["gcc", "-std=gnu11", *flags, "-fPIC", "-shared", "-pthread", *(f"-I{i}" for i in INCLUDE),
                        *(str(INCLUDE[1] / f"{n}.c") for n in names), "-o", str(folder / "attention.so"), "-lm"],
                       check=True, capture_output=True)
        return folder / "attention.so"
    library = once("attention", flags, make)
    library.hloc_pool_start(2, 100)
    widest = Machine.host().vector_bytes
    machine = dataclasses.replace(Machine.host(), cores=2, vector_bytes=min(widest, MOST_BYTES[request.param]))
    of_kind = {"": library.hloc_attention, "pairs": getattr(library, "hloc_attention_pairs", None)}

    def planned(kind: str):
        """The entry of a kind, to which a call adds its plan; None: the CPU has no such instructions."""
        entry = of_kind[kind]
        return entry and (lambda arguments: entry(ctypes.byref(with_plan(arguments, kind, machine))))
    yield lambda rows: [planned("pairs" if rows == PAIRS else "")]
    library.hloc_pool_stop()


def with_plan(g: Arguments, kind: str, machine: Machine) -> Arguments:
    """Of three batches."""
    key, value = (Operand(("f32", "bf16")[x.type], x.row, x.column) for x in (g.k, g.v))
    planned = Attention(kind, 3, g.rows, g.columns, g.depth, g.features, key, value)
    g.choices = Choices(*plan_of_attention(planned, machine)[0])
    return g


def described(array: np.ndarray, keep: list) -> Array:
    """A view [batch, row, column] of f32 or bf16 as an argument."""
    batch, row, column = (s // array.itemsize for s in array.strides)
    keep.append((LONG * 1)(batch))
    return Array(array.ctypes.data, int(array.itemsize == 2), row, column, ctypes.addressof(keep[-1]))


@pytest.mark.parametrize(("rows", "columns", "depth", "features"), [
    (1, 1, 1, 1), (1, 300, 64, 64), (3, 141, 17, 5), (8, 40, 16, 100), (9, 2, 8, 3), (16, 281, 64, 64),
    (17, 140, 33, 30), (40, 139, 15, 14), (65, 64, 64, 128), (130, 77, 40, 16)])
def test_against_numpy(entries, rows: int, columns: int, depth: int, features: int) -> None:
    rng = np.random.default_rng(rows)
    q, k, v = (rng.standard_normal((3, *s)).astype(np.float32)
               for s in ((rows, depth), (columns, depth), (columns, features)))
    turned = np.ascontiguousarray(k.transpose(0, 2, 1)).transpose(0, 2, 1)            # its depth is no unit stride
    aliased = np.zeros((3, columns, 1024), np.float32)
    aliased[:, :, :features] = v
    weights = np.exp((z := np.einsum("bqd,bkd->bqk", q.astype(np.float64), k)) - z.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v
    for library_kernel, (keys, values) in product(entries(rows), ((k, v), (turned, aliased[:, :, :features]))):
        out, keep = np.full((3, rows, features), np.nan, np.float32), []
        batch = (LONG * 1)(3)
        arguments = Arguments(1, ctypes.addressof(batch), rows, columns, depth, features,
                              *(described(a, keep) for a in (q, keys, values, out)))
        assert library_kernel(arguments) == 0
        np.testing.assert_allclose(out, want, rtol=0, atol=1e-5 * max(1.0, np.abs(want).max()))


@pytest.mark.parametrize(("rows", "columns", "depth", "features"), [
    (1, 1, 2, 1), (3, 141, 18, 5), (16, 281, 64, 64), (17, 140, 34, 30), (40, 139, 16, 14), (130, 77, 256, 16)])
@pytest.mark.parametrize("entries", ["native"], indirect=True)           # narrower registers have no such instruction
def test_pairs(entries, rows: int, columns: int, depth: int, features: int) -> None:
    """Of bf16, where the CPU multiplies pairs of it: weights are rounded to bf16, sums are not."""
    (library_kernel,) = entries(PAIRS)
    if library_kernel is None:
        pytest.skip("this CPU has no AVX-512 with bf16")
    rng = np.random.default_rng(rows)
    q, k, v = (rng.standard_normal((3, *s)).astype(ml_dtypes.bfloat16)
               for s in ((rows, depth), (columns, depth), (features, columns)))
    v = v.transpose(0, 2, 1)
    v[1, columns // 2, 0] = np.inf
    z = np.einsum("bqd,bkd->bqk", q.astype(np.float64), k.astype(np.float64))
    weights = np.exp(z - z.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v.astype(np.float64)
    for values in (v, np.ascontiguousarray(v)):
        out, keep = np.full((3, rows, features), np.nan, np.float32), []
        batch = (LONG * 1)(3)
        arguments = Arguments(1, ctypes.addressof(batch), rows, columns, depth, features,
                              *(described(a, keep) for a in (q, k, values, out)))
        assert library_kernel(arguments) == 0
        np.testing.assert_allclose(out, want, rtol=0, atol=0.02)
