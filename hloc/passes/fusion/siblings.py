"""Groups side by side that become one kernel with several results: horizontal fusion."""
from __future__ import annotations

from hloc.analysis.fusible import spreads_rows
from hloc.analysis.reads import BASE
from hloc.ir import Instruction
from hloc.machine import Machine
from hloc.passes.fusion.group import (
    LOOP,
    MOST_CODE,
    MOST_OUTPUTS,
    MOST_PARAMETERS,
    MOST_WORK,
    REDUCTION,
    Group,
    is_free,
)

LONG_ROWS = 4096         # bytes: what takes longer to move than to start a kernel


def merge_siblings(groups: list[Group], machine: Machine) -> list[Group]:
    """Merge groups of equal height that run over the same elements and share a large operand (or, on a GPU, are so
    small that the launch is their main cost). Equal height means that no path leads from one to the other."""
    buckets: dict[tuple, list[Group]] = {}
    kept: list[Group] = []
    for group in groups:
        key = sibling_key(group)
        mates = buckets.setdefault(key, []) if key else []
        mate = next((m for m in mates[-4:] if may_merge(m, group, machine)), None)
        if mate is None:
            mates.append(group)
            kept.append(group)
        else:
            mate.absorb(group)
    return kept


def sibling_key(group: Group) -> tuple | None:
    """What two groups must have in common to run in one kernel; None for those that stay alone."""
    if group.kind == LOOP and not is_free(group) and not spreads_rows(group.first):
        return (group.height, LOOP, group.dimensions)
    if group.kind == REDUCTION and not group.rows.alone and not group.is_row_wise() and group.rows.row == BASE:
        return (group.height, REDUCTION, group.rows.dimensions, group.rows.reduced)
    return None


def may_merge(a: Group, b: Group, machine: Machine, shared: bool = False) -> bool:
    """Within the limits of size, and worth it; `shared`: that they read the same large array is known."""
    if a.work + b.work > MOST_WORK or a.code + b.code > MOST_CODE:
        return False
    if len(a.parameters | b.parameters) > MOST_PARAMETERS or len(a.outputs) + len(b.outputs) > MOST_OUTPUTS:
        return False
    if shared or (machine.kind == "gpu" and max(a.elements, b.elements) < machine.cores * 128):
        return True
    least = max(2, (a.rows.elements if a.rows else a.elements) // 2)
    common = (a.parameters | a.members.keys()) & (b.parameters | b.members.keys())
    return any(o.shape.num_elements >= least and not (cuts_rows(a, o) and cuts_rows(b, o)) for o in common)


def cuts_rows(group: Group, operand: Instruction) -> bool:
    """Whether a group reads but some whole rows of an operand, and long ones: two that do have nothing in common, and
    one kernel would go along several places of memory at once."""
    readers = [m for m in group.members if operand in m.operands]
    return operand not in group.members and all(
        m.opcode in ("slice", "dynamic-slice") and m.shape.rank > 1 and operand is m.operands[0]
        and m.shape.dimensions[-1] == operand.shape.dimensions[-1] and m.shape.num_bytes >= LONG_ROWS for m in readers)
