"""Exact values of HLO's functions, by mpmath, and the arguments at which they are compared (no test of its own).

    parts(OF_COMPLEX["log"], np.complex128([2j]))   -> [(0.693..., error of that), (1.57..., error of that)]

Formulas have no cancellation but of sums that are exact here: mpmath adds and multiplies with as many bits as it takes.
"""
from __future__ import annotations

import mpmath
import numpy as np
from mpmath import mp, mpf

EXACT = 8000                # bits of sums and products of doubles
WORKING = 400               # of what is computed from them: a cancellation of 300 bits leaves 100


def _exact(function):
    """A sum of products of doubles, without rounding."""
    def compute(*operands):
        with mp.workprec(EXACT):
            return function(*operands)
    return compute


_square = _exact(lambda x, y: x * x + y * y)
_next = _exact(lambda x: 1 + x)


def _turned(function):
    """-i f(iz) of a function of z."""
    def compute(x, y):
        re, im = function(-y, x)
        return im, -re
    return compute


def log(x, y):
    return mp.log(_square(x, y)) / 2, mp.atan2(y, x)


def log1p(x, y):
    return log(_next(x), y)


def exp(x, y):
    radius = mp.exp(x)
    return radius * mp.cos(y), radius * mp.sin(y)


def expm1(x, y):
    return mp.expm1(x) * mp.cos(y) - 2 * mp.sin(y / 2) ** 2, mp.exp(x) * mp.sin(y)


def logistic(x, y):
    below = 4 * (mp.sinh(x / 2) ** 2 + mp.cos(y / 2) ** 2)
    return (mp.expm1(x) + 2 * mp.cos(y / 2) ** 2) / below, mp.sin(y) / below


def sinh(x, y):
    return mp.sinh(x) * mp.cos(y), mp.cosh(x) * mp.sin(y)


def cosh(x, y):
    return mp.cosh(x) * mp.cos(y), mp.sinh(x) * mp.sin(y)


def tanh(x, y):
    below = mp.sinh(x) ** 2 + mp.cos(y) ** 2
    return mp.sinh(x) * mp.cosh(x) / below, mp.sin(y) * mp.cos(y) / below


def sqrt(x, y):
    length = mp.sqrt(_square(x, y))
    large = mp.sqrt((abs(x) + length) / 2)
    small = abs(y) / large / 2 if large else large
    re, im = (large, small) if x >= 0 else (small, large)
    return re, -im if y < 0 else im


def rsqrt(x, y):
    length, (re, im) = mp.sqrt(_square(x, y)), sqrt(x, y)
    return re / length, -im / length


def sign(x, y):
    length = mp.sqrt(_square(x, y)) or mpf(1)
    return x / length, y / length


def divide(a, b, c, d):
    over = _exact(lambda: (a * c + b * d, b * c - a * d))()
    below = _square(c, d)
    return over[0] / below, over[1] / below


def multiply(a, b, c, d):
    return _exact(lambda: (a * c - b * d, b * c + a * d))()


def power(a, b, c, d):
    re, im = log(a, b)
    return exp(c * re - d * im, c * im + d * re)


def atan2(a, b, c, d):
    """The formula as XLA has it, of numbers with enough bits."""
    with mp.workprec(EXACT):
        y, x = mpmath.mpc(a, b), mpmath.mpc(c, d)
        squares, point = x * x + y * y, x + mpmath.mpc(0, 1) * y
    with mp.workprec(3000):
        re, im = log(*_parts(point / mp.sqrt(squares)))
        return im, -re


def _parts(z):
    return z.real, z.imag


def _inverse(function, side):
    """Of mpmath's; on the cut beyond 1 and -1, the side of numbers with an imaginary part of +0."""
    def compute(x, y):
        z = function(mpmath.mpc(x, y))
        return z.real, (side * abs(z.imag) if y == 0 else z.imag)
    return compute


def atanh(x, y):
    re = mp.log1p(4 * abs(x) / _square(1 - abs(x), y)) / 4
    im = mp.atan2(2 * y, _exact(lambda: (1 - x) * (1 + x) - y * y)()) / 2
    return (-re if x < 0 else re), im


OF_COMPLEX = {
    "abs": lambda x, y: (mp.sqrt(_square(x, y)),), "sign": sign, "sqrt": sqrt, "rsqrt": rsqrt, "log": log,
    "log-plus-one": log1p, "exponential": exp, "exponential-minus-one": expm1, "logistic": logistic, "sinh": sinh,
    "cosh": cosh, "tanh": tanh, "sine": _turned(sinh), "cosine": lambda x, y: cosh(-y, x), "tan": _turned(tanh),
    "asin": _inverse(mpmath.asin, 1), "acos": _inverse(mpmath.acos, -1), "asinh": _turned(_inverse(mpmath.asin, 1)),
    "acosh": _inverse(mpmath.acosh, 1), "atanh": atanh}
INVERSE = ("asin", "acos", "asinh", "acosh", "atanh")
OF_TWO_COMPLEX = {"divide": divide, "multiply": multiply, "power": power, "atan2": atan2}
OF_REAL = {
    "sqrt": mp.sqrt, "rsqrt": lambda x: 1 / mp.sqrt(x), "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)), "log": mp.log,
    "log-plus-one": mp.log1p, "exponential": mp.exp, "exponential-minus-one": mp.expm1,
    "logistic": lambda x: 1 / (1 + mp.exp(-x)), "sine": mp.sin, "cosine": mp.cos, "tan": mp.tan, "sinh": mp.sinh,
    "cosh": mp.cosh, "tanh": mp.tanh, "asin": mp.asin, "acos": mp.acos, "asinh": mp.asinh, "acosh": mp.acosh,
    "atanh": mp.atanh, "erf": mp.erf}
OF_TWO_REAL = {"atan2": mp.atan2, "power": mp.power, "divide": lambda x, y: x / y}


def values(function, *operands: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(parts, lost): exact values of a function, as two doubles whose sum they are, of shape (elements, parts). Of
    complex operands the function takes two numbers each."""
    found = []
    with mp.workprec(WORKING):
        for numbers in zip(*(o.tolist() for o in operands)):
            parts = [mpf(p) for n in numbers for p in ((n.real, n.imag) if isinstance(n, complex) else (n,))]
            try:
                result = function(*parts)
            except (ZeroDivisionError, ValueError):                 # a pole
                result = (mp.nan,) * (1 + (len(parts) > len(operands)))
            result = result if isinstance(result, tuple) else (result,)
            found.append([mp.nan if isinstance(p, mpmath.mpc) else p for p in result])     # no real number
        near = np.array([[float(p) for p in row] for row in found])
        lost = [[float(p - mpf(n)) if np.isfinite(n) else 0.0 for p, n in zip(row, n_row)] for row, n_row in zip(found, near)]
    return near, np.array(lost)


# -- arguments ---------------------------------------------------------------------------------------------------------

SIZES = {64: [1e-300, 1e-200, 1e-100, 1e-30, 1e-16, 1e-8, 1e-3, 0.3, 1, 3, 20, 80, 500, 705, 711, 1e3, 1e5, 1e9, 1e16,
              1e100, 1e155, 1e200, 1e300, 1.7e308],
         32: [1.3e-38, 1e-30, 1e-19, 1e-8, 1e-4, 1e-2, 0.3, 1, 3, 20, 80, 87, 89, 100, 1e3, 1e5, 1e9, 1e16, 1e25, 3.3e38]}
CENTERS = [0, 1, -1, 1j, -1j, np.pi / 2, -np.pi, 1j * np.pi, -0.5j * np.pi, 2j * np.pi, 0.6 + 0.8j, np.log(2) + 1j * np.pi / 3]


def complex_arguments(dtype: np.dtype, fewer: int = 1) -> np.ndarray:
    """Sizes of the type's whole range for both parts, axes, neighbours of zeros, poles and branch points, usual numbers;
    of the first every `fewer`-th."""
    rng, bits = np.random.default_rng(0), np.finfo(dtype).bits
    sizes = np.array(SIZES[bits])
    x, y = (v.ravel() for v in np.meshgrid(sizes, sizes))
    sides = rng.choice([-1, 1], (2, x.size))
    grid = _complex(x * sides[0], y * sides[1])[::fewer]
    axes = np.concatenate([_complex(sizes, 0 * sizes), _complex(-sizes, 0 * sizes), _complex(0 * sizes, sizes)])
    steps = np.array([10.0 ** -k for k in ((2, 5, 8, 12, 15) if bits == 64 else (1, 3, 5, 7))])[:, None]
    around = (steps * np.exp(1j * np.array([0.0, 0.3, 1.5, 2.2, 3.4, -1.9]))).ravel()
    near = (np.array(CENTERS)[:, None] + around).ravel()[::fewer]
    usual = rng.normal(size=200) * 3 + 3j * rng.normal(size=200)
    return np.concatenate([grid, axes[::fewer], near, np.array(CENTERS), usual[::fewer]]).astype(dtype)


def real_arguments(dtype: np.dtype) -> np.ndarray:
    rng, bits = np.random.default_rng(1), np.finfo(dtype).bits
    sizes = np.array(SIZES[bits])
    near = [c + s * 10.0 ** -k for c in (0, 1, -1, np.pi / 2, np.pi, 100 * np.pi) for k in range(1, 16) for s in (1, -1)]
    return np.concatenate([sizes, -sizes, near, rng.normal(size=300), rng.normal(size=300) * 30]).astype(dtype)


def _complex(x, y):
    z = np.empty(np.shape(x), np.complex128)
    z.real, z.imag = x, y
    return z
