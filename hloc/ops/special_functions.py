"""Special functions that XLA's builder expands, in f64: polygamma, the derivative of the incomplete gamma function by
its first argument, that of gamma-distributed samples, the incomplete beta function.

    polygamma(1, 1.0) = pi^2 / 6        incomplete_beta(2, 3, 0.5) = 0.6875

In: arrays of one shape. Out: an array; nan where a function is not defined.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

SHIFT = 10                                      # from here on the asymptotic series are good to the last bit
STEPS = 10_000                                  # of series and continued fractions, which end where they stand still
BERNOULLI = [1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330]
SMALL = 1e-300

log_gamma = np.vectorize(lambda x: math.inf if x in (0, math.inf) or (x < 0 and x == math.floor(x)) else math.lgamma(x),
                         otypes=[np.float64])


def digamma(x: np.ndarray) -> np.ndarray:
    """The derivative of log_gamma; at 0, -1, -2 ... nan."""
    mirrored = np.where(x <= 0, 1 - x, x)
    total = np.zeros_like(mirrored)
    for k in range(SHIFT):
        total -= 1 / (mirrored + k)
    far = mirrored + SHIFT
    total += np.log(far) - 0.5 / far - sum(b / (2 * k * far ** (2 * k)) for k, b in enumerate(BERNOULLI, 1))
    value = np.where(x <= 0, total - math.pi / np.tan(math.pi * x), total)
    return np.where((x <= 0) & (x == np.floor(x)), np.nan, value)


def zeta(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The sum of (q + k)^-s for k = 0, 1, ...; for s > 1 and q > 0, and for whole s below."""
    steps = np.ceil(np.maximum(-q, 0)) + (q == np.floor(q)) * (q <= 0)        # terms that are not of positive numbers
    rest = _zeta_of_positive(s, q + steps)
    sign = np.where(s % 2 == 0, 1.0, -1.0)
    below = 1 - (q + steps)
    whole = q + steps == 1
    mirrored = sign * (_zeta_of_positive(s, np.where(whole, 1, below)) - _zeta_of_positive(s, below + steps))
    value = np.where(steps > 0, rest + mirrored, rest)
    value = np.where((q <= 0) & (q == np.floor(q)), np.inf, np.where((q <= 0) & (s != np.floor(s)), np.nan, value))
    return np.where(s == 1, np.inf, np.where(s < 1, np.nan, value))


def _zeta_of_positive(s: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Euler and Maclaurin."""
    total = sum((q + k) ** -s for k in range(SHIFT))
    far = q + SHIFT
    total += far ** (1 - s) / (s - 1) + 0.5 * far ** -s
    factor, power = s, far ** (-s - 1)
    for k, bernoulli in enumerate(BERNOULLI, 1):
        total += bernoulli / math.factorial(2 * k) * factor * power
        factor, power = factor * (s + 2 * k - 1) * (s + 2 * k), power / (far * far)
    return total


def polygamma(n: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The n-th derivative of digamma; nan where n is no whole number from 0 on."""
    sign = np.where(n % 2 == 0, -1.0, 1.0)
    value = np.where(n == 0, digamma(x), sign * np.exp(log_gamma(n + 1)) * zeta(n + 1, x))
    return np.where((n < 0) | (n != np.floor(n)), np.nan, value)


# -- the incomplete gamma function -------------------------------------------------------------------------------------

def igamma_grad_a(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """d/da of the lower regularized incomplete gamma function P(a, x)."""
    slope = _relative_slope(a, x)
    value = np.where(np.isposinf(x), 0, np.exp(a * np.log(x) - x - log_gamma(a)) * slope)
    return _where_defined(a, x, np.where(x == 0, 0, value))


def random_gamma_grad(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """How a sample x of the gamma distribution moves with its shape a: -(dP/da) / (dP/dx)."""
    return _where_defined(a, x, np.where(x == 0, 0, -x * _relative_slope(a, x)))


def _where_defined(a: np.ndarray, x: np.ndarray, value: np.ndarray) -> np.ndarray:
    return np.where((a > 0) & (x >= 0), value, np.nan)


def _relative_slope(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dP/da divided by x^a e^-x / gamma(a)."""
    high = (x > 1) & (x > a)
    relative = np.log(x) - digamma(a)
    one = np.ones_like(x)
    low_value, low_change = _lower_series(np.where(high, one, a), np.where(high, one, x))
    high_value, high_change = _upper_fraction(np.where(high, a, one), np.where(high & np.isfinite(x), x, 2 * one))
    return np.where(high, -(high_value * relative + high_change), low_value * relative + low_change)


def _lower_series(a: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """1/a + x/(a(a+1)) + ..., and its derivative by a."""
    term, slope = 1 / a, -1 / (a * a)
    total, change = term.copy(), slope.copy()
    for k in range(1, STEPS):
        factor = x / (a + k)
        slope = (slope - term / (a + k)) * factor
        term = term * factor
        total, change = total + term, change + slope
        if not (np.abs(slope) > 1e-17 * np.abs(change)).any():
            break
    return total, change


def _upper_fraction(a: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The continued fraction of Q(a, x) gamma(a) / (x^a e^-x), by its convergents p/q, and its derivative by a."""
    y, z = 1 - a, x + 2 - a
    before, now = np.array([np.ones_like(x), x]), np.array([x + 1, z * x])              # p and q
    before_slope, now_slope = np.zeros_like(before), np.array([np.zeros_like(x), -x])
    value, slope = now[0] / now[1], -now[0] * now_slope[1] / now[1] ** 2
    for k in range(1, STEPS):
        y, z = y + 1, z + 2
        following = now * z - before * (y * k)
        following_slope = now_slope * z - now - before_slope * (y * k) + before * k
        scale = np.where(np.abs(following[1]) > 1e100, 1e-100, 1.0)
        before, before_slope = now * scale, now_slope * scale
        now, now_slope = following * scale, following_slope * scale
        last, value = slope, now[0] / now[1]
        slope = (now_slope[0] - value * now_slope[1]) / now[1]
        if not (np.abs(slope - last) > 1e-17 * np.abs(slope)).any():
            break
    return value, slope


# -- the incomplete beta function --------------------------------------------------------------------------------------

def incomplete_beta(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The regularized incomplete beta function I_x(a, b)."""
    turned = x > (a + 1) / (a + b + 2)
    first, second = np.where(turned, b, a), np.where(turned, a, b)
    place = np.where(turned, 1 - x, x)
    inside = (a > 0) & (b > 0) & (x > 0) & (x < 1)
    safe = (np.where(inside, v, 0.5) for v in (first, second, place))
    first, second, place = safe
    front = np.exp(log_gamma(first + second) - log_gamma(first) - log_gamma(second) + first * np.log(place)
                   + second * np.log1p(-place)) / first
    value = front * _beta_fraction(first, second, place)
    value = np.where(turned, 1 - value, value)
    value = np.where(x == 0, 0, np.where(x == 1, 1, value))
    return np.where((a > 0) & (b > 0) & (x >= 0) & (x <= 1), value, np.nan)


def _beta_fraction(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    """By Lentz's method."""
    def kept(v: np.ndarray) -> np.ndarray:
        return np.where(np.abs(v) < SMALL, SMALL, v)
    c, d = np.ones_like(x), 1 / kept(1 - (a + b) * x / (a + 1))
    value = d.copy()
    for m in range(1, STEPS):
        for numerator in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                          -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d, c = 1 / kept(1 + numerator * d), kept(1 + numerator / c)
            factor = c * d
            value = value * factor
        if not (np.abs(factor - 1) > 1e-16).any():
            break
    return value


SPECIAL: dict[str, Callable[..., np.ndarray]] = {
    "xla_builder.math.Polygamma": polygamma,
    "xla_builder.math.IgammaGradA": igamma_grad_a,
    "xla_builder.math.RandomGammaGrad": random_gamma_grad,
    "xla_builder.math.RegularizedIncompleteBeta": incomplete_beta,
}
