"""The CUDA target without a GPU: both compilers, several architectures; teams."""
from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from cuda_emulation.cases import emulate

from hloc import api
from hloc.errors import HlocError
from hloc.inputs import Parameter
from hloc.ir import ELEMENT_TYPES, numpy_dtype
from hloc.ir.shapes import array as array_shape
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import (
    INDEX,
    PARALLEL,
    SERIAL,
    VECTOR,
    Apply,
    Assign,
    Buffer,
    Const,
    For,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    Store,
    Var,
)
from hloc.kernels.plan import Launch, Program, Ref
from hloc.kernels.schedule.steps import Refused, steps_text
from hloc.kernels.walks import walk
from hloc.targets.cuda import compiler
from hloc.targets.cuda.costs.loop_choice import candidates, chosen_form, every
from hloc.targets.cuda.gpus import GPUS, gpu_named
from hloc.targets.cuda.loops.index_width import fits
from hloc.targets.cuda.loops.kernels import kernel_source
from hloc.targets.cuda.loops.teams import Total, by_teams
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

H100 = GPUS["h100"]
DATA = Path(__file__).parent.parent / "testdata" / "cuda"
MODULE = """HloModule small
less { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = pred[] compare(a, b), direction=LT }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[64,5000] parameter(0)
  h = bf16[5000,70] parameter(1)
  t = f32[64,5000] tanh(x)
  b = bf16[64,5000] convert(t)
  d = bf16[64,70] dot(b, h), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[] constant(0)
  s = f32[64] reduce(t, z), dimensions={1}, to_apply=add
  o = f32[64,5000] sort(x), dimensions={1}, to_apply=less
  ROOT r = (bf16[64,70], f32[64], f32[64,5000]) tuple(d, s, o)
}
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path / "cache"))


def sources_of(text: str, gpu=H100):
    target = cuda_target(gpu)
    return make_sources(api.plan(api.optimize(api.load(text), target), target), gpu)


def compile_with(name: str, text: str, arch: str) -> bytes:
    if name == "nvcc":
        if shutil.which("nvcc") is None:
            pytest.skip("nvcc is not installed")
        return compiler._compile_with_nvcc(text, arch, "cubin")
    if compiler.nvrtc_version() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    return compiler._compile_with_nvrtc(compiler._nvrtc(), text, arch, "cubin")


def kernel_names(image: bytes) -> set[str]:
    """Functions of a cubin: its .text.* sections."""
    elf = pytest.importorskip("elftools.elf.elffile", reason="pyelftools is not installed")
    sections = elf.ELFFile(io.BytesIO(image)).iter_sections()
    return {s.name[len(".text."):] for s in sections if s.name.startswith(".text.")}


# -- compilers ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("with_compiler", ["nvrtc", "nvcc"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_every_compiler_and_architecture(with_compiler, arch):
    sources = sources_of(MODULE, gpu_named(arch))
    image = compile_with(with_compiler, sources.single_file(), arch)
    assert kernel_names(image) == {g.function for g in sources.geometry}


def test_quick_compilation_makes_the_same_kernels():
    if compiler.nvrtc_version() is None and shutil.which("nvcc") is None:
        pytest.skip("neither NVRTC nor nvcc is installed")
    sources = sources_of(MODULE, gpu_named("sm_80"))
    image = compiler.compile_cuda(sources.single_file(), "sm_80", "cubin", quick=True)
    assert kernel_names(image) >= {g.function for g in sources.geometry}          # less is inlined


def test_ptx_is_text():
    if compiler.nvrtc_version() is None:
        pytest.skip("NVRTC is not installed: pip install nvidia-cuda-nvrtc")
    assert b".target sm_80" in compiler.compile_cuda(sources_of(MODULE).single_file(), "sm_80", "ptx")


def test_no_compiler_says_what_to_install(monkeypatch):
    monkeypatch.setattr(compiler, "_nvrtc", lambda: None)
    monkeypatch.setattr(compiler.shutil, "which", lambda name: None)
    with pytest.raises(HlocError, match="no CUDA compiler") as caught:
        compiler.compile_cuda("", "sm_80", "cubin")
    assert "pip install" in caught.value.hint


def test_compiler_errors_are_shown():
    with pytest.raises(HlocError, match="undefined"):
        compiler.compile_cuda('extern "C" __global__ void k() { undefined(); }', "sm_80", "cubin")


# -- scalar functions --------------------------------------------------------------------------------------------------

def test_quick_divisions_are_rounded_to_bf16():
    """By which they become exact: the quotient of two bf16 numbers is far from the middle between two others."""
    def text(type: str) -> str:
        return sources_of(f"HloModule m\nENTRY e {{ a = {type}[64] parameter(0)  b = {type}[64] parameter(1)\n"
                          f"  ROOT q = {type}[64] divide(a, b) }}\n").readable()
    assert "hloc_quotient_f32(" in text("bf16")
    assert "hloc_quotient_f32(" not in text("f32") + text("f16")
    a, b = np.meshgrid(np.arange(128, 256), np.arange(128, 256))
    quotient = a / b                                            # nine bits of the middle, eight of the numbers
    scale = 2.0 ** (8 - np.floor(np.log2(quotient)))
    middle = (np.floor(quotient * scale / 2) * 2 + 1) / scale
    assert np.min(np.abs(quotient - middle) / quotient) > 2.0 ** -18


# -- teams -------------------------------------------------------------------------------------------------------------

def at(*names_and_factors) -> Apply | Var:
    """A position: sum of variables times factors."""
    total = None
    for name, factor in names_and_factors:
        term = index_apply("multiply", Var(name, INDEX), Const(factor, INDEX)) if factor != 1 else Var(name, INDEX)
        total = term if total is None else index_apply("add", total, term)
    return total


def f32(op: str, *arguments) -> Apply:
    return Apply(op, arguments, "f32")


def run_kernel(kernel: Kernel, inputs: list[np.ndarray], monkeypatch, backwards: bool = False) -> list[np.ndarray]:
    """One kernel as a program: what it reads are parameters, what it writes are results."""
    values = {"parameter": [], "result": []}
    places = []
    for buffer in kernel.buffers:
        region = "parameter" if buffer.access == "read" else "result"
        values[region].append(Parameter(buffer.name, array_shape(buffer.type, buffer.size)))
        size = buffer.size * ELEMENT_TYPES[buffer.type].bytes
        places.append(Ref(region, len(values[region]) - 1, 0, size))
    program = Program("one", (kernel,), (Launch(0, tuple(places)),), tuple(values["parameter"]),
                      tuple(values["result"]), (), 0)
    arrays = [a.reshape(-1).astype(numpy_dtype("f32")) for a in inputs]
    return list(emulate(make_sources(program, H100), arrays, monkeypatch, backwards))


def row_sums(body, rows: int = 5, columns: int = 300) -> Kernel:
    """out[i] = v after `body`, for every row."""
    buffers = (Buffer("x", "f32", rows * columns), Buffer("out", "f32", rows, "write"))
    start = Mutable("v", Const(0.0, "f32"), "add")
    finish = Store("out", Var("i", INDEX), Var("v", "f32"))
    return Kernel("sums", buffers, (For("i", rows, PARALLEL, (start, *body, finish)),))


ELEMENT = Load("x", at(("i", 300), ("j", 1)), "f32")
SUM = Assign("v", f32("add", Var("v", "f32"), ELEMENT))
BODIES = {
    "one loop": ((For("j", 300, VECTOR, (SUM,)),), 1.0),
    "through a name": ((For("j", 300, VECTOR, (Let("t", f32("add", Var("v", "f32"), ELEMENT)),
                                               Assign("v", Var("t", "f32")))),), 1.0),
    "twice": ((For("j", 300, VECTOR, (SUM,)), For("k", 300, VECTOR, (
        Assign("v", f32("add", Var("v", "f32"), Load("x", at(("i", 300), ("k", 1)), "f32"))),))), 2.0),
    "a nest": ((For("a", 3, SERIAL, (For("j", 100, VECTOR, (Assign("v", f32("add", Var("v", "f32"), Load(
        "x", at(("i", 300), ("a", 100), ("j", 1)), "f32"))),)),)),), 1.0),
    "again and again": ((For("a", 3, SERIAL, (For("j", 300, VECTOR, (SUM,)), Assign("v", f32(
        "multiply", Var("v", "f32"), Const(1.0, "f32"))))),), 3.0),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("backwards", [False, True])
def test_sums_of_rows(name, backwards, monkeypatch):
    body, factor = BODIES[name]
    kernel = row_sums(body)
    form = by_teams(kernel, 128, 128)
    assert any(isinstance(s, Total) for s in walk(form.body))
    x = np.random.default_rng(0).normal(size=(5, 300)).astype(np.float32)
    (out,) = run_kernel(kernel, [x], monkeypatch, backwards)
    np.testing.assert_allclose(out, factor * x.sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_rows_kept_in_registers_or_shared(mirrored, backwards, monkeypatch):
    """row[j] = x[j]; out[j] = row[j], or row[n - 1 - j], which other lanes wrote."""
    n = 300
    place = index_apply("subtract", Const(n - 1, INDEX), Var("k", INDEX)) if mirrored else Var("k", INDEX)
    body = (Local("row", "f32", n), For("j", n, VECTOR, (Store("row", Var("j", INDEX), ELEMENT),)),
            For("k", n, VECTOR, (Store("out", at(("i", n), ("k", 1)), Load("row", place, "f32")),)))
    buffers = (Buffer("x", "f32", 5 * n), Buffer("out", "f32", 5 * n, "write"))
    kernel = Kernel("copy", buffers, (For("i", 5, PARALLEL, body),))
    x = np.random.default_rng(0).normal(size=(5, n)).astype(np.float32)
    (out,) = run_kernel(kernel, [x], monkeypatch, backwards)
    np.testing.assert_array_equal(out.reshape(5, n), x[:, ::-1] if mirrored else x)


def test_running_totals_stay_serial(monkeypatch):
    """A loop that carries a value from one iteration to the next is not dealt out."""
    body = (Mutable("v", Const(0.0, "f32")), For("j", 300, SERIAL, (SUM, Store("out", at(("i", 300), ("j", 1)),
                                                                                Var("v", "f32")))))
    buffers = (Buffer("x", "f32", 1500), Buffer("out", "f32", 1500, "write"))
    kernel = Kernel("scan", buffers, (For("i", 5, PARALLEL, body),))
    with pytest.raises(Refused, match="independent iterations"):
        by_teams(kernel, 32, 256)
    x = np.random.default_rng(0).normal(size=(5, 300)).astype(np.float32)
    (out,) = run_kernel(kernel, [x], monkeypatch)
    np.testing.assert_allclose(out.reshape(5, 300), np.cumsum(x, 1), rtol=1e-4, atol=1e-4)


def test_a_row_too_large_is_refused():
    """Memory that a row cannot have is one clear error."""
    n = 1 << 20
    body = (Local("row", "f32", n), For("j", n, VECTOR, (Store("row", Var("j", INDEX), ELEMENT),)),
            For("k", n, VECTOR, (Store("out", Var("k", INDEX), Load("row", index_apply("subtract", Const(n - 1, INDEX), Var("k", INDEX)), "f32")),)))
    kernel = Kernel("big", (Buffer("x", "f32", n), Buffer("out", "f32", n, "write")), (For("i", 1, PARALLEL, body),))
    with pytest.raises(HlocError, match="kernel big on a GPU: its arrays take 4096 KiB of each thread"):
        candidates(kernel, H100)


# -- what keeps a GPU's memory busy ------------------------------------------------------------------------------------

def test_transposes_go_through_shared_memory():
    """Each array that is read across has a tile of its own, if arrays are large; what cannot be read at every place (a
    slice, padded: the sixth module) has none."""
    def tiles_of(text: str) -> int:
        """Of the first schedules with tiles; small arrays are transposed without."""
        forms = [chosen_form(kernel, H100, next((steps_text(s) for s in every(kernel, H100) if "cache_read" in dict(s)), ""))
                 for kernel in api.plan(api.optimize(api.load(text), target), target).kernels]
        return sum(len(set(re.findall(r"__shared__ .*\w+ tile\d", kernel_source(f, "k", H100)[0]))) for f in forms)
    target = cuda_target(H100)
    texts = (DATA / "transposes.hlo").read_text(encoding="utf-8").split("// -----\n")
    tiles = [tiles_of(t) for t in texts]
    assert tiles == [1, 1, 2, 1, 1, 0, 1, 3, 2, 1]


@pytest.mark.parametrize("dimensions, result, least", [("0,1", "", 264), ("0", "4096", 264), ("1", "16384", 1000)])
def test_reductions_fill_the_gpu(dimensions, result, least):
    """Two blocks for each of 132 multiprocessors where the last block joins what the others found."""
    text = ("HloModule m\nadd { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }\n"
            f"ENTRY e {{ x = f32[16384,4096] parameter(0)  z = f32[] constant(0)\n"
            f"  ROOT s = f32[{result}] reduce(x, z), dimensions={{{dimensions}}}, to_apply=add }}")
    assert sources_of(text).geometry[0].grid[0] >= least


@pytest.mark.parametrize("text, width", [
    ("x = f32[1000,1000] parameter(0)  ROOT y = f32[1000,1000] reverse(x), dimensions={0,1}", "int"),
    ("x = s8[70000,70000] parameter(0)  ROOT y = s8[70000,70000] reverse(x), dimensions={0,1}", "long"),
    ("x = f32[1000] parameter(0)  i = s32[50,1] parameter(1)  ROOT y = f32[50] gather(x, i), offset_dims={}, "
     "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1}", "long")],
    ids=["small", "large", "of data"])
def test_positions_have_32_bits_where_these_are_enough(text, width):
    source = sources_of(f"HloModule m\nENTRY e {{ {text} }}").kernels[0]
    assert f"for ({width} " in source and ("long" in source) == (width == "long")


def test_ranges_of_positions():
    i, two = Var("i", INDEX), Const(2, INDEX)

    def kernel(position, extent=1000):
        store = Store("out", position, Const(0.0, "f32"))
        return Kernel("k", (Buffer("out", "f32", 10, "write"),), (For("i", extent, PARALLEL, (store,)),))
    large = Const(1 << 22, INDEX)
    assert fits(kernel(index_apply("multiply", i, two)))
    assert fits(kernel(index_apply("divide", index_apply("subtract", i, large), two)))
    assert not fits(kernel(Apply("remainder", (index_apply("multiply", i, large), two), INDEX)))     # on the way
    assert not fits(kernel(Apply("convert", (Const(1, "s32"),), INDEX)))
    assert not fits(kernel(i, 1 << 30))
    assert not fits(kernel(index_apply("divide", two, i)))                                           # by zero
    for extent, index in ((1000, "int"), (1 << 30, "long")):
        text, _ = kernel_source(chosen_form(kernel(i, extent), H100), "k", H100)
        assert f"for ({index} " in text


# -- what sources say --------------------------------------------------------------------------------------------------

def test_sources_name_their_hlo():
    """HLO, op name, file and line, also by way of stack frames; grid, bytes and flops; nothing ends a comment early."""
    source = sources_of("""HloModule m

FileNames
1 "/home/me/model.py"
2 "/home/me/layers.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=2 end_column=48}
2 {file_name_id=2 function_name_id=1 line=12 end_line=12 column=2 end_column=48}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}


ENTRY e {
  x = f32[64,128] parameter(0)
  w = f32[128,96] parameter(1)
  t = f32[64,128] tanh(x), metadata={op_name="jit(f)/tanh */" stack_frame_id=2}
  u = f32[64,128] cosine(t), metadata={op_name="jit(f)/cos" source_file="/a/b/old.py" source_line=7}
  ROOT d = f32[64,96] dot(u, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/dot" stack_frame_id=1}
}
""").readable()
    assert "jit(f)/tanh" in source and "layers.py:12" in source and "tanh */" not in source
    assert "jit(f)/cos, old.py:7" in source and "dot(" in source and "jit(f)/dot, model.py:3" in source
    assert re.search(r"/\* grid \d+ x block \d+; [\d,]+ bytes, [\d,]+ flops \*/", source)
    assert "1,572,864 flops" in source
