"""`hloc run` on a GPU machine, from the command line on: PyCUDA as it is installed, on the emulated driver.

What the driver may answer instead of success becomes one message and exit code 6, and nothing is left on the device
unless its context has died.
"""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cuda_emulation import with_pycuda
from test_devices import under_mpi
from test_trace import checked, of

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed"),
              pytest.mark.skipif(bool(with_pycuda.missing()), reason=with_pycuda.missing() or "-")]
DATA = Path(__file__).parent.parent / "testdata"
SCRIPT = Path(with_pycuda.__file__)
NOTHING_LEFT = "memory 0 host 0 modules 0 streams 0 graphs 0 contexts 0"
CHAIN = """HloModule chain
ENTRY e {
  x = f32[40,40] parameter(0)
  y = f32[40,40] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="first" source_file="a/net.py" source_line=7}
  z = f32[40,40] dot(y, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT n = f32[40,40] tanh(z)
}
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A folder with the driver and a module."""
    folder = tmp_path_factory.mktemp("machine")
    with_pycuda.driver_library(folder)
    (folder / "chain.hlo").write_text(CHAIN)
    return folder


def hloc(machine: Path, *arguments: str, **settings: str) -> tuple[subprocess.CompletedProcess, str]:
    """A run of the command line, and what it left on the device."""
    report = machine / "report"
    report.unlink(missing_ok=True)
    settings = {"EMULATED_LIBRARY": str(machine / "libcuda.so.1"), **settings}
    done = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=120,
                          cwd=machine, env={**os.environ, "EMULATED_REPORT": str(report), "NO_COLOR": "1", **settings})
    return done, report.read_text().strip() if report.exists() else ""


def test_run(machine):
    """Kernel by kernel, then twice as a graph; GPUs are taken by default."""
    done, left = hloc(machine, "run", "chain.hlo", "--repeat", "3", "-i", "random:1", "-o", "gpu.npz")
    assert done.returncode == 0 and left == NOTHING_LEFT, done.stderr
    done, _ = hloc(machine, "run", "chain.hlo", "-i", "random:1", "-o", "cpu.npz", "--target", "cpu")
    import numpy as np
    on_gpu, on_cpu = np.load(machine / "gpu.npz"), np.load(machine / "cpu.npz")
    np.testing.assert_allclose(on_gpu[on_gpu.files[0]], on_cpu[on_cpu.files[0]], atol=1e-4)


LOOP = """HloModule loop
body {
  p = (s32[], f32[40,40]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[40,40] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  d = f32[40,40] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={source_file="net.py" source_line=3}
  t = f32[40,40] tanh(d)
  ROOT r = (s32[], f32[40,40]) tuple(next, t)
}
condition {
  p = (s32[], f32[40,40]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(5)
  ROOT c = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[40,40] parameter(0)
  start = s32[] parameter(1)
  t = (s32[], f32[40,40]) tuple(start, x)
  l = (s32[], f32[40,40]) while(t), condition=condition, body=body
  y = f32[40,40] get-tuple-element(l), index=1
  ROOT c = f32[40,40] custom-call(y), custom_call_target="halved"
}
"""


def test_profile(machine):
    """Each step by events of the device, with what was predicted and its line in the user's program; nothing is left."""
    (machine / "loop.hlo").write_text(LOOP)
    (machine / "own.py").write_text("def halved(x):\n    return x / 2\n")
    given = ("run", "loop.hlo", "--profile", "--custom-call", "halved=own.py:halved", "-i", "zeros")
    done, left = hloc(machine, *given, "--repeat", "3", "--json")
    assert done.returncode == 0 and left == NOTHING_LEFT, done.stderr
    rows = json.loads(done.stdout)["profile"]
    named = {row["operation"]["opcode"]: row for row in rows}
    assert named["dot"]["runs"] == 5 and named["dot"]["source"][0]["line"] == 3
    assert named["custom-call"]["runs"] == 1 and named["custom-call"]["predicted_seconds"] is None
    kernels = [row for row in rows if row["kernel"] not in ("copy", "halved")]
    assert all(row["seconds"] > 0 and 1e-7 < row["predicted_seconds"] < 1e-3 for row in kernels) and len(kernels) >= 2
    done, _ = hloc(machine, *given)
    assert "predicted  " in done.stdout and "predicted for its kernels: " in done.stdout and "net.py:3" in done.stdout
    done, _ = hloc(machine, "run", "loop.hlo", "--custom-call", "halved=own.py:halved", "-i", "zeros", "-o", "plain.npz")
    assert done.returncode == 0, done.stderr


def test_trace(machine):
    """The stream and the calls are tracks, iterations fold; nothing is left."""
    (machine / "loop.hlo").write_text(LOOP)
    (machine / "own.py").write_text("def halved(x):\n    return x / 2\n")
    done, left = hloc(machine, "run", "loop.hlo", "--trace", "t.json", "--trace-iterations", "2", "--custom-call",
                      "halved=own.py:halved", "-i", "zeros", "--repeat", "2")
    assert done.returncode == 0 and left == NOTHING_LEFT, done.stderr
    events = checked(json.loads((machine / "t.json").read_text()))
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"calls", "stream"}
    assert [e["args"]["iterations"] for e in of(events, "loop")] == [5, 5]
    assert [len(of(events, kind)) for kind in ("iteration", "iterations", "host call", "call")] == [4, 2, 2, 2]
    assert any(e["args"].get("source") == "net.py:3" for e in of(events, "kernel"))


PROCESSES = """HloModule processes, replica_count=2
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e { x = f32[4] parameter(0)
  s = f32[4] all-reduce(x), replica_groups={}, to_apply=add
  h = f32[2] reduce-scatter(x), replica_groups={{1,0}}, dimensions={0}, to_apply=add
  g = f32[8] all-gather(s), replica_groups={{1,0}}, dimensions={0}
  t = f32[4] all-to-all(x), replica_groups={}, dimensions={0}
  p = f32[4] collective-permute(t), source_target_pairs={{0,1}}
  b = f32[4] collective-broadcast(x), replica_groups={{1,0}}
  i = u32[] replica-id()
  ROOT o = (f32[4], f32[2], f32[8], f32[4], f32[4], f32[4], u32[]) tuple(s, h, g, t, p, b, i) }
"""


def test_processes_with_nccl(machine, monkeypatch):
    """Each with a GPU of its own: kernel by kernel, and as a graph."""
    import numpy as np

    from hloc.evaluate.simulate import evaluate_devices
    from hloc.text import parse_module
    monkeypatch.chdir(machine)
    (machine / "processes.hlo").write_text(PROCESSES)
    for d in range(2):
        np.save(f"x{d}.npy", np.arange(4, dtype=np.float32) + 10 * d)
    wanted = evaluate_devices(parse_module(PROCESSES), [[np.load(f"x{d}.npy")] for d in range(2)])
    for name, value in {"EMULATED_LIBRARY": str(machine / "libcuda.so.1"), "EMULATED_DEVICES": "2",
                        "LD_LIBRARY_PATH": str(machine)}.items():
        monkeypatch.setenv(name, value)
    with_pycuda.nccl_library(machine)
    done = under_mpi("run", "processes.hlo", "--target", "cuda", "-i", "x{device}.npy", "-o", "r{device}.npz",
                     "--repeat", "2", module=(str(SCRIPT),))
    assert done.returncode == 0, done.stderr
    for d in range(2):
        results = np.load(f"r{d}.npz")
        for number, want in enumerate(wanted[d]):
            np.testing.assert_array_equal(results[f"out_{number}"], want)


def test_a_gpu_is_taken_by_default(machine):
    """And where it cannot be used, a note says why; --target cpu asks nobody."""
    done, left = hloc(machine, "run", "chain.hlo", EMULATED_FAIL="cuLaunchKernel=701")
    assert done.returncode == 6 and "the GPU stopped in kernel k0_dot" in done.stderr and left == NOTHING_LEFT
    done, left = hloc(machine, "run", "chain.hlo", EMULATED_FAIL="cuInit=803")
    assert done.returncode == 0 and left == NOTHING_LEFT
    assert "note: running on the CPU: the NVIDIA driver does not start: cuInit failed: system has unsupp" in done.stderr
    done, _ = hloc(machine, "check", "chain.hlo", EMULATED_DEVICES="0")
    assert done.returncode == 0 and "note: running on the CPU: no GPU on this machine; see hloc doctor" in done.stderr
    done, _ = hloc(machine, "run", "chain.hlo", "--target", "cpu", EMULATED_DEVICES="0")
    assert done.returncode == 0 and "running on the CPU" not in done.stderr


def test_compiled_file(machine):
    """A .cubin written without a look at the device runs on it."""
    done, _ = hloc(machine, "compile", "chain.hlo", "-o", "chain.cubin", "--target", "h200")
    assert done.returncode == 0, done.stderr
    done, left = hloc(machine, "run", "chain.cubin", "-i", "random:1")
    assert done.returncode == 0 and left == NOTHING_LEFT, done.stderr
    done, left = hloc(machine, "run", "chain.cubin", "-i", "random:1", EMULATED_CAPABILITY="80")
    assert done.returncode == 6 and left == NOTHING_LEFT
    assert "this program was compiled for sm_90a; the emulation is sm_80" in done.stderr
    assert "hint: hloc compile --target sm_80" in done.stderr
    done, _ = hloc(machine, "compile", "chain.hlo", "-o", "ampere.cubin", "--target", "a100")
    done, _ = hloc(machine, "run", "ampere.cubin", "-i", "random:1")
    assert done.returncode == 6 and "hint: hloc compile --target sm_90a" in done.stderr


@pytest.mark.parametrize("name", ["control_flow", "sort", "bf16", "complex"])
def test_models_against_the_evaluator(machine, name):
    done, left = hloc(machine, "check", str(DATA / "models" / name / "model.hlo"), "--target", "cuda", "-i", "sensible:1")
    assert done.returncode == 0 and left == NOTHING_LEFT, done.stdout + done.stderr


OPS = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[2] + "/benchmarks", sys.argv[2], sys.argv[2] + "/tests"]
from cuda_emulation import with_pycuda
from test_trace import checked, of
with_pycuda.load(Path(sys.argv[1]))
from gpu_sections import ops
from gpu_sections.device import Device
device = Device(False)
cases = ops.example_cases(sorted((ops.DATA / "ops").glob("*.hlo")), device.machine)
wrong = ops.failures(device, cases)
print(len(cases), wrong)
"""


def test_op_examples_against_the_evaluator(machine):
    done = subprocess.run([sys.executable, "-c", OPS, str(machine / "libcuda.so.1"), str(DATA.parent)], capture_output=True,
                          text=True, timeout=400)
    count, wrong = done.stdout.split(" ", 1)
    assert int(count) > 250 and wrong.strip() == "[]", done.stdout + done.stderr


# what the driver answers, and when -> what is said
FAULTS = {
    "cuInit=100": "no GPU on this machine",
    "cuInit=803": "the NVIDIA driver does not start: cuInit failed: system has unsupported display driver",
    "cuDevicePrimaryCtxRetain=46": "the GPU cannot be used: cuDevicePrimaryCtxRetain failed",
    "cuModuleLoadDataEx=200": "the driver refuses the program's image (cuModuleLoadDataEx failed: device kernel image is",
    "cuModuleGetFunction=500": "the program's image gives no kernel k0_dot",
    "cuStreamCreate=2": "out of memory on the GPU's side: cuStreamCreate failed",
    "cuMemAlloc_v2=2": "out of device memory: chain needs 0.018 MiB (arena 0.006, parameters 0.006, results 0.006); ",
    "cuMemHostAlloc=2": "out of memory on the GPU's side: cuMemHostAlloc failed",
    "cuMemHostAlloc=2@2": "out of memory on the GPU's side: memory_pool::allocate failed",
    "cuMemcpyHtoDAsync_v2=1": "the GPU reported: cuMemcpyHtoDAsync failed: invalid argument",
    "cuLaunchKernel=701": "the GPU stopped in kernel k0_dot: cuLaunchKernel failed: too many resources",
    "cuStreamBeginCapture_v2=801": "the NVIDIA driver refused a graph: cuStreamBeginCapture_v2 failed: operation not supported (error 801)",
    "cuStreamUpdateCaptureDependencies_v2=801": "the NVIDIA driver refused a graph: cuStreamUpdateCaptureDependencies_v2 f",
    "cuStreamEndCapture=801": "the NVIDIA driver refused a graph: cuStreamEndCapture failed: operation not supported (error 801)",
    "cuGraphInstantiateWithFlags=801": "the NVIDIA driver refused a graph: cuGraphInstantiateWithFlags failed: operation not supp",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults(machine, fault):
    done, left = hloc(machine, "run", "chain.hlo", "--repeat", "3", "-i", "random:1", "--target", "cuda", EMULATED_FAIL=fault)
    assert done.returncode == 6 and done.stdout == ""
    assert done.stderr.startswith(f"error: {FAULTS[fault]}") and left == NOTHING_LEFT, done.stderr


@pytest.mark.parametrize("fault, said", [
    ("cuStreamSynchronize=700@3", "the GPU stopped in kernel k1_fusion_dot_tanh: cuStreamSynchronize failed: an illegal memory"),
    ("cuLaunchKernel=719@1", "the GPU stopped in kernel k0_dot: cuLaunchKernel failed: unspecified launch failure\n"
                             "  it computes y = f32[40,40] dot(x, x)   first, net.py:7\n"),
    ("cuGraphLaunch=700", "the GPU reported: cuGraphLaunch failed: an illegal memory access was encountered (error 700)\n"
                          "hint: HLOC_CUDA_WAIT=on runs the kernels one by one and names the one that fails")])
def test_faults_that_the_context_does_not_survive(machine, fault, said):
    """The driver repeats the error at every call: it is told once, and what is left the driver takes itself."""
    done, left = hloc(machine, "run", "chain.hlo", "--repeat", "3", "-i", "random:1", "--target", "cuda", EMULATED_FAIL=fault)
    assert done.returncode == 6 and done.stderr.startswith(f"error: {said}"), done.stderr
    assert "PyCUDA" not in done.stderr and "Traceback" not in done.stderr and "contexts 1" in left


@pytest.fixture(scope="module")
def boxes(machine):
    """A product that the bulk copy engine's kernel computes, since a tuning file says so: the arguments of a run."""
    from hloc import api
    from hloc.targets.cuda.execution import tuning
    from hloc.targets.cuda.gpus import GPUS
    from hloc.targets.cuda.target import cuda_target
    text = ("HloModule m\nENTRY e { a = bf16[72,80] parameter(0)  b = bf16[80,96] parameter(1)\n"
            "  ROOT d = f32[72,96] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }\n")
    target, variant = cuda_target(GPUS["h100"]), "128x256x64, 4 stages, wgmma, bulk copies"
    (tile,) = api.plan(api.optimize(api.load(text), target), target).kernels
    measured = {tuning.key_of(tile): tuning.Measured("a product", variant, {variant: 1.0})}
    tuning.write(machine / "boxes.json", tuning.Tuning({"the emulation, CUDA 13.0": measured}))
    (machine / "boxes.hlo").write_text(text)
    return ["run", "boxes.hlo", "--tuning", "boxes.json", "--repeat", "3", "-i", "random:1", "--target", "cuda"]


def test_tensor_maps(machine, boxes):
    done, left = hloc(machine, *boxes, "-o", "boxes.npz")
    assert done.returncode == 0 and left == NOTHING_LEFT, done.stderr
    done, _ = hloc(machine, "run", "boxes.hlo", "-i", "random:1", "-o", "plain.npz", "--target", "cpu")
    import numpy as np
    one, other = np.load(machine / "boxes.npz"), np.load(machine / "plain.npz")
    np.testing.assert_allclose(one[one.files[0]], other[other.files[0]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("fault, said", [
    ("cuTensorMapEncodeTiled=1", "the NVIDIA driver refuses a tensor map: cuTensorMapEncodeTiled failed: error 1"),
    ("cuMemcpyHtoDAsync_v2=1", "the GPU reported: cuMemcpyHtoDAsync failed: invalid argument")])
def test_faults_of_tensor_maps(machine, boxes, fault, said):
    done, left = hloc(machine, *boxes, EMULATED_FAIL=fault)
    assert done.returncode == 6 and done.stderr.startswith(f"error: {said}") and left == NOTHING_LEFT, done.stderr


def test_waiting_names_the_kernel(machine):
    """In the third run, which is a graph otherwise."""
    done, _ = hloc(machine, "run", "chain.hlo", "--repeat", "3", "-i", "random:1", "--target", "cuda", HLOC_CUDA_WAIT="on",
                   EMULATED_FAIL="cuLaunchKernel=700@6")
    assert done.returncode == 6 and "the GPU stopped in kernel k1_fusion_dot_tanh" in done.stderr


def test_no_device(machine):
    done, _ = hloc(machine, "run", "chain.hlo", "--target", "cuda", EMULATED_DEVICES="0")
    assert done.returncode == 6 and "error: no GPU on this machine\nhint: hloc run --target cpu" in done.stderr


def test_driver_older_than_pycuda(machine, tmp_path):
    """PyCUDA's extension asks for a function that the driver does not have."""
    library = with_pycuda.driver_library(tmp_path, without="cuTexRefGetFormat")
    done, _ = hloc(machine, "run", "chain.hlo", "--target", "cuda", EMULATED_LIBRARY=str(library))
    assert done.returncode == 6 and "the NVIDIA driver is too old for the PyCUDA that is installed" in done.stderr
    assert "undefined symbol: cuTexRefGetFormat" in done.stderr


def test_driver_older_than_the_program(machine):
    done, _ = hloc(machine, "run", "chain.hlo", "--target", "cuda", EMULATED_DRIVER="12080", EMULATED_FAIL="cuModuleLoadDataEx=200")
    assert done.returncode == 6 and "driver is too old: it supports CUDA 12.8, the program was compiled by CUDA 13.0" in done.stderr


def test_out_of_memory(machine):
    done, left = hloc(machine, "run", "chain.hlo", "--target", "cuda", EMULATED_MEMORY="8192")
    assert done.returncode == 6 and left == NOTHING_LEFT
    assert "chain needs 0.018 MiB (arena 0.006, parameters 0.006, results 0.006); 0.008 of 0.008 MiB are free" in done.stderr
