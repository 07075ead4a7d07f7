"""Saved programs of several devices, and callers in C that bring a communicator, of threads or of MPI."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from collective_forms import ALL_KINDS, FORMS, SUM, executables

from hloc.api import load_compiled
from hloc.cli.main import cli
from hloc.errors import UnsupportedError, UsageError
from hloc.evaluate.simulate import run_concurrently, thread_devices
from hloc.inputs import random_arrays

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
