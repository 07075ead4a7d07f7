"""Loops over rows as they are costed: with vectors where compilers or later schedules make them.

    costed(nest, steps, machine)       the statements of all rows with a schedule, whose cost is compared (cost.py)
"""
from __future__ import annotations

from collections import defaultdict
from itertools import count

from hloc.kernels.affine import Along, affine, constant_of, plus, stride, without
from hloc.kernels.ir import INDEX, SERIAL, Expr, For, Stmt, Var
from hloc.kernels.schedule.cost import REGISTER, constants, cost
from hloc.kernels.schedule.hoisting import hoisted
from hloc.kernels.schedule.lowering import lower
from hloc.kernels.schedule.nest import nest_of, vectorize
from hloc.kernels.schedule.row_lowering import type_of
from hloc.kernels.schedule.row_nest import RowNest, accesses
from hloc.kernels.schedule.rules import GROUPS, lane_counts, may_be_scalar, scheduled
from hloc.kernels.schedule.steps import Refused, Step
from hloc.kernels.walks import with_all_parts, with_vector_loops
from hloc.machine import Machine


def whole_vectors(loop: For, machine: Machine) -> tuple[Stmt, ...]:
    """The statements of a loop as vectors that it fills, the last of which may overlap the one before, by the cheapest
    of the few schedules that differ in lanes; a scalar loop, where that is cheaper, or where it is no nest."""
    scalar: tuple[Stmt, ...] = (loop._replace(kind=SERIAL),)
    try:
        nest = nest_of(loop)
    except Refused:
        return scalar
    found = [lower(vectorize(nest, loop.name, lanes), count()) for lanes in lane_counts(nest, REGISTER)
             if lanes <= (nest.iterations or 0)]                 # compilers take pairs of shorter ones
    if not found or may_be_scalar(nest, REGISTER):
        found.append(scalar)
    return min(found, key=lambda body: cost(body, constants(machine.arch))) if len(found) > 1 else found[0]


def costed(nest: RowNest, steps: tuple[Step, ...], machine: Machine) -> tuple[Stmt, ...]:
    """All rows, in all iterations of the loop around, with a schedule, if VECTOR loops have vectors as long as they
    fill. Raises Refused."""
    before, each = hoisted(scheduled(nest.measured, steps, count()), nest.different)
    around = For("around", nest.times, SERIAL, each)
    return with_vector_loops((*before, around), lambda s: whole_vectors(_with_groups(s), machine))


def _with_groups(loop: For) -> For:
    """A VECTOR loop with adjacent elements in the place of GROUPS, but for f16, which compilers convert one by one."""
    along, groups = Along(loop), defaultdict[tuple[str, int | None, str], dict[Expr, Expr]](dict)
    for one in accesses(loop.body):
        form = affine(one.position, along.known)
        groups[one.buffer, stride(form, loop.name, along.inner), type_of(one)][one.position] = form
    adjacent = {position: plus(without(form, loop.name), Var(loop.name, INDEX))
                for (_, step, type), found in groups.items() if step in GROUPS and type != "f16"
                and len({constant_of(form) % step for form in found.values()}) == step
                for position, form in found.items()}
    return loop._replace(body=with_all_parts(loop.body, lambda e: adjacent.get(e, e)))
