"""What one launch makes a GPU do, as counts: the input of the cost model (model.py).

In: what loop_work.py and tile_work.py count in a kernel. Out: a Work; it says nothing of how fast a device is, but how
the kernel is cut (blocks, threads) and what it asks for may depend on the device that it was made for.

    add of two f32[16384,4096]: Work(blocks=2112, threads=256, memory=805306368, traffic=805306368, ...)
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

RESERVED = 1 << 10                  # bytes of shared memory that the driver keeps of each block's
BLOCKS_PER_SM = 32                  # that an SM can hold
WARP = 32


class Work(NamedTuple):
    """blocks, threads: of the launch; registers (of a thread) and shared (bytes of a block): how many blocks fit.

    memory        bytes of different elements that are read or written
    traffic       bytes that leave or reach L1, in sectors of 32 bytes
    counts        warp instructions of all blocks by kind (gpus.json, "clocks")
    flops         on tensor cores, whole tiles; form: how they are multiplied
    rounds        how many loads wait for one another in the thread that has most of them, all its work together
    uneven        the work of the block that has most, against the mean
    """

    blocks: int
    threads: int
    registers: int = 32
    shared: int = 0
    memory: float = 0
    traffic: float = 0
    counts: Mapping[str, float] = {}
    flops: float = 0
    form: str = ""
    rounds: float = 0
    uneven: float = 1

    def resident(self, shared_bytes: int, registers: int, threads: int) -> int:
        """Blocks that an SM with so much of each runs at a time."""
        by_shared = shared_bytes // (self.shared + RESERVED) if self.shared else BLOCKS_PER_SM
        by_registers = registers // (self.registers * self.threads)
        return max(1, min(by_shared, by_registers, threads // self.threads, BLOCKS_PER_SM))

    def to_json(self) -> dict[str, Any]:
        """Without what is empty; figures to four digits."""
        def short(value):
            if isinstance(value, Mapping):
                return {k: short(v) for k, v in value.items() if v}
            return float(f"{value:.4g}") if isinstance(value, float) and not value.is_integer() else \
                int(value) if isinstance(value, float) else value
        return {name: short(value) for name, value in self._asdict().items() if value}

    @staticmethod
    def from_json(facts: Mapping[str, Any]) -> Work:
        return Work(**facts)


def cut(total: int, part: int) -> int:
    """Parts of that size that hold the total."""
    return math.ceil(total / part)
