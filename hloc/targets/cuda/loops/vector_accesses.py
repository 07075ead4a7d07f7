"""Vector accesses: a thread takes several adjacent elements at once, 16 bytes if possible.

In: loops that are distributed (Spread, rows.py). Out: the same with Packs: the vector width, and the loads and stores
that are one access each; Refused, or none, if that is not possible, or leaves lanes without work. Vectors run along the
innermost of the loops.

    for i of 4096 by 256 lanes: s += x[r * 4096 + i]   in bf16
      ->  for vector of 512 by 256 lanes: x0 = 8 of x at r * 4096 + vector * 8; for part of 8: s += x0[part]

All loops of a row that share split Local arrays use the same width.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import affine, constant_of, factor_of, factors_of, forms, stays_inside, without
from hloc.kernels.ir import Expr, For, If, Kernel, Load, Stmt, Store, While
from hloc.kernels.schedule.steps import Refused
from hloc.kernels.walks import defined, expressions, loads, stores, walk, with_all_expressions
from hloc.targets.cuda.loops.cache_read import unconditional
from hloc.targets.cuda.loops.rows import Own, Packs, Spread
from hloc.targets.cuda.loops.teams import Form

VECTOR_BYTES = 16               # the most that one access to memory takes
WIDTHS = (16, 8, 4, 2)


def by_vectors(s: Spread, width: int, kernel: Kernel, around: Sequence[Stmt] = ()) -> Spread:
    """A loop over the elements of a pointwise kernel by vectors along its results; itself for vectors of one element.
    around: statements around it. Raises Refused where these are no such vectors."""
    if width == 1:
        return s
    packs = Accesses(kernel, (*around, s)).packs(s, width)
    if len(packs.stores) < len(stores(s.body)):
        raise Refused(f"results are no vectors of {width}")
    if width * max(_bytes([*packs.loads, *(s.value for s in packs.stores)])) > VECTOR_BYTES:
        raise Refused(f"an access to memory has {VECTOR_BYTES} bytes at most")
    return s._replace(packs=packs)


def with_vectors(form: Form, most: int) -> Form:
    """A form of teams with the vector accesses of its distributed loops, of at most `most` adjacent elements: as many
    as the narrowest type allows. Loops that share split arrays have one width. Raises Refused without any."""
    accesses, found = Accesses(form.kernel, (*form.before, *form.body)), dict[int, Packs]()
    everything: list[Own] = walk(form.body)
    spreads = [s for s in everything if isinstance(s, Spread)]
    for group in ([s for s in spreads if s.slots], *([s] for s in spreads if not s.slots)):
        for width in (n for n in WIDTHS if n <= most and all(_fits(s, n, form.lanes) for s in group)):
            packs = [accesses.packs(s, width) for s in group]
            if any(width * min(_bytes(p.loads or [s.value for s in p.stores])) <= VECTOR_BYTES
                   for p in packs if p.loads or p.stores):
                found |= {id(s): p for s, p in zip(group, packs)}
                break

    if not found:
        raise Refused(f"no loop of a row reads or writes vectors of {most}")
    return form._replace(body=with_all_expressions(
        form.body, lambda e: e, lambda s: s._replace(packs=found.get(id(s))) if isinstance(s, Spread) else None))


def _fits(s: Spread, width: int, lanes: int) -> bool:
    """Whether a loop consists of such vectors, its lanes have work, and arrays keep their number of slots."""
    extents = [n for _, n in s.counters if isinstance(n, int)]
    total = math.prod(extents)
    is_straight = not any(isinstance(i, (For, If, While)) for i in walk(s.body))
    if len(extents) < len(s.counters) or extents[-1] % width or not is_straight:
        return False
    if not s.slots:
        return len(extents) == 1 and total // width >= lanes
    return s.slots % width == 0 and width * -(-total // (width * lanes)) <= s.slots


def _bytes(elements: Iterable[Expr]) -> list[int]:
    return [ELEMENT_TYPES[e.type].bytes for e in elements]


class Accesses:
    """The accesses of the distributed loops of a kernel, among these statements."""

    def __init__(self, kernel: Kernel, statements: Sequence[Own]) -> None:
        everything: list[Own] = walk(statements)
        self.buffers, self.known = {b.name: b.size for b in kernel.buffers}, forms(statements)
        self.sizes = {s.name: s.extent for s in (*walk(kernel.body), *everything)
                      if isinstance(s, For) and isinstance(s.extent, int)}
        self.sizes |= {name: n for s in everything if isinstance(s, Spread) for name, n in s.counters
                       if isinstance(n, int)}

    def packs(self, s: Spread, width: int) -> Packs:
        """The vector accesses of a loop. An array that is read and written has one place."""
        (counter, extent), own = s.counters[-1], defined(s.body)
        found: list[Load | Store] = [*loads(s.body), *stores(s.body)]
        at = {a: affine(a.position, self.known) for a in found}
        always = {load for i in s.body for load in unconditional(expressions(i))}
        read, written = ({a.buffer for a in found if isinstance(a, kind)} for kind in (Load, Store))

        def is_vector(a: Load | Store) -> bool:
            form = at[a]
            factors = factors_of(without(form, counter))
            return a.buffer in self.buffers and factors is not None and factor_of(form, counter) == 1 \
                and not any(n % width for n in (constant_of(form), *factors.values())) and not own & factors.keys() \
                and (a.buffer not in read & written or all(at[b] == form for b in found if b.buffer == a.buffer)) \
                and (isinstance(a, Store) or a in always or stays_inside(form, self.buffers[a.buffer], self.sizes))
        vectors = {a: at[a] for a in found if is_vector(a)} if isinstance(extent, int) and extent % width == 0 else {}
        return Packs(width, {a: p for a, p in vectors.items() if isinstance(a, Load)},
                     {a: p for a, p in vectors.items() if isinstance(a, Store)})
