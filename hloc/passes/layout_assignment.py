"""Gives every array the row-major layout, without changing any value.

    b = f32[3,2]{1,0} bitcast(p: f32[2,3]{0,1})       =>   b = f32[3,2]{1,0} transpose(p), dimensions={1,0}
    c = f32[2,3]{0,1} copy(f32[2,3]{1,0} p)           =>   p

Only bitcast sees layouts: it becomes a transpose into the order of the memory, a bitcast of row-major arrays (free),
and a transpose out of it. A copy changes nothing but the layout, so it goes; where memory must not be shared,
copy_insertion puts new ones. Tiles and memory spaces are dropped, and entry_computation_layout says what is left.
"""
from __future__ import annotations

from hloc.analysis.fusible import width
from hloc.errors import UnsupportedError
from hloc.ir import Instruction, Module, Shape, Verbatim
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module


def layout_assignment(module: Module, context: PassContext) -> bool:
    """True if a layout, a bitcast or a copy changed."""
    changed = rewrite_module(module, spell_out_bitcast, fused=True)
    known: dict[Shape, Shape] = {}
    for instruction in module.instructions():
        shape = known.get(instruction.shape)
        if shape is None:
            shape = known[instruction.shape] = instruction.shape.with_default_layout()
        if shape != instruction.shape:
            instruction.shape = shape
            changed = True
    changed |= rewrite_module(module, drop_copy, fused=True)
    return state_entry_layout(module) or changed


def spell_out_bitcast(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """bitcast(x) => transpose(bitcast(transpose(x))), the inner one between row-major arrays."""
    if instruction.opcode != "bitcast":
        return None
    source, target = instruction.operands[0].shape, instruction.shape
    if not (source.is_array and target.is_array) or source.num_bytes != target.num_bytes:
        raise UnsupportedError(f"bitcast of {source} to {target}, which is not of the same size", instruction.span)
    same_width = width(source) == width(target)
    if same_width and source.has_default_layout and target.has_default_layout:
        return None
    if is_tiled(source, target) and not same_layout(source, target):
        raise UnsupportedError(f"bitcast of {source} to {target} depends on the tiles of the layouts", instruction.span)
    memory = transposed(rewriter, instruction.operands[0], source.minor_to_major[::-1])
    order = target.minor_to_major[::-1]
    flat = retyped(rewriter, memory, target, tuple(target.dimensions[d] for d in order))
    if order == tuple(range(target.rank)):
        return flat
    back = tuple(order.index(d) for d in range(target.rank))
    return rewriter.add("transpose", target, [flat], {"dimensions": back})


def same_layout(a: Shape, b: Shape) -> bool:
    return a.dimensions == b.dimensions and a.layout == b.layout


def is_tiled(*shapes: Shape) -> bool:
    return any(s.layout is not None and "T(" in s.layout.suffix for s in shapes)


def transposed(rewriter: Rewriter, x: Instruction, order: tuple[int, ...]) -> Instruction:
    """`x` with its dimensions in another order."""
    if order == tuple(range(len(order))):
        return x
    shape = x.shape.with_dimensions(x.shape.dimensions[d] for d in order)
    return rewriter.add("transpose", shape, [x], {"dimensions": order})


def retyped(rewriter: Rewriter, memory: Instruction, target: Shape, dimensions: tuple[int, ...]) -> Instruction:
    """The bytes of a row-major array as `dimensions` of the target's element type."""
    before, after = width(memory.shape), width(target)
    shape = target.with_dimensions(dimensions)
    if memory.shape.element_type == target.element_type and memory.shape.dimensions == dimensions:
        return memory
    if before == after:
        row_major = memory if memory.shape.has_default_layout else rewriter.add(
            "copy", memory.shape.with_default_layout(), [memory])
        return rewriter.add("bitcast", shape, [row_major])
    if before > after:
        parts = memory.shape.with_dimensions((*memory.shape.dimensions, before // after)).with_element_type(
            target.element_type)
        return rewriter.add("reshape", shape, [rewriter.add("bitcast-convert", parts, [memory])])
    parts = memory.shape.with_dimensions((*dimensions, after // before))
    return rewriter.add("bitcast-convert", shape, [rewriter.add("reshape", parts, [memory])])


def drop_copy(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """copy(x) => x, once all layouts are the same."""
    return instruction.operands[0] if instruction.opcode == "copy" else None


def state_entry_layout(module: Module) -> bool:
    """Write entry_computation_layout anew from the entry itself."""
    if "entry_computation_layout" not in module.attributes:
        return False
    shapes = [str(p.shape) for p in module.entry.parameters]
    listed = ", ".join(f"/*index={i}*/{s}" if i and i % 5 == 0 else s for i, s in enumerate(shapes))
    text = Verbatim(f"{{({listed})->{module.entry.root.shape}}}")
    changed = text != module.attributes["entry_computation_layout"]
    module.attributes["entry_computation_layout"] = text
    return changed


