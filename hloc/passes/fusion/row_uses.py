"""Vertical fusion of statistics of rows with the kernel that uses them first: a norm is one kernel on a GPU.

A norm of a training step stores its statistics for the backward pass. These have several readers, so no group of
elements takes them in while fusion grows groups. Here, when all groups are known, a group of elements that reads row
results at its own rows joins the group that computes them.

    m, r = fusion(x)  (mean and scale of each row, which the backward pass also reads);  y = fusion(x, m, r)
      ->  m, r, y = fusion(x), kind=kCustom
"""
from __future__ import annotations

from collections.abc import Callable, Iterator

from hloc.analysis.reads import BASE
from hloc.ir import Instruction
from hloc.machine import Machine
from hloc.passes.fusion.group import (
    LOOP,
    MOST_OUTPUTS,
    MOST_PARAMETERS,
    MOST_WORK,
    REDUCTION,
    Group,
    Rows,
    without_ones,
)

Fits = Callable[[Rows, Instruction], bool]


def merge_row_uses(groups: list[Group], machine: Machine, fits: Fits) -> list[Group]:
    """The groups, some merged. fits: whether a row can be processed from its first load to its last store."""
    if machine.kind != "gpu":
        return groups
    owner = {o: g for g in groups for o in g.outputs}
    merged: set[Group] = set()
    for user in sorted(groups, key=lambda g: -g.height):
        sources = {owner[o]: None for o in user.parameters if o in owner}
        statistics = next((s for s in sources if may_join(user, s, list(sources), fits)), None)
        if statistics is not None:
            join(user, statistics)
            owner.update(dict.fromkeys(user.outputs, statistics))
            merged.add(user)
    return [g for g in groups if g not in merged]


def may_join(user: Group, statistics: Group, sources: list[Group], fits: Fits) -> bool:
    """Whether a group runs over the elements of the rows that another one reduces, and can join it. No path may lead
    from the one to the other through a third: what else it reads has no operands, or stands above both."""
    rows = statistics.rows
    if user.kind != LOOP or statistics.kind != REDUCTION or rows is None or not rows.trailing or rows.alone \
            or without_ones(user.dimensions) != without_ones(rows.dimensions):
        return False
    if any(s is not statistics and s.height <= statistics.height and s.parameters for s in sources):
        return False
    if any(m.control_predecessors for g in (user, statistics) for m in g.members):
        return False
    together = len(user.parameters | statistics.parameters)
    if user.work + statistics.work > MOST_WORK or together > MOST_PARAMETERS \
            or len(user.outputs) + len(statistics.outputs) > MOST_OUTPUTS:
        return False
    return all(fits(rows, r) for r in reduces(statistics)) and reads_own_rows(user, statistics, rows)


def reduces(group: Group) -> Iterator[Instruction]:
    return (m for m in group.members if m.opcode == "reduce")


def reads_own_rows(user: Group, statistics: Group, rows: Rows) -> bool:
    """Whether each element reads the results of its own row, or the element at its own place."""
    own = user.contexts.scalar() if rows.columns == user.elements else user.contexts.quotient(BASE, rows.columns)
    for output in statistics.outputs:
        if output not in user.parameters:
            continue
        asked = user.asked(output, [m for m in user.members if output in m.operands])
        if asked != ((BASE,) if output.shape.num_elements == user.elements else (own,)):
            return False
    return True


def join(user: Group, statistics: Group) -> None:
    """The group of the statistics computes all results; its rows are full ones now."""
    statistics.members.update(user.members)
    statistics.outputs.update(user.outputs)
    statistics.parameters = (statistics.parameters | user.parameters) - statistics.members.keys()
    statistics.feeds_full.update(reduces(statistics))
    statistics.work += user.work
    statistics.code += user.code
