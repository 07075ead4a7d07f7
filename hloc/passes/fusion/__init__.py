"""Groups instructions into kernels: fusion.

    m = f32[8] reduce(x, zero), dimensions={1}          s = (f32[8,64]) fusion(x), kind=kCustom, calls=f
    b = f32[8,64] broadcast(m), dimensions={0}     =>   f { the four instructions }
    d = f32[8,64] subtract(x, b)
    e = f32[8,64] exponential(d)

The walk goes from users to producers, so all users of a producer are in groups already. A producer joins a group if all
its users are inside: that cannot close a cycle. With users outside it may still join as an additional result, if the
group is strictly above them (Group.height). Cheap producers are recomputed in every group that reads them. A producer
joins if recomputing its elements as often as they are read costs less than a store, a load and a kernel
(costs.py). On a GPU what steps a counter of a loop joins nothing: no kernel computes it
(hloc/analysis/counters.py). Two matmuls with a softmax between them are a group from the start (attention.py), on GPUs
with updates of the keys and values; producers of the scores may join it. At the end, independent groups that read the
same arrays are merged.

Every remaining edge is appended with its reason to `context.fusion_report`, a list of Edge (edges.py), if the caller
gives one. The option "fusion": "off" makes each instruction a separate kernel. Linear in instructions and edges; a
group's size is bounded.
"""
from __future__ import annotations

from hloc.analysis.aliasing import branch_origins, leaf_values, module_invariants
from hloc.analysis.control_flow import executed_computations
from hloc.analysis.counters import counted_steps
from hloc.ir import Module
from hloc.passes.context import PassContext
from hloc.passes.fusion.attention import TARGETS as WITH_ATTENTION
from hloc.passes.fusion.attention import WITH_GRADIENTS
from hloc.passes.fusion.edges import OFF, all_edges, finished, unfused_edges
from hloc.passes.fusion.emitter import emit_groups
from hloc.passes.fusion.fuser import Fuser
from hloc.passes.fusion.prologues import TARGETS as WITH_PROLOGUES
from hloc.passes.fusion.update_hazards import Overwritten
from hloc.passes.rewriter import Names


def fusion(module: Module, context: PassContext) -> bool:
    """Fuse every computation that runs as a program. True if a fusion was made."""
    report = context.fusion_report
    names = Names(c.name for c in module.computations)
    changed = False
    invariants = module_invariants(module)
    callees = invariants, branch_origins(module, invariants)
    computations = list(executed_computations(module))
    counted = counted_steps(computations) if context.machine.kind == "gpu" else frozenset()
    for computation in computations:
        if context.option("fusion") == "off":
            edges = all_edges(computation, OFF) if report is not None else []
        else:
            overwritten = Overwritten(computation, leaf_values(computation, invariants), callees)
            fuser = Fuser(computation, context.machine, overwritten, attention=context.target in WITH_ATTENTION,
                          gradients=context.target in WITH_GRADIENTS, prologues=context.target in WITH_PROLOGUES,
                          ends_wide=context.target == "cpu", overlaps=context.option("pipelined") == "on",
                          counted=counted)
            fuser.run()
            edges = unfused_edges(fuser) if report is not None else []
            changed |= emit_groups(module, computation, fuser.groups, names)
        if report is not None:
            report.extend(finished(edges))
    return changed
