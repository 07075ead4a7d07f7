"""What the plan sets aside for library kernels is what they take: nothing is allocated beside it, and it is not more."""
from __future__ import annotations

import importlib.util

import numpy as np
import pytest

import hloc
from hloc.analysis.packing import ALIGNMENT
from hloc.api import optimized_plan
from hloc.inputs.sensible import sensible_arrays
from hloc.kernels.ir import Tile
from hloc.kernels.memory import memory_use
from hloc.kernels.plan import HostCall, Launch, all_steps
from hloc.machine import Machine
from hloc.targets import find
from hloc.targets.cpu.plans.slots import Scratch
from hloc.targets.cpu.plans.steps import scratch_of
from hloc.targets.cpu.program import driver

LESS = "c = pred[] { a = %s parameter(0)\n b = %s parameter(1)\n ROOT l = pred[] compare(a, b), direction=LT }"


def dot(type: str, m: int, n: int, k: int, total: str = "", turned: bool = False) -> str:
    right = f"[{n},{k}]" if turned else f"[{k},{n}]"
    return (f"HloModule m\nENTRY e {{ x = {type}[{m},{k}] parameter(0)\n y = {type}{right} parameter(1)\n ROOT r = "
            f"{total or type}[{m},{n}] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{{int(turned)}}} }}")


def convolution(lhs: str, rhs: str, result: str, rest: str, labels: str = "b01f_01io->b01f") -> str:
    return (f"HloModule m\nENTRY e {{ x = {lhs} parameter(0)\n w = {rhs} parameter(1)\n"
            f" ROOT r = {result} convolution(x, w), {rest}, dim_labels={labels} }}")


def largest(rows: int, length: int, k: int) -> str:
    return (f"HloModule m\nENTRY e {{ x = f32[{rows},{length}] parameter(0)\n"
            f" ROOT r = (f32[{rows},{k}], s32[{rows},{k}]) topk(x), k={k}, largest=true }}")


def sort(type: str, rows: int, length: int) -> str:
    comparison = LESS.replace("%s", f"{type}[]").replace("c = pred[] {", "c {")
    return (f"HloModule m\n{comparison}\nENTRY e {{ x = {type}[{rows},{length}] parameter(0)\n"
            f" ROOT r = {type}[{rows},{length}] sort(x), dimensions={{1}}, to_apply=c }}")


def sorted_part(type: str, rows: int, length: int, first: int, last: int) -> str:
    comparison = LESS.replace("%s", f"{type}[]").replace("c = pred[] {", "c {")
    return (f"HloModule m\n{comparison}\nENTRY e {{ x = {type}[{rows},{length}] parameter(0)\n"
            f" s = {type}[{rows},{length}] sort(x), dimensions={{1}}, to_apply=c\n"
            f" ROOT r = {type}[{rows},{last - first}] slice(s), slice={{[0:{rows}], [{first}:{last}]}} }}")


def transform(kind: str, given: str, made: str, lengths: str) -> str:
    return (f"HloModule m\nENTRY e {{ x = {given} parameter(0)\n"
            f" ROOT r = {made} fft(x), fft_type={kind}, fft_length={{{lengths}}} }}")


def factor(shape: str, options: str = "") -> str:
    return f"HloModule m\nENTRY e {{ a = {shape} parameter(0)\n ROOT l = {shape} cholesky(a){options} }}"


def system(matrix: str, sides: str, options: str = "") -> str:
    return (f"HloModule m\nENTRY e {{ a = {matrix} parameter(0)\n b = {sides} parameter(1)\n"
            f" ROOT x = {sides} triangular-solve(a, b), transpose_a=NO_TRANSPOSE{options} }}")


def attention(rows: int, columns: int) -> str:
    batched = "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}"
    return f"""HloModule m
high {{ a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT r = f32[] maximum(a, b) }}
plus {{ a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT r = f32[] add(a, b) }}
ENTRY e {{
  q = f32[3,{rows},64] parameter(0)
  k = f32[3,{columns},64] parameter(1)
  v = f32[3,{columns},64] parameter(2)
  s = f32[3,{rows},{columns}] dot(q, k), {batched}, rhs_contracting_dims={{2}}
  least = f32[] constant(-inf)
  zero = f32[] constant(0)
  m = f32[3,{rows}] reduce(s, least), dimensions={{2}}, to_apply=high
  ms = f32[3,{rows},{columns}] broadcast(m), dimensions={{0,1}}
  d = f32[3,{rows},{columns}] subtract(s, ms)
  e = f32[3,{rows},{columns}] exponential(d)
  t = f32[3,{rows}] reduce(e, zero), dimensions={{2}}, to_apply=plus
  ts = f32[3,{rows},{columns}] broadcast(t), dimensions={{0,1}}
  w = f32[3,{rows},{columns}] divide(e, ts)
  ROOT o = f32[3,{rows},64] dot(w, v), {batched}, rhs_contracting_dims={{1}}
}}"""


CASES = {
    "product": dot("f32", 500, 300, 200),
    "flat": dot("f32", 130, 600, 400),
    "skinny": dot("f32", 20, 300, 900),
    "skinny, long rows": dot("f32", 20, 900, 400),
    "one row": dot("f32", 1, 900, 400),
    "few rows, held sums": dot("f32", 3, 1500, 600),
    "few rows, streamed": dot("f64", 2, 4000, 700),
    "a tile against rows that share sets": dot("f32", 9, 1024, 300),
    "one row, turned": dot("f32", 1, 900, 400, turned=True),
    "one row of u32": dot("u32", 1, 900, 400, turned=True),
    "few columns": dot("f32", 900, 3, 400),
    "deep": dot("f32", 100, 200, 2000),
    "f64": dot("f64", 200, 150, 100),
    "half a tile": dot("f32", 500, 12, 90),
    "half a tile of rows that share sets": dot("f64", 300, 7, 1024),
    "long sums": dot("f32", 70, 20, 30_000),
    "long sums, few rows": dot("f64", 12, 12, 20_000),
    "complex": dot("c64", 90, 100, 80),
    "complex, along": dot("c128", 900, 20, 50),
    "complex, turned": dot("c64", 30, 200, 50, turned=True),
    "complex, few columns": dot("c64", 900, 2, 100),
    "complex, one row": dot("c128", 1, 900, 100),
    "bf16": dot("bf16", 200, 150, 300),
    "f16": dot("f16", 600, 150, 300),
    "s8": dot("s8", 600, 150, 300, "s32"),
    "window": convolution("f32[2,20,20,32]", "f32[3,3,32,48]", "f32[2,20,20,48]", "window={size=3x3 pad=1_1x1_1}"),
    "few places": convolution("f32[1,7,7,64]", "f32[3,3,64,512]", "f32[1,7,7,512]", "window={size=3x3 pad=1_1x1_1}"),
    "blocks of narrow features": convolution("f16[2,20,20,32]", "f16[3,3,32,48]", "f16[2,18,18,48]", "window={size=3x3}"),
    "few blocks": convolution("f32[2,14,14,64]", "f32[3,3,64,512]", "f32[2,14,14,512]", "window={size=3x3 pad=1_1x1_1}"),
    "strides": convolution("f32[2,40,40,32]", "f32[3,3,32,48]", "f32[2,20,20,48]", "window={size=3x3 stride=2x2 pad=0_1x0_1}"),
    "first layer": convolution("f32[2,40,40,3]", "f32[5,5,3,32]", "f32[2,20,20,32]",
                               "window={size=5x5 stride=2x2 pad=2_2x2_2}"),
    "channels first": convolution("f32[2,32,20,20]", "f32[48,32,3,3]", "f32[2,48,20,20]",
                                  "window={size=3x3 pad=1_1x1_1}", "bf01_oi01->bf01"),
    "1x1": convolution("f32[2,20,20,32]", "f32[1,1,32,48]", "f32[2,20,20,48]", "window={size=1x1}"),
    "filter gradient": convolution("f32[32,30,30,16]", "f32[28,28,32,24]", "f32[16,3,3,24]", "window={size=28x28}",
                                   "f01b_01io->b01f"),
    "transposed": convolution("f32[2,20,20,32]", "f32[4,4,32,8]", "f32[2,38,38,8]",
                              "window={size=4x4 pad=1_1x1_1 lhs_dilate=2x2}"),
    "depthwise": convolution("f32[2,20,20,32]", "f32[3,3,1,32]", "f32[2,18,18,32]",
                             "window={size=3x3}, feature_group_count=32"),
    "groups": convolution("f32[2,20,20,32]", "f32[3,3,16,48]", "f32[2,18,18,48]",
                          "window={size=3x3}, feature_group_count=2"),
    "bf16 window": convolution("bf16[2,20,20,32]", "bf16[3,3,32,48]", "bf16[2,18,18,48]", "window={size=3x3}"),
    "bf16, channels first": convolution("bf16[2,48,20,20]", "bf16[40,48,3,3]", "bf16[2,40,18,18]", "window={size=3x3}",
                                        "bf01_oi01->bf01"),
    "f64 window": convolution("f64[2,20,20,16]", "f64[3,3,16,24]", "f64[2,18,18,24]", "window={size=3x3}"),
    "attention": attention(200, 300),
    "rows sorted": sort("f32", 20, 500),
    "rows too long for a network": sort("f32", 20, 600),
    "few rows sorted": sort("u8", 3, 300),
    "few first elements of sorted rows": sorted_part("f32", 4, 5000, 0, 30),
    "the last elements of sorted rows": sorted_part("s16", 40, 900, 800, 900),
    "the first of many doubles": sorted_part("f64", 4, 50_000, 0, 1000),
    "the middle of sorted rows": sorted_part("f32", 4, 5000, 2400, 2600),
    "the largest of long rows": largest(4, 5000, 30),
    "the largest of rows that are not grouped": largest(4, 50_000, 3),
    "short rows sorted": sort("s16", 2000, 40),
    "a long row sorted": sort("s32", 1, 150_000),
    "factors": factor("f32[50,40,40]"),
    "a large factor": factor("f64[2,300,300]", ", lower=true"),
    "systems": system("f64[50,33,33]", "f64[50,5,33]"),
    "a large system": system("f32[300,300]", "f32[300,100]", ", left_side=true, lower=true"),
    "transform": transform("FFT", "c64[300,48]", "c64[300,48]", "48"),
    "real transform": transform("RFFT", "f64[300,64]", "c128[300,33]", "64"),
    "prime transform": transform("FFT", "c64[5,997]", "c64[5,997]", "997"),
    "long transform": transform("FFT", "c64[2,32768]", "c64[2,32768]", "32768"),
    "very long transform": transform("IFFT", "c64[2097152]", "c64[2097152]", "2097152"),
    "long planes back": transform("IRFFT", "c128[3,2,4097]", "f64[3,2,8192]", "2,8192"),
    "planes back": transform("IRFFT", "c64[3,16,9]", "f32[3,16,16]", "16,16"),
}

def allocated(exe, arrays) -> int:
    """Bytes that the library kernels took beside the plan in one run."""
    count = exe.backend.shared_object.hloc_unplanned
    before = count()
    exe(*arrays)
    return count() - before


def planned(text: str):
    return optimized_plan(hloc.load(text), find("cpu"))


@pytest.mark.parametrize("name", CASES)
def test_library_kernels_allocate_nothing(name):
    module, program = planned(CASES[name])
    tiles = [k for k in program.kernels if isinstance(k, Tile)]
    sizes = [scratch_of(tile, Machine.host()) for tile in tiles]
    assert len(tiles) == 1 and sizes[0].bytes > 0
    use = memory_use(module, find("cpu").machine, find("cpu").workspace)
    assert use.scratch == sizes[0].bytes and use.arena == program.arena_size >= use.scratch
    assert [b.size for b in use.buffers if b.region == "scratch"] == [use.scratch]
    arrays = sensible_arrays(hloc.load(CASES[name]))
    exe = find("cpu").executable(program, module, hloc.Options())
    assert exe.backend.program.arena_size == use.arena and allocated(exe, arrays) == 0


@pytest.mark.parametrize("name", CASES)
def test_no_more_is_set_aside_than_library_kernels_take(name, monkeypatch):
    """With two lines less, of whatever they take, they allocate."""
    arrays, expected = sensible_arrays(hloc.load(CASES[name])), None
    slots = [slot for slot in ("first", "second", "own") if getattr(sizes_of(CASES[name]), slot)]
    for slot in [None, *slots]:
        def smaller(step, machine, slot=slot):
            sizes = scratch_of(step, machine)
            return sizes._replace(**{slot: max(0, getattr(sizes, slot) - 2 * ALIGNMENT)}) if slot else sizes
        monkeypatch.setattr(driver, "scratch_of", smaller)
        module, program = planned(CASES[name])
        exe = find("cpu").executable(program, module, hloc.Options())
        assert bool(allocated(exe, arrays)) == bool(slot), slot
        results = exe(*arrays)
        expected = expected or results
        assert all(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc") for a, b in zip(results, expected))


def sizes_of(text: str) -> Scratch:
    _, program = planned(text)
    return scratch_of(next(k for k in program.kernels if isinstance(k, Tile)), Machine.host())


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="SciPy is not installed: LAPACK is not called")
@pytest.mark.parametrize("text", [
    'a = (f32[5,40,30], f32[5,30]) custom-call(x), custom_call_target="lapack_sgeqrf_ffi", '
    'api_version=API_VERSION_TYPED_FFI',
    'a = (f32[5,40,30], f32[5,30], f32[5,40,40], f32[5,30,30], s32[5]) custom-call(x), '
    'custom_call_target="lapack_sgesdd_ffi", api_version=API_VERSION_TYPED_FFI, backend_config={mode = 65 : ui8}',
], ids=["qr", "svd"])
def test_lapack_allocates_nothing(text):
    text = f"HloModule m\nENTRY e {{ x = f32[5,40,30] parameter(0)\n {text}\n" \
           " ROOT r = f32[5,40,30] get-tuple-element(a), index=0 }"
    module, program = planned(text)
    call = next(s for s in all_steps(program.steps) if isinstance(s, HostCall))
    assert call.scratch is not None and call.scratch.size > 4 * 40 * 30
    exe = find("cpu").executable(program, module, hloc.Options())
    assert allocated(exe, sensible_arrays(hloc.load(text))) == 0


def test_scratch_lies_where_nothing_else_lives():
    """The second product's scratch shares memory with what died before it."""
    text = """HloModule m
ENTRY e {
  x = f32[500,600] parameter(0)
  y = f32[600,700] parameter(1)
  z = f32[700,500] parameter(2)
  a = f32[500,700] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[500,500] dot(a, z), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT c = f32[500,700] dot(b, z), lhs_contracting_dims={1}, rhs_contracting_dims={1}
}"""
    _, program = planned(text)
    steps = [s for s in program.steps if isinstance(s, Launch) and s.scratch]
    assert len(steps) == 3
    for step in steps:
        used = [r for r in (*step.arguments, step.scratch) if r.region == "arena"]
        spans = sorted((r.offset, r.offset + r.size) for r in used)
        assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:]))
    assert program.arena_size < sum(s.scratch.size for s in steps) + 4 * (500 * 700 + 500 * 500)
