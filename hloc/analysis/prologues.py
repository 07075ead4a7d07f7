"""Prologues: operands of matmuls and convolutions that a GPU computes while it loads them, and whether that pays.

In: a dot or convolution, one of its operands, and where to stop. Out: a Prologue: the instructions that would be
computed in the matmul, and their sources; or a reason why a separate kernel is better, or needed.

    w = bf16[4096,4096] convert(s8[4096,4096] x)      few rows by w: computed once, half of the bytes are read
    d = dot(rows, w)                                  many: again for each 128 of them, until a kernel is cheaper

A tile of the matmul reads a strip of each operand. So an element is computed once for every tile along the other
operand, by the threads that also feed the tensor cores, and asynchronous copies become loads and stores. The saving is
one write and one read of the whole operand, and a kernel. The input of a convolution is computed once for each window
that contains an element; its padding is not computed: it stays zero.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hloc.analysis.cost import (
    CACHED_SPEEDUP,
    bytes_read,
    contracted_elements,
    operations,
    seconds_of_launch,
    seconds_of_operations,
    seconds_of_traffic,
    window_elements,
)
from hloc.analysis.fusible import is_elementwise, is_splat_constant, is_static_array
from hloc.analysis.strides import VIEWS
from hloc.ir import ELEMENT_TYPES, Instruction, window_of
from hloc.machine import Machine

EDGE, THIN, THIN_EDGE = 128, 8, 32      # of a tile; rows up to which a matmul is thin, and columns of its blocks
FEW_FEATURES = 4                    # of a group of a convolution: each output is computed alone
LONG_SUM, MANY_OUTPUTS = 256, 1 << 16
MOST_SPATIAL = 3                    # dimensions of a convolution
LEAST_PRODUCT = 2048                # multiply-adds of a matmul: smaller ones are faster as loops
MOST_OPERATIONS = 48                # per element: registers and code of a tile are limited
MOST_MEMBERS = 24
PASSING = 2                         # operations for an element that passes through registers instead of being copied
# Of an SM of sm_90a: operations in a second on elements of two bytes, and the share of them that mma.sync reaches.
RATE, MMA_SHARE = 7.5e12, 0.6
EXACT_GROUPS = ("bf16", "f16", "s8", "f8e4m3fn", "f8e5m2")     # types that wgmma multiplies as they are
NO_PROLOGUE = "a matmul reads its operands from memory: its producer cannot be fused into it"


class Prologue(NamedTuple):
    """members: the computed instructions, readers first; sources: the arrays that they read."""

    members: tuple[Instruction, ...]
    sources: tuple[Instruction, ...]


def may_be_computed(instruction: Instruction) -> bool:
    """Whether any element is a short expression of elements at known positions."""
    if not is_static_array(instruction.shape) or not all(is_static_array(o.shape) for o in instruction.operands):
        return False
    return is_elementwise(instruction) or is_splat_constant(instruction) \
        or instruction.opcode in VIEWS | {"iota", "copy", "dynamic-slice"}


def prologue_of(operand: Instruction, is_source: Callable[[Instruction], bool]) -> Prologue:
    """The prologue of an operand; is_source: instructions that must be in memory."""
    members: dict[Instruction, None] = {}
    sources: dict[Instruction, None] = {}
    waiting = [operand]
    while waiting:
        node = waiting.pop(0)
        if node in members or node in sources or is_splat_constant(node) and node is not operand:
            continue
        if is_source(node) or not may_be_computed(node) or len(members) >= MOST_MEMBERS:
            sources[node] = None
        else:
            members[node] = None
            waiting += node.operands
    return Prologue(tuple(members), tuple(sources))


def why_not(hero: Instruction, number: int, prologue: Prologue, machine: Machine, *, alone: bool = True) -> str:
    """Why operand `number` of a dot or convolution is better computed by a separate kernel; "" if it is not. alone:
    that kernel would do nothing else, and the operand has no other users."""
    if not prologue.members:
        return NO_PROLOGUE
    products = multiply_adds(hero)
    if products <= LEAST_PRODUCT:
        return "the matmul is so small that a plain loop computes it"
    if hero.opcode == "convolution":
        if all(m.opcode in VIEWS or is_splat_constant(m) for m in prologue.members) \
                or len(window_of(hero)) > MOST_SPATIAL:
            return NO_PROLOGUE
        if number == 1 and is_direct(hero):
            return "so few features are computed one output at a time, each from the whole filter"
    work = sum(operations(m) for m in prologue.members if m.shape.num_elements > 1)
    if work > MOST_OPERATIONS:
        return "fusing would compute too much for each tile of the matmul"
    operand = hero.operands[number].shape
    read, stored = bytes_of_sources(prologue), operand.num_bytes
    if not alone and read >= stored:
        return "another kernel computes or reads it anyway, and it is no larger than its own operands"
    times = times_in_windows(hero, number) if hero.opcode == "convolution" else times_in_rows(hero, number)
    again = seconds_of_operations(((times - 1) * work + times * PASSING) * operand.num_elements, machine)
    again += max(0, times - 1) * max(0, read - stored) / (machine.bandwidth * CACHED_SPEEDUP)
    again += lost_to_mma(hero, products, machine)
    saved = seconds_of_traffic(2 * stored, machine)
    saved += seconds_of_launch(stored, machine) if alone else -seconds_of_traffic(read, machine)
    return "" if again < saved else "computing it for each tile of the matmul costs more than storing it once"


def multiply_adds(hero: Instruction) -> int:
    """Multiply-adds of a dot or convolution, padding and gaps counted as elements."""
    depth = window_elements(hero) if hero.opcode == "convolution" else contracted_elements(hero)
    return hero.shape.num_elements * depth


def bytes_of_sources(prologue: Prologue) -> int:
    """Bytes read to compute the operand once."""
    read: dict[Instruction, int] = {}
    for member in prologue.members:
        for number, operand in enumerate(member.operands):
            if operand in prologue.sources:
                read[operand] = max(read.get(operand, 0), bytes_read(member, number))
    return sum(read.values())


def sizes_of(dot: Instruction) -> tuple[int, int, int]:
    """Rows, columns and batches of a matmul."""
    left, right = (o.shape.dimensions for o in dot.operands[:2])
    batches = math.prod(left[d] for d in dot.get("lhs_batch_dims", ()))
    each = max(1, batches * contracted_elements(dot))
    return math.prod(left) // each, math.prod(right) // each, batches


def times_in_rows(dot: Instruction, number: int) -> int:
    """How often each element of an operand of a dot is computed."""
    rows, columns, _ = sizes_of(dot)
    return times_computed(*((rows, columns) if number == 0 else (columns, rows)))


def times_computed(own: int, other: int) -> int:
    """The same; own, other: rows of the operand and of the other one."""
    if min(own, other) <= THIN:
        return -(-other // THIN_EDGE) if own <= other else 1
    return -(-other // EDGE)


def times_in_windows(convolution: Instruction, number: int) -> float:
    """How often each element of an operand of a convolution is computed: of the input, once for each window that
    contains it, on average (less than once if strides skip most elements)."""
    result, features = convolution.shape, features_of(convolution)
    rows = result.num_elements // max(1, result.dimensions[convolution.get("dim_labels").output_feature])
    if number == 1:
        return -(-rows // EDGE)
    across = features if is_direct(convolution) else -(-features // EDGE)
    gathered = multiply_adds(convolution) / max(1, features)
    holes = math.prod(w.base_dilation for w in window_of(convolution))
    return across * gathered / (max(1, convolution.operands[0].shape.num_elements) * holes)


def features_of(convolution: Instruction) -> int:
    """Output features of one group."""
    groups = convolution.get("feature_group_count", 1) * convolution.get("batch_group_count", 1)
    return convolution.shape.dimensions[convolution.get("dim_labels").output_feature] // groups


def is_direct(convolution: Instruction) -> bool:
    """Whether there are too few features, or too short sums, for a matmul: each output is computed alone."""
    groups = convolution.get("feature_group_count", 1) * convolution.get("batch_group_count", 1)
    return is_alone(features_of(convolution), window_elements(convolution), convolution.shape.num_elements, groups)


def is_alone(features: int, depth: int, outputs: int, groups: int) -> bool:
    """The same of a convolution with so many features in each group, and products in each sum. Many long sums are a
    matmul even if most of its columns are empty."""
    many = groups == 1 and depth >= LONG_SUM and outputs >= MANY_OUTPUTS
    return features <= FEW_FEATURES and not many or 0 < depth < FEW_FEATURES


def lost_to_mma(hero: Instruction, products: int, machine: Machine) -> float:
    """Additional seconds of a matmul because wgmma, whose operands are copied to shared memory, cannot be used."""
    left, right = (o.shape for o in hero.operands[:2])
    if left.element_type != right.element_type or left.element_type not in EXACT_GROUPS:
        return 0.0
    width = ELEMENT_TYPES[left.element_type].bytes
    moved = left.num_bytes + right.num_bytes + hero.shape.num_bytes
    if not is_limited_by_mma(2 * products, moved, width, machine):
        return 0.0
    by_mma = seconds_of_mma(2 * products, width, machine)
    return by_mma - max(by_mma * MMA_SHARE, moved / machine.bandwidth)


def seconds_of_mma(count: int, width: int, gpu: Machine) -> float:
    """Seconds of operations on elements of `width` bytes, by mma.sync at its best."""
    return count / (gpu.cores * RATE * 2 / width * MMA_SHARE)


def is_limited_by_mma(count: int, moved: int, width: int, gpu: Machine) -> bool:
    """Whether mma.sync at its best takes longer than moving the bytes: then the instructions of sm_90a are faster.
    count: operations; width: bytes of an element."""
    return gpu.arch == "sm_90a" and seconds_of_mma(count, width, gpu) > moved / gpu.bandwidth

