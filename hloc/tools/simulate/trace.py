"""A Simulation as Chrome trace events, which Perfetto and chrome://tracing open: kernels and waits on one track,
collectives on another.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hloc.analysis.timeline import LOOP, REST, TRANSFER, WAIT, Slice
from hloc.errors import printable
from hloc.tools.simulate.simulation import Simulation
from hloc.tools.trace_events import about_instruction, meta_event

COMPUTE, SEND = 1, 2
TRACKS = {COMPUTE: "kernels", SEND: "communication"}
CATEGORIES = {WAIT: "wait", LOOP: "loop", REST: "iterations", TRANSFER: "collective"}


def trace_of(told: Simulation) -> dict[str, Any]:
    """The whole file, for JSON. Times are microseconds."""
    events = [meta_event("process_name", 0, 0, name=f"one of {told.devices:,} devices, {told.cluster.name}")]
    for track, name in TRACKS.items():
        events += [meta_event("thread_name", 0, track, name=name),
                   meta_event("thread_sort_index", 0, track, sort_index=track)]
    events += _slices(told)
    return {"traceEvents": events, "displayTimeUnit": "ns",
            "otherData": {"module": printable(told.title), "mesh": told.mesh_text, "predicted": True}}


def _slices(told: Simulation) -> Iterator[dict[str, Any]]:
    for s in told.timeline.slices:
        yield {"name": printable(s.title), "cat": CATEGORIES.get(s.kind, "kernel"), "ph": "X", "ts": s.begin * 1e6,
               "dur": (s.end - s.begin) * 1e6, "pid": 0, "tid": SEND if s.kind == TRANSFER else COMPUTE,
               "args": _arguments(s, told)}


def _arguments(s: Slice, told: Simulation) -> dict[str, Any]:
    found = about_instruction(s.instruction)
    if s.kind == TRANSFER:
        one = told.exchanges[s.instruction]
        found |= {"axes": printable(told.axes[s.instruction]), "algorithm": one.algorithm,
                  "bytes sent": {level.name: size for level, size in zip(told.cluster.levels, one.sent) if size}}
    return found
