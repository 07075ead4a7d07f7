"""The kernels of a program: identical instructions are lowered once, and kernels of one structure have one number.

    table = KernelTable(module, machine)
    for call in table.of(instruction).calls: table.number(call.kernel)
"""
from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hloc.analysis.structure import Structures
from hloc.ir import Instruction, Module
from hloc.kernels.ir import Kernel, Tile
from hloc.kernels.lower import Lowered, lower
from hloc.machine import Machine

LARGEST_COMPARED = 2000           # instructions of a fusion that is compared with those lowered before


@dataclass
class KernelTable:
    """kernels: by their numbers."""

    module: Module
    machine: Machine
    kernels: list[Kernel | Tile] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)
    lowered: dict[Any, Lowered] = field(default_factory=dict)

    @cached_property
    def structures(self) -> Structures:
        return Structures(self.module, LARGEST_COMPARED)

    def of(self, instruction: Instruction) -> Lowered:
        """The kernels of an instruction; identical instructions, as in repeated layers, are lowered once."""
        key = self.structures.key(instruction), operands_key(instruction, self.structures)
        lowered = self.lowered.get(key)
        if lowered is None:
            lowered = self.lowered[key] = lower(instruction, self.machine)
        return lowered

    def number(self, kernel: Kernel | Tile) -> int:
        """The number of a kernel; kernels with the same structure have the same number."""
        key = kernel.structure()
        if key not in self.numbers:
            self.numbers[key] = len(self.kernels)
            self.kernels.append(kernel)
        return self.numbers[key]


def operands_key(instruction: Instruction, structures: Structures) -> tuple:
    """The properties of operands that lowering may read: their shapes, which are the same, and the values of
    constants."""
    places: dict[Instruction, int] = {}
    return tuple((places.setdefault(o, n), structures.key(o) if o.opcode == "constant" else
                  structures.shape_number(o.shape)) for n, o in enumerate(instruction.operands))
