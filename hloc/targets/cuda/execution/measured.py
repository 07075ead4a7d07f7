"""The measurements of one kernel, made by measure.py and stored in a file by tuning.py."""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.kernels.ir import Tile


class Measured(NamedTuple):
    """One kernel: the fastest variant, the microseconds of each correct variant, and why each other one was refused."""

    kernel: str
    variant: str
    microseconds: dict[str, float]
    refused: dict[str, str] = {}


def describe(tile: Tile) -> str:
    """A short description of a kernel: gemm bf16 4096x4096x1024."""
    facts = dict(tile.parameters)
    sizes = facts.get("sizes") or (facts.get("batch"), *facts.get("size", ()), facts.get("lhs_features"),
                                   facts.get("features"))
    batches = math.prod(facts.get("batches", ()))
    count = f"{batches} of " if batches > 1 else ""
    return f"{tile.library_kernel} {facts['types'][0]} {count}{'x'.join(map(str, sizes))}"
