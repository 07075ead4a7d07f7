"""hloc report: what is gathered of a module, how texts are linked, what charts show, the command."""
from __future__ import annotations

import re
import sys

import pytest
from test_pages import Reader

import hloc
from hloc.cli.main import main
from hloc.ir.clone import clone_module
from hloc.kernels.memory import memory_over_time, memory_use
from hloc.pages import charts
from hloc.pages.report_page import report_page
from hloc.targets import find
from hloc.tools.explain import explain
from hloc.tools.formatting import time_text
from hloc.tools.gpu_times import gpu_times
from hloc.tools.report import make_report
from hloc.tools.report.collectives import axis_of, described
from hloc.tools.report.lines import code_lines

SOFTMAX = """HloModule softmax
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
max { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] maximum(a, b) }
ENTRY e {
  x = f32[64,128] parameter(0)
  w = f32[128,256] parameter(1)
  b = f32[256] parameter(2)
  y = f32[64,256] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={source_file="net.py" source_line=12}
  bb = f32[64,256] broadcast(b), dimensions={1}
  z = f32[64,256] add(y, bb)
  ninf = f32[] constant(-inf)
  m = f32[64] reduce(z, ninf), dimensions={1}, to_apply=max
  mb = f32[64,256] broadcast(m), dimensions={0}
  d = f32[64,256] subtract(z, mb)
  ex = f32[64,256] exponential(d)
  zero = f32[] constant(0)
  s = f32[64] reduce(ex, zero), dimensions={1}, to_apply=add
  sb = f32[64,256] broadcast(s), dimensions={0}
  ROOT r = f32[64,256] divide(ex, sb)
}
"""
LOOP = """cond { s = (s32[], f32[64]) parameter(0)  i = s32[] get-tuple-element(s), index=0  n = s32[] constant(9)  ROOT p = pred[] compare(i, n), direction=LT }
body {
  s = (s32[], f32[64]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[64] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[64] sine(x)
  ROOT t = (s32[], f32[64]) tuple(j, y)
}
ENTRY e {
  x = f32[64] parameter(0)
  zero = s32[] constant(0)
  t = (s32[], f32[64]) tuple(zero, x)
  w = (s32[], f32[64]) while(t), condition=cond, body=body
  ROOT g = f32[64] get-tuple-element(w), index=1
}
"""


def linked(lines, key: str) -> list[str]:
    return [line.text.strip() for line in lines if key in line.keys]


@pytest.mark.parametrize("target", ["cpu", "h100"])
def test_lines_of_one_value_are_linked(target):
    told = make_report(hloc.load(SOFTMAX), find(target))
    kernel = next(k for k in told.kernels if "exponential" in k.name)
    exponential = next(line for line in kernel.hlo if "exponential(" in line.text)
    found = [text for key in exponential.keys for lines in (kernel.loops, kernel.code) for text in linked(lines, key)]
    assert any("exp(" in text for text in linked(kernel.loops, exponential.keys[0]))
    assert any(re.search(r"\bhlocv?_exp_f32(x\d+)?\(", text) for text in linked(kernel.code, exponential.keys[0])), found
    # what has no name of its own is a part of its reader's expression
    subtract = next(line for line in kernel.hlo if "subtract(" in line.text)
    assert subtract.keys == exponential.keys
    root = next(line for line in kernel.hlo if "divide(" in line.text)
    written = r"out0\[|\*\(hloc_any_\w+ \*\)\(out0 \+ "
    assert "out0" in root.keys and any(re.search(written, text) for text in linked(kernel.code, "out0"))
    assert any(re.search(r" = \(?t\w+ / ", text) for text in linked(kernel.code, "out0"))
    reduces = [set(line.keys) for line in kernel.hlo if " reduce(" in line.text]
    assert reduces[0] and reduces[1] and not reduces[0] & reduces[1]


def test_lines_of_a_library_kernel_are_linked():
    told = make_report(hloc.load(SOFTMAX), find("cpu"))
    kernel = next(k for k in told.kernels if "dot" in k.name)
    operands = {re.search(r"parameter\((\d)\)", line.text)[1]: line.keys for line in kernel.hlo if "parameter(" in line.text}
    assert operands == {"0": ("lhs",), "1": ("rhs",), "2": ("in2",)}
    assert linked(kernel.loops, "in2") == ["out0[row * 256 + column] = acc + in2[column]"]
    added = r"= \(?acc_\w+ \+ \*\(const hloc_any_\w+ \*\)\(in2 \+ \(first_column"
    assert all(any(re.search(added, text) for text in linked(kernel.code, key)) for key in ("in2", "out0"))


@pytest.mark.parametrize("line, keys", [
    ("  const float t3 = hloc_exp_f32(t1 - t2);", ("t3",)),
    ("        out0[i0 * 4096 + i5] = t4 / t5;", ("out0",)),
    ("      for (long i3 = 0; i3 < 16; i3++) {", ("i3",)),
    ("  serial i3 < 16 {", ("i3",)),
    ("    local row0: f32[4096]", ("row0",)),
    ("    float row0[4096] __attribute__((aligned(64)));", ("row0",)),
    ("  v0 = maximum(v0, in1[i])", ("v0", "in1")),
    ("  if (i0 <= 3) {", ()),
    ("kernel f(in0: f32[4] read, out0: f32[4] write) {", ()),
    ("      *(hloc_pack<float, 2> *)&out0[i0 * 256 + vector * 2] = y0;", ("out0",)),
    ("        y0.at[part] = t3 / v1;", ("y0",)),
    ("        const hloc_f32x16 t3_v14 = hlocv_exp_f32x16((t1_v13 - hlocv_splat_f32_f32x16(t2)));", ("t3",)),
    ("        let t3_v14 = exp(t1_v13 - splat:f32x16(t2))", ("t3",)),
    ("        v1_a15 = v1_a15 + t3_v14", ("v1",)),
    ("      serial i4_g11 < 16 {", ("i4",)),
    ("        let i4_at12 = i4_g11 * 16", ("i4",)),
    ("        *(hloc_any_f32x16 *)(row0 + (i3 * 256 + i4_at12)) = t3_v14;", ("row0",)),
    ("        *(hloc_any_f32x16 *)(out0 + (i3 * 256 + i4_at12)) = out0_v3;", ("out0",)),
    ("        i1_0_f0[i1_lane] = exp(in0[i0 * 256 + i1])", ("i1_0_f0", "in0")),
    ("  }", ())])
def test_keys_of_a_line(line, keys):
    assert code_lines(line)[0].keys == keys


def test_memory_over_time_agrees_with_hloc_memory():
    target = find("cpu")
    module = explain_input(SOFTMAX, target)
    over, use = memory_over_time(module, target.machine, target.workspace), memory_use(module, target.machine, target.workspace)
    assert max(over.live) == use.live and over.instructions[over.peak_at] is use.at
    assert over.outside + use.arena == use.peak
    alive = sum(b.size for b in over.alive(over.peak_at) if b.region != "lent")
    assert alive == use.live


def explain_input(text: str, target) -> hloc.Module:
    """The module, optimized."""
    from hloc.api import optimize
    return optimize(hloc.load(text), target)


@pytest.mark.parametrize("text", [SOFTMAX, LOOP])
def test_predictions_agree_with_hloc_explain(text):
    module, target = hloc.load(text), find("h100")
    told = make_report(clone_module(module), target, others=["a100", "h100"])
    assert told.seconds * 1e6 == pytest.approx(gpu_times(module, target.machine).us)
    assert [o.name for o in told.others] == ["a100", "h100"] and told.others[1].seconds == told.seconds
    assert [(e.size, e.reason) for e in told.edges] == [(e.size, e.reason) for e in explain(module, target).edges]


def test_kernels_of_loops_run_as_often_as_these():
    told = make_report(hloc.load(LOOP), find("cpu"))
    assert {k.name: k.runs for k in told.kernels}["sine"] == 9
    assert told.flops >= 9 * 64


def test_passes_have_their_diffs():
    told = make_report(hloc.load(SOFTMAX), find("cpu"))
    fusion = next(p for p in told.passes if p.name == "fusion")
    assert fusion.found.counts["came"] and "fusion" in Reader(report_page(told)).text


def test_a_module_without_a_plan_has_a_report(monkeypatch):
    """Loops in loops, deeper than plans go."""
    monkeypatch.setattr("hloc.kernels.planner.DEEPEST_NESTING", 3)
    lines = ["b0 { x = f32[4] parameter(0)  ROOT r = f32[4] sine(x) }", "c { x = f32[4] parameter(0)  ROOT r = pred[] custom-call(x), custom_call_target=\"more\" }"]
    lines += [f"b{n} {{ x = f32[4] parameter(0)  ROOT r = f32[4] while(x), condition=c, body=b{n - 1} }}" for n in range(1, 6)]
    told = make_report(hloc.load("\n".join([*lines, "ENTRY e { x = f32[4] parameter(0)  ROOT r = f32[4] while(x), condition=c, body=b5 }"])), find("cpu"))
    shown = Reader(report_page(told)).text
    assert "nested deeper" in told.problem and told.problem in shown and "Passes" in shown and not told.kernels


def test_roofline_places_dots_by_their_figures():
    dots = [charts.Dot("a", "#k0", 1.0, 1e9, 0.5), charts.Dot("b", "#k1", 100.0, 1e11, 0.25), charts.Dot("none", "#k2", 0, 0, 0)]
    found = re.findall(r'cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', charts.roofline(dots, [charts.Roof("f32", 1e12)], 1e10))
    (ax, ay, ar), (bx, by, br) = (map(float, row) for row in found)
    assert ax < bx and ay > by and ar > br
    assert charts.roofline(dots[2:], [charts.Roof("f32", 1e12)], 1e10) == ""


def test_a_long_schedule_keeps_its_peaks():
    live = [0] * 20_000
    live[12_345] = 1 << 20
    pieces = charts.steps(live, 1_500)
    assert len(pieces) <= 1_500 and max(height for _, _, height in pieces) == 1 << 20
    assert [p[0] for p in pieces[1:]] == [p[1] + 1 for p in pieces[:-1]] and pieces[-1][1] == 19_999
    assert len(charts.memory_chart(live, 12_345)) < 30_000


@pytest.mark.parametrize("groups, said, axis", [
    ("{{0,1},{2,3}}", "2 groups of 2, 1 apart", ""), ("[2,4]<=[4,2]T(1,0)", "2 groups of 4, 2 apart", ""),
    ("{}", "all devices", ""), ("{{0,1,3}}", "1 group of 3", ""),
    ("mesh['x'=2,'y'=4] {'y'}", "2 groups of 4, 1 apart", "y")])
def test_collectives_are_told_by_group_and_axis(groups, said, axis):
    assert described(groups) == said and axis_of(groups) == axis


def test_collectives_of_a_module():
    text = """HloModule m, num_partitions=4
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY e {
  x = f32[1024] parameter(0)
  r = f32[1024] all-reduce(x), replica_groups={{0,1},{2,3}}, channel_id=1, use_global_device_ids=true, to_apply=add
  ROOT s = f32[1024] all-reduce(r), replica_groups={{0,2},{1,3}}, channel_id=2, use_global_device_ids=true, to_apply=add
}
"""
    told = make_report(hloc.load(text), find("cpu"))
    assert [(r.opcode, r.groups, r.instructions, r.size) for r in told.collectives] == [
        ("all-reduce", "2 groups of 2, 1 apart", 1, 4096), ("all-reduce", "2 groups of 2, 2 apart", 1, 4096)]
    assert "2 groups of 2, 2 apart" in Reader(report_page(told)).text


@pytest.mark.parametrize("seconds, said", [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.2e-6, "4.2 \N{MICRO SIGN}s"), (3e-8, "0.03 \N{MICRO SIGN}s")])
def test_time_text(seconds, said):
    assert time_text(seconds) == said


def run(capsys, *arguments) -> str:
    sys.argv = ["hloc", *map(str, arguments)]
    main()
    return capsys.readouterr().out


def test_command_measures(tmp_path, capsys):
    path, page = tmp_path / "m.hlo", tmp_path / "r.html"
    path.write_text(SOFTMAX)
    assert "2 kernels" in run(capsys, "report", path, "-o", page, "--measure", "-i", "zeros", "--predict", "none")
    shown = Reader(page.read_text("utf-8")).text
    assert "measured time" in shown and "compiler" in shown and "Predicted time of a run" not in shown
    assert "net.py:12" in shown and "it is fused as the epilogue" in shown


@pytest.mark.parametrize("arguments, said", [
    (["-o", "r.txt"], "a report is a page"), (["-o", "r.html", "--predict", "h101"], "unknown target 'h101'"),
    (["-o", "r.html", "-t", "nothing"], "unknown target")])
def test_command_refuses(arguments, said, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.hlo").write_text(SOFTMAX)
    sys.argv = ["hloc", "report", "m.hlo", *arguments]
    with pytest.raises(SystemExit):
        main()
    assert said in capsys.readouterr().err and not (tmp_path / "r.html").exists()
