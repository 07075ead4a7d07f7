"""Loop nests: the loops of a kernel, found by trial runs.

In: the number of elements of a kernel's iteration space, and a function that emits one point of it. Out: the loops. All
dimensions start as one collapsed loop; a trial run shows which divisions its accesses need, and the loop is split
there, until nothing is left to split. So an elementwise op over [8,128,768] is one loop of 786,432, a bias add two.

    factors([8, 128, 768], emit) -> [1024, 768]

Then `nest` opens the loops: one PARALLEL loop over the outer ones, a VECTOR loop innermost.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from hloc.kernels import indexing
from hloc.kernels.builder import Builder
from hloc.kernels.indexing import Atom, Index, index_apply
from hloc.kernels.ir import INDEX, PARALLEL, SERIAL, VECTOR, Apply, Const
from hloc.machine import Machine

BLOCK = 4096            # approximate elements of one PARALLEL iteration of a flat loop
ROW_BYTES = 16 << 10    # of a block of rows that are reduced,
MOST_ROWS, FEWEST_ROWS = 128, 16        # and their number
MOST_BESIDE = 32        # iterations of the loop around them
ENOUGH = 64             # PARALLEL iterations that keep all threads busy
MOST_TRIALS = 8
SHORT_VECTOR = 8        # innermost loops below this length are no vectors,
LONG_VECTOR = 64        # and those of this one are several
WORTH_VECTORS = 4       # operations of an element

LEAST_COLUMNS = 32      # two of the widest vectors
SIDE_BY_SIDE = (2, 3, 4)    # lengths of an innermost loop that one iteration of the loop around it unrolls, and
MOST_OPERATIONS = 40    # the maximum of operations: adjacent elements are interleaved in registers
MOST_PLACES, MOST_DIFFERENT = 9, 256    # if elements differ by position, so that one loop would need selects

Emit = Callable[[Builder, tuple[Index, ...]], None]


def factors(dimensions: Sequence[int], emit: Emit) -> tuple[list[int], Builder]:
    """The loop extents that need no (or the least) division inside, and the Builder of the last trial."""
    def emit_point(builder: Builder, counters: tuple[Index, ...], extents: list[int]) -> None:
        emit(builder, indexing.delinearize(indexing.linearize(counters, extents), dimensions))
    extents, _, builder = refine([math.prod(dimensions)], emit_point)
    return extents, builder


def refine(extents: list[int], emit: Callable[[Builder, tuple[Index, ...], list[int]], None]
           ) -> tuple[list[int], list[int], Builder]:
    """Split loops until emit(builder, counters, extents) needs no more divisions that a split can remove.

    Gives the finer extents, for each the number of the original loop, and the Builder of the last trial."""
    origins = list(range(len(extents)))
    for _ in range(MOST_TRIALS):
        builder, names = Builder(), []
        with ExitStack() as stack:
            counters = tuple(stack.enter_context(builder.loop(n)) for n in extents)
            names = [next(iter(indexing.variables(c)), "") for c in counters]
            emit(builder, counters, extents)
        parts = _split(extents, names, builder.divisions)
        finer = [extent for part in parts for extent in part]
        if finer == extents:
            break
        origins = [origin for origin, part in zip(origins, parts) for _ in part]
        extents = finer
    return extents, origins, builder


def has_short_columns(extents: list[int], trial: Builder) -> bool:
    """Whether elements that are computed, not only moved, are in innermost loops of less than two vectors, as in
    channels split into groups."""
    computed = trial.operations - len(trial.accesses)
    has_loops = trial.counts.get("i", 0) > sum(n > 1 for n in extents)
    return (len(extents) > 2 and extents[-1] < LEAST_COLUMNS and computed >= WORTH_VECTORS and not has_loops
            and not finds_rows(extents, trial))


def whole_columns(extents: list[int]) -> list[int]:
    """The extents with innermost loops collapsed until they have two vectors."""
    joined = list(extents)
    while len(joined) > 2 and joined[-1] < LEAST_COLUMNS:
        joined[-2:] = [joined[-2] * joined[-1]]
    return joined


def neighbours(extents: list[int], trial: Builder, emit: Emit, in_line: bool) -> int:
    """The number of elements along the innermost dimension that one iteration computes: 1, or all of a very short one,
    if the loop around it is long enough for vectors; emit: as for `refine`, without the extents; in_line: whether
    elements have a type that is vectorized only if contiguous, so that selects cost more."""
    has_loops = trial.counts.get("i", 0) > sum(n > 1 for n in extents)
    if len(extents) < 2 or not 1 < extents[-1] <= MOST_PLACES or extents[-2] < LONG_VECTOR // 4 or has_loops:
        return 1
    if finds_rows(extents, trial):
        return 1
    operations, chosen = row_operations(extents, emit), extents[-1] * trial.operations
    if extents[-1] in SIDE_BY_SIDE and operations <= MOST_OPERATIONS:
        return extents[-1]
    differ = trial.guards and (operations if in_line else 2 * operations) < chosen
    enough = extents[-1] in SIDE_BY_SIDE or extents[-2] >= 2 * LONG_VECTOR
    return extents[-1] if differ and enough and operations <= MOST_DIFFERENT else 1


def row_operations(extents: Sequence[int], emit: Emit) -> int:
    """The operations of all elements of an innermost row, one after the other: position-dependent values need no
    select."""
    builder = Builder()
    with ExitStack() as stack:
        counters = [stack.enter_context(builder.loop(n)) for n in extents[:-1]]
        for place in range(extents[-1]):
            emit(builder, (*counters, indexing.constant(place)))
    return builder.operations


def interleaved(extents: list[int], trial: Builder) -> int | None:
    """The number of a very short loop, not the innermost, along which elements are contiguous, as channels of pixels
    are when planes are written: one iteration computes all of them, and its loads are vectors."""
    inner, has_loops = f"i{len(extents) - 1}", trial.counts.get("i", 0) > sum(n > 1 for n in extents)
    for n in range(len(extents) - 2, -1, -1):
        if extents[n] in SIDE_BY_SIDE and extents[-1] >= LONG_VECTOR // 4 and not has_loops and any(
                indexing.coefficient_of(p, f"i{n}") == 1 and indexing.coefficient_of(p, inner) == extents[n]
                for _, p in trial.accesses):
            return n if trial.operations * extents[n] <= MOST_OPERATIONS else None
    return None


def finds_rows(extents: Sequence[int], trial: Builder) -> bool:
    """Whether the start of a row is data-dependent, and the innermost loop runs along the row:
    elemental/row_fission.py."""
    return len(extents) > 1 and any(trial.levels[name] < len(extents) for name in trial.found)


def _split(extents: list[int], names: list[str], divisions: set[Atom]) -> list[list[int]]:
    """Split each loop at the divisors of its variable, if they divide one another."""
    finer: list[list[int]] = []
    for extent, name in zip(extents, names):
        wanted = {d for atom in divisions for d in _cuts(atom, name) if 1 < d < extent and extent % d == 0}
        chain = [1]
        for divisor in sorted(wanted):
            if divisor % chain[-1] == 0:
                chain.append(divisor)
        chain.append(extent)
        finer.append([chain[k + 1] // chain[k] for k in range(len(chain) - 2, -1, -1)])
    return finer


def _cuts(atom: Atom, name: str) -> Iterator[int]:
    for inner, factor in Index(*atom.inner).terms:
        if inner.kind == indexing.VARIABLE and inner.name == name and atom.divisor % abs(factor) == 0:
            yield atom.divisor // abs(factor)


@contextmanager
def nest(builder: Builder, extents: Sequence[int], machine: Machine) -> Iterator[tuple[Index, ...]]:
    """Open the loops of a kernel; gives one counter per extent."""
    if machine.kind == "gpu":
        opened = _threads(builder, extents)
    elif len(extents) == 1 or extents[-1] > 4 * BLOCK:
        opened = _flat(builder, extents)
    else:
        opened = _rows(builder, extents)
    with opened as counters:
        yield counters


@contextmanager
def parallel(builder: Builder, extents: Sequence[int]) -> Iterator[tuple[Index, ...]]:
    """One PARALLEL loop over several extents; their counters are delinearized inside."""
    total = math.prod(extents)
    if total == 1:
        yield tuple(indexing.ZERO for _ in extents)
        return
    with builder.loop(total, PARALLEL) as flat:
        counters = indexing.delinearize(flat, extents)
        yield tuple(_simple(builder, c) for c in counters)


def _simple(builder: Builder, index: Index) -> Index:
    """An index without divisions: these are bound to names here."""
    return builder._without_divisions(index)


@contextmanager
def _threads(builder: Builder, extents: Sequence[int]) -> Iterator[tuple[Index, ...]]:
    with parallel(builder, extents) as counters:
        yield counters


def in_pieces(builder: Builder, extent: int, block: int) -> Iterator[tuple[Index, int]]:
    """The first position and the length of each piece of a range: a loop over whole blocks, and the remainder."""
    blocks, rest = divmod(extent, block)
    if blocks:
        with builder.loop(blocks, SERIAL) as number:
            yield indexing.scale(number, block), block
    if rest:
        yield indexing.constant(blocks * block), rest


@contextmanager
def block_loop(builder: Builder, extent: int, block: int, number: Index, kind: str = VECTOR) -> Iterator[Index]:
    """The loop over one block of a loop of `extent`; gives the position in the whole loop."""
    start = indexing.scale(number, block)
    if extent % block == 0:
        with builder.loop(block, kind) as offset:
            yield indexing.add(start, offset)
        return
    rest = index_apply("subtract", Const(extent, INDEX), builder.position(start))
    length = builder.bind_index(Apply("minimum", (Const(block, INDEX), rest), INDEX), 1, block)
    with builder.loop(builder.position(length), kind, high=block - 1) as offset:
        yield builder.bind_index(builder.position(indexing.add(start, offset)), 0, extent - 1)


@contextmanager
def _flat(builder: Builder, extents: Sequence[int]) -> Iterator[tuple[Index, ...]]:
    """A long innermost loop, cut into blocks that are the PARALLEL iterations (with the outer loops)."""
    last = extents[-1]
    block = block_of(last)
    blocks = -(-last // block)
    with parallel(builder, [*extents[:-1], blocks]) as counters:
        with block_loop(builder, last, block, counters[-1]) as inner:
            yield (*counters[:-1], inner)


@contextmanager
def rows(builder: Builder, extents: Sequence[int], bytes: int, machine: Machine) -> Iterator[tuple[Index, ...]]:
    """One PARALLEL loop over rows that are reduced, on a CPU over blocks of them, which a loop inside goes through: its
    iterations are what schedules of rows put together (hloc/kernels/schedule/row_nest.py). Around it is a loop over a
    few iterations of another loop, which may read the same rows again, as sums over pairs do. bytes: of a row."""
    along = max(range(len(extents)), key=lambda n: (min(extents[n], MOST_ROWS // 2), n), default=0)
    block = rows_of_block(extents, along, bytes, machine) if machine.kind == "cpu" and extents else 1
    if block < 2:
        with parallel(builder, extents) as counters:
            yield counters
        return
    others, blocks = [n for k, n in enumerate(extents) if k != along], -(-extents[along] // block)
    beside = others.pop() if others else 1
    several = max(1, min(beside, MOST_BESIDE, math.prod(extents) // (block * 2 * machine.cores)))
    with parallel(builder, [*others, -(-beside // several), blocks]) as opened, \
            block_loop(builder, beside, several, opened[-2], SERIAL) as place, \
            block_loop(builder, extents[along], block, opened[-1], SERIAL) as row:
        around = [*opened[:-2], place][:len(extents) - 1]
        yield (*around[:along], row, *around[along:])


def rows_of_block(extents: Sequence[int], along: int, bytes: int, machine: Machine) -> int:
    """The rows of a block: as many as fit into a part of the L1 cache, but enough blocks for all cores if there is work
    for them; 1 if few fit. All blocks are of the same length if possible, of whole vectors."""
    fit, count = min(MOST_ROWS, ROW_BYTES // bytes), extents[along]
    if fit < FEWEST_ROWS:
        return 1
    if machine.cores > 1 and math.prod(extents) * bytes > 4 * ROW_BYTES:
        fit = max(FEWEST_ROWS, min(fit, math.prod(extents) // (2 * machine.cores)))
    if count <= fit:
        return count
    fit = fit // FEWEST_ROWS * FEWEST_ROWS
    return next((n for n in range(fit, fit // 2, -FEWEST_ROWS) if count % n == 0), fit)


def block_of(extent: int) -> int:
    """Elements of one PARALLEL iteration of a loop of this extent: if possible, all blocks have the same length, of
    whole vectors."""
    if extent <= BLOCK or extent % BLOCK == 0:
        return min(extent, BLOCK)
    even = [n for n in range(BLOCK // 4, 2 * BLOCK + 1, LONG_VECTOR) if extent % n == 0]
    return min(even, key=lambda n: max(n / BLOCK, BLOCK / n), default=BLOCK)


@contextmanager
def _rows(builder: Builder, extents: Sequence[int]) -> Iterator[tuple[Index, ...]]:
    """Outer loops PARALLEL as far as needed, then SERIAL; VECTOR innermost."""
    count = parallel_loops(extents)
    with ExitStack() as stack:
        counters = list(stack.enter_context(parallel(builder, extents[:count])))
        for extent in extents[count:-1]:
            counters.append(stack.enter_context(builder.loop(extent)))
        counters.append(stack.enter_context(builder.loop(extents[-1], VECTOR)))
        yield tuple(counters)


def parallel_loops(extents: Sequence[int]) -> int:
    """The number of outer loops in the PARALLEL loop: enough iterations, of enough work each."""
    count, iterations = 0, 1
    work = math.prod(extents)
    while count < len(extents) - 1 and (iterations < ENOUGH or work > 4 * BLOCK):
        iterations *= extents[count]
        work //= extents[count]
        count += 1
    return count
