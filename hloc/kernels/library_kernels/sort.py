"""Sorts: a Tile of the library kernel "sort", with the comparator as scalar expressions.

Tile "sort": buffers are the n operands, then the results (none may share an operand's memory).
    parameters  results of each result (operand, first, last): elements first .. last - 1 of the sorted rows of this
                        operand, `stride` elements apart as in the operand: all of them but where slices alone are read
                rows    independent sorts: row r starts at (r // stride) * stride * length + r % stride
                length  elements of one sort, `stride` elements apart
                stride  1 where the last dimension is sorted
                stable  equal elements keep their order
                key     (order, name, type, statements, result, exact) where the comparator compares the same function
                        of the two elements, else (): order is "ascending" or "descending" (floats: "total" added where
                        it is the total order), name is of one operand's value as it lies in memory, result the
                        function's value; exact: it has no more bits than its element type. For jnp.sort the function
                        makes all zeros and all NaNs equal.
    comparator  (names, statements, result): names are (name, type) of 2n values as they lie in memory, left and right
                of each operand in turn; the result, a pred, says that left goes before right
"""
from __future__ import annotations

import math

from hloc.analysis.sorted_parts import sorted_parts_in
from hloc.ir import Computation, Instruction
from hloc.ir.narrowing import known
from hloc.kernels import scalars
from hloc.kernels.builder import Builder
from hloc.kernels.elements import Elements, always, use_counts
from hloc.kernels.group import RULES, Group, Lowered
from hloc.kernels.ir import Var
from hloc.kernels.library_kernels.whole_arrays import tile_of
from hloc.machine import Machine
from hloc.ops.sorting import same_function


def lower_sort(group: Group, machine: Machine) -> Lowered:
    """A sort alone, or one with the slices that read it."""
    sort = next(m for m in group.members if m.opcode == "sort")
    shape = sort.operands[0].shape
    if shape.num_elements == 0:
        return Lowered(())
    dimensions = sort.get("dimensions") or (0,)
    dimension = dimensions[0] if shape.rank else 0
    length = shape.dimensions[dimension] if shape.rank else 1
    results = _results(group, sort, length)
    parameters = (("results", results), ("rows", shape.num_elements // length), ("length", length),
                  ("stride", math.prod(shape.dimensions[dimension + 1:])), ("stable", bool(sort.get("is_stable"))),
                  ("key", sort_key(sort)))
    work = shape.num_elements * max(1, length.bit_length()) * 4
    return tile_of(group, "sort", "sort", parameters, work, comparator(sort), sort.operands)


def _results(group: Group, sort: Instruction, length: int) -> tuple[tuple[int, int, int], ...]:
    """(operand, first, last) of each result."""
    if sort is group.instruction:
        return tuple((n, 0, length) for n in range(len(sort.operands)))
    found = known(sorted_parts_in(group.instruction.get("calls")))
    parts = {p.slice: (p.operand, p.first, p.last) for p in found.parts}
    return tuple(parts[root] for root in group.roots)


def comparator(sort: Instruction) -> tuple:
    """(names, statements, result) of the comparison, over values in their stored type."""
    computation: Computation = sort.get("to_apply")
    names = {p: f"{'right' if p.number % 2 else 'left'}{p.number // 2}" for p in computation.parameters}
    typed = tuple((name, p.shape.element_type) for p, name in names.items())
    return typed, *_value(computation, computation.root, names)


def _value(computation: Computation, root: Instruction, names: dict[Instruction, str]) -> tuple:
    """(statements, result) of a scalar computation of named values in their stored type."""
    builder = Builder()
    builder.levels.update(dict.fromkeys(names.values(), 0))
    sources = {p: always(scalars.widen(Var(name, p.shape.element_type))) for p, name in names.items()}
    result = Elements(builder, sources, use_counts(computation), RULES).value(root, ())
    return builder.body(), result


SELECTING = frozenset(["parameter", "constant", "select", "compare", "negate", "abs", "and", "or", "not"])


def sort_key(sort: Instruction) -> tuple:
    """The function of one element that the comparator compares, as Tile "sort" says; () where it has another form."""
    computation: Computation = sort.get("to_apply")
    root = computation.root
    pair = same_function(*root.operands) if root.opcode == "compare" else None
    if pair is None or pair[0] ^ 1 != pair[1] or root.get("direction") not in ("LT", "GT"):
        return ()
    less = (root.get("direction") == "LT") == (pair[0] % 2 == 0)
    order = ("ascending" if less else "descending") + (" total" if root.get("type") == "TOTALORDER" else "")
    parameter = next(p for p in computation.parameters if p.number == pair[0])
    name = f"value{pair[0] // 2}"
    return order, name, parameter.shape.element_type, *_value(computation, root.operands[0], {parameter: name}), \
        all(m.opcode in SELECTING for m in computation.instructions)
