"""Operands of products that are computed on their way into the tiles: which, how they are read, and what mistakes show.

testdata/cuda/prologues.hlo holds each kind; tests/test_cuda_kernels.py compares it with the evaluator.
"""
from __future__ import annotations

import shutil

import ml_dtypes
import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of, emulate

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import Evaluator
from hloc.inputs import check_arrays
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, Const, Tile, Var
from hloc.targets.cuda.compiler import compiler_version
from hloc.targets.cuda.gpus import GPUS, gpu_named
from hloc.targets.cuda.libraries.products import library_product
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.prologues import Step, step_of
from hloc.targets.cuda.tiles.source import variants
from hloc.tools.explain import explain

H100 = GPUS["h100"]
emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
compiled = pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")


def weights(rows: int, depth=4096, columns=4096, stored="s8", type="bf16", along=True) -> str:
    """rows x depth by a matrix in few bits with a scale for each column, which lies along the depth or across it."""
    order, place, k = (f"{columns},{depth}", 0, 1) if along else (f"{depth},{columns}", 1, 0)
    return f"""HloModule weights
ENTRY e {{
  x = {type}[{rows},{depth}] parameter(0)  w = {stored}[{order}] parameter(1)  s = {type}[{columns}] parameter(2)
  c = {type}[{order}] convert(w)  t = {type}[{order}] broadcast(s), dimensions={{{place}}}
  m = {type}[{order}] multiply(c, t)
  ROOT d = {type}[{rows},{columns}] dot(x, m), lhs_contracting_dims={{1}}, rhs_contracting_dims={{{k}}}
}}
"""


def activation(rows: int, formula: str, type="bf16", depth=4096, columns=4096, before="", batch=0, algorithm="") -> str:
    """formula: instructions over x that end in y, the left operand; {s} is its shape."""
    lead, dims = (f"{batch},", "lhs_batch_dims={0}, rhs_batch_dims={0}, ") if batch else ("", "")
    k = 2 if batch else 1
    shape = f"{type}[{lead}{rows},{depth}]"
    return f"""HloModule activation
ENTRY e {{
  x = {shape} parameter(0)  w = {type}[{lead}{depth},{columns}] parameter(1)
  one = {type}[] constant(1)  ones = {shape} broadcast(one), dimensions={{}}
  {formula.format(s=shape)}
  ROOT d = {type}[{lead}{rows},{columns}] dot(y, w), {dims}lhs_contracting_dims={{{k}}}, rhs_contracting_dims={{{k - 1}}}{algorithm}
}}
"""


SHIFTED = "y = {s} add(x, ones)"
LOGARITHM = "a = {s} abs(x)  y = {s} log(a)"                # of nothing it is no number
RELU = "z = {s} subtract(ones, ones)  y = {s} maximum(x, z)"


def planned(text: str, gpu=H100):
    target = cuda_target(gpu)
    return api.plan(api.optimize(api.load(text), target), target)


def kernels(text: str, gpu=H100) -> tuple[int, int]:
    """How many there are, and how many operands are computed on their way."""
    found = planned(text, gpu).kernels
    return len(found), sum(len(k.prologues) for k in found if isinstance(k, Tile))


def reasons(text: str) -> set[str]:
    """Why arrays go through memory."""
    return {e.reason for e in explain(api.load(text), cuda_target(H100)).edges}


# -- which ones --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("rows", [1, 8, 64, 256])
@pytest.mark.parametrize("along", [True, False])
def test_weights_in_few_bits(rows, along):
    assert kernels(weights(rows, along=along)) == (1, 1)


@pytest.mark.parametrize("text", [weights(16384), activation(16384, SHIFTED)])
def test_what_many_tiles_would_compute_again(text):
    """Products whose time is that of the tensor cores stay with wgmma, and operands that these read from memory."""
    (tile,) = [k for k in planned(text).kernels if isinstance(k, Tile)]
    assert kernels(text) == (2, 0) and "wgmma" in variants(tile, H100)[0]
    assert reasons(text) == {"computing it for each tile of the matmul costs more than storing it once"}


@pytest.mark.parametrize("formula, reason", [
    ("t = {s} tanh(x)  y = {s} multiply(x, t)", ""), ("a = {s} multiply(x, x)  y = {s} add(a, x)", ""),
    ("a = {s} power(x, x)  b = {s} power(a, x)  y = {s} tanh(b)", "fusing would compute too much for each tile of the matmul"),
])
def test_activations(formula, reason):
    text = activation(64, formula, columns=128)
    assert kernels(text) == ((2, 0) if reason else (1, 1)) and reasons(text) == ({reason} if reason else set())


def test_an_operand_that_others_read_is_stored():
    text = activation(64, "y = {s} tanh(x)").replace("ROOT d", "d").replace("\n}\n", """
  e = bf16[64,4096] exponential(y)  ROOT both = (bf16[64,4096], bf16[64,4096]) tuple(d, e) }
""")
    assert kernels(text)[1] == 0


def test_an_epilogue_stays_an_epilogue():
    """What follows a product is computed there once, not by the tiles of the next one."""
    before = "v = bf16[4096,4096] parameter(2)  h = {s} dot(x, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
    for formula in ("y = {s} add(h, ones)", "a = {s} add(h, ones)  b = {s} tanh(a)  y = {s} multiply(a, b)"):
        text = activation(64, f"{before}  {formula}", columns=128)
        assert kernels(text) == (2, 0) and reasons(text) == {"it is fused as the epilogue of the matmul or convolution that produces its operand"}


def test_libraries_compute_none():
    (tile,) = planned(weights(64)).kernels
    assert library_product(tile) is None and not any("wgmma" in variant for variant in variants(tile, H100))


def test_steps():
    """Positions that move by one with their vector, and those that all of it share: scales of groups."""
    def apply(op, a, b):
        return index_apply(op, a, Const(b, INDEX) if isinstance(b, int) else b)
    row, depth = Var("row", INDEX), Var("depth", INDEX)
    lets = {"t0": apply("divide", depth, 32)}
    cases = [(apply("add", apply("multiply", row, 64), depth), Step(1, 8)),
             (apply("add", apply("multiply", row, 30), depth), Step(1, 2)),
             (apply("add", apply("multiply", Var("t0", INDEX), 72), row), Step(0, 1)),
             (apply("remainder", apply("add", apply("multiply", row, 64), depth), 32), Step(1, 8)),
             (apply("divide", depth, 4), None), (apply("divide", apply("add", depth, 4), 8), None),
             (apply("multiply", depth, 3), Step(3, 24)), (apply("multiply", depth, row), None)]
    for expr, expected in cases:
        assert step_of(expr, "depth", 8, lets) == expected, expr


def test_bytes_are_not_rounded():
    """What bf16 holds exactly is multiplied as it is; the product with its scale is rounded."""
    text = make_sources(planned(weights(64)), H100).readable()
    (line,) = [line for line in text.split("\n") if "element =" in line]
    assert "element = x1_f32.at[lane] * hloc_bf16_to_f32(read.x0)" in line and "hloc_widened<hloc_s8>(read.x1)" in text
    assert "hloc_f32_to_bf16(hloc" not in text and "return hloc_rounded_all_bf16(made);" in text


# -- what is wrong shows -----------------------------------------------------------------------------------------------

def sources_and_arrays(text: str):
    program = planned(text)
    random = np.random.default_rng(0)
    arrays = check_arrays(program.parameters, [random.normal(size=p.shape.dimensions).astype(ml_dtypes.bfloat16)
                                               for p in program.parameters])
    return make_sources(program, H100), arrays, Evaluator(api.load(text)).run(arrays)[0].astype(np.float32)


TILED = activation(70, LOGARITHM, depth=200, columns=64, batch=2)
FEW = activation(3, SHIFTED, depth=200, columns=72)


@emulated
@pytest.mark.parametrize("text", [TILED, FEW])
def test_without_a_fault(text, monkeypatch):
    sources, arrays, right = sources_and_arrays(text)
    (result,) = emulate(sources, arrays, monkeypatch, checked=True, backwards=True)
    np.testing.assert_allclose(result.astype(np.float32), right, rtol=0.02, atol=0.2)


@emulated
@pytest.mark.parametrize("text, place, wrong", [
    (TILED, "return row < rows && k < depth; }\n  HLOC_MEMBER Held at", "return true; }\n  HLOC_MEMBER Held at"),
    (TILED, "prologue.read(outer, inner, first + row, k)", "prologue.read(outer, inner, row, k)"),
    (TILED, "at.batch / S::INNER, at.batch % S::INNER, at.row", "at.batch, 0, at.row"),
    (TILED, "    fetch(step + 1);\n", "    fetch(step + 2);\n"),
    (FEW, "sums[first + i][w];\n      __syncthreads();", "sums[first + i][w];"),
    (FEW, "own[0] = sum;\n      }\n      __syncthreads();", "own[0] = sum;\n      }"),
    (FEW, "t % ACROSS * WIDE;", "t % ACROSS;"),
], ids=["outside", "row", "batch", "step", "barrier", "second barrier", "columns"])
def test_faults(text, place, wrong, monkeypatch):
    """Results differ, or the checker speaks."""
    sources, arrays, right = sources_and_arrays(text)
    source = driver.text_of(sources)
    assert place in source
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(source.replace(place, wrong, 1), checked=True))
    try:
        assert not np.abs(backend(arrays)[0].astype(np.float32) - right).max() < 1
    except RunError as error:
        assert "thread" in error.message or "nothing has written" in error.message
    finally:
        backend.close()


# -- what tiles take ---------------------------------------------------------------------------------------------------

GELU = ("h = {s} multiply(x, x)  t = {s} tanh(h)  u = {s} add(t, ones)  y = {s} multiply(x, u)")
TILES = [weights(200), weights(200, along=False), weights(4), weights(4, along=False), activation(200, GELU, columns=256),
         activation(64, RELU, "f32"), activation(64, RELU, "f32", algorithm=", algorithm=dot_tf32_tf32_f32"),
         activation(64, RELU, "f32", algorithm=", algorithm=dot_bf16_bf16_f32_x3"), weights(8, type="f32", stored="f8e4m3fn")]


@compiled
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("number", range(len(TILES)))
def test_no_spills(number, arch):
    """In any of the tiles that a prologue may stand in."""
    gpu = gpu_named(arch)
    program = planned(TILES[number], gpu)
    (tile,) = program.kernels
    assert tile.prologues
    for variant in dict.fromkeys(w.split(",")[0] for w in variants(tile, gpu)):
        sources = make_sources(program, gpu, [next(w for w in variants(tile, gpu) if w.startswith(variant))])
        found = resources(sources.single_file(), arch)
        assert {k: r for k, r in found.items() if r.spill_stores or r.spill_loads} == {}


@compiled
@pytest.mark.parametrize("arch", ["sm_86", "sm_89", "sm_100a", "sm_120a"])
def test_every_architecture(arch):
    sources = make_sources(planned(weights(64, 256, 256), gpu_named(arch)), gpu_named(arch))
    assert "hloc_tile_pipeline" in sources.readable() and "struct k0_" in sources.readable()
    found = resources(sources.single_file(), arch)
    assert all(not r.spill_stores for r in found.values())
