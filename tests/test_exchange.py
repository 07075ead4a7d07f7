"""Arrays of other libraries go in without copies, results come out for them; executables are bound, pickled and shown."""
from __future__ import annotations

import ctypes
import gc
import importlib.util
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

import hloc
from hloc.errors import RunError, UsageError
from hloc.inputs import dlpack

ROOT = Path(__file__).parent.parent
NEGATE = "HloModule neg\nENTRY e {\n  x = %s parameter(0)\n  ROOT n = %s negate(x)\n}\n"
SUM = "HloModule sums\nENTRY e {\n  w = f32[4] parameter(0)\n  x = f32[4] parameter(1)\n  b = f32[] parameter(2)\n" \
      "  s = f32[4] add(w, x)\n  c = f32[4] broadcast(b), dimensions={}\n  ROOT r = f32[4] multiply(s, c)\n}\n"
W, X, B = np.float32([1, 2, 3, 4]), np.float32([10, 20, 30, 40]), np.float32(2)
TARGETS = ("cpu", "reference")


# -- DLPack ------------------------------------------------------------------------------------------------------------

class Exporter:
    """An array that another library offers by DLPack alone; what the capsule says can be changed."""

    def __init__(self, array: np.ndarray, code: int = 2, bits: int = 32, device: int = 1, strides: bool = True):
        self.array, self.alive = array, 0
        self.device, self.type, self.strides = device, (code, bits), strides

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, **_):
        array, size = self.array, self.array.dtype.itemsize
        sizes = (ctypes.c_int64 * 8)(*array.shape)
        steps = (ctypes.c_int64 * 8)(*[s // size for s in array.strides])
        managed = dlpack._Managed(dlpack._Tensor(
            np.asarray(array).ctypes.data, self.device, 0, array.ndim, dlpack._DataType(*self.type, 1), sizes,
            steps if self.strides else None, 0), None, dlpack._give_back)
        dlpack._handed_out[ctypes.addressof(managed)] = (managed, sizes, steps, self)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return make(ctypes.addressof(managed), b"dltensor", ctypes.cast(dlpack._end_of_capsule, ctypes.c_void_p))


def test_a_capsule_is_read_where_it_lies():
    """With strides, of types that NumPy does not know, and given back when nobody uses it any more."""
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    for array in (base, base.T, base[::2, ::3], base[::-1], base[:, ::-2].T, base[1:2, 2:3].reshape(()), base[:0]):
        read = dlpack.host_array(Exporter(array))
        np.testing.assert_array_equal(read, array)
        assert not array.size or np.shares_memory(read, base) and not read.flags.writeable
    import ml_dtypes
    half = base.astype(ml_dtypes.bfloat16)
    assert dlpack.host_array(Exporter(half, 4, 16)).dtype == half.dtype
    for target in TARGETS:
        exe = hloc.compile(NEGATE % (("bf16[4,6]",) * 2), target)
        np.testing.assert_array_equal(exe(Exporter(half, 4, 16))[0].astype("f4"), -base)
        np.testing.assert_array_equal(exe(Exporter(half, 4, 16, strides=False))[0].astype("f4"), -base)
    before = len(dlpack._handed_out)
    read = dlpack.host_array(Exporter(base))
    view = read[1:]
    del read
    gc.collect()
    assert len(dlpack._handed_out) == before + 1 and view[0, 0] == 6
    del view
    gc.collect()
    assert len(dlpack._handed_out) == before


def test_capsules_that_are_refused():
    exe = hloc.compile(NEGATE % (("f32[2]",) * 2), "cpu")
    x = np.float32([1, 2])

    class Broken:
        def __init__(self, answer, device=(1, 0)):
            self.answer, self.device = answer, device

        def __dlpack_device__(self):
            return self.device

        def __dlpack__(self, **_):
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    cases = {"gives no DLPack capsule": Broken(3), "cannot be shared: no": Broken(ValueError("no\nmore")),
             "does not say where it lies": Broken(None, 5), "lies on cuda:0, and this program runs on the host": Exporter(x, device=2),
             "DLPack code 2, 4 bits": Exporter(x, bits=4), "DLPack code 77": Exporter(x, code=77),
             "but s32[2] was given": Exporter(x, code=0), "but f32[3] was given": Exporter(np.zeros(3, "f4")),
             "but object[] was given": object()}
    for words, given in cases.items():
        with pytest.raises(RunError) as error:
            exe(given)
        assert words in str(error.value) and "input 0 (x) must be f32[2]" in str(error.value)


torch_needed = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: pip install torch")


@torch_needed
def test_tensors_of_pytorch():
    """They go in where they lie, f32 as well as types that NumPy does not know; results go back without a copy."""
    import torch
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16), ("s32", torch.int32),
                        ("s8", torch.int8), ("f64", torch.float64)):
        tensor = torch.arange(6).reshape(2, 3).to(dtype)
        read = dlpack.host_array(tensor)
        assert read.ctypes.data == tensor.data_ptr()
        for target in TARGETS:
            exe = hloc.compile(NEGATE % ((f"{name}[2,3]",) * 2), target)
            np.testing.assert_array_equal(exe(tensor)[0].astype("f8"), -tensor.to(torch.float64).numpy())
            np.testing.assert_array_equal(exe(tensor.T.contiguous().T)[0].astype("f8"), -tensor.to(torch.float64).numpy())
    result, = hloc.compile(NEGATE % (("f32[2,3]",) * 2), "cpu")(torch.ones(2, 3))
    back = torch.from_dlpack(result)
    assert back.data_ptr() == result.ctypes.data and torch.equal(back, -torch.ones(2, 3))
    with pytest.raises(RunError, match="input 0 .* tensors that require gradient, use tensor.detach"):
        hloc.compile(NEGATE % (("f32[2]",) * 2), "cpu")(torch.ones(2, requires_grad=True))


@torch_needed
def test_functions_of_jax_take_tensors():
    pytest.importorskip("jax", reason="jax is not installed")
    import torch
    f = hloc.jit(lambda x, y: x @ y, target="cpu")
    for dtype in (torch.float32, torch.bfloat16):
        np.testing.assert_array_equal(f(torch.ones(2, 3, dtype=dtype), torch.ones(3, 2, dtype=dtype)).astype("f4"), np.full((2, 2), 3, "f4"))


# -- bind --------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("target", TARGETS)
def test_bound_arguments(target):
    """By name, by number, or the first ones, in any order; again and again."""
    exe, expected = hloc.compile(SUM, target), (W + X) * B
    for weights in ({"w": W}, {0: W}, [W], (W.tolist(),)):
        bound = exe.bind(weights)
        assert [p.name for p in bound.parameters] == ["x", "b"]
        np.testing.assert_array_equal(bound(X, B)[0], expected)
        np.testing.assert_array_equal(bound(X[::-1], B, device=True)[0], (W + X[::-1]) * B)
    np.testing.assert_array_equal(exe.bind({"b": 2.0, "w": W})(X)[0], expected)
    np.testing.assert_array_equal(exe.bind({"x": X}).bind({"b": B})(W)[0], expected)
    np.testing.assert_array_equal(exe.bind([W, X, B])()[0], expected)
    np.testing.assert_array_equal(exe.bind({})(W, X, B)[0], expected)
    one, two = exe.bind({"w": W}), exe.bind({"w": -W})
    for _ in range(3):
        np.testing.assert_array_equal(one(X, B)[0], (X + W) * B)
        np.testing.assert_array_equal(two(X, B)[0], (X - W) * B)


def test_binding_is_refused_by_name():
    exe = hloc.compile(SUM, "cpu")
    for weights, words in (({"v": W}, "no parameter 'v' to bind\nhint: parameters: w, x, b"), ({3: W}, "no parameter 3"),
                           ({0: W, "w": W}, "parameter w is bound twice"), (W, "or a list for the first parameters, not ndarray"),
                           ([W] * 4, "no parameter 3"), ({"w": W[:2]}, "input 0 (w) must be f32[4], but f32[2] was given"),
                           ({"b": W}, "input 2 (b) must be f32[], but f32[4] was given"), ({-1: W}, "no parameter -1"),
                           ({None: W}, "no parameter None")):
        with pytest.raises((UsageError, RunError)) as error:
            exe.bind(weights)
        assert words in str(error.value)
    bound = exe.bind({"w": W})
    for arguments, words in (((X,), "takes 2 inputs, but 1 was given; missing: b f32[]"), ((X, B, B), "takes 2 inputs, but 3"),
                             ((X[:1], B), "input 0 (x) must be f32[4], but f32[1] was given")):
        with pytest.raises(RunError) as error:
            bound(*arguments)
        assert words in str(error.value)
    with pytest.raises(UsageError, match="all are bound"):
        exe.bind([W, X, B]).bind([W])


def test_bound_arguments_of_any_layout_are_laid_out_once():
    exe = hloc.compile(SUM, "cpu")
    raw = np.zeros(17, np.uint8)
    raw[1:] = np.frombuffer(W.tobytes(), np.uint8)
    unaligned, strided = raw[1:].view(np.float32), np.repeat(W, 2)[::2]
    for w in (unaligned, strided):
        bound = exe.bind({"w": w})
        assert bound.backend.quick((X, np.asarray(B))) is not None
        np.testing.assert_array_equal(bound(X, B)[0], (W + X) * B)


def test_threads_share_a_bound_program():
    exe = hloc.compile(SUM, "cpu")
    wrong = []

    def work(scale):
        bound = exe.bind({"w": W * scale})
        for _ in range(200):
            if not np.array_equal(bound(X, B)[0], (W * scale + X) * B):
                wrong.append(scale)
    threads = [threading.Thread(target=work, args=(np.float32(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_bound_arguments_of_dynamic_sizes():
    text = "HloModule d\nENTRY e {\n  x = f32[<=8] parameter(0)\n  y = f32[<=8] parameter(1)\n  ROOT s = f32[<=8] add(x, y)\n}\n"
    for target in TARGETS:
        bound = hloc.compile(text, target).bind({"x": np.ones(3, np.float32)})
        np.testing.assert_array_equal(bound(np.ones(3, np.float32))[0], np.full(3, 2, np.float32))


# -- pickles, names, notebooks, types ----------------------------------------------------------------------------------

def test_executables_pickle_as_module_and_options(tmp_path):
    path = tmp_path / "sum.hlo"
    path.write_text(SUM)
    module = hloc.load(SUM)
    options = hloc.Options(passes={"fusion": "off"}, progress=lambda *_: None)
    for exe in (hloc.compile(path, "cpu"), hloc.compile(SUM, "reference"), hloc.compile(module, "cpu", options=options),
                hloc.compile(str(path), "cpu").bind({"w": W}), hloc.compile(SUM, "h100", run=False)):
        written = pickle.dumps(exe)
        again = pickle.loads(written)
        assert (repr(again), again.results) == (repr(exe), exe.results)
        if exe.target != "sm_90a":
            arrays = [W, X, B][-len(exe.parameters):]
            np.testing.assert_array_equal(again(*arrays)[0], (W + X) * B)
            assert pickle.loads(pickle.dumps(again))(*arrays)[0].tolist() == again(*arrays)[0].tolist()
    path.unlink()
    assert pickle.loads(written)
    hloc.compile(SUM, "cpu").save(tmp_path / "sum.so")
    from hloc.api import load_compiled
    for exe in (load_compiled(tmp_path / "sum.so"), hloc.compile(module, "cpu", consume=True)):
        with pytest.raises(UsageError, match="does not pickle"):
            pickle.dumps(exe)


@pytest.mark.parametrize("root, names", [("f32[2] negate(x)", ["result.0"]), ("(f32[2]) tuple(x)", ["result.0"]),
                                         ("(f32[2], f32[2]) tuple(x, x)", ["result.0", "result.1"])])
def test_results_have_the_same_names_on_every_target(root, names, tmp_path):
    text = f"HloModule r\nENTRY e {{\n  x = f32[2] parameter(0)\n  ROOT r = {root}\n}}\n"
    for target in ("cpu", "cpu", "reference", "h100"):
        exe = hloc.compile(text, target)
        assert [r.name for r in exe.results] == names and [p.name for p in exe.parameters] == ["x"]
    hloc.compile(text, "cpu").save(tmp_path / "r.so")
    from hloc.api import load_compiled
    assert [r.name for r in load_compiled(tmp_path / "r.so").results] == names


def test_html_is_escaped():
    from hloc.ir import Computation, Instruction, Module, array
    evil = "<script>alert(1)</script>\x1b"
    x = Instruction(evil, "parameter", array("f32", 2), parameter_number=0)
    module = Module(evil, [entry := Computation("e", [x])], entry)
    many = hloc.compile("HloModule m\nENTRY e {\n" + "".join(f"  p{n} = f32[2] parameter({n})\n" for n in range(40))
                        + "  ROOT r = f32[2] negate(p7)\n}\n", "reference")
    for html in (module._repr_html_(), hloc.executable.Executable(evil, evil, [x], [x], None, None)._repr_html_()):
        assert "<script" not in html and "\x1b" not in html and "&lt;script&gt;" in html and "f32[2]" in html
    assert "parameters (40)" in many._repr_html_() and "10 more" in many._repr_html_()


def test_python_dash_m():
    done = subprocess.run([sys.executable, "-m", "hloc", "--version"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == f"hloc, version {hloc.__version__}\n"
    done = subprocess.run([sys.executable, "-m", "hloc", "run", "none.hlo"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.startswith("error: cannot read none.hlo")


USER = """\
from pathlib import Path
import numpy as np
import numpy.typing as npt
import hloc

module: hloc.Module = hloc.load(Path("model.hlo"))
exe: hloc.Executable = hloc.compile(module, target="cpu", options=hloc.Options(passes={"fusion": "off"}))
weights: npt.NDArray[np.float32] = np.ones((3, 4), np.float32)
results = exe(weights, device=True)
first = results[0]
bound: hloc.Executable = exe.bind({"w": weights}).bind([weights])
names: list[str] = [p.name for p in exe.parameters]
exe.save("model.so")
text: str = exe.source + exe.text(".hlo")


@hloc.jit
def double(x: object) -> object:
    return x


def layer(x: object, y: int) -> object:
    return x


compiled: hloc.CompiledFunction = hloc.compile(layer, weights, 3, target="cpu")
output = compiled(weights, 3)
rest: hloc.CompiledFunction = compiled.bind(weights)
later: hloc.JittedFunction = hloc.jit(target="cpu")(layer)
twice = hloc.jit(layer, target="cpu", static_argnums=1)(weights, 2)
try:
    hloc.compile("ENTRY ...", "cpu")
except hloc.HlocError as error:
    print(error.message, error.span, error.hint)
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_accepts_a_program_that_uses_hloc(tmp_path):
    """And tells of what is wrong with another: hloc's types are there."""
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(textwrap.dedent("""\
        import hloc
        exe = hloc.compile("m.hlo", 3)
        exe.parameters = 3
        hloc.load(4)
    """))
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path),
                           "user.py", "wrong.py"], cwd=tmp_path, capture_output=True, text=True, timeout=280,
                          env={**__import__("os").environ, "MYPYPATH": str(ROOT)})
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert done.returncode == 1 and len(errors) >= 2, done.stdout + done.stderr
    assert all(line.startswith("wrong.py:") for line in errors), done.stdout
