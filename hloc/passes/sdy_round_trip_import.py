"""Turns Shardy's annotations, which JAX writes as frontend attributes, into shardings and GSPMD's custom calls.

    x = f32[8] parameter(0), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"x\\"}]>"}
        =>   x = f32[8] parameter(0), sharding={mesh['x'=2], [{'x'}]}

A manual computation, between xla.sdy.GlobalToLocalShape and LocalToGlobalShape, gets its operands by
SPMDFullToShardShape and gives its results by SPMDShardToFullShape; its call can be inlined. Source of the names:
xla/service/spmd/shardy/constants.h.
"""
from __future__ import annotations

from collections.abc import Sequence

from hloc.errors import VerifyError
from hloc.ir import Instruction, Module, Shape, Verbatim, reachable_computations
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Rewriter, rewrite
from hloc.phrases import escaped, is_dictionary
from hloc.sharding.annotation import MANUAL, AxisUse, NamedMesh, Role, Sharding
from hloc.sharding.sdy import (
    IN_SHARDINGS,
    MANUAL_AXES,
    MESHES,
    OUT_SHARDINGS,
    SHARDING,
    Meshes,
    frontend_attributes,
    manual_axes,
    meshes_of,
    shardings_of,
)

TO_LOCAL, TO_GLOBAL = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
SHARDING_GROUP, FUNC_RESULT = "xla.sdy.ShardingGroup", "xla.sdy.FuncResultSharding"
MANUAL_BODY = "xla.sdy.manual_computation_body"


def sdy_round_trip_import(module: Module, context: PassContext) -> bool:
    """True where the module has annotations of Shardy. Raises ParseError or VerifyError, located, where they do not
    fit."""
    attributes = frontend_attributes(str(module.attributes.get("frontend_attributes", "{}")))
    meshes = meshes_of(attributes)
    if not meshes and not any("xla.sdy." in str(i.get("frontend_attributes", "")) for i in module.instructions()):
        return False
    for computation in reachable_computations(module.entry):
        for instruction in computation.instructions:
            _import_sharding(instruction, meshes)
        rewrite(computation, lambda i, rewriter: _visit(i, rewriter, meshes), revisit=False,
                opcodes=("custom-call",), expands=True)
        for instruction in computation.instructions:
            if _target(instruction) == FUNC_RESULT:
                instruction.attributes["custom_call_target"] = Verbatim('"Sharding"')
                instruction.attributes.pop("custom_call_has_side_effect", None)
            if instruction.opcode == "call" and instruction.get("to_apply").name.startswith(MANUAL_BODY):
                instruction.attributes.pop("frontend_attributes", None)          # inlineable="false"
    attributes.pop(MESHES, None)
    _set_attributes(module.attributes, attributes)
    return True


def _import_sharding(instruction: Instruction, meshes: Meshes) -> None:
    """The sharding of an instruction, from its frontend attributes, which say no more afterwards."""
    text = str(instruction.get("frontend_attributes", ""))
    if "xla.sdy." not in text:
        return
    attributes = frontend_attributes(text, instruction.span)
    if SHARDING in attributes:
        found = shardings_of(attributes.pop(SHARDING), meshes, instruction.span)
        check_ranks(found, [instruction.shape] if not instruction.shape.is_tuple else [], instruction)
        one = Sharding("tuple", parts=tuple(found)) if instruction.shape.is_tuple else found[0]
        instruction.attributes["sharding"] = Verbatim(str(one))
        _set_attributes(instruction.attributes, attributes)


def check_ranks(found: Sequence[Sharding], shapes: Sequence[Shape], instruction: Instruction) -> None:
    """VerifyError where a sharding has not as many dimensions as its array, or axes that its mesh has not."""
    for sharding, shape in zip(found, shapes):
        if sharding.kind != "named" or sharding.mesh is None:
            continue
        if shape.is_array and sharding.data_rank != shape.rank:
            raise VerifyError(f"{sharding} has {sharding.data_rank} dimensions, {shape.to_string(False)} has "
                              f"{shape.rank}", instruction.span)
        names = {name for name, _ in sharding.mesh.axes}
        for use in (u for d in sharding.dimensions for u in d.axes):
            if use.name not in names:
                raise VerifyError(f"{sharding}: the mesh has no axis {use.name!r}", instruction.span)


def _set_attributes(holder: dict, attributes: dict[str, str]) -> None:
    words = [f"{key}={value}" if is_dictionary(value) else f'{key}="{escaped(value)}"'
             for key, value in attributes.items()]
    holder.pop("frontend_attributes", None)
    if words:
        holder["frontend_attributes"] = Verbatim("{" + ",".join(words) + "}")


def _target(instruction: Instruction) -> str:
    return str(instruction.get("custom_call_target", "")).strip('"')


# -- manual computations -----------------------------------------------------------------------------------------------

def _visit(instruction: Instruction, rewriter: Rewriter, meshes: Meshes) -> Instruction | None:
    target = _target(instruction)
    if target == TO_LOCAL:
        return _to_local(instruction, rewriter, meshes)
    if target == TO_GLOBAL:
        return _to_global(instruction, rewriter, meshes)
    return _bare(rewriter, "tuple", instruction.shape, (), {}) if target == SHARDING_GROUP else None


def _bare(rewriter: Rewriter, opcode: str, shape: Shape, operands: Sequence[Instruction],
          attributes: dict) -> Instruction:
    """A new instruction that says nothing of Shardy."""
    new = rewriter.add(opcode, shape, operands, attributes)
    new.attributes.pop("frontend_attributes", None)
    return new


def _region(instruction: Instruction, meshes: Meshes, key: str) -> tuple[list[Sharding], tuple[str, ...]]:
    """The shardings outside of a manual computation, and its manual axes."""
    attributes = frontend_attributes(str(instruction.get("frontend_attributes", "{}")), instruction.span)
    found = shardings_of(attributes.get(key, ""), meshes, instruction.span)
    axes = manual_axes(attributes.get(MANUAL_AXES, "#sdy<manual_axes{}>"), instruction.span)
    return found, axes


def inside(sharding: Sharding, axes: Sequence[str]) -> Sharding:
    """What is left of a sharding within a computation that is manual along `axes`."""
    if sharding.kind != "named" or sharding.mesh is None:
        return sharding
    dimensions = tuple(d._replace(axes=tuple(u for u in d.axes if u.name not in axes)) for d in sharding.dimensions)
    manual = _named_role(sharding.mesh, axes)
    if all(name in axes or size == 1 for name, size in sharding.mesh.axes):
        return MANUAL
    return Sharding("named", mesh=sharding.mesh, dimensions=dimensions, roles=manual)


def _named_role(mesh: NamedMesh, axes: Sequence[str]) -> tuple[Role, ...]:
    return (Role("manual", tuple(AxisUse(name) for name, _ in mesh.axes if name in axes)),)


def _call(rewriter: Rewriter, target: str, operand: Instruction, shape: Shape, sharding: Sharding) -> Instruction:
    return _bare(rewriter, "custom-call", shape, [operand], {
        "custom_call_target": Verbatim(f'"{target}"'), "sharding": Verbatim(str(sharding))})


def _to_local(instruction: Instruction, rewriter: Rewriter, meshes: Meshes) -> Instruction:
    shardings, axes = _region(instruction, meshes, IN_SHARDINGS)
    shapes = instruction.shape.tuple_shapes if instruction.shape.is_tuple else (instruction.shape,)
    if len(shardings) != len(instruction.operands) or len(shapes) != len(shardings):
        raise VerifyError(f"{len(instruction.operands)} operands have {len(shardings)} shardings", instruction.span)
    check_ranks(shardings, [o.shape for o in instruction.operands], instruction)
    parts = []
    for operand, shape, sharding in zip(instruction.operands, shapes, shardings):
        check_local(operand.shape, shape, sharding, axes, instruction)
        full = _call(rewriter, "Sharding", operand, operand.shape, sharding)
        parts.append(_call(rewriter, "SPMDFullToShardShape", full, shape, inside(sharding, axes)))
    return _joined(rewriter, instruction, parts)


def _to_global(instruction: Instruction, rewriter: Rewriter, meshes: Meshes) -> Instruction:
    shardings, axes = _region(instruction, meshes, OUT_SHARDINGS)
    shapes = instruction.shape.tuple_shapes if instruction.shape.is_tuple else (instruction.shape,)
    if len(shardings) != len(instruction.operands) or len(shapes) != len(shardings):
        raise VerifyError(f"{len(instruction.operands)} results have {len(shardings)} shardings", instruction.span)
    check_ranks(shardings, shapes, instruction)
    parts = []
    for operand, shape, sharding in zip(instruction.operands, shapes, shardings):
        check_local(shape, operand.shape, sharding, axes, instruction)
        local = _call(rewriter, "Sharding", operand, operand.shape, inside(sharding, axes))
        parts.append(_call(rewriter, "SPMDShardToFullShape", local, shape, sharding))
    return _joined(rewriter, instruction, parts)


def _joined(rewriter: Rewriter, instruction: Instruction, parts: Sequence[Instruction]) -> Instruction:
    """The parts as one value, of the shape that the instruction has."""
    if not instruction.shape.is_tuple:
        return parts[0]
    return _bare(rewriter, "tuple", instruction.shape, parts, {})


def check_local(full: Shape, local: Shape, sharding: Sharding, axes: Sequence[str], instruction: Instruction) -> None:
    """VerifyError where the local shape is not the full one divided along the manual axes."""
    if sharding.kind != "named" or sharding.mesh is None or not full.is_array:
        return
    sizes = dict(sharding.mesh.axes)
    for number, (dimension, whole, part) in enumerate(zip(sharding.dimensions, full.dimensions, local.dimensions)):
        count = 1
        for use in dimension.axes:
            count *= (use.size or sizes[use.name]) if use.name in axes else 1
        if part * count != whole:
            raise VerifyError(f"dimension {number} of {full.to_string(False)} in {count} parts is not that of "
                              f"{local.to_string(False)}", instruction.span)
