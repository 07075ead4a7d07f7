"""Arguments and results that stay on the GPU, on the emulated driver: bound weights are sent once, arrays of other
libraries are read where they lie, results chain from call to call."""
from __future__ import annotations

import ctypes
import gc
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest
from cuda_emulation import driver, with_pycuda
from cuda_emulation.cases import backend_of

import hloc
from hloc import api
from hloc.errors import RunError
from hloc.executable import Executable
from hloc.inputs import dlpack
from hloc.targets.cuda.execution.device_arrays import DeviceArray
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
LAYER = """HloModule layer
ENTRY e {
  w = %(t)s[8,8] parameter(0)
  x = %(t)s[4,8] parameter(1)
  b = %(t)s[] parameter(2)
  y = %(t)s[4,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = %(t)s[4,8] broadcast(b), dimensions={}
  s = %(t)s[4,8] add(y, c)
  z = %(t)s[0] constant({})
  ROOT r = (%(t)s[4,8], %(t)s[0]) tuple(s, z)
}
"""
RANDOM = np.random.default_rng(0)
W, X = RANDOM.normal(size=(8, 8)).astype("f4"), RANDOM.normal(size=(4, 8)).astype("f4")
B = np.float32(0.5)


@pytest.fixture
def sent(monkeypatch):
    """The bytes of each copy to the device and on it."""
    driver.install(monkeypatch)
    found = {"host": [], "device": []}
    to, on = driver.memcpy_htod_async, driver.memcpy_dtod_async

    def host(target, array, stream):
        found["host"].append(array.nbytes)
        to(target, array, stream)

    def device(target, source, size, stream):
        found["device"].append(size)
        on(target, source, size, stream)
    monkeypatch.setattr(driver, "memcpy_htod_async", host)
    monkeypatch.setattr(driver, "memcpy_dtod_async", device)
    return found


def loaded(element: str = "f32") -> Executable:
    target = cuda_target(GPUS["h100"])
    module = api.optimize(api.load(LAYER % {"t": element}), target)
    sources = make_sources(api.plan(module, target), GPUS["h100"])
    backend, program = backend_of(sources), sources.program
    return Executable("layer", "sm_90a", program.parameters, program.results, lambda: backend, str)


def expected(w=W, x=X, b=B):
    return x @ w + b


def test_bound_weights_are_sent_once(sent):
    """Another program's, or a call without them, takes their place; then they are sent again."""
    exe = loaded()
    exe(W, X, B)
    sent["host"].clear()
    bound, other = exe.bind({"w": W, "b": B}), exe.bind({"w": -W})
    for n in range(4):                                      # kernel by kernel, then as a graph
        np.testing.assert_allclose(bound(X + n)[0], expected(x=X + n), rtol=1e-5)
    assert sent["host"] == [W.nbytes, X.nbytes, 4, X.nbytes, X.nbytes, X.nbytes]
    for _ in range(2):
        np.testing.assert_allclose(other(X, B)[0], expected(-W), rtol=1e-5)
        np.testing.assert_allclose(bound(X)[0], expected(), rtol=1e-5)
    np.testing.assert_allclose(exe(W * 2, X, B)[0], expected(W * 2), rtol=1e-5)
    np.testing.assert_allclose(bound(X)[0], expected(), rtol=1e-5)
    sent["host"].clear()
    assert np.allclose(bound.bind([X])()[0], bound(X)[0]) and W.nbytes not in sent["host"]
    del bound, other
    gc.collect()
    np.testing.assert_allclose(exe.bind({"w": W * 3})(X, B)[0], expected(W * 3), rtol=1e-5)


def test_results_stay_on_the_device(sent):
    exe = loaded()
    step = exe.bind({"w": W, "b": B})
    first, empty = step(X, device=True)
    assert isinstance(first, DeviceArray) and (first.shape, first.dtype, first.nbytes) == ((4, 8), np.dtype("f4"), 128)
    assert np.asarray(empty).shape == (0,) and "float32[4, 8]" in repr(first)
    sent["host"].clear()
    value, chained = expected(), first
    for _ in range(3):
        chained, _ = step(chained, device=True)
        value = value @ W + B
    assert sent["host"] == []
    np.testing.assert_allclose(np.asarray(chained), value, rtol=1e-4)
    np.testing.assert_allclose(first, expected(), rtol=1e-5)             # no later call has changed it
    np.testing.assert_allclose(step(chained)[0], value @ W + B, rtol=1e-4)
    weights = exe.bind({"w": W, "x": X}).bind({0: B})(device=True)[0]
    np.testing.assert_allclose(loaded().bind({"x": weights})(W, B)[0], expected() @ W + B, rtol=1e-4)
    gc.collect()
    before = len(driver.Allocation.living)
    del first, chained
    gc.collect()
    assert len(driver.Allocation.living) == before - 2


class OnDevice:
    """An array of another library, as CuPy's and PyTorch's are: by the CUDA array interface, or by DLPack alone."""

    def __init__(self, array: np.ndarray, typestr: str = "", stream: int | None = None, strides=None):
        self.memory, array = driver.mem_alloc(array.nbytes), np.ascontiguousarray(array)
        ctypes.memmove(int(self.memory), array.ctypes.data, array.nbytes)
        self.memory.written[:] = 1
        self.facts = {"version": 3, "shape": array.shape, "typestr": typestr or array.dtype.str,
                      "data": (int(self.memory), False), "stream": stream, "strides": strides}

    @property
    def __cuda_array_interface__(self):
        return self.facts


class ByCapsule:
    def __init__(self, array, device: int = 0):
        self.held = OnDevice(array)
        self.view = dlpack.DeviceView(int(self.held.memory), array.dtype, array.shape, self.held)
        self.device, self.streams = device, []

    def __dlpack_device__(self):
        return 2, self.device

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return dlpack.capsule_of(self.view)


def test_arrays_of_other_libraries_are_read_on_the_device(sent, monkeypatch):
    exe, waited = loaded(), []
    monkeypatch.setattr(driver.Context, "synchronize", staticmethod(lambda: waited.append(1)))
    capsule = ByCapsule(X)
    for x in (OnDevice(X), capsule, OnDevice(X, strides=(32, 4))):
        sent["host"].clear()
        np.testing.assert_allclose(exe(W, x, B)[0], expected(), rtol=1e-5)
        assert sent["host"] == [W.nbytes, 4] and not waited
    assert capsule.streams == [exe.backend.stream.handle]
    np.testing.assert_allclose(exe(W, OnDevice(X, stream=7), B)[0], expected(), rtol=1e-5)
    assert waited
    np.testing.assert_allclose(exe.bind({"w": ByCapsule(W)})(X, B)[0], expected(), rtol=1e-5)
    import ml_dtypes
    half, w = X.astype(ml_dtypes.bfloat16), np.eye(8, dtype=ml_dtypes.bfloat16)
    exe = loaded("bf16")
    for x in (OnDevice(half, "<V2"), ByCapsule(half)):
        np.testing.assert_array_equal(exe(w, x, half[0, 0] * 0)[0].astype("f4"), half.astype("f4"))


def test_arrays_that_are_refused(sent):
    exe = loaded()
    for x, words in ((OnDevice(X.T), "must be f32[4,8], but f32[8,4] was given"), (OnDevice(X, "<i4"), "but s32[4,8] was given"),
                     (OnDevice(X, strides=(4, 16)), "are not contiguous"), (ByCapsule(X, 1), "lies on cuda:1"),
                     (ByCapsule(X[:2]), "but f32[2,8] was given")):
        for call in (lambda x=x: exe(W, x, B), lambda x=x: exe.bind({"x": x})):
            with pytest.raises(RunError) as error:
                call()
            assert words in str(error.value) and "input 1 (x)" in str(error.value)
    with pytest.raises(RunError, match="out of memory on the GPU's side"):
        big = driver.mem_get_info()[0]
        held = driver.mem_alloc(big)
        exe(W, X, B, device=True)
    held.free()


def test_results_for_other_libraries(sent):
    """What a consumer reads from a capsule: the address, and that the memory lives as long as the capsule."""
    result, _ = loaded()(W, X, B, device=True)
    facts = result.__cuda_array_interface__
    assert facts["shape"] == (4, 8) and facts["typestr"] == "<f4" and result.__dlpack_device__() == (2, 0)
    view = dlpack.device_view(result, 1)
    assert view.address == facts["data"][0] and view.shape == (4, 8)

    class Capsules:
        def __init__(self, array):
            self.array = array
        __dlpack_device__ = DeviceArray.__dlpack_device__

        def __dlpack__(self, **arguments):
            return self.array.__dlpack__(**arguments)
    view = dlpack.device_view(Capsules(result), 1)
    assert (view.address, view.dtype, view.shape) == (facts["data"][0], result.dtype, result.shape)
    gc.collect()
    before = len(driver.Allocation.living)
    del result, facts
    gc.collect()
    assert len(driver.Allocation.living) == before
    np.testing.assert_allclose(loaded()(W, ByViewAlone(view), B)[0], expected() @ W + B, rtol=1e-4)
    del view
    gc.collect()
    assert len(driver.Allocation.living) < before
    result, _ = loaded()(W, X, B, device=True)
    for arguments in ({"dl_device": (1, 0)}, {"copy": True}):
        with pytest.raises(BufferError):
            result.__dlpack__(**arguments)
    with pytest.raises(ValueError):
        np.asarray(result, copy=False)
    assert np.asarray(result, np.float64).dtype == np.float64


class ByViewAlone:
    def __init__(self, view):
        self.__cuda_array_interface__ = {"version": 3, "shape": view.shape, "typestr": view.dtype.str, "data": (view.address, False)}


def test_threads_take_turns(sent):
    exe, wrong = loaded(), []

    def work(scale):
        bound = exe.bind({"w": W * scale})
        for _ in range(20):
            if not np.allclose(bound(X, B)[0], expected(W * scale), rtol=1e-4, atol=1e-5):
                wrong.append(scale)
    threads = [threading.Thread(target=work, args=(np.float32(n),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(bool(with_pycuda.missing()), reason=with_pycuda.missing() or "-")
def test_with_pycuda_and_functions_of_jax(tmp_path):
    """The real PyCUDA on the emulated driver: nothing is left on the device, also of arrays that live to the end."""
    pytest.importorskip("jax", reason="jax is not installed")
    with_pycuda.driver_library(tmp_path)
    script = textwrap.dedent("""\
        import sys
        sys.path[:0] = [sys.argv[1]]
        from pathlib import Path
        from cuda_emulation import with_pycuda
        with_pycuda.load(Path("libcuda.so.1").resolve())
        import hloc, numpy as np
        from pycuda import gpuarray
        def step(params, x):
            return {"x": x @ params["w"] + 1}
        params, x = {"w": np.eye(8, dtype=np.float32) * 2}, np.ones((4, 8), np.float32)
        f = hloc.compile(step, params, x).bind(params)
        state = {"x": x}
        for _ in range(3):
            state = f.on_device(state["x"])
        print(type(state["x"]).__name__, f.executable.target, float(np.asarray(state["x"])[0, 0]), f(state["x"])["x"][0, 0])
        f.executable.backend.backend.context.push()
        ours = gpuarray.to_gpu(x)
        print(f(ours)["x"][0, 0], state["x"].__cuda_array_interface__["shape"])
        del ours
        f.executable.backend.backend.context.pop()
        del f
    """)
    done = subprocess.run([sys.executable, "-c", script, str(Path(__file__).parent)], capture_output=True, text=True,
                          timeout=280, cwd=tmp_path, env={**os.environ, "EMULATED_REPORT": str(tmp_path / "report")})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["DeviceArray sm_90a 15.0 31.0", "3.0 (4, 8)"]
    assert (tmp_path / "report").read_text().strip() == "memory 0 host 0 modules 0 streams 0 graphs 0 contexts 0", done.stderr


def test_hosts_have_no_other_results():
    result, _ = hloc.compile(LAYER % {"t": "f32"}, "cpu")(W, X, B, device=True)
    assert type(result) is np.ndarray
