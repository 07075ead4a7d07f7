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
MOST_ROWS, FEWEST_ROWS = 128, 16        # and their number;
MOST_BESIDE = 32        # iterations of the loop around them;
ELEMENT_BYTES, MOST_SHORT_ROWS = 2, 256        # of rows that only hold elements
ENOUGH = 64             # PARALLEL iterations that keep all threads busy
MOST_TRIALS = 8
LONG_VECTOR = 64        # iterations of an innermost loop that are several vectors

SIDE_BY_SIDE = (2, 3, 4)    # adjacent elements that are interleaved in registers

Emit = Callable[[Builder, tuple[Index, ...]], None]


def factors(dimensions: Sequence[int], emit: Emit) -> tuple[list[int], Builder]:
    """The loop extents that need no (or the least) division inside, and the Builder of the last trial."""
    extents, _, builder = refine([math.prod(dimensions)], lambda builder, counters: emit(
        builder, indexing.delinearize(counters[0], dimensions)))
    return extents, builder


def refine(loops: Sequence[int], emit: Emit) -> tuple[list[int], list[int], Builder]:
    """Split loops until emit(builder, counters) needs no more divisions that a split can remove; its counters are those
    of the given loops.

    Gives the finer extents, for each the number of the given loop, and the Builder of the last trial."""
    extents, origins = list(loops), list(range(len(loops)))
    for _ in range(MOST_TRIALS):
        builder = Builder()
        with ExitStack() as stack:
            counters = [stack.enter_context(builder.loop(n)) for n in extents]
            names = [next(iter(indexing.variables(c)), "") for c in counters]
            both = list(zip(counters, extents, origins))
            emit(builder, tuple(indexing.linearize(*zip(*((c, n) for c, n, o in both if o == k)))
                                for k in range(len(loops))))
        parts = _split(extents, names, builder.divisions)
        finer = [extent for part in parts for extent in part]
        if finer == extents:
            break
        origins = [origin for origin, part in zip(origins, parts) for _ in part]
        extents = finer
    return extents, origins, builder


def innermost(extents: Sequence[int], trial: Builder) -> int:
    """The number of the loop that stands innermost: the last one, or a very short one along which elements are
    adjacent, as channels of pixels are when planes are written: schedules of rows write it out."""
    last = len(extents) - 1
    return next((n for n in range(last) if extents[n] in SIDE_BY_SIDE and extents[-1] >= LONG_VECTOR // 4 and any(
        indexing.coefficient_of(p, f"i{n}") == 1 and indexing.coefficient_of(p, f"i{last}") == extents[n]
        for _, p in trial.accesses)), last)


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
    for inner, factor in atom.inner.terms:
        if inner.kind == indexing.VARIABLE and inner.name == name and atom.divisor % abs(factor) == 0:
            yield atom.divisor // abs(factor)


@contextmanager
def nest(builder: Builder, extents: Sequence[int], machine: Machine) -> Iterator[tuple[Index, ...]]:
    """Open the loops of a kernel; gives one counter per extent. On a CPU they are rows of a VECTOR loop, in blocks,
    whose schedules say how rows go together: hloc/kernels/schedule/row_nest.py. A long innermost loop is cut into
    blocks itself. Long rows are PARALLEL as far as needed, then SERIAL."""
    last = len(extents) - 1
    cut, block = last, block_of(extents[-1])
    if last > 0 and extents[-1] <= 4 * BLOCK:
        cut = along_blocks(extents[:-1])
        block = rows_of_block(extents[:-1], cut, ELEMENT_BYTES * math.prod(extents[cut + 1:]), machine, MOST_SHORT_ROWS)
    with ExitStack() as stack:
        if machine.kind == "gpu":
            counters = [*stack.enter_context(parallel(builder, extents))]
        elif block > 1:
            *outer, number = stack.enter_context(parallel(builder, [*extents[:cut], -(-extents[cut] // block)]))
            kind = VECTOR if cut == last else SERIAL
            counters = [*outer, stack.enter_context(block_loop(builder, extents[cut], block, number, kind))]
        else:
            counters = [*stack.enter_context(parallel(builder, split_parallel(extents)))]
        for n in range(len(counters), len(extents)):
            counters.append(stack.enter_context(builder.loop(extents[n], VECTOR if n == last else SERIAL)))
        yield tuple(counters)


@contextmanager
def parallel(builder: Builder, extents: Sequence[int]) -> Iterator[tuple[Index, ...]]:
    """One PARALLEL loop over several extents; their counters are delinearized inside."""
    total = math.prod(extents)
    if total == 1:
        yield tuple(indexing.ZERO for _ in extents)
        return
    with builder.loop(total, PARALLEL) as flat:
        counters = indexing.delinearize(flat, extents)
        yield tuple(builder._without_divisions(c) for c in counters)


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
def rows(builder: Builder, extents: Sequence[int], bytes: int, machine: Machine, kind: str = SERIAL,
         most: int = MOST_ROWS) -> Iterator[tuple[Index, ...]]:
    """One PARALLEL loop over rows that are reduced, on a CPU over blocks of them, which a loop inside goes through: its
    iterations are what schedules of rows put together (hloc/kernels/schedule/row_nest.py). Around it is a loop over a
    few iterations of another loop, which may read the same rows again, as sums over pairs do. bytes: of a row; kind: of
    the loop inside; most: rows of a block."""
    along = along_blocks(extents)
    block = rows_of_block(extents, along, bytes, machine, most) if machine.kind == "cpu" and extents else 1
    if block < 2:
        with parallel(builder, extents) as counters:
            yield counters
        return
    others, blocks = [n for k, n in enumerate(extents) if k != along], -(-extents[along] // block)
    beside = others.pop() if others else 1
    several = max(1, min(beside, MOST_BESIDE, math.prod(extents) // (block * 2 * machine.cores)))
    with parallel(builder, [*others, -(-beside // several), blocks]) as opened, \
            block_loop(builder, beside, several, opened[-2], SERIAL) as place, \
            block_loop(builder, extents[along], block, opened[-1], kind) as row:
        around = [*opened[:-2], place][:len(extents) - 1]
        yield (*around[:along], row, *around[along:])


def rows_of_block(extents: Sequence[int], along: int, bytes: int, machine: Machine, most: int = MOST_ROWS) -> int:
    """The rows of a block: as many as fit into a part of the L1 cache, but enough blocks for all cores if there is work
    for them; 1 if few fit. All blocks are of the same length if possible, of whole vectors."""
    fit, count = min(most, ROW_BYTES // bytes), extents[along]
    if fit < FEWEST_ROWS:
        return 1
    if machine.cores > 1 and math.prod(extents) * bytes > 2 * ROW_BYTES:
        fit = max(FEWEST_ROWS, min(fit, math.prod(extents) // (2 * machine.cores)))
    if count <= fit:
        return count
    even = (n for step in (LONG_VECTOR, FEWEST_ROWS) if fit >= 2 * step
            for n in range(fit // step * step, fit // 2, -step) if count % n == 0)
    return next(even, fit // FEWEST_ROWS * FEWEST_ROWS)


def block_of(extent: int) -> int:
    """Elements of one PARALLEL iteration of a loop of this extent: if possible, all blocks have the same length, of
    whole vectors."""
    if extent <= BLOCK or extent % BLOCK == 0:
        return min(extent, BLOCK)
    even = [n for n in range(BLOCK // 4, 2 * BLOCK + 1, LONG_VECTOR) if extent % n == 0]
    return min(even, key=lambda n: max(n / BLOCK, BLOCK / n), default=BLOCK)


def along_blocks(extents: Sequence[int]) -> int:
    """The number of the loop that is cut into blocks of rows."""
    return max(range(len(extents)), key=lambda n: (min(extents[n], MOST_ROWS // 2), n), default=0)


def split_parallel(extents: Sequence[int]) -> list[int]:
    """The outer loops that are PARALLEL, as far as that gives enough iterations of enough work each."""
    count, iterations = 0, 1
    work = math.prod(extents)
    while count < len(extents) - 1 and (iterations < ENOUGH or work > 4 * BLOCK):
        iterations *= extents[count]
        work //= extents[count]
        count += 1
    return list(extents[:count])
