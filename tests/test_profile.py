"""Timed programs: each step is counted as often as it runs, under the name of its instruction; others have no clock."""
from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import hloc
from hloc.analysis.cost import main_operation
from hloc.cli.main import main
from hloc.cli.profile_table import profile_json, step_rows
from hloc.kernels.plan import Copy, HostCall, Ref
from hloc.run_trace import StepTime
from hloc.targets.cuda.execution import step_clock
from hloc.targets.cuda.execution.step_clock import StepClock

LOOP = """HloModule loop

body {
  t = (s32[], f32[4,4]) parameter(0)
  n = s32[] get-tuple-element(t), index=0
  x = f32[4,4] get-tuple-element(t), index=1
  one = s32[] constant(1)
  next = s32[] add(n, one)
  product = f32[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  bounded = f32[4,4] tanh(product)
  ROOT r = (s32[], f32[4,4]) tuple(next, bounded)
}

condition {
  t = (s32[], f32[4,4]) parameter(0)
  n = s32[] get-tuple-element(t), index=0
  limit = s32[] constant(17)
  ROOT c = pred[] compare(n, limit), direction=LT
}

ENTRY e {
  x = f32[4,4] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[4,4]) tuple(zero, x)
  w = (s32[], f32[4,4]) while(t), condition=condition, body=body
  ROOT last = f32[4,4] get-tuple-element(w), index=1
}
"""


def test_steps_are_counted():
    exe = hloc.compile(LOOP, target="cpu", options=hloc.Options(profile=True, passes={"fusion": "off"}))
    x = np.full((4, 4), 0.1, np.float32)
    first = exe(x)
    exe(x)
    steps = {s.instruction.opcode: s for s in exe.profile()}
    assert steps["tanh"].runs == 34 and steps["compare"].runs == 36
    assert steps["dot"].flops == 2 * 4 ** 3 and steps["dot"].bytes == 2 * 64
    assert all(s.seconds > 0 for s in steps.values())
    assert not any(s.runs for s in exe.profile())                   # counting starts anew
    assert np.array_equal(first[0], hloc.compile(LOOP, target="cpu")(x)[0])


def test_other_programs_have_no_clock():
    exe = hloc.compile(LOOP, target="cpu")
    assert "HLOC_TIMED" not in exe.text(".c") and "clock_gettime" not in exe.source
    with pytest.raises(hloc.UsageError, match="does not time its steps"):
        exe.profile()


def test_the_evaluator_has_no_clock():
    with pytest.raises(hloc.UnsupportedError, match="does not time its steps"):
        hloc.compile(LOOP, target="reference", options=hloc.Options(profile=True))


class Tick:
    """An event of a device whose clock says `now`, in milliseconds."""

    now, made = 0.0, 0

    def __init__(self):
        Tick.made += 1

    def record(self, stream):
        self.when = Tick.now

    def synchronize(self):
        pass

    def time_since(self, earlier):
        return self.when - earlier.when


def test_steps_on_a_device(monkeypatch):
    """Times and spans are those of the device's clock; events are used again; a host call is timed by the host."""
    monkeypatch.setattr(step_clock, "MOST_PENDING", 4)
    monkeypatch.setattr(step_clock, "time", SimpleNamespace(perf_counter=iter([5.0, 5.5]).__next__, monotonic_ns=lambda: 0))
    instruction = hloc.load(LAYER).entry.root
    steps = [Copy(Ref("arena", 0, 0, 8), Ref("arena", 0, 8, 8), instruction), HostCall("f", (), (), instruction)]
    clock = StepClock(steps, [StepTime(n, instruction, 0, 0, 0, 0.0) for n in ("copy", "f")])
    cuda, made = SimpleNamespace(Event=Tick), Tick.made
    for _ in range(2):
        clock.begin()
        for _ in range(10):
            with clock.around(steps[0], cuda, None):
                Tick.now += 2.0
            Tick.now += 1.0                                         # between two steps
        clock.collect()
    with clock.around_host(steps[1]):
        pass
    assert Tick.made - made <= 12
    assert [(s.number, round(s.start, 6), round(s.seconds, 6)) for s in clock.spans] == [
        *((0, round(0.003 * n, 6), 0.002) for n in range(10)), (1, 0.029, 0.5)]
    copy, call = clock.times()
    assert (copy.runs, round(copy.seconds, 6)) == (20, 0.04) and (call.runs, call.seconds) == (1, 0.5)
    assert [s.runs for s in clock.times()] == [0, 0]


def test_command(tmp_path, capsys):
    path = tmp_path / "loop.hlo"
    path.write_text(LOOP)
    sys.argv = ["hloc", "run", str(path), "--profile", "--repeat", "3", "-t", "cpu", "-i", "zeros"]
    main()
    out = capsys.readouterr().out
    assert "us/run" in out and "p90" in out and "steps took" in out and "over 3 calls" in out
    sys.argv += ["--json"]
    main()
    told = json.loads(capsys.readouterr().out)
    rows = told["profile"]
    assert {"kernel", "instruction", "seconds", "runs", "bytes", "flops", "line"} <= rows[0].keys()
    assert 17 in [r["runs"] for r in rows]
    assert len(told["seconds"]) == 3 and len(told["warm_up_seconds"]) == 1
    assert told["percentiles"]["min"] <= told["percentiles"]["median"] <= told["percentiles"]["p99"]


LAYER = """HloModule layer
ENTRY e {
  x = f32[8,16] parameter(0)
  w = f32[16,4] parameter(1)
  zero = f32[] constant(0), metadata={source_file="model.py" source_line=9}
  zeros = f32[8,4] broadcast(zero), dimensions={}, metadata={source_file="model.py" source_line=9}
  y = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(layer)/dot" source_file="model.py" source_line=4}
  ROOT r = f32[8,4] maximum(y, zeros), metadata={source_file="model.py" source_line=9}
}
"""


def test_rows_lead_with_the_main_operation_and_its_line():
    exe = hloc.compile(LAYER, target="cpu", options=hloc.Options(profile=True))
    exe(np.ones((8, 16), np.float32), np.ones((16, 4), np.float32))
    (row,) = profile_json([exe.profile()])
    assert (row["operation"]["opcode"], row["line"], row["opcode"]) == ("dot", 7, "fusion")
    assert row["source"][0]["line"] == 4 and row["op_name"] == "jit(layer)/dot"


def test_a_step_has_the_median_of_its_calls():
    instruction = hloc.load(LAYER).entry.root
    calls = [[StepTime("k", instruction, 8, 8, 2, seconds)] for seconds in (1.0, 2.0, 9.0)]
    (row,) = step_rows(calls)
    assert row.seconds.median == 2.0 and row.runs == 2


@pytest.mark.parametrize("opcodes, main", [
    ("exponential maximum", "exponential"), ("negate maximum", "maximum"), ("tanh sort negate", "sort"),
    ("reshape transpose", "transpose")])
def test_main_operation(opcodes, main):
    lines = ["  v0 = f32[4,4] parameter(0)"]
    forms = {"maximum": "maximum({0}, {0})", "transpose": "transpose({0}), dimensions={{1,0}}",
             "sort": "sort({0}), dimensions={{0}}, to_apply=less"}
    for number, opcode in enumerate(opcodes.split()):
        form = forms.get(opcode, opcode + "({0})").format(f"v{number}")
        lines.append(f"  v{number + 1} = f32[4,4] {form}")
    lines[-1] = lines[-1].replace("  v", "  ROOT v", 1)
    module = hloc.load("HloModule m\nless { a = f32[] parameter(0)  b = f32[] parameter(1)\n"
                       "  ROOT c = pred[] compare(a, b), direction=LT }\nf {\n" + "\n".join(lines) + "\n}\n"
                       "ENTRY e { p = f32[4,4] parameter(0)  ROOT r = f32[4,4] fusion(p), kind=kLoop, calls=f }\n")
    assert main_operation(module.entry.root).opcode == main
