"""Each kernel is a cubin of its own: the same code as in one file of all, compiled once whatever its place, by all cores."""
from __future__ import annotations

import dataclasses
import re
import threading

import pytest
from test_cuda import MODULE, kernel_names, sources_of

from hloc.errors import BuildError
from hloc.targets.cuda import compiler, kernel_images
from hloc.targets.cuda.kernel_images import images_of, renamed, unplaced
from hloc.workers import in_background

pytestmark = pytest.mark.skipif(compiler.nvrtc_version() is None, reason="NVRTC is not installed")
INTERNAL = re.compile(rb"(_hloc_cu_)[0-9a-f]{8}")         # names of what a file keeps to itself: a hash of its text


@pytest.fixture
def compiled(monkeypatch, tmp_path) -> list[str]:
    """The names of the kernels that are compiled, with an empty cache."""
    names: list[str] = []
    compile_units = compiler.compile_units
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "compile_units", lambda units, *more: names.extend(units) or compile_units(units, *more))
    return names


def test_images_have_the_kernels_of_their_launches(compiled):
    sources = sources_of(MODULE)
    images = images_of(sources, "sm_90a")
    assert len(images) == len(sources.units()) == len(compiled) > 1
    for number, image in enumerate(images):
        assert kernel_names(image) == {g.function for g in sources.geometry if g.image == number}


def test_a_renamed_image_is_what_the_compiler_makes_of_the_name(compiled):
    sources = sources_of(MODULE)
    for (name, text), image in zip(sources.units().items(), images_of(sources, "sm_90a")):
        own = compiler.compile_cuda(text, "sm_90a", "cubin")
        assert INTERNAL.sub(rb"\1", image) == INTERNAL.sub(rb"\1", own), name


def test_names_are_changed_in_string_tables_only():
    (name, text), *_ = sources_of(MODULE).units().items()
    image = compiler.compile_cuda(text, "sm_90a", "cubin")
    there = renamed(image, name, "x" * len(name))
    assert len(there) == len(image) and renamed(there, "x" * len(name), name) == image
    assert kernel_names(there) == {"x" * len(name) + n.removeprefix(name) for n in kernel_names(image)}
    assert unplaced("k120_dot_3") == "k000_dot_3"


def test_kernels_of_earlier_programs_are_not_compiled_again(compiled):
    """Another kernel comes first: all others have another number then."""
    sum_of = """HloModule m
    less {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = pred[] compare(a, b), direction=LT }}
    plus {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }}
    ENTRY e {{ x = f32[300,200] parameter(0)  zero = f32[] constant(0)
      {more} y = f32[300,200] sine({of})  s = f32[300] reduce(y, zero), dimensions={{1}}, to_apply=plus
      z = f32[200,300] transpose(y), dimensions={{1,0}}  ROOT r = (f32[300], f32[200,300]) tuple(s, z) }}"""
    images_of(sources_of(sum_of.format(more="", of="x")), "sm_90a")
    before = list(compiled)
    compiled.clear()
    images_of(sources_of(sum_of.format(more="", of="x")), "sm_90a")
    assert not compiled
    more = sources_of(sum_of.format(more="q = f32[300,200] sort(x), dimensions={1}, to_apply=less", of="q"))
    images = images_of(more, "sm_90a")
    assert len(images) == len(before) + 1 and len(compiled) == 1
    for number, image in enumerate(images):
        assert kernel_names(image) == {g.function for g in more.geometry if g.image == number}


def test_an_error_names_the_kernel(compiled):
    sources = sources_of(MODULE)
    first, second, *others = sources.kernels
    wrong = dataclasses.replace(sources, kernels=(first, second.replace(") {", ") { undefined();", 1), *others))
    with pytest.raises(BuildError, match=r"NVRTC failed for sm_90a, kernel k1_\w+\n.*undefined"):
        images_of(wrong, "sm_90a")


def test_other_architectures_and_headers_have_images_of_their_own(compiled, monkeypatch):
    sources = sources_of(MODULE)
    images_of(sources, "sm_90a")
    count = len(compiled)
    images_of(sources, "sm_80")
    assert len(compiled) == 2 * count
    monkeypatch.setattr(kernel_images, "_headers", lambda: "changed")
    images_of(sources, "sm_80")
    assert len(compiled) == 3 * count


# -- jobs on other threads ---------------------------------------------------------------------------------------------

def test_jobs_run_at_once_and_answer_in_order():
    meet, told = threading.Barrier(3, timeout=20), []

    def job(number: int) -> int:
        if number < 3:
            meet.wait()
        return number
    assert in_background([lambda n=n: job(n) for n in range(7)], 3, told.append) == list(range(7))
    assert len(told) == 7 and max(told) == 7
    assert in_background([]) == []


def test_after_an_error_no_job_begins():
    begun = []

    def job(number: int) -> None:
        begun.append(number)
        if number == 1:
            raise ValueError(number)
    with pytest.raises(ValueError, match="1"):
        in_background([lambda n=n: job(n) for n in range(9)])
    assert begun == [0, 1]
