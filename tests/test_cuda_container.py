"""A .cubin that holds all: what it gives back, what truncated, changed and hostile ones are told."""
from __future__ import annotations

import hashlib
import json
import shutil
import zipfile

import numpy as np
import pytest
from click.testing import CliRunner
from test_cuda import H100, MODULE, kernel_names, sources_of

from hloc import api
from hloc.cli.main import cli
from hloc.errors import RunError
from hloc.kernels.memory import memory_use
from hloc.kernels.plan import Launch
from hloc.kernels.planner import plan_module
from hloc.targets.cuda import compiler, container
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target


@pytest.fixture(scope="module")
def cubin(tmp_path_factory):
    """A container for the H100."""
    if compiler.nvrtc_version() is None and shutil.which("nvcc") is None:
        pytest.skip("neither NVRTC nor nvcc is installed")
    path = tmp_path_factory.mktemp("cubin") / "small.cubin"
    api.compile(MODULE, "h100", run=False).save(path)
    return path


def test_container_round_trip(cubin):
    packed = container.read(cubin)
    sources = sources_of(MODULE)
    unnamed = tuple(s._replace(instruction=None) for s in sources.program.steps)       # a saved plan has no HLO
    assert packed.kernels == sources.geometry and packed.steps == unnamed
    assert packed.arch == "sm_90a" and packed.arena_size == sources.program.arena_size
    assert [v.shape.to_string(False) for v in packed.results] == ["bf16[64,70]", "f32[64]", "f32[64,5000]"]
    for got, put in zip(packed.constants, sources.program.constants):
        np.testing.assert_array_equal(got, put)


def test_scratch_memory_is_planned():
    """`hloc memory` tells the arena that a run allocates; the partial sums of a split product lie in it."""
    module, program = api.optimized_plan(api.load(MODULE), cuda_target(H100), api.Options())
    use = memory_use(module, H100, cuda_target(H100).workspace)
    sources = make_sources(program, H100)
    given = [r for s in sources.program.steps if isinstance(s, Launch) for r in s.arguments if r.region == "arena"]
    assert 0 < use.scratch <= use.arena == sources.program.arena_size
    assert max(r.offset + r.size for r in given) <= use.arena
    without = make_sources(plan_module(module, H100), H100).program
    assert without.arena_size >= use.scratch


def test_container_is_a_zip_file_with_a_cubin_for_each_kernel(cubin):
    packed = container.read(cubin)
    with zipfile.ZipFile(cubin) as archive:
        assert json.loads(archive.read("plan.json"))["name"] == "small"
        cubins = [archive.read(name) for name in archive.namelist() if name.endswith(".cubin")]
    assert tuple(cubins) == packed.images and len(cubins) > 1
    for number, image in enumerate(cubins):
        assert kernel_names(image) == {g.function for g in packed.kernels if g.image == number}


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9, 0.999])
def test_truncated_container(cubin, tmp_path, place):
    data = cubin.read_bytes()
    path = tmp_path / "cut.cubin"
    path.write_bytes(data[:int(len(data) * place)])
    with pytest.raises(RunError):
        container.read(path)


def test_changed_kernels(cubin, tmp_path):
    data = bytearray(cubin.read_bytes())
    data[len(data) // 3] ^= 1
    path = tmp_path / "changed.cubin"
    path.write_bytes(data)
    with pytest.raises(RunError, match="damaged|not a whole file"):
        container.read(path)


def rewritten(cubin, path, change, how: int = zipfile.ZIP_STORED) -> None:
    """The same container with another plan, sealed anew: what a stranger may have made."""
    data = cubin.read_bytes()
    with zipfile.ZipFile(cubin) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    plan = json.loads(members["plan.json"])
    image = data[:plan["image_bytes"]]
    change(plan)
    members["plan.json"] = json.dumps(plan).encode()
    path.write_bytes(image)
    with zipfile.ZipFile(path, "a", how) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
        archive.comment = bytes(64)
    seal_anew(path)


def seal_anew(path) -> None:
    data = path.read_bytes()[:-64]
    path.write_bytes(data + hashlib.sha256(data).hexdigest().encode())


@pytest.mark.parametrize("change", [
    lambda plan: plan.update(hloc_container=99),
    lambda plan: plan.update(image_bytes=10),
    lambda plan: plan.update(image_bytes=-1),
    lambda plan: plan.update(image_bytes=1 << 62),
    lambda plan: plan.update(image_bytes=1e308),
    lambda plan: plan.update(arena=1 << 60),
    lambda plan: plan["kernels"][0].__setitem__(1, [1 << 31, 1, 1]),
    lambda plan: plan["kernels"][0].__setitem__(1, [1, 65536, 1]),
    lambda plan: plan["kernels"][0].__setitem__(3, 1 << 20),
    lambda plan: plan.update(constants=[["object", [1]]]),
    lambda plan: plan.update(steps=[["launch", 0, [["elsewhere", 0, 0, 4]]]]),
    lambda plan: plan.update(steps=[["launch", 999, []]]),
    lambda plan: plan.update(steps=[["launch", 0, [["arena", 0, 0, 1 << 60]]]]),
    lambda plan: plan.update(steps=[["launch", 0, [["result", 7, 0, 4]]]]),
    lambda plan: plan.update(steps=[["copy", ["arena", 0, 0, 4], ["arena", 0, 4, 8]]]),
    lambda plan: plan.update(steps=7),
    lambda plan: plan["kernels"][0].__setitem__(1, [1, 1]),
    lambda plan: plan["kernels"][0].__setitem__(2, [4096, 1, 1]),
    lambda plan: plan.update(arena=-5),
    lambda plan: plan["results"][0].__setitem__(1, "nothing"),
    lambda plan: plan["results"][0].__setitem__(2, [-1]),
    lambda plan: plan["results"][0].__setitem__(2, [1 << 40, 1 << 40]),
    lambda plan: plan.update(arena=1.5),
    lambda plan: plan.update(steps=[["while", [], ["arena", 0, 0, 1], [], "many", [], 0]]),
    lambda plan: plan.update(steps=[["while", [], ["arena", 0, 0, 1], [], None, [], 2]]),
    lambda plan: plan.update(steps=[["while", [], None, [], None, [], 0]]),
    lambda plan: plan.update(steps=[["while", [], None, [], 2, [[["arena", 0, 0, 4], ["arena", 0, 0, 8]]], 0]]),
    lambda plan: plan.update(steps=[["while", [], None, [], 1 << 30, [[["arena", 0, 0, 4], ["arena", 0, 0, 4]]], 0]]),
    lambda plan: plan.update(steps=[["branch", ["arena", 0, 0, 1], "nothing", [[]], 0]]),
    lambda plan: plan.update(steps=[["branch", ["arena", 0, 0, 1], "pred", [], 0]]),
    lambda plan: plan.update(steps=[["branch", ["arena", 0, 0, 1], "s32", [[]], 0]]),
    lambda plan: plan.update(steps=[["branch", ["arena", 0, 2, 4], "s32", [[]], 0]]),
    lambda plan: plan.update(image_bytes=True),
    lambda plan: plan.update(image_bytes=float("nan")),
    lambda plan: plan.update(hloc_container=[[]] * 9),
    lambda plan: plan.pop("hloc_container"),
    lambda plan: plan["kernels"][0].__setitem__(8, 999),
    lambda plan: plan["kernels"][0].__setitem__(8, -1),
    lambda plan: plan["kernels"][0].__setitem__(0, "elsewhere"),
], ids=range(39))
def test_hostile_plans(cubin, tmp_path, change):
    """Whatever a plan says, it names no memory but its own."""
    path = tmp_path / "hostile.cubin"
    rewritten(cubin, path, lambda plan: None)
    container.read(path)
    rewritten(cubin, path, change)
    with pytest.raises(RunError):
        container.read(path)


@pytest.mark.parametrize("place", [0, 5, 5000, -5000, -1000, -200, -100, -70, -40, -1])
def test_one_changed_byte(cubin, tmp_path, place):
    data = bytearray(cubin.read_bytes())
    data[place] ^= 1
    path = tmp_path / "changed.cubin"
    path.write_bytes(data)
    # the last: where a digit of the hash at the end becomes none
    with pytest.raises(RunError, match="does not match its hash|not a whole file|not a complete file"):
        container.read(path)


def test_bytes_behind_the_end(cubin, tmp_path):
    path = tmp_path / "longer.cubin"
    path.write_bytes(cubin.read_bytes() + b"0")
    with pytest.raises(RunError, match="does not match its hash"):
        container.read(path)


def test_hostile_archives(cubin, tmp_path):
    """A plan that is nested without end, members that unfold to more than the file holds, a directory cut short."""
    path = tmp_path / "hostile.cubin"
    path.write_bytes(b"")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("plan.json", "[" * 200_000)
        archive.comment = bytes(64)
    seal_anew(path)
    with pytest.raises(RunError, match="not a complete file that hloc wrote .RecursionError"):
        container.read(path)
    rewritten(cubin, path, lambda plan: None, how=zipfile.ZIP_DEFLATED)
    with pytest.raises(RunError, match="is compressed by method 8"):
        container.read(path)
    rewritten(cubin, path, lambda plan: None)
    data = path.read_bytes()
    for offset, words in ((20, "not a complete file that hloc wrote"), (8, "is encrypted")):
        at = data.rindex(b"PK\1\2") + offset              # of the last member, as the directory has it
        path.write_bytes(data[:at] + b"\xff\xff\xff\x0f" * 2 + data[at + 8:])
        seal_anew(path)
        with pytest.raises(RunError, match=words):
            container.read(path)
    at = data.rindex(b"PK\5\6") + 12                      # the length of the directory
    path.write_bytes(data[:at] + b"\xff\xff\xff\x7f" + data[at + 4:])
    seal_anew(path)
    with pytest.raises(RunError, match="not a complete file that hloc wrote"):
        container.read(path)


def test_run_without_a_gpu(cubin, monkeypatch):
    from hloc.targets.cuda.presence import device_present
    if device_present():
        pytest.skip("a machine without a GPU is needed: this one has one")
    result = CliRunner().invoke(cli, ["run", str(cubin)])
    error = result.exception
    assert isinstance(error, RunError) and error.code == 6
    assert "PyCUDA" in error.message or "driver" in error.message or "GPU" in error.message
