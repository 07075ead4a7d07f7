"""What was measured of one kernel: what measure.py finds and tuning.py keeps in a file."""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.kernels.ir import Tile


class Measured(NamedTuple):
    """One kernel: the way that won, the microseconds of each that was right, and why the others are none."""

    kernel: str
    way: str
    microseconds: dict[str, float]
    refused: dict[str, str] = {}


def describe(tile: Tile) -> str:
    """A kernel in a few words: gemm bf16 4096x4096x1024."""
    facts = dict(tile.parameters)
    sizes = facts.get("sizes") or (facts.get("batch"), *facts.get("size", ()), facts.get("lhs_features"),
                                   facts.get("features"))
    batches = math.prod(facts.get("batches", ()))
    return f"{tile.routine} {facts['types'][0]} {f'{batches} of ' if batches > 1 else ''}{'x'.join(map(str, sizes))}"
