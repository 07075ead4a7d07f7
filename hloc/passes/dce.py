"""Dead code elimination: removes instructions without users and computations without callers.

    a = f32[4] negate(p)           // a has no users
    ROOT b = f32[4] add(p, p)      =>   ROOT b = f32[4] add(p, p)

Instructions with side effects, parameters and control predecessors remain.
"""
from __future__ import annotations

from hloc.ir import Module, reachable_computations
from hloc.passes.context import PassContext
from hloc.passes.rewriter import remove_dead


def dce(module: Module, context: PassContext) -> bool:
    """Remove unused instructions and computations. True if there was one."""
    changed = False
    for computation in reversed(reachable_computations(module.entry)):     # callers first: they free their callees
        changed |= remove_dead(computation)
    return drop_unreachable(module) or changed


def drop_unreachable(module: Module) -> bool:
    """Keep only the computations that the entry reaches, callees first. True if the list changed."""
    reachable = reachable_computations(module.entry)
    wanted = set(reachable)
    kept = [c for c in module.computations if c in wanted]
    if len(kept) == len(module.computations):
        return False
    module.computations = kept if len(kept) == len(reachable) else reachable
    return True
