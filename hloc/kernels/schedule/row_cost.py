"""What a row uses with a schedule, by which schedules of rows are compared (cost.row_cost).

    uses_of(nest, steps, machine)       {"loads": 1.25, "path": 8.0, ...}
"""
from __future__ import annotations

from collections import defaultdict
from itertools import count

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import Along, affine, constant_of, plus, stride, without
from hloc.kernels.indexing import sum_parts
from hloc.kernels.ir import INDEX, SERIAL, VECTOR, Expr, For, Load, Stmt, Store, Var
from hloc.kernels.schedule.cost import REGISTER, UNITS, constants, cost, held, work_of
from hloc.kernels.schedule.hoisting import hoisted
from hloc.kernels.schedule.nest import OVERLAP, nest_of
from hloc.kernels.schedule.row_lowering import type_of
from hloc.kernels.schedule.row_nest import RowNest, accesses
from hloc.kernels.schedule.rules import GROUPS, lanes_along, may_be_scalar, scheduled
from hloc.kernels.schedule.steps import Refused, Step
from hloc.kernels.walks import walk, with_expressions, with_parts, with_vector_loops
from hloc.machine import Machine


def whole_vectors(loop: For, machine: Machine) -> tuple[Stmt, ...]:
    """The statements of a loop as vectors that it fills, the last of which may overlap the one before, by the cheapest
    of the few schedules that differ in lanes; a scalar loop, where that is cheaper, or where it is no nest."""
    scalar: tuple[Stmt, ...] = (loop._replace(kind=SERIAL),)
    try:
        nest = nest_of(loop)
        found = [scheduled(nest, steps, count()) for steps in lanes_along(nest, REGISTER)    # compilers take pairs of
                 if len(steps) == 2 and OVERLAP in steps[0][1]]                              # shorter ones
    except Refused:
        return scalar
    if not found or may_be_scalar(nest, REGISTER):
        found.append(scalar)
    return min(found, key=lambda body: cost(body, constants(machine.arch))) if len(found) > 1 else found[0]


def uses_of(nest: RowNest, steps: tuple[Step, ...], machine: Machine) -> dict[str, float]:
    """What a row uses with a schedule, if VECTOR loops have vectors as long as they fill: of each unit (cost.UNITS), of
    `moved` elements by their bytes, bytes of `groups` of elements, of `loops`, and the cycles of `path` for which it
    waits for itself, less those in which a CPU is at others. Raises Refused."""
    uses: dict[str, float] = defaultdict(float)
    known, grouped = constants(machine.arch), dict[int, tuple[For, int]]()

    def with_groups(s: For) -> tuple[For, int]:
        if id(s) not in grouped:
            grouped[id(s)] = _with_groups(s)
        return grouped[id(s)]

    def iterations(s: For) -> int:
        if isinstance(s.extent, int):
            return s.extent
        terms, constant = sum_parts(s.extent)       # of all rows, or of what they hold
        return constant + nest.iterations * sum(times for _, times in terms)

    def vectors(s: For) -> tuple[Stmt, ...]:
        return whole_vectors(with_groups(s)[0]._replace(extent=iterations(s)), machine)

    def bytes_of_groups(s: Stmt) -> float:
        if not isinstance(s, For):
            return 0
        return iterations(s) * (with_groups(s)[1] if s.kind == VECTOR else sum(map(bytes_of_groups, s.body)))

    def add(s: For, times: float) -> None:
        first, is_one = s.body[0], len(s.body) == 1
        times *= iterations(s) if s.kind == SERIAL else 1
        if s.kind == SERIAL and is_one and isinstance(first, For) and first.kind == SERIAL:
            add(first, times)
        elif s.kind == SERIAL and isinstance(first, Store) and isinstance(first.value, Load):
            uses[f"moved{ELEMENT_TYPES[first.value.type].bytes}"] += times
        else:
            body: tuple[Stmt, ...] = (s,) if s.kind == VECTOR else s.body
            uses["groups"] += times * sum(map(bytes_of_groups, body))
            work = work_of(with_vector_loops(body, vectors), known)
            waits = s.kind == SERIAL and not (is_one and isinstance(first, For))
            path = work.path / held(work, known["window"]) if waits else 0.0
            inner = float(sum(isinstance(one, For) for one in walk(body)))
            for name, n in zip((*UNITS, "loops", "path"), (*work.units, inner, path)):
                uses[name] += times * n
    for body, times in zip(hoisted(scheduled(nest.measured, steps, count()), nest.different), (nest.times, 1)):
        for s in body:
            if isinstance(s, For):
                add(s, 1 / nest.iterations / times)
    return uses


def _with_groups(loop: For) -> tuple[For, int]:
    """A VECTOR loop with adjacent elements in the place of GROUPS; and the bytes of those that an iteration loads."""
    along, rests = Along(loop), defaultdict[tuple[str, int], set[int]](set)
    forms = {one: affine(one.position, along.known) for one in accesses(loop.body)}
    groups = {one: (one.buffer, step) for one, form in forms.items()
              if (step := stride(form, loop.name, along.inner)) in GROUPS
              and type_of(one) != "f16"}               # which compilers convert one by one
    for one, key in groups.items():
        rests[key].add(constant_of(forms[one]) % key[1])
    whole = {one for one, key in groups.items() if len(rests[key]) == key[1]}

    def adjacent(one: Load | Store) -> Expr:
        if one not in whole:
            return one.position
        return plus(without(forms[one], loop.name), Var(loop.name, INDEX))

    def change(e: Expr) -> Expr:
        return e._replace(position=adjacent(e)) if isinstance(e, Load) and e in whole else with_parts(e, change)
    body = tuple(Store(s.buffer, adjacent(s), change(s.value)) if isinstance(s, Store) else with_expressions(s, change)
                 for s in loop.body)
    return (loop._replace(body=body) if whole else loop,
            sum(ELEMENT_TYPES[one.type].bytes for one in whole if isinstance(one, Load)))
