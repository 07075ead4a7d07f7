"""Horizontal fusion: independent groups that become one kernel with several results."""
from __future__ import annotations

from hloc.analysis.reads import BASE
from hloc.machine import Machine
from hloc.passes.fusion.group import (
    LOOP,
    MOST_CODE,
    MOST_OUTPUTS,
    MOST_PARAMETERS,
    MOST_WORK,
    REDUCTION,
    UPDATE,
    Group,
    is_free,
)


def merge_siblings(groups: list[Group], machine: Machine) -> list[Group]:
    """Merge groups of equal height that run over the same elements and share an operand (or, on a GPU, are so
    small that the launch is their main cost). Equal height means that no path leads from one to the other."""
    buckets: dict[tuple, list[Group]] = {}
    kept: list[Group] = []
    for group in groups:
        key = sibling_key(group) or (update_key(group) if machine.kind == "gpu" else None)
        mates = buckets.setdefault(key, []) if key else []
        mate = next((m for m in mates[-4:] if may_merge(m, group, machine) and updates_disjoint(m, group)), None)
        if mate is None:
            mates.append(group)
            kept.append(group)
        else:
            mate.absorb(group)
    return kept


def sibling_key(group: Group) -> tuple | None:
    """The properties that two groups must share to run in one kernel; None for groups that are not merged."""
    if group.kind == LOOP and not is_free(group):
        return (group.height, LOOP, group.dimensions)
    rows = group.rows
    if group.kind == REDUCTION and rows is not None and not rows.alone and not group.is_row_wise() and rows.row == BASE:
        return (group.height, REDUCTION, rows.dimensions, rows.reduced)
    return None


def update_key(group: Group) -> tuple | None:
    """The same for a slice that is written into an array in place, such as a decoder's cache."""
    first = group.first
    if group.kind != UPDATE or first.opcode != "dynamic-update-slice" or group.elements == 0 \
            or any(o.opcode != "dynamic-update-slice" or o.operands[0] not in group.parameters for o in group.outputs):
        return None
    reads = [o for m in group.members for o in m.operands]
    if any(reads.count(o.operands[0]) > 1 for o in group.outputs):          # an update of what was there before
        return None
    return (group.height, UPDATE, group.dimensions)


def updates_disjoint(a: Group, b: Group) -> bool:
    """Whether two groups update different arrays in place, and read the same ones besides: of different ones, one might
    be overwritten before the other exists."""
    if a.kind != UPDATE:
        return True
    first, second = ({o.operands[0] for o in g.outputs} for g in (a, b))
    return not first & second and a.parameters - first == b.parameters - second


def may_merge(a: Group, b: Group, machine: Machine, shared: bool = False) -> bool:
    """Whether merging is within the limits and pays; `shared`: they are known to read the same array."""
    if a.work + b.work > MOST_WORK or a.code + b.code > MOST_CODE:
        return False
    if len(a.parameters | b.parameters) > MOST_PARAMETERS or len(a.outputs) + len(b.outputs) > MOST_OUTPUTS:
        return False
    if shared or (machine.kind == "gpu" and max(a.elements, b.elements) < machine.cores * 128):
        return True
    common = (a.parameters | a.members.keys()) & (b.parameters | b.members.keys())
    return any(o.shape.num_elements > 1 for o in common)
