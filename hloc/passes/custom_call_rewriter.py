"""Replaces custom-calls of known meaning by HLO.

    h = f32[8] custom-call(x), custom_call_target="MoveToHost"            =>   h = f32[8]{0:S(5)} copy(x)
    t = (f32[2,5], s32[2,5]) custom-call(x), custom_call_target="TopK"    =>   t = ... topk(x), k=5, largest=true
    b = f32[8] custom-call(), custom_call_target="AllocateBuffer"         =>   b = f32[8] broadcast(0)
    c = (f32[4,4], s32[]) custom-call(a), custom_call_target="lapack_spotrf_ffi"    =>   cholesky(a), and 1 where it
                                                                                         holds a nan
Others remain: a Python function may be registered for them.
"""
from __future__ import annotations

from hloc.ir import Module
from hloc.passes.context import PassContext


def custom_call_rewriter(module: Module, context: PassContext) -> bool:
    """True if there was a custom-call with a known meaning."""
    if not any(i.opcode == "custom-call" for i in module.instructions()):
        return False
    from hloc.passes.known_calls import rewrite_known_calls
    return rewrite_known_calls(module, context)
