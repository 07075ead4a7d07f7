"""The C interface through which devices exchange arrays: saved programs, callers in C, threads that fail or are stopped."""
from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hloc.api import compile_for_devices, load_compiled, optimize, plan
from hloc.cli.main import cli
from hloc.devices import with_device_counts
from hloc.errors import HlocError, RunError, UnsupportedError, UsageError
from hloc.evaluate.simulate import evaluate_devices, run_concurrently, simulated_devices, thread_devices
from hloc.inputs import entry_parameters, random_arrays
from hloc.kernels.plan import Collective, Launch, WhileLoop
from hloc.ops.collectives import named_devices
from hloc.targets import find
from hloc.text import parse_module

SUM = """HloModule sum, replica_count=4
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[300] parameter(0)
  s = f32[300] all-reduce(x), replica_groups={}, to_apply=add
  i = u32[] replica-id()
  ROOT t = (f32[300], u32[]) tuple(s, i)
}
"""
CALLER = """
#include <pthread.h>
#include <stdio.h>
#include "hloc_threads.h"
#include "sum.h"

static hloc_devices *all;
static float x[4][300], s[4][300];
static unsigned number[4];
static int errors[4];

static void *run(void *argument) {
  const int d = (int)(long)argument;
  const void *inputs[] = {x[d]};
  void *results[] = {s[d], &number[d]};
  for (int times = 0; times < 30; times++) errors[d] |= sum_run(hloc_devices_of(all, d), inputs, results);
  return NULL;
}

int main(void) {
  pthread_t threads[4];
  all = hloc_devices_new(4);
  for (int d = 0; d < 4; d++)
    for (int i = 0; i < 300; i++) x[d][i] = (float)(1000 * d + i);
  for (long d = 0; d < 4; d++) pthread_create(&threads[d], NULL, run, (void *)d);
  for (int d = 0; d < 4; d++) pthread_join(threads[d], NULL);
  for (int d = 0; d < 4; d++) printf("%d %g %g %u\\n", errors[d], s[d][0], s[d][299], number[d]);
  hloc_devices_free(all);
  hloc_devices *two = hloc_devices_new(2);
  puts(sum_error(sum_run(hloc_devices_of(two, 0), NULL, NULL)));
  hloc_devices_free(two);
  sum_stop();
  return 0;
}
"""


MPI_CALLER = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "hloc_mpi.h"
#include "forms.h"

/* Writes the results of three runs to results<rank>.bin. */
static float x[4 * 8200], results[7][8 * 8200];

int main(int argc, char **argv) {
  int rank, error = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  hloc_communicator *own = hloc_mpi_new(MPI_COMM_WORLD);
  for (int i = 0; i < 4 * 8200; i++) x[i] = (float)(i % 1000 + 7 * rank);
  const void *inputs[] = {x};
  void *made[] = {results[0], results[1], results[2], results[3], results[4], results[5], results[6]};
  for (int times = 0; times < 3; times++) error |= forms_run(own, inputs, made);
  if (error) puts(own->message(own));
  char name[] = "results?.bin";
  name[7] = (char)('0' + rank);
  FILE *file = fopen(name, "wb");
  fwrite(results, 1, sizeof results, file);
  fclose(file);
  hloc_mpi_free(own);
  MPI_Finalize();
  return error;
}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sum.hlo").write_text(SUM)
    return tmp_path


@pytest.mark.parametrize("ending", ["so", "c"])
def test_callers_in_c_bring_a_communicator_of_threads(folder, ending):
    cli.main(["compile", "sum.hlo", "-o", f"sum.{ending}", "--communicator", "threads"], standalone_mode=False)
    Path("caller.c").write_text(CALLER)
    command = [os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-Werror", *(["-march=native"] if ending == "c" else []), "caller.c",
               "hloc_threads.c", f"./sum.{ending}", "-o", "caller", "-lpthread", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    said = subprocess.run(["./caller"], capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert said[:4] == [f"0 6000 7196 {d}" for d in range(4)]
    assert said[4] == "the communicator is of another version, or for another number of devices"


def test_callers_may_be_written_in_cpp(folder):
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    cli.main(["compile", "sum.hlo", "-o", "sum.so", "--communicator", "threads"], standalone_mode=False)
    Path("one.cpp").write_text('#include "hloc_threads.h"\n#include "sum.h"\n#include <cstring>\n'
                               "int main() { hloc_devices *all = hloc_devices_new(1);\n"
                               "  const int error = sum_run(hloc_devices_of(all, 0), nullptr, nullptr);\n"
                               "  hloc_devices_free(all);\n  return !std::strstr(sum_error(error), \"devices\"); }\n")
    subprocess.run([os.environ.get("CC", "cc"), "-c", "hloc_threads.c", "-o", "threads.o"], check=True, timeout=120)
    done = subprocess.run([compiler, "-Wall", "-Wextra", "-Werror", "one.cpp", "threads.o", "./sum.so", "-o", "one", "-lpthread"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert subprocess.run(["./one"], timeout=60).returncode == 0


def test_a_saved_program_of_several_devices_runs(folder):
    for device in range(4):
        np.save(f"x{device}.npy", np.full(300, 10.0 ** device, np.float32))
    cli.main(["compile", "sum.hlo", "-o", "sum.so"], standalone_mode=False)
    cli.main(["run", "sum.so", "-i", "x{device}.npy", "-o", "r{device}.npz"], standalone_mode=False)
    for device in range(4):
        saved = np.load(f"r{device}.npz")
        assert (saved["out_0"] == 1111).all() and saved["out_1"] == device
    with pytest.raises(UsageError, match="compiled for 4 devices, not for 2"):
        cli.main(["run", "sum.so", "--devices", "2"], standalone_mode=False)
    with pytest.raises(UnsupportedError, match="is for 4 devices, not for 1"):
        _ = load_compiled(Path("sum.so")).backend


def test_counts_and_meshes_of_the_command(folder):
    Path("sum.hlo").write_text(SUM.replace(", replica_count=4", ""))
    cli.main(["compile", "sum.hlo", "-o", "sum.so", "--devices", "2"], standalone_mode=False)
    assert load_compiled(Path("sum.so")).devices == 2
    Path("product.hlo").write_text(
        "HloModule product\n\nENTRY main {\n"
        "  x = f32[8,6] parameter(0), sharding={mesh['data'=2], [{'data'}, {}]}\n"
        "  w = f32[8,4] parameter(1), sharding={mesh['data'=2], [{'data'}, {}]}\n"
        "  ROOT d = f32[6,4] dot(x, w), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n}\n")
    cli.main(["compile", "product.hlo", "-o", "product.so", "--mesh", "data=4"], standalone_mode=False)
    exe = load_compiled(Path("product.so"))
    assert exe.devices == 4 and exe.parameters[0].shape.dimensions == (2, 6)
    x, w = np.random.default_rng(0).standard_normal((2, 8, 6), np.float32)
    devices = thread_devices(4, 1)
    runs = [lambda d=d: exe.on_device(d)(x[2 * d.number:2 * d.number + 2], w[2 * d.number:2 * d.number + 2, :4].copy())
            for d in devices]
    for (result,) in run_concurrently(devices, runs):
        np.testing.assert_allclose(result, x.T @ w[:, :4], rtol=1e-5, atol=1e-5)


NAMED = """HloModule named
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[8] parameter(0)
  t = token[] after-all()
  BODY
}
"""
GROUPS, TRANSFER = "replica_groups={{0,1},{2,3}}", "frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}"
COUNTS = [
    ("ROOT r = f32[8] tanh(x)", 1, 1),
    (f"ROOT r = f32[8] all-reduce(x), {GROUPS}, to_apply=add", 4, 1),
    (f"ROOT r = f32[8] all-reduce(x), {GROUPS}, channel_id=1, to_apply=add", 4, 1),
    (f"ROOT r = f32[8] all-reduce(x), {GROUPS}, channel_id=1, use_global_device_ids=true, to_apply=add", 1, 4),
    ("ROOT r = f32[8] collective-permute(x), source_target_pairs={{0,2},{2,0}}", 3, 1),
    ("ROOT r = f32[8] collective-permute(x), source_target_pairs={{0,2},{2,0}}, channel_id=1", 1, 3),
    (f"ROOT r = (f32[8], u32[], token[]) send(x, t), channel_id=1, {TRANSFER}", 1, 3),
    (f"""y = f32[8] all-reduce(x), {GROUPS}, to_apply=add
  ROOT r = f32[8] all-reduce(y), {GROUPS}, channel_id=1, use_global_device_ids=true, to_apply=add""", 4, 1),
]


@pytest.mark.parametrize("body, replicas, partitions", COUNTS)
def test_devices_are_those_that_collectives_name(body, replicas, partitions):
    module = parse_module(NAMED.replace("BODY", body))
    assert named_devices(module.instructions()) == (replicas, partitions)
    counted = with_device_counts(module, replicas, partitions)
    assert plan(counted, find("cpu")).devices == replicas * partitions


def executables(text: str, count: int):
    module = parse_module(text)
    devices = simulated_devices(module, count)
    return devices, compile_for_devices(module, devices, "cpu")


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


def test_interrupts_end_devices_that_wait(folder):
    """One device computes in Python, the others wait for it in C: Ctrl-C ends the run within a second."""
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
ALL_KINDS = """HloModule m, num_partitions=2
f {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT r = {t}[] {op}(a, b) }}
ENTRY e {{ x = {t}[4,{n}] parameter(0)
  s = {t}[4,{n}] all-reduce(x), channel_id=1, replica_groups={{{{0,1}}}}, use_global_device_ids=true, to_apply=f
  r = {t}[2,{n}] reduce-scatter(x), channel_id=2, replica_groups={{{{0,1}}}}, use_global_device_ids=true, dimensions={{0}}, to_apply=f
  g = {t}[4,{m}] all-gather(x), channel_id=3, replica_groups={{{{0,1}}}}, use_global_device_ids=true, dimensions={{1}}
  t = {t}[4,{n}] all-to-all(x), channel_id=4, replica_groups={{{{1,0}}}}, dimensions={{1}}
  p = {t}[4,{n}] collective-permute(x), channel_id=5, source_target_pairs={{{{0,1}}}}
  b = {t}[4,{n}] collective-broadcast(x), channel_id=6, replica_groups={{{{1,0}}}}
  ROOT o = ({t}[4,{n}], {t}[2,{n}], {t}[4,{m}], {t}[4,{n}], {t}[4,{n}], {t}[4,{n}]) tuple(s, r, g, t, p, b) }}
"""


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


RING = """HloModule m, num_partitions=3
ENTRY e { x = f32[4] parameter(0)  start = token[] after-all()
  s = (f32[4], u32[], token[]) send(x, start), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2},{2,0}}}
  sd = token[] send-done(s), channel_id=1
  r = (f32[4], u32[], token[]) recv(sd), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2},{2,0}}}
  rd = (f32[4], token[]) recv-done(r), channel_id=1
  y = f32[4] get-tuple-element(rd), index=0
  sent = (f32[4], u32[], token[]) send(y, sd), channel_id=2, frontend_attributes={_xla_send_recv_source_target_pairs="{{0,2},{2,1}}"}
  sd2 = token[] send-done(sent), channel_id=2
  r2 = (f32[4], u32[], token[]) recv(sd2), channel_id=2, frontend_attributes={_xla_send_recv_source_target_pairs="{{0,2},{2,1}}"}
  rd2 = (f32[4], token[]) recv-done(r2), channel_id=2
  ROOT z = f32[4] get-tuple-element(rd2), index=0 }
"""
TUPLES = """HloModule m, num_partitions=3
ENTRY e { x = f32[4] parameter(0)  n = s32[2] parameter(1)  start = token[] after-all()  both = (f32[4], s32[2]) tuple(x, n)
  s = ((f32[4], s32[2]), u32[], token[]) send(both, start), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}
  sd = token[] send-done(s), channel_id=1
  r = ((f32[4], s32[2]), u32[], token[]) recv(sd), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}
  rd = ((f32[4], s32[2]), token[]) recv-done(r), channel_id=1
  d = (f32[4], s32[2]) get-tuple-element(rd), index=0  y = f32[4] get-tuple-element(d), index=0  m = s32[2] get-tuple-element(d), index=1
  own = (f32[4], s32[2]) get-tuple-element(s), index=0  k = s32[2] get-tuple-element(own), index=1  c = u32[] get-tuple-element(r), index=1
  ROOT t = (f32[4], s32[2], s32[2], u32[]) tuple(y, m, k, c) }
"""
SLICES = """HloModule m, num_partitions=3
ENTRY e { x = f32[4,3] parameter(0)  y = f32[4,3] parameter(1)  i = s32[] parameter(2)
  zero = s32[] constant(0)  two = s32[] constant(2)
  a = (s32[], s32[]) tuple(i, zero)  b = (s32[], s32[]) tuple(two, zero)
  from = ((s32[], s32[]), (s32[], s32[])) tuple(a, b)  to = ((s32[], s32[]), (s32[], s32[])) tuple(b, a)
  ROOT r = f32[4,3] collective-permute(x, y, from, to), channel_id=1, source_target_pairs={{0,1},{1,2},{0,2}}, slice_sizes={{1,3},{2,2}} }
"""
SIZES = """HloModule m, replica_count=3
f { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] subtract(a, b) }
ENTRY e { x = f32[4] parameter(0)  ROOT s = f32[4] all-reduce(x), replica_groups={{2,0},{1}}, to_apply=f }
"""
RAGGED = """HloModule m, replica_count=2
ENTRY e { x = f32[4,2] parameter(0)  y = f32[5,2] parameter(1)
  starts = s64[2] parameter(2)  sizes = s64[2] parameter(3)  places = s64[2] parameter(4)  coming = s64[2] parameter(5)
  ROOT r = f32[5,2] ragged-all-to-all(x, y, starts, sizes, places, coming), replica_groups={{0,1}} }
"""
LOOP = """HloModule m, num_partitions=3
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
c { s = (s32[], f32[N]) parameter(0)  i = s32[] get-tuple-element(s), index=0  n = s32[] constant(40)  ROOT l = pred[] compare(i, n), direction=LT }
b { s = (s32[], f32[N]) parameter(0)  i = s32[] get-tuple-element(s), index=0  x = f32[N] get-tuple-element(s), index=1
  one = s32[] constant(1)  j = s32[] add(i, one)
  p = f32[N] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,2},{2,0}}
  h = f32[] constant(0.25)  q = f32[N] broadcast(h), dimensions={}
  t = f32[N] all-reduce(p), channel_id=2, replica_groups={{0,1,2}}, use_global_device_ids=true, to_apply=add
  m = f32[N] multiply(t, q)  y = f32[N] add(m, p)  z = f32[N] multiply(y, q)  ROOT o = (s32[], f32[N]) tuple(j, z) }
ENTRY e { x = f32[N] parameter(0)  z = s32[] constant(0)  s = (s32[], f32[N]) tuple(z, x)
  w = (s32[], f32[N]) while(s), condition=c, body=b  ROOT r = f32[N] get-tuple-element(w), index=1 }
"""
ROWS = [[np.int64([0, 1]), np.int64([1, 3]), np.int64([0, 2]), np.int64([1, 2])],
        [np.int64([2, 0]), np.int64([2, 1]), np.int64([1, 0]), np.int64([3, 1])]]
FORMS = {"ring": (RING, lambda d: [np.arange(4, dtype=np.float32) + 10 * d]),
         "tuples": (TUPLES, lambda d: [np.arange(4, dtype=np.float32) + 10 * d, np.int32([d, d + 5])]),
         "slices": (SLICES, lambda d: [np.arange(12, dtype=np.float32).reshape(4, 3) + 100 * d,
                                       -np.ones((4, 3), np.float32), np.int32(d)]),
         "sizes": (SIZES, lambda d: [np.arange(4, dtype=np.float32) * (d + 1)]),
         "ragged": (RAGGED, lambda d: [np.arange(8, dtype=np.float32).reshape(4, 2) + 100 * d,
                                       np.full((5, 2), -1, np.float32), *ROWS[d]]),
         "loop": (LOOP.replace("[N]", "[37]"), lambda d: [np.linspace(d, d + 1, 37, dtype=np.float32)]),
         "large": (LOOP.replace("[N]", "[40007]"), lambda d: [np.linspace(d, d + 1, 40007, dtype=np.float32)])}


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


def mpi_tools() -> tuple[str, str]:
    """mpicc and mpirun."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = [shutil.which(name, path=places) for name in ("mpicc", "mpirun")]
    if None in found:
        pytest.skip("mpicc and mpirun are not installed")
    return found[0], found[1]


@pytest.mark.parametrize("n", [6, 8_200])
def test_callers_in_c_bring_a_communicator_of_mpi(folder, n):
    """Each collective, small and large, in two processes, gives what it gives in threads."""
    compiler, launcher = mpi_tools()
    text = ALL_KINDS.format(t="f32", op="add", n=n, m=2 * n).replace(
        "  ROOT o = (", "  k = token[] after-all()\n  d = (f32[4,N], u32[], token[]) send(x, k), channel_id=9, "
        "frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,0}}}\n  dd = token[] send-done(d), channel_id=9\n"
        "  e = (f32[4,N], u32[], token[]) recv(dd), channel_id=9, "
        "frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,0}}}\n"
        "  ee = (f32[4,N], token[]) recv-done(e), channel_id=9\n  v = f32[4,N] get-tuple-element(ee), index=0\n"
        "  ROOT o = (f32[4,N], ").replace("tuple(s,", "tuple(v, s,").replace("[4,N]", f"[4,{n}]")
    Path("forms.hlo").write_text(text)
    cli.main(["compile", "forms.hlo", "-o", "forms.so", "--communicator", "mpi"], standalone_mode=False)
    Path("caller.c").write_text(MPI_CALLER)
    done = subprocess.run([compiler, "-O1", "-Wall", "-Wextra", "caller.c", "hloc_mpi.c", "./forms.so", "-o", "caller", "-lm"],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    allowed = {f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}
    done = subprocess.run([launcher, "-n", "2", "./caller"], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **allowed})
    assert done.returncode == 0, done.stdout + done.stderr
    devices, exes = executables(text, 2)
    inputs = [((np.arange(4 * n) % 1000) + 7 * d).astype(np.float32).reshape(4, n) for d in range(2)]
    for device, results in enumerate(run_concurrently(devices, [lambda e=e, i=i: e(i) for e, i in zip(exes, inputs)])):
        saved = np.fromfile(f"results{device}.bin", np.float32).reshape(7, -1)
        for row, result in zip(saved, results, strict=True):
            assert row[:result.size].tobytes() == result.tobytes()


MPI_FORMS = """
import sys
import numpy as np
from hloc.api import compile_for_devices
from hloc.evaluate.mpi import mpi_device
from hloc.text import parse_module

for name in sys.argv[1:]:
    module = parse_module(open(f"{name}.hlo").read())
    device = mpi_device(module)
    exe, = compile_for_devices(module, [device], "cpu")
    saved = np.load(f"{name}.{device.number}.npz")
    inputs = [saved[f"in{k}"] for k in range(len(exe.parameters))]
    for _ in range(3):
        for k, result in enumerate(exe(*inputs)):
            assert result.tobytes() == saved[f"out{k}"].tobytes(), (name, device.number, k)
print("the same bits")
"""


@pytest.mark.parametrize("count", [2, 3])
def test_processes_of_mpi_give_the_same_bits_as_threads(folder, count):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    _, launcher = mpi_tools()
    kinds = {f"kinds{n}": (ALL_KINDS.format(t="f32", op="add", n=n, m=2 * n), None) for n in (6, 8_200)}
    forms = {"ragged": FORMS["ragged"], **kinds} if count == 2 else {n: f for n, f in FORMS.items() if n != "ragged"}
    for name, (text, inputs) in forms.items():
        Path(f"{name}.hlo").write_text(text)
        devices, exes = executables(text, count)
        arrays = [inputs(d) if inputs else random_arrays(exes[0].parameters, d) for d in range(count)]
        for d, results in enumerate(run_concurrently(devices, [lambda e=e, a=a: e(*a) for e, a in zip(exes, arrays)])):
            np.savez(f"{name}.{d}.npz", **{f"in{k}": a for k, a in enumerate(arrays[d])},
                     **{f"out{k}": r for k, r in enumerate(results)})
    Path("forms.py").write_text(MPI_FORMS)
    allowed = {f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}
    done = subprocess.run([launcher, "--oversubscribe", "-n", str(count), sys.executable, "forms.py", *forms],
                          capture_output=True, text=True, timeout=200, env={**os.environ, **allowed})
    assert done.returncode == 0 and done.stdout.count("the same bits") == count, done.stderr


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


# -- commands ----------------------------------------------------------------------------------------------------------

STEP = """HloModule step, num_partitions=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY e {
  x = f32[64,64] parameter(0)
  l = f32[64,64] log(x)
  d = f32[64,64] dot(l, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = f32[64,64] all-reduce(d), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
}
"""


@pytest.fixture
def step(folder):
    Path("step.hlo").write_text(STEP)
    for device in range(2):
        np.save(f"x{device}.npy", np.random.default_rng(device).uniform(0.5, 1, (64, 64)).astype(np.float32))
    return folder


def said_by(capsys, *arguments: str, code: int = 0) -> str:
    try:
        cli.main(list(arguments), standalone_mode=False)
    except SystemExit as ended:
        assert ended.code == code
    return capsys.readouterr().out


def test_repeated_and_profiled_runs_of_devices(step, capsys):
    told = json.loads(said_by(capsys, "run", "step.hlo", "-t", "cpu", "-i", "x{device}.npy", "--repeat", "4", "--json"))
    assert [len(one["seconds"]) for one in told] == [4, 4] and [one["device"] for one in told] == [0, 1]
    told = json.loads(said_by(capsys, "run", "step.hlo", "-t", "cpu", "-i", "x{device}.npy", "--profile", "--json"))
    for one in told:
        kernels = {row["kernel"] for row in one["profile"]}
        assert {"all-reduce start", "all-reduce done"} <= kernels and len(kernels) > 2
    shown = said_by(capsys, "run", "step.hlo", "-t", "cpu", "-i", "x{device}.npy", "--profile")
    assert "device 1 of 2" in shown and "all-reduce done" in shown


def test_check_and_bisect_of_devices(step, capsys, monkeypatch):
    assert "device 1: result.0" in said_by(capsys, "check", "step.hlo", "-t", "cpu", "-i", "x{device}.npy")
    assert "none changes the results; the kernels agree, too" in said_by(
        capsys, "bisect", "step.hlo", "-t", "cpu", "-i", "x{device}.npy")
    from hloc.passes import pipelines

    def dce(module, context):
        """Wrong on purpose: a log becomes a square root."""
        for instruction in module.entry.instructions:
            if instruction.opcode == "log":
                instruction.opcode = "sqrt"
        return True
    monkeypatch.setattr(pipelines, "CPU", (*pipelines.CPU[:2], dce, *pipelines.CPU[2:]))
    monkeypatch.setitem(pipelines.PIPELINES, "cpu", pipelines.TARGET_INDEPENDENT + pipelines.CPU)
    shown = said_by(capsys, "bisect", "step.hlo", "-t", "cpu", "-i", "x{device}.npy", code=1)
    assert "pass dce" in shown and "device 0: result.0" in shown and "device 1: result.0" in shown


def test_nans_of_devices(step, capsys):
    """Device 1 makes them, device 0 gets them."""
    np.save("x1.npy", np.full((64, 64), -1, np.float32))
    told = json.loads(said_by(capsys, "nans", "step.hlo", "-i", "x{device}.npy", "--json", code=1))
    assert [one["results"] for one in told] == [["result.0"]] * 2
    assert [origin["instruction"] for origin in told[1]["origins"]] == ["l"]
    assert "l" not in [origin["instruction"] for origin in told[0]["origins"]]


def test_memory_explain_and_bench_of_devices(step, capsys):
    parts = json.loads(said_by(capsys, "memory", "step.hlo", "--json"))
    assert parts["parameters"] == parts["results"] == 64 * 64 * 4
    assert "kernels" in said_by(capsys, "explain", "step.hlo")
    told = json.loads(said_by(capsys, "bench", "step.hlo", "step.hlo", "-t", "cpu", "--rounds", "3", "--json"))
    assert len(json.dumps(told)) > 100
    Path("whole.hlo").write_text("HloModule whole\n\nENTRY main {\n"
                                 "  x = f32[64,8] parameter(0), sharding={mesh['a'=2], [{'a'}, {}]}\n"
                                 "  ROOT r = f32[64,8] tanh(x), sharding={mesh['a'=2], [{'a'}, {}]}\n}\n")
    parts = json.loads(said_by(capsys, "memory", "whole.hlo", "--mesh", "a=4", "--json"))
    assert parts["parameters"] == 16 * 8 * 4
    with pytest.raises(UsageError, match="programs of one device"):
        said_by(capsys, "bench", "whole.hlo", "--devices", "2", "--against", "xla")


SUMS = """HloModule sums
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY main {
  x = f32[300,500] parameter(0), sharding={devices=[1,2]<=[2]}
  z = f32[] constant(0)
  ROOT s = f32[300] reduce(x, z), dimensions={1}, to_apply=add
}
"""


def test_schedules_are_those_of_each_device(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sums.hlo").write_text(SUMS)
    assert "250 iterations" in said_by(capsys, "explain", "sums.hlo", "--schedule", "--devices", "2")
    Path("named.hlo").write_text(NAMED.replace("BODY", COUNTS[1][0]))
    assert "no loop" in said_by(capsys, "explain", "named.hlo", "--schedule")
    parts = json.loads(said_by(capsys, "memory", "named.hlo", "--json"))
    assert parts["parameters"] == parts["results"] == 8 * 4
