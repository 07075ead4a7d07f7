"""A module in the form that XLA's importer for CPUs accepts: the same values, fewer kinds of instructions.

    text = text_for_xla(module)

The importer converts to StableHLO, which has no fusions, bitcasts, async ops, layouts (except of library calls) or
annotations for several devices. The entry must take and return plain arrays.

    f = f32[4] fusion(p), kind=kLoop, calls=g         =>   f = f32[4] call(p), to_apply=g
    b = f32[3,2] bitcast(f32[2,3]{0,1} p)             =>   b = f32[3,2] reshape(transpose(p))
    d = f32[4] slice-done(slice-start(p))             =>   d = f32[4] slice(p)
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hloc.ir import Computation, Instruction, Module, Shape, leaves, reachable_computations
from hloc.ir.clone import clone_module
from hloc.passes import async_to_sync, float_normalization, sharding_remover
from hloc.passes.layout_assignment import spell_out_bitcast
from hloc.passes.rewriter import Rewriter, rewrite_module

ANNOTATIONS = ("sharding", "origin", "statistics", "metadata")


def text_for_xla(module: Module) -> str:
    """The text of a changed copy of `module`. Raises UnsupportedError for bitcasts over tiles."""
    copy = clone_module(module)
    rewrite_module(copy, async_to_sync.visit, fused=True)
    rewrite_module(copy, sharding_remover.remove_annotation, opcodes=("custom-call",), fused=True)
    rewrite_module(copy, float_normalization.visit, fused=True)
    rewrite_module(copy, spell_out_bitcast, fused=True)
    for instruction in copy.instructions():
        _drop_annotations(instruction)
    rewrite_module(copy, _plain, fused=True)
    copy = flat_entry(copy)
    return str(Module(module.name, [_without_thread(c) for c in reachable_computations(copy.entry)], copy.entry))


def _drop_annotations(instruction: Instruction) -> None:
    if "operand_layout_constraints" not in instruction.attributes:     # LAPACK's results are column-major
        instruction.shape = instruction.shape.with_default_layout()
    instruction.control_predecessors = ()
    for key in ANNOTATIONS:
        instruction.attributes.pop(key, None)
    if not instruction.get("is_composite"):
        instruction.attributes.pop("frontend_attributes", None)       # a composite call's name is there


def _without_thread(computation: Computation) -> Computation:
    computation.attributes = {}
    return computation


def _plain(instruction: Instruction, rewriter: Rewriter) -> Instruction | None:
    if instruction.opcode == "fusion":
        return rewriter.add("call", instruction.shape, instruction.operands, {"to_apply": instruction.get("calls")})
    if instruction.opcode != "bitcast":
        return None
    operand = instruction.operands[0]
    if operand.shape.element_type == instruction.shape.element_type:
        return rewriter.add("reshape", instruction.shape, [operand])
    other = operand.shape.with_element_type(instruction.shape.element_type)
    return rewriter.add("reshape", instruction.shape, [rewriter.add("bitcast-convert", other, [operand])])


def flat_entry(module: Module) -> Module:
    """The module with an entry over array leaves only; the old entry becomes a called computation."""
    parameters = module.entry.parameters
    if all(p.shape.is_array for p in parameters) and _flat_result(module.entry.root.shape):
        return module
    builder = _Builder()
    arguments = [builder.argument(p.shape) for p in parameters]
    call = builder.add("call", module.entry.root.shape, arguments, {"to_apply": module.entry})
    results = builder.elements(call)
    if len(results) != 1 or results[0] is not builder.instructions[-1]:
        builder.add("tuple", Shape.tuple(r.shape for r in results), results)
    entry = Computation("flat_entry", builder.instructions)
    return Module(module.name, [*module.computations, entry], entry, {}, module.tables, module.source)


def _flat_result(shape: Shape) -> bool:
    return shape.is_array or (shape.is_tuple and len(shape.tuple_shapes) > 1
                              and all(s.is_array for s in shape.tuple_shapes))


class _Builder:
    """Makes the wrapping entry; tuple shapes are nested only a few levels deep, so recursion is safe."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.parameters = 0

    def add(self, opcode: str, shape: Shape, operands: Iterable[Instruction] = (),
            attributes: dict[str, Any] | None = None, **fields: Any) -> Instruction:
        new = Instruction(f"flat_{opcode.replace('-', '_')}.{len(self.instructions)}", opcode, shape, operands,
                          attributes, **fields)
        self.instructions.append(new)
        return new

    def argument(self, shape: Shape) -> Instruction:
        if shape.is_token:
            return self.add("after-all", shape)
        if shape.is_tuple:
            return self.add("tuple", shape, [self.argument(s) for s in shape.tuple_shapes])
        self.parameters += 1
        return self.add("parameter", shape, parameter_number=self.parameters - 1)

    def elements(self, value: Instruction) -> list[Instruction]:
        if not value.shape.is_tuple:
            return [value] if value.shape.is_array else []
        return [leaf for i, s in enumerate(value.shape.tuple_shapes) if list(leaves(s))
                for leaf in self.elements(self.add("get-tuple-element", s, [value], {"index": i}))]
