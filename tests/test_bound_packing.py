"""Bound arrays on a CPU: the first call packs them for matmuls and convolutions, and computes what depends on nothing else;
results stay the same, bit for bit."""
import pickle

import numpy as np
import pytest

import hloc
from hloc.api import optimized_plan
from hloc.inputs.sensible import sensible_arrays
from hloc.kernels.ir import Tile
from hloc.kernels.plan import Launch, all_steps
from hloc.targets import find


def dot(type: str, m: int, k: int, n: int, *, batches: int = 0, turned: bool = False, then: str = "") -> str:
    """x w, with w as [k,n] or, turned, as [n,k]; then: an instruction on %d, of its type and shape."""
    b = f"{batches}," if batches else ""
    w, contracted, d = (f"{n},{k}", 1, 1) if turned else (f"{k},{n}", 0, 1 if batches else 0)
    over = "lhs_batch_dims={0}, rhs_batch_dims={0}, " if batches else ""
    root = f"  d = {type}[{b}{m},{n}] " if then else f"  ROOT d = {type}[{b}{m},{n}] "
    dims = f"{over}lhs_contracting_dims={{{1 + bool(batches)}}}, rhs_contracting_dims={{{contracted + bool(batches)}}}"
    return (f"HloModule m\nENTRY e {{\n  x = {type}[{b}{m},{k}] parameter(0)\n  w = {type}[{b}{w}] parameter(1)\n"
            f"{root}dot(x, w), {dims}\n" + (f"  ROOT y = {type}[{b}{m},{n}] {then}\n" if then else "") + "}\n")


def convolution(type: str, n: int, size: int, features: int, window: int, out: int, stride: int = 1,
                labels: str = "b01f_01io->b01f") -> str:
    pad, channels_last = window // 2, labels.startswith("b01f")
    made = (size + 2 * pad - window) // stride + 1
    x, w, y = ((f"{n},{s},{s},{f}" if channels_last else f"{n},{f},{s},{s}") for s, f in
               ((size, features), (window, features), (made, out)))
    w = f"{window},{window},{features},{out}" if channels_last else f"{out},{features},{window},{window}"
    return (f"HloModule m\nENTRY e {{\n  x = {type}[{x}] parameter(0)\n  w = {type}[{w}] parameter(1)\n"
            f"  ROOT y = {type}[{y}] convolution(x, w), window={{size={window}x{window} stride={stride}x{stride} "
            f"pad={pad}_{pad}x{pad}_{pad}}}, dim_labels={labels}\n}}\n")


NCHW = "bf01_oi01->bf01"
PACKED = {
    "f32": dot("f32", 128, 300, 200), "f32 turned": dot("f32", 128, 1024, 200, turned=True),
    "few rows": dot("f32", 8, 1024, 4096), "seventeen rows": dot("f32", 17, 500, 700, turned=True),
    "long sums": dot("f32", 60, 8192, 64), "odd": dot("f32", 131, 77, 45, turned=True),
    "many rows": dot("f32", 700, 128, 130), "f64": dot("f64", 90, 200, 130, turned=True),
    "bf16": dot("bf16", 64, 333, 96), "f16": dot("f16", 64, 128, 100, turned=True),
    "s8": dot("s8", 64, 130, 100), "s8 long": dot("s8", 20, 4100, 64, turned=True), "s32": dot("s32", 70, 64, 300, turned=True),
    "batches": dot("f32", 33, 128, 65, batches=3, turned=True),
    "epilogue": dot("f32", 128, 256, 200, then="maximum(d, d)"), "tanh": dot("bf16", 96, 256, 64, turned=True, then="tanh(d)"),
    "window": convolution("f32", 1, 28, 64, 3, 64), "window few": convolution("f32", 1, 14, 64, 3, 512),
    "window first": convolution("f32", 2, 30, 3, 7, 64, 2), "window strided": convolution("f32", 2, 29, 32, 3, 48, 2),
    "pointwise": convolution("f32", 1, 28, 64, 1, 256), "planes": convolution("f32", 2, 20, 64, 5, 40, labels=NCHW),
    "planes 3x3": convolution("f32", 1, 28, 64, 3, 64, labels=NCHW), "f16 window": convolution("f16", 2, 28, 64, 3, 48, labels=NCHW),
    "bf16 window": convolution("bf16", 4, 28, 64, 3, 48, labels=NCHW),
}
IN_PLACE = {"one row": dot("f32", 1, 1024, 512), "small": dot("f32", 12, 64, 64), "complex": dot("c64", 64, 64, 64)}
TURNED_BEFORE = """HloModule m
ENTRY e {
  x = f32[64,256] parameter(0)
  w = bf16[2,128,256] parameter(1)
  b = f32[256] parameter(2)
  c = f32[2,128,256] convert(w)
  t = f32[256,2,128] transpose(c), dimensions={2,0,1}
  r = f32[256,256] reshape(t)
  s = f32[256,256] tanh(r)
  d = f32[64,256] dot(x, s), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f32[64,256] broadcast(b), dimensions={1}
  ROOT y = f32[64,256] add(d, e)
}
"""
LOOP = """HloModule m
body {
  p = (s32[], f32[64,256], f32[256,256]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[64,256] get-tuple-element(p), index=1
  w = f32[256,256] get-tuple-element(p), index=2
  d = f32[64,256] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  t = f32[64,256] tanh(d)
  one = s32[] constant(1)
  n = s32[] add(i, one)
  ROOT r = (s32[], f32[64,256], f32[256,256]) tuple(n, t, w)
}
condition {
  p = (s32[], f32[64,256], f32[256,256]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[64,256] parameter(0)
  w = f32[256,256] parameter(1)
  zero = s32[] constant(0)
  t = (s32[], f32[64,256], f32[256,256]) tuple(zero, x, w)
  l = (s32[], f32[64,256], f32[256,256]) while(t), condition=condition, body=body
  ROOT y = f32[64,256] get-tuple-element(l), index=1
}
"""


def bits(results) -> list[bytes]:
    return [np.ascontiguousarray(r).tobytes() for r in results]


def held(exe) -> tuple[int, ...]:
    """Bytes of what the first call made for later ones."""
    return exe.backend.backend.program.held


def both(text: str, bound: tuple[int, ...] = (1,)):
    """An executable, one with bound arrays, and arrays for the first."""
    exe = hloc.compile(text, "cpu")
    arrays = sensible_arrays(hloc.load(text))
    return exe, exe.bind({n: arrays[n] for n in bound}), arrays


@pytest.mark.parametrize("name", PACKED)
def test_packed_once(name):
    exe, bound, arrays = both(PACKED[name])
    expected = bits(exe(*arrays))
    unplanned = bound.backend.backend.shared_object.hloc_unplanned
    before = unplanned()
    assert bits(bound(arrays[0])) == expected
    assert sum(held(bound)) >= arrays[1].nbytes
    kept = arrays[1].copy()
    arrays[1][:] = 0                                            # what was packed is read, and no more the array
    assert bits(bound(arrays[0])) == expected != bits(exe(*arrays))
    assert unplanned() == before
    assert bits(exe(arrays[0], kept)) == expected


@pytest.mark.parametrize("name", IN_PLACE)
def test_read_where_they_lie(name):
    exe, bound, arrays = both(IN_PLACE[name])
    assert held(bound) == () and bits(bound(arrays[0])) == bits(exe(*arrays))


def test_what_follows_from_bound_arrays_is_computed_once():
    exe, bound, arrays = both(TURNED_BEFORE)
    expected = bits(exe(*arrays))
    assert bits(bound(arrays[0], arrays[2])) == expected == bits(bound(arrays[0], arrays[2]))
    _, program = optimized_plan(hloc.load(TURNED_BEFORE), find("cpu"), hloc.Options(bound=frozenset({1})))
    _, unbound = optimized_plan(hloc.load(TURNED_BEFORE), find("cpu"))
    assert len(program.steps) < len(unbound.steps) and not unbound.setup and not unbound.held
    read = {ref.region for s in all_steps(program.steps) for ref in s.arguments if ref.region == "parameter" and ref.index == 1}
    assert not read and program.peak >= sum(program.held)
    assert any(isinstance(s, Launch) and isinstance(program.kernels[s.kernel], Tile) for s in program.setup)


def test_loops_read_what_is_packed():
    exe, bound, arrays = both(LOOP)
    assert bits(bound(arrays[0])) == bits(exe(*arrays))
    assert sum(held(bound)) >= arrays[1].nbytes


def test_all_arguments_bound():
    exe, bound, arrays = both(TURNED_BEFORE, (0, 1, 2))
    assert bits(bound()) == bits(exe(*arrays)) == bits(bound())


def test_bound_twice_pickled_and_recalled():
    exe, bound, arrays = both(TURNED_BEFORE)
    expected = bits(exe(*arrays))
    again = bound.bind([arrays[0]])                              # the first of what is left
    assert [p.name for p in again.parameters] == ["b"] and bits(again(arrays[2])) == expected
    assert bits(pickle.loads(pickle.dumps(again))(arrays[2])) == expected
    other = exe.bind({1: -arrays[1]})                            # the same program from the cache, other arrays
    assert bits(other(arrays[0], arrays[2])) == bits(exe(arrays[0], -arrays[1], arrays[2])) != expected
    assert bits(bound(arrays[0], arrays[2])) == expected


def test_a_bound_program_is_profiled():
    exe = hloc.compile(TURNED_BEFORE, "cpu", options=hloc.Options(profile=True))
    arrays = sensible_arrays(hloc.load(TURNED_BEFORE))
    bound = exe.bind({1: arrays[1]})
    exe(*arrays), bound(arrays[0], arrays[2])
    assert {s.runs for s in bound.profile()} == {1} and len(exe.profile()) > 1


def test_dynamic_sizes_bind_without_packing():
    text = """HloModule m
ENTRY e {
  x = f32[<=64,256] parameter(0)
  w = f32[256,256] parameter(1)
  ROOT d = f32[<=64,256] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    exe = hloc.compile(text, "cpu")
    x, w = np.ones((40, 256), np.float32), np.full((256, 256), 2, np.float32)
    assert bits(exe.bind({1: w})(x)) == bits(exe(x, w))
