"""Constants stored between what changes from element to element, such as the ones of homogeneous coordinates, and the
alpha of pixels: gcc interleaves three, four or eight arrays in registers, but where constants follow two others, it
stores all elements one by one.

In: a Kernel. Out: the same; the constants of neighbouring stores lie in Local arrays, and so does what is computed for
them, a block at a time, so that what is interleaved are arrays alone.

    for i < n (VECTOR): y[3 i] = x[i]; y[3 i + 1] = f(z[i]); y[3 i + 2] = 1

    for k < 256 (VECTOR): c[k] = 1
    for blocks of 256:  for k (VECTOR): v[k] = f(z[i])
                        for k (VECTOR): y[3 i] = x[i]; y[3 i + 1] = v[k]; y[3 i + 2] = c[k]

Such loops take 0.07 (of bytes) to 0.5 (of f64) of the time, with gcc 12 on a Zen 4.
"""
from __future__ import annotations

from itertools import count
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import (
    INDEX,
    SERIAL,
    VECTOR,
    Apply,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Local,
    Stmt,
    Store,
    Var,
)
from hloc.kernels.walks import parts, with_vector_loops
from hloc.machine import Machine
from hloc.targets.cpu.vector_loops.copies import terms_of

SIZES = (3, 4, 8, 16)           # of groups that gcc interleaves, and in which it cannot do with constants
SHORTEST = 16                   # iterations
BLOCK = 256


class Member(NamedTuple):
    """A store of a group; array: the Local that has its values, "" where they are read where they lie; is_same: it is
    filled before the loop."""

    store: Store
    array: str
    is_same: bool


def interleaved_stores(kernel: Kernel, machine: Machine) -> Kernel:
    """The kernel with such constants in arrays."""
    before: list[Stmt] = []
    numbers = count()
    body = with_vector_loops(kernel.body, lambda loop: _Loop(loop, next(numbers)).split(before))
    return kernel._replace(body=(*before, *body))


class _Loop:
    """One VECTOR loop. number: tells its arrays from others'."""

    def __init__(self, loop: For, number: int):
        self.loop, self.prefix = loop, f"{loop.name}_{number}"
        self.named = {s.name: s.value for s in loop.body if isinstance(s, Let)}

    def split(self, before: list[Stmt]) -> tuple[Stmt, ...]:
        """The loop as loops over blocks, if it is such a one; what goes to the start of the kernel is put into
        `before`."""
        loop = self.loop
        if isinstance(loop.extent, int) and loop.extent < SHORTEST or not all(
                isinstance(s, (Let, Store)) for s in loop.body):
            return (loop,)
        together = [s for group in self.groups() for s in group]
        if not together:
            return (loop,)
        here: list[Stmt] = []
        size = loop.extent if isinstance(loop.extent, int) and loop.extent < BLOCK else BLOCK
        members = [self.member(s, f"{self.prefix}_v{n}") for n, s in enumerate(together)]
        for (_, _, value), array, is_same in members:
            if is_same:
                k = Var(f"{array}_k", INDEX)
                fill = For(k.name, size, VECTOR, (Store(array, k, self.behind(value)),))
                (before if isinstance(value, Const) else here).extend((Local(array, value.type, size), fill))
        return (*here, *self.blocks(members, size))

    def groups(self) -> list[list[Store]]:
        """Stores that fill a buffer side by side, as many as its elements move on by with each iteration: two of what
        is no constant, and a constant behind them."""
        found: dict[tuple[str, int], dict[int, Store]] = {}
        for s in self.loop.body:
            if isinstance(s, Store):
                terms = terms_of(s.position, self.named) or {}
                found.setdefault((s.buffer, terms.get(self.loop.name, 0)), {})[terms.get(None, 0)] = s
        written = {s.buffer for s in self.loop.body if isinstance(s, Store)}
        read = {e.buffer for s in self.loop.body for e in parts([s.value]) if isinstance(e, Load)}
        groups = [(step, [stores[place] for place in sorted(stores)]) for (_, step), stores in found.items()]
        return [stores for step, stores in groups if step in SIZES and step == len(stores) and not written & read
                and not any(self.is_same(s.value) for s in stores[:2])
                and any(self.is_same(s.value) for s in stores[2:])
                and ELEMENT_TYPES[stores[0].value.type].kind != "complex"]

    def is_same(self, value: Expr) -> bool:
        """Whether a value does not change with the iterations, nor is made of what the loop names."""
        names = {e.name for e in parts([self.behind(value)]) if isinstance(e, Var)}
        return self.loop.name not in names and not names & self.named.keys()

    def behind(self, value: Expr) -> Expr:
        """What a name of the loop stands for."""
        while isinstance(value, Var) and value.name in self.named:
            value = self.named[value.name]
        return value

    def member(self, store: Store, name: str) -> Member:
        """A store whose values come from a Local array of this name, or from where they lie element after element."""
        is_same, lies = self.is_same(store.value), self.behind(store.value)
        step = (terms_of(lies.position, self.named) or {}).get(self.loop.name) if isinstance(lies, Load) else None
        return Member(store, "" if step == 1 else name, is_same)

    def blocks(self, members: list[Member], size: int) -> tuple[Stmt, ...]:
        """The two loops of a block, for all blocks."""
        loop, place = self.loop, Var(f"{self.prefix}_place", INDEX)
        together = {m.store for m in members}
        made = [m for m in members if m.array and not m.is_same]
        first = [*(s for s in loop.body if s not in together), *(Store(m.array, place, m.store.value) for m in made)]
        second = [s for s in loop.body if isinstance(s, Let) and (s.value.type == INDEX or not made)]
        for m in members:
            value = m.store.value
            second.append(m.store._replace(
                value=Load(m.array, place, value.type) if m.array else self.behind(value)))
        locals_ = [Local(m.array, m.store.value.type, size) for m in made]
        block, length = Var(f"{self.prefix}_block", INDEX), Var(f"{self.prefix}_count", INDEX)
        start = Apply("multiply", (block, Const(size, INDEX)), INDEX)
        total = Const(loop.extent, INDEX) if isinstance(loop.extent, int) else loop.extent
        left = Apply("minimum", (Const(size, INDEX), Apply("subtract", (total, start), INDEX)), INDEX)
        here = Let(loop.name, Apply("add", (start, place), INDEX))
        inner = [For(place.name, length, VECTOR, (here, *body), loop.lanes)
                 for body in (first, second) if any(isinstance(s, Store) for s in body)]
        blocks = Apply("divide", (Apply("add", (total, Const(size - 1, INDEX)), INDEX), Const(size, INDEX)), INDEX)
        return (For(block.name, blocks, SERIAL, (*locals_, Let(length.name, left), *inner)),)
