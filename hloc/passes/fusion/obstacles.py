"""Reasons against fusing a producer into a group that need no cost model: what a kernel cannot do, or must not.

    obstacle_of(transpose, group, readers, fuser)  ->  "", or "the kernel would read more than 64 arrays"
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from hloc.analysis.fusible import (
    RESHAPES,
    in_place_operands,
    is_elemental,
    is_hero,
    is_splat_constant,
)
from hloc.analysis.prologues import NO_PROLOGUE
from hloc.ir import Instruction
from hloc.ops.collectives import EXCHANGES
from hloc.passes.fusion.group import (
    MOST_PARAMETERS,
    MOST_WORK,
    REDUCTION,
    SINGLE,
    UPDATE,
    Group,
    is_free,
    kind_of,
    weight,
)
from hloc.passes.fusion.producers import bytes_made_of
from hloc.passes.fusion.prologues import EPILOGUE, plan_prologue
from hloc.passes.fusion.whole import ATTENTION, SORT

if TYPE_CHECKING:
    from hloc.passes.fusion.fuser import Fuser

MOST_BRANCHES = 8                # operands of a concatenate inside a kernel


def obstacle_of(producer: Instruction, group: Group, readers: list[Instruction], fuser: Fuser) -> str:
    """The first reason against the pair; empty if there is none. readers: the members that read the producer."""
    return (of_kinds(producer, group) or of_size(producer, group, fuser.pieces(group))
            or of_matmul(producer, group, readers, fuser)
            or (of_collectives(producer, group) if fuser.overlaps and is_hero(producer) else "")
            or (of_update(producer, group) if group.updates else "")
            or fuser.overwritten.obstacle(producer, group))


def of_kinds(producer: Instruction, group: Group) -> str:
    """What the kinds of both exclude."""
    if group.kind in (SINGLE, SORT):
        return f"{group.first.opcode} is not fused with its producers"
    if kind_of(producer) == UPDATE:
        return f"{producer.opcode} updates an array in place and is not fused with its users"
    if group.kind == ATTENTION and not is_elemental(producer):
        return "an attention kernel reads its operands from memory: their producers cannot be fused into it"
    if is_free(group) and producer.opcode not in RESHAPES:
        return "only a reshape follows, which needs no kernel"
    return ""


def of_size(producer: Instruction, group: Group, pieces: int) -> str:
    """A kernel that would be too large. pieces: the least number of kernels that the group becomes."""
    most_work, most_parameters = (most * pieces for most in (MOST_WORK, MOST_PARAMETERS))
    if group.work + weight(producer) > most_work:
        return f"the kernel would have more than {most_work} operations"
    new = {o for o in producer.operands if not is_splat_constant(o)} - group.parameters - group.members.keys()
    if len(group.parameters) + len(new) - 1 > max(most_parameters, len(group.parameters)):
        return f"the kernel would read more than {most_parameters} arrays"
    if producer.opcode == "concatenate" and len(producer.operands) > MOST_BRANCHES:
        return f"a concatenate of more than {MOST_BRANCHES} arrays is a separate kernel"
    return ""


def of_matmul(producer: Instruction, group: Group, readers: list[Instruction], fuser: Fuser) -> str:
    """What belongs to a matmul or convolution as an epilogue, and operands that it cannot compute."""
    if group.kind == REDUCTION and producer in fuser.epilogues:
        return EPILOGUE
    if group.reads_for_product(producer, readers) and producer not in group.computed and \
            group.view_of(producer, readers) is None:
        return plan_prologue(producer, group, readers, fuser) if fuser.prologues else NO_PROLOGUE
    return ""


def of_collectives(producer: Instruction, group: Group) -> str:
    """The result of a collective that an epilogue would read: the matmul (producer) would wait for it. Without the
    epilogue, the collective can run beside the matmul, unless that needs its result itself."""
    sent = {p for p in group.parameters if _moved(p).opcode in EXCHANGES}
    needed, stack = {producer}, [producer] if sent else []
    while stack:
        new = set(stack.pop().operands) - needed
        needed |= new
        stack.extend(new)
    return "" if sent <= needed else "a collective runs beside the matmul, whose epilogue would read its result"


def _moved(instruction: Instruction) -> Instruction:
    """The instruction whose elements it has."""
    while instruction.opcode in (*RESHAPES, "get-tuple-element", "copy"):
        instruction = instruction.operands[0]
    return instruction


def of_update(producer: Instruction, group: Group) -> str:
    """An update that would read the array that it overwrites."""
    targets = [root.operands[slot] for root in group.updates for _, slot in in_place_operands(root)]
    if producer in targets:
        return "an array that is updated in place must be in memory"
    if group.first.shape.is_tuple or any(o in targets for o in producer.operands):
        return "it reads the array that the kernel updates in place"
    if bytes_made_of(targets, producer) > producer.shape.num_bytes:
        return "it reads more of the array that is updated in place than it produces"
    return ""
