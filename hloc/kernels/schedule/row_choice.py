"""Which schedules a row nest may have, and which is chosen: the one of least predicted cost.

    row_candidates(row_nest_of(loop, most), machine)       [Candidate(steps, cycles of a row), ...], the cheapest first

Few are lowered: how much is written out and which buffers have tables follows from the shape of the nest, and rows are
not moved to lanes where the moves alone take longer than another schedule.
"""
from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import count

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import Affine, Along, affine, forms
from hloc.kernels.ir import INDEX, SERIAL, VECTOR, Apply, Assign, Expr, For, Let, Load, Mutable, Stmt, Store, Var
from hloc.kernels.operations import HEAVY
from hloc.kernels.schedule.choice import Candidate, whole_vectors
from hloc.kernels.schedule.cost import UNITS, Constants, constants, held, work_of
from hloc.kernels.schedule.hoisting import hoisted
from hloc.kernels.schedule.nest import Refused
from hloc.kernels.schedule.row_lowering import lower_rows, type_of
from hloc.kernels.schedule.row_nest import ROW_STEPS, RowNest
from hloc.kernels.schedule.steps import Step, apply_steps
from hloc.kernels.walks import expressions, loads, parts, stores, walk, with_expressions, with_parts, with_vector_loops
from hloc.machine import Machine

AT_ONCE, MOST_AT_ONCE = 4, 16
MOST_COLLAPSED = 48             # elements of rows that are one loop with others
GROUPS = (2, 3, 4)              # elements side by side that compilers load as vectors, if an iteration reads all


def row_candidates(nest: RowNest, machine: Machine) -> list[Candidate]:
    """All schedules that apply and may be the cheapest, the cheapest first."""
    known, found = constants(machine.arch), list[Candidate]()
    for steps, least in sorted(_rules(nest, known), key=lambda rule: rule[1]):
        if all(least < one.cycles for one in found):
            with suppress(Refused):
                found.append(Candidate(steps, row_cost(uses_of(nest, steps, machine), known)))
    return sorted(found, key=lambda one: one.cycles)


@lru_cache(maxsize=256)
def chosen_rows(nest: RowNest, machine: Machine) -> Candidate:
    """The schedule of a loop over rows."""
    return row_candidates(nest, machine)[0]


def scheduled_rows(nest: RowNest, steps: tuple[Step, ...], names: Iterator[int]) -> tuple[Stmt, ...]:
    """The statements of a loop over rows with a schedule. Raises Refused."""
    return lower_rows(apply_steps(nest, steps, ROW_STEPS), names)


def _rules(nest: RowNest, known: Constants) -> Iterator[tuple[tuple[Step, ...], float]]:
    """Schedules, with the cycles of a row at least: row by row; each part for all rows, so that what is computed
    for each row is a vector; tables and one loop; a row in each lane, where nothing is joined across lanes, and no lane
    is empty. Then short rows are written out, but not many functions."""
    rows, longest = nest.loop.name, max(math.prod(n for _, n in p.chain) for p in nest.loops)
    lanes: tuple[Step, ...] = (("fission", (rows,)), ("vectorize", (rows,)))
    one_by_one = _one_by_one(nest, known)
    yield (), one_by_one
    if any(isinstance(s, (Let, Mutable)) and type_of(s) != INDEX for p in nest.parts if not p.chain for s in p.body):
        yield lanes[:1], one_by_one
    if len(nest.loops) == 1 and not nest.reduces:
        cached, along = ("cache_read", (rows,)), tuple(n for n, _ in nest.loops[0].chain)
        yield (cached,), 0.0
        yield (("fuse", along), cached), 0.0
        if longest <= MOST_COLLAPSED:
            yield (("fuse", (rows, *along)),), 0.0
    if longest > MOST_COLLAPSED and not nest.reduces:
        return
    tables, least, is_moved = list[Step](), 0.0, True
    for buffer, types in nest.strided.items():
        table = max(known[f"row_moved{ELEMENT_TYPES[t].bytes}"] * n for t, n in types) / nest.tables_of(buffer)
        single = known["row_stores"] * sum(n for _, n in types)
        is_table = table <= single and nest.fits(buffer)
        tables += [("stage", (buffer,))] if is_table else []
        least, is_moved = least + (table if is_table else single), is_moved and is_table
    values = parts(e for s in walk(nest.loop.body) for e in expressions(s))
    is_short = longest <= MOST_AT_ONCE and not nest.arrays      # what is stored and read again would be no vector
    n = 1 if any(p.guards for p in nest.loops) else longest if is_short else AT_ONCE if is_moved else 1
    is_heavy = any(isinstance(e, Apply) and e.op in HEAVY for e in values)
    if is_heavy and not (is_short and longest <= AT_ONCE):
        yield (*lanes, *tables), least
        return
    if n > 1:
        lanes += ("unroll", (n,)),
    yield (*lanes, *tables), least
    if is_short and tables:
        yield lanes, 0.0


def _one_by_one(nest: RowNest, known: Constants) -> float:
    """The cycles of a row, at least, for loops along it that combine elements which are not adjacent."""
    named, cycles = forms(nest.loop.body), 0.0
    for part in nest.loops:
        steps = [affine(load.position, named).factor(part.chain[-1][0]) for load in loads(part.body)]
        if any(abs(step) > GROUPS[-1] for step in steps) and any(isinstance(s, Assign) for s in part.body):
            units = dict(zip(UNITS, work_of(part.body, known).units))
            cycles += row_cost(units, known) * math.prod(n for _, n in part.chain)
    return cycles


# -- the cost of a row -------------------------------------------------------------------------------------------------

def row_cost(uses: Mapping[str, float], machine: Constants) -> float:
    """The predicted cycles of these uses."""
    return sum(n * machine[f"row_{name}"] for name, n in uses.items())


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
        form = affine(s.extent, {})                 # of all rows, or of what they hold
        return form.constant + nest.iterations * sum(form.terms.values())

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
    for body, times in zip(hoisted(scheduled_rows(nest.measured, steps, count()), nest.different), (nest.times, 1)):
        for s in body:
            if isinstance(s, For):
                add(s, 1 / nest.iterations / times)
    return uses


def _with_groups(loop: For) -> tuple[For, int]:
    """A VECTOR loop with adjacent elements in the place of GROUPS; and the bytes of those that an iteration loads."""
    along, rests = Along(loop), defaultdict[tuple[str, int], set[int]](set)
    found: list[Load | Store] = [*loads(loop.body), *stores(loop.body)]
    forms = {one: affine(one.position, along.known) for one in found}
    groups = {one: (one.buffer, step) for one, form in forms.items()
              if (step := form.step(loop.name, along.inner)) in GROUPS
              and type_of(one) != "f16"}               # which compilers convert one by one
    for one, key in groups.items():
        rests[key].add(forms[one].constant % key[1])
    whole = {one for one, key in groups.items() if len(rests[key]) == key[1]}

    def adjacent(one: Load | Store) -> Expr:
        if one not in whole:
            return one.position
        return Affine(dict(forms[one].terms) | {Var(loop.name, INDEX): 1}, forms[one].constant).expression()

    def change(e: Expr) -> Expr:
        return e._replace(position=adjacent(e)) if isinstance(e, Load) and e in whole else with_parts(e, change)
    body = tuple(Store(s.buffer, adjacent(s), change(s.value)) if isinstance(s, Store) else with_expressions(s, change)
                 for s in loop.body)
    return (loop._replace(body=body) if whole else loop,
            sum(ELEMENT_TYPES[one.type].bytes for one in whole if isinstance(one, Load)))
