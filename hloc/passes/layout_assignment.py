"""Makes every array row-major, without changing any value.

    b = f32[3,2]{1,0} bitcast(p: f32[2,3]{0,1})       =>   b = f32[3,2]{1,0} transpose(p), dimensions={1,0}
    c = f32[2,3]{0,1} copy(f32[2,3]{1,0} p)           =>   p

Only bitcast depends on layouts: it becomes a transpose into memory order, a bitcast of row-major arrays (free), and a
transpose back; with tiles, arrays are also padded and split as the tiles require. A copy changes only the layout, so it
is removed; copy_insertion adds those that memory sharing needs. Tiles are dropped, and memory spaces but the host's,
S(5), which is written on all that is there (memory_spaces.py); copies into it and out of it stay.
entry_computation_layout is updated.
"""
from __future__ import annotations

import math

from hloc.analysis.fusible import is_transfer, width
from hloc.errors import UnsupportedError
from hloc.ir import Instruction, Module, Shape, Verbatim
from hloc.ir.tiles import depends_on_tiles, has_known_memory, in_memory, tile_steps
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.memory_spaces import host_flags, mentions_host, with_flags
from hloc.passes.rewriter import Rewriter, rewrite_module


def layout_assignment(module: Module, context: PassContext) -> bool:
    """True if a layout, a bitcast or a copy changed."""
    changed = rewrite_module(module, spell_out_bitcast, fused=True)
    on_host = host_flags(module) if mentions_host({i.shape for i in module.instructions()}) else {}
    known: dict[Shape, Shape] = {}
    for instruction in module.instructions():
        shape = known.get(instruction.shape)
        if shape is None:
            shape = known[instruction.shape] = instruction.shape.with_default_layout()
        if instruction in on_host:
            shape = with_flags(shape, on_host[instruction])
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
    if not (source.is_array and target.is_array):
        raise UnsupportedError(f"bitcast of {source} to {target}", instruction.span)
    if width(source) == width(target) and source.has_default_layout and target.has_default_layout \
            and source.num_elements == target.num_elements and not depends_on_tiles(source, target):
        return None
    memory = transposed(rewriter, instruction.operands[0], source.minor_to_major[::-1])
    order = target.minor_to_major[::-1]
    if depends_on_tiles(source, target):
        flat = through_tiles(rewriter, instruction, memory)
    elif source.num_elements * width(source) == target.num_elements * width(target):
        flat = retyped(rewriter, memory, target, in_memory(target))
    else:
        raise UnsupportedError(f"bitcast of {source} to {target}, which is not of the same size", instruction.span)
    if order == tuple(range(target.rank)):
        return flat
    return rewriter.add("transpose", target, [flat], {"dimensions": inverse(order)})


def through_tiles(rewriter: Rewriter, instruction: Instruction, memory: Instruction) -> Instruction:
    """The operand, its dimensions in the memory's order, laid out in its tiles and read in those of the result."""
    source, target = instruction.operands[0].shape, instruction.shape
    if not (has_known_memory(source) and has_known_memory(target)):
        raise UnsupportedError(f"bitcast of {source} to {target}: tiles that join dimensions, or of no sensible size",
                               instruction.span)
    e = Expressions(rewriter, instruction.span)
    for step in tile_steps(source):
        memory = filled_up(e, e.reshape(memory, *step.before), step.padded)
        memory = transposed(rewriter, e.reshape(memory, *step.split), step.order)
    steps = tile_steps(target)
    sizes = steps[-1].after if steps else in_memory(target)
    count = math.prod(sizes) * width(target) // width(source)
    memory = e.reshape(memory, memory.shape.num_elements)
    memory = filled_up(e, e.slice(memory, {0: (0, min(count, memory.shape.num_elements))}), (count,))
    memory = retyped(rewriter, memory, target, sizes)
    for step in reversed(steps):
        memory = transposed(rewriter, e.reshape(memory, *step.after), inverse(step.order))
        memory = e.slice(e.reshape(memory, *step.padded), {d: (0, n) for d, n in enumerate(step.before)})
    return e.reshape(memory, *in_memory(target))


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(d) for d in range(len(order)))


def filled_up(e: Expressions, x: Instruction, sizes: tuple[int, ...]) -> Instruction:
    """`x` with zeros behind it, up to `sizes`."""
    missing = [(0, size - n) for n, size in zip(x.shape.dimensions, sizes)]
    return e.pad(x, 0, missing) if any(n for _, n in missing) else x


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
        plain = memory.shape.with_default_layout()              # without tiles, which the new bitcast is not about
        row_major = memory if memory.shape == plain else rewriter.add("copy", plain, [memory])
        return rewriter.add("bitcast", shape, [row_major])
    if before > after:
        parts = memory.shape.with_dimensions((*memory.shape.dimensions, before // after)).with_element_type(
            target.element_type)
        return rewriter.add("reshape", shape, [rewriter.add("bitcast-convert", parts, [memory])])
    parts = memory.shape.with_dimensions((*dimensions, after // before))
    return rewriter.add("bitcast-convert", shape, [rewriter.add("reshape", parts, [memory])])


def drop_copy(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    """copy(x) => x, once all layouts are the same; not between the memories of host and device."""
    return instruction.operands[0] if instruction.opcode == "copy" and not is_transfer(instruction) else None


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


