"""Schedules of rows (hloc/kernels/schedule/row_nest.py): each candidate means what its loop means, as the interpreter of
the loop IR judges; what has no schedule says why; a file gives one by hand."""
from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from test_cli import run
from test_kernel_passes import BORDER, CPU, DATA, means_the_same

from hloc.errors import Source, Span
from hloc.kernels.ir import For, Kernel, Let, Local, Store
from hloc.kernels.schedule.choice import candidates
from hloc.kernels.schedule.file import Given
from hloc.kernels.schedule.row_nest import RowNest, row_nest_of
from hloc.kernels.schedule.rules import scheduled
from hloc.kernels.schedule.steps import Refused, read_steps
from hloc.kernels.text import read_loops
from hloc.kernels.verify import verify_kernel
from hloc.kernels.walks import walk
from hloc.targets.cpu.vector_loops.loop_schedules import nests
from hloc.targets.cpu.vector_loops.row_schedules import row_schedules, with_row_nests

FIXTURES = sorted((DATA / "row_schedules").glob("*.loop"))


def kernel_of(path: Path) -> Kernel:
    kernel, = read_loops(Source(path.read_text(encoding="utf-8").partition(BORDER)[0]))
    return kernel


def row_nests(kernel: Kernel) -> list[RowNest]:
    return nests(kernel, CPU, with_row_nests)


def with_schedule(kernel: Kernel, nest: RowNest, steps: str) -> Kernel:
    """The kernel with this schedule of its one row nest."""
    done = scheduled(nest, read_steps(steps), count())

    def changed(body: tuple) -> tuple:
        return tuple(n for s in body for n in (
            done if s is nest.loop else (s._replace(body=changed(s.body)),) if isinstance(s, For) else (s,)))
    return kernel._replace(body=changed(kernel.body))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: p.stem)
def test_every_schedule_means_the_same(path):
    kernel = kernel_of(path)
    nest, = row_nests(kernel)
    ranked = candidates(nest, CPU)
    assert ranked and [c.cycles for c in ranked] == sorted(c.cycles for c in ranked)
    lanes = "fission(i1) vectorize(i1)"
    for steps in {*(c.text for c in ranked), "scalar", "fission(i1)", lanes, lanes + "".join(f" stage({buffer})" for buffer in nest.strided)}:
        changed = with_schedule(kernel, nest, steps)
        verify_kernel(changed)
        assert (changed == kernel) == (steps == "scalar")
        means_the_same(kernel, changed)


def test_parts_leave_to_others_what_they_need():
    """Nothing, where all is written out but what is kept for a row."""
    kernel = kernel_of(DATA / "row_schedules" / "softmax.loop")
    nest, = row_nests(kernel)
    done = with_schedule(kernel, nest, "fission(i1) vectorize(i1) unroll(16)")
    assert [s.size for s in walk(done.body) if isinstance(s, Local)] == [320]
    done = with_schedule(kernel, nest, "fission(i1) vectorize(i1) unroll(4) stage(in0)")
    sizes = sorted(s.size for s in walk(done.body) if isinstance(s, Local))
    assert sizes == [32, 32, 320, 320]                      # the maximum, the sum; the table, the row of each lane
    moved = [s for s in walk(done.body) if isinstance(s, Store) and s.buffer.startswith("in0")]
    assert len(moved) == 1, "both loops read one table"


@pytest.mark.parametrize("steps, message", [
    ("vectorize(i1)", "rows are lanes after their fission"),
    ("fission(i2)", "no loop i2 over rows: it is i1"),
    ("fission(i1) unroll(4)", "2 to 64 iterations are written out, where rows are lanes"),
    ("fission(i1) vectorize(i1) unroll(99)", "2 to 64 iterations"),
    ("fission(i1) vectorize(i1) stage(in9)", "in9 is not transposed"),
    ("fission(i1) split(i2,4)", "no step split: there are fission, vectorize, unroll, stage, fuse"),
    ("fuse(i1,i2)", "not the counters of nested loops that reduce nothing"),
    ("fission(i1,2)", "fission does not take these arguments"),
])
def test_steps_that_do_not_apply(steps, message):
    nest, = row_nests(kernel_of(DATA / "row_schedules" / "softmax.loop"))
    with pytest.raises(Refused, match=message):
        scheduled(nest, read_steps(steps), count())


BODY = "var v = f32(0.0) vector j < 8 { v = v + x[8 * i + j] }"


@pytest.mark.parametrize("body, message", [
    (f"{BODY} y[0] = v", "rows may write to the same elements of y"),
    (f"{BODY} y[4 * i] = v vector k < 8 {{ y[4 * i + k] = v }}", "rows may write to the same elements of y"),
    ("vector k < 8 { y[8 * i + k] = x[k] } vector j < 8 { y[8 * i + j + 4] = x[j] }", "rows may write to the same"),
    (f"{BODY} y[i] = v + y[i]", "what is written is read"),
    ("y[i] = x[i]", "no loops along rows"),
    (f"let n = convert:index(p[i]) {BODY} y[n] = v", "rows may write to the same elements of y"),
    (f"{BODY} if x[i] > v {{ y[i] = v }}", "the body is not straight-line code and loops"),
    (f"{BODY} s = s + v y[i] = v", "rows change one variable"),
    (f"let n = minimum(8, i) {BODY} vector k < n {{ y[8 * i + k] = v }}", "no constant"),
    (f"local w: f32[32] {BODY} vector k < 8 {{ w[i] = v }} y[i] = w[i]", "an array of one row"),
])
def test_what_has_no_schedule(body, message):
    kernel, = read_loops(Source(f"""kernel k(x: f32[99] read, p: s32[99] read, y: f32[99] update) {{
      var s = f32(0.0) serial i < 4 {{ {body} }} }}"""))
    loop = next(s for s in kernel.body if isinstance(s, For))
    with pytest.raises(Refused, match=message):
        row_nest_of(loop, 4)
    assert not row_nests(kernel)


def test_tables_have_a_largest_size():
    """16 rows of 2,048 f32 fit, 2,049 do not: the rows are then read as they lie."""
    for columns, fits in ((2048, True), (2049, False)):
        kernel, = read_loops(Source(f"""kernel k(x: f32[{16 * columns}] read, y: f32[{16 * columns}] write) {{
          serial i < 16 {{ var v = f32(0.0) serial j < {columns} {{
            v = maximum(v, x[{columns} * i + j]) y[{columns} * i + j] = v }} }} }}"""))
        nest, = row_nests(kernel)
        assert nest.fits("x") == fits == any("stage(x)" in c.text for c in candidates(nest, CPU))
        if not fits:
            with pytest.raises(Refused, match="a table of x has more than 128 KiB"):
                scheduled(nest, read_steps("fission(i) vectorize(i) stage(x)"), count())


def test_positions_that_are_no_sums_are_named_in_every_part():
    """A position that rows share by threes."""
    kernel, = read_loops(Source("""kernel k(x: f32[96] read, y: f32[4] read, z: f32[12] write) {
      serial i < 12 {
        let n = i / 3
        var v = f32(0.0) reassociable add
        vector j < 8 { v = v + x[8 * i + j] * y[n] }
        z[i] = v + y[n]
      } }"""))
    nest, = row_nests(kernel)
    for candidate in candidates(nest, CPU):
        changed = with_schedule(kernel, nest, candidate.text)
        verify_kernel(changed)
        means_the_same(kernel, changed)
        assert sum(isinstance(s, Let) and s.name.startswith("n") for s in walk(changed.body)) >= 1


def test_elements_side_by_side_are_no_single_ones():
    """Compilers load two to four of them as vectors: rows of three need no table, but rows of five do."""
    def best(extent: int) -> str:
        kernel, = read_loops(Source(f"""kernel k(x: f32[480] read, z: f32[80] write) {{
          serial i < 80 {{
            var v = f32(0.0) reassociable maximum
            vector j < {extent} {{ v = maximum(v, x[{extent} * i + j]) }}
            z[i] = v
          }} }}"""))
        return candidates(row_nests(kernel)[0], CPU)[0].text
    assert best(3) == "fission(i) vectorize(i) unroll(3)"
    assert best(5) == "fission(i) vectorize(i) stage(x) unroll(5)"


def test_schedules_by_hand(capsys, tmp_path):
    """Of rows and of the loops along them, whose names depend on the former."""
    module = tmp_path / "rows.hlo"
    module.write_text("""HloModule m
      f { a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] maximum(a, b) }
      ENTRY e { x = f32[64,12] parameter(0) z = f32[] constant(-inf)
                ROOT y = f32[64] reduce(x, z), dimensions={1}, to_apply=f }""")
    file = tmp_path / "schedules.txt"
    code, text, _ = run(capsys, "explain", str(module), "--schedule", "--top", "1")
    assert code == 0 and "k0_reduce_maximum.r0: 64 iterations" in text
    file.write_text("k0_reduce_maximum.r0 fission(i0) vectorize(i0) stage(in0)")
    code, source, _ = run(capsys, "compile", str(module), "-o", "-", "--emit", "c", "--schedule", str(file))
    assert code == 0 and "transpose_32(" in source
    file.write_text("k0_reduce_maximum.r0 fission(i0)\nk0_reduce_maximum.0 vectorize(i1,4)")
    code, _, error = run(capsys, "compile", str(module), "-o", "-", "--emit", "c", "--schedule", str(file))
    assert code == 3 and "schedules.txt:2:1: error: no axis i1" in error


@pytest.mark.parametrize("first, moved", [
    ("y[5 * i + j]", True), ("y[5 * i + j + 3]", True), ("y[5 * i + j + k]", False), ("y[5 * i + j + n]", False),
    ("z[5 * i + j]", False)], ids=["rows", "other rows", "of the loop around", "by its name", "written"])
def test_tables_that_stay_the_same_stand_before_the_loop_around(first, moved):
    """Their moves count once for all iterations of that loop."""
    kernel, = read_loops(Source(f"""kernel k(x: f32[40] read, y: f32[176] read, z: f32[256] update) {{
      serial k < 8 {{
        let n = 2 * k
        serial i < 32 {{
          var v = f32(0.0) reassociable add
          vector j < 5 {{ v = v + x[5 * k + j] * {first} }}
          z[32 * k + i] = v
        }}
      }} }}"""))
    if first.startswith("z"):
        assert not row_nests(kernel)
        return
    nest, = row_nests(kernel)
    given = {"r0": Given(read_steps("fission(i) vectorize(i) unroll(5) stage(y)"), Span(Source(""), 0, 0))}
    changed = row_schedules(kernel, CPU, given)
    verify_kernel(changed)
    means_the_same(kernel, changed)
    assert any(isinstance(s, Local) for s in changed.body) == moved
