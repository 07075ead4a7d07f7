"""Schedules of reductions (hloc/kernels/schedule): each candidate means what its loop means, as the interpreter of the
loop IR judges; steps are printed and read back; what does not apply says why; the cost prefers what is faster."""
from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from kernel_harness import compare, random_array
from test_cli import run
from test_kernel_passes import CPU, lowered

from hloc.errors import Source
from hloc.ir import array
from hloc.kernels.ir import For, Kernel, Stmt, Store
from hloc.kernels.schedule.choice import Candidate, candidates
from hloc.kernels.schedule.cost import constants
from hloc.kernels.schedule.nest import NEST_STEPS, Nest, nest_of
from hloc.kernels.schedule.rules import scheduled
from hloc.kernels.schedule.steps import Refused, apply_steps, read_steps, steps_text
from hloc.kernels.text import print_loops, read_loops
from hloc.kernels.text.interpreter import interpret
from hloc.kernels.verify import verify_kernel
from hloc.kernels.walks import walk, with_vector_loops
from hloc.targets.cpu.vector_loops.loop_schedules import has_schedule, loop_schedules, nests
from hloc.targets.cpu.vector_loops.pipeline import KERNEL_PIPELINE, run_kernel_passes

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
import fit_cpu_costs  # noqa: E402

MOST_ELEMENTS = 3000            # of a kernel that is interpreted
BEFORE = KERNEL_PIPELINE[:KERNEL_PIPELINE.index(loop_schedules)]


def loop_of(text: str, extent: int = 77, type: str = "f32") -> For:
    """A VECTOR loop over x and y into sums s and t."""
    kernel, = read_loops(Source(f"""kernel k(x: {type}[400] read, y: {type}[400] read, z: {type}[400] write) {{
      var s = {type}(0) reassociable add
      var t = {type}(0) reassociable maximum
      vector i < {extent} {{ {text} }} }}""".replace("f32(0)", "f32(0.0)").replace("bf16(0)", "bf16(0.0)")))
    return next(s for s in walk(kernel.body) if isinstance(s, For))


def sum_of(extent: int) -> Nest:
    return nest_of(loop_of("s = s + x[i]", extent))


@cache
def kernels_with_nests() -> tuple[Kernel, ...]:
    """Kernels of testdata/kernels before their schedules, small ones."""
    small = (k for k in lowered() if sum(b.size for b in k.buffers) <= MOST_ELEMENTS)
    found = tuple(k for k in (run_kernel_passes(k, CPU, BEFORE) for k in small)
                  if nests(k, CPU))
    assert len(found) > 8
    return found


def with_candidate(kernel: Kernel, number: int) -> tuple[Kernel, int]:
    """The kernel whose nests have their candidates of this rank, and how many nests it has."""
    names, nests = count(), []

    def change(loop: For) -> tuple[Stmt, ...]:
        try:
            nest = nest_of(loop)
            ranked = candidates(nest, CPU)
        except Refused:
            return (loop,)
        if not has_schedule(nest, CPU):
            return (loop,)
        nests.append(loop)
        steps = read_steps(ranked[number % len(ranked)].text)
        assert steps == ranked[number % len(ranked)].steps
        return scheduled(nest, steps, names)
    return kernel._replace(body=with_vector_loops(kernel.body, change)), len(nests)


def results(kernel: Kernel, unwritten: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    arrays = {b.name: random_array(random, array(b.type, b.size)) for b in kernel.buffers}
    interpret(kernel, arrays, unwritten)
    return arrays


def differs(kernel: Kernel, expected: dict[str, np.ndarray]) -> bool:
    try:
        for name, result in results(kernel, 77).items():
            compare(f"{kernel.name}: {name}", result, expected[name])
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("number", range(0, 24, 3))
def test_every_candidate_means_the_same(number):
    found = 0
    for kernel in kernels_with_nests():
        changed, nests = with_candidate(kernel, number)
        found += nests
        if nests:
            verify_kernel(changed)
            assert print_loops(read_loops(Source(print_loops([changed])))) == \
                print_loops([changed._replace(origin=())])
            assert not differs(changed, results(kernel)), print_loops([changed])
    assert found > 8


@pytest.mark.parametrize("fault", ["shuffle", "range", "join"])
def test_planted_faults_are_found(fault):
    """Lanes that are not ignored, a loop of one iteration less, halves that are joined twice."""
    def damaged(kernel: Kernel) -> Kernel:
        text = print_loops([kernel])
        if fault == "shuffle":
            text = text.replace("; 16, 17, 18, 3,", "; 0, 1, 2, 3,").replace("; 8, 9, 10, 3,", "; 0, 1, 2, 3,")
        elif fault == "join":
            text = text.replace("; 8, 9, 10, 11, 12, 13, 14, 15)", "; 0, 1, 2, 3, 4, 5, 6, 7)")
        else:
            text = text.replace(" < 3 {", " < 2 {")
        changed, = read_loops(Source(text))
        assert changed != kernel
        return changed
    kernel, = read_loops(Source("""kernel k(x: f32[77] read, out: f32[1] write) {
      var s = f32(0.0) reassociable add
      vector i < 77 { s = s + x[i] }
      out[0] = s }"""))
    steps = {"shuffle": "vectorize(i,16)", "join": "vectorize(i,16)", "range": "vectorize(i,8) rfactor(i,3)"}[fault]
    names = count()
    whole = kernel._replace(body=with_vector_loops(kernel.body, lambda l: scheduled(nest_of(l), read_steps(steps), names)))
    assert not differs(whole, results(kernel))
    assert differs(damaged(whole), results(kernel))


@pytest.mark.parametrize("text, message", [
    ("s = s + x[2 * i]", "x is read at other positions than adjacent ones"), ("z[0] = x[i] s = s + x[i]", "z is written"),
    ("z[i] = x[i] let a = z[i] s = s + a", "read again"), ("s = x[i] - s", "is not combined"), ("s = s + x[i] t = maximum(t, s)", "is used"),
    ("if x[i] < y[i] { s = s + x[i] }", "not straight-line"), ("s = s + select(i < 3, x[i], y[i])", "condition on positions guards"),
], ids=str)
def test_loops_that_are_no_nests(text, message):
    with pytest.raises(Refused, match=message):
        nest_of(loop_of(text))


@pytest.mark.parametrize("steps, message", [
    ("vectorize(j,8)", "no axis j for lanes: there is i, once"), ("vectorize(i,128)", "has 77 iterations: lanes that are none"),
    ("vectorize(i,77)", "a power of two: not 77"), ("turn(i)", "no step turn: there are vectorize, rfactor"),
    ("vectorize(i,8) vectorize(i,2)", "no axis i for lanes"), ("rfactor(i,2)", "not the axis of a loop with lanes"),
    ("vectorize(i,8) rfactor(i,10)", "no more than there are: not 10"), ("vectorize(i)", "does not take"),
    ("vectorize(i,n)", "does not take these arguments"), ("vectorize", "not a step"), ("", "is written: scalar"),
    ("vectorize(i,-8)", "not the arguments of a step"),
], ids=str)
def test_steps_that_do_not_apply_say_why(steps, message):
    with pytest.raises(Refused, match=message):
        scheduled(sum_of(77), read_steps(steps), count())


def test_steps_are_printed_and_read_back():
    text = "vectorize(i,8) rfactor(i,4)"
    assert steps_text(read_steps(text)) == text and read_steps(" scalar ") == () and steps_text(()) == "scalar"
    nest = apply_steps(sum_of(77), read_steps(text), NEST_STEPS)
    assert (nest.lanes, nest.copies) == (8, 4)


def cycles(found: list[Candidate], text: str) -> float:
    return next(c.cycles for c in found if c.text == text)


def test_costs_prefer_what_is_faster():
    """Vectors to single numbers, whole vectors to short ones, and for a long row several accumulators to one."""
    found = candidates(sum_of(4096), CPU)
    assert found == sorted(found, key=lambda c: c.cycles)
    wide, narrow = "vectorize(i,16)", "vectorize(i,4)"
    assert cycles(found, f"{wide} rfactor(i,4)") < cycles(found, wide) < cycles(found, narrow) < cycles(found, "scalar")


@pytest.mark.parametrize(("extent", "is_scalar"), [(390, False), (16, False), (3, True)])
def test_adjacent_elements_that_fill_vectors_have_one_schedule(extent, is_scalar):
    found = candidates(nest_of(loop_of("z[i] = x[i] + y[i]", extent)), CPU)
    assert ("scalar" in [c.text for c in found]) == is_scalar
    assert is_scalar or len(found) == 1


@pytest.mark.parametrize(("text", "extent", "places"), [
    ("z[i] = z[i] + x[i]", 27, [0, 16, 24, 26]), ("z[i] = y[i] + x[i]", 27, [0, 11]), ("z[i] = z[i] + x[i]", 24, [0, 16])])
def test_updates_in_place_do_not_read_what_two_stores_wrote(text, extent, places):
    done = scheduled(nest_of(loop_of(text, extent)), read_steps("vectorize(i,16)"), count())
    assert [s.position.integer for s in done if isinstance(s, Store)] == places


def test_other_cpus_have_shorter_vectors():
    lanes = [c.steps[0][1][1] for c in candidates(sum_of(4096), replace(CPU, vector_bytes=32)) if c.steps]
    assert max(lanes) == 8


def test_the_fit_compares_the_chosen_schedule_with_the_best():
    """benchmarks/fit_cpu_costs.py, on times that are made up."""
    chosen = "vectorize(i2,16)"
    row = {"family": "row_reduction", "name": "add f32[512,256]", "loop": "k0_reduce_add.0",
           "us": {"scalar": 9.0, chosen: 1.0}}
    assert fit_cpu_costs.measured(row).regret(constants("default")) == (1.0, chosen)
    assert fit_cpu_costs.measured({**row, "us": {"scalar": 1.0, chosen: 4.0}}).regret(constants("default"))[0] == 4.0
    rows = row | {"loop": "k0_reduce_add.r0", "us": {"scalar": 2.0, "fission(i1) vectorize(i1)": 1.0}}
    assert fit_cpu_costs.measured(rows).regret(constants("default")) == (2.0, "scalar")


# -- hloc explain --schedule, --schedule FILE ----------------------------------------------------------------------------

@pytest.fixture
def module(tmp_path) -> str:
    path = tmp_path / "m.hlo"
    path.write_text("""a { p = s32[] parameter(0) q = s32[] parameter(1) ROOT s = s32[] add(p, q) }
      ENTRY e { x = s32[9,77] parameter(0) z = s32[] constant(0)
                ROOT y = s32[9] reduce(x, z), dimensions={1}, to_apply=a }""")
    return str(path)


def test_explain_prints_what_run_and_compile_take(capsys, module, tmp_path):
    code, text, _ = run(capsys, "explain", module, "--schedule", "--top", "2")
    head, *others, chosen = text.partition("\n\n")[2].splitlines()
    assert code == 0 and head.startswith("// k0_reduce_add.0: 77 iterations; ") and len(others) == 2
    assert others[0].split(maxsplit=2)[2] == chosen.partition(" ")[2]
    file = tmp_path / "schedules.txt"
    expected = run(capsys, "run", module, "-i", "random:1")[1]
    by_hand = "k0_reduce_add.0 vectorize(i1,4) rfactor(i1,3)  // by hand"
    for written in (text, by_hand, "k0_reduce_add.0 scalar"):
        file.write_text(written)
        assert run(capsys, "run", module, "-i", "random:1", "--schedule", str(file))[:2] == (0, expected)
    file.write_text("k0_reduce_add.0 vectorize(i1,4)")
    code, source, _ = run(capsys, "compile", module, "-o", "-", "--emit", "c", "--schedule", str(file))
    assert code == 0 and "hloc_s32x4" in source and "hloc_s32x8" not in source


def test_explain_has_json(capsys, module):
    code, text, _ = run(capsys, "explain", module, "--schedule", "--json")
    rows, loop = json.loads(text)["schedules"]
    assert rows["loop"] == "k0_reduce_add.r0" and rows["iterations"] == 9
    assert code == 0 and loop["loop"] == "k0_reduce_add.0" and loop["iterations"] == 77
    assert loop["candidates"][0]["schedule"] == loop["schedule"] and loop["candidates"][0]["cycles"] > 0


def test_explain_shows_the_loops_of_a_device(capsys, tmp_path):
    path = tmp_path / "divided.hlo"
    path.write_text("""a { p = s32[] parameter(0) q = s32[] parameter(1) ROOT s = s32[] add(p, q) }
      ENTRY e { x = s32[9,90] parameter(0), sharding={devices=[1,2]<=[2]} z = s32[] constant(0)
                ROOT y = s32[9] reduce(x, z), dimensions={1}, to_apply=a }""")
    for wanted, iterations in ((), 90), (("--mesh", "axis0=2"), 45):
        assert f": {iterations} iterations" in run(capsys, "explain", str(path), "--schedule", *wanted)[1]


@pytest.mark.parametrize("text, message", [
    ("k0_reduce_add.0 vectorize(i1,7)", "bad.txt:1:1: error: lanes are a power of two: not 7"),
    ("\n  k0_reduce_ad.0 scalar", "bad.txt:2:3: error: no loop k0_reduce_ad.0 with a schedule in this program"),
    ("k0_reduce_add.1 scalar", "did you mean k0_reduce_add.0?"), ("k0_reduce_add.0 turn", "error: not a step: 'turn'"),
    ("hi", "error: not a schedule: write KERNEL.LOOP STEP STEP"),
    ("k0_reduce_add.0 scalar\nk0_reduce_add.0 scalar", "bad.txt:2:1: error: a second schedule of k0_reduce_add.0"),
    ("k0_reduce_add.0 vectorize(i1,99999999999)", "error: not the arguments of a step"),
    ("// nothing", "bad.txt:1:1: error: a file of schedules that has none"),
], ids=str)
def test_wrong_files_are_located(capsys, module, tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_text(text)
    code, _, err = run(capsys, "run", module, "--schedule", "bad.txt")
    assert code == 3 and message in err


def test_what_is_no_text_and_other_targets_are_refused(capsys, module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "fine.txt").write_text("k0_reduce_add.0 scalar")
    assert "is not text in UTF-8" in run(capsys, "run", module, "--schedule", "binary.txt")[2]
    assert "cannot read none.txt" in run(capsys, "run", module, "--schedule", "none.txt")[2]
    assert "for the targets cpu and cuda, not for reference" in run(
        capsys, "run", module, "--target", "reference", "--schedule", "fine.txt")[2]
