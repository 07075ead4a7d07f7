"""The resources that each kernel of a CUDA C file uses of an SM: registers, shared memory, stack and spills.

    resources(text, "sm_90a")["k0_fusion_add"] == Resources(registers=20, shared=0, stack=0, spill_stores=0, ...)

They come from ptxas (-Xptxas -v), through NVRTC or nvcc; no GPU is needed. Sizes are in bytes, per thread or per block.
"""
from __future__ import annotations

import re
from typing import NamedTuple

from hloc.targets.cuda.compiler import compile_verbosely

ENTRY = re.compile(r"Compiling entry function '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")


class Resources(NamedTuple):
    """registers, stack, spill_stores, spill_loads: per thread; shared: per block."""

    registers: int
    shared: int
    stack: int
    spill_stores: int
    spill_loads: int

    def blocks_per_sm(self, threads: int, registers: int, most_threads: int, shared: int) -> int:
        """The number of blocks of so many threads that are resident at once on an SM with these facts (gpus.json)."""
        warps = -(-threads // 32)
        by_registers = registers // (warps * 32 * -(-self.registers // 8) * 8)
        by_shared = shared // self.shared if self.shared else by_registers
        return min(by_registers, by_shared, most_threads // (warps * 32), 32)


def resources(text: str, arch: str) -> dict[str, Resources]:
    """The resources of every kernel of a CUDA C file. Raises BuildError if it does not compile."""
    return resources_in(compile_verbosely(text, arch))


def resources_in(report: str) -> dict[str, Resources]:
    """The resources of every kernel that a report of ptxas (compile_verbosely) tells of."""
    found: dict[str, Resources] = {}
    name, spills = "", (0, 0, 0)
    for line in report.splitlines():
        if match := ENTRY.search(line):
            name, spills = match.group(1), (0, 0, 0)
        elif match := SPILLS.search(line):
            stack, stores, loads = map(int, match.groups())
            spills = stack, stores, loads
        elif match := USED.search(line):
            shared = SHARED.search(line)
            found[name] = Resources(int(match.group(1)), int(shared.group(1)) if shared else 0, *spills)
    return found
