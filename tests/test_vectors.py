"""Vectors of the loop IR: their types and text, and that compiled C does what the interpreter says, for all instruction
rows and for operations on lanes, with NaN, infinities, denormal numbers, ties and the largest integers."""
from __future__ import annotations

import ctypes

import numpy as np
import pytest
from kernel_harness import compare
from native import FLAGS, build

from hloc.errors import ParseError, Source
from hloc.ir import ELEMENT_TYPES, numpy_dtype
from hloc.kernels.ir import INDEX, Apply, Buffer, Const, Kernel, Let, Load, Store, Var
from hloc.kernels.text import print_loops, read_loops
from hloc.kernels.text.interpreter import InterpretationError, interpret
from hloc.kernels.vectors import bytes_of, element_of, is_vector, lanes_of, vector
from hloc.kernels.verify import verify_kernel
from hloc.targets.printer import C, StatementPrinter, print_kernel
from hloc.targets.vectors import INSTRUCTIONS, vector_definitions

# Every statement on vectors, and both ways to name a type.
TEXT = """kernel k(x: f32[40] read, p: pred[40] read, y: f32[16] write, z: f32[1] write, q: pred[16] write) {
  let a = x[3]:f32x16
  let b = splat:f32x16(f32(2.0))
  let m = a < b
  let c = select(m, a + b, b)
  let d = shuffle:f32x8(c, c; 8, 9, 10, 11, 12, 13, 14, 15)
  let f = convert:mask32x16(p[1]:predx16)
  let g = and(f, not(m))
  var s = convert:f32x16(series:s32x16(3; 2))
  s = s * c
  y[0] = select(g, c, s)
  z[0] = lane(d; 3)
  q[0] = convert:predx16(g)
}
"""
ORDINARY = [0.0, -0.0, 1.5, -2.5, 1e-40, -1e-40, np.inf, -np.inf, np.nan, 3.4e38, 65504.0, 1.0039062, 2.5, -1e-30]
UNARY = ("exp", "tanh", "negate", "abs", "sqrt", "log", "sin")
FLOATS = ("add", "subtract", "multiply", "divide", "maximum")
INTEGERS = ("add", "subtract", "multiply", "and", "xor", "shift_left", "shift_right_logical", "shift_right_arithmetic")
BINARY = ("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "compare_lt", "compare_eq")


def test_types():
    assert vector("f32", 16) == "f32x16" and vector("f32", 1) == "f32" and vector("mask32", 1) == "pred"
    assert [lanes_of(t) for t in ("f32x16", "mask64x8", "f32", "index", "s8x1", "c64x2", "s4x8")] == [16, 8, 1, 1, 1, 1, 1]
    assert element_of("predx32") == "pred" and bytes_of("mask16x8") == 16 and bytes_of("f64") == 8
    assert not is_vector("index") and is_vector("bf16x2")


def test_text_reads_back_and_runs():
    kernel, = read_loops(Source(TEXT))
    assert print_loops([kernel]) == TEXT
    random = np.random.default_rng(0)
    x, p = random.standard_normal(40).astype(np.float32), random.random(40) < .5
    arrays = {"x": x, "p": p, "y": np.zeros(16, np.float32), "z": np.zeros(1, np.float32), "q": np.zeros(16, bool)}
    interpret(kernel, arrays)
    a, taken = x[3:19], x[3:19] < 2
    c = np.where(taken, a + 2, np.float32(2))
    chosen = p[1:17] & ~taken
    np.testing.assert_array_equal(arrays["y"], np.where(chosen, c, np.arange(3, 35, 2, np.float32) * c))
    np.testing.assert_array_equal(arrays["q"], chosen)
    assert arrays["z"][0] == c[11]


@pytest.mark.parametrize("line, message", [
    ("let a = x[3]:f64x4", "wrong element type"), ("let a = x[3]:f32x4 + x[3]:f32x8", "no such operation on vectors"),
    ("let a = splat:f32x4(s32(1))", "no such operation on vectors"), ("let a = lane(x[0]:f32x4; 4)", "no such operation"),
    ("let a = shuffle:f32x2(x[0]:f32x2, x[0]:f32x2; 0, 4)", "no such operation on vectors"),
    ("let a = select(x[0]:f32x4 < x[4]:f32x4, x[0]:f32x8, x[0]:f32x8)", "no such operation on vectors"),
    ("let a = x[3]:c64x2", "not an element type"), ("y[0] = x[3]:s32x4", "wrong element type"),
], ids=str)
def test_what_is_no_operation_is_refused(line, message):
    with pytest.raises(ParseError, match=message):
        read_loops(Source(f"kernel k(x: f32[40] read, y: f32[16] write) {{ {line} }}"))


def test_a_vector_beyond_the_end_of_an_array():
    kernel, = read_loops(Source("kernel k(x: f32[6] read, y: f32[4] write) { y[0] = x[3]:f32x4 }"))
    with pytest.raises(InterpretationError, match=r"x\[6\], which has 6 elements"):
        interpret(kernel, {"x": np.zeros(6, np.float32), "y": np.zeros(4, np.float32)})


# -- compiled ----------------------------------------------------------------------------------------------------------

def values(type: str, lanes: int, seed: int) -> np.ndarray:
    """Numbers where operations differ, in a random order; ints: the ends of their range too."""
    random, facts = np.random.default_rng(seed), ELEMENT_TYPES[type]
    if facts.kind == "float":
        with np.errstate(over="ignore"):
            return random.choice(ORDINARY, lanes).astype(numpy_dtype(type))
    limits = np.iinfo(facts.dtype)
    return random.choice(np.array([0, 1, 7, 100, limits.min, limits.max], facts.dtype), lanes)


def kernel_of(name: str, op: str, types: tuple[str, ...], result: str) -> Kernel:
    """out = op(in0, in1), masks as preds."""
    buffers = [Buffer(f"in{n}", element_of(t), 4 * lanes_of(t)) for n, t in enumerate(types)]
    arguments = tuple(Load(b.name, Const(1, INDEX), t) for b, t in zip(buffers, types))
    value, stored = Apply(op, arguments, result), element_of(result)
    if stored.startswith("mask"):
        value, stored = Apply("convert", (Var("m", result),), vector("pred", lanes_of(result))), "pred"
    body = [Store("out", Const(0, INDEX), value)]
    if stored == "pred" and result != value.type:
        body = [Let("m", Apply(op, arguments, result)), *body]
    return Kernel(name, (*buffers, Buffer("out", stored, lanes_of(result), "write")), tuple(body))


def with_a_scalar(name: str, op: str, type: str, scalar: float) -> Kernel:
    """out = op(in0, scalar) and op(scalar, in0), but for shifts, whose second argument is the scalar."""
    kernel = kernel_of(name, op, (type, type), type)
    splat = Apply("splat", (Const(scalar, element_of(type)),), type)
    given, (store,) = Load("in0", Const(1, INDEX), type), kernel.body
    stores = [store._replace(position=Const(n * lanes_of(type), INDEX), value=Apply(op, arguments, type))
              for n, arguments in enumerate(((given, splat), (splat, given))[:1 if "shift" in op else 2])]
    out = kernel.buffers[-1]._replace(size=len(stores) * lanes_of(type))
    return kernel._replace(buffers=(kernel.buffers[0], out), body=tuple(stores))


def cases() -> list[Kernel]:
    """Each row of the table, then operations that are operators of C, or made of scalar functions."""
    found = [(op, (source,) if op.startswith("convert") else (source, source), result) for op, source, result in INSTRUCTIONS]
    for element, lanes in (("f32", 16), ("f32", 4), ("f64", 8), ("f64", 2)):
        type = vector(element, lanes)
        found += [(op, (type,), type) for op in UNARY]
        found += [(op, (type, type), f"mask{ELEMENT_TYPES[element].bits}x{lanes}" if "compare" in op else type)
                  for op in BINARY]
    for element, lanes in (("s8", 16), ("u8", 32), ("s16", 8), ("s32", 16), ("s64", 4), ("u64", 8)):
        type = vector(element, lanes)
        found += [(op, (type, type), type) for op in (
            "add", "subtract", "multiply", "maximum", "minimum", "and", "or", "xor", "shift_left", "shift_right_logical",
            "shift_right_arithmetic")]
        found += [(op, (type,), type) for op in ("negate", "not")]
        found += [("compare_lt", (type, type), f"mask{ELEMENT_TYPES[element].bits}x{lanes}")]
    found += [("convert", (vector(a, 8),), vector(b, 8)) for a, b in (
        ("f32", "bf16"), ("bf16", "f32"), ("f32", "f16"), ("f16", "f32"), ("f32", "s32"), ("s32", "f32"), ("f64", "f32"),
        ("s64", "f64"), ("s32", "s8"), ("f32", "s8"))]
    scalars = [(op, vector(element, lanes), scalar) for element, lanes, ops in (
        ("s8", 16, INTEGERS), ("u16", 8, INTEGERS), ("s32", 16, INTEGERS), ("u64", 8, INTEGERS), ("f32", 16, FLOATS))
        for op in ops for scalar in ((3, 100) if element != "f32" else (-0.0, 2.5))]
    return [kernel_of(f"k{n}", *case) for n, case in enumerate(found)] + [
        with_a_scalar(f"s{n}", *case) for n, case in enumerate(scalars)]


@pytest.mark.parametrize("flags", [FLAGS, [f for f in FLAGS if "march" not in f]], ids=["this CPU", "the oldest x86-64"])
def test_compiled_c_does_what_the_interpreter_says(tmp_path, flags):
    kernels, texts = cases(), ['#include "scalar.h"']
    for kernel in kernels:
        verify_kernel(kernel)
        texts += [*vector_definitions(kernel.body, StatementPrinter(C)), print_kernel(kernel, kernel.name)]
    library = build("\n".join(texts), tmp_path, [*flags, "-Wno-psabi", "-Wno-missing-prototypes"])
    for kernel in kernels:
        for seed in range(6):
            arrays = {b.name: values(b.type, b.size, 10 * seed + n) if b.access == "read" else
                      np.zeros(b.size, numpy_dtype(b.type)) for n, b in enumerate(kernel.buffers)}
            expected = {name: a.copy() for name, a in arrays.items()}
            interpret(kernel, expected)
            pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays.values()))
            getattr(library, kernel.name)(pointers, ctypes.c_long(0), ctypes.c_long(1))
            compare(print_loops([kernel]), arrays["out"], expected["out"])


def test_a_wrong_row_is_found(tmp_path):
    """A widening that takes the sign of an unsigned number."""
    kernel = kernel_of("k", "convert", ("u8x16",), "u16x16")
    wrong = [d.replace("pmovzx", "pmovsx").replace("hloc_convert_u8_u16(a[k])", "(hloc_u16)(hloc_s8)a[k]")
             for d in vector_definitions(kernel.body, StatementPrinter(C))]
    library = build("\n".join(['#include "scalar.h"', *wrong, print_kernel(kernel, "k")]), tmp_path,
                    [*FLAGS, "-Wno-psabi"])
    given, out = np.full(64, 200, np.uint8), np.zeros(16, np.uint16)
    library.k((ctypes.c_void_p * 2)(given.ctypes.data, out.ctypes.data), ctypes.c_long(0), ctypes.c_long(1))
    assert (out != 200).all()
