"""`hloc bisect`: planted faults are found, in a pass, in a kernel and in the plan; right modules are not blamed."""
from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

import hloc
from hloc.cli.main import main
from hloc.passes.pipelines import pipeline_for
from hloc.targets import find
from hloc.tools import bisect as bisecting

TEXT = """HloModule m
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY e {
  x = f32[16,32] parameter(0)
  y = f32[16,32] parameter(1)
  zero = f32[] constant(0)
  e = f32[16,32] exponential(x)
  p = f32[16,32] multiply(e, y)
  s = f32[16] reduce(p, zero), dimensions={1}, to_apply=add
  t = f32[32,16] transpose(p), dimensions={1,0}
  ROOT r = (f32[16], f32[32,16]) tuple(s, t)
}
"""


@pytest.fixture
def arrays():
    generator = np.random.default_rng(0)
    return [generator.standard_normal((16, 32)).astype(np.float32) for _ in range(2)]


def test_nothing_is_blamed_where_all_is_right(arrays):
    blame = bisecting.bisect(hloc.load(TEXT), find("cpu"), arrays)
    assert (blame.culprit, blame.ran_kernels) == ("", True)
    assert not bisecting.bisect(hloc.load(TEXT), find("h200"), arrays, runs_kernels=False).ran_kernels


def swaps_operands_of_products(module, context) -> bool:
    """A pass with a fault: the first product becomes a quotient."""
    for instruction in module.entry.instructions:
        if instruction.opcode == "multiply":
            instruction.opcode = "divide"
            return True
    return False


def test_a_wrong_pass_is_found(arrays, monkeypatch, tmp_path, capsys):
    def with_fault(target: str):
        right = pipeline_for(target)
        return (*right[:8], swaps_operands_of_products, *right[8:])
    monkeypatch.setattr(bisecting, "pipeline_for", with_fault)
    blame = bisecting.bisect(hloc.load(TEXT), find("cpu"), arrays)
    assert blame.culprit == "pass swaps_operands_of_products"
    assert " multiply(" in str(blame.before) and " multiply(" not in str(blame.after)
    assert [r.name for r in blame.rows] == ["result.0", "result.1"]
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    run(monkeypatch, ["bisect", str(path), "--dump-dir", str(tmp_path / "wrong")], code=1)
    assert "pass swaps_operands_of_products (run " in capsys.readouterr().out
    assert "divide" in (tmp_path / "wrong" / "after.hlo").read_text()


def with_wrong_results(target, is_wrong):
    """The target, with its first result off by one wherever `is_wrong(name of the module)`."""
    def executable(program, module, options):
        exe = target.executable(program, module, options)
        if not is_wrong(module.name):
            return exe
        right = exe.start

        def start():
            backend = right()
            return lambda given: (backend(given)[0] + 1, *backend(given)[1:])
        return replace(exe, start=start)
    return replace(target, executable=executable)


def test_a_wrong_kernel_is_found(arrays):
    target = with_wrong_results(find("cpu"), lambda name: True)
    blame = bisecting.bisect(hloc.load(TEXT), target, arrays)
    assert blame.culprit == "kernels"
    assert len(blame.kernels) == 1 and blame.kernels[0].rows[0].error > 1e-3


def test_a_wrong_plan_is_found(arrays):
    target = with_wrong_results(find("cpu"), lambda name: name != "separate_kernels")
    blame = bisecting.bisect(hloc.load(TEXT), target, arrays)
    assert blame.culprit == "plan" and blame.rows[0].name == "result.0"


def test_dynamic_sizes():
    text = "HloModule d\nENTRY e { x = f32[<=4] parameter(0)  ROOT y = f32[<=4] exponential(x) }\n"
    assert bisecting.bisect(hloc.load(text), find("cpu"), [np.ones(3, np.float32)]).culprit == ""


def test_json(monkeypatch, tmp_path, capsys):
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    run(monkeypatch, ["bisect", str(path), "--json", "--target", "cpu"], code=0)
    told = json.loads(capsys.readouterr().out)
    assert told["culprit"] == "" and told["steps"] > 20 and told["ran_kernels"]


def test_the_judge_is_not_judged(monkeypatch, tmp_path, capsys):
    path = tmp_path / "m.hlo"
    path.write_text(TEXT)
    run(monkeypatch, ["bisect", str(path), "--target", "reference"], code=2)
    assert "has no passes" in capsys.readouterr().err


def run(monkeypatch, arguments: list[str], code: int) -> None:
    monkeypatch.setattr(sys, "argv", ["hloc", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == code
