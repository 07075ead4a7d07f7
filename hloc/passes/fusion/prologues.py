"""Prologues: operands that a matmul or convolution computes while it loads them, on targets that support it.

In: a producer that a matmul of a group reads, also through views. Out: "", and the group records the instructions that
will join it; or why the operand needs a separate kernel.

    c = bf16[4096,4096] convert(w)      w: s8
    m = bf16[4096,4096] multiply(c, s)                      =>   all three in one kernel, if rows are few
    d = bf16[8,4096] dot(x, m)

The choice is made once for the whole expression of an operand (hloc/analysis/prologues.py), because one step alone
would often read more than it saves.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hloc.analysis.fusible import is_hero
from hloc.analysis.prologues import NO_PROLOGUE, Prologue, prologue_of, why_not
from hloc.ir import Instruction
from hloc.passes.fusion.group import LOOP, PRODUCT, REDUCTION, Group, kind_of

if TYPE_CHECKING:
    from hloc.passes.fusion import Fuser

TARGETS = frozenset(["cuda"])           # whose matmuls compute operands
EPILOGUE = "it is fused as the epilogue of the matmul or convolution that produces its operand"


def plan_prologue(producer: Instruction, group: Group, readers: list[Instruction], fuser: Fuser) -> str:
    """Decide what the group computes of the operand that `producer` is, also through views; "" if it computes it."""
    if producer in fuser.epilogues:
        return EPILOGUE
    operand, dot = _operand_of(producer, group, readers, fuser)
    if dot is None or len(dot.operands) != 2 or dot.get("sparsity") is not None:
        return NO_PROLOGUE
    found = _alone_in_group(operand, producer, group, fuser)
    if producer not in found.members:
        return NO_PROLOGUE
    if any((is_hero(s) or s in fuser.epilogues) and s.shape.dimensions == operand.shape.dimensions
           and _is_inside(s, found, fuser) for s in found.sources):
        return EPILOGUE
    alone = all(r in group.members for r in fuser.readers[producer]) and not any(
        _would_join(source, found, fuser) for source in found.sources)
    for number in (n for n, o in enumerate(dot.operands) if o is operand):
        reason = why_not(dot, number, found, fuser.machine, alone=alone)
        if reason:
            return reason
    group.computed.update(found.members)
    return ""


def _operand_of(producer: Instruction, group: Group, readers: list[Instruction],
                fuser: Fuser) -> tuple[Instruction, Instruction | None]:
    """The operand of the group's matmul that the producer is, also through views that joined before, and the matmul."""
    node = producer
    while group.kind == PRODUCT:
        inside = [r for r in dict.fromkeys(readers) if r in group.members]
        if len(inside) != 1:
            break
        if is_hero(inside[0]):
            return node, inside[0]
        if inside[0] not in group.views:
            break
        node = inside[0]
        readers = fuser.readers[node]
    return node, None


def _alone_in_group(operand: Instruction, producer: Instruction, group: Group, fuser: Fuser) -> Prologue:
    """The instructions that may be computed for the operand and have no other users; the producer itself may have
    some."""
    def is_source(node: Instruction) -> bool:
        if node in group.members or node is producer:
            return False
        elsewhere = node is fuser.computation.root or bool(fuser.homes[node])
        return elsewhere or node in fuser.pinned or node in fuser.epilogues
    stops: Callable[[Instruction], bool] = is_source
    found = prologue_of(operand, stops)
    while True:
        inside = {*found.members, *group.members}
        shared = {m for m in found.members if m not in group.members and m is not producer
                  and any(r not in inside for r in fuser.readers[m])}
        if not shared:
            return found
        stops = _either(stops, shared)
        found = prologue_of(operand, stops)


def _either(is_source: Callable[[Instruction], bool], shared: set[Instruction]) -> Callable[[Instruction], bool]:
    return lambda node: node in shared or is_source(node)


def _would_join(source: Instruction, found: Prologue, fuser: Fuser) -> bool:
    """Whether a separate kernel for the operand would compute this source, too, so that no kernel is saved."""
    return kind_of(source) in (LOOP, REDUCTION) and source not in fuser.epilogues and source not in fuser.pinned \
        and _is_inside(source, found, fuser)


def _is_inside(source: Instruction, found: Prologue, fuser: Fuser) -> bool:
    """Whether only computed instructions read it."""
    return all(r in found.members for r in fuser.readers[source])
