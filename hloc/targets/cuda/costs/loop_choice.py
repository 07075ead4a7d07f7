"""Which schedules a loop kernel may have on a GPU, and which is chosen: the one of least predicted time.

    candidates(kernel, GPUS["h200"])      [Candidate(steps, microseconds), ...], the quickest first
    chosen_form(kernel, GPUS["h200"])     the Form of the first one, or of a schedule by hand

A rule yields lists of steps; one that does not apply is dropped. No more of a rule are looked at behind one that is
slower than another; of one that would be so even if it moved no bytes, this is the time. No more are looked at behind
one that is as quick as the kernel's bytes can be moved.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.schedule.choice import Candidate
from hloc.kernels.schedule.steps import Refused, Step, read_steps
from hloc.machine import Machine
from hloc.targets.cuda.costs.loop_work import work_within
from hloc.targets.cuda.costs.model import estimate
from hloc.targets.cuda.costs.work import Work
from hloc.targets.cuda.loops.cache_read import read_again
from hloc.targets.cuda.loops.forms import distributed, form_of
from hloc.targets.cuda.loops.iteration_space import parallel_loop
from hloc.targets.cuda.loops.nest import BLOCK, LANE, LANES, ROW, THREADS, WARP, GridNest, grid_nest_of
from hloc.targets.cuda.loops.teams import Form
from hloc.targets.cuda.loops.transposes import across
from hloc.targets.cuda.loops.vector_accesses import VECTOR_BYTES

EDGES = (32, 64, 128)           # of tiles
BLOCKS = (128, 256, 512, 1024)  # threads that share a row
NEAR = 1.02                     # times what the bytes take: as quick


def chosen_form(kernel: ir.Kernel, gpu: Machine, schedule: str = "") -> Form:
    """The Form of a kernel. schedule: by hand; "": the chosen one. Raises Refused for one that does not apply."""
    steps = read_steps(schedule) if schedule else candidates(kernel, gpu)[0].steps
    return form_of(grid_nest_of(distributed(kernel, gpu)), steps)


def candidates(kernel: ir.Kernel, gpu: Machine) -> list[Candidate]:
    """All schedules that apply and may be the quickest, the quickest first. Raises UnsupportedError if none applies."""
    plain = tuple(b._replace(fetched=0) for b in kernel.buffers)
    try:
        return list(_candidates(ir.Kernel("kernel", plain, kernel.body), gpu))
    except Refused as reason:
        raise UnsupportedError(f"kernel {kernel.name} on a GPU: {reason}") from None


def every(kernel: ir.Kernel, gpu: Machine) -> list[tuple[Step, ...]]:
    """All schedules of all rules that apply, also those that are never looked at."""
    nest, found = grid_nest_of(distributed(kernel, gpu)), list[tuple[Step, ...]]()
    for steps in (steps for rule in _rules(nest) for options in rule for steps in options):
        with suppress(Refused):
            form_of(nest, steps)
            found.append(steps)
    return found


@lru_cache(maxsize=4096)
def _candidates(kernel: ir.Kernel, gpu: Machine) -> tuple[Candidate, ...]:
    nest = grid_nest_of(distributed(kernel, gpu))
    found, refused, best = list[Candidate](), "", math.inf
    for rule in _rules(nest):
        for options in rule:
            try:
                steps, form = _first(nest, options)
            except Refused as error:
                refused = str(error)
                continue
            work = work_within(form, gpu, best)
            us = estimate(work, gpu).us
            found.append(Candidate(steps, us))
            if us <= NEAR * estimate(Work(work.blocks, work.threads, memory=work.memory), gpu).us:
                return _ranked(found)
            if us > best:
                break
            best = us
    if not found:
        raise Refused(refused)
    return _ranked(found)


def _ranked(found: list[Candidate]) -> tuple[Candidate, ...]:
    return tuple(sorted(found, key=lambda one: one.cycles))


def _first(nest: GridNest, options: Iterable[tuple[Step, ...]]) -> tuple[tuple[Step, ...], Form]:
    """The first of these schedules that applies. Raises Refused if none does, for the reason of the last."""
    reason = Refused("no schedule")
    for steps in options:
        try:
            return steps, form_of(nest, steps)
        except Refused as error:
            reason = error
    raise reason


# -- rules -------------------------------------------------------------------------------------------------------------
# A rule is a row of alternatives: larger and larger tiles or blocks, shorter and shorter vectors. One that is slower
# than another ends the rule. An alternative is a list of schedules, of which the first one that applies counts.

Rule = Iterable[Iterable[tuple[Step, ...]]]


def _rules(nest: GridNest) -> Iterator[Rule]:
    return _by_elements(nest) if nest.space else _by_rows(nest)


def _bound(kind: str, *axes: str) -> tuple[Step, ...]:
    return tuple(("bind", (axis, kind)) for axis in axes)


def _vectors(axis: str, width: int) -> tuple[Step, ...]:
    return (("split", (axis, width)), ("vectorize", (axis + "i", width))) if width > 1 else ()


def _widths(kernel: ir.Kernel) -> list[int]:
    """The lanes of vectors of the narrowest type of a kernel's buffers, and shorter ones down to single elements."""
    widest = VECTOR_BYTES // min(ELEMENT_TYPES[b.type].bytes for b in kernel.buffers)
    return [width for width in (16, 8, 4, 2, 1) if width <= widest]


def _by_elements(nest: GridNest) -> Iterator[Rule]:
    """Tiles of what is read across, by vectors as long as they can be; vectors; single elements."""
    assert nest.space is not None
    widths, names = _widths(nest.kernel), [a.name for a in nest.axes]
    for read, loads in across(nest.kernel, nest.space).items():
        buffers = list(dict.fromkeys(load.buffer for load in loads))
        yield [[_tile(names, read, edge, width, buffers[:n]) for n in range(len(buffers), 0, -1) for width in widths]
               for edge in EDGES]
    yield [[_vectors("d0", width) + _bound(LANE, *names[:-1], "d0o")] for width in widths if width > 1]
    yield [[_bound(LANE, *names)]]


def _tile(names: list[str], read: str, edge: int, width: int, buffers: list[str]) -> tuple[Step, ...]:
    steps: tuple[Step, ...] = (("split", (read, edge)), ("split", ("d0", edge)))
    steps += _bound(BLOCK, *(name + "o" * (name in (read, "d0")) for name in names))
    steps += tuple(("cache_read", (buffer,)) for buffer in buffers)
    return steps + _vectors("d0i", width) + _bound(LANE, read + "i", "d0io" if width > 1 else "d0i")


def _by_rows(nest: GridNest) -> Iterator[Rule]:
    """A warp, a block or a thread for each row. What several loops read is kept, if registers suffice."""
    loop = parallel_loop(nest.kernel)
    rows = (loop.name,) if loop else ()
    if ROW in nest.kinds:
        kept, widths = read_again(nest.kernel), dict.fromkeys((_widths(nest.kernel)[0], 1))

        def shared(kind: str, threads: int) -> list[tuple[Step, ...]]:
            return [(*_bound(kind, *rows), *((("threads", (threads,)),) if threads != THREADS else ()),
                     *(("cache_read", (buffer,)) for buffer in kept[:n]), *_vectors(ROW, width),
                     *_bound(LANE, ROW + "o" * (width > 1)))
                    for n in range(len(kept), -1, -1) for width in widths]
        yield [shared(WARP, THREADS) if rows else shared(BLOCK, LANES), *(shared(BLOCK, n) for n in BLOCKS)]
    yield [[_bound(LANE, *rows)]]
