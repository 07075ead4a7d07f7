"""Operands that a kernel packs for the bulk copy engine (lines.cuh): f32 as TF32, and bytes across the depth, by wgmma."""
from __future__ import annotations

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of, emulate
from test_cuda_warpgroups import BULK, H100, compiled, emulated, inputs

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import Evaluator
from hloc.kernels.ir import Tile
from hloc.targets.cuda.compiler import compile_verbosely
from hloc.targets.cuda.resources import resources_in
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.source import variants


def of(text: str, how=(("64x64", BULK),), count: int = 0):
    """The sources. how: the tile and the end of the label of each product and convolution, the last one again for the
    rest; count: of packing kernels."""
    target = cuda_target(H100)
    program = api.plan(api.optimize(api.load(text), target), target)
    asked, found = list(how), []
    for kernel in program.kernels:
        tile, end = asked.pop(0) if len(asked) > 1 else asked[0]
        labels = variants(kernel, H100) if isinstance(kernel, Tile) else [""]
        end = f"{end}, phases" if any("phases" in w for w in labels) else end
        found.append(next((w for w in labels if w.startswith(f"{tile}x") and w.endswith(end)), labels[0]))
        assert not isinstance(kernel, Tile) or found[-1].endswith(end), (kernel.name, labels)
    sources = make_sources(program, H100, found)
    assert sum(g.function.endswith("_lines") for g in sources.geometry) == count
    return sources


def together(lines: list[tuple[str, str]]) -> str:
    """A module that computes all: (parameters and instruction with {n} for its number, shape of the result)."""
    body, shapes = [], []
    for n, (text, shape) in enumerate(lines):
        body.append(text.format(n=n, p=2 * n, q=2 * n + 1))
        shapes.append(shape)
    return "\n".join(["HloModule m", "ENTRY e {", *body,
                      f"  ROOT all = ({', '.join(shapes)}) tuple({', '.join(f'y{n}' for n in range(len(lines)))})", "}", ""])


def dot(types: tuple[str, str, str], contracting: tuple[int, int], sizes=(72, 136, 80), batch: str = "", ragged: str = ""
        ) -> tuple[str, str]:
    (lhs, rhs, result), (m, k, n) = types, sizes
    a, b = [m, k][:: 1 if contracting[0] else -1], [k, n][:: -1 if contracting[1] else 1]
    shift, batches = (1, ", lhs_batch_dims={{0}}, rhs_batch_dims={{0}}") if batch else (0, "")
    shape = f"{result}[{batch}{m},{n}]"
    return (f"  a{{n}} = {lhs}[{batch}{a[0]},{a[1]}] parameter({{p}})  b{{n}} = {rhs}[{batch}{b[0]},{b[1]}] parameter({{q}})\n"
            f"  y{{n}} = {shape} dot(a{{n}}, b{{n}}), lhs_contracting_dims={{{{{contracting[0] + shift}}}}}, "
            f"rhs_contracting_dims={{{{{contracting[1] + shift}}}}}{batches}", shape)


def convolution(x: str, w: str, y: str, how: str, labels: str = "b01f_01io->b01f") -> tuple[str, str]:
    return (f"  x{{n}} = f32[{x}] parameter({{p}})  w{{n}} = f32[{w}] parameter({{q}})\n  y{{n}} = f32[{y}] "
            f"convolution(x{{n}}, w{{n}}), window={{{{size={how}}}}}, dim_labels={labels}", f"f32[{y}]")


F32, S8, F8 = ("f32", "f32", "f32"), ("s8", "s8", "s32"), ("f8e4m3fn", "f8e5m2", "f32")
GRADIENT = "f01b_i01o->01bf"
PRODUCTS = [dot(F32, (1, 1)), dot(F32, (1, 0), (68, 36, 33)), dot(F32, (0, 1), (72, 42, 130), "3,"), dot(F32, (0, 0)),
            dot(S8, (0, 0), (80, 140, 48), "2,"), dot(F8, (1, 0), (72, 144, 80))]
CONVOLUTIONS = [
    convolution("3,6,7,64", "3,2,64,37", "3,6,7,37", "3x2 pad=3_1x0_2 rhs_dilate=2x2"),
    convolution("3,12,14,32", "3,3,40,32", "3,6,7,40", "3x3 stride=2x2 pad=1_1x1_1 rhs_reversal=1x0", "b01f_01oi->b01f"),
    convolution("4,4,4,32", "1,2,40,32", "4,8,4,40", "1x2 pad=0_1x0_1 lhs_dilate=2x1", "b01f_01oi->b01f"),
    convolution("2,12,14,40", "2,6,7,72", "3,3,40,72", "6x7 pad=1_0x0_1 rhs_dilate=2x2", GRADIENT),
    convolution("6,7,4,72", "6,7,4,36", "3,3,72,36", "6x7 pad=1_1x1_1", "01fb_01io->01bf"),
    convolution("3,5,7,72", "3,5,7,40", "1,1,72,40", "5x7", GRADIENT)]


def tf32(x: np.ndarray) -> np.ndarray:
    """To nearest, ties away from zero. Infinities and NaN stay."""
    rounded = ((x.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def check(text: str, sources, monkeypatch) -> None:
    """With whole numbers, and with f32 that must be rounded, among them infinity and NaN."""
    arrays = inputs(sources)
    for n, (result, right) in enumerate(zip(emulate(sources, arrays, monkeypatch, checked=True),
                                            Evaluator(api.load(text)).run(arrays), strict=True)):
        np.testing.assert_array_equal(result.astype(float), right.astype(float), err_msg=str(n))
    random = np.random.default_rng(1)
    arrays = [random.normal(size=a.shape).astype(a.dtype) if a.dtype == np.float32 else a for a in arrays]
    for a in arrays[::2]:
        if a.dtype == np.float32:
            a.flat[5], a.flat[-7] = np.inf, np.nan
    rounded = [tf32(a) if a.dtype == np.float32 else a for a in arrays]
    with np.errstate(invalid="ignore"):
        right = Evaluator(api.load(text)).run(rounded)
    for n, (result, one) in enumerate(zip(emulate(sources, arrays, monkeypatch, checked=True, backwards=True), right)):
        np.testing.assert_allclose(result.astype(float), one.astype(float), rtol=1e-5, atol=1e-4, err_msg=str(n))


@emulated
def test_packed_operands(monkeypatch):
    """Products along the depth and across it: batches, columns that are no multiple of 16 bytes. Convolutions whose
    windows the engine gathers, filters in any order: strides, dilation, filters that are read from their end, phases of
    which one is empty. Gradients of filters: positions across the lines of the input, steps that are not full."""
    text = together([*PRODUCTS, *CONVOLUTIONS])
    check(text, of(text, count=13), monkeypatch)


@emulated
def test_tiles_and_pieces(monkeypatch):
    """Tiles with several taps and panels behind the last one. Partial sums and packed operands share memory."""
    text = together([dot(F32, (1, 0), (24, 1096, 40)), dot(S8, (0, 0), (32, 1104, 48)),
                     convolution("70,4,4,16", "70,4,4,16", "3,3,16,16", "4x4 pad=1_1x1_1", GRADIENT),
                     convolution("3,6,7,64", "3,3,64,136", "3,6,7,136", "3x3 pad=1_1x1_1")])
    sources = of(text, (("64x64", f"{BULK}, 2 splits"), ("128x128", f"{BULK}, 2 splits"), ("192x64", "splits"),
                        ("128x256", BULK)), count=5)
    check(text, sources, monkeypatch)


# -- planted faults ----------------------------------------------------------------------------------------------------

def faulty(text: str, faults: list[tuple[str, str]], monkeypatch, count: int) -> list[bool]:
    """Whether each result is right, with all of these faults."""
    sources = of(text, count=count)
    whole = driver.text_of(sources)
    for place, wrong in faults:
        assert place in whole, place
        whole = whole.replace(place, wrong)
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(whole, checked=True))
    arrays = inputs(sources)
    try:
        return [bool((a == b).all()) for a, b in zip(backend(arrays), Evaluator(api.load(text)).run(arrays))]
    finally:
        backend.close()


@emulated
def test_wrong_constants(monkeypatch):
    """Another order of the depth than the other operand's; strides of the filter and of the gradient exchanged."""
    text = together([dot(F32, (0, 1), (72, 72, 40)), convolution("3,6,7,64", "3,3,64,72", "3,6,7,72", "3x3 pad=1_1x1_1"),
                     convolution("4,6,6,72", "4,6,6,40", "3,3,72,40", "6x6 pad=1_1x1_1", GRADIENT)])
    faults = [("LINE = 72, PAIRS = 1", "LINE = 72, PAIRS = 0"), ("W_1 = 13824, W_2 = 4608", "W_1 = 4608, W_2 = 13824"),
              ("W_1 = 240, W_2 = 40", "W_1 = 40, W_2 = 240")]
    assert not any(faulty(text, faults, monkeypatch, 3))


@emulated
@pytest.mark.parametrize("place, wrong, told", [
    ("(k * 2 + lane / 16) ^ line % 8", "(k * 2 + lane / 16) ^ line % 4", ""),
    ("S::PACKED_B ? S::BM : S::BM + S::BN", "0 * S::BM", "nothing has written")])
def test_faults(place, wrong, told, monkeypatch):
    """In the order of 16 bytes, in rows of a step that nothing copies."""
    text = together([CONVOLUTIONS[3] if told else dot(F32, (1, 0), (72, 72, 40))])
    if told:
        with pytest.raises(RunError, match=told):
            faulty(text, [(place, wrong)], monkeypatch, 1)
    else:
        assert not any(faulty(text, [(place, wrong)], monkeypatch, 1))


# -- machine code, what is chosen --------------------------------------------------------------------------------------

@compiled
@pytest.mark.parametrize("tile", ["128x256", "192x128", "64x64"])
def test_machine_code(tile):
    """Nothing spills; products are begun without a wait."""
    text = together([convolution("64,28,28,128", "3,3,128,256", "64,28,28,256", "3x3 pad=1_1x1_1"),
                     convolution("128,28,28,128", "128,28,28,256", "3,3,128,256", "28x28 pad=1_1x1_1", GRADIENT),
                     *([dot(F32, (0, 0), (1024,) * 3), dot(S8, (0, 0), (1024,) * 3)] if tile == "128x256" else [])])
    sources = of(text, ((tile, BULK),), count=5 if tile == "128x256" else 2)
    report = compile_verbosely(sources.single_file(), "sm_90a")
    found = resources_in(report)
    assert all(f.spill_stores == f.spill_loads == 0 for f in found.values()), found
    assert "serialized" not in report
