"""Writes known_trip_count into the backend_config of loops whose condition determines it.

    w = (s32[], f32[4]) while(t), condition=c, body=b
    =>
    w = (s32[], f32[4]) while(t), condition=c, body=b, backend_config={"known_trip_count":{"n":"10"}}

A count in the input is only a hint. It is replaced by the count that condition and body determine, and removed if they
do not determine one: then the condition is evaluated.
"""
from __future__ import annotations

from hloc.analysis.loop_annotations import TRIP_COUNT, backend_config, known_trip_count, with_trip_count
from hloc.analysis.while_loops import loop_of, trip_count
from hloc.ir import Module
from hloc.passes.context import PassContext


def while_loop_trip_count_annotator(module: Module, context: PassContext) -> bool:
    """Annotate loops with their trip counts. True if one got or lost its count."""
    changed = False
    for instruction in module.instructions():
        if instruction.opcode != "while":
            continue
        loop = loop_of(instruction)
        count = trip_count(loop) if loop is not None else None
        if count != known_trip_count(instruction) or (count is None and TRIP_COUNT in backend_config(instruction)):
            instruction.attributes = with_trip_count(instruction, count)
            changed = True
    return changed
