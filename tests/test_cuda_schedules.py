"""Schedules of loop kernels on a GPU: each that a rule proposes computes what the kernel means, emulated with every
access to memory looked at; all compile for all GPUs; their text; files of schedules."""
from __future__ import annotations

import dataclasses
import json
import shutil

import pytest
from cuda_emulation.cases import emulate, program_of
from kernel_harness import Case, collect, compare
from test_cli import run
from test_cuda_kernels import DATA, SEPARATOR

from hloc import api
from hloc.kernels.ir import Kernel, Last
from hloc.kernels.schedule.steps import Refused, read_steps, steps_text
from hloc.kernels.walks import walk
from hloc.machine import Machine
from hloc.targets.cuda.compiler import compile_cuda, compiler_version
from hloc.targets.cuda.costs.loop_choice import candidates, chosen_form, every
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

H100 = GPUS["h100"]
SMALL = dataclasses.replace(H100, cores=1)
# 4 cores, each as fast as one of an H100, whose kernels take no time to start: all that may be cut into pieces is
JOINING = dataclasses.replace(H100, cores=4, bandwidth=H100.bandwidth * 4 / H100.cores, launch_seconds=0)
FILES = ["cuda/vectors", "cuda/transposes", "cuda/cache_read", "cuda/joined_sums", "cuda/places", "cuda/teams"]
SUM = """a { p = f32[] parameter(0) q = f32[] parameter(1) ROOT s = f32[] add(p, q) }
ENTRY e { x = f32[9,777] parameter(0) z = f32[] constant(0) ROOT y = f32[9] reduce(x, z), dimensions={1}, to_apply=a }"""


def cases_of(name: str, gpu: Machine = SMALL) -> list[Case]:
    texts = SEPARATOR.split((DATA / f"{name}.hlo").read_text(encoding="utf-8"))
    return [c for n, text in enumerate(texts) for c in collect(text, f"{name}#{n}", machine=gpu)]


def with_all_schedules(cases: list[Case], gpu: Machine = SMALL) -> tuple[list[Case], list[str]]:
    """Each case so often that each of its loop kernels has had all schedules; and these, for each kernel."""
    repeated, chosen = [], []
    for case in cases:
        kernels = [call.kernel for call in case.lowered.calls]
        texts = [[steps_text(s) for s in every(k, gpu)] if isinstance(k, Kernel) else [""] for k in kernels]
        for n in range(max(map(len, texts), default=1)):
            repeated.append(case)
            chosen += [own[n % len(own)] for own in texts]
    return repeated, chosen


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
@pytest.mark.parametrize("name", FILES)
def test_every_schedule_means_the_same(name, monkeypatch):
    gpu = JOINING if name in ("cuda/joined_sums", "cuda/places") else SMALL
    cases, chosen = with_all_schedules(cases_of(name, gpu), gpu)
    assert len(cases) > 12 and all(steps_text(read_steps(text)) == text for text in chosen if text)
    joined = sum(any(isinstance(s, Last) for s in walk(c.kernel.body)) for case in cases for c in case.lowered.calls)
    assert gpu is SMALL or 2 * joined > len(cases)
    sources = make_sources(program_of(cases), gpu, chosen)
    arrays = [a for case in cases for operand in case.operands for a in operand]
    results = list(emulate(sources, arrays, monkeypatch, backwards=True, checked=True))
    for case, schedule in zip(cases, chosen):
        for expected in case.expected:
            compare(f"{case.name} {schedule}", results.pop(0), expected)


@pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize("gpu", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_every_schedule_compiles(gpu):
    """Of a transpose, of a softmax, and of sums whose pieces are joined."""
    found = [cases[0] for cases in map(cases_of, ("cuda/transposes", "cuda/cache_read", "cuda/joined_sums"))]
    cases, chosen = with_all_schedules(found)
    assert {word for text in chosen for word in ("block", "warp", "lane", "cache_read", "vectorize") if word in text} \
        == {"block", "warp", "lane", "cache_read", "vectorize"}
    assert len(compile_cuda(make_sources(program_of(cases), SMALL, chosen).single_file(), gpu, "cubin")) > 1000


def kernel_of(name: str, number: int = 0) -> Kernel:
    kernel = cases_of(name)[number].lowered.calls[0].kernel
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.mark.parametrize("name, schedule, message", [
    ("cuda/vectors", "bind(d7,lane)", "no axis d7: there are d0"),
    ("cuda/vectors", "bind(d0,grid)", "bound to nothing but block, warp, lane"),
    ("cuda/vectors", "bind(d0,lane) bind(d0,lane)", "d0 is lane"),
    ("cuda/vectors", "bind(d0,block)", "axes are d0 block; near to it: d0 lane"),
    ("cuda/vectors", "split(d0,1) bind(d0,lane)", "of 2 iterations at least"),
    ("cuda/vectors", "split(d0,3) vectorize(d0i,3) bind(d0o,lane)", "of a power of two"),
    ("cuda/vectors", "split(d0,16) vectorize(d0i,16) bind(d0o,lane)", "vectors of 16|16 bytes at most"),
    ("cuda/vectors", "cache_read(in0) bind(d0,lane)", "by themselves is not cached"),
    ("cuda/vectors", "threads(40) bind(d0,lane)", "a multiple of 32, not 40"),
    ("cuda/vectors", "rfactor(d0,4)", "no step rfactor: there are split, bind, vectorize, cache_read, threads"),
    ("cuda/vectors", "threads(d0)", "does not take these arguments"),
    ("cuda/cache_read", "bind(i0,block) cache_read(in9) bind(row,lane)", "in9 is no buffer"),
    ("cuda/cache_read", "bind(i0,block) cache_read(out0) bind(row,lane)", "read once, or at other places: out0"),
    ("cuda/cache_read", "bind(row,lane) bind(i0,lane)", "lanes share rows of warps or blocks"),
    ("cuda/transposes", "split(d1,32) split(d0,64) bind(d1o,block) bind(d0o,block) cache_read(in0) bind(d1i,lane) "
                        "bind(d0i,lane)", "tiles are squares, not 32 by 64"),
    ("cuda/transposes", "split(d1,32) split(d0,32) bind(d1o,block) bind(d0o,block) bind(d1i,lane) bind(d0i,lane)",
     "not what is read along d1: no buffer"),
], ids=str)
def test_what_does_not_apply_says_why(name, schedule, message):
    with pytest.raises(Refused, match=message):
        chosen_form(kernel_of(name), SMALL, schedule)


@pytest.mark.parametrize("text, wanted", [
    (SUM.replace("9", "65536"), "bind(i0,warp)"), (SUM.replace("9,777", "4,8192").replace("[9]", "[4]"), "bind(i0,block)"),
    ("ENTRY e { x = f32[4096,2048] parameter(0)\n  ROOT y = f32[4096,2048] negate(x) }", "vectorize(d0i,4)"),
    ("""f { x = f32[4096,2048] parameter(0)  t = f32[2048,4096] transpose(x), dimensions={1,0}
            ROOT y = f32[2048,4096] negate(t) }
     ENTRY e { x = f32[4096,2048] parameter(0)  ROOT y = f32[2048,4096] fusion(x), kind=kLoop, calls=f }""",
     "cache_read(in0)"),
], ids=["short rows", "long rows", "elements", "transpose"])
def test_the_quickest_is_chosen(text, wanted):
    target = cuda_target(H100)
    (kernel,) = api.plan(api.optimize(api.load(text), target), target).kernels
    ranked = candidates(kernel, H100)
    assert wanted in ranked[0].text and ranked == sorted(ranked, key=lambda one: one.cycles)


# -- hloc explain --schedule -t h100, --schedule FILE ------------------------------------------------------------------

@pytest.fixture
def module(tmp_path) -> str:
    path = tmp_path / "m.hlo"
    path.write_text(SUM)
    return str(path)


def test_explain_prints_what_compile_takes(capsys, module, tmp_path):
    code, text, _ = run(capsys, "explain", module, "-t", "h100", "--schedule", "--top", "2")
    head, *others, chosen = text.splitlines()
    assert code == 0 and head.startswith("// k0_reduce_add.0: i0 < 9, row; ") and "microseconds" in head
    assert len(others) == 2 and others[0].split(maxsplit=2)[2] == chosen.partition(" ")[2]
    file = tmp_path / "schedules.txt"

    def compiled(*more: str) -> str:
        assert run(capsys, "compile", module, "-t", "h100", "-o", str(tmp_path / "m.cu"), *more)[0] == 0
        return (tmp_path / "m.cu").read_text()
    file.write_text(text)
    assert compiled("--schedule", str(file)) == compiled()
    file.write_text("k0_reduce_add.0 bind(i0,block) threads(384) bind(row,lane)  // by hand")
    assert "__launch_bounds__(384)" in compiled("--schedule", str(file))


def test_explain_has_json(capsys, module):
    code, text, _ = run(capsys, "explain", module, "-t", "h100", "--schedule", "--json")
    (loop,) = json.loads(text)["schedules"]
    assert code == 0 and loop["loop"] == "k0_reduce_add.0" and loop["iterations"] == "i0 < 9, row"
    assert loop["candidates"][0]["schedule"] == loop["schedule"] and loop["candidates"][0]["microseconds"] > 1


@pytest.mark.parametrize("text, message", [
    ("k0_reduce_add.0 bind(i0,lane) bind(row,lane)", "bad.txt:1:1: error: lanes share rows of warps or blocks"),
    ("\n  k0_reduce_ad.0 scalar", "bad.txt:2:3: error: no loop k0_reduce_ad.0 with a schedule in this program"),
], ids=str)
def test_wrong_files_are_located(capsys, module, tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_text(text)
    code, _, err = run(capsys, "compile", module, "-t", "h100", "-o", "m.cubin", "--schedule", "bad.txt")
    assert code == 3 and message in err
