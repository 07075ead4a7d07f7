"""The C headers of hloc/targets/c against NumPy and ml_dtypes: accuracy, special values, every narrow bit pattern."""
import shutil
import subprocess

import ml_dtypes
import numpy as np
import pytest
from native import INCLUDE, build, pointer

from hloc.targets.cpu.building import toolchain

special = pytest.importorskip("scipy.special", reason="SciPy is not installed")

INTS = {"s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64,
        "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64}
TYPES = {"pred": np.uint8, **INTS, "f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128}
NARROW = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f8e3m4": ml_dtypes.float8_e3m4,
          "f8e4m3": ml_dtypes.float8_e4m3, "f8e4m3fn": ml_dtypes.float8_e4m3fn,
          "f8e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "f8e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
          "f8e5m2": ml_dtypes.float8_e5m2, "f8e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
          "f8e8m0fnu": ml_dtypes.float8_e8m0fnu, "f4e2m1fn": ml_dtypes.float4_e2m1fn,
          "f6e2m3fn": ml_dtypes.float6_e2m3fn, "f6e3m2fn": ml_dtypes.float6_e3m2fn}
# opcode -> (reference, largest error in units in the last place)
FLOAT1 = {"exp": (np.exp, 1.2), "expm1": (np.expm1, 1.7), "log": (np.log, 1.0), "log1p": (np.log1p, 1.6),
          "logistic": (special.expit, 2.4), "tanh": (np.tanh, 2.4), "sin": (np.sin, 1.6), "cos": (np.cos, 1.6),
          "tan": (np.tan, 0.6), "erf": (special.erf, 1.6), "sqrt": (np.sqrt, 0.51), "cbrt": (np.cbrt, 0.6),
          "rsqrt": (lambda x: 1 / np.sqrt(x), 1.6), "floor": (np.floor, 0), "ceil": (np.ceil, 0),
          "round_nearest_even": (np.rint, 0), "atan": (np.arctan, 1.6), "asin": (np.arcsin, 2.4),
          "acos": (np.arccos, 1.6), "sinh": (np.sinh, 2.4), "cosh": (np.cosh, 2.4), "asinh": (np.arcsinh, 2.4),
          "acosh": (np.arccosh, 2.4), "atanh": (np.arctanh, 2.4), "abs": (np.abs, 0), "negate": (np.negative, 0),
          "sign": (lambda x: np.where(x == 0, x, np.sign(x)), 0),
          "round_nearest_afz": (lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x), 0)}
FLOAT2 = {"power": (np.power, 0.6), "atan2": (np.arctan2, 1.6), "remainder": (np.fmod, 0), "divide": (np.divide, 0.51),
          "maximum": (np.maximum, 0), "minimum": (np.minimum, 0)}
COMPLEX1 = {"exp": np.exp, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh, "sin": np.sin, "cos": np.cos,
            "tan": np.tan, "expm1": np.expm1, "log1p": np.log1p, "negate": np.negative, "sign": np.sign,
            "rsqrt": lambda z: 1 / np.sqrt(z), "logistic": lambda z: 1 / (1 + np.exp(-z)), "sinh": np.sinh,
            "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "asinh": np.arcsinh, "acosh": np.arccosh,
            "atanh": np.arctanh}
COMPLEX2 = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "power": np.power}
NEAR64 = {"sin_near": np.sin, "cos_near": np.cos, "tan_near": np.tan}
COMPLEX_NEAR = {"exp": 1, "expm1": 1, "logistic": 1, "sinh": 1, "cosh": 1, "sin": 1, "cos": 1, "tan": 1, "tanh": 1, "power": 2}
COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
           "ge": np.greater_equal}
INT1 = ["abs", "negate", "sign", "not", "popcnt", "count_leading_zeros"]
INT2 = ["add", "subtract", "multiply", "divide", "remainder", "power", "maximum", "minimum", "and", "or", "xor",
        "shift_left", "shift_right_arithmetic", "shift_right_logical"]


def loop1(name, call, a, r):
    return (f"void {name}(const {a}* x, {r}* restrict y, long n) "
            f"{{ for (long i = 0; i < n; i++) y[i] = {call}(x[i]); }}\n")


def loop2(name, call, a, r):
    return (f"void {name}(const {a}* x, const {a}* z, {r}* restrict y, long n) "
            f"{{ for (long i = 0; i < n; i++) y[i] = {call}(x[i], z[i]); }}\n")


def all_functions():
    """(C function name, number of operands, operand type, result type) of what the tests below call."""
    for t in ("f32", "f64"):
        yield from ((f"{op}_{t}", 1, t, t) for op in FLOAT1)
        yield from ((f"{op}_{t}", 2, t, t) for op in FLOAT2)
        yield from ((f"compare_{c}_total_{t}", 2, t, "pred") for c in COMPARE)
        yield f"is_finite_{t}", 1, t, "pred"
    for t in TYPES:
        yield from ((f"convert_{t}_{u}", 1, t, u) for u in TYPES)
        if t[0] != "c":
            yield from ((f"compare_{c}_{t}", 2, t, "pred") for c in COMPARE)
    for t in INTS:
        yield from ((f"{op}_{t}", 1, t, t) for op in INT1)
        yield from ((f"{op}_{t}", 2, t, t) for op in INT2)
    yield from ((f"mulhi_{t}", 2, t, t) for t in ("s64", "u64"))
    for t in ("c64", "c128"):
        yield from ((f"{op}_{t}", 1, t, t) for op in COMPLEX1)
        yield from ((f"{op}_{t}", 2, t, t) for op in COMPLEX2)
    for t in NARROW:
        yield f"{t}_to_f32", 1, t, "f32"
        yield f"f32_to_{t}", 1, "f32", t
        yield f"round_{t}_f32", 1, "f32", "f32"


def of_cpus():
    """The same of functions that CUDA has not."""
    yield from ((f"{op}_f64", 1, "f64", "f64") for op in NEAR64)
    for t in ("c64", "c128"):
        for op, operands in COMPLEX_NEAR.items():
            yield f"{op}_near_{t}", operands, t, t
            yield f"{op}_is_near_{t}", operands, t, "pred"


EXTRA = """
void reduce_precision(const float* x, float* y, long n, int e, int m) {
  for (long i = 0; i < n; i++) y[i] = hloc_reduce_precision_f32(x[i], e, m);
}
void once(const double* x, hloc_f16* y, long n) {
  for (long i = 0; i < n; i++) y[i] = hloc_f32_to_f16(hloc_f64_to_f32_odd(x[i]));
}
void stochastic(const float* x, const hloc_u32* random, hloc_s8* y, long n) {
  for (long i = 0; i < n; i++) y[i] = hloc_stochastic_convert_f32_s8(x[i], random[i]);
}
void random_blocks(hloc_u32* out) { hloc_threefry2x32(0, 0, 0, 0, out); hloc_philox4x32(0, 0, 0, 0, 0, 0, out + 2); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    source = '#include "scalar.h"\n' + EXTRA
    for name, operands, a, r in [*all_functions(), *of_cpus()]:
        source += (loop1, loop2)[operands - 1](name, f"hloc_{name}", f"hloc_{a}", f"hloc_{r}")
    flags = ["-O1", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
    return build(source, tmp_path_factory.mktemp("scalar"), flags)


def call(library, name, result_type, *operands):
    operands = [np.ascontiguousarray(x) for x in operands]
    y = np.empty(operands[0].size, result_type)
    getattr(library, name)(*map(pointer, operands), pointer(y), y.size)
    return y


def floats(dtype, seed=0):
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2**64, 20000, dtype=np.uint64)
    patterns = (bits >> 32).astype(np.uint32).view(np.float32) if dtype == np.float32 else bits.view(np.float64)
    special_values = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 1.5, 2.5, 88.72, -103.9, 710, -745, 3e38]
    with np.errstate(all="ignore"):
        return np.concatenate([patterns, rng.normal(size=20000) * 3, special_values]).astype(dtype)


def ulp_error(got, want):
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        both = np.isfinite(rounded) & np.isfinite(got)
        same = (rounded == got) | (np.isnan(rounded) & np.isnan(got))
        unit = np.maximum(np.spacing(np.abs(rounded)), np.finfo(got.dtype).smallest_subnormal).astype(want.dtype)
        return np.where(both, np.abs(got.astype(want.dtype) - want) / unit, np.where(same, 0, np.inf))


@pytest.mark.parametrize("op", FLOAT1)
def test_float_functions(library, op):
    reference, limit = FLOAT1[op]
    with np.errstate(all="ignore"):
        x = floats(np.float32)
        got, want = call(library, f"{op}_f32", np.float32, x), np.asarray(reference(x.astype(np.float64)))
        assert ulp_error(got, want).max() <= limit
        zero = np.array([0.0, -0.0], np.float32)
        got, want = call(library, f"{op}_f32", np.float32, zero), reference(zero)
        assert ((np.signbit(got) == np.signbit(want)) | np.isnan(want)).all()
        x = floats(np.float64)
        x = x[np.abs(x) < 1e5] if op in ("sin", "cos", "tan") else x
        if op == "round_nearest_afz":
            x = x[np.abs(x) != 0.49999999999999994]
        got, want = call(library, f"{op}_f64", np.float64, x), np.asarray(reference(x))
        assert ulp_error(got, want).max() <= limit + 3


@pytest.mark.parametrize("op", NEAR64)
def test_angles_of_f64_below_2_to_30(library, op):
    rng, turns = np.random.default_rng(4), np.arange(1, 700_000_000, 70_001) * (np.pi / 2)
    x = np.concatenate([rng.normal(size=20000) * 3, rng.uniform(-(2.0**30), 2.0**30, 20000), turns, [1e-300, 0.0, -0.0]])
    got, want = call(library, f"{op}_f64", np.float64, x), NEAR64[op](x)
    assert ulp_error(got, want).max() <= 3
    assert (np.signbit(got) == np.signbit(want)).all()


def test_powers_of_f64(library):
    rng = np.random.default_rng(5)
    edges = np.array([0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300, 2.5, -2.5,
                      5e-324, 2.0**53, 2.0**53 + 2, 1e20, -1e21, np.nextafter(1, 0), np.nextafter(1, 2)])
    x = np.concatenate([10 ** rng.uniform(-300, 300, 20000), rng.uniform(0.5, 2, 20000), 1 + rng.normal(size=5000) * 1e-8])
    y = np.concatenate([rng.uniform(-1, 1, 20000), rng.uniform(-1000, 1000, 20000), rng.normal(size=5000) * 1e9])
    x, y = np.concatenate([x, np.repeat(edges, edges.size)]), np.concatenate([y, np.tile(edges, edges.size)])
    with np.errstate(all="ignore"):
        got, want = call(library, "power_f64", np.float64, x, y), np.power(x, y)
    assert ulp_error(got, want).max() <= 1.6
    assert ((np.signbit(got) == np.signbit(want)) | np.isnan(want)).all()


@pytest.mark.parametrize("op", FLOAT2)
def test_float_functions_of_two(library, op):
    reference, limit = FLOAT2[op]
    a, b = floats(np.float32, 1), floats(np.float32, 2)
    edges = a[-16:]
    a, b = np.concatenate([a, np.repeat(edges, 16)]), np.concatenate([b, np.tile(edges, 16)])
    with np.errstate(all="ignore"):
        want = reference(a.astype(np.float64), b.astype(np.float64))
        want = np.where((a == 1) | (b == 0), 1.0, want) if op == "power" else want
    assert ulp_error(call(library, f"{op}_f32", np.float32, a, b), want).max() <= limit


def test_sin_of_large_arguments(library):
    x = np.array([1e10, 1e22, 3.4e38, 16367173 * 2.0**72], np.float32)
    mpmath = pytest.importorskip("mpmath", reason="mpmath is not installed")
    mpmath.mp.dps = 200
    exact = np.array([float(mpmath.sin(mpmath.mpf(float(v)))) for v in x])
    assert ulp_error(call(library, "sin_f32", np.float32, x), exact).max() < 1.6


@pytest.mark.parametrize("t", NARROW)
def test_narrow_types_match_ml_dtypes(library, t):
    dtype = np.dtype(NARROW[t])
    raw = np.uint16 if dtype.itemsize == 2 else np.uint8
    codes = np.arange({"f4": 16, "f6": 64}[t[:2]] if t[:2] in ("f4", "f6") else 2 ** (8 * dtype.itemsize)).astype(raw)
    with np.errstate(all="ignore"):
        want = codes.view(dtype).astype(np.float32)
        got = call(library, f"{t}_to_f32", np.float32, codes)
        assert ((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))).all()
        high = np.arange(2**16, dtype=np.uint32) << 16
        for low in (0, 1, 0x1000, 0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xffff):
            x = (high | np.uint32(low)).view(np.float32)
            got, want = call(library, f"f32_to_{t}", raw, x), x.astype(dtype).view(raw)
            nan = np.isnan(x) & np.isnan(got.view(dtype).astype(np.float32)) if dtype.itemsize == 2 else False
            assert ((got == want) | nan).all()
            assert same_floats(call(library, f"round_{t}_f32", np.float32, x), want.view(dtype).astype(np.float32))


def same_floats(got, want) -> bool:
    """Bit by bit, but that every NaN is as good as another."""
    return bool(((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))).all())


def test_double_is_rounded_once(library):
    half = np.arange(0x7bff, dtype=np.uint16).view(np.float16).astype(np.float64)
    middle = (half[:-1] + half[1:]) / 2
    x = np.concatenate([middle * (1 + d) for d in (-(2.0**-40), 0, 2.0**-40)])
    assert (call(library, "once", np.float16, x) == x.astype(np.float16)).all()


def integers(dtype, seed):
    info, rng = np.iinfo(dtype), np.random.default_rng(seed)
    return np.concatenate([rng.integers(info.min, info.max, 500, dtype=dtype, endpoint=True),
                           rng.integers(0, 12, 300).astype(dtype),
                           np.array([info.min, info.max, 0, 1, info.max, info.min, -1 % 2**8], dtype=np.int64
                                    if info.min else np.uint64).astype(dtype)])


def wrap(value, dtype):
    bits = np.iinfo(dtype).bits
    value &= 2**bits - 1
    return value - 2**bits if np.iinfo(dtype).min < 0 and value >> (bits - 1) else value


def integer_meaning(op, a, b, dtype):
    """Python integers in, the HLO meaning out (before wrapping)."""
    bits = np.iinfo(dtype).bits
    unsigned, shift = a & (2**bits - 1), b & (2**bits - 1)
    quotient = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return {
        "add": lambda: a + b, "subtract": lambda: a - b, "multiply": lambda: a * b,
        "divide": lambda: quotient if b else -1, "remainder": lambda: a - quotient * b if b else a,
        "power": lambda: pow(a, b, 2**bits) if b >= 0 else {1: 1, -1: (-1) ** (b & 1)}.get(a, 0),
        "maximum": lambda: max(a, b), "minimum": lambda: min(a, b),
        "and": lambda: a & b, "or": lambda: a | b, "xor": lambda: a ^ b,
        "shift_left": lambda: a << shift if shift < bits else 0,
        "shift_right_logical": lambda: unsigned >> shift if shift < bits else 0,
        "shift_right_arithmetic": lambda: wrap_signed(unsigned, bits) >> min(shift, bits - 1),
    }[op]()


def wrap_signed(value, bits):
    return value - 2**bits if value >> (bits - 1) else value


@pytest.mark.parametrize("t", INTS)
def test_integer_operations(library, t):
    dtype = INTS[t]
    bits = np.iinfo(dtype).bits
    a, b = integers(dtype, 1), integers(dtype, 2)
    a, b = np.concatenate([a, np.repeat(a[-7:], 7)]), np.concatenate([b, np.tile(b[-7:], 7)])
    for op in INT2:
        got = call(library, f"{op}_{t}", dtype, a, b)
        want = [wrap(integer_meaning(op, int(x), int(y), dtype), dtype) for x, y in zip(a, b, strict=True)]
        assert got.tolist() == want, op
    one = {"abs": abs, "negate": lambda x: -x, "not": lambda x: ~x, "sign": lambda x: (x > 0) - (x < 0),
           "popcnt": lambda x: bin(x & (2**bits - 1)).count("1"),
           "count_leading_zeros": lambda x: bits - (x & (2**bits - 1)).bit_length()}
    for op in INT1:
        assert call(library, f"{op}_{t}", dtype, a).tolist() == [wrap(one[op](int(x)), dtype) for x in a], op


@pytest.mark.parametrize("t", ["c64", "c128"])
def test_complex_operations(library, t):
    dtype, rng = TYPES[t], np.random.default_rng(3)
    a = (rng.normal(size=2000) * 2 + 2j * rng.normal(size=2000)).astype(dtype)
    b = (rng.normal(size=2000) + 1j * rng.normal(size=2000)).astype(dtype)
    tolerance = 3e-6 if t == "c64" else 1e-14
    for op, reference in COMPLEX1.items():
        want = reference(a.astype(np.complex128))
        want = a / np.abs(a) if op == "sign" else want
        np.testing.assert_allclose(call(library, f"{op}_{t}", dtype, a), want, rtol=tolerance, err_msg=op)
    for op, reference in COMPLEX2.items():
        want = reference(a.astype(np.complex128), b.astype(np.complex128))
        np.testing.assert_allclose(call(library, f"{op}_{t}", dtype, a, b), want, rtol=tolerance, err_msg=op)


def complex_edges(dtype):
    parts = np.array([0, -0.0, 1, -0.5, 3, 20, -100, 1e-30, 1e9, -1e12, 1e38, np.inf, -np.inf, np.nan])
    z = np.empty((parts.size, parts.size), dtype)
    z.real, z.imag = parts[:, None], parts
    return z.ravel()


@pytest.mark.parametrize("t", ["c64", "c128"])
@pytest.mark.parametrize("op", COMPLEX_NEAR)
def test_complex_functions_without_branches(library, op, t):
    """They say what arguments they are for, and there give what those with branches do."""
    dtype, rng, edges = TYPES[t], np.random.default_rng(6), complex_edges(TYPES[t])
    z = np.concatenate([(rng.normal(size=2000) * 3 + 3j * rng.normal(size=2000)).astype(dtype), edges])
    arguments = [z]
    if COMPLEX_NEAR[op] == 2:
        w = (rng.normal(size=2000) + 1j * rng.normal(size=2000)).astype(dtype)
        arguments = [np.concatenate([z, np.repeat(edges, edges.size)]),
                     np.concatenate([w, edges[::-1], np.tile(edges, edges.size)])]
    near = call(library, f"{op}_is_near_{t}", np.uint8, *arguments) == 1
    assert near[:2000].all() and not near.all()
    got, want = (call(library, f"{op}{form}_{t}", dtype, *arguments)[near] for form in ("_near", ""))
    usual = np.isfinite(want)
    assert (np.abs(got[usual] - want[usual]) <= (2e-7 if t == "c64" else 1e-12) * np.abs(want[usual])).all()
    for a, b in ((got.real, want.real), (got.imag, want.imag)):
        assert (np.isnan(a) == np.isnan(b)).all() and (np.where(np.isinf(b), a, 0) == np.where(np.isinf(b), b, 0)).all()


@pytest.mark.parametrize("t", ["c64", "c128"])
def test_complex_quotients_and_signs_of_zeros_and_infinities(library, t):
    """Infinite over finite is infinite, finite over infinite zero, anything but zero over zero infinite."""
    edges = complex_edges(TYPES[t])
    a, b = np.repeat(edges, edges.size), np.tile(edges, edges.size)
    got = call(library, f"divide_{t}", TYPES[t], a, b)
    number = lambda z: ~(np.isnan(z.real) | np.isnan(z.imag))                # noqa: E731
    infinite, finite, zero = np.isinf, np.isfinite, lambda z: z == 0         # noqa: E731
    assert infinite(got[number(a) & infinite(a) & finite(b)]).all()
    assert zero(got[finite(a) & number(b) & infinite(b)]).all()
    assert infinite(got[number(a) & ~zero(a) & zero(b)]).all()
    assert np.isnan(got[zero(a) & zero(b)]).all() and np.isnan(got[np.isnan(a.real) & np.isnan(a.imag)]).all()
    with np.errstate(all="ignore"):
        size = np.hypot(edges.real, edges.imag)
        signs = np.where(zero(edges), edges, edges.real / size + 1j * (edges.imag / size))
    np.testing.assert_allclose(call(library, f"sign_{t}", TYPES[t], edges), signs.astype(TYPES[t]), rtol=3e-7)


@pytest.mark.parametrize("op", ["asin", "acos", "asinh", "acosh", "atanh"])
def test_complex_branch_cuts(library, op):
    """Zeros of either sign lie on different sides of a cut; large and infinite parts."""
    parts = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 1e200, -1e200, np.inf, -np.inf]
    z = np.array([complex(a, b) for a in parts for b in parts])
    with np.errstate(all="ignore"):
        want = COMPLEX1[op](z)
    got = call(library, f"{op}_c128", np.complex128, z)
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=1e-300)
    zeros = (want.real == 0) & (op != "atanh"), (want.imag == 0)
    assert (np.signbit(got.real) == np.signbit(want.real))[zeros[0]].all()
    assert (np.signbit(got.imag) == np.signbit(want.imag))[zeros[1]].all()


def test_mulhi_of_64_bits(library):
    for t, dtype in (("s64", np.int64), ("u64", np.uint64)):
        a, b = integers(dtype, 5), integers(dtype, 6)
        want = [int(x) * int(y) >> 64 for x, y in zip(a, b)]
        assert call(library, f"mulhi_{t}", dtype, a, b).tolist() == want


def convert_meaning(x, source, target):
    """NumPy's conversion with HLO's saturation and the real part of complex numbers."""
    if target == "pred":
        return (x != 0).astype(np.uint8)
    if source[0] == "c" and target[0] != "c":
        x = x.real
    if x.dtype.kind == "f" and target in INTS:
        info = np.iinfo(INTS[target])
        return np.array([0 if v != v else int(np.clip(v, info.min, info.max)) if abs(v) < 1e18 else
                         (info.max if v > info.max else info.min if v < info.min else int(v)) for v in x.tolist()],
                        dtype=object).astype(INTS[target])
    return x.astype(TYPES[target])


@pytest.mark.parametrize("source", TYPES)
def test_conversions(library, source):
    dtype = TYPES[source]
    if source == "pred":
        x = np.array([0, 1, 1, 0], np.uint8)
    elif source in INTS:
        x = integers(dtype, 5)
    else:
        x = np.array([0, -0.0, 1.5, -1.5, 127.9, 128, -128.9, 255.5, 256, 65535.9, 1e10, -1e10, 2.0**63, -(2.0**63),
                      2.0**64, 1e30, -1e30, np.inf, -np.inf, np.nan], dtype)
    with np.errstate(all="ignore"):
        for target in TYPES:
            got = call(library, f"convert_{source}_{target}", TYPES[target], x)
            want = convert_meaning(x, source, target)
            np.testing.assert_array_equal(got, want, err_msg=target)


def test_comparisons_and_total_order(library):
    x = np.array([-np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], np.float32)
    a, b, rank = np.repeat(x, 8), np.tile(x, 8), np.arange(8)
    for name, compare in COMPARE.items():
        assert (call(library, f"compare_{name}_f32", np.uint8, a, b) == compare(a, b)).all()
        total = call(library, f"compare_{name}_total_f32", np.uint8, a, b)
        assert (total == compare(np.repeat(rank, 8), np.tile(rank, 8))).all()


@pytest.mark.parametrize("bits,dtype", [((5, 10), np.float16), ((8, 7), ml_dtypes.bfloat16)])
def test_reduce_precision(library, bits, dtype):
    x = floats(np.float32)
    got = np.empty_like(x)
    library.reduce_precision(pointer(x), pointer(got), x.size, *bits)
    with np.errstate(all="ignore"):
        want = x.astype(dtype).astype(np.float32)
    flushed = np.abs(want) < float(ml_dtypes.finfo(dtype).smallest_normal)
    want = np.where(flushed & (bits[0] < 8), np.copysign(np.float32(0), x), want)
    np.testing.assert_array_equal(got, want)


def test_stochastic_convert(library):
    x = np.repeat(np.array([2.25, -2.25, 3.0, 200.0, -200.0, np.nan], np.float32), 4000)
    random = np.random.default_rng(0).integers(0, 2**32, x.size, dtype=np.uint32)
    got = call(library, "stochastic", np.int8, x, random).reshape(6, -1)
    assert abs(got[0].mean() - 2.25) < 0.05 and abs(got[1].mean() + 2.25) < 0.05
    assert [set(row.tolist()) for row in got] == [{2, 3}, {-2, -3}, {3}, {127}, {-128}, {0}]


def test_random_blocks(library):
    out = np.empty(6, np.uint32)
    library.random_blocks(pointer(out))
    assert [hex(v) for v in out] == ["0x6b200159", "0x99ba4efe", "0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_headers_compile_as_cuda(tmp_path):
    """The same functions inside kernels, through nvcc where there is one."""
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc is not installed")
    kernels = '#include "scalar.h"\n'                  # one for each: of one with all of them nvcc takes six times as long
    for name, operands, a, r in all_functions():
        arguments = f"((hloc_{a}*)x)[0]" + (f", ((hloc_{a}*)x)[1]" if operands == 2 else "")
        kernels += f'extern "C" __global__ void k_{name}(void* x, void* y) {{ ((hloc_{r}*)y)[0] = hloc_{name}({arguments}); }}\n'
    source = tmp_path / "all.cu"
    source.write_text(kernels)
    command = ["nvcc", "-arch=sm_90", "-ptx", f"-I{INCLUDE[0]}", str(source), "-o", str(tmp_path / "all.ptx")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("outer", ["log1p", "log", "exp", "tanh", "logistic"])
def test_functions_of_functions_are_vectors(outer, tmp_path):
    """softplus, logaddexp and the like: the selections of one function do not become branches behind another."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed, which tells what it made vectors of")
    loops = [f"void of_{inner}(float *x, long n) {{\n#pragma omp simd\n  for (long i = 0; i < n; i++) "
             f"x[i] = hloc_{outer}_f32(hloc_{inner}_f32(x[i]));\n}}\n" for inner in ("exp", "log1p", "tanh", "abs")]
    source = tmp_path / "loops.c"
    source.write_text('#include "scalar.h"\n' + "".join(loops))
    done = subprocess.run([compiler, "-O2", "-std=gnu11", "-fopenmp-simd", "-fvect-cost-model=dynamic", "-fno-math-errno",
                           "-fno-trapping-math", f"-I{INCLUDE[0]}", "-fopt-info-vec", "-c", "-o",
                           str(tmp_path / "loops.o"), str(source)],
                          capture_output=True, text=True, timeout=120, check=True)
    found = {line.split(":")[1] for line in done.stderr.splitlines() if "loops.c" in line and "loop vectorized" in line}
    assert len(found) == len(loops)


def test_powers_of_functions_are_vectors(tmp_path):
    """A color's gamma, a focal loss: neither what a constant exponent is nor a constant that a selection chooses makes a
    branch of what follows, with the flags of kernels."""
    chain = toolchain.find()
    if chain.is_clang:
        pytest.skip("gcc is not the compiler, which tells what it made vectors of")
    x, z = "hloc_{}_f32({})", "hloc_power_f32({}, {})"
    inner = [x.format(op, "x[i]") for op in ("exp", "log1p", "sin", "tanh")]
    inner += ["hloc_maximum_f32(x[i], 0.0f)", "(x[i] > 0.5f ? y[i] : 1.0f)"]
    values = [z.format(e, power) for e in inner for power in ("2.5f", "y[i]")]
    values += [x.format(op, z.format("x[i]", "2.5f")) for op in ("exp", "sin", "tanh", "cbrt")]
    values += [x.format("cbrt", inner[0]), f"hloc_atan2_f32({inner[1]}, y[i])"]
    loops = [f"void f{n}(float *x, const float *y, long n) {{\n#pragma omp simd\n  for (long i = 0; i < n; i++) "
             f"x[i] = {value};\n}}\n" for n, value in enumerate(values)]
    d = [f"hloc_power_f64({a})" for a in ("x[i], y[i]", "x[i], 2.5", "0.5, x[i]", "x[i], c", "c, x[i]", "hloc_exp_f64(x[i]), c")]
    d += [f"hloc_{op}_near_f64({a})" for op in ("sin", "tan") for a in ("x[i]", "hloc_log1p_f64(x[i])", d[0])]
    loops += [f"void d{n}(double *x, const double *y, double c, long n) {{\n#pragma omp simd\n  for (long i = 0; i < n; i++) "
              f"x[i] = {value};\n}}\n" for n, value in enumerate(d)]
    loops += [f"void {op}{n}(hloc_c64 *x, hloc_c64 *z, hloc_c64 *r, long n) {{\n#pragma omp simd\n  for (long i = 0; i < n; i++) "
              f"r[i] = hloc_{op}_c64({'x[i], z[i]'[:arguments]});\n}}\n" for n, (op, arguments) in
              enumerate([("divide", 10), *((op, 4) for op in ("sign", "log", "log1p", "sqrt", "rsqrt", "atanh")), *((f"{op}_near", 10 if n == 2 else 4) for op, n in COMPLEX_NEAR.items())])]
    source = tmp_path / "loops.c"
    source.write_text('#include "scalar.h"\n' + "".join(loops))
    done = subprocess.run([*chain.command, *chain.flags(), *chain.kernel_flags(), "-fopt-info-vec", "-c", "-o",
                           str(tmp_path / "loops.o"), str(source)],
                          capture_output=True, text=True, timeout=120, check=True)
    found = {line.split(":")[1] for line in done.stderr.splitlines() if "loops.c" in line and "loop vectorized" in line}
    assert len(found) == len(loops)
