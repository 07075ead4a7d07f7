"""Loops that copy whole arrays in each turn are named, with the line that makes them; others are not."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import hloc
from hloc.api import optimized_plan
from hloc.cli.main import main
from hloc.targets import find
from hloc.tools.loop_copies import loop_copies

LOOP = """HloModule loop

add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }

body {
  t = (s32[], f32[512,600], f32[512]) parameter(0)
  n = s32[] get-tuple-element(t), index=0
  x = f32[512,600] get-tuple-element(t), index=1
  one = s32[] constant(1)
  zero = s32[] constant(0)
  z = f32[] constant(0)
  next = s32[] add(n, one)
  two = f32[] constant(2)
BODY
}

condition {
  t = (s32[], f32[512,600], f32[512]) parameter(0)
  n = s32[] get-tuple-element(t), index=0
  limit = s32[] constant(9)
  ROOT c = pred[] compare(n, limit), direction=LT
}

ENTRY e {
  x = f32[512,600] parameter(0)
  m = f32[512] parameter(1)
  zero = s32[] constant(0)
  t = (s32[], f32[512,600], f32[512]) tuple(zero, x, m)
  ROOT w = (s32[], f32[512,600], f32[512]) while(t), condition=condition, body=body
}
"""
UPDATE = """  row = f32[1,600] broadcast(two), dimensions={}
  u = f32[512,600] dynamic-update-slice(x, row, n, zero), metadata={source_file="cache.py" source_line=7}
"""
SUMS = """  sums = f32[512] reduce(d, z), dimensions={1}, to_apply=add
  ROOT r = (s32[], f32[512,600], f32[512]) tuple(next, u, sums)"""
OLD_IS_READ = UPDATE + "  d = f32[512,600] subtract(u, x)\n" + SUMS
NEW_IS_READ = UPDATE + "  d = f32[512,600] negate(u)\n" + SUMS
MASKED = """  rows = s32[512,600] iota(), iota_dimension=0
  here = s32[512,600] broadcast(n), dimensions={}
  p = pred[512,600] compare(rows, here), direction=GT
  new = f32[512,600] broadcast(two), dimensions={}
  u = f32[512,600] select(p, new, x)
  d = f32[512,600] negate(u)
""" + SUMS
SHIFTED = """  tail = f32[511,600] slice(x), slice={[1:512], [0:600]}
  row = f32[1,600] broadcast(two), dimensions={}
  u = f32[512,600] concatenate(tail, row), dimensions={0}
  d = f32[512,600] negate(u)
""" + SUMS
ROTATED = SHIFTED.replace("broadcast(two), dimensions={}", "slice(x), slice={[0:1], [0:600]}")


def loops_of(body: str):
    module = hloc.load(LOOP.replace("BODY", body))
    return loop_copies(*optimized_plan(module, find("cpu")))


def test_an_update_of_what_is_still_read():
    (loop,) = loops_of(OLD_IS_READ)
    assert loop.trip_count == 9 and loop.size >= 512 * 600 * 4
    copy = loop.copies[0]
    assert copy.kind == "copies" and "dynamic-update-slice" in str(copy.cause.called_computations[0].instructions)
    assert copy.source.name == "x" and copy.reader is not None


def test_an_update_in_place_is_no_copy():
    assert loops_of(NEW_IS_READ) == ()


@pytest.mark.parametrize("body, opcode", [(MASKED, "select"), (SHIFTED, "pad"),
                                          (ROTATED, "concatenate")])
def test_arrays_written_anew(body, opcode):
    (loop,) = loops_of(body)
    (copy,) = [c for c in loop.copies if c.kind == "rewrites"]
    assert copy.cause.opcode == opcode and copy.size == 512 * 600 * 4 and copy.source.name == "x"


@pytest.mark.parametrize("command", ["explain", "memory"])
def test_commands_name_the_line(command, tmp_path: Path, capsys, monkeypatch):
    path = tmp_path / "loop.hlo"
    path.write_text(LOOP.replace("BODY", OLD_IS_READ))
    monkeypatch.setattr(sys, "argv", ["hloc", command, str(path)])
    main()
    out = capsys.readouterr().out
    assert "warning: this loop copies" in out and "1.2 MiB because of line 15 (" in out and "cache.py:7" in out
    sys.argv.append("--json")
    main()
    (loop,) = json.loads(capsys.readouterr().out)["loop_copies"]
    assert (loop["line"], loop["turns"], loop["copies"][0]["cause"]["line"]) == (33, 9, 15)
