"""Loops and branches that the device decides, as conditional nodes of CUDA graphs: against the emulated driver."""
from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of

from hloc import api
from hloc.errors import BuildError, RunError
from hloc.evaluate import evaluate
from hloc.kernels.plan import Branch, Collective, HostCall, Launch, Program, Ref, WhileLoop, all_steps
from hloc.targets.cuda import compiler, container
from hloc.targets.cuda.costs import rounds
from hloc.targets.cuda.execution import conditional_nodes, graphs, runtime
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.tools.gpu_times import gpu_times

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
H100 = GPUS["h100"]
TESTDATA = Path(__file__).parent.parent / "testdata"
NESTED = (TESTDATA / "programs" / "decided_by_the_device.hlo").read_text()
LOOP = """HloModule loop
test { s = (s32[], f32[8]) parameter(0)  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)  ROOT c = pred[] compare(i, n), direction=LT }
body { s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0  x = f32[8] get-tuple-element(s), index=1
  one = s32[] constant(1)  j = s32[] add(i, one)  y = f32[8] sine(x)
  ROOT r = (s32[], f32[8]) tuple(j, y) }
ENTRY e { x = f32[8] parameter(0)  n = s32[] parameter(1)  a = f32[8] cosine(x)
  s = (s32[], f32[8]) tuple(n, a)
  w = (s32[], f32[8]) while(s), condition=test, body=body
  y = f32[8] get-tuple-element(w), index=1  ROOT z = f32[8] tanh(y) }
"""
X = np.linspace(0, 1, 8, dtype="f4")
STARTS = (3, 0, 5, 9, 4, 0)


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    driver.install(monkeypatch)
    monkeypatch.setenv("HLOC_CUDA_CONDITIONAL", "on")
    monkeypatch.setattr(driver.DEVICE, "driver", 13000)


def sources_of(text: str):
    target = cuda_target(H100)
    return make_sources(api.plan(api.optimize(api.load(text), target), target), H100)


def looped(start: int) -> np.ndarray:
    expected = np.cos(X)
    for _ in range(start, 5):
        expected = np.sin(expected)
    return np.tanh(expected)


def run_all(backend, starts=STARTS) -> None:
    for start in starts:
        np.testing.assert_allclose(backend([X, np.int32(start)])[0], looped(start), atol=1e-6, err_msg=f"from {start}")


def test_a_loop_is_a_node_of_one_graph():
    backend = backend_of(sources_of(LOOP), checked=True)
    run_all(backend, STARTS[:1])
    graphs_before, rounds_before = driver.GraphLibrary.launched, driver.ConditionalNode.launched
    run_all(backend, STARTS[1:])
    assert driver.GraphLibrary.launched - graphs_before == len(STARTS) - 1
    assert driver.ConditionalNode.launched - rounds_before == sum(max(0, 5 - n) for n in STARTS[1:])
    assert driver.Context.depth == 0
    backend.close()


@pytest.mark.parametrize("early", ["on", "off"])
def test_loops_and_branches_inside_of_each_other(monkeypatch, early):
    monkeypatch.setenv("HLOC_CUDA_EARLY_START", early)
    sources, module = sources_of(NESTED), api.load(NESTED)
    steps = [s for s in all_steps(sources.program.steps) if isinstance(s, (WhileLoop, Branch))]
    assert sum(step.by_device for step in steps) == 4 and len(steps) == 5
    assert sum(len(step.counters) for step in steps if isinstance(step, WhileLoop)) == 1
    backend = backend_of(sources, checked=True)
    for n, which, yes in ((4, 0, True), (4, 1, False), (0, 2, True), (7, -3, False), (3, 99, True)):
        given = [X, np.int32(n), np.int32(which), np.bool_(yes)]
        for result, expected in zip(backend(given), evaluate(module, given)):
            np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert [part.nodes is not None for part in backend.parts[id(backend.packed.steps)]] == [True]
    backend.close()


def test_a_model():
    """Loops and branches as JAX writes them."""
    text = (TESTDATA / "models" / "control_flow" / "model.hlo").read_text()
    sources, module = sources_of(text), api.load(text)
    assert graphs.in_words(sources.program.steps, True) == "one CUDA graph"
    backend, random = backend_of(sources, checked=True), np.random.default_rng(0)
    for yes in (True, False, True):
        given = [random.normal(size=(6, 16)).astype("f4"), np.array([0, 1, 2, 3, 9], "i4"), np.bool_(yes)]
        for result, expected in zip(backend(given), evaluate(module, given)):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    backend.close()


def test_a_saved_program(tmp_path):
    sources = sources_of(NESTED)
    with open(tmp_path / "nested.cubin", "w+b") as file:
        container.write(file, driver.images_of(sources), sources.program, sources.geometry, "sm_90a")
    packed = container.read(tmp_path / "nested.cubin")
    assert sum(getattr(step, "by_device", False) for step in all_steps(packed.steps)) == 4
    backend, module = runtime.CudaBackend(packed, {}), api.load(NESTED)
    for n in (2, 5):
        given = [X, np.int32(n), np.int32(0), np.bool_(True)]
        for result, expected in zip(backend(given), evaluate(module, given)):
            np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert len(backend.graphs) == 1
    backend.close()


# -- where it is not done ----------------------------------------------------------------------------------------------

def runs_by_the_host(backend) -> None:
    before = driver.ConditionalNode.launched
    run_all(backend)
    assert driver.ConditionalNode.launched == before
    backend.close()


def test_settings(monkeypatch):
    for name, value in (("HLOC_CUDA_CONDITIONAL", "off"), ("HLOC_CUDA_GRAPHS", "off")):
        with monkeypatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("error")
            patch.setenv(name, value)
            runs_by_the_host(backend_of(sources_of(LOOP)))
    monkeypatch.delenv("HLOC_CUDA_CONDITIONAL")
    before, backend = driver.ConditionalNode.launched, backend_of(sources_of(LOOP))
    run_all(backend)
    assert driver.ConditionalNode.launched > before
    backend.close()
    monkeypatch.setattr(driver.DEVICE, "driver", 12070)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs_by_the_host(backend_of(sources_of(LOOP)))


def test_an_older_driver(monkeypatch):
    monkeypatch.setattr(driver.DEVICE, "driver", 12070)
    with pytest.warns(RuntimeWarning, match=r"host decides .* loop .*the driver is for CUDA 12\.7, .* need one for 12\.8"):
        backend = backend_of(sources_of(LOOP))
    runs_by_the_host(backend)


def test_a_driver_that_refuses_the_kernels(monkeypatch):
    def refuse(_: bytes):
        raise driver.Error("cuModuleLoadDataEx failed: a PTX JIT compilation failed")
    load = driver.module_from_buffer
    monkeypatch.setattr(driver, "module_from_buffer", lambda image: (refuse if image[:8] == b".version" else load)(image))
    with pytest.warns(RuntimeWarning, match="refuses the kernels that set a condition"):
        backend = backend_of(sources_of(LOOP))
    runs_by_the_host(backend)


def test_the_choice_by_cost():
    ref, launch = Ref("arena", 0, 0, 1), Launch(0, ())
    program = Program("p", (), (), (), (), (), 1)

    def choice(*steps, early: int = 1):
        (found,) = rounds.rounds_of(program._replace(steps=(WhileLoop((launch,), ref, steps),)), lambda _: early)
        return found
    short, long, inner = choice(launch), choice(*[launch] * 200), choice(launch, Branch(ref, "pred", ((launch,), ())))
    kernel = rounds.IN_NODE_US + rounds.GAIN_US
    assert short.by_device and short.device_us == pytest.approx(rounds.NODE_US + 2 * kernel)
    assert not long.by_device and choice(*[launch] * 20, early=0).by_device
    assert inner.host_us == 2 * short.host_us
    assert "; the host decides" in long.in_words and "; such a node" in short.in_words
    meets = WhileLoop((launch,), ref, (Collective(0, "all-reduce", False, (), (), (), (), ()),), by_device=True)
    deeper = meets._replace(body=(WhileLoop((), None, meets.body, 2),))
    assert graphs.nodes_of(meets, True) is graphs.nodes_of(deeper, True) is None and graphs.nodes_of(meets._replace(body=(launch,)), True) == 6
    called = choice(launch, HostCall("f", (), ()))
    assert not called.by_device and called.in_words.endswith("as it must: its body has host call 'f'")
    counted = WhileLoop((), None, (launch,), 10)
    assert choice(counted).device_us == pytest.approx(rounds.NODE_US + 11 * kernel)
    whole = program._replace(steps=(WhileLoop((launch,), ref, (HostCall("f", (), ()), Branch(ref, "s32", ((launch,),)))),))
    (outer,) = rounds.decided(whole, lambda _: 1).steps
    assert not outer.by_device and outer.body[1].by_device


def test_what_explain_says():
    times = gpu_times(api.load(LOOP), GPUS["h200"])
    (told,) = times.rounds
    assert times.graphs.endswith("beside a loop whose number of rounds is not known")
    assert re.fullmatch(r"while\.\d+: beside its kernels a round takes 11\.0 us if the host decides, \d\.\d us as a conditional "
                        r"node of a graph; such a node", told.in_words)


# -- faults that are planted -------------------------------------------------------------------------------------------

class Setters:
    """In the place of Nodes.set_loop: some calls are left out. kept: whether the call of that number is made."""

    def __init__(self, kept):
        self.kept, self.calls, self.real = kept, 0, conditional_nodes.Nodes.set_loop

    def __call__(self, nodes, *arguments) -> None:
        self.calls += 1
        if self.kept(self.calls - 1):
            self.real(nodes, *arguments)


def faulty(monkeypatch, kept=None, **patched):
    if kept is not None:
        setters = Setters(kept)
        monkeypatch.setattr(conditional_nodes.Nodes, "set_loop", lambda nodes, *given: setters(nodes, *given))
    for name, function in patched.items():
        monkeypatch.setattr(driver.GraphLibrary, name, function)
    backend = backend_of(sources_of(LOOP), checked=True)
    run_all(backend, (0,))                                  # the first run goes kernel by kernel
    return backend


def test_a_body_that_sets_no_condition_is_found(monkeypatch):
    backend = faulty(monkeypatch, lambda number: number == 0)
    with pytest.raises(RunError, match="does not set its condition: it never ends"):
        run_all(backend, (0,))


@pytest.mark.parametrize("default", [0, 1])
def test_a_loop_whose_first_condition_is_the_default_is_found(monkeypatch, default):
    """Zero: it never runs; another: it runs once too often."""
    monkeypatch.setattr(conditional_nodes, "DEFAULT", default)
    backend = faulty(monkeypatch, lambda number: number > 0)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        run_all(backend, (0, 5))


def test_a_condition_without_a_default_is_found(monkeypatch):
    monkeypatch.setattr(conditional_nodes, "ASSIGN_DEFAULT", 0)
    run_all(faulty(monkeypatch, lambda number: True))       # it is always set before
    backend = faulty(monkeypatch, lambda number: number > 0)
    with pytest.raises(RunError, match="reached before a kernel has set its value"):
        run_all(backend, (0,))


def test_a_condition_that_is_set_too_early_is_found(monkeypatch):
    """Before the body's last kernel writes the flag."""
    record, real = [], conditional_nodes.Nodes.set_loop

    def at_the_start(nodes, stream, handle, flag):
        if not nodes.open:
            record.append((handle, flag))
            real(nodes, stream, handle, flag)
    inside = conditional_nodes.Nodes.inside

    def opened(nodes, body):
        around = inside(nodes, body)
        stream = around.__enter__()
        real(nodes, stream, *record[-1])

        class Opened:
            def __enter__(self):
                return stream

            def __exit__(self, *_):
                return around.__exit__(None, None, None)
        return Opened()
    monkeypatch.setattr(conditional_nodes.Nodes, "set_loop", at_the_start)
    monkeypatch.setattr(conditional_nodes.Nodes, "inside", opened)
    backend = faulty(monkeypatch)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        run_all(backend, (0, 5))


def test_a_graph_with_nodes_is_instantiated_once(monkeypatch):
    real = driver.GraphLibrary.cuGraphInstantiateWithFlags

    def twice(library, *arguments):
        assert real(library, *arguments) == 0
        return real(library, *arguments)
    backend = faulty(monkeypatch, cuGraphInstantiateWithFlags=twice)
    with pytest.raises(RunError, match="cuGraphInstantiateWithFlags failed: invalid argument"):
        run_all(backend, (0,))


def test_a_handle_without_a_node_is_refused(monkeypatch):
    real = conditional_nodes.Nodes.handle
    monkeypatch.setattr(conditional_nodes.Nodes, "handle", lambda nodes, stream: (real(nodes, stream), real(nodes, stream))[1])
    with pytest.raises(RunError, match="cuGraphInstantiateWithFlags failed"):
        run_all(faulty(monkeypatch), (0,))


def test_a_handle_with_two_nodes_is_refused(monkeypatch):
    real = conditional_nodes.Nodes.add
    monkeypatch.setattr(conditional_nodes.Nodes, "add", lambda *given: (real(*given), real(*given))[1])
    with pytest.raises(RunError, match="cuGraphAddNode_v2 failed: invalid argument") as caught:
        run_all(faulty(monkeypatch), (0,))
    assert "HLOC_CUDA_CONDITIONAL=off" in caught.value.hint


@pytest.mark.parametrize("changed", [{"size": 2}, {"type": 12}, {"context": 0}, {"reserved2": 1}, {"kind": 3}])
def test_wrong_parameters_are_refused(monkeypatch, changed):
    monkeypatch.setattr(conditional_nodes, "NodeParams", partial(_params, conditional_nodes.NodeParams, changed))
    with pytest.raises(RunError, match="cuGraphAddNode_v2 failed"):
        run_all(faulty(monkeypatch), (0,))


def _params(real, changed, **given):
    return real(**{**given, **changed})


def test_a_node_that_nothing_waits_for_is_refused(monkeypatch):
    real = driver.GraphLibrary.cuStreamUpdateCaptureDependencies_v2
    backend = faulty(monkeypatch, cuStreamUpdateCaptureDependencies_v2=lambda library, stream, nodes, edges, *more:
                     real(library, stream, nodes, edges, *more) if edges else 0)
    with pytest.raises(RunError, match="cuStreamEndCapture failed"):
        run_all(backend, (0,))


# -- what the driver is given ------------------------------------------------------------------------------------------

def cuda_header() -> Path | None:
    places = [Path("/usr/local/cuda/include"), Path("/usr/include")]
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        places += [*Path(folder).glob("cu*/include"), *Path(folder).glob("cuda_runtime/include")]
    return next((p for p in places if (p / "cuda.h").exists() and "CUDA_CONDITIONAL_NODE_PARAMS" in
                 (p / "cuda.h").read_text(errors="replace")), None)


def test_the_layout_of_parameters_is_that_of_cuda_h(tmp_path):
    if (header := cuda_header()) is None:
        pytest.skip("cuda.h of CUDA 12.3 or later is not installed (pip install nvidia-cuda-runtime)")
    names = {"handle": "conditional.handle", "kind": "conditional.type", "size": "conditional.size", "type": "type",
             "bodies": "conditional.phGraph_out", "context": "conditional.ctx", "reserved2": "reserved2"}
    kind = conditional_nodes.NodeParams
    checks = [f"static_assert(offsetof(CUgraphNodeParams, {theirs}) == {getattr(kind, ours).offset});"
              for ours, theirs in names.items()]
    values = {"CU_GRAPH_NODE_TYPE_CONDITIONAL": conditional_nodes.CONDITIONAL, "CU_GRAPH_COND_TYPE_WHILE":
              conditional_nodes.WHILE, "CU_GRAPH_COND_TYPE_SWITCH": conditional_nodes.SWITCH,
              "CU_GRAPH_COND_ASSIGN_DEFAULT": conditional_nodes.ASSIGN_DEFAULT,
              "CU_STREAM_SET_CAPTURE_DEPENDENCIES": graphs.REPLACES,
              "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL": graphs.THREAD_LOCAL, "sizeof(CUgraphNodeParams)": ctypes.sizeof(kind)}
    checks += [f"static_assert({theirs} == {value});" for theirs, value in values.items()]
    (tmp_path / "layout.cpp").write_text("\n".join(["#include <cstddef>", "#include <cuda.h>", *checks]))
    subprocess.run(["g++", "-std=c++17", "-fsyntax-only", "-w", f"-I{header}", str(tmp_path / "layout.cpp")], check=True,
                   timeout=60)


class Recorded:
    """The emulated library; notes the bytes of each argument of a call, as ctypes passes them."""

    calls: dict[str, set[tuple[int, ...]]] = {}

    def __init__(self):
        self.library = driver.GraphLibrary()

    def __getattr__(self, name: str):
        def call(*arguments):
            self.calls.setdefault(name, set()).add(tuple(map(passed, arguments)))
            return getattr(self.library, name)(*arguments)
        return call


def passed(argument) -> int:
    """Bytes of an argument: arrays, references and None are pointers; a number of Python is an int of C."""
    if isinstance(argument, (int, bool)):
        return ctypes.sizeof(ctypes.c_int)
    plain = isinstance(argument, ctypes._SimpleCData)                   # neither a reference nor an array
    return ctypes.sizeof(argument) if plain else ctypes.sizeof(ctypes.c_void_p)


SIZES = """#include <array>
#include <cuda.h>
template <class... A> constexpr std::array<size_t, sizeof...(A)> sizes(CUresult (*)(A...)) { return {sizeof(A)...}; }
template <size_t N, size_t M> constexpr bool same(std::array<size_t, N> a, const size_t (&b)[M]) {
  if (N != M) return false;
  for (size_t n = 0; n < N; n++) if (a[n] != b[n]) return false;
  return true;
}
"""


def test_calls_have_the_arguments_of_cuda_h(tmp_path, monkeypatch):
    """As many, and as many bytes each: no driver could tell, since ctypes does not know its functions."""
    if (header := cuda_header()) is None:
        pytest.skip("cuda.h of CUDA 12.3 or later is not installed (pip install nvidia-cuda-runtime)")
    monkeypatch.setattr(graphs, "library", Recorded)
    monkeypatch.setattr(Recorded, "calls", {})
    backend = backend_of(sources_of(LOOP))
    run_all(backend, (3, 0, 5))
    backend.close()
    assert {"cuGraphConditionalHandleCreate", "cuGraphAddNode_v2", "cuStreamBeginCaptureToGraph", "cuCtxGetCurrent",
            "cuStreamGetCaptureInfo_v3", "cuStreamUpdateCaptureDependencies_v2", "cuStreamEndCapture",
            "cuGraphInstantiateWithFlags", "cuGraphLaunch"} <= Recorded.calls.keys()

    def checks(calls: dict[str, set[tuple[int, ...]]]) -> int:
        known = (header / "cuda.h").read_text(errors="replace")
        lines = [f"constexpr size_t own_{name}_{n}[] = {{{', '.join(map(str, sizes))}}};\n"
                 f"static_assert(same(sizes(&{name}), own_{name}_{n}), \"{name}\");"
                 for name, all_sizes in calls.items() if name in known for n, sizes in enumerate(sorted(all_sizes))]
        assert len(lines) >= 9
        (tmp_path / "calls.cpp").write_text(SIZES + "\n".join(lines))
        return subprocess.run(["g++", "-std=c++17", "-fsyntax-only", "-w", f"-I{header}", str(tmp_path / "calls.cpp")],
                              timeout=60).returncode
    assert checks(Recorded.calls) == 0
    (sizes,) = Recorded.calls["cuGraphConditionalHandleCreate"]
    for wrong in (sizes[:-1], (*sizes[:-1], 8)):                        # an argument is missing, or too wide
        assert checks({**Recorded.calls, "cuGraphConditionalHandleCreate": {wrong}}) != 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_ptxas_takes_the_setters(tmp_path, arch):
    """And leaves cudaGraphSetConditional to the driver."""
    found = shutil.which("ptxas") or next(map(str, Path("/usr/local").glob("cuda*/bin/ptxas")), None)
    if found is None:
        pytest.skip("ptxas is not installed")
    (tmp_path / "setters.ptx").write_text(conditional_nodes.SETTERS)
    subprocess.run([found, f"-arch={arch}", str(tmp_path / "setters.ptx"), "-o", str(tmp_path / "setters.cubin")], check=True,
                   timeout=60)
    assert b"cudaGraphSetConditional" in (tmp_path / "setters.cubin").read_bytes()


def test_the_driver_defines_the_function():
    """A cubin may leave it undefined, as it may no other function that it lacks."""
    if compiler.compiler_version() < 12040:
        pytest.skip("no NVRTC or nvcc of CUDA 12.4 or later is installed")
    text = """extern "C" __device__ void cudaGraphSetConditional(unsigned long long handle, unsigned int value);
extern "C" __global__ void set(unsigned long long handle, const unsigned char *flag) { cudaGraphSetConditional(handle, *flag); }
"""
    assert b"cudaGraphSetConditional" in compiler.compile_cuda(text, "sm_90a", "cubin")
    with pytest.raises(BuildError, match="Unresolved extern function"):
        compiler.compile_cuda(text.replace("SetConditional", "SetCondition"), "sm_90a", "cubin")
