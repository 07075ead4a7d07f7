"""How precisely a GPU computes, by options of passes: `hloc check` and `hloc explain` tell it, a .cubin keeps it.

    precision_of({}) == {"excess_precision": "on", "f32": "tf32"}
    precision_notes(module, {}) == ["bf16 and f16 are f32 within a kernel ..."]
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hloc.ir import Instruction, Module, leaves
from hloc.ops.algorithm import algorithm_of
from hloc.passes.context import PassContext

VALUES = {"excess_precision": ("on", "off"), "f32": ("tf32", "exact")}
NARROW = frozenset(["bf16", "f16"])
PRODUCTS = frozenset(["dot", "convolution", "ragged-dot"])
LEVELS = ("default", "high", "highest")
NOTES = {("excess_precision", "on"): "bf16 and f16 are f32 within a kernel (--exact rounds them after each operation)",
         ("excess_precision", "off"): "bf16 and f16 are rounded after each operation",
         ("f32", "tf32"): "matmuls and convolutions of f32 round operands to TF32 (not with --f32 exact)",
         ("f32", "exact"): "matmuls and convolutions of f32 multiply all bits"}


def precision_of(options: Mapping[str, Any]) -> dict[str, str]:
    """The value of each option that changes how precisely a GPU computes."""
    context = PassContext(target="cuda", options=options)
    return {name: context.option(name) for name in VALUES}


def precision_asked(instruction: Instruction) -> str:
    """The highest precision that operand_precision names: default, high or highest."""
    asked = re.findall(r"\w+", str(instruction.get("operand_precision", "")))
    return next((level for level in reversed(LEVELS) if level in asked), "default")


def may_round(instruction: Instruction) -> bool:
    """A matmul or convolution of f32 that asks neither for a precision of its operands nor for an algorithm."""
    return instruction.opcode in PRODUCTS and precision_asked(instruction) == "default" and \
        not algorithm_of(instruction) and all(o.shape.element_type == "f32" for o in instruction.operands[:2])


def rounds_f32(module: Module, options: Mapping[str, Any]) -> bool:
    """Whether a GPU rounds operands of one of its products of f32."""
    return precision_of(options)["f32"] == "tf32" and any(map(may_round, module.instructions()))


def product_precision(module: Module, options: Mapping[str, Any]) -> str:
    """The least precise of its products on a GPU: "f8", whose sums have 14 bits or so, "tf32", or ""."""
    eight_bits = any(i.opcode in PRODUCTS and i.operands[0].shape.element_type.startswith("f8")
                     for i in module.instructions())
    return "tf32" if rounds_f32(module, options) else "f8" if eight_bits else ""


def precision_notes(module: Module, options: Mapping[str, Any]) -> list[str]:
    """What holds for the types that the module has, a sentence each."""
    types = {leaf.element_type for i in module.instructions() for leaf in leaves(i.shape)}
    asked = {"excess_precision": bool(types & NARROW), "f32": any(map(may_round, module.instructions()))}
    return [NOTES[item] for item in precision_of(options).items() if asked[item[0]]]
