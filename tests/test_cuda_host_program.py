"""`hloc compile -o m.cubin --host c`: a C program over the driver API, on the emulated driver."""
from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cuda_emulation import driver, with_pycuda

import hloc
from hloc.errors import RunError, UnsupportedError, UsageError
from hloc.executable import HEADER_MARK
from hloc.targets.cuda.tiles.source import LIBRARY

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed"),
              pytest.mark.skipif(any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/dxg")),
                                 reason="there is a real driver here")]
NOTHING_LEFT = "memory 0 host 0 modules 0 streams 0 graphs 0 contexts 0"
# A product, constants, a counted loop, one of unknown length, a branch of three by a number and one by a bool, a copy.
MODULE = """HloModule steps
below { s = (s32[], f32[8,8]) parameter(0) i = s32[] get-tuple-element(s), index=0 x = f32[8,8] get-tuple-element(s), index=1
  n = s32[] constant(3) ROOT r = pred[] compare(i, n), direction=LT }
next { s = (s32[], f32[8,8]) parameter(0) i = s32[] get-tuple-element(s), index=0 x = f32[8,8] get-tuple-element(s), index=1
  one = s32[] constant(1) j = s32[] add(i, one) y = f32[8,8] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[8,8] tanh(y) ROOT r = (s32[], f32[8,8]) tuple(j, z) }
small { s = (f32[], f32[8,8]) parameter(0) v = f32[] get-tuple-element(s), index=0 x = f32[8,8] get-tuple-element(s), index=1
  n = f32[] constant(50) ROOT r = pred[] compare(v, n), direction=LT }
grow { s = (f32[], f32[8,8]) parameter(0) v = f32[] get-tuple-element(s), index=0 x = f32[8,8] get-tuple-element(s), index=1
  two = f32[] constant(2) w = f32[] multiply(v, two) b = f32[8,8] broadcast(w), dimensions={} y = f32[8,8] add(x, b)
  ROOT r = (f32[], f32[8,8]) tuple(w, y) }
negated { x = f32[8,8] parameter(0) ROOT r = f32[8,8] negate(x) }
cosine { x = f32[8,8] parameter(0) ROOT r = f32[8,8] cosine(x) }
turned { x = f32[8,8] parameter(0) ROOT r = f32[8,8] transpose(x), dimensions={1,0} }
ENTRY e {
  x = f32[8,8] parameter(0)
  which = s32[] parameter(1)
  is = pred[] parameter(2)
  start = f32[] parameter(3)
  zero = s32[] constant(0)
  ramp = f32[8] constant({1, 2, 3, 4, 5, 6, 7, 8})
  ramps = f32[8,8] broadcast(ramp), dimensions={1}
  a = (s32[], f32[8,8]) tuple(zero, x)
  b = (s32[], f32[8,8]) while(a), condition=below, body=next
  c = f32[8,8] get-tuple-element(b), index=1
  d = (f32[], f32[8,8]) tuple(start, c)
  e = (f32[], f32[8,8]) while(d), condition=small, body=grow
  f = f32[8,8] get-tuple-element(e), index=1
  g = f32[8,8] conditional(which, f, f, f), branch_computations={negated, cosine, turned}
  h = f32[8,8] conditional(is, g, g), true_computation=cosine, false_computation=negated
  k = f32[8,8] add(h, ramps)
  ROOT r = (f32[8,8], f32[8,8]) tuple(k, x)
}
"""
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "model.h"
static void file(const char *name, const char *mode, void *data, size_t bytes) {
  FILE *f = fopen(name, mode);
  if (*mode == 'r' ? fread(data, 1, bytes, f) != bytes : fwrite(data, 1, bytes, f) != bytes) exit(9);
  fclose(f);
}
int main(int count, char **path) {
  static float x[64], start, k[64], y[64];
  int which;
  unsigned char is;
  file("x", "rb", x, sizeof x), file("which", "rb", &which, 4), file("is", "rb", &is, 1), file("start", "rb", &start, 4);
  int error = model_start(path[1]);
  for (int i = 0; !error && i < 2; i++)
    error = model_run((const void *const[]){x, &which, &is, &start}, (void *const[]){k, y});
  if (error) return fprintf(stderr, "%d: %s\\n", error, model_error(error)), model_stop(), 1;
  model_stop();
  file("k", "wb", k, sizeof k), file("y", "wb", y, sizeof y);
  return 0;
}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The driver, the program and what runs it."""
    folder = tmp_path_factory.mktemp("host")
    with_pycuda.driver_library(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hloc.targets.cuda.kernel_images.images_of", driver.images_of)
        patch.setattr("hloc.targets.cuda.compiler.compiler_version", lambda: with_pycuda.COMPILER)
        hloc.compile(MODULE, "h200", run=False).save(folder / "model.cubin", host="c")
    (folder / "main.c").write_text(MAIN)
    for compiler, *more in (("gcc", "-std=c11"), ("gcc",)):
        subprocess.run([compiler, *more, "-O1", "-Wall", "-Werror", "-D_GNU_SOURCE", "main.c", "model.c", "-ldl",
                        "-lpthread", "-o", "main"], cwd=folder, check=True, timeout=100)
    for name, value in zip(("x", "which", "is", "start"), arguments(0, True)):
        value.tofile(folder / name)
    return folder


def arguments(which: int, is_true: bool) -> list[np.ndarray]:
    x = np.random.default_rng(3).standard_normal((8, 8), np.float32)
    return [x, np.array(which, np.int32), np.array(is_true), np.float32([0.7])[0].reshape(())]


def run(folder: Path, path: str = "model.cubin", **settings: str) -> tuple[int, str, str]:
    """Exit code, stderr, and what is left on the device."""
    report = folder / "report"
    report.unlink(missing_ok=True)
    done = subprocess.run(["./main", path], cwd=folder, capture_output=True, text=True, timeout=60, env={
        **os.environ, "LD_LIBRARY_PATH": str(folder), "EMULATED_REPORT": str(report), **settings})
    return done.returncode, done.stderr, report.read_text().strip() if report.exists() else ""


@pytest.mark.parametrize("which, is_true", [(0, True), (1, False), (2, True), (7, False), (-1, True)])
def test_it_gives_what_the_evaluator_gives(folder, which, is_true):
    given = arguments(which, is_true)
    for name, value in zip(("x", "which", "is", "start"), given):
        value.tofile(folder / name)
    assert run(folder) == (0, "", NOTHING_LEFT)
    for name, right in zip(("k", "y"), hloc.compile(MODULE, "reference")(*given)):
        np.testing.assert_allclose(np.fromfile(folder / name, np.float32).reshape(8, 8), right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings, said, left", [
    ({"EMULATED_FAIL": "cuInit=100"}, "2: cuInit failed: no CUDA-capable device is detected (error 100)", NOTHING_LEFT),
    ({"EMULATED_CAPABILITY": "80"}, "2: compiled for sm_90a; the emulation is sm_80", NOTHING_LEFT),
    ({"EMULATED_CAPABILITY": "91"}, "2: compiled for sm_90a; the emulation is sm_91", NOTHING_LEFT),
    ({"EMULATED_MEMORY": "100"}, "1: cuMemAlloc_v2 failed: out of memory", NOTHING_LEFT),
    ({"EMULATED_FAIL": "cuModuleLoadDataEx=200"}, "4: cuModuleLoadDataEx failed: device kernel image is", NOTHING_LEFT),
    ({"EMULATED_FAIL": "cuLaunchKernel=701@2"}, "4: kernel k", NOTHING_LEFT),
    ({"EMULATED_FAIL": "cuLaunchKernel=719@2"}, "4: kernel k", ""),
    ({"EMULATED_FAIL": "cuMemcpyDtoHAsync_v2=1@3"}, "4: cuMemcpyDtoHAsync_v2 failed: invalid argument", NOTHING_LEFT),
    ({"LD_LIBRARY_PATH": "/nowhere"}, "2: no NVIDIA driver: libcuda.so.1: cannot open shared object file", "")])
def test_faults(folder, settings, said, left):
    code, printed, found = run(folder, **settings)
    assert code == 1 and printed.startswith(said) and (not left or found == left), printed


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"0", lambda d: d[:-64] + b"0" * 64, lambda d: b""])
def test_another_file(folder, change):
    (folder / "other.cubin").write_bytes(change((folder / "model.cubin").read_bytes()))
    code, printed, left = run(folder, "other.cubin")
    assert code == 1 and left == NOTHING_LEFT
    assert printed == "3: other.cubin is not the .cubin that was compiled together with this program\n"
    assert run(folder, "missing.cubin")[1] == "3: cannot read missing.cubin\n"


def test_an_old_driver(folder, tmp_path):
    with_pycuda.driver_library(tmp_path)
    library = (tmp_path / "libcuda.so.1").read_bytes().replace(b"\0cuMemcpyDtoDAsync_v2\0", b"\0cuMemcpyDtoDAsync_v0\0")
    (tmp_path / "libcuda.so.1").write_bytes(library)
    code, printed, _ = run(folder, LD_LIBRARY_PATH=str(tmp_path))
    assert code == 1 and printed == "2: the NVIDIA driver is too old: it has no cuMemcpyDtoDAsync_v2\n"


def test_what_has_no_host_program(tmp_path, monkeypatch):
    monkeypatch.setattr("hloc.targets.cuda.kernel_images.images_of", driver.images_of)
    text = ('ENTRY e {\n x = f32[2] parameter(0) ROOT c = f32[2] custom-call(x), custom_call_target="mine" }')
    exe = hloc.compile(text, "h100", run=False, options=hloc.Options(custom_calls={"mine": lambda x: x}))
    with pytest.raises(UnsupportedError, match="host call 'mine'"):
        exe.save(tmp_path / "m.cubin", host="c")
    for target, ending in (("cpu", "so"), ("h100", "cu")):
        with pytest.raises(UsageError, match="--host c goes with -o FILE.cubin"):
            hloc.compile("ENTRY e {\n x = f32[2] parameter(0) ROOT n = f32[2] negate(x) }", target, run=False).save(
                tmp_path / f"m.{ending}", host="c")
    (tmp_path / "m.c").write_text("mine")
    with pytest.raises(RunError, match="m.c"):
        hloc.compile("ENTRY e {\n x = f32[2] parameter(0) ROOT n = f32[2] negate(x) }", "h100", run=False).save(
            tmp_path / "m.cubin", host="c")
    assert [path.name for path in tmp_path.iterdir()] == ["m.c"] and (tmp_path / "m.c").read_text() == "mine"
    assert HEADER_MARK.startswith("/* Compiled by hloc.")


BOXES = ("ENTRY e {\n a = bf16[72,80] parameter(0)  b = bf16[80,96] parameter(1)\n"
         "  ROOT d = f32[72,96] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }\n")
BOXES_MAIN = """
#include <stdint.h>
#include <stdio.h>
#include "m.h"
int main(void) {
  static uint16_t a[72 * 80], b[80 * 96];
  static float d[72 * 96];
  for (int i = 0; i < 72 * 80; i++) a[i] = i % 3 ? 0x3f80 : 0x4000;          /* 1 and 2 */
  for (int i = 0; i < 80 * 96; i++) b[i] = i / 96 % 2 ? 0x3f80 : 0xbf80;
  int error = m_start("m.cubin");
  if (!error) error = m_run((const void *const[]){a, b}, (void *const[]){d});
  for (int i = 0; !error && i < 72; i++)
    for (int j = 0; j < 96; j++) {
      float sum = 0;
      for (int k = 0; k < 80; k++) sum += ((i * 80 + k) % 3 ? 1 : 2) * (k % 2 ? 1 : -1);
      if (d[i * 96 + j] != sum) return 2;
    }
  return fprintf(stderr, "%s\\n", m_error(error)), m_stop(), error;
}
"""


def tuned(tmp_path: Path, text: str, variant: str) -> hloc.Executable:
    """A matmul by an algorithm that a tuning file chose."""
    from hloc import api
    from hloc.targets.cuda.execution import tuning
    from hloc.targets.cuda.gpus import GPUS
    from hloc.targets.cuda.target import cuda_target
    target = cuda_target(GPUS["h100"])
    (tile,) = api.plan(api.optimize(api.load(text), target), target).kernels
    measured = {tuning.key_of(tile): tuning.Measured("a matmul", variant, {variant: 1.0})}
    tuning.write(tmp_path / "h100.json", tuning.Tuning({"NVIDIA H100 80GB HBM3, CUDA 13.0": measured}))
    return hloc.compile(text, "h100", run=False, options=hloc.Options(tuning=tmp_path / "h100.json"))


def test_tensor_maps(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("hloc.targets.cuda.kernel_images.images_of", driver.images_of)
    tuned(tmp_path, BOXES, "128x256x64, 4 stages, wgmma, bulk copies").save(tmp_path / "m.cubin", host="c")
    assert "#define HLOC_MAPS 2" in (tmp_path / "m.c").read_text()
    (tmp_path / "main.c").write_text(BOXES_MAIN)
    subprocess.run(["gcc", "-Wall", "-Werror", "main.c", "m.c", "-ldl", "-lpthread", "-o", "main"], cwd=tmp_path, check=True)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "LD_LIBRARY_PATH": str(folder)})
    assert (done.returncode, done.stderr) == (0, "no error\n")


def test_libraries_are_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("hloc.targets.cuda.kernel_images.images_of", driver.images_of)
    with pytest.raises(UnsupportedError, match="calls no library: .*dot.* is computed by cuBLASLt"):
        tuned(tmp_path, BOXES.replace("72", "720").replace("96", "960"), LIBRARY).save(tmp_path / "m.cubin", host="c")
    assert not (tmp_path / "m.cubin").exists()
