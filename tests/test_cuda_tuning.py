"""The tuning file: variants measured by a fake clock on the emulated driver, kept, used again; files that are not whole."""
from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from cuda_emulation import driver
from cuda_emulation.with_pycuda import COMPILER

from hloc import api
from hloc.cli.main import cli
from hloc.errors import HlocError, RunError, UsageError
from hloc.kernels.ir import Tile
from hloc.targets.cuda import compiler, kernel_images, presence, target
from hloc.targets.cuda.execution import context, measure, tuning
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.tiles.source import variants

H200 = GPUS["h200"]
DOT = """HloModule dot
ENTRY e {{ a = {t}[{m},{k}] parameter(0)  b = {t}[{k},{m}] parameter(1)
  ROOT d = {t}[{m},{m}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}},
    operand_precision={{highest,highest}} }}
"""
SMALL = DOT.format(t="f32", m=40, k=40)
VARIANTS = ["32x32x16", "128x128x16", "64x64x16"]
HERE = "NVIDIA H200, CUDA 13.0"


def tile_of(text: str, gpu=H200) -> Tile:
    own = target.cuda_target(gpu)
    (tile,) = (k for k in api.plan(api.optimize(api.load(text), own), own).kernels if isinstance(k, Tile))
    return tile


@pytest.fixture
def device(monkeypatch):
    """An H200 by name, whose kernels take the seconds that `times` says for each variant; `change` may spoil a variant."""
    driver.install(monkeypatch)
    context.device_machine.cache_clear()
    monkeypatch.setattr(driver.DEVICE, "name", "NVIDIA H200")
    monkeypatch.setattr(presence, "device_present", lambda: True)
    monkeypatch.setattr(kernel_images, "images_of", driver.images_of)
    monkeypatch.setattr(compiler, "compiler_version", lambda: COMPILER)
    state = SimpleNamespace(times={}, change=lambda variant, sources: sources, now=0.0, variant="", measured=[])
    make_sources, run = measure.make_sources, driver.Function._run

    def noted(program, gpu, chosen):
        (state.variant,) = chosen
        state.measured.append(state.variant)
        return state.change(state.variant, make_sources(program, gpu, chosen))

    def recorded(event, stream):
        stream.run()                                   # what lies before it has taken its time
        event.mark = SimpleNamespace(when=state.now, wait=lambda: None)

    def timed(self, *arguments):
        run(self, *arguments)
        state.now += state.times.get(state.variant, 1.0)
    monkeypatch.setattr(measure, "make_sources", noted)
    monkeypatch.setattr(driver.Function, "_run", timed)
    monkeypatch.setattr(driver.Event, "record", recorded)
    yield state
    context.device_machine.cache_clear()


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")


# -- measuring ---------------------------------------------------------------------------------------------------------

@needs_compiler
def test_the_fastest_way_is_kept_and_used_again(device, tmp_path):
    device.times = {"32x32x16": 3e-6, "128x128x16": 1e-6, "64x64x16": 2e-6}
    file, options = tmp_path / "tuning.json", api.Options(tuning=tmp_path / "tuning.json")
    exe = api.compile(SMALL, "cuda", options=options, run=False)
    assert device.measured == VARIANTS and "BM = 128," in exe.source
    told = json.loads(file.read_text())["measured"][HERE]
    ((key, row),) = told.items()
    assert key == tuning.key_of(tile_of(SMALL)) and row == {
        "kernel": "gemm f32 40x40x40", "variant": "128x128x16", "refused": {},
        "microseconds": {"32x32x16": 3.0, "128x128x16": 1.0, "64x64x16": 2.0}}
    again = api.compile(SMALL, "h200", options=options, run=False)              # the same GPU by its name
    assert device.measured == VARIANTS and "BM = 128," in again.source
    a, b = (np.random.default_rng(n).normal(size=(40, 40)).astype("f4") for n in (0, 1))
    np.testing.assert_allclose(again(a, b)[0], a @ b, rtol=1e-4, atol=1e-4)


@needs_compiler
def test_a_way_with_wrong_results_is_not_taken(device, tmp_path):
    """However fast it is."""
    def spoil(variant, sources):
        if variant != "128x128x16":
            return sources
        wrong = sources.kernels[0].replace("return sum + a * b;", "return sum + a * b * 1.01f;")
        assert wrong != sources.kernels[0]
        return dataclasses.replace(sources, kernels=(wrong,), host_calls=())
    device.change, device.times = spoil, {"32x32x16": 3e-6, "128x128x16": 1e-6, "64x64x16": 2e-6}
    found = measure.measure(tile_of(SMALL), H200)
    assert found.variant == "64x64x16" and found.refused == {"128x128x16": "its results are not those of '32x32x16'"}
    assert found.microseconds == {"32x32x16": 3.0, "64x64x16": 2.0}


@needs_compiler
def test_a_way_that_the_device_refuses_is_not_taken(device):
    """It asks for more shared memory than there is."""
    def greedy(variant, sources):
        if variant != "128x128x16":
            return sources
        return dataclasses.replace(sources, geometry=(sources.geometry[0]._replace(shared=1 << 20),))
    device.change, device.times = greedy, {"32x32x16": 2e-6, "64x64x16": 3e-6}
    found = measure.measure(tile_of(SMALL), H200)
    assert found.variant == "32x32x16" and "invalid argument" in found.refused["128x128x16"]


@needs_compiler
def test_a_way_that_stops_the_gpu_ends_the_measurement(device, monkeypatch, tmp_path):
    """The context has died: nothing can be measured after it. What was measured before is in the file."""
    def fail(self, *_):
        raise driver.Error("cuLaunchKernel failed: an illegal memory access was encountered")

    def change(variant, sources):
        if variant == "64x64x16":
            monkeypatch.setattr(driver.Function, "_run", fail)
        return sources
    device.change = change
    with pytest.raises(RunError, match=r"measuring gemm f32 40x40x40 as '64x64x16': the GPU stopped in kernel k0_dot"):
        api.compile(SMALL, "cuda", options=api.Options(tuning=tmp_path / "t.json"), run=False)
    assert driver.Context.depth == 0 and not (tmp_path / "t.json").exists()


@pytest.mark.parametrize("type, actual, expected, same", [
    ("f32", [1.0, 2.0], [1.00001, 2.0], True), ("f32", [1.0, 2.0], [1.001, 2.0], False),
    ("f32", [1.0, float("nan")], [1.0, 2.0], False), ("f32", [1.0, float("inf")], [1.0, float("inf")], True),
    ("f32", [1.0, float("-inf")], [1.0, float("inf")], False), ("s32", [1, 2], [1, 3], False), ("s32", [1, 2], [1, 2], True),
    ("bf16", [1.0, 100.0], [1.5, 101.0], True), ("c64", [1j], [1j + 0.01], False)])
def test_what_counts_as_the_same_result(type, actual, expected, same):
    from hloc.ir import numpy_dtype
    assert measure.agree(*(np.array(v).astype(numpy_dtype(type)) for v in (actual, expected)), type) == same


@pytest.mark.parametrize("type, least", [("f8e4m3fn", measure.F8_ERROR), ("bf16", 0)])
def test_sums_of_few_bits(type, least):
    """wgmma adds products of f8 with 14 bits: results of 4,096 products lay 2e-4 apart on an H200."""
    text = SMALL.replace("f32[40,40] parameter", f"{type}[40,40] parameter")
    assert measure.rounding_of(tile_of(text)) == least
    assert measure.agree(np.float32([1, 1.0004]), np.float32([1, 1]), "f32", least) == bool(least)


def test_large_results_are_compared_as_a_whole():
    """Block by block: what lies apart in one block is weighed against the largest number of all."""
    expected = np.full((3, measure.BLOCK), 0.001, np.float32)
    expected[2, -1] = 100
    actual = expected.copy()
    actual[0, 0] = 0.002
    assert measure.agree(actual, expected, "f32")
    actual[1, 5] = 0.1
    assert not measure.agree(actual, expected, "f32")
    actual[1, 5], actual[2, 0] = 0.001, np.nan
    assert not measure.agree(actual, expected, "f32")


CONVOLUTION = """HloModule c
ENTRY e { x = f32[1,6,6,16] parameter(0)  w = f32[3,3,16,16] parameter(1)
  ROOT d = f32[1,6,6,16] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f }
"""


@needs_compiler
@pytest.mark.parametrize("name, least", [("convolution", 2), ("attention", 4)])
def test_convolutions_and_attention(device, name, least):
    """All their variants give the same results."""
    from test_cuda_attention import Case, module
    tile = tile_of(CONVOLUTION if name == "convolution" else module(Case("bf16", rows=20, columns=40)))
    found = measure.measure(tile, H200)
    assert tile.library_kernel == name and len(found.microseconds) >= least and found.refused == {}
    assert tuning.describe(tile).startswith(name)


def test_ways_differ_and_the_first_is_the_cost_models():
    for text in (SMALL, DOT.format(t="bf16", m=512, k=4096), DOT.format(t="f64", m=96, k=96)):
        tile = tile_of(text)
        found = variants(tile, H200)
        assert len(found) == len(set(found)) >= 2
        assert tuning.describe(tile).startswith("gemm")
    assert any("splits" in variant for variant in variants(tile_of(DOT.format(t="bf16", m=512, k=4096)), H200))


# -- the file ----------------------------------------------------------------------------------------------------------

@pytest.fixture
def file(tmp_path, monkeypatch):
    """What was measured on an H200, on a machine without one."""
    monkeypatch.setattr(presence, "device_present", lambda: False)
    path = tmp_path / "tuning.json"
    row = tuning.Measured("gemm f32 40x40x40", "128x128x16", {"32x32x16": 3.0, "128x128x16": 1.0})
    older = row._replace(variant="64x64x16")
    key = tuning.key_of(tile_of(SMALL))
    tuning.write(path, tuning.Tuning({"NVIDIA H200, CUDA 12.9": {key: older}, HERE: {key: row}}))
    return path


def compiled(path, gpu: str = "h200"):
    return api.compile(SMALL, gpu, options=api.Options(tuning=path), run=False)


def test_a_file_serves_without_a_device(file):
    assert "BM = 128," in compiled(file).source                        # of the latest driver
    assert "BM = 32," in api.compile(SMALL, "h200", run=False).source
    assert file.read_bytes() == file.read_bytes() and tuning.read(file).measured.keys() == {"NVIDIA H200, CUDA 12.9", HERE}


def test_a_file_of_another_device(file):
    with pytest.raises(RunError, match=r"was measured on NVIDIA H200, CUDA 12.9 and on NVIDIA H200, CUDA 13.0, not on a100") as caught:
        compiled(file, "a100")
    assert caught.value.code == 6 and "--tuning FILE" in caught.value.hint


def test_a_file_of_another_program(file):
    other = DOT.format(t="f32", m=44, k=40)
    with pytest.raises(RunError, match="names none of this program's 1 kernels") as caught:
        api.compile(other, "h200", options=api.Options(tuning=file), run=False)
    assert "another version of hloc" in caught.value.hint


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 0.99])
def test_a_truncated_file(file, share):
    data = file.read_bytes()
    file.write_bytes(data[:int(len(data) * share)])
    with pytest.raises(RunError, match="is not a whole tuning file that hloc wrote") as caught:
        compiled(file)
    assert caught.value.code == 6 and "remove it" in caught.value.hint


@pytest.mark.parametrize("old, new", [('"variant": "128x128x16"', '"variant": "64x64x16"'), ("3.0", "0.5"), ("CUDA 13.0", "CUDA 13.1")])
def test_a_changed_file(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(RunError, match="is damaged: its measurements do not match their hash"):
        compiled(file)


@pytest.mark.parametrize("text", ["{}", "[]", "null", "7", '"x"', "\0", "{" * 100_000, '{"hloc_tuning": 2}',
                                  '{"hloc_tuning": 2, "measured": [], "sha256": ""}', '{"hloc_tuning": 99}'])
def test_a_foreign_file(file, text):
    file.write_text(text)
    with pytest.raises(RunError, match="not a whole tuning file|tuning version 99|damaged"):
        compiled(file)


def test_a_file_that_is_no_text(file):
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RunError, match="not a whole tuning file"):
        compiled(file)


def test_rows_that_are_none(file):
    """Sealed, so that the hash is right: what a stranger may have written."""
    times = [math.nan, math.inf, -1.0, 10 ** 400, "1e999", None, []]
    more = [{HERE: {"k": {"kernel": "", "variant": "", "microseconds": {"a": time}, "refused": {}}}} for time in times]
    for rows in (*more, {HERE: {"k": {}}}, {HERE: {"k": {"kernel": "", "variant": "", "microseconds": {"a": "b"}, "refused": {}}}}, {HERE: 3}):
        file.write_text(json.dumps({"hloc_tuning": 2, "measured": rows, "sha256": tuning._seal(rows)}))
        with pytest.raises(RunError, match="not a whole tuning file"):
            compiled(file)


def test_a_way_that_hloc_does_not_know(file):
    row = tuning.Measured("gemm", "7x7; rm", {"7x7; rm": 1.0})
    tuning.write(file, tuning.Tuning({HERE: {tuning.key_of(tile_of(SMALL)): row}}))
    with pytest.raises(RunError, match="the variant '7x7; rm' of gemm f32 40x40x40 is unknown"):
        compiled(file)


def test_no_file_and_no_device(tmp_path, monkeypatch):
    monkeypatch.setattr(presence, "device_present", lambda: False)
    with pytest.raises(RunError, match="cannot read the tuning file .*No such file") as caught:
        compiled(tmp_path / "missing.json")
    assert "on a machine with a GPU writes one" in caught.value.hint


def test_a_file_that_cannot_be_written(tmp_path):
    with pytest.raises(RunError, match="cannot write .*tuning.json: no such folder"):
        tuning.write(tmp_path / "no" / "tuning.json", tuning.Tuning({}))


def test_what_is_no_file(tmp_path, monkeypatch):
    """Nothing is measured before it is known that the file can be written, and no link is followed."""
    monkeypatch.setattr(presence, "device_present", lambda: False)
    pipe, folder, zero = tmp_path / "pipe", tmp_path / "folder", tmp_path / "zero"
    os.mkfifo(pipe)
    folder.mkdir()
    zero.symlink_to("/dev/zero")
    for path, words in ((pipe, "a pipe"), (folder, "a folder"), (zero, "a device")):
        with pytest.raises(RunError, match=f"cannot read the tuning file .*{words}"):
            compiled(path)
        with pytest.raises(RunError, match="cannot write .*: it is a"):
            tuning.write(path, tuning.Tuning({}))
    with open(tmp_path / "large", "wb") as file:
        file.truncate(tuning.LARGEST_FILE + 1)
    with pytest.raises(RunError, match="it is larger than 64 MiB"):
        compiled(tmp_path / "large")


@needs_compiler
def test_no_link_is_followed_and_nothing_measured_for_it(device, tmp_path):
    link, victim = tmp_path / "link.json", tmp_path / "victim"
    link.symlink_to(victim)
    with pytest.raises(RunError, match="cannot write .*link.json: it is a symbolic link"):
        api.compile(SMALL, "cuda", options=api.Options(tuning=link), run=False)
    assert not victim.exists() and not device.measured


def test_eight_writers_lose_nothing(tmp_path):
    """Each adds its own kernels to what the others have added meanwhile."""
    path, row = tmp_path / "tuning.json", tuning.Measured("gemm", "1x1", {"1x1": 1.0})

    def add(number: int) -> None:
        for kernel in range(5):
            tuning._add(path, HERE, f"{number} {kernel}", row)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(8)))
    assert len(tuning.read(path).measured[HERE]) == 40 and [p.name for p in tmp_path.iterdir()] == ["tuning.json"]


def test_target_cpu_has_no_use_for_it(file):
    with pytest.raises(UsageError, match="a tuning file is for GPUs, not for target cpu"):
        compiled(file, "cpu")


def test_command_line(file, tmp_path):
    (tmp_path / "m.hlo").write_text(SMALL)
    arguments = ["compile", str(tmp_path / "m.hlo"), "-o", "-", "--emit", "cuda", "--target", "h200", "--tuning", str(file)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0 and "BM = 128," in result.output
    file.write_text("{")
    result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, HlocError) and result.exception.code == 6
