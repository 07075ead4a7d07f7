"""Special functions of XLA's builder: known values, SciPy's where it is there, and the calls themselves."""
from __future__ import annotations

import math

import numpy as np
import pytest

import hloc
from hloc.ops import special_functions
from hloc.ops.random import philox

rng = np.random.default_rng(5)
EULER = 0.5772156649015329
SLOPE = EULER * (1 - 1 / math.e) - 0.7965995992970531          # the integral of log(t) e^-t over 0..1 is the second


@pytest.mark.parametrize("name, operands, want", [
    ("polygamma", (0, 1.0), -EULER), ("polygamma", (1, 1.0), math.pi ** 2 / 6), ("polygamma", (1, 0.5), math.pi ** 2 / 2),
    ("polygamma", (2, 1.0), -2 * 1.2020569031595942), ("polygamma", (1, -0.5), math.pi ** 2 / 2 + 4),
    ("polygamma", (1, -2.0), math.inf), ("polygamma", (0.5, 1.0), math.nan), ("polygamma", (-1, 1.0), math.nan),
    ("igamma_grad_a", (1.0, 0.0), 0), ("igamma_grad_a", (1.0, -1.0), math.nan),
    ("igamma_grad_a", (1.0, 1.0), SLOPE), ("random_gamma_grad", (1.0, 1.0), -SLOPE * math.e), ("random_gamma_grad", (0.0, 1.0), math.nan),
    ("incomplete_beta", (2, 3, 0.5), 0.6875), ("incomplete_beta", (1, 1, 0.25), 0.25),
    ("incomplete_beta", (2, 3, 0), 0), ("incomplete_beta", (2, 3, 1), 1), ("incomplete_beta", (2, 3, 1.5), math.nan),
])
def test_known_values(name, operands, want):
    with np.errstate(all="ignore"):
        got = getattr(special_functions, name)(*(np.array([o], np.float64) for o in operands))
    np.testing.assert_allclose(got, [want], rtol=1e-12)


def test_scipy_gives_the_same():
    special = pytest.importorskip("scipy.special", reason="SciPy is not installed")
    x, n = rng.uniform(0.05, 40, 200), rng.integers(1, 6, 200)
    np.testing.assert_allclose(special_functions.polygamma(n.astype(float), x), special.polygamma(n, x), rtol=1e-10)
    np.testing.assert_allclose(special_functions.digamma(x), special.digamma(x), atol=1e-13)
    a, b, place = rng.uniform(0.1, 30, 200), rng.uniform(0.1, 30, 200), rng.uniform(0, 1, 200)
    np.testing.assert_allclose(special_functions.incomplete_beta(a, b, place), special.betainc(a, b, place), rtol=1e-9)
    x, step = a * rng.uniform(0.05, 3, 200), 1e-5 * a
    slope = (special.gammainc(a + step, x) - special.gammainc(a - step, x)) / (2 * step)
    np.testing.assert_allclose(special_functions.igamma_grad_a(a, x), slope, atol=1e-8)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_calls(target):
    text = """ENTRY e { a = f32[3] parameter(0)  x = f32[3] parameter(1)  k = u64[2] parameter(2)
        p = f32[3] custom-call(a, x), custom_call_target="xla_builder.math.Polygamma"
        g = f32[3] custom-call(a, x), custom_call_target="xla_builder.math.RandomGammaGrad"
        i = f32[3] custom-call(a, x, x), custom_call_target="xla_builder.math.RegularizedIncompleteBeta"
        s = u64[2] custom-call(k), custom_call_target="xla_builder.prng.ScramblePhiloxKey"
        ROOT r = (f32[3], f32[3], f32[3], u64[2]) tuple(p, g, i, s) }"""
    a, x = np.array([1, 2, 3], np.float32), np.array([0.25, 0.5, 0.75], np.float32)
    keys = np.array([7, 5 << 32 | 3], np.uint64)
    *floats, scrambled = hloc.compile(text, target)(a, x, keys)
    names = [("polygamma", a, x), ("random_gamma_grad", a, x), ("incomplete_beta", a, x, x)]
    for got, (name, *operands) in zip(floats, names):
        want = getattr(special_functions, name)(*(o.astype(np.float64) for o in operands))
        np.testing.assert_allclose(got, want, rtol=1e-6)
    words = philox(0x02461E293EC8F720, 5 << 64 | 3, 1)
    assert scrambled[1] == int(words[0][0]) | int(words[1][0]) << 32 and scrambled[0] != 7
