"""Makes a reduce-scatter of an all-reduce of which each device takes its own part.

    r = f32[8] all-reduce(x), replica_groups={{0,1}}
    p = f32[4] dynamic-slice(r, multiply(partition-id, 4))      =>   p = f32[4] reduce-scatter(x), dimensions={0}

Where the parts begin is computed for every device: the k-th of a group must take the k-th part. The same elements are
joined in the same order. Source: xla/service/reduce_scatter_utils.cc, which matches such offsets.
"""
from __future__ import annotations

import math

import numpy as np

from hloc.analysis.communication import Counts, counts_of
from hloc.ir import Instruction, Module, array, numpy_dtype
from hloc.ops.collectives import device_groups
from hloc.passes.collective_combining import drop_replaced, is_of_array
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module

MOST_STEPS = 200                   # instructions between partition-id and an offset
ARITHMETIC = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "maximum": np.maximum,
              "minimum": np.minimum}
UNCHANGED = frozenset(["convert", "reshape", "bitcast", "copy"])


def reduce_scatter_creator(module: Module, context: PassContext) -> bool:
    """True if there was such an all-reduce."""
    counts = counts_of(module)
    replaced: set[Instruction] = set()
    changed = rewrite_module(module, lambda i, rewriter: visit(i, rewriter, counts, replaced), revisit=False,
                             opcodes=("dynamic-slice",))
    drop_replaced(module, replaced)
    return changed


def visit(part: Instruction, rewriter: Rewriter, counts: Counts, replaced: set[Instruction]) -> Instruction | None:
    """The reduce-scatter; the all-reduce is added to `replaced`."""
    reduce = part.operands[0]
    if not is_of_array(reduce, "all-reduce") or rewriter.uses(reduce) != 1:
        return None
    whole, own = reduce.shape.dimensions, part.shape.dimensions
    cut = [d for d, (a, b) in enumerate(zip(whole, own)) if a != b]
    groups = [list(g) for g in device_groups(reduce, *counts)]
    if len(cut) != 1 or sorted(n for g in groups for n in g) != list(range(counts.devices)):
        return None
    (dimension,), size = cut, own[cut[0]]
    if any(len(g) * size != whole[dimension] for g in groups):
        return None
    starts = offsets(part.operands[1 + dimension], counts)
    if starts is None or any(starts[n] != k * size for g in groups for k, n in enumerate(g)):
        return None
    replaced.add(reduce)
    attributes = {k: v for k, v in reduce.attributes.items() if k not in ("sharding", "constrain_layout")}
    return rewriter.add("reduce-scatter", array(part.shape.element_type, *own), [reduce.operands[0]],
                        {**attributes, "dimensions": (dimension,)})


def offsets(start: Instruction, counts: Counts) -> list[int] | None:
    """The value of a scalar on each device; None where it depends on more than which device that is."""
    order, stack = [], [start]
    while stack:                                              # operands come behind their readers
        instruction = stack.pop()
        order.append(instruction)
        stack.extend(instruction.operands)
        if len(order) > MOST_STEPS:
            return None
    values: dict[Instruction, np.ndarray] = {}
    for instruction in reversed(order):
        if instruction not in values:
            value = _value(instruction, values, counts)
            if value is None or not _fits(value, instruction):
                return None
            values[instruction] = value
    found = values[start]
    return [int(n) for n in found.reshape(counts.devices)] if found.size == counts.devices else None


def _fits(value: np.ndarray, instruction: Instruction) -> bool:
    """Whether the type holds the value, which else would wrap around."""
    bounds = np.iinfo(numpy_dtype(instruction.shape.element_type))
    return not value.size or bounds.min <= value.min() and value.max() <= bounds.max


def _value(instruction: Instruction, values: dict[Instruction, np.ndarray], counts: Counts) -> np.ndarray | None:
    """The value on each device, along the first dimension; integers of 64 bits."""
    opcode, shape = instruction.opcode, instruction.shape
    if not shape.is_array or shape.kind not in ("signed", "unsigned") or shape.num_elements > 1 and opcode not in (
            "constant", *UNCHANGED):
        return None
    devices = np.arange(counts.devices)
    if opcode in ("partition-id", "replica-id"):
        return devices % counts.partitions if opcode == "partition-id" else devices // counts.partitions
    if opcode == "constant":
        literal = np.asarray(instruction.literal)
        if math.prod(shape.dimensions) != literal.size:
            return None
        return np.broadcast_to(literal.astype(np.int64).reshape(1, *shape.dimensions),
                               (counts.devices, *shape.dimensions))
    operands = [values[o] for o in instruction.operands]
    if opcode in UNCHANGED:
        return operands[0].reshape(counts.devices, *shape.dimensions)
    if opcode in ARITHMETIC:
        return ARITHMETIC[opcode](operands[0].reshape(-1), operands[1].reshape(-1)).reshape(
            counts.devices, *shape.dimensions)
    if opcode == "dynamic-slice" and operands[0].ndim == 2:
        places = np.clip(operands[1].reshape(-1), 0, operands[0].shape[1] - 1)
        return operands[0][devices, places].reshape(counts.devices, *shape.dimensions)
    return None
