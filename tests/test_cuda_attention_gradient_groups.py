"""The gradients of attention by instructions of sm_90a: wgmma and the bulk copy engine; emulated, every access looked
at, against the evaluator; planted faults; what the machine code is made of."""
from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import test_cuda_attention_gradient
from cuda_emulation import driver
from cuda_emulation.cases import backend_of
from test_cuda_attention_gradient import H100, Case, check, compiled, emulated, module, program_of

from hloc.errors import RunError
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.kernels.ir import Tile
from hloc.targets.cuda.compiler import compile_verbosely
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.tiles.attention_gradient import attention_gradient_variants

WGMMA = ", wgmma, bulk copies"
TILES = ["128 rows, 64 columns", "64 rows, 64 columns", "128 rows, 128 columns"]


def is_gradient(kernel) -> bool:
    return isinstance(kernel, Tile) and kernel.library_kernel == "attention_gradient"


def grouped(program, gpu, tile: str = TILES[0]):
    """All gradients in one way, those that do not have it in the first one."""
    chosen = []
    for kernel in program.kernels:
        found = [v for v in attention_gradient_variants(kernel, gpu) if v.endswith(WGMMA)] if is_gradient(kernel) else []
        chosen.append(next((v for v in found if v == tile + WGMMA), found[0]) if found else "")
    sources = make_sources(program, gpu, chosen)
    assert sources.readable().count("hloc_attention_gradient_group<") == sum(map(is_gradient, program.kernels))
    return sources


@pytest.fixture
def in_groups(monkeypatch):
    """test_cuda_attention_gradient's checks are those of these kernels; gives a function that sets the tile."""
    def of(tile: str) -> None:
        monkeypatch.setattr(test_cuda_attention_gradient, "sources_of", lambda program, gpu: grouped(program, gpu, tile))
    return of


@emulated
@pytest.mark.parametrize("tile, cases", [
    (TILES[0], [Case("bf16", "causal", "parts", "kv", 70, 20, 64, 64, 1)]),
    (TILES[1], [Case("f16", "bias", "softmax", "qkv", 70, 72, 64, 64, 2, True), Case("bf16", "plain", "parts", "v")]),
    (TILES[2], [Case("bf16", "causal", "softmax", "q", 20, 300, 64, 64, 1)])])
def test_forms(tile, cases, in_groups, monkeypatch):
    in_groups(tile)
    check(cases, H100, monkeypatch)


@emulated
def test_sizes(in_groups, monkeypatch):
    """One tile; heads of 128; values longer than keys: outputs with tiles of their own; features of several blocks;
    several heads of a block, whose rows are copied while the last one's sums are given."""
    in_groups(TILES[1])
    sizes = [(16, 70, 128, 128, 1), (20, 16, 40, 136, 1), (16, 130, 64, 64, 3)]
    check([Case("bf16", "plain", "softmax", "qkv", *size) for size in sizes], dataclasses.replace(H100, cores=2),
          monkeypatch)


@emulated
def test_no_numbers(in_groups, monkeypatch):
    """A row of which all is masked, an infinite score, a NaN: NaN where the evaluator has it."""
    def change(arrays):
        bias = arrays[4]
        bias[...] = 0
        bias[0], bias[1, 3], bias[2, 5] = -np.inf, np.inf, np.nan
    in_groups(TILES[1])
    check([Case("bf16", "bias", "softmax", "qv", 20, 40, heads=1)], H100, monkeypatch, change)


# -- planted faults ----------------------------------------------------------------------------------------------------

NEVER = "a barrier that some threads never reach"
EARLY = "still reads|nothing has written|has not waited for"


def run_changed(place: str, wrong: str, tile: str = TILES[1]) -> None:
    """Run the kernels with a piece of their text replaced. Both heads are one block's work."""
    small = dataclasses.replace(H100, cores=1)
    sources = grouped(program_of(module(Case("bf16", "plain", "softmax", "kv", 300, 32, 64, 64)), small), small, tile)
    text = driver.text_of(sources)
    start = text.index("struct hloc_gradient_tiles")
    assert place in text[start:]
    image = driver.build_text(text[:start] + text[start:].replace(place, wrong), checked=True)
    backend = backend_of(sources, image=image)
    random = np.random.default_rng(0)
    arrays = [random.normal(size=v.shape.dimensions).astype(numpy_dtype(v.shape.element_type))
              for v in sources.program.parameters]
    try:
        backend(check_arrays(sources.program.parameters, arrays))
    finally:
        backend.close()


@emulated
@pytest.mark.parametrize("place, wrong, told", [
    ("      tiles.steps.wait();\n", "", "has not waited for|nothing has written"),
    ("    tiles.rows.wait();\n", "", "has not waited for|nothing has written"),
    ("    tiles.rows.done(0);\n", "", NEVER),
    ("      hloc_wgmma_wait<1>(); /* and the first one */\n", "", EARLY)], ids=range(4))
def test_faults(place, wrong, told, monkeypatch):
    """What is left out shows: the checker tells it."""
    driver.install(monkeypatch)
    with pytest.raises(RunError, match=told):
        run_changed(place, wrong)


@emulated
@pytest.mark.parametrize("place, wrong, told", [
    ("      Turns::wait();\n", "", f"nobody waits for|{NEVER}"),
    ("      Turns::pass();\n      hloc_wgmma_wait<0>();", "      hloc_wgmma_wait<0>();", NEVER)], ids=range(2))
def test_faults_of_turns(place, wrong, told, monkeypatch):
    """Two groups: turns that are not waited for, or not passed on."""
    driver.install(monkeypatch)
    with pytest.raises(RunError, match=told):
        run_changed(place, wrong, TILES[0])


# -- machine code ------------------------------------------------------------------------------------------------------

@compiled
def test_instructions_of_the_hardware():
    """wgmma begun without a wait between, nothing spilled, and what the launch asks for is there."""
    program = program_of(module(Case("bf16", "causal", "parts", "qkv", 1024, 1024, 128, 128, 16)), H100)
    sources = grouped(program, H100)
    for found in resources(sources.single_file(), "sm_90a").values():
        assert found.spill_stores == found.spill_loads == 0
    assert all(g.shared <= H100.shared_bytes for g in sources.geometry)
    assert "serialized" not in compile_verbosely(sources.single_file(), "sm_90a")


def test_only_what_tensor_maps_bear():
    """Other GPUs have none of it; lines that are no multiple of 16 bytes neither, nor f32, nor weights that stay f32."""
    def labels(case: Case, gpu=H100):
        return [v for k in program_of(module(case), gpu).kernels if is_gradient(k)
                for v in attention_gradient_variants(k, gpu) if v.endswith(WGMMA)]
    assert len(labels(Case("bf16", depth=64, features=64))) == 6
    for case in (Case("f32"), Case("bf16", depth=36), Case("bf16", features=20), Case("bf16", wide="f32")):
        assert not labels(case)
    assert not labels(Case("bf16"), GPUS["b200"]) and not labels(Case("bf16"), GPUS["a100"])
