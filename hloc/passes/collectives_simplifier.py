"""Removes collectives of modules for one device, where they have no effect.

    r = f32[8] all-reduce(x), replica_groups={}, to_apply=add           =>   r is x
    p = f32[8] collective-permute(x), source_target_pairs={{0,0}}       =>   p is x
    i = u32[] partition-id()                                            =>   i = u32[] constant(0)

Modules with several replicas or partitions keep theirs, and so do collectives that change the shape.
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.ops.device_groups import parse_groups
from hloc.passes.context import PassContext
from hloc.passes.expressions import Expressions
from hloc.passes.rewriter import Rewriter, rewrite_module

SAME = frozenset(["all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-broadcast"])
NUMBERS = frozenset(["partition-id", "replica-id"])


def collectives_simplifier(module: Module, context: PassContext) -> bool:
    """True if there was a collective without effect."""
    if any(str(module.attributes.get(key, 1)) != "1" for key in ("num_partitions", "replica_count")):
        return False
    return rewrite_module(module, visit, expands=True)


def visit(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    e = Expressions(rewriter, instruction.span)
    opcode = instruction.opcode
    if opcode in NUMBERS:
        return e.constant(0, instruction.shape.element_type)
    if opcode == "collective-permute":
        return permuted(e, instruction)
    if opcode not in SAME or not alone(instruction):
        return None
    return own_value(e, instruction)


def alone(instruction: Instruction) -> bool:
    """Whether every group is {0}; no groups mean all devices, here one."""
    groups = parse_groups(str(instruction.get("replica_groups", "{}")))
    return all(list(g) == [0] for g in groups)


def own_value(e: Expressions, instruction: Instruction) -> Instruction | None:
    operands = instruction.operands
    if instruction.shape.is_tuple:
        shapes = instruction.shape.tuple_shapes
        if len(shapes) != len(operands) or not all(o.shape.compatible(s) for o, s in zip(operands, shapes)):
            return None
        return e.op("tuple", *operands)
    return operands[0] if len(operands) == 1 and operands[0].shape.compatible(instruction.shape) else None


def permuted(e: Expressions, instruction: Instruction) -> Instruction | None:
    """What device 0 receives: its own value if a pair is {0,0}, else zeros."""
    pairs = parse_groups(str(instruction.get("source_target_pairs", "{}")))
    if instruction.shape.is_tuple or len(instruction.operands) != 1 or any(n for pair in pairs for n in pair):
        return None
    return instruction.operands[0] if pairs else e.full(0, instruction.shape)
