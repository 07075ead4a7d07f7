"""The evaluator takes large arrays in blocks and convolutions in pieces: nothing may depend on where they are cut."""
from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from hloc.errors import UnsupportedError
from hloc.evaluate import Evaluator, Options, elementwise_groups, evaluate
from hloc.inputs import check_inputs
from hloc.inputs.sensible import sensible_arrays
from hloc.ops import blocks, convolution
from hloc.ops.products import matrix_product
from hloc.text import parse_module

PROGRAMS = Path(__file__).parent.parent / "testdata" / "programs"


def run(text: str, *inputs) -> np.ndarray:
    return evaluate(parse_module(f"HloModule m\nENTRY e {{\n{text}\n}}"), inputs)[0]


@pytest.mark.parametrize("shape", [(7, 3, 5), (105,), (1, 1, 105), (105, 1), (3, 35), (2, 3, 1, 17)])
@pytest.mark.parametrize("block", [1, 4, 16, 1000])
def test_blocks_cover_an_array_once(monkeypatch, shape, block):
    monkeypatch.setattr(blocks, "BLOCK", block)
    seen = np.zeros(shape, np.int64)
    for index in blocks.blocks(shape):
        assert seen[index].size <= block
        seen[index] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("text", [
    "a = f32[30,7] parameter(0)  ROOT r = f32[30,7] tanh(a)",
    "a = f32[30,7] parameter(0)  b = bf16[30,7] convert(a)  ROOT r = bf16[30,7] multiply(b, b)",
    "a = f32[30,7] parameter(0)  z = f32[] constant(0)  b = f32[30,7] broadcast(z), dimensions={}  "
    "ROOT r = f32[30,7] maximum(a, b)",
    "a = f32[30,7] parameter(0)  l = f32[] constant(-1)  h = f32[] constant(1)  ROOT r = f32[30,7] clamp(l, a, h)",
    "a = f32[30,7] parameter(0)  p = pred[] constant(true)  b = f32[30,7] negate(a)  "
    "ROOT r = f32[30,7] select(p, a, b)",
])
def test_values_do_not_depend_on_blocks(monkeypatch, text):
    a = np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32)
    whole = run(text, a)
    monkeypatch.setattr(blocks, "BLOCK", 10)
    assert run(text, a).tobytes() == whole.tobytes()


def test_a_large_broadcast_is_an_array_of_its_own():
    """Inside it is a view; what a caller gets can be written."""
    result = run("a = f32[300] parameter(0)  ROOT r = f32[300,300] broadcast(a), dimensions={1}",
                 np.arange(300, dtype=np.float32))
    result[0, 0] = 7
    assert result[1, 0] == 0 and result.flags.c_contiguous


@pytest.mark.parametrize("attributes, x, k, result", [
    ("window={size=3x2 stride=1x2 pad=1_1x0_1}, dim_labels=b01f_01io->b01f", (3, 5, 6, 4), (3, 2, 4, 2), (3, 5, 3, 2)),
    ("window={size=3x3 pad=1_1x1_1}, dim_labels=f01b_i01o->01bf", (3, 3, 3, 4), (3, 3, 3, 2), (3, 3, 4, 2)),
    ("window={size=2}, dim_labels=b0f_0io->b0f, feature_group_count=2", (3, 5, 4), (2, 2, 6), (3, 4, 6)),
    ("window={size=2}, dim_labels=f0b_i0o->b0f, batch_group_count=2", (4, 5, 6), (4, 2, 2), (3, 4, 2)),
])
def test_convolution_does_not_depend_on_pieces(monkeypatch, attributes, x, k, result):
    """Whole numbers, so that sums are exact in any order."""
    random = np.random.default_rng(0)
    lhs, rhs = (random.integers(-4, 5, s).astype(np.float32) for s in (x, k))
    shapes = ["f32[" + ",".join(map(str, s)) + "]" for s in (x, k, result)]
    text = (f"x = {shapes[0]} parameter(0)  k = {shapes[1]} parameter(1)  "
            f"ROOT r = {shapes[2]} convolution(x, k), {attributes}")
    whole = run(text, lhs, rhs)
    for size in (1, 40, 200):
        monkeypatch.setattr(convolution, "LARGEST_COPY", size)
        np.testing.assert_array_equal(run(text, lhs, rhs), whole)


# -- groups ------------------------------------------------------------------------------------------------------------

@pytest.fixture
def groups(monkeypatch):
    """Arrays of more than twelve elements are large. Gives the groups that run, as the opcodes of their steps."""
    monkeypatch.setattr(blocks, "BLOCK", 4)
    monkeypatch.setattr(elementwise_groups, "BLOCK", 6)
    seen = []
    run_group = elementwise_groups.Group.run

    def run(self, evaluator, values):
        seen.append(" ".join(s.instruction.opcode for s in self.steps))
        run_group(self, evaluator, values)
    monkeypatch.setattr(elementwise_groups.Group, "run", run)
    return seen


def one_by_one(module, arrays) -> list[bytes]:
    """Results of a run that is watched, for which each instruction has an array of its own."""
    watched = Evaluator(module, options=Options(observer=lambda *_: None)).run(check_inputs(module, arrays))
    return [a.tobytes() for a in watched]


CHAIN = """a = f32[5,6] parameter(0)  b = f32[6] parameter(1)
  x = f32[5,6] tanh(a)
  s = f32[5] constant({1,2,3,4,5})  bb = f32[5,6] broadcast(b), dimensions={1}
  y = f32[5,6] multiply(x, bb)
  t = f32[5] negate(s)  tt = f32[5,6] broadcast(t), dimensions={0}
  p = pred[5,6] compare(y, tt), direction=GT
  z = f32[5,6] select(p, x, y)
  h = bf16[5,6] convert(z)
"""


@pytest.mark.parametrize("end, wanted", [
    ("ROOT r = bf16[5,6] add(h, h)", ["tanh multiply compare select convert add"]),
    ("ROOT r = (f32[5,6], bf16[5,6]) tuple(x, h)", ["tanh multiply compare select convert"]),
    ("w = f32[6,5] transpose(z), dimensions={1,0}  v = f32[6,5] exponential(w)  ROOT r = f32[6,5] add(v, w)",
     ["tanh multiply compare select", "exponential add"]),
    ("c = f32[] constant(2)  u = f32[5,6] broadcast(c), dimensions={}  ROOT r = f32[5,6] subtract(z, u)",
     ["tanh multiply compare select subtract"]),
    ("k = f32[5,6] reshape(x)  ROOT r = f32[5,6] add(k, z)", ["tanh multiply compare select"]),
])
def test_a_group_gives_what_its_steps_give(groups, end, wanted):
    module = parse_module(f"HloModule m\nENTRY e {{\n{CHAIN}{end}\n}}")
    arrays = sensible_arrays(module)
    results = evaluate(module, arrays)
    assert groups == wanted
    assert [r.tobytes() for r in results] == one_by_one(module, arrays)


@pytest.mark.parametrize("name", ["softmax_chain", "halves_by_rows", "small_floats", "update_in_loop", "layouts",
                                  "slow_running_totals", "draws_in_loops", "same_result_twice"])
def test_programs_in_groups_give_what_they_give_step_by_step(groups, name):
    module = parse_module((PROGRAMS / f"{name}.hlo").read_text(encoding="utf-8"), name)
    arrays = sensible_arrays(module)
    assert [r.tobytes() for r in evaluate(module, arrays)] == one_by_one(module, arrays)


@pytest.mark.parametrize("body", [
    "b = add(a, a)  c = f32[5,6] convert(b)  d = add(b, c)  e = add(d, d)  ROOT r = (f32[5,6], f32[5,6]) tuple(e, c)",
    "b = f32[5,6] convert(a)  c = multiply(b, b)  d = add(c, b)  ROOT r = (f32[5,6], f32[5,6]) tuple(d, a)",
    "b = multiply(a, a)  c = negate(b)  d = add(c, b)  e = subtract(c, d)  ROOT r = (f32[5,6], f32[5,6]) tuple(e, a)",
    "b = add(a, a)  c = f32[5,6] real(b)  d = negate(b)  e = add(c, d)  ROOT r = (f32[5,6], f32[5,6]) tuple(e, d)",
    "b = add(a, a)  c = pred[5,6] is-finite(b)  d = f32[5,6] select(c, b, a)  e = negate(d)  ROOT r = f32[5,6] add(e, e)",
])
def test_what_is_still_read_is_not_written_over(groups, body):
    text = re.sub(r"= (add|multiply|negate|subtract)\(", r"= f32[5,6] \1(", body)
    module = parse_module(f"ENTRY e {{ a = f32[5,6] parameter(0)  {text} }}")
    array = np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32)
    given = array.copy()
    results = evaluate(module, [given])
    assert groups and given.tobytes() == array.tobytes()
    assert [r.tobytes() for r in results] == one_by_one(module, [array])


def test_a_group_frees_what_nobody_reads_later(groups):
    """Values inside a group are never arrays of their own; those that it reads last are let go."""
    module = parse_module("""ENTRY e { a = f32[4,8] parameter(0)  b = f32[4,8] tanh(a)  c = f32[8,4] reshape(b)
        d = f32[8,4] negate(c)  f = f32[8,4] add(d, c)  g = f32[4,8] reshape(f)  ROOT r = f32[4,8] add(g, a) }""")
    seen = []

    class Looking(Evaluator):
        def run_steps(self, steps, values):
            super().run_steps(steps, values)
            seen.append(sum(v is not None for v in values))
    Looking(module).run([np.ones((4, 8), np.float32)])
    assert groups == ["negate add"] and seen == [2, 1]          # a and c; the root


def test_a_group_of_dynamic_size_runs_step_by_step(groups):
    module = parse_module("""ENTRY e { a = f32[<=30] parameter(0)  b = f32[<=30] negate(a)
        ROOT r = f32[<=30] multiply(b, a) }""")
    (result,) = evaluate(module, [np.arange(7, dtype=np.float32)])
    assert result.tolist() == [-float(n * n) for n in range(7)]


def test_an_error_in_a_group_is_that_of_the_step(groups):
    module = parse_module("""ENTRY e { a = f32[30] parameter(0)  b = f32[30] negate(a)
        u = u32[30] parameter(1)  ROOT r = bf16[30] stochastic-convert(b, u) }""")
    with pytest.raises(UnsupportedError, match="XLA defines it for integers only"):
        evaluate(module, [np.zeros(30, np.float32), np.zeros(30, np.uint32)])


@pytest.mark.parametrize("left, right", [((2, 3, 4), (2, 4, 5)), ((3, 4), (4, 5)), ((2, 1, 4), (2, 4, 1)), ((0, 4), (4, 3))])
def test_matrix_products_of_views(left, right):
    """Of any memory order, with holes, repeated and backwards: whole numbers, so that sums are exact in any order."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, s).astype(np.float32) for s in (left, right))
    want = np.einsum("...ij,...jk->...ik", a, b)
    for x in views(a):
        for y in views(b):
            np.testing.assert_array_equal(matrix_product(x, y), want)


def views(a: np.ndarray):
    yield a
    yield np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)
    wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
    wide[..., ::2] = a
    yield wide[..., ::2]
    yield np.ascontiguousarray(a[..., ::-1])[..., ::-1]
    yield np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 0, -1)), -1, 0)
