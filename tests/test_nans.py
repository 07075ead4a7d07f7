"""`hloc nans`: the instructions that make NaN or infinities are named, those that only hand them on are not."""
from __future__ import annotations

import json
import sys

import numpy as np
import pytest

import hloc
from hloc.cli.main import main
from hloc.tools.nans import nan_origins

LOSS = """HloModule loss
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY e {
  x = f32[4] parameter(0)
  zero = f32[] constant(0)
  zeros = f32[4] broadcast(zero), dimensions={}
  log = f32[4] log(x), metadata={op_name="jit(loss)/log" source_file="src/loss.py" source_line=7}
  positive = pred[4] compare(x, zeros), direction=GT
  kept = f32[4] select(positive, log, zeros)
  twice = f32[4] add(log, log)
  total = f32[] reduce(kept, zero), dimensions={0}, to_apply=add
  ROOT r = (f32[], f32[4]) tuple(total, twice)
}
"""


def test_the_first_one_is_named_not_those_after_it():
    told = nan_origins(hloc.load(LOSS), [np.array([1, -1, 2, -3], np.float32)])
    (origin,) = told.origins
    assert (origin.instruction.name, origin.what, origin.count, origin.size) == ("log", "NaN", 2, 4)
    assert origin.where == (1,) and origin.operands == (-1,)
    assert told.results == (1,)                                 # the sum took only what was positive


def test_nothing_to_tell():
    told = nan_origins(hloc.load(LOSS), [np.ones(4, np.float32)])
    assert told.origins == () and told.results == ()


def test_inputs_that_hold_some_come_first():
    told = nan_origins(hloc.load(LOSS), [np.array([np.nan, -1, 2, 3], np.float32)])
    assert [o.instruction.name for o in told.origins] == ["x", "log"]
    assert told.origins[1].where == (1,)


def test_infinities_where_asked():
    arrays = [np.array([0, 1, 2, 3], np.float32)]
    assert nan_origins(hloc.load(LOSS), arrays).origins == ()
    (origin,) = nan_origins(hloc.load(LOSS), arrays, infinities=True).origins
    assert (origin.instruction.name, origin.what) == ("log", "infinity")


LOOP = """HloModule loop
body { s = (s32[], f32[2]) parameter(0)  n = s32[] get-tuple-element(s), index=0  v = f32[2] get-tuple-element(s), index=1
  one = s32[] constant(1)  m = s32[] add(n, one)  ones = f32[2] constant({1, 1})  w = f32[2] subtract(v, ones)
  q = f32[2] sqrt(w)  ROOT r = (s32[], f32[2]) tuple(m, q) }
cond { s = (s32[], f32[2]) parameter(0)  n = s32[] get-tuple-element(s), index=0  five = s32[] constant(5)
  ROOT c = pred[] compare(n, five), direction=LT }
ENTRY e { x = f32[2] parameter(0)  zero = s32[] constant(0)  t = (s32[], f32[2]) tuple(zero, x)
  ROOT y = (s32[], f32[2]) while(t), condition=cond, body=body }
"""


def test_loops_are_looked_into():
    told = nan_origins(hloc.load(LOOP), [np.array([1.5, 100], np.float32)])
    (origin,) = told.origins
    assert origin.instruction.name == "q" and origin.runs >= 1 and told.results == (1,)


def test_command(monkeypatch, tmp_path, capsys):
    (tmp_path / "m.hlo").write_text(LOSS)
    np.save(tmp_path / "x.npy", np.array([1, -1, 2, -3], np.float32))
    arguments = ["nans", str(tmp_path / "m.hlo"), "--inputs", str(tmp_path / "x.npy")]
    assert run(monkeypatch, arguments) == 1
    shown = capsys.readouterr().out
    assert "1 of 2 results hold NaN: result.1" in shown and "jit(loss)/log, loss.py:7" in shown
    assert run(monkeypatch, [*arguments, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["origins"][0]["where"] == [1]


def run(monkeypatch, arguments: list[str]) -> int:
    monkeypatch.setattr(sys, "argv", ["hloc", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code
