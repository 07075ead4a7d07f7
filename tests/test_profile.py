"""Timed programs: each step is counted as often as it runs, under the name of its instruction; others have no clock."""
from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import hloc
from hloc.cli.main import main

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


@pytest.mark.parametrize("target", ["reference", "h100"])
def test_targets_without_a_clock_say_so(target):
    with pytest.raises(hloc.UnsupportedError, match="does not time its steps"):
        hloc.compile(LOOP, target=target, options=hloc.Options(profile=True))


def test_command(tmp_path, capsys):
    path = tmp_path / "loop.hlo"
    path.write_text(LOOP)
    sys.argv = ["hloc", "run", str(path), "--profile", "--repeat", "3", "-t", "cpu", "-i", "zeros"]
    main()
    out = capsys.readouterr().out
    assert "us/run" in out and "steps took" in out and "over 3 calls" in out
    sys.argv += ["--json"]
    main()
    rows = json.loads(capsys.readouterr().out)["profile"]
    assert {"kernel", "instruction", "seconds", "runs", "bytes", "flops", "line"} <= rows[0].keys()
    assert 17 in [r["runs"] for r in rows]
