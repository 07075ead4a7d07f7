"""Does work grow in proportion to its input? Compares CPU time at two sizes, so that a busy machine does not matter.

    assert_linear(lambda n: (verify, chain(n)), 1_000)         a function and its argument, for a size
"""
from __future__ import annotations

import cProfile
import time
from collections.abc import Callable
from typing import Any

GROWTH = 8                   # the larger input is eight times the smaller
MOST = 28                    # linear work takes about 8 times as long, quadratic 64 times


def assert_linear(prepare: Callable[[int], tuple[Callable[[Any], Any], Any]], size: int) -> None:
    """`prepare(n)` gives what to call, and with what; only the call is timed, and the best of three counts."""
    small, large = (min(cpu_seconds(*prepare(n)) for _ in range(3)) for n in (size, size * GROWTH))
    assert large < MOST * max(small, 1e-3), f"{small:.4f} s for {size}, {large:.4f} s for {size * GROWTH}"


def cpu_seconds(function: Callable[[Any], Any], argument: Any) -> float:
    start = time.process_time()
    function(argument)
    return time.process_time() - start


def calls_made(function: Callable[[Any], Any], argument: Any) -> int:
    """How many functions are called, and how often generators go on: the same on every machine."""
    profile = cProfile.Profile(subcalls=False)
    profile.runcall(function, argument)
    return sum(entry.callcount for entry in profile.getstats())
