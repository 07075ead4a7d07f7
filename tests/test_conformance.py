"""The conformance runner on a few modules of its own, without XLA: cases, verdicts, workers that fail."""
from __future__ import annotations

import json
import sys

import numpy as np
from click.testing import CliRunner

from hloc.inputs.sensible import sensible_arrays
from hloc.ir import numpy_dtype
from hloc.text import parse_module
from hloc.tools.compare import nudged
from hloc.tools.conformance import verdicts
from hloc.tools.conformance.arrays import Arrays, load_arrays, save_arrays
from hloc.tools.conformance.cases import cases
from hloc.tools.conformance.command import conformance
from hloc.tools.conformance.process import Worker
from hloc.tools.conformance.report import write_json
from hloc.tools.conformance.runner import Record
from hloc.tools.conformance.verdicts import Verdict
from hloc.tools.xla_text import text_for_xla

ADD = "HloModule m\nENTRY e { a = f32[2] parameter(0)  ROOT r = f32[2] add(a, a) }\n"
BROKEN = "HloModule m\nENTRY e { a = f32[2] parameter(0)  ROOT r = f32[2] add(a, }\n"


def test_cases_of_a_folder(tmp_path):
    (tmp_path / "two.hlo").write_text(ADD + "// -----\n" + ADD)
    (tmp_path / "other.md").write_text("no module")
    assert [c.name for c in cases(tmp_path)] == ["two.hlo#1", "two.hlo#2"]
    (tmp_path / "index.jsonl").write_text(json.dumps({"path": "one.hlo", "xla_parser": "accepts"}) + "\n")
    (tmp_path / "one.hlo").write_text(ADD)
    assert [(c.name, c.known["xla_parser"]) for c in cases(tmp_path)] == [("one.hlo", "accepts")]


def test_command_without_xla(tmp_path):
    (tmp_path / "good.hlo").write_text(ADD)
    (tmp_path / "broken.hlo").write_text(BROKEN)
    (tmp_path / "index.jsonl").write_text("\n".join(json.dumps(line) for line in (
        {"path": "good.hlo", "xla_parser": "accepts", "xla_verifier": "ok"},
        {"path": "broken.hlo", "xla_parser": "rejects"})))
    out = tmp_path / "report.json"
    result = CliRunner().invoke(conformance, [str(tmp_path), "--no-xla", "--json", str(out),
                                              "--checks", "parse,round trip,verify"])
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text())["counts"]["parse"] == {"agrees": 2}
    assert "2 modules" in result.output


def fake_worker(tmp_path, monkeypatch, body: str, seconds: float = 5.0, memory: int = 1 << 40) -> Worker:
    (tmp_path / "fake_worker.py").write_text(
        "import os, sys, time\nfrom hloc.tools.conformance.process import serve\n" + body)
    monkeypatch.setattr("hloc.tools.conformance.process.MODULE", "fake_worker")
    return Worker("any", seconds, memory, {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])})


def test_worker_survives_crash_and_hang(tmp_path, monkeypatch):
    worker = fake_worker(tmp_path, monkeypatch, """
serve({"fine": lambda r: {"outcome": "ok"}, "crash": lambda r: os.abort(), "hang": lambda r: time.sleep(60)})""", 1.0)
    replies = worker.ask({"steps": ["fine", "crash", "hang", "fine"]})
    worker.stop()
    assert replies["fine"]["outcome"] == "ok"
    assert [replies[s]["failure"] for s in ("crash", "hang")] == ["crash", "hang"]


def test_worker_that_takes_too_much_memory(tmp_path, monkeypatch):
    worker = fake_worker(tmp_path, monkeypatch, """
def eat(request):
    kept = b"x" * (200 << 20)
    time.sleep(60)
serve({"eat": eat})""", 30.0, 150 << 20)
    assert worker.ask({"steps": ["eat"]})["eat"]["failure"] == "memory"
    worker.stop()


def test_arrays_of_every_kind_come_back(tmp_path):
    module = parse_module("""ENTRY e { a = bf16[2,3] parameter(0)  b = s4[5] parameter(1)  c = c64[] parameter(2)
        d = f8e4m3fn[0,2] parameter(3)  ROOT t = (bf16[2,3], s4[5]) tuple(a, b) }""")
    arrays = sensible_arrays(module)
    save_arrays(tmp_path / "a.npz", Arrays(arrays, arrays[:1], [0.5]))
    back = load_arrays(tmp_path / "a.npz")
    assert back.moved == [0.5] and len(back.outputs) == 1
    assert all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
               for a, b in zip(arrays, back.inputs))


def test_a_nudge_moves_floats_of_every_width():
    given = [np.array([1, -2, 0, 4], numpy_dtype(t)) for t in ("f32", "bf16", "f8e4m3fn", "s32")]
    for before, after in zip(given, nudged(given)):
        assert before.dtype == after.dtype
        moved = before.astype(np.float64) != after.astype(np.float64)
        assert list(moved) == ([False] * 4 if before.dtype.kind == "i" else [True, True, False, True])


def test_text_for_xla_has_neither_fusions_nor_bitcasts():
    text = text_for_xla(parse_module("""
        f { x = f32[2,3]{0,1} parameter(0)  ROOT b = f32[3,2]{1,0} bitcast(x) }
        ENTRY e { p = (f32[2,3]{0,1}, token[]) parameter(0)  g = f32[2,3]{0,1} get-tuple-element(p), index=0
          ROOT r = f32[3,2]{1,0} fusion(g), kind=kLoop, calls=f }"""))
    assert "fusion(" not in text and "bitcast(" not in text and "transpose(" in text
    assert "ENTRY %flat_entry (flat_parameter.0: f32[2,3]) -> f32[3,2]" in text


def test_text_for_xla_keeps_the_layouts_of_library_calls():
    """LAPACK's matrices lie by columns; XLA reads others as their transposes."""
    text = text_for_xla(parse_module("""
        ENTRY e { a = f32[4,4]{1,0} parameter(0)  f = (f32[4,4]{0,1}, s32[4]{0}, s32[]) custom-call(a),
            custom_call_target="lapack_sgetrf_ffi", operand_layout_constraints={f32[4,4]{0,1}}
          ROOT r = f32[4,4]{0,1} get-tuple-element(f), index=0 }"""))
    assert "(f32[4,4]{0,1}, s32[4]{0}, s32[]) custom-call" in text


def test_modules_of_two_folders_may_have_one_name(tmp_path):
    verdicts = {"parse": Verdict("agrees", ""), "cpu": Verdict("differs", "f32 result")}
    write_json(tmp_path / "report.json", [Record("add.hlo", verdicts, {"instructions": n}) for n in (2, 1)])
    report = json.loads((tmp_path / "report.json").read_text())
    assert [m["instructions"] for m in report["modules"]] == [2, 1]


def test_verdicts():
    ok, seconds = {"outcome": "ok", "seconds": 1.0}, 1.0
    rejected = {"outcome": "rejected", "detail": "d", "place": "a.hlo:1:2: error: d", "seconds": seconds}
    assert verdicts.on_parse(ok, {"accepts": True}).kind == "agrees"
    assert verdicts.on_parse(ok, {"accepts": False}).detail.startswith("accepts what XLA rejects")
    assert verdicts.on_parse(rejected, {"accepts": True}).kind == "differs"
    assert verdicts.on_parse({**rejected, "outcome": "unlocated"}, {"accepts": False}).kind == "error"
    assert verdicts.on_verify(rejected, "invalid", "").kind == "agrees"
    assert verdicts.on_verify(ok, "unknown", "").kind == "no judge"
    assert verdicts.on_run({**ok, "agrees": True, "unstable": 1}, True).kind == "unstable"
    assert verdicts.on_run({"failure": "hang"}, True).kind == "hang"
    same = {verdicts.class_of("cpu", Verdict("unsupported", f"a.hlo:{n}:2: error: %x.{n} has f32[{n},2]"))
            for n in (3, 40)}
    assert len(same) == 1
