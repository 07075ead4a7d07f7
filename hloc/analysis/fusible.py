"""Which instructions may be inside a fusion, and in which role.

In: an instruction. Out: is it elemental (each element of its result is an expression of elements of its operands), a
reduction, a hero (dot, convolution) or an update in place?

    exponential, broadcast, slice, gather ...     elemental
    reduce                                        a reduction, the middle of kInput and kCustom fusions
    dot, convolution                              a hero, the middle of kOutput fusions
    dynamic-update-slice, scatter                 an update in place: the result uses the memory of operand 0
"""
from __future__ import annotations

import math

from hloc.ir import ELEMENT_TYPES, Instruction, Shape
from hloc.ops.table import OPS

# Ops that only choose which element of an operand to read.
DATA_MOVEMENT = frozenset(["broadcast", "reshape", "bitcast", "transpose", "slice", "reverse", "pad", "concatenate",
                           "dynamic-slice", "gather", "copy"])
# Same elements in the same row-major order: free outside of a fusion, since the memory is the same.
RESHAPES = frozenset(["reshape", "bitcast"])
HEROES = frozenset(["dot", "convolution"])
UPDATES = frozenset(["dynamic-update-slice", "scatter"])
LARGE_CONCATENATE, FEW_ROWS = 1 << 16, 64       # elements from which each piece may be a kernel; most rows
PIECES_TOGETHER = 32        # of a concatenate, in one kernel: compile time per loop grows with their number


def is_transfer(instruction: Instruction) -> bool:
    """Whether it copies an array from the host's memory to the device's, or back."""
    return instruction.opcode == "copy" and instruction.shape.on_host != instruction.operands[0].shape.on_host


def is_static_array(shape: Shape) -> bool:
    return shape.is_array and not shape.is_dynamic


def is_elementwise(instruction: Instruction) -> bool:
    """Whether each element of the result is a scalar function of the elements at the same position (or of scalars)."""
    if instruction.opcode == "bitcast-convert":
        return keeps_width(instruction)
    op = OPS.get(instruction.opcode)
    return op is not None and op.scalar is not None


def keeps_width(instruction: Instruction) -> bool:
    """False for bitcasts between element types of different width, which are not elementwise."""
    if instruction.opcode not in ("bitcast", "bitcast-convert"):
        return True
    return width(instruction.shape) == width(instruction.operands[0].shape)


def width(shape: Shape) -> int:
    """Bits of one element; 0 for types without."""
    return ELEMENT_TYPES[shape.element_type].bits if shape.is_array else 0


def is_scalar_constant(instruction: Instruction) -> bool:
    """A constant that becomes a number in the source text; larger ones stay in memory."""
    return (instruction.opcode == "constant" and instruction.shape.is_array and instruction.shape.num_elements == 1
            and instruction.literal is not None)


def is_splat_constant(instruction: Instruction) -> bool:
    """Whether it is one number everywhere: kernels contain the number instead of reading it."""
    while instruction.opcode in ("broadcast", *RESHAPES):
        instruction = instruction.operands[0]
    return is_scalar_constant(instruction)


def is_elemental(instruction: Instruction) -> bool:
    """True where a fusion can compute any single element of the result from single elements of the operands."""
    if not is_static_array(instruction.shape) or not all(is_static_array(o.shape) for o in instruction.operands):
        return False
    if instruction.opcode == "constant":
        return is_scalar_constant(instruction)
    if instruction.opcode == "iota":
        return True
    if instruction.opcode in DATA_MOVEMENT:
        return keeps_width(instruction)
    return is_elementwise(instruction)


def is_reduction(instruction: Instruction) -> bool:
    """A reduce over static arrays, of one array or several side by side."""
    return instruction.opcode == "reduce" and all(is_static_array(o.shape) for o in instruction.operands)


def is_hero(instruction: Instruction) -> bool:
    """A matrix product or convolution: computed tile by tile, with an epilogue on each tile."""
    return instruction.opcode in HEROES and is_static_array(instruction.shape)


def is_update(instruction: Instruction) -> bool:
    """Whether it writes a part of operand 0 in place and keeps the rest; variadic scatters, too."""
    return instruction.opcode in UPDATES


def in_place_operands(instruction: Instruction) -> tuple[tuple[int, int], ...]:
    """(result leaf, operand index) pairs whose memory is the same; every such operand is one array.

    For while see hloc/analysis/aliasing.py: there it is all leaves of the one operand.
    """
    if instruction.opcode == "dynamic-update-slice":
        return ((0, 0),)
    if instruction.opcode == "scatter":
        return tuple((i, i) for i in range(len(instruction.operands) // 2))
    if instruction.opcode == "fusion":
        return fusion_in_place_operands(instruction)
    return ()


def fusion_in_place_operands(fusion: Instruction) -> tuple[tuple[int, int], ...]:
    """These pairs for a fusion whose root is an update of one of its parameters, or whose roots are slices written into
    parameters that nothing else in the fusion reads: of one shape, or beside the result of an attention."""
    root = fusion.get("calls").root
    if root.opcode == "tuple":
        return _slices_in_place(root, fusion.get("calls").instructions)
    if not is_update(root):
        return ()
    pairs = [(leaf, root.operands[slot]) for leaf, slot in in_place_operands(root)]
    if any(target.opcode != "parameter" for _, target in pairs):
        return ()
    return tuple((leaf, target.parameter_number) for leaf, target in pairs)


def _slices_in_place(root: Instruction, instructions: list[Instruction]) -> tuple[tuple[int, int], ...]:
    """These pairs for several results of which all, or those beside an attention, are slices written into
    parameters."""
    slices = [(leaf, o) for leaf, o in enumerate(root.operands) if o.opcode == "dynamic-update-slice"]
    reads = [o for i in instructions for o in i.operands]
    if not slices or any(o.operands[0].opcode != "parameter" or reads.count(o.operands[0]) > 1 for _, o in slices):
        return ()
    if len(slices) < len(root.operands):
        fits = sum(i.opcode == "dot" for i in instructions) == 2
    else:
        fits = len({o.operands[1].shape.dimensions for _, o in slices}) == 1
    if not fits:
        return ()
    return tuple((leaf, o.operands[0].number) for leaf, o in slices)


def is_in_pieces(instruction: Instruction) -> bool:
    """Whether a CPU makes a kernel of each operand of a concatenate: few rows, and long ones."""
    if instruction.opcode != "concatenate" or instruction.shape.num_elements <= LARGE_CONCATENATE:
        return False
    return math.prod(instruction.shape.dimensions[:instruction.get("dimensions")[0]]) < FEW_ROWS
