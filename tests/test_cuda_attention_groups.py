"""Attention by instructions of sm_90a: wgmma and the bulk copy engine; emulated, every access looked at, against the
evaluator; planted faults; what the machine code is made of."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import test_cuda_attention
from cuda_emulation import driver
from cuda_emulation.cases import backend_of
from test_cuda_attention import H100, SCORES, SMALL, Case, check, compiled, emulated, module

from hloc import api
from hloc.errors import RunError
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.targets.cuda.compiler import compile_cuda, compile_verbosely
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.resources import resources_in
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.source import variants

WGMMA = ", wgmma, bulk copies"
TILES = ["128 queries, 128 keys", "64 queries, 128 keys", "128 queries, 64 keys", "64 queries, 64 keys"]


def grouped(text: str, gpu=H100, tile: str = TILES[0]):
    """All kernels in one way."""
    target = cuda_target(gpu)
    program = api.plan(api.optimize(api.load(text), target), target)
    assert all(tile + WGMMA in variants(k, gpu) for k in program.kernels)
    sources = make_sources(program, gpu, [tile + WGMMA] * len(program.kernels))
    assert sources.readable().count("hloc_attention_group<") == len(program.kernels)
    return sources


@pytest.fixture
def in_groups(monkeypatch):
    """test_cuda_attention's checks are those of these kernels; gives a function that sets the tile."""
    def of(tile: str) -> None:
        monkeypatch.setattr(test_cuda_attention, "sources_of", lambda text, gpu: grouped(text, gpu, tile))
    of(TILES[0])
    return of


@emulated
@pytest.mark.parametrize("type, tile, scores", [("bf16", TILES[0], tuple(SCORES)), ("f16", TILES[3], ("bias", "dropped"))])
def test_scores(type, tile, scores, in_groups, monkeypatch):
    in_groups(tile)
    check([Case(type, score, 1, 1, 136, 200, 64, 64) for score in scores], H100, monkeypatch)


@emulated
@pytest.mark.parametrize("tile", [TILES[0], TILES[3]])
def test_sizes(tile, in_groups, monkeypatch):
    """One tile; longer and shorter heads; features of several blocks; keys in pieces, the last one shorter."""
    in_groups(tile)
    sizes = [(16, 16, 16, 16), (130, 72, 128, 128), (20, 264, 40, 136), (1, 700, 64, 64)]
    check([Case("bf16", "scaled", 1, 1, *size) for size in sizes], H100, monkeypatch)


@emulated
def test_long_heads(in_groups, monkeypatch):
    in_groups(TILES[2])
    check([Case("bf16", "causal", 1, 1, 70, 90, 256, 256)], H100, monkeypatch)


@emulated
@pytest.mark.parametrize("interleaved", [False, True])
def test_several_heads_of_a_block(interleaved, in_groups, monkeypatch):
    """Queries, keys and values of the next head are copied while the last one's sums are given; heads between rows and
    depth are read where they lie."""
    in_groups(TILES[1])
    check([Case("bf16", "causal", 2, 3, 70, 130, 64, 64, interleaved)], SMALL, monkeypatch)


@emulated
def test_masked_tiles(in_groups, monkeypatch):
    """Tiles of which a group sees nothing are passed over, where all values are finite: else these are NaN in all rows."""
    def change(arrays):
        arrays[2][0, 0, 140, 3], arrays[2][0, 0, 141, 4], arrays[5][0, 0, 2, 5] = np.inf, np.nan, -np.inf
    in_groups(TILES[3])
    cases = [Case("bf16", "causal", 1, 1, 150, 150, 32, 32), Case("f16", "future", 1, 1, 150, 100, 32, 32)]
    check(cases, H100, monkeypatch)
    first, second = check(cases, H100, monkeypatch, change)
    assert np.isnan(first[0, 0, :140, 3:5].astype(float)).all() and np.isnan(second[0, 0, 3:100, 5]).all()


def run_changed(case: Case, changes: list[tuple[str, str]], monkeypatch, checked: bool, tile: str = TILES[1]) -> np.ndarray:
    """What the kernel gives with pieces of its text replaced."""
    sources = grouped(module(case), dataclasses.replace(H100, cores=1), tile)
    text = driver.text_of(sources)
    for place, wrong in changes:
        assert place in text
        text = text.replace(place, wrong)
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(text, checked=checked))
    random = np.random.default_rng(0)
    arrays = [random.normal(size=v.shape.dimensions).astype(numpy_dtype(v.shape.element_type))
              for v in sources.program.parameters]
    try:
        return backend(check_arrays(sources.program.parameters, arrays))[0].astype(float)
    finally:
        backend.close()


@emulated
def test_masked_tiles_are_passed_over(monkeypatch):
    """With what stands in the place of the weights of such a tile made NaN, and used, rows are NaN."""
    case = Case("bf16", "causal", 1, 1, 64, 300, 32, 32)
    assert not np.isnan(run_changed(case, [], monkeypatch, False)).any()
    assert np.isnan(run_changed(case, [("z[0][c] = z[1][c] = 0;", "z[0][c] = z[1][c] = HLOC_NAN_F32;"),
                                       ("any = any ||", "any = true ||"), ("before ||", "true ||")],
                                monkeypatch, False)).all()


# -- planted faults ----------------------------------------------------------------------------------------------------

NEVER = "a barrier that some threads never reach"


@emulated
@pytest.mark.parametrize("place, wrong, told", [
    ("  tiles.steps.wait();\n  hloc_turns", "  hloc_turns", "has not waited for|nothing has written"),
    ("    tiles.steps.wait();\n    bool used", "    bool used", "has not waited for|nothing has written"),
    ("    tiles.queries.wait();", "", "has not waited for|nothing has written"),
    ("    tiles.queries.done(0);\n", "", NEVER),
    ("tiles.steps.done(FIRST ? 1 : 2);", "tiles.steps.done(FIRST ? 1 : 1);", f"still reads|nothing has written|more arrivals|{NEVER}"),
    ("hloc_wgmma_wait<FIRST ? 0 : 1>();", "hloc_wgmma_wait<1>();", "still reads"),
    ("    hloc_wgmma_wait<0>();\n    tiles.steps.done(1);\n  };", "    tiles.steps.done(1);\n  };", "still reads"),
    ("steps.begin(VALUE_BYTES);", "steps.begin(VALUE_BYTES + 128);", NEVER),
    ("hloc_bulk_known(maps + n * 128)", "hloc_bulk_known(maps)", "fence.proxy.tensormap"),
    ("barriers(memory) + 2) {}", "barriers(memory) + 1) {}", "made twice|no barrier|never reach"),
    ("multiply<COLUMNS, 0, 0, 0>", "multiply<COLUMNS, 0, 0, 1>", "")], ids=range(11))
def test_faults(place, wrong, told, monkeypatch):
    """What is left out, or counted wrongly, shows: the checker tells it, or the numbers are wrong."""
    case = Case("bf16", "scaled", 1, 2, 64, 600, 64, 64)
    if told:
        with pytest.raises(RunError, match=told):
            run_changed(case, [(place, wrong)], monkeypatch, True)
        return
    right, other = (run_changed(case, changes, monkeypatch, False) for changes in ([], [(place, wrong)]))
    assert not np.allclose(right, other, rtol=1e-2, atol=1e-2, equal_nan=False)


@emulated
@pytest.mark.parametrize("place, wrong, told", [
    ("hloc_turns<Tiles::WARPS / 4>::wait();\n  if", "if", f"nobody waits for|{NEVER}"),
    ("hloc_turns<Tiles::WARPS / 4>::pass();\n  hloc_wgmma_wait<FIRST", "hloc_wgmma_wait<FIRST", NEVER),
    ("if (own() == GROUPS - 1) pass();", "pass();", f"nobody waits for|{NEVER}"),
    ("(own() + 1) % GROUPS", "own()", f"nobody waits for|{NEVER}"),
    ("if (own() == 0) wait();", "", NEVER),
    ("FIRST = 8, THREADS = 256", "FIRST = 8, THREADS = 128", f"nobody waits for|{NEVER}"),
    ("FIRST + own()", "FIRST + 1 - own()", f"nobody waits for|{NEVER}")], ids=range(7))
def test_faults_of_turns(place, wrong, told, monkeypatch):
    """Two groups: a turn that is not waited for, not passed on, passed to another, or taken by too few threads."""
    case = Case("bf16", "scaled", 1, 1, 128, 300, 64, 64)
    with pytest.raises(RunError, match=told):
        run_changed(case, [(place, wrong)], monkeypatch, True, TILES[0])


# -- machine code ------------------------------------------------------------------------------------------------------

@compiled
@pytest.mark.parametrize("depth", [64, 128, 256])
def test_instructions_of_the_hardware(depth):
    """wgmma begun without a wait between, nothing spilled, and what the launch asks for is there."""
    tile = TILES[0] if depth < 256 else TILES[2]
    text = module(*(Case("bf16", s, 8, 16, 1024, 1024, depth, depth) for s in ("causal", "bias")))
    sources = grouped(text, tile=tile)
    report = compile_verbosely(sources.single_file(), "sm_90a")
    for found in resources_in(report).values():
        assert found.spill_stores == found.spill_loads == 0
    assert all(g.shared <= H100.shared_bytes for g in sources.geometry)
    assert "serialized" not in report
    ptx = compile_cuda(sources.single_file(), "sm_90a", "ptx")
    assert all(words in ptx for words in (b"wgmma.mma_async.sync.aligned.m64n%dk16" % (128 if depth < 256 else 64),
                                          b"cp.async.bulk.tensor.4d", b"setmaxnreg.inc"))


def test_only_what_tensor_maps_bear():
    """Other GPUs have none of it; lines that are no multiple of 16 bytes neither, nor f32, nor batches of three
    dimensions that do not lie one in the other."""
    def labels(case: Case, gpu=H100, text: str = ""):
        target = cuda_target(gpu)
        return [w for k in api.plan(api.optimize(api.load(text or module(case)), target), target).kernels
                for w in variants(k, gpu) if "wgmma" in w]
    assert len(labels(Case("bf16", depth=64, features=64))) == 4
    for case in (Case("f32"), Case("bf16", depth=36), Case("bf16", features=20)):
        assert not labels(case)
    assert not labels(Case("bf16"), GPUS["b200"]) and not labels(Case("bf16"), GPUS["a100"])
