"""Matrix products by instructions of sm_90a: wgmma, operands by asynchronous copies or by the bulk copy engine."""
from __future__ import annotations

import dataclasses
import shutil
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of, emulate

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import Evaluator
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.targets.cuda import container
from hloc.targets.cuda.compiler import compile_cuda, compile_verbosely, compiler_version
from hloc.targets.cuda.execution import graphs
from hloc.targets.cuda.gpus import GPUS, gpu_named
from hloc.targets.cuda.resources import resources_in
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.patches import Patch, patch_of
from hloc.targets.cuda.tiles.source import variants
from hloc.targets.cuda.tiles.tensor_maps import TensorMap

H100 = GPUS["h100"]
emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
compiled = pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")
GROUPED, BULK = "stages, wgmma", "stages, wgmma, bulk copies"           # how the labels of these variants end


def product(types: tuple[str, str, str], sizes: tuple[int, int, int], contracting=(1, 0), batch: str = "") -> str:
    return products([(types, contracting)], sizes, batch)


def products(cases, sizes: tuple[int, int, int], batch: str = "") -> str:
    """Dots of [m, k] or [k, m] and [k, n] or [n, k], for each (types, contracting); batch: a size before these, like
    "2,". f32 is multiplied as TF32."""
    m, k, n = sizes
    shift, batches = (1, ", lhs_batch_dims={0}, rhs_batch_dims={0}") if batch else (0, "")
    lines, shapes, names = [], [], []
    for i, ((lhs, rhs, result), contracting) in enumerate(cases):
        a, b = [m, k][:: 1 if contracting[0] else -1], [k, n][:: -1 if contracting[1] else 1]
        shapes.append(f"{result}[{batch}{m},{n}]")
        names.append(f"d{i}")
        lines += [f"  a{i} = {lhs}[{batch}{a[0]},{a[1]}] parameter({2 * i})",
                  f"  b{i} = {rhs}[{batch}{b[0]},{b[1]}] parameter({2 * i + 1})",
                  f"  d{i} = {shapes[-1]} dot(a{i}, b{i}), lhs_contracting_dims={{{contracting[0] + shift}}}, "
                  f"rhs_contracting_dims={{{contracting[1] + shift}}}{batches}"
                  + (", algorithm=dot_tf32_tf32_f32" if lhs == "f32" else "")]
    return "\n".join(["HloModule m", "ENTRY e {", *lines, f"  ROOT all = ({', '.join(shapes)}) tuple({', '.join(names)})",
                      "}"]) + "\n"


def grouped(text: str, variant: str, gpu=H100, tile: str | tuple[str, ...] = "128x256"):
    """All products in one variant. variant: the end of its label; tile: how that begins, of all or of each."""
    target = cuda_target(gpu)
    program = api.plan(api.optimize(api.load(text), target), target)
    tiles = (tile,) * len(program.kernels) if isinstance(tile, str) else tile
    found = [[w for w in variants(kernel, gpu) if w.endswith(variant) and w.startswith(f"{own}x")]
             for kernel, own in zip(program.kernels, tiles, strict=True)]
    sources = make_sources(program, gpu, [label for (label,) in found])
    assert sources.readable().count("hloc_tile_bulk<" if "bulk" in variant else "hloc_tile_warpgroup<") == len(found)
    return sources


def inputs(sources) -> list[np.ndarray]:
    """Small whole numbers, which every type holds and whose sums are exact."""
    random = np.random.default_rng(0)
    return check_arrays(sources.program.parameters, [
        random.integers(-3, 4, size=p.shape.dimensions).astype(numpy_dtype(p.shape.element_type))
        for p in sources.program.parameters])


def expected(a: np.ndarray, b: np.ndarray, contracting) -> np.ndarray:
    a, b = a.astype(np.float32), b.astype(np.float32)
    return (a if contracting[0] else a.swapaxes(-1, -2)) @ (b.swapaxes(-1, -2) if contracting[1] else b)


BF16, F16, S8 = ("bf16", "bf16", "f32"), ("f16", "f16", "f32"), ("s8", "s8", "s32")
F8 = ("f8e4m3fn", "f8e5m2")
WORDS = [(BF16, (1, 0)), (BF16, (1, 1)), (BF16, (0, 0)), (BF16, (0, 1)), (F16, (1, 0))]
BYTES = [(S8, (1, 1)), (("f32", "f32", "f32"), (1, 1)), *(((a, b, "f32"), (1, 1)) for a in F8 for b in F8)]


def of_variant(cases, variant: str):
    """f32 are packed for the engine (test_cuda_packed.py): here threads round to TF32 what they have copied."""
    return [c for c in cases if variant == GROUPED or c[0][0] != "f32"]


@emulated
def test_warpgroups_round_to_tf32(monkeypatch):
    """To nearest, though the instruction does not look at the last 13 bits. Infinities and NaN stay."""
    sources = grouped(product(("f32", "f32", "f32"), (72, 136, 80), (1, 1)), GROUPED, tile="64x128")
    random = np.random.default_rng(1)
    a, b = (random.normal(size=p.shape.dimensions).astype(np.float32) for p in sources.program.parameters)
    a[3, 5], a[4, 7] = np.inf, np.nan
    (result,) = emulate(sources, [a, b], monkeypatch, checked=True)
    x, y = (((n.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32) for n in (a, b))
    x[3, 5], x[4, 7] = np.inf, np.nan
    right = x.astype(np.float64) @ y.astype(np.float64).T
    np.testing.assert_allclose(result, right, rtol=0, atol=2e-5)


@emulated
@pytest.mark.parametrize("variant", [GROUPED, BULK])
@pytest.mark.parametrize("cases", [WORDS, BYTES], ids=["words", "bytes"])
def test_warpgroups(cases, variant, monkeypatch):
    """Operands along the depth and across it: descriptors, swizzles, fences and waits, decoded as the manual says."""
    cases = of_variant(cases, variant)
    tiles = tuple("128x128" if case[0][0] in F8 else "128x256" for case in cases)
    sources = grouped(products(cases, (80, 208, 48)), variant, tile=tiles)
    arrays = inputs(sources)
    for i, result in enumerate(emulate(sources, arrays, monkeypatch, checked=True)):
        np.testing.assert_array_equal(result, expected(*arrays[2 * i:][:2], cases[i][1]), err_msg=str(cases[i]))


@emulated
@pytest.mark.parametrize("variant", [GROUPED, BULK])
def test_tiles(variant, monkeypatch):
    """Fewer rows: one group of warps; fewer columns: shorter instructions."""
    cases = [(types, way) for types in (BF16, F16) for way in ((1, 0), (0, 1), (1, 1), (0, 0))]
    sources = grouped(products(cases, (72, 136, 80)), variant, tile=("128x128", "64x256", "64x128", "64x64") * 2)
    arrays = inputs(sources)
    for i, result in enumerate(emulate(sources, arrays, monkeypatch, checked=True, backwards=True)):
        np.testing.assert_array_equal(result, expected(*arrays[2 * i:][:2], cases[i][1]), err_msg=str(cases[i]))


@emulated
@pytest.mark.parametrize("contracting, backwards", [((1, 0), False), ((0, 1), True)])
def test_bulk_copies_of_batches(contracting, backwards, monkeypatch):
    """Several tiles for each block: steps of the next tile are copied while sums of the last one are stored."""
    sources = grouped(product(BF16, (136, 72, 264), contracting, "2,"), BULK, dataclasses.replace(H100, cores=2))
    assert sources.geometry[0].grid == (2, 1, 1)
    arrays = inputs(sources)
    (result,) = emulate(sources, arrays, monkeypatch, backwards=backwards, checked=True)
    np.testing.assert_array_equal(result, expected(*arrays, contracting))


@emulated
def test_bulk_copies_of_pieces(monkeypatch):
    """The depth cut in two, the last piece shorter, and its last step beyond the arrays."""
    sources = grouped(product(BF16, (24, 1096, 40)), BULK + ", 2 splits")
    arrays = inputs(sources)
    (result,) = emulate(sources, arrays, monkeypatch, checked=True)
    np.testing.assert_array_equal(result, expected(*arrays, (1, 0)))


CONVOLUTION = """HloModule m
relu {{ x = bf16[2,6,6,64] parameter(0)  w = bf16[{window},64,72] parameter(1)  b = bf16[72] parameter(2)
  y = bf16[{out},72] convolution(x, w), window={{size={how}}}, dim_labels=b01f_01io->b01f
  bb = bf16[{out},72] broadcast(b), dimensions={{3}}  s = bf16[{out},72] add(y, bb)
  z = bf16[] constant(0)  zs = bf16[{out},72] broadcast(z), dimensions={{}}
  ROOT r = bf16[{out},72] maximum(s, zs) }}
ENTRY e {{ x = bf16[2,6,6,64] parameter(0)  w = bf16[{window},64,72] parameter(1)  b = bf16[72] parameter(2)
  ROOT y = bf16[{out},72] fusion(x, w, b), kind=kOutput, calls=relu }}
"""


@emulated
@pytest.mark.parametrize("window, how, out, variant", [
    ("1,1", "1x1", "2,6,6", BULK), ("1,1", "1x1", "2,6,6", GROUPED), ("3,3", "3x3 pad=1_1x1_1", "2,6,6", GROUPED),
    ("1,1", "1x1 stride=2x2", "2,3,3", GROUPED)])
def test_convolutions(window, how, out, variant, monkeypatch):
    """Windows of one point each are products, which the bulk copy engine can read; bias and ReLU are in the kernel."""
    text = CONVOLUTION.format(window=window, how=how, out=out)
    sources = grouped(text, variant, tile="64x128")
    (kernel,) = sources.program.kernels
    assert any("bulk" in w for w in variants(kernel, H100)) == (how == "1x1")
    arrays = inputs(sources)
    (result,) = emulate(sources, arrays, monkeypatch, checked=True)
    (right,) = Evaluator(api.load(text)).run(arrays)
    np.testing.assert_array_equal(result.astype(float), right.astype(float))


PATCHES = """HloModule m
ENTRY e {{ x = {t}[{x}] parameter(0)  w = {t}[{w}] parameter(1)
  ROOT y = f32[{y}] convolution(x, w), window={{size={how}}}, dim_labels={labels} }}
"""


class Patched(NamedTuple):
    """A convolution whose windows the bulk copy engine gathers."""

    x: str
    w: str
    y: str
    how: str
    labels: str = "b01f_01io->b01f"
    type: str = "bf16"

    @property
    def text(self) -> str:
        return PATCHES.format(t=self.type, x=self.x, w=self.w, y=self.y, how=self.how, labels=self.labels)


PATCHED = [Patched("3,6,7,128", "3,3,128,72", "3,6,7,72", "3x3 pad=1_1x1_1"),
           Patched("3,12,14,64", "3,3,64,72", "3,6,7,72", "3x3 stride=2x2 pad=1_1x1_1", type="f16"),
           Patched("3,6,7,64", "3,2,64,40", "3,6,7,40", "3x2 pad=3_1x0_2 rhs_dilate=2x2"),
           Patched("3,6,7,64", "3,3,72,64", "3,6,7,72", "3x3 pad=1_1x1_1 rhs_reversal=1x1", "b01f_01oi->b01f"),
           Patched("2,66,64", "4,64,24", "2,63,24", "4", "b0f_0io->b0f"),
           Patched("7,6,3,64", "3,3,64,72", "7,6,3,72", "3x3 pad=1_1x1_1", "01bf_01io->01bf"),
           Patched("3,12,14,64", "1,1,64,72", "3,6,7,72", "1x1 stride=2x2"),
           Patched("3,6,7,128", "3,3,128,40", "3,6,7,40", "3x3 pad=1_1x1_1", type="bf16, 2 splits")]


def patched(cases: list[Patched], tiles: tuple[str, ...]):
    """One module of all cases, each in a tile."""
    body, shapes = [], []
    for n, case in enumerate(cases):
        entry = case._replace(type=case.type.split(",")[0]).text.split("{", 1)[1].rsplit("}", 1)[0]
        for old, new in (("ROOT ", ""), ("x =", f"x{n} ="), ("w =", f"w{n} ="), ("y =", f"y{n} ="), ("(x, w)", f"(x{n}, w{n})"),
                         ("parameter(0)", f"parameter({2 * n})"), ("parameter(1)", f"parameter({2 * n + 1})")):
            entry = entry.replace(old, new)
        body.append(entry)
        shapes.append(f"f32[{case.y}]")
    text = "\n".join(["HloModule m", "ENTRY e {", *body,
                      f"  ROOT all = ({', '.join(shapes)}) tuple({', '.join(f'y{n}' for n in range(len(cases)))})", "}", ""])
    target = cuda_target(H100)
    program = api.plan(api.optimize(api.load(text), target), target)
    ends = [f"{BULK}, 2 splits" if "splits" in case.type else BULK for case in cases]
    labels = [next(w for w in variants(kernel, H100) if w.startswith(f"{tile}x") and w.endswith(end))
              for kernel, tile, end in zip(program.kernels, tiles, ends, strict=True)]
    sources = make_sources(program, H100, labels)
    shown = sources.readable()
    assert shown.count("hloc_conv<") == shown.count("hloc_patch_rest<") == len(cases)
    return text, sources


@emulated
@pytest.mark.parametrize("cases, tiles", [
    (PATCHED, ("64x128",) * len(PATCHED)),
    ([PATCHED[0], PATCHED[1], PATCHED[0]._replace(w="3,3,128,80", y="3,6,7,80"), PATCHED[1]._replace(type="bf16")], ("128x128", "128x128", "192x128", "192x64"))], ids=["cases", "tiles"])
def test_patches(cases, tiles, monkeypatch):
    """Boxes of images, what lies outside of these as zeros; strides, dilations, filters read from their end."""
    text, sources = patched(cases, tiles)
    arrays = inputs(sources)
    results = emulate(sources, arrays, monkeypatch, checked=True, backwards=len(cases) > 4)
    for case, result, right in zip(cases, results, Evaluator(api.load(text)).run(arrays), strict=True):
        np.testing.assert_array_equal(result.astype(float), right.astype(float), err_msg=str(case))


def test_patches_fill_tiles():
    """Output positions of several images where these are small; those that no tile fits well are gathered by threads."""
    def patch(images: int, down: int, across: int, rows: int, stride: int = 1) -> Patch:
        return patch_of({"IMAGES": images, "OUT1": down, "OUT2": across, "STRIDE1": stride, "STRIDE2": stride}, rows)
    assert patch(128, 14, 14, 128) == Patch(14, 1, 9) and patch(128, 7, 7, 128) == Patch(1, 1, 128)
    assert patch(1, 512, 512, 128) == Patch(128, 1, 1) and patch(1, 8, 512, 128, 4) == Patch(64, 2, 1)
    def labels(text: str) -> list[str]:
        target = cuda_target(H100)
        return variants(api.plan(api.optimize(api.load(text), target), target).kernels[0], H100)
    good = PATCHED[0]
    assert any("bulk" in w for w in labels(good.text))
    for other in (good._replace(x="2,6,6,128", y="2,6,6,72"), good._replace(x="3,128,6,7", labels="bf01_01io->b01f"),
                  good._replace(y="3,7,5,72", how="3x3 pad=2_2x2_2 lhs_dilate=1x1", x="3,5,3,128"),
                  good._replace(x="3,3,4,128", how="3x3 pad=1_1x1_1 lhs_dilate=2x2", y="3,5,7,72")):
        assert not any("bulk" in w for w in labels(other.text))


# -- planted faults ----------------------------------------------------------------------------------------------------

FAULTY = product(BF16, (128, 448, 256))


def check_fault(sources, module: str, place: str, wrong: str, told: str, monkeypatch) -> None:
    """A fault in the CUDA C of a module shows: the checker tells it, or the numbers are wrong."""
    text = driver.text_of(sources)
    assert place in text
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(text.replace(place, wrong), checked=True))
    arrays = inputs(sources)
    (right,) = Evaluator(api.load(module)).run(arrays)
    if told:
        with pytest.raises(RunError, match=told):
            backend(arrays)
    else:
        assert (backend(arrays)[0] != right).any()
    backend.close()


@emulated
@pytest.mark.parametrize("place, wrong, told", [
    ("hloc_fence_async();\n    __syncthreads(); /* this", "__syncthreads(); /* this", "fence.proxy.async"),
    ("__syncthreads(); /* this step has arrived, and all have multiplied", "/*", "thread|nothing has written"),
    ("__syncthreads(); /* all have multiplied the last step */", "", "thread"),
    ("hloc_copy_wait<AHEAD - 1>();", "hloc_copy_wait<AHEAD>();", "nothing has written"),
    ("AHEAD = S::STAGES - 2;", "AHEAD = S::STAGES - 1;", "thread|nothing has written"),
    ("k * 32, 16, 1024)", "k * 32, 16, 512)", ""),
    ("k * 2048, Operand::LINES * 128, 1024)", "k * 2048, 1024, 1024)", ""),
    ("hloc_wgmma_wait<0>();\n  hloc_copy", "hloc_copy", "")], ids=range(8))
def test_faults_of_warpgroups(place, wrong, told, monkeypatch):
    check_fault(grouped(FAULTY, GROUPED), FAULTY, place, wrong, told, monkeypatch)


@emulated
@pytest.mark.parametrize("place, wrong, told", [
    ("hloc_fence_async();\n    __syncthreads(); /* all know", "__syncthreads(); /* all know", "fence.proxy.async"),
    ("__syncthreads(); /* all know the barriers */", "", "may not know yet|no barrier"),
    ("ring.wait();", "", "has not waited for|nothing has written"),
    ("if (n >= STAGES) hloc", "if (n >= 2 * STAGES) hloc", "more arrivals|still reads|has not waited|nothing has written"),
    ("if (step > 0) ring.done(1);", "ring.done(0);", "still reads|nothing has written"),
    ("arrived(), bytes);", "arrived(), bytes + 128);", "a barrier that some threads never reach"),
    ("stage, WARPS);", "stage, WARPS / 2);", "more arrivals|still reads|some threads never reach"),
    ("hloc_bulk_known(maps + 128);", "", "fence.proxy.tensormap"),
    ("row + panel * ACROSS", "row", ""),
    ("hloc_wgmma_wait<0>();\n  if (steps", "if (steps", "")], ids=range(10))
def test_faults_of_bulk_copies(place, wrong, told, monkeypatch):
    check_fault(grouped(FAULTY, BULK), FAULTY, place, wrong, told, monkeypatch)


@emulated
@pytest.mark.parametrize("place, wrong, told", [
    ("hloc_patch_rest<k0_convolution_shape>(memory);", "", "nothing has written"),
    ("down + tap.at[1] * S::DILATION1", "down", ""),
    ("(int)(x * S::STRIDE2 - S::LOW2)", "(int)(x * S::STRIDE2)", ""),
    ("COPIED = ROWS * 128", "COPIED = BYTES", "some threads never reach"),
    ("own_y < S::OUT1 &&", "", "two threads write|write outside"),
    ("column, across, down, arrived)", "column, down, across, arrived)", "")], ids=range(6))
def test_faults_of_patches(place, wrong, told, monkeypatch):
    """Rows of a tile that nothing fills, taps and paddings at the wrong place, too many bytes to wait for, rows of the next
    image."""
    case = Patched("3,6,7,64", "3,3,72,64", "3,6,7,72", "3x3 pad=1_1x1_1", "b01f_01oi->b01f")
    case = case._replace(x="1,17,7,64", y="1,17,7,72") if "own_y" in place else case
    text, sources = patched([case], ("64x128",))
    check_fault(sources, text, place, wrong, told, monkeypatch)


# -- machine code, tensor maps -----------------------------------------------------------------------------------------

@compiled
@pytest.mark.parametrize("variant, instructions", [(GROUPED, [b"cp.async.cg", b"k8.f32.tf32.tf32"]), (BULK, [b"cp.async.bulk.tensor.4d", b"mbarrier"])])
@pytest.mark.parametrize("tile", ["128x256", "64x128"])
def test_instructions_of_the_hardware(tile, variant, instructions):
    """The machine code is made of wgmma, begun one after the other without a wait, and spills nothing."""
    cases = of_variant([WORDS[0], *BYTES[:3]], variant)
    tiles = tuple("128x128" if case[0][0] in F8 else tile for case in cases)
    sources = grouped(products(cases, (4096, 4096, 4096)), variant, tile=tiles)
    report = compile_verbosely(sources.single_file(), "sm_90a")
    for found in resources_in(report).values():
        assert found.spill_stores == found.spill_loads == 0
    assert all(g.shared <= H100.shared_bytes for g in sources.geometry)
    assert "serialized" not in report
    text = compile_cuda(sources.single_file(), "sm_90a", "ptx")
    assert all(words in text for words in (b"wgmma.mma_async.sync.aligned.m64n%bk32.s32.s8.s8" % tile[-3:].encode(),
                                           *instructions))


def chosen(text: str, gpu) -> list[str]:
    """The cost model's variant for each kernel."""
    target = cuda_target(gpu)
    return [variants(k, gpu)[0] for k in api.plan(api.optimize(api.load(text), target), target).kernels]


@pytest.mark.parametrize("types, sizes, first", [
    (BF16, (8192, 8192, 8192), "128x256x64, 4 stages, wgmma, bulk copies"),
    (F16, (1024, 1024, 1024), "64x128x64, 4 stages, wgmma, bulk copies, 2 splits"),
    (BF16, (128, 4096, 4096), "64x64x64, 3 stages, 2 splits"),      # 128 rows: moving the weights takes longer
    (S8, (4096, 4096, 4096), "128x256x128, 4 stages, wgmma, bulk copies"),
    (("f8e4m3fn", "f8e4m3fn", "f32"), (4096, 4096, 4096), "128x128x128, 6 stages, wgmma, bulk copies"),
    (("f32", "f32", "f32"), (4096, 4096, 4096), "128x256x32, 4 stages, wgmma, bulk copies")])    # TF32, one operand packed before
def test_the_cost_model_takes_wgmma_where_products_are_the_limit(types, sizes, first):
    """On sm_90a alone, and not where memory is the limit or where numbers would be less exact."""
    text = product(types, sizes, (1, 1))
    assert chosen(text, GPUS["h200"]) == [first]
    assert "wgmma" not in chosen(text, GPUS["a100"])[0] + chosen(text, gpu_named("sm_90"))[0] + chosen(text, GPUS["b200"])[0]


def test_the_cost_model_of_convolutions():
    """Windows are gathered by the bulk copy engine, also of channels that are no whole lines; those of one point are a
    product."""
    text = "HloModule m\nENTRY e {{ x = bf16[128,28,28,{c}] parameter(0)  w = bf16[{w},{w},{c},{f}] parameter(1)\n" \
           "  ROOT y = bf16[128,28,28,{f}] convolution(x, w), window={{size={w}x{w} pad={p}_{p}x{p}_{p}}}, " \
           "dim_labels=b01f_01io->b01f }}\n"
    assert chosen(text.format(w=1, c=512, f=512, p=0), H100) == ["128x256x64, 4 stages, wgmma, bulk copies"]
    assert chosen(text.format(w=3, c=512, f=256, p=1), H100) == ["128x256x64, 4 stages, wgmma, bulk copies"]
    assert chosen(text.format(w=3, c=520, f=256, p=1), H100) == ["128x256x64, 4 stages, wgmma, bulk copies"]
    assert chosen(text.format(w=1, c=512, f=64, p=0), H100) == ["64x64x64, 4 stages, wgmma, bulk copies"]


@emulated
def test_as_the_cost_model_chooses(monkeypatch):
    """A product that is large enough, without a word about how: several tiles, the depth cut in two."""
    gpu, text = GPUS["h200"], product(BF16, (264, 1024, 328))
    assert chosen(text, gpu)[0].endswith("wgmma, bulk copies, 4 splits")
    target = cuda_target(gpu)
    sources = make_sources(api.plan(api.optimize(api.load(text), target), target), gpu)
    arrays = inputs(sources)
    (result,) = emulate(sources, arrays, monkeypatch, checked=True)
    np.testing.assert_array_equal(result, expected(*arrays, (1, 0)))


@compiled
def test_machine_code_of_convolutions():
    """Nothing spills where the bulk copy engine gathers windows, with an epilogue behind; products are begun without a wait."""
    text = CONVOLUTION.format(window="3,3", how="3x3 pad=1_1x1_1", out="128,28,28")
    text = text.replace("2,6,6,64", "128,28,28,256").replace("64,72]", "256,256]").replace(",72]", ",256]").replace("[72]", "[256]")
    target = cuda_target(H100)
    sources = make_sources(api.plan(api.optimize(api.load(text), target), target), H100)
    assert "hloc_patch_rest<" in sources.readable() and "hloc_tile_bulk<" in sources.readable()
    report = compile_verbosely(sources.single_file(), "sm_90a")
    (found,) = resources_in(report).values()
    assert found.spill_stores == found.spill_loads == 0
    assert "serialized" not in report


def test_only_what_tensor_maps_bear():
    """Other GPUs have none of it; operands that must be read element by element neither."""
    def labels(gpu, sizes):
        target = cuda_target(gpu)
        return variants(api.plan(api.optimize(api.load(product(BF16, sizes)), target), target).kernels[0], gpu)
    assert any("bulk" in w for w in labels(H100, (64, 64, 64)))
    assert not any("wgmma" in w for w in labels(GPUS["b200"], (64, 64, 64)) + labels(GPUS["a100"], (64, 64, 64))
                   + labels(H100, (64, 65, 64)))


def test_tensor_maps_in_files(tmp_path):
    """They are part of a .cubin; what does not fit into its memory is refused."""
    sources = grouped(product(BF16, (128, 448, 256)), BULK)
    file, (start,) = tmp_path / "m.cubin", sources.geometry

    def written(*maps: TensorMap) -> container.Container:
        with open(file, "w+b") as opened:
            container.write(opened, [b"image"] * 99, sources.program, [start._replace(maps=maps)], "sm_90a")
        return container.read(file)
    assert written(*start.maps).kernels == sources.geometry
    first = start.maps[0]
    for wrong in ({"argument": 3}, {"offset": 8}, {"offset": 16}, {"sizes": (448, 129, 1, 1)}, {"box": (64, 512, 1, 1)}, {"box": (64, 64)}, {"steps": (2, 1, 1, 1)}, {"steps": (1, 9, 1, 1)},
                  {"strides": (904, 16, 16)}, {"width": 8}, {"sizes": (448, 0, 1, 1)}, {"box": (128, 64, 1, 1)}):
        with pytest.raises(RunError, match="bad tensor map"):
            written(first._replace(**wrong), start.maps[1])


@emulated
@pytest.mark.parametrize("library, told", [
    (object(), "the NVIDIA driver is too old: it lacks tensor maps"),
    (SimpleNamespace(cuTensorMapEncodeTiled=lambda *_: 1), "refuses a tensor map: cuTensorMapEncodeTiled failed: error 1")])
def test_drivers_without_tensor_maps(library, told, monkeypatch):
    """One message, and nothing left in the device's memory."""
    sources = grouped(product(BF16, (128, 448, 256)), BULK)
    driver.install(monkeypatch)
    monkeypatch.setattr(graphs, "library", lambda: library)
    before = driver.mem_get_info()
    with pytest.raises(RunError, match=told):
        backend_of(sources)
    assert driver.mem_get_info() == before
