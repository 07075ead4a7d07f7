"""Compilation takes time in proportion to a module: the functions that run for each instruction are counted at two
sizes, for the kinds of module that made some search or table grow faster (growing_modules.py)."""
from __future__ import annotations

import pytest
from growing_modules import KINDS
from linearity import calls_made

from hloc import api

SIZES = (60, 240)
LARGER = (150, 600)           # where an instruction takes little, or where large arrays have other kernels
OF_LITTLE = frozenset(["dots", "functions", "readers", "selects", "slices"])
MOST = 1.15                   # times as many calls for each instruction of the larger module


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """What a compilation imports is no part of it."""
    for target in ("cpu", "h200"):
        for make in KINDS.values():
            compilation_calls(make(4), target)


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_compilation_is_linear(kind: str, target: str) -> None:
    """Passes, lowering and printing; without the C compiler."""
    sizes = LARGER if kind in OF_LITTLE else SIZES
    small, large = (compilation_calls(KINDS[kind](size), target) / size for size in sizes)
    assert large < MOST * small, f"{small:,.0f} calls for each of {sizes[0]}, {large:,.0f} for each of {sizes[1]}"


def compilation_calls(text: str, target: str) -> int:
    return calls_made(lambda module: api.compile(module, target, run=False).source, api.load(text))
