"""Removes sorts of one element, and sorted values without users.

    s = f32[4,1] sort(x), dimensions={1}        =>   s is x

    s = (f32[8], s32[8]) sort(keys, values), dimensions={0}, to_apply=less      // less compares the keys only
    k = f32[8] get-tuple-element(s), index=0                                    // element 1 has no users
    =>
    k = f32[8] sort(keys), dimensions={0}, to_apply=less.1
"""
from __future__ import annotations

from hloc.ir import Computation, Instruction, Module, Shape, users
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite, rewrite_module


def sort_simplifier(module: Module, context: PassContext) -> bool:
    """Simplify sorts. True if a sort was removed or lost operands."""
    sorting = [c for c in module.computations if any(i.opcode == "sort" for i in c.instructions)]
    if not sorting:
        return False
    changed = rewrite_module(module, sort_of_ones, opcodes=("sort",))
    for computation in sorting:
        changed |= drop_unread(module, computation)
    return changed


def sort_of_ones(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """sort(x, y) => tuple(x, y) where the sorted dimension has at most one element"""
    operands = instruction.operands
    if operands[0].shape.dimensions[instruction.get("dimensions")[0]] > 1:
        return None
    return operands[0] if instruction.shape.is_array else rewriter.add("tuple", instruction.shape, operands)


def drop_unread(module: Module, computation: Computation) -> bool:
    """Remove operands of sorts whose sorted values are not read and that are not compared."""
    readers = users(computation)
    smaller: dict[Instruction, tuple[int, ...]] = {}
    for instruction in computation.instructions:
        if instruction.opcode == "sort" and not instruction.shape.is_array and instruction is not computation.root:
            needed = needed_operands(instruction, readers[instruction])
            if needed is not None:
                smaller[instruction] = needed

    def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
        if instruction in smaller:
            return smaller_sort(module, instruction, smaller[instruction], rewriter)
        return None

    return bool(smaller) and rewrite(computation, visit)


def needed_operands(sort: Instruction, readers: list[Instruction]) -> tuple[int, ...] | None:
    """The operands that are read or compared by, or None where that is all of them."""
    if any(r.opcode != "get-tuple-element" for r in readers):
        return None
    read = {r.get("index") for r in readers}
    comparator = sort.get("to_apply")
    used = {o for i in comparator.instructions for o in i.operands} | {comparator.root}
    read |= {p.parameter_number // 2 for p in comparator.parameters if p in used}
    return tuple(sorted(read)) if 0 < len(read) < len(sort.operands) else None


def smaller_sort(module: Module, sort: Instruction, needed: tuple[int, ...], rewriter: Rewriter) -> Instruction:
    """The sort of the needed operands, in a tuple of the old size whose other elements repeat the unsorted operands."""
    comparator = smaller_comparator(module, sort.get("to_apply"), needed)
    shapes = [sort.shape.tuple_shapes[n] for n in needed]
    shape = shapes[0] if len(needed) == 1 else Shape.tuple(shapes)
    new = rewriter.change(sort, operands=[sort.operands[n] for n in needed], shape=shape, to_apply=comparator,
                          sharding=None)
    elements = list(sort.operands)
    for position, n in enumerate(needed):
        elements[n] = new if len(needed) == 1 \
            else rewriter.add("get-tuple-element", shapes[position], [new], {"index": position})
    return rewriter.add("tuple", sort.shape, elements)


def smaller_comparator(module: Module, comparator: Computation, needed: tuple[int, ...]) -> Computation:
    """A copy of `comparator` without the parameters of the other operands, put into the module before its callers."""
    position = {2 * n + side: 2 * p + side for p, n in enumerate(needed) for side in (0, 1)}
    made: dict[Instruction, Instruction] = {}
    for old in comparator.instructions:
        if old.opcode == "parameter" and old.parameter_number not in position:
            continue
        made[old] = old.copy(operands=[made[o] for o in old.operands])
        if old.opcode == "parameter":
            made[old].parameter_number = position[old.number]
    taken = {c.name for c in module.computations}
    number = next(n for n in range(len(taken) + 1) if f"{comparator.name}.{n}" not in taken)
    new = Computation(f"{comparator.name}.{number}", made.values(), made[comparator.root], dict(comparator.attributes),
                      comparator.span)
    module.computations.insert(module.computations.index(comparator) + 1, new)
    return new
