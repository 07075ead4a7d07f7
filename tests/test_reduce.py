"""`hloc reduce`: what is left shows the fault, with inputs of its own, and little else."""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import hloc
from hloc.cli.main import main
from hloc.evaluate import evaluate
from hloc.tools.compare import Difference
from hloc.tools.outcome import is_same, outcome_of
from hloc.tools.reduce import reduce_module

MODELS = Path(__file__).parent.parent / "testdata" / "models"
CHAIN = """HloModule chain, entry_computation_layout={(f32[8]{0}, f32[8]{0})->(f32[8]{0}, f32[])}
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
inner { x = f32[8] parameter(0)  n = f32[8] negate(x)  ROOT l = f32[8] log(n) }
ENTRY e {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  zero = f32[] constant(0)
  p = f32[8] multiply(x, y)
  e = f32[8] exponential(p)
  c = f32[8] call(e), to_apply=inner
  t = f32[8] tanh(y)
  m = f32[8] add(c, t)
  total = f32[] reduce(m, zero), dimensions={0}, to_apply=add
  ROOT r = (f32[8], f32[]) tuple(t, total)
}
"""


def makes_nan(module: hloc.Module, arrays) -> bool:
    return any(np.isnan(r).any() for r in evaluate(module, arrays))


def test_one_instruction_is_left_with_the_numbers_that_matter():
    module = hloc.load(CHAIN)
    case = reduce_module(module, [np.ones(8, np.float32)] * 2, makes_nan)
    opcodes = sorted(i.opcode for i in case.module.instructions())
    assert opcodes == ["log", "parameter"]
    (array,) = case.arrays
    assert np.allclose(array, -np.e) and makes_nan(hloc.load(str(case.module)), case.arrays)
    assert len(module.entry.instructions) == 10                                    # the module given stays as it was


def test_loops_are_entered():
    text = """HloModule loop
body { s = (s32[], f32[2]) parameter(0)  n = s32[] get-tuple-element(s), index=0  v = f32[2] get-tuple-element(s), index=1
  one = s32[] constant(1)  m = s32[] add(n, one)  w = f32[2] sqrt(v)  ROOT r = (s32[], f32[2]) tuple(m, w) }
cond { s = (s32[], f32[2]) parameter(0)  n = s32[] get-tuple-element(s), index=0  five = s32[] constant(5)
  ROOT c = pred[] compare(n, five), direction=LT }
ENTRY e { x = f32[2] parameter(0)  y = f32[2] negate(x)  zero = s32[] constant(0)  t = (s32[], f32[2]) tuple(zero, y)
  ROOT z = (s32[], f32[2]) while(t), condition=cond, body=body }
"""
    case = reduce_module(hloc.load(text), [np.ones(2, np.float32)], makes_nan)
    assert sorted(i.opcode for i in case.module.instructions()) == ["parameter", "sqrt"]


def test_a_model_becomes_a_few_lines():
    module = hloc.load(MODELS / "digits" / "model.hlo")
    generator = np.random.default_rng(0)
    arrays = [generator.random(p.shape.dimensions).astype(np.float32) for p in module.entry.parameters]

    def shows(candidate: hloc.Module, given) -> bool:
        return any(i.opcode == "reduce-window" for i in candidate.entry.instructions)
    case = reduce_module(module, arrays, shows)
    assert len(case.module.entry.instructions) <= 3 < len(module.entry.instructions)
    evaluate(case.module, case.arrays)


def run(monkeypatch, arguments: list[str]) -> int:
    monkeypatch.setattr(sys, "argv", ["hloc", *arguments])
    try:
        main()
    except SystemExit as stop:
        return stop.code or 0
    return 0


def test_command_line(monkeypatch, tmp_path, capsys):
    path, small = tmp_path / "m.hlo", tmp_path / "small.hlo"
    path.write_text(CHAIN)
    question = "grep -q 'log(' {module} && test -s {inputs} && exit 3"
    assert run(monkeypatch, ["reduce", str(path), "-o", str(small), "--command", question]) == 0
    assert "exit code 3: 16 instructions became 2" in capsys.readouterr().out
    assert "log(" in small.read_text() and (tmp_path / "small.npz").exists()
    assert run(monkeypatch, ["run", str(small), "--inputs", str(tmp_path / "small.npz"), "-t", "reference"]) == 0


def test_errors_are_faults_too(monkeypatch, tmp_path, capsys):
    path, small = tmp_path / "m.hlo", tmp_path / "small.hlo"
    path.write_text(CHAIN.replace("tanh(y)", 'custom-call(y), custom_call_target="nobody_knows"'))
    assert run(monkeypatch, ["reduce", str(path), "-o", str(small), "--target", "cpu", "--inputs", "zeros"]) == 0
    assert "error 4: " in capsys.readouterr().out and "nobody_knows" in small.read_text()


def test_faults_of_hloc_itself_are_faults_too(monkeypatch, tmp_path, capsys):
    def tanh_fails(module, *_, **__):
        return [].pop() if any(i.opcode == "tanh" for i in module.instructions()) else []

    path, small = tmp_path / "m.hlo", tmp_path / "small.hlo"
    path.write_text(CHAIN)
    monkeypatch.setattr("hloc.tools.check.check", tanh_fails)
    assert run(monkeypatch, ["reduce", str(path), "-o", str(small), "--inputs", "zeros"]) == 0
    assert "fault IndexError: 16 instructions became 2" in capsys.readouterr().out and "tanh" in small.read_text()


def test_nothing_to_reduce(monkeypatch, tmp_path, capsys):
    path = tmp_path / "m.hlo"
    path.write_text(CHAIN)
    assert run(monkeypatch, ["reduce", str(path), "-o", str(tmp_path / "s.hlo"), "--target", "cpu"]) == 2
    assert "nothing to reduce: all results agree" in capsys.readouterr().err


SLIPPERY = """HloModule slippery
ENTRY e {
  x = f32[8] parameter(0)
  y = f32[8] parameter(1)
  p = f32[8] multiply(x, y)
  q = f32[8] add(x, y)
  d = f32[8] subtract(p, q)
  t = f32[8] tanh(d)
  ROOT r = (f32[8], f32[8]) tuple(t, d)
}
"""


def test_the_remainder_fails_for_the_same_reason(monkeypatch, tmp_path, capsys):
    """A check that fails for anything: where tanh is gone what is left is unstable, or has another cause."""
    def says(module, *_, **__):
        opcodes = {i.opcode for i in module.instructions()}
        row = Difference("r", "f32", (8,), 1.0, 1e-4, (0,), 1.0, 0.0)
        if "tanh" in opcodes:
            return [row]
        return [row._replace(moved=0.5) if "subtract" in opcodes else row._replace(causes=("contraction (fma): x",))]

    path, small = tmp_path / "m.hlo", tmp_path / "small.hlo"
    path.write_text(SLIPPERY)
    monkeypatch.setattr("hloc.tools.check.check", says)
    assert run(monkeypatch, ["reduce", str(path), "-o", str(small), "--inputs", "random:0"]) == 0
    assert "differs: 7 instructions became 2" in capsys.readouterr().out and "tanh" in small.read_text()


MIXED = """HloModule mixed
ENTRY e {
  x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  z = f32[64] parameter(2)
  t = f32[64] parameter(3)
  p = f32[64] multiply(x, y)
  r = f32[64] subtract(p, z)
  quarter = f32[] constant(0.25)
  q = f32[64] broadcast(quarter), dimensions={}
  s = f32[64] multiply(t, q)
  large = f32[] constant(1e37)
  b = f32[64] broadcast(large), dimensions={}
  v = f32[64] multiply(s, b)
  ROOT o = (f32[64], f32[64]) tuple(r, v)
}
"""


def test_an_unstable_result_beside_it_is_not_what_is_left(monkeypatch, tmp_path, capsys):
    """r cancels, so that one unit in the last place moves it as far as contraction does; s is subnormal."""
    path, small, data = (tmp_path / name for name in ("m.hlo", "small.hlo", "x.npz"))
    path.write_text(MIXED)
    x, y = np.random.default_rng(0).random((2, 64), np.float32)
    np.savez(data, x, y, x * y, np.full(64, 2e-38, np.float32))
    assert run(monkeypatch, ["reduce", str(path), "-o", str(small), "-i", str(data), "-t", "cpu"]) == 0
    assert "differs: flushed subnormal: 13 instructions became" in capsys.readouterr().out
    assert "subtract" not in small.read_text() and "multiply" in small.read_text()


def test_reasons():
    def fails(error):
        def run():
            raise error
        return outcome_of(run)

    row = Difference("r", "f32", (8,), 1.0, 1e-4, (0,), 1.0, 0.0)
    assert outcome_of(lambda: [row._replace(moved=1.0), row._replace(error=0.0)]) == frozenset()
    assert outcome_of(lambda: [row, row._replace(note="NaN or infinity at other places")]) == {
        "differs", "differs: NaN or infinity at other places"}
    shorter, other = (fails(hloc.UnsupportedError(m)) for m in ("sort of f32[9] by %less", "sort of f32[7,2] by %b.1"))
    assert shorter == other != fails(hloc.UnsupportedError("scatter of f32[9] by %less"))
    assert is_same(shorter, other) and not is_same(frozenset(), other) and not is_same(fails(IndexError()), other)
