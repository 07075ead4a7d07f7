"""A group: the instructions of one kernel, while fusion collects them.

Groups grow from users to producers. A group records the contexts (hloc/analysis/reads.py) in which it reads each of its
members, its operands, its results, and whether it holds a reduction or a hero:

    LOOP        elemental members only                          -> kLoop
    REDUCTION   reduces over the same rows, their producers and users         -> kInput, or kCustom if full rows
                depend on a reduce (softmax, layer norm)
    PRODUCT     a dot or convolution, its epilogue, and views or prologues of its operands (prologues.py)
                                                                               -> kOutput
    ATTENTION   two dots with a softmax between them (hloc/analysis/attention.py), producers of the scores, views of
                the operands, and updates of keys and values in place          -> kCustom
    UPDATE      a dynamic-update-slice or scatter and its updates              -> kLoop
    SORT        a sort and the slices that read it (sorts.py)                  -> kCustom
    SINGLE      anything else: not fused
"""
from __future__ import annotations

import math
from typing import NamedTuple

from hloc.analysis.fusible import (
    RESHAPES,
    is_elemental,
    is_elementwise,
    is_hero,
    is_reduction,
    is_splat_constant,
    is_static_array,
    is_transfer,
    is_update,
)
from hloc.analysis.reads import BASE, Contexts
from hloc.analysis.strides import View, behind, whole
from hloc.ir import Instruction
from hloc.passes.fusion.whole import ATTENTION, WholeKernel

LOOP, REDUCTION, PRODUCT, UPDATE, SINGLE = "loop", "reduction", "product", "update", "single"

MOST_WORK = 128                  # members that compute something
MOST_PARAMETERS = 24
MOST_OUTPUTS = 8
MOST_CODE = 256                  # the same, counted once per context
MOST_CONTEXTS = 6                # of one member


WEIGHTLESS = RESHAPES | {"broadcast", "iota"}


class Rows(NamedTuple):
    """The common properties of a group's reduces. `full` and `row` are contexts: the elements of the input, and its
    rows."""

    dimensions: tuple[int, ...]
    reduced: tuple[int, ...]
    full: int
    row: int
    elements: int
    trailing: bool
    alone: bool                  # a reduce of several arrays: no other reduce may join

    @property
    def columns(self) -> int:
        return math.prod(self.dimensions[d] for d in self.reduced)


class Group:
    """See the module docstring. `height` falls along every edge between groups: equal heights, no path."""

    __slots__ = ("kind", "members", "outputs", "parameters", "contexts", "rows", "code", "height", "dimensions",
                 "elements", "first", "feeds_full", "again", "views", "computed", "kernel",
                 "work")

    def __init__(self, first: Instruction, height: int):
        self.first = first
        self.kind = kind_of(first)
        self.height = height
        self.members: dict[Instruction, tuple[int, ...]] = {first: (BASE,)}
        self.outputs: dict[Instruction, None] = {first: None}
        space = iteration_space(first)
        self.dimensions = space
        self.elements = math.prod(space)
        self.contexts = Contexts(self.elements)
        self.rows: Rows | None = None
        self.parameters = {o for o in first.operands if not is_splat_constant(o)}
        self.code = self.work = weight(first)
        self.feeds_full: set[Instruction] = set()       # members that elements of full rows depend on
        self.again: dict[Instruction, float] = {}       # seconds spent on computing members more than once
        self.kernel: Instruction | None = None          # the instruction that runs the group, after it is emitted
        self.views: dict[Instruction, View | None] = {}      # views: by which strides a dot reads their operand
        self.computed: set[Instruction] = set()         # members of a prologue that will join
        if self.kind == REDUCTION:
            self.rows = self.start_rows(first)

    # -- contexts --------------------------------------------------------------------------------------------------

    def context_of_operand(self, reader: Instruction, slot: int, context: int) -> int:
        if self.kind == ATTENTION and not is_elemental(reader):
            return self.contexts.scalar() if is_update(reader) and slot > 1 else BASE
        if reader.opcode == "reduce":
            count = len(reader.operands) // 2
            if slot >= count:
                return self.contexts.scalar()
            assert self.rows is not None             # of a group with a reduction
            return self.rows.full
        return self.contexts.through(reader, slot, context)

    def asked(self, producer: Instruction, readers: list[Instruction]) -> tuple[int, ...]:
        """The contexts in which the members among `readers` read `producer`."""
        found: set[int] = set()
        for reader in dict.fromkeys(readers):
            contexts = self.members.get(reader)
            if contexts is None:
                continue
            for slot, operand in enumerate(reader.operands):
                if operand is producer:
                    found.update(self.context_of_operand(reader, slot, c) for c in contexts)
        return tuple(sorted(found))

    @staticmethod
    def of_whole(kernel: WholeKernel, height: int) -> Group:
        """The kernel of all members, which runs over the elements of its first one: the scores, the sort."""
        group = Group(kernel.first, height)
        group.kind = kernel.kind
        for member in kernel.members:
            if member is not kernel.first:
                group.add(member, (BASE,), [])
        group.outputs = dict.fromkeys(kernel.outputs)
        return group

    # -- growing ---------------------------------------------------------------------------------------------------

    def add(self, producer: Instruction, contexts: tuple[int, ...], readers: list[Instruction], *,
            output: bool = False) -> None:
        """Add an elemental producer, or one whose role `become` has determined."""
        self.members[producer] = contexts
        if producer not in self.computed and self.reads_for_product(producer, readers):
            self.views[producer] = self.view_of(producer, readers)
        if self.reaches_full(contexts, readers):
            self.feeds_full.add(producer)
        self.work += weight(producer)
        self.code += len(contexts) * weight(producer)
        self.parameters.discard(producer)
        self.parameters.update(o for o in producer.operands if not is_splat_constant(o) and o not in self.members)
        if output:
            self.outputs[producer] = None

    def reads_for_product(self, producer: Instruction, readers: list[Instruction]) -> bool:
        """Whether the matmul of this group reads the producer as an operand, or stores it into one, also through a
        view."""
        return self.kind in (PRODUCT, ATTENTION) and any(
            r in self.views or (is_hero(r) and r in self.members)
            or (is_update(r) and r in self.members and r.operands[1] is producer) for r in readers)

    @property
    def updates(self) -> list[Instruction]:
        """The members that update arrays in place."""
        return [o for o in self.outputs if is_update(o)]

    def view_of(self, producer: Instruction, readers: list[Instruction]) -> View | None:
        """The strides by which a dot reads the producer's operand, if the producer is only a view of it."""
        inside = [r for r in dict.fromkeys(readers) if r in self.members]
        if len(inside) != 1 or inside[0].opcode == "convolution":
            return None
        return behind(producer, self.views.get(inside[0]) or whole(producer.shape.dimensions))

    def absorb(self, other: Group) -> None:
        """Merge a group that runs over the same elements (and rows)."""
        here = self.contexts.absorb(other.contexts)
        for member, contexts in other.members.items():
            asked = {here[c] for c in contexts} | set(self.members.get(member, ()))
            self.members[member] = tuple(sorted(asked))
        self.outputs.update(other.outputs)
        self.parameters = (self.parameters | other.parameters) - self.members.keys()
        self.feeds_full |= other.feeds_full
        self.again.update(other.again)
        self.work = sum(map(weight, self.members))
        self.code = sum(len(c) * weight(m) for m, c in self.members.items())

    def reaches_full(self, contexts: tuple[int, ...], readers: list[Instruction]) -> bool:
        """Whether elements of full rows depend on a producer that `readers` read in `contexts`."""
        if self.rows is None:
            return False
        return self.rows.full in contexts or any(r in self.feeds_full for r in readers)

    def become_reduction(self, rows: Rows) -> None:
        """A first reduce joins: determine which members have full size."""
        if self.rows is not None:
            return
        self.kind, self.rows = REDUCTION, rows
        if rows.full == BASE:
            self.feeds_full.update(self.members)

    def is_row_wise(self) -> bool:
        """Full rows depend on their own reduce: softmax, layer norm."""
        return any(m.opcode == "reduce" and m in self.feeds_full for m in self.members)

    def start_rows(self, reduce: Instruction) -> Rows:
        """The group's own elements are the rows; a new context represents the elements of the reduce's operand."""
        shape = reduce.operands[0].shape
        full = self.contexts.intern(("full", None), shape.num_elements)
        return self._rows(reduce, full, BASE)

    def _rows(self, reduce: Instruction, full: int, row: int) -> Rows:
        shape, reduced = reduce.operands[0].shape, tuple(sorted(reduce.get("dimensions")))
        trailing = is_trailing(shape.dimensions, reduced)
        rows = Rows(shape.dimensions, reduced, full, row, shape.num_elements, trailing, len(reduce.operands) > 2)
        if trailing and rows.columns > 1:
            self.contexts.alias(("quotient", full, rows.columns), row)
        return rows

    def rows_for(self, reduce: Instruction, context: int) -> Rows | None:
        """The rows that this group would have with `reduce` read in `context`; None if it does not fit."""
        shape = reduce.operands[0].shape
        if self.rows is not None:
            same = (squeezed(self.rows.dimensions, self.rows.reduced)
                    == squeezed(shape.dimensions, tuple(sorted(reduce.get("dimensions")))))
            return self.rows if same and context == self.rows.row and not self.rows.alone else None
        if context == BASE and without_ones(reduce.shape.dimensions) == without_ones(self.dimensions):
            return self._rows(reduce, self.contexts.intern(("full", None), shape.num_elements), BASE)
        columns = math.prod(shape.dimensions[d] for d in reduce.get("dimensions"))
        fits = (without_ones(shape.dimensions) == without_ones(self.dimensions)
                and is_trailing(shape.dimensions, tuple(sorted(reduce.get("dimensions")))))
        row = self.contexts.scalar() if columns == self.elements else self.contexts.quotient(BASE, columns)
        if fits and columns > 1 and context == row:
            return self._rows(reduce, BASE, context)
        return None


def weight(instruction: Instruction) -> int:
    """The operations that a member adds to a kernel: none if it only broadcasts or reshapes."""
    return 0 if instruction.opcode in WEIGHTLESS else 1


def kind_of(instruction: Instruction) -> str:
    if not is_static_array(instruction.shape):
        return REDUCTION if is_reduction(instruction) else SINGLE
    if instruction.opcode in ("parameter", "constant"):
        return SINGLE
    if is_elemental(instruction):
        return SINGLE if is_transfer(instruction) else LOOP
    if is_reduction(instruction):
        return REDUCTION
    if is_hero(instruction):
        return PRODUCT
    return UPDATE if is_update(instruction) else SINGLE


def iteration_space(instruction: Instruction) -> tuple[int, ...]:
    """The dimensions over which a kernel with this root runs."""
    if instruction.opcode == "dynamic-update-slice":
        return instruction.operands[1].shape.dimensions
    if instruction.opcode == "scatter":
        return instruction.operands[-1].shape.dimensions
    if instruction.shape.is_tuple and instruction.opcode == "reduce":
        return instruction.shape.tuple_shapes[0].dimensions
    return instruction.shape.dimensions


def is_trailing(dimensions: tuple[int, ...], reduced: tuple[int, ...]) -> bool:
    """Whether the reduced dimensions are the last ones, ignoring those of size one."""
    kept = [d for d, size in enumerate(dimensions) if size != 1 and d not in reduced]
    gone = [d for d in reduced if dimensions[d] != 1]
    return not kept or not gone or max(kept) < min(gone)


def without_ones(dimensions: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(d for d in dimensions if d != 1)


def squeezed(dimensions: tuple[int, ...], reduced: tuple[int, ...]) -> tuple[tuple[int, bool], ...]:
    """Each size and whether it is reduced; without dimensions of size one."""
    return tuple((size, d in reduced) for d, size in enumerate(dimensions) if size != 1)


def depends_elementwise(group: Group, producer: Instruction) -> bool:
    """Whether everything in the group that depends on `producer`, and every output, is elementwise at the kernel's own
    position: the form of an epilogue."""
    dependent = {producer}
    for member in reversed(group.members):
        if not any(o in dependent for o in member.operands):
            continue
        if group.members[member] != (BASE,) or not is_elementwise(member):
            return False
        if member.shape.dimensions != group.dimensions:
            return False
        dependent.add(member)
    return all(o in dependent for o in group.outputs)


def is_free(group: Group) -> bool:
    """Whether the group holds only reshapes: it needs no kernel."""
    return all(m.opcode in RESHAPES for m in group.members)
