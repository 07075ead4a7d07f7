"""The loop IR as text: what is printed reads back as the same kernel, and the interpreter gives the evaluator's results."""
from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kernel_harness import Case, collect, compare, interpreted
from op_examples import read_examples
from test_kernels import DATA, ELSEWHERE, modules

from hloc.errors import ParseError, Source, UnsupportedError
from hloc.kernels.ir import Apply, For, Kernel, Store, Tile
from hloc.kernels.text import print_loops, read_loops
from hloc.kernels.text.interpreter import InterpretationError, interpret
from hloc.kernels.walks import walk, with_all_expressions

MOST_ELEMENTS = 400             # of a case that is interpreted


@cache
def small_cases() -> list[Case]:
    """Kernels of loops from the op examples, of few elements."""
    cases = []
    for path in sorted((DATA / "ops").glob("*.hlo")):
        for example in read_examples(path):
            for number, case in enumerate(example.cases):
                if case.devices or ELSEWHERE.fullmatch(example.name.split(":")[0]):
                    continue
                try:
                    cases += collect(example.text, f"{example.name}:{number}", case.inputs.get(0, []))
                except UnsupportedError:
                    continue
    return [c for c in cases if not any(isinstance(call.kernel, Tile) for call in c.lowered.calls)
            and sum(e.size for e in c.expected) + sum(o.size for leaves in c.operands for o in leaves) < MOST_ELEMENTS]


def kernels() -> list[Kernel]:
    found = [call.kernel for name, text in modules("kernels") for case in collect(text, name)
             for call in case.lowered.calls]
    return [k for k in found if isinstance(k, Kernel)]


def test_what_is_printed_reads_back():
    originals = kernels()
    assert len(originals) > 80
    text = print_loops(originals)
    again = read_loops(Source(text))
    assert print_loops(k._replace(origin=o.origin) for k, o in zip(again, originals)) == text
    same = [a.structure() == o.structure() for a, o in zip(again, originals)]
    assert same.count(False) <= sum("nan" in print_loops([o]) for o in originals)      # NaN is not equal to itself


def test_the_interpreter_agrees_with_the_evaluator():
    """Whatever local arrays hold before they are written."""
    cases = small_cases()
    assert len(cases) > 150
    for case in cases:
        for unwritten in (0, 77):
            for actual, expected in zip(interpreted(case, unwritten=unwritten), case.expected):
                compare(case.name, actual, expected)


def test_the_interpreter_finds_planted_faults():
    """A sum that is a difference, and an iteration less, change results: of nearly all cases that have them."""
    def subtracting(kernel: Kernel) -> Kernel:
        def change(expr):
            is_sum = isinstance(expr, Apply) and expr.op == "add" and expr.type == "f32"
            return expr._replace(op="subtract") if is_sum else expr
        return kernel._replace(body=with_all_expressions(kernel.body, change))

    def shorter(kernel: Kernel) -> Kernel:
        return kernel._replace(body=tuple(s._replace(extent=s.extent - 1) if isinstance(s, For)
                                          and isinstance(s.extent, int) and s.extent else s for s in kernel.body))

    for plant, least in ((subtracting, 5), (shorter, 100)):
        found = 0
        for case in small_cases():
            try:
                for actual, expected in zip(interpreted(case, plant), case.expected):
                    compare(case.name, actual, expected)
            except (AssertionError, InterpretationError):
                found += 1
        assert found >= least, plant.__name__


@pytest.mark.parametrize("text, message", [
    ("kernel k(x: f32[2] read) { y = 3 $ }", "1:34: error: a character that no loop IR has"),
    ("kernel k(x: f32[2] read) { let y }", "1:34: error: unexpected text"),
    ("kernel k(x: f32[2] read", "1:24: error: unexpected text"),
    ("", "1:1: error: unexpected text"),
    ("kernel k(x: f31[2] read) { }", "1:13: error: not an element type"),
    ("kernel k(x: f32[2] write) { x[0] = y }", "1:36: error: no variable y here"),
    ("kernel k(x: f32[2] write) { x[0] = y[1] }", "1:36: error: no array y here"),
    ("kernel k(x: f32[2] write) { x[0] = s8(1.5) }", "1:36: error: not a constant of an element type"),
    ("kernel k(x: f32[2] write) { x[0] = c64(1.5) }", "1:36: error: not a constant of an element type"),
    ("kernel k(x: f32[2] write) { x[0] = convert(s8(1)) }", "convert does not say to which type"),
    ("kernel k(x: f32[2] read) { x[0] = f32(1.0) }", "the buffer is read only"),
    ("kernel k(x: f32[2] write) { x[0] = f32(1.0) + s8(2) }", "arguments differ in type"),
    ("kernel k(x: f32[2] write) { x[" + "(" * 300 + "0" + ")" * 300 + "] = f32(1.0) }", "more than 200 brackets"),
], ids=lambda text: text[:30])
def test_errors_name_their_place(text, message):
    with pytest.raises(ParseError) as error:
        read_loops(Source(text))
    assert message in str(error.value)


def test_positions_outside_of_an_array_are_errors():
    kernel, = read_loops(Source("kernel k(x: f32[2] read, y: f32[2] write) { serial i < 2 { y[i] = x[i + 1] } }"))
    with pytest.raises(InterpretationError, match=r"x\[2\], which has 2 elements"):
        interpret(kernel, {"x": np.float32([1, 2]), "y": np.zeros(2, np.float32)})


def test_all_statements_and_operators():
    """Each kind of statement, with what binds strongly and weakly; printed as it is written here."""
    text = (Path(__file__).parent.parent / "testdata" / "kernel_passes" / "every_statement.loop").read_text()
    kernel, = read_loops(Source(text))
    assert print_loops([kernel]) == text.partition("\n\n")[2]
    arrays = {"x": np.float32([1, -2, 3, 4]), "n": np.int32([3]), "y": np.zeros(4, np.float32), "sum": np.float32([1])}
    interpret(kernel, arrays)
    np.testing.assert_array_equal(arrays["y"], [2, 4, 6, 16])
    np.testing.assert_array_equal(arrays["sum"], [7])
    assert any(isinstance(s, Store) for s in walk(kernel.body))


def test_the_last_iteration_of_a_group():
    """It reads what the others of its group stored, as a GPU's kernels join partial results."""
    text = ("kernel sums(in0: f32[6] read, scratch0: f32[6] write, out0: f32[2] write) {\n  parallel i0 < 6 {\n"
            "    let p0 = i0 % 2\n    scratch0[i0] = in0[i0]\n    last(3, 2) p0 {\n"
            "      out0[p0] = scratch0[p0] + scratch0[p0 + 2] + scratch0[p0 + 4]\n    }\n  }\n}\n")
    kernel, = read_loops(Source(text, "sums.loop"))
    assert print_loops([kernel]).strip() == text.strip()
    out = np.full(2, np.nan, np.float32)
    interpret(kernel, {"in0": np.arange(6, dtype=np.float32), "scratch0": np.full(6, np.nan, np.float32), "out0": out})
    assert out.tolist() == [6, 9]
    with pytest.raises(ParseError, match="not an index"):
        read_loops(Source(text.replace("last(3, 2) p0", "last(3, 2) scratch0[0]")))
