"""Writes down how often a loop runs where that is known.

    w = (s32[], f32[4]) while(t), condition=c, body=b
    =>
    w = (s32[], f32[4]) while(t), condition=c, body=b, backend_config={"known_trip_count":{"n":"10"}}
"""
from __future__ import annotations

from hloc.analysis.while_loops import call_sites, loop_of, trip_count
from hloc.ir import Module, Verbatim
from hloc.passes.context import PassContext


def while_loop_trip_count_annotator(module: Module, context: PassContext) -> bool:
    """Write down how often a loop runs. True if one got its count; one with a backend_config keeps that."""
    loops = [i for i in module.instructions() if i.opcode == "while" and "backend_config" not in i.attributes]
    if not loops:
        return False
    sites = call_sites(module)
    changed = False
    for instruction in loops:
        loop = loop_of(instruction, sites)
        count = trip_count(loop) if loop is not None else None
        if count is not None:
            text = Verbatim(f'{{"known_trip_count":{{"n":"{count}"}}}}')
            instruction.attributes = {**instruction.attributes, "backend_config": text}
            changed = True
    return changed
