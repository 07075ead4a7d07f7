"""Makes the program that each device runs of one over whole arrays.

    x = f32[8,4] parameter(0), sharding={devices=[2,1]<=[2]}
    ROOT s = f32[4] reduce(x, 0), dimensions={0}, sharding={replicated}
        =>   x = f32[4,4] parameter(0) ...  ROOT s = f32[4] all-reduce(reduce(x, 0))

sharding_propagation has given each array its sharding. How an op works on parts is in its row (hloc/sharding/rules.py);
choice.py decides along which axes it is divided, sides.py how operands come there (resharding.py: by which steps),
local_ops.py writes it. Where an op cannot work on parts, each device does all of it: the user is told, or, with
--strict, it is refused.
"""
from __future__ import annotations

from hloc.devices import PARTITIONED
from hloc.ir import Module, Verbatim, reachable_computations
from hloc.passes.context import PassContext
from hloc.passes.rewriter import Channels, remove_dead
from hloc.passes.sharding_propagation import module_mesh
from hloc.passes.sharding_propagation.graph import Graph
from hloc.passes.spmd_partitioner.walk import Partitioner


def spmd_partitioner(module: Module, context: PassContext) -> bool:
    """True where the module has been partitioned: it has annotations, and they divide over several devices."""
    mesh = module_mesh(module)
    if mesh.size == 1 or module.entry.name.endswith(PARTITIONED):
        return False
    graph = Graph(module)
    partitioner = Partitioner(module, mesh, context, Channels(module))
    for computation in graph.computations:
        partitioner.partition(computation)
    made = partitioner.made
    module.entry = made[module.entry]
    module.entry.name += PARTITIONED
    for computation in (*made.values(), *partitioner.giving.values()):
        remove_dead(computation)
    module.computations = reachable_computations(module.entry)
    _write_header(module, mesh.size)
    return True


def _write_header(module: Module, partitions: int) -> None:
    attributes = module.attributes
    attributes["num_partitions"] = Verbatim(str(partitions))
    if "entry_computation_layout" in attributes:
        shapes = ", ".join(str(p.shape) for p in module.entry.parameters)
        attributes["entry_computation_layout"] = Verbatim(f"{{({shapes})->{module.entry.root.shape}}}")
    for key in ("input_output_alias", "buffer_donor"):
        attributes.pop(key, None)                        # of the arrays before: parts may differ in size
