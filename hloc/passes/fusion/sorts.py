"""Sorts that become one kernel with the slices that read them (hloc/analysis/sorted_parts.py): other elements are not
stored and, if a target can select, not sorted.

    s = f32[4,1000] sort(x), dimensions={1}             t = f32[4,8] fusion(x), kind=kCustom, calls=f
    t = f32[4,8] slice(s), slice={[0:4], [0:8]}     =>  f { the two instructions }
"""
from __future__ import annotations

from hloc.analysis.fusible import is_splat_constant
from hloc.analysis.sorted_parts import sorted_parts
from hloc.ir import Computation, Instruction
from hloc.passes.fusion.whole import SORT, WholeKernel

MOST_PARTS = 8


def sort_kernels(computation: Computation, readers: dict[Instruction, list[Instruction]],
                 pinned: set[Instruction]) -> list[WholeKernel]:
    """The kernels of a computation that sort and slice. pinned: instructions whose place is fixed."""
    found = []
    for sort in computation.instructions:
        if sort.opcode != "sort" or any(is_splat_constant(o) for o in sort.operands):
            continue
        sliced = sorted_parts(sort, readers, computation.root)
        if sliced is not None and len(sliced.parts) <= MOST_PARTS and pinned.isdisjoint(sliced.members):
            found.append(WholeKernel(SORT, sort, sliced.members, tuple(p.slice for p in sliced.parts)))
    return found
