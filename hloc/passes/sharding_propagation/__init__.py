"""Gives every array a sharding, from the annotations of some.

    w = f32[8,4] parameter(1), sharding={devices=[1,2]<=[2]}
    d = f32[2,4] dot(x, w), ...        =>   d = f32[2,4] dot(x, w), ..., sharding={devices=[1,2]<=[2]}

Calls must be inlined, and Shardy's annotations imported (sdy_round_trip_import). spmd_partitioner does what the
annotations say. XLA's pass of the same name decides by other rules; which sharding is chosen changes no result.
"""
from __future__ import annotations

from hloc.errors import UnsupportedError
from hloc.ir import Instruction, Module, Verbatim, parts_of, reachable_computations
from hloc.ir.narrowing import all_known
from hloc.ops.checks import target_of
from hloc.passes.context import PassContext
from hloc.passes.remeshing import remesh
from hloc.passes.rewriter import rewrite
from hloc.passes.sharding_propagation.graph import (
    SHARDING,
    TO_FULL,
    TO_SHARD,
    Graph,
    Node,
    annotation_call,
    has_dynamic_size,
)
from hloc.passes.sharding_propagation.propagation import Propagation
from hloc.passes.sharding_propagation.shifts import merge_slices_into_pads
from hloc.sharding.annotation import Sharding
from hloc.sharding.meshes import AxisSharding, DeviceMesh, axes_of, mesh_of, replicated
from hloc.sharding.text import parse_sharding


def sharding_propagation(module: Module, context: PassContext) -> bool:
    """True where it annotated something. Raises UnsupportedError, located, for one that no mesh of all devices
    fits, where no array could be replicated instead."""
    mesh = module_mesh(module)
    wanted = context.option("mesh")
    if wanted is not None and remesh(module, mesh, wanted):
        mesh = module_mesh(module)
    if mesh.size == 1:
        return False
    for computation in reachable_computations(module.entry):
        merge_slices_into_pads(computation)
    graph = Graph(module)
    propagation = Propagation(graph, mesh, *_given(graph, mesh, context))
    for instruction in filter(is_open, graph.nodes):
        for node, sharding in zip(graph.of(instruction), own_annotation(instruction, mesh) or ()):
            propagation.begin(node, sharding, instruction)
    propagation.run()
    before = [i.get("sharding") for i in graph.nodes]
    for computation in graph.computations:
        for instruction in computation.instructions:
            own = None if is_open(instruction) or instruction in graph.states else own_annotation(instruction, mesh)
            found = [propagation.sharding(n) for n in graph.nodes[instruction]]
            write_shardings(instruction, own or found, mesh)
    context.origins.update(_origins(graph, propagation))
    _clear_functions(module, graph)
    module.attributes["num_partitions"] = Verbatim(str(mesh.size))
    return before != [i.get("sharding") for i in graph.nodes]


def _origins(graph: Graph, propagation: Propagation) -> dict[Instruction, dict[int, Instruction]]:
    found: dict[Instruction, dict[int, Instruction]] = {}
    for instruction, nodes in graph.nodes.items():
        for node in nodes:
            found.setdefault(instruction, {}).update(propagation.origins.get(graph.find(node), {}))
    return found


def _clear_functions(module: Module, graph: Graph) -> None:
    """Functions of single elements, as reductions apply them, have no shardings."""
    for computation in set(reachable_computations(module.entry)) - set(graph.computations):
        for instruction in computation.instructions:
            instruction.attributes.pop("sharding", None)
        rewrite(computation, lambda i, _: i.operands[0] if annotation_call(i) == SHARDING else None,
                opcodes=("custom-call",), expands=True)


def module_mesh(module: Module) -> DeviceMesh:
    """The mesh of all annotations of a module."""
    found: list[Sharding] = []
    for instruction in module.instructions():
        if "sharding" in instruction.attributes:
            one = parse_sharding(str(instruction.get("sharding")), instruction.span)
            found += one.parts if one.kind == "tuple" else [one]
    return mesh_of(dict.fromkeys(found))


def own_annotation(instruction: Instruction, mesh: DeviceMesh) -> list[AxisSharding] | None:
    """What an instruction's annotation says of each of its parts; None where it has none, or none on this mesh."""
    if "sharding" not in instruction.attributes:
        return None
    parts = parts_of(instruction.shape)
    written = parse_sharding(str(instruction.get("sharding")), instruction.span).leaves(len(parts))
    if any(one.kind == "unknown" for one in written):
        return None
    found = [replicated(part.rank) if has_dynamic_size(part) else axes_of(one, part.rank, mesh)
             for one, part in zip(written, parts)]
    return found if all_known(found) else None


def is_open(instruction: Instruction) -> bool:
    """Whether its annotation lets dimensions be divided further: {'x', ?}, or unspecified_dims in the old form."""
    parts = parse_sharding(str(instruction.get("sharding", "{replicated}")), instruction.span)
    return "unspecified_dims" in str(instruction.get("backend_config", "")) or any(
        d.is_open for one in (parts, *parts.parts) for d in one.dimensions)


def _given(graph: Graph, mesh: DeviceMesh, context: PassContext) -> tuple[
        dict[Node, AxisSharding], dict[Node, Instruction]]:
    """The shardings that annotations say, by node, and which; the first counts where several say something of one."""
    given: dict[Node, AxisSharding] = {}
    givers: dict[Node, Instruction] = {}
    for instruction in graph.nodes:
        for node in graph.of(instruction):
            if has_dynamic_size(graph.shapes[node]):
                given.setdefault(node, replicated(graph.shapes[node].rank))
        if is_open(instruction):
            continue
        if instruction.opcode == "partition-id":
            given[graph.of(instruction)[0]] = replicated(0, frozenset(range(len(mesh.sizes))))
            continue
        found = own_annotation(instruction, mesh)
        if found is None and "sharding" in instruction.attributes:
            _tell_odd(instruction, context)
        for node, sharding in zip(graph.of(instruction), found or ()):
            if node not in given:
                given[node], givers[node] = sharding, instruction
    return given, givers


def _tell_odd(instruction: Instruction, context: PassContext) -> None:
    """An annotation that does not fit the mesh of the others. Where it only asks for a placement, the array may lie
    anywhere; what changes shapes must be done."""
    text = str(instruction.get("sharding"))
    if text == "{unknown}":
        return
    if annotation_call(instruction) in (TO_SHARD, TO_FULL):
        raise UnsupportedError(f"{target_of(instruction)} with {text}: the other annotations of the module divide the "
                               "devices otherwise", instruction.span)
    context.tell(f"%{instruction.name}: {text} divides the devices otherwise than the module's other annotations, and "
                 "is not followed", instruction.span)


def write_shardings(instruction: Instruction, shardings: list[AxisSharding], mesh: DeviceMesh) -> None:
    """Annotate an instruction with the shardings of its parts."""
    parts = [mesh.annotation(s) for s in shardings]
    whole = Sharding("tuple", parts=tuple(parts)) if instruction.shape.is_tuple else parts[0]
    instruction.attributes["sharding"] = Verbatim(str(whole))
