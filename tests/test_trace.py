"""hloc run --trace: events that follow the trace event format, slices that nest, loops that fold, memory, devices."""
from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import hloc
from hloc.cli.main import main
from hloc.run_trace import StepTime
from hloc.targets.cuda.execution.step_clock import Mark, Span, StepClock
from hloc.targets.cuda.execution.trace import trace_of
from hloc.tools.trace_events import DeviceTrace, trace_json

SUM = "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }\n"
LOOP = """HloModule loop
body {
  t = (s32[], f32[4,4]) parameter(0)
  n = s32[] get-tuple-element(t), index=0
  x = f32[4,4] get-tuple-element(t), index=1
  one = s32[] constant(1)
  next = s32[] add(n, one)
  product = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/dot" source_file="net.py" source_line=3}
  ROOT r = (s32[], f32[4,4]) tuple(next, product)
}
condition {
  t = (s32[], f32[4,4]) parameter(0)
  n = s32[] get-tuple-element(t), index=0
  limit = s32[] constant(17)
  ROOT c = pred[] compare(n, limit), direction=LT
}
ENTRY e {
  x = f32[4,4] parameter(0)
  zero = s32[] parameter(1)
  t = (s32[], f32[4,4]) tuple(zero, x)
  w = (s32[], f32[4,4]) while(t), condition=condition, body=body
  last = f32[4,4] get-tuple-element(w), index=1
  ROOT h = f32[4,4] custom-call(last), custom_call_target="halved"
}
"""
WIDE = """HloModule wide
ENTRY e {
  x = f32[2048,2048] parameter(0)
  y = f32[2048,2048] sine(x)
  ROOT z = f32[2048,2048] transpose(y), dimensions={1,0}
}
"""
REDUCED = "HloModule reduced, replica_count=2\n" + SUM + """ENTRY e {
  x = f32[64] parameter(0)
  y = f32[64] sine(x)
  ROOT r = f32[64] all-reduce(y), replica_groups={}, to_apply=add
}
"""


def checked(told: dict) -> list[dict]:
    """The events of a file that is as the trace event format says: required keys and types of each phase; the slices of
    a thread begin one behind the other and nest; counters have numbers; every track has one name."""
    assert told["displayTimeUnit"] in ("ms", "ns")
    events = told["traceEvents"]
    json.dumps(events, allow_nan=False)
    named, used = set(), set()
    open_slices: dict[tuple[int, int], list[float]] = {}
    last_times: dict[tuple[int, int, str], float] = {}
    for event in events:
        track = event["pid"], event["tid"]
        assert all(isinstance(n, int) for n in track) and isinstance(event["name"], str) and isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
            assert (event["name"], track) not in named
            named.add((event["name"], track))
            continue
        assert event["ph"] in "XC" and event["ts"] >= 0 and isinstance(event["cat"], str)
        assert event["ts"] >= last_times.get((*track, event["ph"]), 0.0)
        last_times[(*track, event["ph"])] = event["ts"]
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(v, int) for v in event["args"].values())
            continue
        used.add(track)
        end = event["ts"] + event["dur"]
        assert event["dur"] >= 0
        around = open_slices.setdefault(track, [])
        while around and around[-1] <= event["ts"] + 1e-6:
            around.pop()
        assert not around or end <= around[-1] + 1e-6, event
        around.append(end)
    assert {("thread_name", track) for track in used} <= named
    return events


def traced(text: str, *arrays, turns: int = 3, calls: int = 1, **options) -> list[dict]:
    exe = hloc.compile(text, target="cpu", options=hloc.Options(trace=turns, **options))
    exe(*arrays)
    exe.trace()
    for _ in range(calls):
        exe(*arrays)
    return checked(trace_json([DeviceTrace(0, "cpu", exe.trace(), 64)], "m.hlo"))


def of(events: list[dict], category: str) -> list[dict]:
    return [e for e in events if e["ph"] == "X" and e["cat"] == category]


def test_loops_fold_beyond_a_number():
    arrays = np.full((4, 4), 0.1, np.float32), np.int32(0)
    events = traced(LOOP, *arrays, custom_calls={"halved": lambda x: x / 2}, calls=2)
    assert [e["args"]["iterations"] for e in of(events, "loop")] == [17, 17]
    assert [e["name"] for e in of(events, "iteration")] == ["w iteration 0", "w iteration 1", "w iteration 2"] * 2
    folded = of(events, "iterations")
    assert [e["args"]["iterations"] for e in folded] == [14, 14]
    sums = {row["name"]: row["runs"] for row in folded[0]["args"]["steps"]}
    dot = next(e for e in of(events, "kernel") if "dot" in e["args"]["kernel"])
    assert sums[dot["name"]] == 14 and sum(e["name"] == dot["name"] for e in of(events, "kernel")) == 6
    assert dot["args"]["flops"] >= 2 * 4 ** 3 and dot["args"]["source"] == "net.py:3" and dot["args"]["op_name"] == "jit(f)/dot"
    assert "dot(" in dot["args"]["HLO"] and dot["args"]["line"] == 8
    assert [e["name"] for e in of(events, "call")] == ["call 1", "call 2"] and len(of(events, "host call")) == 2


def test_short_loops_end_with_their_condition():
    events = traced(LOOP, np.ones((4, 4), np.float32), np.int32(15), custom_calls={"halved": lambda x: x})
    assert [e["name"] for e in of(events, "iteration")] == ["w iteration 0", "w iteration 1", "w condition"]
    assert [e["args"]["iterations"] for e in of(events, "loop")] == [2] and not of(events, "iterations")
    none = traced(LOOP, np.ones((4, 4), np.float32), np.int32(40), custom_calls={"halved": lambda x: x})
    assert [e["name"] for e in of(none, "iteration")] == ["w condition"] and of(none, "loop")[0]["args"]["iterations"] == 0


def test_threads_have_tracks(monkeypatch):
    monkeypatch.setenv("HLOC_THREADS", "2")
    events = traced(WIDE, np.ones((2048, 2048), np.float32))
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    steps, pieces = of(events, "kernel"), of(events, "thread")
    assert pieces and "calls" in names.values()
    for piece in pieces:                     # on any track within the step that it is a part of
        step = next(s for s in steps if s["name"] == piece["name"] and s["ts"] <= piece["ts"])
        assert piece["ts"] + piece["dur"] <= step["ts"] + step["dur"] and piece["args"]["ranges"] >= 1
    assert all(w["name"].startswith("wait for ") for w in of(events, "wait"))


def test_memory_is_a_counter():
    exe = hloc.compile(WIDE, target="cpu", options=hloc.Options(trace=3, passes={"fusion": "off"}))
    exe(np.ones((2048, 2048), np.float32))
    events = checked(trace_json([DeviceTrace(0, "cpu", exe.trace(), 64)], "m"))
    sizes = [e["args"]["arena"] for e in events if e["ph"] == "C"]
    assert max(sizes) == 4 * 2048 * 2048 and sizes[-1] == 0
    assert all(e["args"]["parameters, results"] == 64 for e in events if e["ph"] == "C")


def test_a_trace_computes_the_same():
    x = np.linspace(-1, 1, 2048 * 2048, dtype=np.float32).reshape(2048, 2048)
    plain, exe = (hloc.compile(WIDE, target="cpu", options=hloc.Options(trace=t)) for t in (None, 5))
    assert np.array_equal(plain(x)[0], exe(x)[0]) and "hloc_now" not in plain.source
    with pytest.raises(hloc.UsageError, match="makes no trace"):
        plain.trace()
    with pytest.raises(hloc.UnsupportedError, match="does not time its steps"):
        hloc.compile(WIDE, target="reference", options=hloc.Options(trace=5))


def test_lost_events_are_counted():
    exe = hloc.compile(LOOP, target="cpu", options=hloc.Options(trace=1 << 20, custom_calls={"halved": lambda x: x}))
    exe(np.zeros((4, 4), np.float32), np.int32(17 - (1 << 19)))
    told = trace_json([DeviceTrace(0, "cpu", exe.trace())], "m")
    assert told["otherData"]["lost events"] > 1 << 19 and len(told["traceEvents"]) <= 2 << 20


# -- GPUs --------------------------------------------------------------------------------------------------------------

def clock_of(spans: list[tuple[int, float, float]], marks: list[tuple[str, int, int]]) -> StepClock:
    """What a run leaves in a clock: spans in microseconds."""
    instruction = hloc.load(WIDE).entry.root
    clock = StepClock([], [StepTime(f"k{n}", instruction, 8, 2, 0, 0.0) for n in range(3)])
    clock.loops = (SimpleNamespace(instruction=instruction),) * 2
    clock.began, clock.started, clock.ended = 1_000, 2_000, 900_000
    clock.spans = [Span(n, start * 1e-6, seconds * 1e-6) for n, start, seconds in spans]
    clock.marks = [Mark(*m) for m in marks]
    return clock


def test_spans_of_a_gpu_are_a_stream():
    spans = [(0, 0, 5)] + [(1, 10 + 10 * n, 8) for n in range(6)] + [(2, 100, 1)]
    marks = [("begin", 0, 1), *(("iteration", 0, 1 + n) for n in range(6)), ("end", 0, 7)]
    trace = trace_of(clock_of(spans, marks), 2, {})
    assert [(s.kind, s.begin - 2_000, s.end - 2_000, s.count) for s in trace.slices if s.track == 1] == [
        ("step", 0, 5_000, 0), ("loop", 10_000, 68_000, 6), ("iteration", 10_000, 18_000, 0), ("step", 10_000, 18_000, 0),
        ("iteration", 20_000, 28_000, 1), ("step", 20_000, 28_000, 0), ("folded", 30_000, 68_000, 4), ("step", 100_000, 101_000, 0)]
    folded = next(s for s in trace.slices if s.kind == "folded")
    assert [(s.step, s.runs, round(s.seconds * 1e6, 6)) for s in folded.sums] == [(1, 4, 32.0)]
    checked(trace_json([DeviceTrace(0, "h100", trace)], "m"))


def test_loops_in_folded_iterations_are_not_shown():
    spans = [(0, 10 * n, 5) for n in range(8)]
    marks = [("begin", 0, 0)]
    for turn in range(4):                            # of two runs of an inner loop of one iteration each
        marks += [("iteration", 0, 2 * turn), ("begin", 1, 2 * turn), ("iteration", 1, 2 * turn), ("iteration", 1, 2 * turn + 1), ("end", 1, 2 * turn + 2)]
    trace = trace_of(clock_of(spans, [*marks, ("end", 0, 8)]), 1, {})
    assert [(s.kind, s.number, s.count) for s in trace.slices if s.kind in ("loop", "iteration", "folded")] == [
        ("loop", 0, 4), ("iteration", 0, 0), ("loop", 1, 2), ("iteration", 1, 0), ("folded", 1, 1), ("folded", 0, 3)]
    checked(trace_json([DeviceTrace(0, "h100", trace)], "m"))


def test_spans_that_would_overlap_follow_each_other():
    trace = trace_of(clock_of([(0, 0, 5.4), (1, 5, 2), (2, 6.9, 1)], []), 3, {})
    assert [(s.begin - 2_000, s.end - 2_000) for s in trace.slices[1:]] == [(0, 5_400), (5_400, 7_000), (7_000, 7_900)]


# -- the command -------------------------------------------------------------------------------------------------------

def run(capsys, *arguments) -> str:
    sys.argv = ["hloc", "run", *map(str, arguments)]
    main()
    return capsys.readouterr().err


def test_command(tmp_path, capsys):
    (tmp_path / "m.hlo").write_text(WIDE.replace("2048", "64"))
    said = run(capsys, tmp_path / "m.hlo", "-t", "cpu", "--trace", tmp_path / "t.json", "--repeat", 2, "-i", "zeros", "--profile")
    told = json.loads((tmp_path / "t.json").read_text())
    assert len(of(checked(told), "call")) == 2 and f"t.json: {len(told['traceEvents'])} events" in said


def test_devices_are_groups_of_tracks(tmp_path, capsys):
    (tmp_path / "m.hlo").write_text(REDUCED)
    run(capsys, tmp_path / "m.hlo", "-t", "cpu", "--devices", 2, "--trace", tmp_path / "t.json", "-i", "zeros")
    events = checked(json.loads((tmp_path / "t.json").read_text()))
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"device 0: cpu", "device 1: cpu"}
    found = of(events, "collective")
    assert [e["pid"] for e in found] == [0, 0, 1, 1] and all("all-reduce" in e["args"]["HLO"] for e in found)
    assert [e["name"].split()[1] for e in found] == ["start", "done"] * 2


@pytest.mark.parametrize("arguments, said", [
    (["--trace", "t.txt"], "a trace is JSON"), (["--trace", "no/t.json"], "no/t.json"),
    (["--trace", "t.json", "-t", "reference"], "does not time its steps"),
    (["--trace", "t.json", "-t", "reference", "--devices", "2"], "does not time its steps")])
def test_command_refuses(arguments, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.hlo").write_text(REDUCED if "--devices" in arguments else WIDE.replace("2048", "64"))
    sys.argv = ["hloc", "run", "m.hlo", "-t", "cpu", *arguments]
    with pytest.raises(SystemExit):
        main()
    assert said in capsys.readouterr().err
