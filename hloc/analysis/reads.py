"""The positions at which a kernel reads the elements of a value, and how often.

A fused kernel computes the elements of its result one by one; each instruction inside is read at some element. The
*context* of a read says which one, as a function of the kernel's own position. Reads in one context are one
computation; each further context duplicates the code. Contexts are small numbers, interned here.

    add(p, q)  in f32[8,64], the kernel's own shape      p and q in context BASE: the kernel's own position
    broadcast(m: f32[8]), dimensions={0}                 m in context BASE // 64, read once per row
    transpose, slice, concatenate ...                    a new context per kind of index map
    reduce                                               its operand in the context of the whole rows

In: an instruction, an operand slot and a context. Out: the operand's context. `evaluations[c]` estimates how often a
value in context c is computed, with loop-invariant values computed outside of inner loops.
"""
from __future__ import annotations

import math
from collections.abc import Iterable

from hloc.analysis.fusible import RESHAPES, is_elementwise, is_update
from hloc.ir import Computation, Instruction, Shape, leaves

BASE = 0
IN_PLACE_KINDS = ("kLoop", "kOutput", "kInput")     # kernels that read an element for the last time when they store it


class Contexts:
    """The contexts of one kernel. Number 0 is the kernel's own position."""

    def __init__(self, elements: int):
        self.evaluations: list[int] = [max(1, elements)]
        self._numbers: dict[tuple, int] = {}
        self._quotients: dict[int, tuple[int, int]] = {}       # context -> (context it divides, divisor)
        self._components: dict[int, int] = {}                  # context of a whole index vector -> of its position

    def intern(self, key: tuple, evaluations: int) -> int:
        """The number of the context with `key`: the kind of map, its source context (or None), and details."""
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.evaluations)
            self.evaluations.append(max(1, evaluations))
        return number

    def alias(self, key: tuple, number: int) -> None:
        """Let `key` name a context that exists already."""
        self._numbers[key] = number

    def scalar(self) -> int:
        """The only element of a value with one element."""
        return self.intern(("scalar", None), 1) if self.evaluations[BASE] > 1 else BASE

    def quotient(self, context: int, divisor: int) -> int:
        """`context` with its linear position divided: one value per `divisor` neighbours."""
        base, before = self._quotients.get(context, (context, 1))
        total = before * divisor
        number = self.intern(("quotient", base, total), self.evaluations[base] // total)
        self._quotients.setdefault(number, (base, total))
        return number

    def through(self, reader: Instruction, slot: int, context: int) -> int:
        """The context of operand `slot` if `reader` is read in `context`."""
        operand = reader.operands[slot].shape
        opcode = reader.opcode
        if operand.num_elements == 1 and operand.is_array:
            return self.scalar()
        if opcode == "tuple" or opcode == "copy" or opcode in RESHAPES or is_elementwise(reader):
            return context
        if opcode == "broadcast":
            return self._broadcast(reader, context)
        if opcode == "transpose":
            return self._transpose(reader, context)
        if opcode in ("dynamic-slice", "gather", "dynamic-update-slice", "scatter", "concatenate", "pad"):
            return self._addressed(reader, slot, context)
        return self.intern((opcode, context, _map_key(reader), operand.dimensions), self.evaluations[context])

    def _broadcast(self, reader: Instruction, context: int) -> int:
        source, result = reader.operands[0].shape, reader.shape
        if source.num_elements == result.num_elements and _is_increasing(_kept(reader, source)):
            return context
        kept, sizes = _kept(reader, source), result.dimensions
        unused = math.prod(sizes[max(kept) + 1:])
        if _is_prefix(kept, sizes) and result.num_elements == source.num_elements * unused:
            return self.quotient(context, unused)
        key = ("broadcast", context, kept, source.dimensions, sizes)
        return self.intern(key, self.evaluations[context] // max(1, unused))

    def _transpose(self, reader: Instruction, context: int) -> int:
        source = reader.operands[0].shape.dimensions
        order = tuple(d for d in reader.get("dimensions") if source[d] != 1)
        if _is_increasing(order):
            return context
        return self.intern(("transpose", context, order, source), self.evaluations[context])

    def _addressed(self, reader: Instruction, slot: int, context: int) -> int:
        """Operands of ops whose slots differ in meaning."""
        opcode, count = reader.opcode, self.evaluations[context]
        if opcode == "dynamic-update-slice" and slot == 1:
            return context
        if opcode == "scatter" and slot > len(reader.operands) // 2:
            return context
        if opcode == "gather" and slot == 1 and _is_in_order(reader):
            return self._start_index(reader, context)
        if opcode == "concatenate" and context in self._components and _is_component(reader, slot):
            return self._components[context]
        if opcode in ("concatenate", "pad"):
            share = reader.operands[slot].shape.num_elements / max(1, reader.shape.num_elements)
            count = math.ceil(count * min(1.0, share))
        if opcode == "gather" and slot == 1:
            count //= _window_at_the_end(reader)
        return self.intern((opcode, context, id(reader), slot), count)

    def _start_index(self, gather: Instruction, context: int) -> int:
        """The context of a start index, or of all components of an index vector, which are the innermost dimension."""
        indices = gather.operands[1].shape
        vector = gather.get("index_vector_dim")
        components = indices.dimensions[vector] if vector < indices.rank else 1
        window = gather.shape.num_elements * components // indices.num_elements
        rows = self.quotient(context, window) if window > 1 else context
        if components == 1:
            return rows
        number = self.intern(("components", rows, components), self.evaluations[rows] * components)
        self._components[number] = rows
        return number

    def absorb(self, other: Contexts) -> dict[int, int]:
        """Merge the contexts of a kernel over the same elements: its numbers -> the numbers here."""
        here = {BASE: BASE}
        for (kind, parent, *details), number in other._numbers.items():
            key = (kind, None if parent is None else here[parent], *details)
            if number in here:
                self.alias(key, here[number])
            else:
                here[number] = self.intern(key, other.evaluations[number])
        for number, (base, divisor) in other._quotients.items():
            self._quotients.setdefault(here[number], (here[base], divisor))
        for number, rows in other._components.items():
            self._components.setdefault(here[number], here[rows])
        return here

    def total(self, contexts: Iterable[int]) -> int:
        """Evaluations over several contexts."""
        return sum(self.evaluations[c] for c in contexts)


def _window_at_the_end(gather: Instruction) -> int:
    """The number of neighbours in the result with one start index: the window, if its dimensions are the innermost."""
    sizes = gather.shape.dimensions
    offsets = gather.get("offset_dims", ())
    inner = tuple(range(len(sizes) - len(offsets), len(sizes)))
    return max(1, math.prod(sizes[d] for d in inner)) if tuple(offsets) == inner else 1


def _is_in_order(gather: Instruction) -> bool:
    """Whether index vectors are in the order of their windows, and windows are innermost."""
    indices = gather.operands[1].shape
    vector = gather.get("index_vector_dim")
    whole = indices.rank - (1 if vector < indices.rank else 0)
    return (vector >= indices.rank - 1 and indices.num_elements > 0
            and tuple(gather.get("offset_dims", ())) == tuple(range(whole, gather.shape.rank)))


def _is_component(concatenate: Instruction, slot: int) -> bool:
    """One component of an index vector, joined with the others along the innermost dimension."""
    shape = concatenate.operands[slot].shape
    return concatenate.get("dimensions")[0] == shape.rank - 1 and shape.dimensions[-1] == 1


def _map_key(reader: Instruction) -> tuple:
    """What the index map of a reader depends on, besides the operand's dimensions."""
    return tuple(reader.get(key) for key in ("dimensions", "slice", "padding", "index"))


def _kept(broadcast: Instruction, source: Shape) -> tuple[int, ...]:
    """The result dimensions that a broadcast fills from dimensions larger than one."""
    return tuple(d for d, size in zip(broadcast.get("dimensions", ()), source.dimensions) if size != 1)


def _is_increasing(numbers: tuple[int, ...]) -> bool:
    return all(a < b for a, b in zip(numbers, numbers[1:]))


def _is_prefix(kept: tuple[int, ...], sizes: tuple[int, ...]) -> bool:
    """Whether `kept` are the leading dimensions of `sizes`, ignoring those of size one."""
    return kept == tuple(d for d in range(max(kept) + 1) if sizes[d] != 1)


def reads_own_position(instruction: Instruction, slot: int) -> bool:
    """Whether each result element depends on that operand only at the same linear position.

    Then a result may use the operand's memory: every element is read before it is written. With several results a
    kernel computes all of them at one position before it stores any, also if it reduces them: a state that an iteration
    of a loop changes, and its sums.
    """
    operand = instruction.operands[slot].shape
    results = list(leaves(instruction.shape))
    if not operand.is_array or max((r.num_elements for r in results), default=0) != operand.num_elements:
        return False
    if instruction.opcode == "fusion":
        return instruction.get("kind") in IN_PLACE_KINDS and slot in own_position_parameters(instruction.get("calls"))
    return instruction.opcode == "copy" or instruction.opcode in RESHAPES or is_elementwise(instruction)


def _is_indexed_by_root(root: Instruction, elements: int, computation: Computation) -> bool:
    """Whether a smaller result is a reduction of an array of `count` elements without other dependent results: then
    the kernel reads each element where it stores the others."""
    return root.opcode == "reduce" and len(root.operands) == 2 and root.operands[0].shape.num_elements == elements \
        and not any(root in i.operands for i in computation.instructions if i is not computation.root)


def own_position_parameters(computation: Computation) -> set[int]:
    """Numbers of the parameters of a fused computation that are read only at the kernel's own position. Operands of a
    matmul are not, nor those of a reduce that another result needs: they may be read again after the store."""
    root = computation.root
    roots = root.operands if root.opcode == "tuple" else [root]
    if any(is_update(r) for r in roots):
        return set()
    elements = max(r.shape.num_elements for r in roots)
    beside = [r for r in roots if r.shape.num_elements != elements]
    if not all(_is_indexed_by_root(r, elements, computation) for r in beside) \
            or len({(r.operands[0].shape.dimensions, r.get("dimensions")) for r in beside if r.operands}) > 1:
        return set()
    contexts = Contexts(elements)
    asked: dict[Instruction, set[int]] = {i: set() for i in computation.instructions}
    asked[root].add(BASE)
    for instruction in reversed(computation.instructions):
        for number, operand in enumerate(instruction.operands):
            asked[operand].update(BASE if instruction in beside and number == 0 else
                                  contexts.through(instruction, number, c) for c in asked[instruction])
    return {p.number for p in computation.parameters if asked[p] <= {BASE}}
