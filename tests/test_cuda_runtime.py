"""The CUDA runtime against the emulated driver: graphs, memory, what a machine may lack, faults with their kernel."""
from __future__ import annotations

import dataclasses
import gc
import re
import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of

from hloc import api
from hloc.errors import RunError, UnsupportedError
from hloc.evaluate import evaluate
from hloc.ir import numpy_dtype
from hloc.kernels.plan import Branch, Copy, Launch, Ref, WhileLoop, all_steps
from hloc.targets.cuda import early_start
from hloc.targets.cuda.execution import context, graphs, runtime
from hloc.targets.cuda.gpus import GPUS, device_named
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
H100 = GPUS["h100"]
TESTDATA = Path(__file__).parent.parent / "testdata"
CHAIN = """HloModule chain
ENTRY e {
  x = f32[40,40] parameter(0)
  y = f32[40,40] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="first" source_file="a/net.py" source_line=7}
  z = f32[40,40] dot(y, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT n = f32[40,40] tanh(z)
}
"""
LOOP = """HloModule loop
test { s = (s32[], f32[8]) parameter(0)  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)  ROOT c = pred[] compare(i, n), direction=LT }
body { s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0  x = f32[8] get-tuple-element(s), index=1
  one = s32[] constant(1)  j = s32[] add(i, one)  y = f32[8] sine(x)
  ROOT r = (s32[], f32[8]) tuple(j, y) }
ENTRY e { x = f32[8] parameter(0)  n = s32[] parameter(1)
  s = (s32[], f32[8]) tuple(n, x)
  w = (s32[], f32[8]) while(s), condition=test, body=body
  ROOT y = f32[8] get-tuple-element(w), index=1 }
"""


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    driver.install(monkeypatch)


def sources_of(text: str, gpu=H100):
    target = cuda_target(gpu)
    return make_sources(api.plan(api.optimize(api.load(text), target), target), gpu)


def chained(x: np.ndarray) -> np.ndarray:
    return np.tanh(x @ x @ x)


def test_second_run_is_a_graph():
    backend = backend_of(sources_of(CHAIN))
    x = np.random.default_rng(0).normal(size=(40, 40)).astype("f4") / 10
    before = driver.GraphLibrary.launched
    for n in range(3):
        (result,) = backend([x + n])
        np.testing.assert_allclose(result, chained(x + n), atol=1e-5)
        assert driver.GraphLibrary.launched - before == n           # the first run goes kernel by kernel
    assert len(backend.graphs) == 1 and driver.Context.depth == 0
    backend.close()
    assert not any(a.size for a in driver.Allocation.living.values() if int(a) == int(backend.regions["arena"][0]))


@pytest.mark.parametrize("text, conditional", [(CHAIN, "off"), (LOOP, "off"), (LOOP, "on")])
def test_memory_is_freed_with_the_last_reference(monkeypatch, text, conditional):
    """Without the garbage collector: when Python exits, that runs after the context is released."""
    monkeypatch.setenv("HLOC_CUDA_CONDITIONAL", conditional)
    monkeypatch.setattr(driver.DEVICE, "driver", 13000)
    backend = backend_of(sources_of(text))
    shapes = [value.shape for value in backend.packed.parameters]
    arrays = [np.zeros(shape.dimensions, numpy_dtype(shape.element_type)) for shape in shapes]
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            backend(arrays)
        assert backend.graphs and (backend.recorder.nodes is not None) == (conditional == "on")
        gone, memory = weakref.ref(backend), weakref.ref(backend.memory)
        del backend
        assert gone() is None and memory() is None
    finally:
        gc.enable()


def test_graphs_can_be_left_out(monkeypatch):
    monkeypatch.setenv("HLOC_CUDA_GRAPHS", "off")
    backend, x = backend_of(sources_of(CHAIN)), np.eye(40, dtype="f4")
    for _ in range(3):
        np.testing.assert_allclose(backend([x])[0], chained(x), atol=1e-5)
    assert backend.graphs == {}
    backend.close()


def test_kernels_start_early(monkeypatch):
    """All but the first of a graph, unless it is turned off, or the driver is too old."""
    x = np.random.default_rng(0).normal(size=(40, 40)).astype("f4") / 10
    monkeypatch.setattr(early_start, "L2_SHARE", 1)
    sources = sources_of(CHAIN, dataclasses.replace(H100, l2_bytes=16 << 10))       # which the program does not fit into
    assert [k.early for k in sources.geometry] == [(), (0,)]
    assert [re.findall(r"hloc_prefetch\((.*)\)", text) for text in sources.kernels] == [["lhs, 6400L"], ["rhs, 6400L"]]
    for early, setting, version in ((1, "on", 13000), (0, "off", 13000), (0, "on", 12020)):
        monkeypatch.setenv("HLOC_CUDA_EARLY_START", setting)
        monkeypatch.setattr(driver.DEVICE, "driver", version)
        backend, before = backend_of(sources, checked=True), driver.GraphLibrary.early
        for n in range(3):
            np.testing.assert_allclose(backend([x + n])[0], chained(x + n), atol=2e-4)
        assert driver.GraphLibrary.early - before == early
        backend.close()
    assert not any(k.early for k in sources_of(CHAIN, GPUS["a100"]).geometry)


@pytest.mark.parametrize("new, said", [
    ("", "read of what kernels write, before the wait"),
    ("if (threadIdx.x) hloc_await_previous();", "read of what kernels write, before the wait"),
    ("return;", "no wait for the kernel before it"),
    ("hloc_prefetch(lhs, 6400L);\n  hloc_await_previous();", "read of what kernels write, before the wait"),
    ("if (threadIdx.x + blockIdx.x == 0) out0[0] = 0;\n  hloc_await_previous();", "write before the wait")])
def test_faults_of_early_starts(new, said):
    """What would race with the kernel before is found, also if that one has run by then."""
    sources = sources_of(CHAIN)
    parts = driver.text_of(sources).split("  hloc_await_previous();\n")
    text = "  hloc_await_previous();\n".join(parts[:-1]) + f"  {new}\n" + parts[-1]
    backend, x = backend_of(sources, image=driver.build_text(text, checked=True)), np.eye(40, dtype="f4")
    backend([x])
    with pytest.raises(RunError, match=said):
        backend([x])
    backend.close()


def test_loops_around_graphs():
    """The host looks at the flag, the bodies are graphs where they have several steps."""
    backend = backend_of(sources_of(LOOP))
    x = np.linspace(0, 1, 8, dtype="f4")
    for start, trips in ((0, 5), (3, 2), (5, 0), (0, 5)):
        expected = x
        for _ in range(trips):
            expected = np.sin(expected)
        np.testing.assert_allclose(backend([x, np.int32(start)])[0], expected, atol=1e-6)
    backend.close()


@pytest.mark.parametrize("most, graphs_of_a_run", [(20_000, 1), (50, 5)])
def test_counters_are_no_kernels(monkeypatch, most, graphs_of_a_run):
    """The value in each round is a constant: kernel by kernel, in one graph, and where a graph holds one round."""
    monkeypatch.setattr(graphs, "MOST_NODES", most)
    text = (TESTDATA / "programs" / "counters_of_loops.hlo").read_text()
    sources = sources_of(text)
    loops = [step for step in all_steps(sources.program.steps) if isinstance(step, WhileLoop)]
    counted = [loop for loop in loops if loop.trip_count is not None]
    assert len(loops) == 3 and sorted(len(loop.counters) for loop in counted) == [1, 4]
    assert not any(loop.condition for loop in counted)
    backend = backend_of(sources, checked=True)
    x, a = np.linspace(-1, 1, 8, dtype="f4"), np.zeros(6, "i4")
    expected = evaluate(api.load(text), [x, a])
    for _ in range(3):
        for result, right in zip(backend([x, a]), expected):
            np.testing.assert_array_equal(result, right)
    backend.close()


def test_parts_of_a_plan():
    launch, copy = Launch(0, ()), Copy(Ref("arena", 0, 0, 4), Ref("arena", 0, 4, 4))
    counted, open_ = (WhileLoop((launch,), Ref("arena", 0, 0, 1), (launch, copy), n) for n in (10, None))
    endless = counted._replace(trip_count=10_000_000)
    found = graphs.parts((launch, counted, copy, open_, launch, endless))
    assert [p.nodes for p in found] == [22, None, 1, None]
    assert graphs.forbids((launch, counted)) == []
    assert len(graphs.forbids((open_, endless))) == 2
    around = counted._replace(body=(launch, Branch(Ref("arena", 0, 0, 1), "pred", ((launch,), (copy,)))))
    words = {(): "no more than one kernel", (launch,): "no more than one kernel", (launch, counted): "one CUDA graph",
             (launch, copy, around, launch): "one CUDA graph beside a conditional",
             (launch, endless): "no CUDA graph beside a loop of 10,000,000 rounds, too many for one graph",
             (launch, copy, open_, launch, launch): "2 CUDA graphs beside a loop whose number of rounds is not known"}
    assert {steps: graphs.in_words(steps) for steps in words} == words


def test_waiting_inside_a_recording_is_refused():
    stream = driver.Stream()
    with pytest.raises(driver.Error, match="capturing"):
        graphs.Graph(stream, stream.synchronize)


def test_a_graph_that_the_driver_refuses(monkeypatch):
    monkeypatch.setattr(driver.GraphLibrary, "cuGraphInstantiateWithFlags", lambda *_: 801)
    backend = backend_of(sources_of(CHAIN))
    backend([np.eye(40, dtype="f4")])
    with pytest.raises(RunError, match=r"refused a graph: cuGraphInstantiateWithFlags failed: operation not supported \(error 801\)") as caught:
        backend([np.eye(40, dtype="f4")])
    assert "HLOC_CUDA_GRAPHS=off" in caught.value.hint and caught.value.code == 6
    backend.close()


def test_out_of_device_memory(monkeypatch):
    monkeypatch.setattr(driver.DEVICE, "memory", 4096)
    with pytest.raises(RunError, match=r"chain needs 0\.\d+ MiB \(arena 0\.\d+, parameters 0\.006, results 0\.006\); "
                                       r"0\.004 of 0\.004 MiB are free") as caught:
        backend_of(sources_of(CHAIN))
    assert caught.value.code == 6 and driver.Context.depth == 0


def test_image_that_the_driver_refuses(monkeypatch):
    sources = sources_of(CHAIN)
    with pytest.raises(RunError, match="refuses the program's image"):
        backend_of(sources, image=b"not an image")
    monkeypatch.setattr(driver.DEVICE, "driver", 12040)
    packed = backend_of(sources).packed._replace(images=(b"not an image",), cuda=13050)
    with pytest.raises(RunError, match=r"driver is too old: it supports CUDA 12\.4, .* compiled by CUDA 13\.5"):
        runtime.CudaBackend(packed, {})


@pytest.mark.parametrize("arch, capability, runs", [
    ("sm_90a", (9, 0), True), ("sm_90a", (10, 0), False), ("sm_80", (8, 6), True), ("sm_80", (9, 0), False),
    ("sm_86", (8, 0), False), ("sm_100a", (10, 0), True), ("sm_120a", (12, 0), True), ("x86", (9, 0), False)])
def test_architectures(arch, capability, runs):
    packed = SimpleNamespace(arch=arch)
    if runs:
        context.check_architecture(packed, "a GPU", capability)
    else:
        with pytest.raises(RunError, match="architecture|a GPU is sm_"):
            context.check_architecture(packed, "a GPU", capability)


@pytest.mark.parametrize("name, arch, known", [
    ("NVIDIA H200", "sm_90", "h200"), ("NVIDIA H100 80GB HBM3", "sm_90", "h100"), ("NVIDIA GeForce RTX 4090", "sm_89", "rtx4090"),
    ("NVIDIA A100-SXM4-80GB", "sm_80", "a100"), ("NVIDIA L40S", "sm_89", "l40s"), ("NVIDIA A10", "sm_86", "a10"),
    ("NVIDIA A6000", "sm_86", "a10"), ("Tesla V100", "sm_70", None)])
def test_devices_by_the_name_that_the_driver_gives(name, arch, known):
    found = device_named(name, arch)
    assert (found.name if found else None) == known


def test_facts_of_the_device():
    context.device_machine.cache_clear()
    machine = context.device_machine()
    context.device_machine.cache_clear()
    assert machine.kind == "gpu" and machine.cores == 132 and machine.arch == "sm_90a"


def test_fault_names_the_kernel_and_its_hlo(monkeypatch):
    def fail(self, *_, **__):
        raise driver.Error("cuLaunchKernel failed: an illegal memory access was encountered")
    backend = backend_of(sources_of(CHAIN))
    monkeypatch.setattr(driver.Function, "_run", fail)
    with pytest.raises(RunError, match="stopped in kernel k0_dot: .*illegal memory access") as caught:
        backend([np.eye(40, dtype="f4")])
    assert "y = f32[40,40] dot(x, x)   first, net.py:7" in caught.value.message
    backend.close()


@pytest.mark.parametrize("error, count, message", [
    (ImportError("libcuda.so.1: cannot open shared object file"), 1, "needs the NVIDIA driver"),
    (ImportError("No module named 'pycuda'"), 1, "needs PyCUDA"),
    (driver.Error("cuInit failed: no CUDA-capable device is detected"), 1, "no GPU on this machine"),
    (driver.Error("cuInit failed: system has unsupported display driver / cuda driver combination"), 1, "does not start"),
    (None, 0, "no GPU on this machine")])
def test_what_a_machine_may_lack(monkeypatch, error, count, message):
    import sys
    monkeypatch.undo()

    def init():
        if error:
            raise error
    module = SimpleNamespace(Error=driver.Error, init=init, Device=SimpleNamespace(count=lambda: count))

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name.startswith("pycuda"):
                raise error
    if isinstance(error, ImportError):
        monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
        for name in [n for n in sys.modules if n.startswith("pycuda")]:
            monkeypatch.delitem(sys.modules, name)
    else:
        monkeypatch.setitem(sys.modules, "pycuda", SimpleNamespace(driver=module))
        monkeypatch.setitem(sys.modules, "pycuda.driver", module)
    with pytest.raises(RunError, match=message) as caught:
        context.driver()
    assert caught.value.code == 6 and caught.value.hint


def test_source_names_the_instructions_with_their_metadata():
    text = sources_of(CHAIN).readable()
    assert "/* y = f32[40,40] dot(x, x)   first, net.py:7 */" in text
    assert "/* grid 4 x block 256; 19,200 bytes, 128,000 flops */" in text


def test_host_calls_do_not_go_into_a_file(tmp_path):
    text = ("HloModule m\nENTRY e {\n  t = token[] after-all()\n  i = (f32[3], token[]) infeed(t)\n"
            "  ROOT x = f32[3] get-tuple-element(i), index=0\n}\n")
    with pytest.raises(UnsupportedError, match="a .cubin cannot hold the Python function of host call 'infeed'"):
        api.compile(text, "h100", run=False).save(tmp_path / "m.cubin")
