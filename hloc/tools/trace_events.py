"""Traces of runs as Chrome trace events, which Perfetto and chrome://tracing open.

    trace_json([DeviceTrace(0, "h100", exe.trace())], "model.hlo")     -> {"traceEvents": [...], ...}

A process of the trace is a device, its threads are the tracks of the RunTrace. Slices are complete events ("X"), the
bytes in use a counter ("C"). Times are microseconds since the first slice.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hloc.errors import printable
from hloc.inputs import Named
from hloc.ir import Instruction
from hloc.ir.printer import print_instruction
from hloc.kernels.planner import TRANSFERS
from hloc.ops.collectives import COLLECTIVES
from hloc.run_trace import CALL, CHECK, FOLDED, ITERATION, LOOP, PIECE, STEP, WAIT, RunTrace, Slice, in_order
from hloc.source_lines import op_name

LONGEST_TEXT = 300
SHOWN_SUMS = 20
MEMORY = "memory"


class DeviceTrace(NamedTuple):
    """number, name: of the device; outside: bytes of parameters and results."""

    number: int
    name: str
    trace: RunTrace
    outside: int = 0


def trace_json(devices: Sequence[DeviceTrace], title: str) -> dict[str, Any]:
    """The whole file, for JSON."""
    first = min((s.begin for d in devices for s in d.trace.slices), default=0)
    events: list[dict[str, Any]] = []
    for device in devices:
        events += _names(device, len(devices))
        events += _slices(device, first)
        events += _memory(device, first)
    return {"traceEvents": events, "displayTimeUnit": "ns",
            "otherData": {"module": printable(title), "lost events": sum(d.trace.lost for d in devices)}}


def joined(traces: Sequence[RunTrace]) -> RunTrace:
    """Several runs of a program, one behind the other, as one trace."""
    tracks: dict[int, str] = {}
    for trace in traces:
        tracks |= trace.tracks
    return traces[0]._replace(slices=in_order([s for t in traces for s in t.slices]), tracks=tracks,
                              lost=sum(t.lost for t in traces))


def outside_of(values: Iterable[Named]) -> int:
    """Bytes of parameters and results."""
    return sum(v.shape.num_bytes for v in values)


def _names(device: DeviceTrace, count: int) -> Iterator[dict[str, Any]]:
    """What the tracks are called, and their order."""
    name = f"device {device.number}: {device.name}" if count > 1 else device.name
    yield meta_event("process_name", device.number, 0, name=name)
    yield meta_event("process_sort_index", device.number, 0, sort_index=device.number)
    for track, track_name in device.trace.tracks.items():
        yield meta_event("thread_name", device.number, _thread(track), name=track_name)
        order = -1 if any(s.kind == CALL and s.track == track for s in device.trace.slices) else track
        yield meta_event("thread_sort_index", device.number, _thread(track), sort_index=order)


def meta_event(kind: str, process: int, thread: int, **arguments: object) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": arguments}


def _thread(track: int) -> int:
    return track + 1                       # 0 stands for a process without threads


def _slices(device: DeviceTrace, first: int) -> Iterator[dict[str, Any]]:
    told = _Descriptions(device.trace)
    for s in device.trace.slices:
        name, category, arguments = told.of(s)
        yield {"name": name, "cat": category, "ph": "X", "ts": _micros(s.begin - first),
               "dur": _micros(s.end - s.begin), "pid": device.number, "tid": _thread(s.track), "args": arguments}


def _memory(device: DeviceTrace, first: int) -> Iterator[dict[str, Any]]:
    """What is in use whenever that changes: as steps begin, and nothing before and behind a run."""
    trace, before = device.trace, None
    times = [(time, 0) for s in trace.slices if s.kind == CALL for time in (s.begin, s.end)]
    steps = ((s.begin, trace.live.get(trace.steps[s.number].instruction)) for s in trace.slices if s.kind == STEP)
    for time, live in sorted([*times, *((time, live) for time, live in steps if live is not None)]):
        if live != before:
            yield _counter(device, time - first, live)
        before = live


def _counter(device: DeviceTrace, time: int, live: int) -> dict[str, Any]:
    return {"name": MEMORY, "cat": MEMORY, "ph": "C", "ts": _micros(time), "pid": device.number, "tid": 0,
            "args": {"parameters, results": device.outside, "arena": live}}


def _micros(nanoseconds: int) -> float:
    return nanoseconds / 1000


class _Descriptions:
    """Name, category and arguments of slices; of each step they are made once."""

    def __init__(self, trace: RunTrace):
        self.trace = trace
        self._steps: dict[int, tuple[str, str, dict[str, Any]]] = {}
        self._calls = 0

    def of(self, s: Slice) -> tuple[str, str, dict[str, Any]]:
        if s.kind == CALL:
            self._calls += 1
            return f"call {self._calls}", "call", {}
        if s.kind == STEP:
            return self.step(s.number)
        if s.kind in (PIECE, WAIT):
            name = self.step(s.number)[0]
            return (f"wait for {name}", "wait", {}) if s.kind == WAIT else (name, "thread", {"ranges": s.count})
        loop = self.trace.loops[s.number]
        name = printable(loop.name) if loop is not None else f"loop {s.number}"
        if s.kind == LOOP:
            return name, "loop", {"iterations": s.count, **about_instruction(loop)}
        if s.kind == ITERATION:
            return f"{name} iteration {s.count}", "iteration", {}
        if s.kind == CHECK:
            return f"{name} condition", "iteration", {}
        assert s.kind == FOLDED
        return f"{name}: {s.count:,} iterations", "iterations", {"iterations": s.count, "steps": self.sums(s)}

    def step(self, number: int) -> tuple[str, str, dict[str, Any]]:
        if number not in self._steps:
            step = self.trace.steps[number]
            arguments = {"kernel": printable(step.kernel), "bytes": step.bytes, "flops": step.flops,
                         **about_instruction(step.instruction)}
            name = printable(step.instruction.name) if step.instruction is not None else step.kernel
            if step.kernel.endswith((" start", " done")):                # of a collective
                name += step.kernel[step.kernel.rindex(" "):]
            self._steps[number] = name, _category(step.kernel, step.instruction), arguments
        return self._steps[number]

    def sums(self, s: Slice) -> list[dict[str, Any]]:
        """What the steps of folded iterations took, the longest first."""
        longest = sorted(s.sums, key=lambda one: -one.seconds)[:SHOWN_SUMS]
        return [{"name": self.step(one.step)[0], "runs": one.runs, "us": round(one.seconds * 1e6, 3)}
                for one in longest]


def _category(kernel: str, instruction: Instruction | None) -> str:
    opcode = instruction.opcode.removesuffix("-start").removesuffix("-done") if instruction is not None else ""
    if opcode in COLLECTIVES:
        return "collective"
    if opcode in TRANSFERS or opcode == "custom-call":
        return "host call"
    return "copy" if kernel == "copy" else "kernel"


def about_instruction(instruction: Instruction | None) -> dict[str, Any]:
    """HLO, and where it was written."""
    if instruction is None:
        return {}
    text = printable(print_instruction(instruction, elide_constants=True))
    found: dict[str, Any] = {"HLO": text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " ..."}
    if source := next(map(str, instruction.written_at()), ""):
        found["source"] = printable(source)
    if name := op_name(str(instruction.get("metadata", ""))):
        found["op_name"] = printable(name)
    if instruction.line is not None:
        found["line"] = instruction.line
    if groups := instruction.get("replica_groups") or instruction.get("source_target_pairs"):
        found["devices"] = printable(str(groups))[:LONGEST_TEXT]
    return found
