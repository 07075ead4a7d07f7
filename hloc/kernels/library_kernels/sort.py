"""Sorts and top-k: a Tile of the library kernel "sort" or "topk", with the comparator as scalar expressions.

Tile "sort": buffers are the n operands, then the results (none may share an operand's memory).
    parameters  results of each result (operand, first, last): elements first .. last - 1 of the sorted rows of this
                        operand, `stride` elements apart as in the operand: all of them but where slices alone are read
                rows    independent sorts: row r starts at (r // stride) * stride * length + r % stride
                length  elements of one sort, `stride` elements apart
                stride  1 where the last dimension is sorted
                stable  equal elements keep their order
                order   "ascending" or "descending" where the comparator is just a compare of the first operand
                        (floats: "total" added where it is the total order), else "": then call the comparator
                key     (order, name, type, statements, result, exact) where the comparator compares the same function
                        of the two elements, else (): name is of one operand's value as it lies in memory, result the
                        function's value; exact: it has no more bits than its element type. For jnp.sort the function
                        makes all zeros and all NaNs equal.
    comparator  (names, statements, result): names are (name, type) of 2n values as they lie in memory, left and right
                of each operand in turn; the result, a pred, says that left goes before right

Tile "topk": buffers operand, values, positions (s32); parameters rows, length, k, largest.
"""
from __future__ import annotations

import math

from hloc.analysis.sorted_parts import sorted_parts_in
from hloc.errors import UnsupportedError
from hloc.ir import Computation, Instruction
from hloc.kernels import scalars
from hloc.kernels.builder import Builder
from hloc.kernels.elements import Elements, always, use_counts
from hloc.kernels.group import RULES, Arg, Group, KernelCall, Lowered
from hloc.kernels.ir import Buffer, Cost, Tile, Var
from hloc.machine import Machine


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
                  ("order", plain_order(sort)), ("key", sort_key(sort)))
    buffers, arguments = _buffers(group, sort)
    work = shape.num_elements * max(1, length.bit_length()) * 4
    tile = Tile("sort", "sort", buffers, parameters, comparator=comparator(sort), cost=Cost(work, work),
                origin=group.origin)
    return Lowered((KernelCall(tile, arguments),))


def _results(group: Group, sort: Instruction, length: int) -> tuple[tuple[int, int, int], ...]:
    """(operand, first, last) of each result."""
    if sort is group.instruction:
        return tuple((n, 0, length) for n in range(len(sort.operands)))
    found = sorted_parts_in(group.instruction.get("calls"))
    assert found is not None
    parts = {p.slice: (p.operand, p.first, p.last) for p in found.parts}
    return tuple(parts[root] for root in group.roots)


def _buffers(group: Group, sort: Instruction) -> tuple[tuple[Buffer, ...], tuple[Arg, ...]]:
    shapes, results = [o.shape for o in sort.operands], group.result_shapes
    reads = tuple(Buffer(f"in{n}", s.element_type, s.num_elements) for n, s in enumerate(shapes))
    writes = tuple(Buffer(f"out{n}", s.element_type, s.num_elements, "write") for n, s in enumerate(results))
    operands = tuple(Arg("operand", n if sort is group.instruction else group.parameters[o])
                     for n, o in enumerate(sort.operands))
    return reads + writes, operands + tuple(Arg("result", 0, n) for n in range(len(results)))


def comparator(sort: Instruction) -> tuple:
    """(names, statements, result) of the comparison, over values in their stored type."""
    computation: Computation = sort.get("to_apply")
    builder = Builder()
    names, values = [], {}
    for parameter in computation.parameters:
        side = "right" if parameter.number % 2 else "left"
        name = f"{side}{parameter.number // 2}"
        names.append((name, parameter.shape.element_type))
        builder.levels[name] = 0
        values[parameter] = always(scalars.widen(Var(name, parameter.shape.element_type)))
    result = Elements(builder, values, use_counts(computation), RULES).value(computation.root, ())
    return tuple(names), builder.body(), result


def plain_order(sort: Instruction) -> str:
    """ascending / descending (and "total") if the comparator only compares the first operand's two values; else ""."""
    root = sort.get("to_apply").root
    if root.opcode != "compare" or root.get("direction") not in ("LT", "GT"):
        return ""
    numbers = [o.parameter_number if o.opcode == "parameter" else None for o in root.operands]
    if numbers not in ([0, 1], [1, 0]):
        return ""
    less = (root.get("direction") == "LT") == (numbers == [0, 1])
    return ("ascending" if less else "descending") + (" total" if root.get("type") == "TOTALORDER" else "")


SELECTING = frozenset(["parameter", "constant", "select", "compare", "negate", "abs", "and", "or", "not"])


def sort_key(sort: Instruction) -> tuple:
    """The function of one element that the comparator compares, as Tile "sort" says; () where it has another form."""
    root = sort.get("to_apply").root
    if root.opcode != "compare" or root.get("direction") not in ("LT", "GT"):
        return ()
    members = same_function(*root.operands)
    if members is None:
        return ()
    parameter = next(m for m in members if m.opcode == "parameter")
    less = (root.get("direction") == "LT") == (parameter.number % 2 == 0)
    order = ("ascending" if less else "descending") + (" total" if root.get("type") == "TOTALORDER" else "")
    builder, type = Builder(), parameter.shape.element_type
    name = f"value{parameter.number // 2}"
    builder.levels[name] = 0
    value = scalars.widen(Var(name, type))
    elements = Elements(builder, {parameter: always(value)}, use_counts(sort.get("to_apply")), RULES)
    result = elements.value(root.operands[0], ())
    return order, name, type, builder.body(), result, all(m.opcode in SELECTING for m in members)


def same_function(left: Instruction, right: Instruction) -> list[Instruction] | None:
    """The operand values from which `left` is computed, if it is computed from one side's value of one operand by the
    same function as `right` from the other side's; else None."""
    pairs: dict[Instruction, Instruction] = {}
    stack = [(left, right)]
    while stack:
        a, b = stack.pop()
        if pairs.setdefault(a, b) is not b or not _alike(a, b):
            return None
        stack.extend((x, y) for x, y in zip(a.operands, b.operands) if x not in pairs or pairs[x] is not y)
    parameters = [a for a in pairs if a.opcode == "parameter"]
    return list(pairs) if len(parameters) == 1 else None


def _alike(a: Instruction, b: Instruction) -> bool:
    if a.opcode != b.opcode or a.shape != b.shape or len(a.operands) != len(b.operands) or a.called_computations:
        return False
    if a.opcode == "parameter":
        return a.number ^ 1 == b.number
    if a.opcode == "constant":
        mine, theirs = a.array_literal, b.array_literal
        return a is b or (mine is not None and theirs is not None and mine.tobytes() == theirs.tobytes())
    plain = [{k: v for k, v in i.attributes.items() if k not in ("metadata", "frontend_attributes")} for i in (a, b)]
    return plain[0] == plain[1]


def lower_topk(group: Group, machine: Machine) -> Lowered:
    topk = group.instruction
    shape = topk.operands[0].shape
    if not topk.shape.is_tuple or len(topk.shape.tuple_shapes) != 2 or shape.rank == 0:
        raise UnsupportedError("topk of this form", topk.span)
    if shape.num_elements == 0:
        return Lowered(())
    k = topk.get("k")
    rows = shape.num_elements // shape.dimensions[-1]
    positions = topk.shape.tuple_shapes[1].element_type
    buffers = (Buffer("in0", shape.element_type, shape.num_elements),
               Buffer("out0", shape.element_type, rows * k, "write"), Buffer("out1", positions, rows * k, "write"))
    largest = topk.get("largest", True) not in (False, "false")
    parameters = (("rows", rows), ("length", shape.dimensions[-1]), ("k", k), ("largest", largest))
    work = shape.num_elements * 4
    tile = Tile(group.kernel_name, "topk", buffers, parameters, cost=Cost(work, work), origin=group.origin)
    return Lowered((KernelCall(tile, (Arg("operand", 0), Arg("result", 0, 0), Arg("result", 0, 1))),))
