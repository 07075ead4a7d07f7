"""Inlines the fusions of the input, so that fusion can choose again for this target.

    f = f32[4] fusion(p), kind=kLoop, calls=g        =>   the instructions of g, reading p
"""
from __future__ import annotations

from hloc.ir import Module
from hloc.passes.call_inliner import inline_all
from hloc.passes.context import PassContext


def defuser(module: Module, context: PassContext) -> bool:
    """Inline the fusions of the input. True if there was one."""
    return inline_all(module, "fusion")
