"""Statistics of measured times: percentiles of one program, and whether one of two is faster.

    Summary.of(seconds).median
    compare_times(a, b)         a[i], b[i]: of the same round -> Comparison(ratio=0.81, low=0.79, high=0.83)

The speed of a shared machine varies for both programs alike, so they are compared round by round: the ratio is the
median of the rounds' ratios, and its interval comes from resampling rounds (a percentile bootstrap: Efron and
Tibshirani, An Introduction to the Bootstrap, chapter 13) in blocks, because neighbouring rounds are correlated (the
moving block bootstrap: Kuensch 1989).
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DRAWS = 2000                    # of all rounds, with replacement
CONFIDENCE = 0.95
# The same program, loaded twice at other addresses, differs by up to 1.3%.
LEAST_EFFECT = 0.02


class Summary(NamedTuple):
    """Percentiles of times, in seconds."""

    minimum: float
    median: float
    p90: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Summary:
        """`seconds` must not be empty."""
        return cls(*(float(v) for v in np.percentile(np.asarray(seconds, np.float64), (0, 50, 90, 99))))

    def __str__(self) -> str:
        """min 1.900 ms, median 1.954 ms, p90 2.210 ms, p99 2.514 ms"""
        return ", ".join(f"{name} {1e3 * value:.3f} ms" for name, value in self.named.items())

    @property
    def named(self) -> dict[str, float]:
        """The figures by their printed names."""
        return dict(zip(("min", "median", "p90", "p99"), self))


class Comparison(NamedTuple):
    """The second program's time by the first's: below 1 the second is faster. low, high: the interval of the ratio."""

    ratio: float
    low: float
    high: float

    @property
    def winner(self) -> int | None:
        """0 or 1: the faster program; None if the interval holds 1, or the two differ by less than LEAST_EFFECT."""
        if self.low <= 1.0 <= self.high or abs(self.ratio - 1.0) < LEAST_EFFECT:
            return None
        return int(self.ratio < 1.0)


def compare_times(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Comparison:
    """Both hold one time per round, in the order of the rounds, and at least one."""
    ratios = np.asarray(second, np.float64) / np.asarray(first, np.float64)
    generator, count = np.random.default_rng(seed), len(ratios)
    length = max(1, round(count ** (1 / 3)))
    stretch = np.arange(length)

    def drawn() -> np.ndarray:
        starts = generator.integers(0, count - length + 1, -(-count // length))
        return ratios[(starts[:, None] + stretch).reshape(-1)[:count]]

    medians = [np.median(drawn()) for _ in range(DRAWS)]
    low, high = np.quantile(medians, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2))
    return Comparison(float(np.median(ratios)), float(low), float(high))
