"""Collectives of threads: every kind of every type, devices that fail, are stopped, or do not come."""
from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from collective_forms import ALL_KINDS, FORMS, RAGGED, RING, ROWS, SIZES, SLICES, SUM, executables

from hloc.api import compile_for_devices, optimize, plan
from hloc.errors import HlocError, RunError
from hloc.evaluate.simulate import evaluate_devices, run_concurrently, simulated_devices
from hloc.inputs import entry_parameters, random_arrays
from hloc.kernels.plan import Collective, Launch, WhileLoop
from hloc.targets import find
from hloc.text import parse_module

BRANCHES = """HloModule m, replica_count=2
add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }}
max {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] maximum(a, b) }}
yes {{ x = f32[{n}] parameter(0)  ROOT s = f32[{n}] all-reduce(x), replica_groups={{}}, to_apply=add }}
no {{ x = f32[{n}] parameter(0)  ROOT n = f32[{n}] {other} }}
ENTRY e {{ p = pred[] parameter(0)  x = f32[{n}] parameter(1)
  ROOT c = f32[{n}] conditional(p, x, x), true_computation=yes, false_computation=no }}
"""


@pytest.mark.parametrize("n", [3, 100_000])
@pytest.mark.parametrize("other", ["negate(x)", "all-reduce(x), replica_groups={}, to_apply=max"])
def test_devices_that_do_not_come_are_named_and_the_next_run_is_right(n, other):
    """A device that has ended, and one that waits elsewhere."""
    devices, exes = executables(BRANCHES.format(n=n, other=other), 2)
    x = np.ones(n, np.float32)
    for _ in range(2):
        with pytest.raises(RunError, match=r"all-reduce %\w waits for the devices \[\d\], which do not come"):
            run_concurrently(devices, [lambda e=e, p=p: e(np.bool_(p), x) for p, e in enumerate(exes)])
        for result in run_concurrently(devices, [lambda e=e: e(np.bool_(1), x) for e in exes]):
            assert (result[0] == 2).all()


def test_results_larger_than_the_caches_are_whole():
    """4 x 4 MiB and a rest: shares whose ends are no whole cache lines."""
    n = (1 << 20) + 3
    text = SUM.replace("300", str(n))
    devices, exes = executables(text, 4)
    arrays = [np.random.default_rng(d).integers(-99, 99, n).astype(np.float32) for d in range(4)]
    wanted = sum(arrays)
    for _ in range(2):
        for result, _ in run_concurrently(devices, [lambda e=e, a=a: e(a) for e, a in zip(exes, arrays)]):
            assert (result == wanted).all()


def test_the_cause_comes_before_its_consequences():
    """A custom call that raises on one device, while another waits for it."""
    text = SUM.replace("replica_count=4", "replica_count=2").replace(
        "s = f32[300] all-reduce(x)", 'w = f32[300] custom-call(x), custom_call_target="f"\n  s = f32[300] all-reduce(w)')
    from hloc.api import Options
    module = parse_module(text)
    devices = simulated_devices(module, 2)

    def f(x):
        if x[0]:
            raise ValueError("it broke")
        return x
    exes = compile_for_devices(module, devices, "cpu", options=Options(custom_calls={"f": f}))
    with pytest.raises(ValueError, match="it broke"):
        run_concurrently(devices, [lambda e=e, d=d: e(np.full(300, d, np.float32)) for d, e in enumerate(exes)])


def test_interrupts_end_devices_that_wait(tmp_path, monkeypatch):
    """One device computes in Python, the others wait for it in C: Ctrl-C ends the run within a second."""
    monkeypatch.chdir(tmp_path)
    Path("slow.hlo").write_text(SUM.replace("s = f32[300] all-reduce(x)", 'w = f32[300] custom-call(x), '
                                            'custom_call_target="slow"\n  s = f32[300] all-reduce(w)'))
    Path("slow.py").write_text("import sys, time\n\n\ndef slow(x):\n    if x[0] == 3:\n"
                               "        print('waits', file=sys.stderr, flush=True)\n        time.sleep(60)\n    return x\n")
    for device in range(4):
        np.save(f"x{device}.npy", np.full(300, device, np.float32))
    process = subprocess.Popen([sys.executable, "-m", "hloc.cli.main", "run", "slow.hlo", "-t", "cpu", "-i",
                                "x{device}.npy", "--custom-call", "slow=./slow.py:slow"], stderr=subprocess.PIPE, text=True)
    assert "waits" in process.stderr.readline()
    time.sleep(0.2)
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode and "Traceback" not in said, said
    assert time.monotonic() - start < 5                       # a busy machine: a second and what Python takes to end


def test_different_programs_are_noticed():
    """Devices that bring programs of two kinds, in one process."""
    devices, first = executables(SUM, 4)
    other = compile_for_devices(parse_module(SUM.replace("add(a, b)", "maximum(a, b)")), devices, "cpu")
    x = np.ones(300, np.float32)
    with pytest.raises(HlocError, match="the devices have different programs"):
        run_concurrently(devices, [lambda e=e: e(x) for e in (*first[:2], *other[2:])])


TYPES = ["pred", "s4", "u4", "s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "bf16", "f16", "f32", "f64", "c64",
         "c128", "f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz"]


@pytest.mark.parametrize("n", [6, 8_200])
@pytest.mark.parametrize("element", TYPES)
def test_every_collective_of_every_type(element, n):
    """Small arrays, which are copied at once, and large ones, which devices read where they are."""
    op = "and" if element in ("pred", "u8") else "multiply" if element in ("c64", "s4") else "add"
    text = ALL_KINDS.format(t=element, op=op, n=n, m=2 * n)
    module = parse_module(text)
    inputs = [random_arrays(entry_parameters(module), seed) for seed in range(2)]
    devices, exes = executables(text, 2)
    got = run_concurrently(devices, [lambda e=e, i=i: e(*i) for e, i in zip(exes, inputs)])
    for results, wanted in zip(got, evaluate_devices(module, inputs)):
        for result, want in zip(results, wanted, strict=True):
            if element in ("s4", "u4"):                          # what else is in their bytes has no meaning
                result, want = result.astype(np.int8), want.astype(np.int8)
            assert result.tobytes() == want.tobytes()


@pytest.mark.parametrize("form", FORMS)
def test_forms_give_what_the_evaluator_gives(form):
    text, inputs = FORMS[form]
    count = 2 if form == "ragged" else 3
    arrays = [inputs(d) for d in range(count)]
    wanted = evaluate_devices(parse_module(text), arrays)
    devices, exes = executables(text, count)
    for _ in range(3):
        got = run_concurrently(devices, [lambda e=e, a=a: e(*a) for e, a in zip(exes, arrays)])
        for results, want in zip(got, wanted):
            for result, wanted_one in zip(results, want, strict=True):
                np.testing.assert_allclose(result, wanted_one, rtol=1e-6, atol=1e-6)


def test_meanings_of_the_forms():
    """By hand: the evaluator is the judge of the rest."""
    ring = evaluate_devices(parse_module(RING), [FORMS["ring"][1](d) for d in range(3)])
    assert [r[0][0] for r in ring] == [0, 10, 20]             # 0 gets none; 1 what 2 got from 1; 2 what 0 got from 2
    slices = evaluate_devices(parse_module(SLICES), [FORMS["slices"][1](d) for d in range(3)])
    assert (slices[0][0] == -1).all()
    assert slices[1][0].tolist() == [[-1] * 3, [-1] * 3, [0, 1, 2], [-1] * 3]
    assert slices[2][0].tolist() == [[-1] * 3, [-1] * 3, [6, 7, 105], [9, 10, -1]]
    sizes = evaluate_devices(parse_module(SIZES), [FORMS["sizes"][1](d) for d in range(3)])
    assert [s[0].tolist() for s in sizes] == [[0, 2, 4, 6], [0, 2, 4, 6], [0, 2, 4, 6]]


def test_rows_that_are_not_there_are_refused():
    rows = [ROWS[0], [ROWS[1][0], np.int64([2, 9]), *ROWS[1][2:]]]
    arrays = [[np.zeros((4, 2), np.float32), np.zeros((5, 2), np.float32), *rows[d]] for d in range(2)]
    devices, exes = executables(RAGGED, 2)
    with pytest.raises(RunError, match="ragged-all-to-all %r: 9 rows from row 0 of 4, to row 0 of 5, are not there"):
        run_concurrently(devices, [lambda e=e, a=a: e(*a) for e, a in zip(exes, arrays)])


OVERLAPPED = """HloModule m, replica_count=2
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
c { s = (s32[], f32[40,40]) parameter(0)  i = s32[] get-tuple-element(s), index=0  n = s32[] constant(5)  ROOT l = pred[] compare(i, n), direction=LT }
b { s = (s32[], f32[40,40]) parameter(0)  i = s32[] get-tuple-element(s), index=0  x = f32[40,40] get-tuple-element(s), index=1
  one = s32[] constant(1)  j = s32[] add(i, one)
  r = f32[40,40] all-reduce(x), replica_groups={}, to_apply=add
  d = f32[40,40] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f32[40,40] dot(d, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  m = f32[40,40] add(e, r)  t = f32[40,40] tanh(m)
  ROOT o = (s32[], f32[40,40]) tuple(j, t) }
ENTRY e { x = f32[40,40] parameter(0)  y = f32[40,40] parameter(1)  z = s32[] constant(0)
  s = f32[40,40] all-reduce-start(x), replica_groups={}, to_apply=add
  d = f32[40,40] dot(y, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  f = f32[40,40] all-reduce-done(s)
  g = f32[40,40] dot(d, f), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  w = (s32[], f32[40,40]) tuple(z, g)  l = (s32[], f32[40,40]) while(w), condition=c, body=b
  ROOT v = f32[40,40] get-tuple-element(l), index=1 }
"""


def test_devices_compute_between_the_start_and_the_end_of_a_collective():
    module = parse_module(OVERLAPPED)
    target = find("cpu")
    program = plan(optimize(module, target), target)
    loop = next(s for s in program.steps if isinstance(s, WhileLoop))
    for steps in (program.steps, loop.body):
        places = [n for n, s in enumerate(steps) if isinstance(s, Collective)]
        assert [steps[n].is_done for n in places] == [False, True]
        assert any(isinstance(s, Launch) for s in steps[places[0] + 1:places[1]]), steps
    module = parse_module(OVERLAPPED)
    arrays = [list(np.random.default_rng(d).standard_normal((2, 40, 40)).astype(np.float32) / 40) for d in range(2)]
    devices, exes = executables(OVERLAPPED, 2)
    wanted = evaluate_devices(module, arrays)
    for _ in range(5):
        got = run_concurrently(devices, [lambda e=e, a=a: e(*a) for e, a in zip(exes, arrays)])
        for results, want in zip(got, wanted):
            np.testing.assert_allclose(results[0], want[0], rtol=1e-4, atol=1e-5)
