"""The work of one launch on a GPU, as counts: the input of the cost model (model.py).

In: the counts of loop_work.py and tile_work.py. Out: a Work. It contains no speeds of a device. The partition of the
kernel (blocks, threads) and its resources may depend on the device for which it was compiled.

    add of two f32[16384,4096]: Work(blocks=2112, threads=256, memory=805306368, traffic=805306368, ...)
"""
from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

RESERVED = 1 << 10                  # bytes of shared memory that the driver reserves per block
BLOCKS_PER_SM = 32                  # most resident blocks
WARP = 32


class Work(NamedTuple):
    """blocks, threads: of the launch; registers (per thread) and shared (bytes per block) limit resident blocks.

    memory        bytes of distinct elements that are read or written
    traffic       bytes between L1 and L2, in sectors of 32 bytes
    counts        warp instructions of all blocks by kind (gpus.json, "clocks")
    flops         on tensor cores, for whole tiles; form: how they are multiplied
    rounds        dependent loads of the thread with the most, over all its work
    syncs         barriers of a block, one after the other, over all its work: with the shared memory between them
    after         dependent loads of one block when all others have ended
    uneven        the work of the busiest block, relative to the mean
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
    syncs: float = 0
    after: float = 0
    uneven: float = 1

    def resident(self, shared_bytes: int, registers: int, threads: int) -> int:
        """Resident blocks of an SM with these resources."""
        by_shared = shared_bytes // (self.shared + RESERVED) if self.shared else BLOCKS_PER_SM
        by_registers = registers // (self.registers * self.threads)
        return max(1, min(by_shared, by_registers, threads // self.threads, BLOCKS_PER_SM))

    def to_json(self) -> dict[str, Any]:
        """As JSON, without empty fields; numbers have four digits."""
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
    """The number of parts of that size that cover the total."""
    return math.ceil(total / part)
