"""Removes optimization barriers, after the passes that they restrict.

    b = (f32[4]) opt-barrier(t)        =>   b is t
"""
from __future__ import annotations

from hloc.ir import Module
from hloc.passes.context import PassContext
from hloc.passes.rewriter import rewrite_module


def optimization_barrier_expander(module: Module, context: PassContext) -> bool:
    """Remove optimization barriers. True if there was one."""
    return rewrite_module(module, lambda barrier, _: barrier.operands[0], opcodes=("opt-barrier",), expands=True)
