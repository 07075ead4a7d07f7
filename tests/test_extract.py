"""`hloc extract`: parts of modules run, and give what the whole module has there."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import hloc
from hloc.evaluate import Evaluator, Options, evaluate
from hloc.inputs.sensible import sensible_arrays
from hloc.ops.values import flatten
from hloc.tools.extract import extract

TESTDATA = Path(__file__).parent.parent / "testdata"
LOOP = """HloModule loop
body { s = (s32[], f32[2,2]) parameter(0)  n = s32[] get-tuple-element(s), index=0
  v = f32[2,2] get-tuple-element(s), index=1  one = s32[] constant(1)  m = s32[] add(n, one)
  d = f32[2,2] dot(v, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  w = f32[2,2] tanh(d)  ROOT r = (s32[], f32[2,2]) tuple(m, w) }
cond { s = (s32[], f32[2,2]) parameter(0)  n = s32[] get-tuple-element(s), index=0  five = s32[] constant(5)
  ROOT c = pred[] compare(n, five), direction=LT }
ENTRY e { x = f32[2,2] parameter(0)  y = f32[2,2] negate(x)  zero = s32[] constant(0)
  t = (s32[], f32[2,2]) tuple(zero, y)  z = (s32[], f32[2,2]) while(t), condition=cond, body=body
  v = f32[2,2] get-tuple-element(z), index=1
  ROOT last = f32[2,2] exponential(v) }
"""
X = np.float32([[0.5, -0.25], [1, 2]])


def values_of(module: hloc.Module, arrays) -> dict[str, object]:
    """What the evaluator has for each instruction, by computation and name: the first time that it runs."""
    homes = {i: c.name for c in module.computations for i in c.instructions}
    found: dict[str, object] = {}
    Evaluator(module, options=Options(
        observer=lambda i, _, value: found.setdefault(f"{homes[i]}/{i.name}", value))).run(arrays)
    return found


@pytest.mark.parametrize("file", ["programs/softmax_chain.hlo", "programs/update_in_loop.hlo", "updates/cond_append.hlo",
                                  "programs/branches_update_arrays.hlo", "models/digits/model.hlo"])
def test_every_part_gives_what_the_module_has_there(file):
    module = hloc.load(TESTDATA / file)
    arrays = sensible_arrays(module)
    values = values_of(module, arrays)
    places = [p for p in values if p.rpartition("/")[0] in {c.name for c in module.computations}]
    for number, place in enumerate(places[::max(1, len(places) // 12)]):
        part = extract(module, place, number % 4)
        got = evaluate(hloc.load(str(part.module)), part.arrays(arrays))
        home = place.rpartition("/")[0]
        want = [a for name in part.results for a in flatten(values.get(f"{home}/{name}", ()))]
        if all(f"{home}/{name}" in values for name in part.results):
            assert all(np.array_equal(g, w, equal_nan=g.dtype.kind == "f") for g, w in zip(got, want, strict=True)), place


def test_radius_and_parameters():
    module = hloc.load(LOOP)
    part = extract(module, "%d", 0)
    assert sorted(i.opcode for i in part.module.instructions()) == ["dot", "parameter"]
    assert [p.name for p in part.module.entry.parameters] == ["v"] and part.results == ("d",)
    assert np.array_equal(part.arrays([X])[0], -X)                                 # of the first turn
    part = extract(module, "d", 1)
    assert part.results == ("w",)
    whole = extract(module, "e/v", 10)
    assert np.array_equal(evaluate(whole.module, [X])[0], evaluate(module, [X])[0])
    assert len(module.entry.instructions) == 7                                     # the module given stays as it was


ASYNC = """HloModule async
ENTRY e {
  x = f32[4] parameter(0)
  y = f32[4] negate(x)
  s = (f32[4], f32[4], u32[]) copy-start(y)
  z = f32[4] tanh(x)
  d = f32[4] copy-done(s)
  t = token[] after-all()
  o = token[] outfeed(d, t)
  ROOT r = f32[4] add(d, z)
}
"""


def test_starts_stay_with_their_ends_and_tokens_are_made_anew():
    module = hloc.load(ASYNC)
    opcodes = sorted(i.opcode for i in extract(module, "d", 0).module.instructions())
    assert opcodes == ["copy-done", "copy-start", "parameter"]
    assert sorted(i.opcode for i in extract(module, "o", 0).module.instructions()) == [
        "after-all", "outfeed", "parameter", "tuple"]


def test_command(monkeypatch, tmp_path, hloc_run):
    monkeypatch.chdir(tmp_path)
    Path("m.hlo").write_text(LOOP)
    np.save("x.npy", X)
    code, out, _ = hloc_run("extract", "m.hlo", "--around", "d", "-o", "part.hlo", "-i", "x.npy", "--json")
    told = json.loads(out)
    assert code == 0 and told["results"][-1] == "w" and told["inputs"] == "part.npz" and told["of"] == 19
    code, out, _ = hloc_run("check", "part.hlo", "-i", "part.npz", "-t", "cpu")
    assert code == 0 and "yes" in out


@pytest.mark.parametrize("arguments, code, words", [
    (["m.hlo", "--around", "dd"], 2, "did you mean d"), (["m.hlo", "--around", "s"], 2, "2 computations hold"),
    (["m.hlo", "--around", "body/x"], 2, "no instruction 'body/x'"), (["none.hlo", "--around", "d"], 2, "none.hlo"),
    (["empty.hlo", "--around", "d"], 3, "empty.hlo"), (["m.hlo", "--around", "d", "--radius", "-1"], 2, "--radius"),
    (["m.hlo", "--around", "d", "-o", "no/p.hlo"], 6, "no such folder")])
def test_bad_calls(monkeypatch, tmp_path, arguments, code, words, hloc_run):
    monkeypatch.chdir(tmp_path)
    Path("m.hlo").write_text(LOOP)
    Path("empty.hlo").write_text("")
    got, out, err = hloc_run("extract", "-o", "part.hlo", *arguments)
    assert got == code and words in err and out == "" and "Traceback" not in err and not Path("part.hlo").exists()
