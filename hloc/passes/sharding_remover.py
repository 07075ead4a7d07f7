"""Removes sharding annotations of modules with one partition, where they have no effect.

    s = f32[8] custom-call(x), custom_call_target="Sharding", sharding={devices=[2]0,1}        =>   s is x
"""
from __future__ import annotations

from hloc.ir import Instruction, Module
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite_module

ANNOTATIONS = frozenset({"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "xla.sdy.FuncResultSharding"})


def sharding_remover(module: Module, context: PassContext) -> bool:
    """Remove sharding annotations if there is one partition. True if there was one."""
    if str(module.attributes.get("num_partitions", 1)) != "1":
        return False
    return rewrite_module(module, remove_annotation, opcodes=("custom-call",), expands=True)


def remove_annotation(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if len(instruction.operands) != 1:
        return None
    if str(instruction.get("custom_call_target")).strip('"') not in ANNOTATIONS:
        return None
    operand = instruction.operands[0]
    return operand if operand.shape.compatible(instruction.shape) else None
