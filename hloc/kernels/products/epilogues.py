"""Common parts of matmuls and convolutions: the types a tile computes in, and the statements after its sums."""
from __future__ import annotations

from collections.abc import Sequence

from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES, Instruction
from hloc.ir.narrowing import known
from hloc.kernels import indexing, scalars
from hloc.kernels.elements import Indices, Source
from hloc.kernels.group import Group, KernelCall, Outline, buffers_of
from hloc.kernels.indexing import Index
from hloc.kernels.ir import Buffer, Cost, Expr, Prologue, Stmt, Tile, Update, Var
from hloc.kernels.products.operands import Access, behind_conversion
from hloc.kernels.rules.loops import product_result
from hloc.machine import Machine
from hloc.ops.algorithm import algorithm_of


def tile_types(group: Group, hero: Instruction, machine: Machine) -> tuple[str, str]:
    """(operand type, sum type): narrow operands unconverted if the sums are wide, else everything in the result's
    type."""
    left, right = (behind_conversion(group, o).shape.element_type for o in hero.operands[:2])
    result = scalars.computation_type(hero.shape.element_type)
    if left == right and left in ("bf16", "f16") and result == "f32":
        return left, result
    left, right = (o.shape.element_type for o in hero.operands[:2])
    if machine.kind == "cpu":
        whole = scalars.sums_of_whole_numbers
        return whole(left, right, hero.shape.element_type) or whole(result, result, result) or (result, result)
    if result == "s8" or left == right == "s8" and hero.shape.element_type == "s32":
        return "s8", "s32"                                 # the tile of s8 gives unconverted sums
    return result, result


def call_of(group: Group, library_kernel: str, sides: Sequence[tuple[str, Access]], others: list[Outline],
            facts: tuple, epilogue: tuple[Stmt, ...], multiply_adds: int, prologues: tuple[Prologue, ...] = (),
            updates: tuple[Update, ...] = ()) -> KernelCall:
    """The call of a tile. sides: the names of the operands' buffers; others: what reads and writes the others."""
    in_memory, updated = [(name, side) for name, side in sides if side.argument], {u.array for u in updates}
    buffers, arguments = buffers_of(others)
    buffers = (*(Buffer(name, side.type, side.size, "update" if name in updated else "read")
                 for name, side in in_memory), *buffers)
    moved = sum(b.size * ELEMENT_TYPES[b.type].bytes for b in buffers)
    tile = Tile(group.kernel_name, library_kernel, buffers, facts, epilogue, cost=Cost(moved, 2 * multiply_adds),
                origin=group.origin, prologues=prologues, updates=updates)
    return KernelCall(tile, (*(known(side.argument) for _, side in in_memory), *arguments))


def algorithm_fact(hero: Instruction, machine: Machine) -> tuple[tuple[str, str], ...]:
    """The algorithm (precision), for targets with several ones; CPUs compute f32 as f32."""
    asked = algorithm_of(hero)
    return (("algorithm", asked),) if machine.kind == "gpu" and asked else ()


def stores_itself(outline: Outline, hero: Instruction, type: str, total: str) -> bool:
    """Whether no epilogue is needed: the sums are the result, or are rounded to it if operands and result have the same
    narrow type; library kernels round to no other type."""
    result = hero.shape.element_type
    if outline.group.roots != [hero] or result != total and not (result == type and result in ("bf16", "f16")):
        return False
    outline.result_buffer(0)
    return True


def epilogue_statements(outline: Outline, hero: Instruction, total: str, position: Index) -> tuple[Stmt, ...]:
    """The statements that turn Var("acc") into the results at one flat position of the hero's shape."""
    def read(index: Indices) -> Expr:
        if indexing.linearize(index, hero.shape.dimensions) != position:
            raise UnsupportedError("a matmul that is read at another position than the one being computed", hero.span)
        return product_result(Var("acc", total), hero.shape.element_type)
    store_results(outline, hero, read, position)
    return outline.builder.body()


def store_results(outline: Outline, hero: Instruction, read: Source, position: Index) -> None:
    """Store the results at one flat position, where the hero's element is `read`."""
    outline.elements.sources[hero] = read
    outline.store_all(position, [outline.elements.value(r, indexing.delinearize(position, r.shape.dimensions))
                                 for r in outline.group.roots])
