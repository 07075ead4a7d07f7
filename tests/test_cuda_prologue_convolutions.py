"""Operands of convolutions that are computed on their way into the tiles: which, what their padding is, what mistakes show.

testdata/cuda/prologues.hlo holds each kind; tests/test_cuda_kernels.py compares it with the evaluator.
"""
from __future__ import annotations

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of, emulate
from test_cuda_prologues import H100, compiled, emulated, kernels, planned, reasons

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import Evaluator
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.kernels.ir import Tile
from hloc.targets.cuda.gpus import gpu_named
from hloc.targets.cuda.libraries.convolutions import library_convolution
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.tiles.source import variants

NORM = """s = {t}[{c}] parameter(2)  b = {t}[{c}] parameter(3)  ss = {x} broadcast(s), dimensions={{{at}}}
  bs = {x} broadcast(b), dimensions={{{at}}}  m = {x} multiply(x, ss)  a = {x} add(m, bs)"""
RELU = NORM + "  z = {t}[] constant(0)  zs = {x} broadcast(z), dimensions={{}}  y = {x} maximum(a, zs)"
EXP, LOGARITHM = "y = {x} exponential(x)", "a = {x} abs(x)  y = {x} log(a)"


def convolution(formula: str, type="bf16", images=2, size=9, channels=16, features=24, taps=3, stride=1, pad=1, groups=1,
                last=True) -> str:
    """formula: instructions over x that end in y, the input, whose shape is {x}; `size` rows of 8; channels last or
    first."""
    across = (8 + 2 * pad - taps) // stride + 1
    down = (size + 2 * pad - taps) // stride + 1
    inner = channels // groups
    x, w, y, labels = (f"{images},{size},8,{channels}", f"{taps},{taps},{inner},{features}",
                       f"{images},{down},{across},{features}", "b01f_01io->b01f") if last else \
        (f"{images},{channels},{size},8", f"{features},{inner},{taps},{taps}", f"{images},{features},{down},{across}",
         "bf01_oi01->bf01")
    lines = formula.format(x=f"{type}[{x}]", t=type, c=channels, at=3 if last else 1)
    return f"""HloModule convolution
ENTRY e {{
  x = {type}[{x}] parameter(0)  w = {type}[{w}] parameter(1)
  {lines}
  ROOT c = {type}[{y}] convolution(y, w), window={{size={taps}x{taps} stride={stride}x{stride} pad={pad}_{pad}x{pad}_{pad}}},
    dim_labels={labels}, feature_group_count={groups}
}}
"""


def tile_of(text: str, gpu=H100) -> Tile:
    (tile,) = planned(text, gpu).kernels
    assert tile.library_kernel == "convolution" and len(tile.prologues) == 1
    return tile


# -- which ones --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("formula", [RELU, EXP, LOGARITHM])
@pytest.mark.parametrize("last", [True, False])
def test_a_normed_image(formula, last):
    assert kernels(convolution(formula, last=last)) == (1, 1) and reasons(convolution(formula, last=last)) == set()


def test_a_convolution_with_computed_operands_is_its_own_kernel():
    tile = tile_of(convolution(RELU, images=8, size=56, channels=64, features=64))
    assert library_convolution(tile) is None and not any("wgmma" in w for w in variants(tile, H100))


FEW_BITS = convolution("v = s8[3,3,16,2] parameter(2)  y = bf16[3,3,16,2] convert(v)", features=2).replace(
    "convolution(y, w)", "convolution(x, y)")


@pytest.mark.parametrize("text, reason", [
    (convolution(RELU, images=256, size=112, channels=64, features=512),
     "computing it for each tile of the matmul costs more than storing it once"),
    (convolution("y = {x} transpose(x), dimensions={{0,2,1,3}}", size=8),
     "a matmul reads its operands from memory: its producer cannot be fused into it"),
    (convolution("a = {x} power(x, x)  d = {x} power(a, x)  y = {x} tanh(d)"),
     "fusing would compute too much for each tile of the matmul"),
    (convolution("y = {x} tanh(x)", images=1, size=1, channels=2, features=2, taps=1, pad=0),
     "the matmul is so small that a plain loop computes it"),
    (FEW_BITS, "so few features are computed one output at a time, each from the whole filter"),
])
def test_what_is_stored(text, reason):
    """Where windows overlap and features are many, or there is nothing to compute, or no tile that would share it."""
    assert kernels(text) == (2, 0) and reasons(text) == {reason}


def test_an_epilogue_stays_an_epilogue():
    """A norm behind a convolution is computed there once, not in each window of the next one."""
    before = convolution(RELU.replace("multiply(x", "multiply(h"), channels=16, features=16).replace(
        "  s = bf16", "  v = bf16[3,3,16,16] parameter(4)  h = bf16[2,9,8,16] convolution(x, v), window={size=3x3 "
        "pad=1_1x1_1}, dim_labels=b01f_01io->b01f\n  s = bf16", 1)
    assert kernels(before) == (2, 0) and reasons(before) == {"it is fused as the epilogue of the matmul or convolution that produces its operand"}


def test_an_image_that_others_read_is_stored():
    text = convolution(EXP).replace("ROOT c", "c").replace("\n}\n", """
  l = bf16[2,9,8,16] tanh(y)  ROOT both = (bf16[2,9,8,24], bf16[2,9,8,16]) tuple(c, l) }
""")
    assert kernels(text)[1] == 0


# -- what they compute -------------------------------------------------------------------------------------------------

def run(text: str, monkeypatch, place: str = "", wrong: str = "") -> tuple[np.ndarray, np.ndarray]:
    """What the emulation and what the evaluator give, in f32; place, wrong: a fault planted in the template."""
    program, random = planned(text), np.random.default_rng(0)
    arrays = [random.normal(size=p.shape.dimensions).astype(numpy_dtype(p.shape.element_type)) for p in program.parameters]
    image = arrays[0][0] if arrays[0].shape[-1] > 8 else np.moveaxis(arrays[0][0], 0, -1)
    image[-1, -3, 3], image[0, 0, 1], image[2, 4, 2] = np.nan, np.inf, -np.inf
    arrays, sources = check_arrays(program.parameters, arrays), make_sources(program, H100)
    (right,) = Evaluator(api.load(text)).run(arrays)
    if not place:
        (result,) = emulate(sources, arrays, monkeypatch, checked=True, backwards=True)
        return result.astype(np.float32), right.astype(np.float32)
    source = driver.text_of(sources)
    assert place in source
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(source.replace(place, wrong, 1), checked=True))
    try:
        return backend(arrays)[0].astype(np.float32), right.astype(np.float32)
    finally:
        backend.close()


TILED = convolution(LOGARITHM, stride=2)
FIRST = convolution(EXP, "f32", channels=12, features=20, last=False)
GROUPED = convolution(RELU, "f16", channels=32, groups=2, features=32)
DIRECT = convolution(EXP, "f32", groups=16, features=16)


@emulated
@pytest.mark.parametrize("text", [TILED, FIRST, GROUPED, DIRECT], ids=["tiled", "first", "grouped", "direct"])
def test_what_is_no_number(text, monkeypatch):
    """NaN and infinities spread to the windows that hold them; padding is nothing, whatever would be computed of it."""
    tile_of(text)
    result, right = run(text, monkeypatch)
    assert np.isnan(right).any() and np.isfinite(right).any()
    np.testing.assert_allclose(result, right, rtol=0.03, atol=0.1)


PLANTED = [
    (TILED, "return held.at < 0 ? ", "return false ? "), (DIRECT, "if (!find(k, at)) return", "if (!find(k, at) && (at = 0)) return"),
    (GROUPED, "held.from = prologue.read(0, 0, held.at / DEPTH,", "held.from = prologue.read(0, 0, held.at / DEPTH % 72,"),
    (GROUPED, "if (S::GROUPS > 1) base += (long)group * S::CHANNELS * S::X_C;", ""),
    (FIRST, "where.windows[i].find((int)k, held.at)", "where.windows[i].find((int)k + 1, held.at)"),
]


@emulated
@pytest.mark.parametrize("text, place, wrong", PLANTED, ids=["padding", "direct padding", "image", "group", "channel"])
def test_faults(text, place, wrong, monkeypatch):
    """Results differ, or the checker speaks."""
    try:
        result, right = run(text, monkeypatch, place, wrong)
    except RunError as error:
        assert "outside" in error.message or "nothing has written" in error.message
    else:
        assert not np.allclose(result, right, rtol=0.03, atol=0.1, equal_nan=True)


# -- what tiles take ---------------------------------------------------------------------------------------------------

MANY = "  ".join(["p0 = {x} parameter(2)", *(f"p{n} = {{x}} parameter({n + 2})  m{n} = {{x}} maximum(" + (
    f"m{n - 1}" if n > 1 else "x") + f", p{n})" for n in range(1, 5)), "y = {x} multiply(m4, p0)"])
TILES = [convolution(MANY, images=8, size=20, channels=64, features=64),
         convolution(RELU, images=8, size=20, channels=64, features=64),
         convolution(RELU, images=8, size=20, channels=64, features=64, last=False),
         convolution(RELU, "f32", images=8, size=20, channels=64, features=64),
         convolution(MANY, images=8, size=20, channels=64, features=64, last=False),
         convolution(MANY, "f32", images=8, size=20, channels=64, features=64),
         convolution(RELU, "f16", images=8, size=20, channels=60, features=64, stride=3)]


@compiled
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("number", range(len(TILES)))
def test_no_spills(number, arch):
    """In any of the tiles that a prologue may stand in."""
    gpu = gpu_named(arch)
    tile, program = tile_of(TILES[number], gpu), planned(TILES[number], gpu)
    for variant in dict.fromkeys(w.split(",")[0] for w in variants(tile, gpu)):
        sources = make_sources(program, gpu, [next(w for w in variants(tile, gpu) if w.startswith(variant))])
        found = resources(sources.single_file(), arch)
        assert {k: r for k, r in found.items() if r.spill_stores or r.spill_loads} == {}
