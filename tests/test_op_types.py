"""Each op on each element type: the verifier refuses it, with its place, or the evaluator and the CPU run it."""
from __future__ import annotations

import numpy as np
import pytest
from combined import combined
from op_types import CALLS, TYPES, forms, module_of
from product_types import numbers

import hloc
from hloc.errors import VerifyError
from hloc.inputs import entry_results
from hloc.ir import numpy_dtype
from hloc.ops.table import OPS
from hloc.tools.compare import compare

TRIED = [op for op in OPS.values() if (op.scalar is not None and op.opcode != "convert") or op.opcode in CALLS]


def modules_of(element_type: str) -> tuple[list[str], list[str]]:
    """Texts of the ops that the verifier lets pass for a type, and what it says of the others."""
    passed, refused = [], []
    for op in TRIED:
        for attributes in forms(op):
            text = module_of(op, element_type, attributes)
            try:
                hloc.load(text)
            except VerifyError as error:
                assert error.span is not None, str(error)
                refused.append(f"{op.opcode} {attributes}".strip())
            else:
                passed.append(text)
    return passed, refused


def inputs(element_type: str) -> list[np.ndarray]:
    return [numbers(element_type, 8), numbers(element_type, 8)[::-1].copy(), numbers(element_type, 1).reshape(())]


def test_all_elementwise_ops_are_tried():
    assert len(TRIED) > 60 and set(CALLS) <= set(OPS)


@pytest.mark.parametrize("element_type", TYPES)
def test_runs_or_is_refused(element_type):
    passed, refused = modules_of(element_type)
    assert len(passed) > 25 and len(refused) > 3
    modules = [hloc.load(text) for text in passed]
    expected = [hloc.compile(m, "reference")(*inputs(element_type))[0] for m in modules]
    exe = hloc.compile(combined(modules), "cpu")
    results = exe(*inputs(element_type) * len(modules))
    differ = [(str(m.entry.root), d.note, d.got, d.want) for m, r, e in zip(modules, results, expected, strict=True)
              for d in compare(entry_results(m), [r], [e]) if not d.agrees]
    assert differ == []


ORDER = ["maximum", "minimum", "clamp", "remainder", *(f"compare direction={d}" for d in ("LT", "LE", "GT", "GE"))]


@pytest.mark.parametrize("element_type, some", [
    ("c64", ORDER), ("c128", ORDER), ("pred", ["subtract", "negate", "sine", "shift-left", "mulhi", "sign"]),
    ("u8", ["abs", "sign", "floor", "tanh", "is-finite"]), ("s4", ["sqrt", "reduce-precision exponent_bits=5, mantissa_bits=3", "complex"]),
    ("bf16", ["and", "not", "popcnt", "shift-left", "mulhi", "complex"]), ("f8e8m0fnu", ["xor", "count-leading-zeros"]),
])
def test_is_refused(element_type, some):
    refused = modules_of(element_type)[1]
    assert [name for name in some if name not in refused] == []


POWERS = """HloModule powers
smaller { a = f8e8m0fnu[] parameter(0)  b = f8e8m0fnu[] parameter(1)  ROOT r = f8e8m0fnu[] minimum(a, b) }
ENTRY e {
  x = f8e8m0fnu[256] parameter(0)
  z = f8e8m0fnu[] parameter(1)
  big = f32[256,1] parameter(2)
  zs = f8e8m0fnu[256] broadcast(z), dimensions={}
  p = pred[256] convert(x)
  w = f64[256] convert(x)
  f = f32[256] convert(x)
  back = f8e8m0fnu[256] convert(f)
  h = bf16[256] convert(x)
  s = f8e8m0fnu[256] sign(x)
  a = f8e8m0fnu[256] abs(x)
  q = f8e8m0fnu[256] sqrt(x)
  m = f8e8m0fnu[256] multiply(x, zs)
  d = f8e8m0fnu[256] divide(x, zs)
  c = pred[256] compare(x, zs), direction=LT
  t = pred[256] compare(x, zs), direction=LE, type=TOTALORDER
  few = f8e8m0fnu[9] slice(x), slice={[0:9]}
  r = f8e8m0fnu[] reduce(few, z), dimensions={0}, to_apply=smaller
  row = f8e8m0fnu[1,9] reshape(few)
  bigs = f32[9,1] slice(big), slice={[0:9], [0:1]}
  v = f32[1,1] dot(row, bigs), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT all = (pred[256], f64[256], f32[256], f8e8m0fnu[256], bf16[256], f8e8m0fnu[256], f8e8m0fnu[256], f8e8m0fnu[256], f8e8m0fnu[256], f8e8m0fnu[256], pred[256], pred[256], f8e8m0fnu[], f32[1,1]) tuple(p, w, f, back, h, s, a, q, m, d, c, t, r, v)
}"""


def test_the_smallest_power_of_two_is_not_zero():
    """f8e8m0fnu begins at 2^-127, which is subnormal in f32: every code, by all that can be done with it."""
    codes = np.arange(256, dtype=np.uint8).view(numpy_dtype("f8e8m0fnu"))
    arrays = [codes, codes[127], np.full((256, 1), 2.0 ** 100, np.float32)]
    expected = hloc.compile(POWERS, "reference")(*arrays)
    assert expected[0].all() and expected[3].tobytes() == codes.tobytes() and float(expected[12]) == 2.0 ** -127
    assert float(expected[13][0, 0]) > 2.0 ** -20
    for got, want in zip(hloc.compile(POWERS, "cpu")(*arrays), expected, strict=True):
        np.testing.assert_array_equal(got.astype("f8"), want.astype("f8"))
