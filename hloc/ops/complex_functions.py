"""Functions of complex numbers on NumPy arrays, accurate where NumPy's own cancel or overflow.

In: arrays of c64 or c128. Out: arrays of the same type, by opcode:

    FUNCTIONS["log-plus-one"](np.complex128([-1 + 1e-9j]))   -> [-20.723266 + 1.5707963j]

c64 is computed in f64 and c128 in long double, which has 11 bits more than f64 on x86 (60 on most other CPUs, none on
some, where the largest numbers overflow), and rounded once. Formulas that would cancel more bits are rewritten.
docs/support.md has the errors. Infinities, NaNs, signed zeros and branch cuts are those of C (Annex G) where C has the
function; the formulas are those of targets/c/complex.h.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

WIDER: dict[np.dtype, np.dtype] = {np.dtype(np.complex64): np.dtype(np.complex128),
                                   np.dtype(np.complex128): np.dtype(np.clongdouble)}
Parts = tuple[np.ndarray, np.ndarray]


def joined(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    """Unlike real + 1j * imaginary, keeps the signs of zeros, and infinities apart."""
    real, imaginary = np.broadcast_arrays(real, imaginary)
    result = np.empty(real.shape, np.result_type(real, imaginary, np.complex64))
    result.real, result.imag = real, imaginary
    return result


def _wide(formula: Callable[..., Parts], elsewhere: Callable[..., np.ndarray] | None = None):
    """An array function of a formula on wider parts; `elsewhere` for operands with an infinity or a NaN."""
    def compute(*operands: np.ndarray) -> np.ndarray:
        operands = np.broadcast_arrays(*operands)
        type = np.result_type(*operands)
        wide = [o.astype(WIDER[type]) for o in operands]
        result = joined(*formula(*(part for o in wide for part in (o.real, o.imag)))).astype(type)
        lost = ~np.logical_and.reduce([np.isfinite(o) for o in operands])
        if elsewhere is not None and lost.any():
            result[lost] = elsewhere(*(o[lost] for o in operands))
        return result
    return compute


# -- roots and logarithms ----------------------------------------------------------------------------------------------

def _halves(x: np.ndarray) -> Parts:
    """A number as the sum of one of 24 bits and a rest of 29: products of these are exact."""
    upper = x.astype(np.float32).astype(x.dtype)
    return upper, x - upper


def _log_of_length(first: np.ndarray, x: np.ndarray, y: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """log sqrt(u^2 + v^2), which is log sqrt(1 + first + x^2 + y^2): near 1 the sum counts, in which what cancels is
    added first, x being larger than y or cancelling with `first`."""
    (x_upper, x_lower), (y_upper, y_lower) = _halves(x), _halves(y)
    above = (first + x_upper * x_upper) + y_upper * y_upper
    above = above + 2 * (x_upper * x_lower + y_upper * y_lower) + (x_lower * x_lower + y_lower * y_lower)
    return np.where(np.abs(above) < 0.5, np.log1p(above) / 2, np.log(np.hypot(u, v)))


def _log(x, y):
    large, small = np.maximum(np.abs(x), np.abs(y)), np.minimum(np.abs(x), np.abs(y))
    return _log_of_length(-np.ones_like(x), large, small, x, y), np.arctan2(y, x)


def _log1p(x, y):
    return _log_of_length(2 * x, y, x, 1 + x, y), np.arctan2(y, 1 + x)


def _sqrt(x, y):
    large = np.sqrt((np.abs(x) + np.hypot(x, y)) / 2)
    small = np.where(large == 0, 0, np.abs(y) / large / 2)
    right = x >= 0
    return np.where(right, large, small), np.copysign(np.where(right, small, large), y)


def _rsqrt(x, y):
    """Of zero, infinity and no number, as in XLA."""
    length, (re, im) = np.hypot(x, y), _sqrt(x, y)
    return np.where(length == 0, np.inf, re / length), np.where(length == 0, np.nan, -im / length)


def _rsqrt_of_infinities(z):
    infinite = np.isinf(z)
    return joined(np.where(infinite, 0, np.nan), np.where(infinite, np.copysign(0, -z.imag), np.nan))


# -- exponentials, circular and hyperbolic functions -------------------------------------------------------------------

def _of_real(y, imaginary):
    """Real arguments have real results, whatever overflows beside them."""
    return np.where(y == 0, y, imaginary)


def _exp(x, y):
    radius = np.exp(x)
    return radius * np.cos(y), _of_real(y, radius * np.sin(y))


def _expm1(x, y):
    return np.expm1(x) * np.cos(y) - 2 * np.sin(y / 2) ** 2 + 0.0, _of_real(y, np.exp(x) * np.sin(y))


def _expm1_of_infinities(z):
    power = np.exp(z)
    return joined(power.real - 1, power.imag)


def _logistic(x, y):
    """(e^x + cos y, sin y) / 2 (cosh x + cos y), both times e^-|x|, without cancellation near the poles."""
    radius, less, more = np.exp(-np.abs(x)), np.expm1(-np.abs(x)), 2 * np.cos(y / 2) ** 2
    below = less * less + 2 * radius * more
    left = radius * np.where(np.cos(y) < -0.5, less + more, radius + np.cos(y))
    return np.where(x < 0, left, radius * more - less) / below, _of_real(y, radius * np.sin(y) / below)


def _logistic_of_infinities(z):
    infinite, sine = np.isinf(z.real), np.where(np.isfinite(z.imag), np.sin(z.imag), z.imag)
    return joined(np.where(infinite, z.real > 0, np.nan),
                  np.where(infinite, np.copysign(0, sine), _of_real(z.imag, np.nan)))


def _is_lost(x, y):
    """An infinite radius without an angle: one part is known all the same."""
    return np.isinf(x) & ~np.isfinite(y)


def _sinh(x, y):
    return np.where((x == 0) | _is_lost(x, y), x, np.sinh(x) * np.cos(y)), _of_real(y, np.cosh(x) * np.sin(y))


def _cosh(x, y):
    real, imaginary = np.cosh(x) * np.cos(y), np.sinh(x) * np.sin(y)
    is_real = (x == 0) | (y == 0)
    return (np.where(_is_lost(x, y), np.inf, real),
            np.where(is_real, np.copysign(0, x) * np.copysign(1, y), imaginary))


def _tanh(x, y):
    """(sinh 2x, sin 2y) / (cosh 2x + cos 2y), both times 2 e^-2|x|."""
    radius, less = np.exp(-2 * np.abs(x)), np.expm1(-2 * np.abs(x))
    below = less * less + 4 * radius * np.cos(y) ** 2
    real, imaginary = less * (1 + radius) / below, 4 * radius * (np.sin(y) * np.cos(y)) / below
    lost = _is_lost(x, y)
    return (np.where(x == 0, x, np.copysign(np.where(lost, 1, real), x)),
            np.where(lost, np.copysign(0, y), _of_real(y, imaginary)))


def _rotated(formula: Callable[..., Parts]) -> Callable[..., Parts]:
    """-i f(iz) of a function of z: the sine of the hyperbolic one."""
    def compute(x, y):
        re, im = formula(-y, x)
        return im, -re
    return compute


# -- functions of two --------------------------------------------------------------------------------------------------

def _sign(x, y):
    """Scaled to length 1; zero is itself."""
    length = np.where((x == 0) & (y == 0), 1, np.hypot(x, y))
    return x / length, y / length


def _quotient(a, b, c, d):
    below = c * c + d * d
    return (a * c + b * d) / below, (b * c - a * d) / below


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Special values of division: anything over zero is infinite, infinity over a finite number too, a finite number
    over infinity is zero (C, Annex G)."""
    a, b = np.broadcast_arrays(a, b)
    result = _wide(_quotient)(a, b)
    at_zero = b == 0
    lost = np.isnan(result.real) & np.isnan(result.imag) | at_zero
    if not lost.any():
        return result
    infinity = np.copysign(np.inf, b.real).astype(a.real.dtype)
    result.real[at_zero] = (infinity * a.real)[at_zero]
    result.imag[at_zero] = (infinity * a.imag)[at_zero]
    for chosen, factor, x, y in ((lost & np.isfinite(a) & np.isinf(b), 0.0, a, _direction(b)),
                                 (lost & np.isinf(a) & np.isfinite(b) & ~at_zero, np.inf, _direction(a), b)):
        result.real[chosen] = (factor * (x.real * y.real + x.imag * y.imag))[chosen]
        result.imag[chosen] = (factor * (x.imag * y.real - x.real * y.imag))[chosen]
    return result


def _direction(z: np.ndarray) -> np.ndarray:
    """Each part 1 where it is infinite, else 0, with its sign."""
    return joined(np.copysign(np.isinf(z.real).astype(z.real.dtype), z.real),
                  np.copysign(np.isinf(z.imag).astype(z.real.dtype), z.imag))


def _power(a, b, c, d):
    """e^(w log z). To the power of zero 1; of zero 0, infinity or no number, as in XLA."""
    re, im = _log(a, b)
    real, imaginary = _exp(c * re - d * im, c * im + d * re)
    of_zero = np.where(c > 0, 0, np.where((c < 0) & (d == 0), np.inf, np.nan))
    is_zero, is_one = (a == 0) & (b == 0), (c == 0) & (d == 0)
    real = np.where(is_one, 1, np.where(is_zero, of_zero, real))
    return real, np.where(is_one, 0, np.where(is_zero, np.where(np.isnan(of_zero), np.nan, 0), imaginary))


def _atan2(c, d, a, b):
    """-i log((x + iy) / sqrt(x^2 + y^2)), of a root of p/q, p = x + iy, q = x - iy: half its angle, and minus half the
    logarithm of its length. That of pq = x^2 + y^2 lies on the right, which says which of the two roots it is."""
    p, q = (a - d, b + c), (a + d, b - c)
    more, least = 4 * (a * d - b * c), np.minimum(np.hypot(*p), np.hypot(*q)) ** 2
    imaginary = np.copysign(np.log1p(np.where(more == 0, 0, np.abs(more) / least)) / 4, more)
    angle = np.arctan2(2 * (a * c + b * d), p[0] * q[0] + p[1] * q[1]) / 2
    right, up = p[0] * np.cos(angle) + p[1] * np.sin(angle), p[1] * np.cos(angle) - p[0] * np.sin(angle)
    side = np.where(np.abs(right) >= np.abs(up), right, up * np.copysign(1, a * b + c * d))
    half_turn = np.arctan2(np.zeros_like(a), -np.ones_like(a))
    angle = np.where(side < 0, angle - np.copysign(half_turn, angle), angle)
    real = (b == 0) & (d == 0)
    return np.where(real, np.arctan2(c, a), angle), np.where(real, np.where(np.isnan(a + c), np.nan, 0), imaginary)


FUNCTIONS = {
    "sqrt": _wide(_sqrt, np.sqrt), "rsqrt": _wide(_rsqrt, _rsqrt_of_infinities), "log": _wide(_log, np.log),
    "log-plus-one": _wide(_log1p, lambda z: np.log(joined(1 + z.real, z.imag))), "exponential": _wide(_exp, np.exp),
    "exponential-minus-one": _wide(_expm1, _expm1_of_infinities), "logistic": _wide(_logistic, _logistic_of_infinities),
    "sinh": _wide(_sinh), "cosh": _wide(_cosh), "tanh": _wide(_tanh), "sine": _wide(_rotated(_sinh)),
    "cosine": _wide(lambda x, y: _cosh(-y, x)), "tan": _wide(_rotated(_tanh)), "sign": _wide(_sign), "divide": divide,
    "power": _wide(_power), "atan2": _wide(_atan2)}
