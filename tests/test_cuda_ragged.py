"""ragged-dot on the GPU: rows in groups, each with a matrix of its own; emulated, every access looked at, against the
evaluator."""
from __future__ import annotations

import shutil

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of, emulate

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import Evaluator
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.targets.cuda.compiler import compiler_version
from hloc.targets.cuda.execution import measure
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.libraries.products import library_product
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.source import variants

H100 = GPUS["h100"]
emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
compiled = pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")
SIZES = [0, 70, 1, 64, 30]                          # of 200 rows: the last 35 are in no group
TEXT = """HloModule m
ENTRY e {{ a = {t}[{a}] parameter(0)  b = {t}[{b}] parameter(1)  s = {s}[{g}] parameter(2)
  ROOT r = {r}[{m},{n}] ragged-dot(a, b, s), lhs_contracting_dims={{{lk}}}, rhs_contracting_dims={{{rk}}},
    lhs_ragged_dims={{{lr}}}, rhs_group_dims={{{rg}}} }}
"""


def ragged(type: str, result: str, m=200, k=96, n=72, groups=5, lhs="mk", rhs="gkn", sizes="s32") -> str:
    """lhs, rhs: the order of their dimensions."""
    extent = {"m": m, "k": k, "n": n, "g": groups}
    return TEXT.format(t=type, r=result, m=m, n=n, g=groups, s=sizes, a=",".join(str(extent[d]) for d in lhs),
                       b=",".join(str(extent[d]) for d in rhs), lk=lhs.index("k"), lr=lhs.index("m"), rk=rhs.index("k"),
                       rg=rhs.index("g"))


def planned(text: str, gpu=H100):
    target = cuda_target(gpu)
    return api.plan(api.optimize(api.load(text), target), target)


def inputs(program, sizes) -> list[np.ndarray]:
    """Small whole numbers, whose sums are exact in every type."""
    random = np.random.default_rng(0)
    arrays = [random.integers(-3, 4, size=p.shape.dimensions).astype(numpy_dtype(p.shape.element_type))
              for p in program.parameters[:2]]
    return check_arrays(program.parameters, [*arrays, np.array(sizes, numpy_dtype(program.parameters[2].shape.element_type))])


def check(text: str, sizes, monkeypatch, variant: str = "") -> None:
    program = planned(text)
    arrays = inputs(program, sizes)
    sources = make_sources(program, H100, [variant] if variant else ())
    assert "hloc_ragged<" in sources.readable() and len(program.kernels) == 1
    (result,) = emulate(sources, arrays, monkeypatch, checked=True, backwards=True)
    (right,) = Evaluator(api.load(text)).run(arrays)
    np.testing.assert_array_equal(result.astype(float), right.astype(float))


@emulated
@pytest.mark.parametrize("type, result, lhs, rhs", [
    ("bf16", "bf16", "mk", "gkn"), ("bf16", "f32", "km", "gnk"), ("f16", "f16", "mk", "kgn"), ("s8", "s32", "mk", "gnk"),
    ("f32", "f32", "mk", "gkn"), ("f32", "f32", "km", "ngk")])
def test_orders_and_types(type, result, lhs, rhs, monkeypatch):
    check(ragged(type, result, lhs=lhs, rhs=rhs), SIZES, monkeypatch)


@emulated
@pytest.mark.parametrize("type", ["bf16", "f32"])
def test_what_is_no_number_stays_in_its_group(type, monkeypatch):
    """In rows of a group, in rows of none, and in a group's matrix; without a GPU, where products are written out, too."""
    text = ragged(type, type)
    program = planned(text)
    rows, matrices, sizes = inputs(program, SIZES)
    matrices[1, 5] = 1
    rows[3, 5], rows[100, 0], rows[199, 1], matrices[3, 7, 2], matrices[0, 0, 0] = np.inf, np.nan, np.nan, np.nan, np.inf
    arrays = [rows, matrices, sizes]
    (on_gpu,) = emulate(make_sources(program, H100), arrays, monkeypatch, checked=True, backwards=True)
    (right,) = Evaluator(api.load(text)).run(arrays)
    (on_cpu,) = api.compile(text, "cpu")(*arrays)
    for found in (on_gpu, on_cpu, right):
        wide = found.astype(float)
        assert np.isnan(wide[100]).all() and (wide[165:] == 0).all()
        assert np.isnan(wide[71:135, 2]).sum() == 64 and np.isnan(wide).sum() == 64 + 72 - 1
        np.testing.assert_array_equal(wide, right.astype(float))


@emulated
@pytest.mark.parametrize("sizes", [[200, 0, 0, 0, 0], [0, 0, 0, 0, 0], [150, 100, 7, 0, 0], [40, 40, 40, 40, 40],
                                   [-3, 90, -1, 1 << 40, 5]])
def test_sizes(sizes, monkeypatch):
    """All rows in one group, none in any, more than there are, all full, below zero and far beyond."""
    check(ragged("bf16", "bf16", sizes="s64"), sizes, monkeypatch)


@emulated
@pytest.mark.parametrize("variant", ["128x256x64, 4 stages, wgmma, bulk copies", "64x64x64, 4 stages, wgmma",
                                 "128x128x64, 3 stages", "64x64x64, 4 stages, wgmma, bulk copies"])
def test_variants(variant, monkeypatch):
    """Boxes of the bulk copy engine reach into the next group's rows, which are not stored."""
    text = ragged("bf16", "bf16")
    (tile,) = planned(text).kernels
    assert variant in variants(tile, H100)
    check(text, SIZES, monkeypatch, variant)


@emulated
@pytest.mark.parametrize("place, wrong", [("return end - row; }", "return S::M - row; }"),
                                          ("batch < S::GROUPS ? S::K : 0", "S::K"),
                                          ("? batch * S::B_INNER : 0", "? 0 : 0")])
def test_faults(place, wrong, monkeypatch):
    """Rows of the next group, products of rows without a group, another group's matrix: each shows."""
    program = planned(ragged("bf16", "bf16"))
    sources, arrays = make_sources(program, H100), inputs(program, SIZES)
    text = driver.text_of(sources)
    assert place in text
    driver.install(monkeypatch)
    (right,) = Evaluator(api.load(ragged("bf16", "bf16"))).run(arrays)
    backend = backend_of(sources, image=driver.build_text(text.replace(place, wrong), checked=True))
    try:
        assert (backend(arrays)[0] != right).any()
    except RunError as error:
        assert "thread" in error.message
    finally:
        backend.close()


def test_what_is_written_out():
    """Groups of batches or of the depth are masked products, as on a CPU; libraries compute none of them."""
    text = TEXT.format(t="f32", r="f32", a="200,96", b="96,72", g=5, s="s32", m="5,200", n=72, lk=1, lr=1, rk=0, rg="")
    kernels = planned(text).kernels
    assert len(kernels) > 1 and not any("groups" in dict(getattr(k, "parameters", ())) for k in kernels)
    (tile,) = planned(ragged("bf16", "bf16", 4096, 4096, 4096, 8)).kernels
    assert library_product(tile) is None and "wgmma" in variants(tile, H100)[0]
    assert not any("splits" in w for w in variants(tile, H100))


def test_measured_on_even_groups():
    """A tuning file's measurements: rows in groups of one size, not in none."""
    (tile,) = planned(ragged("bf16", "bf16")).kernels
    inputs = {b.name: measure.input_of(tile, b, np.random.default_rng(0)) for b in tile.buffers if b.access == "read"}
    assert inputs["in2"].tolist() == [40] * 5 and inputs["lhs"].size == 200 * 96


@compiled
@pytest.mark.parametrize("number", [0, 1])
def test_no_spills(number):
    program = planned(ragged("bf16", "bf16", 4096, 4096, 4096, 8))
    sources = make_sources(program, H100, [variants(program.kernels[0], H100)[number]])
    found = resources(sources.single_file(), "sm_90a")
    assert {k: r for k, r in found.items() if r.spill_stores or r.spill_loads} == {}
