"""Passes on kernels of loops: testdata/kernel_passes/<pass>/*.loop hold a kernel and what the pass makes of it
(HLOC_GOLDEN=1 rewrites the latter); the interpreter of the loop IR says that both mean the same."""
from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from kernel_harness import MACHINE, compare, interpreted, random_array
from test_cli import run
from test_loop_text import kernels, small_cases

from hloc.errors import Source
from hloc.ir import array
from hloc.kernels.ir import Kernel
from hloc.kernels.text import print_loops, read_loops
from hloc.kernels.text.interpreter import interpret
from hloc.kernels.verify import verify_kernel
from hloc.targets.cpu.vector_loops.pipeline import (
    KERNEL_ORDERING,
    KERNEL_PASSES,
    KERNEL_PIPELINE,
    run_kernel_passes,
)

DATA = Path(__file__).parent.parent / "testdata" / "kernel_passes"
CPU = replace(MACHINE, vector_bytes=64, arch="x86_64")
FIXTURES = sorted(DATA.glob("*/*.loop"))
BORDER = "// ==>\n"


@cache
def lowered() -> tuple[Kernel, ...]:
    found = tuple(k._replace(origin=()) for k in kernels())
    assert len(found) > 80
    return found


@pytest.mark.parametrize("path", FIXTURES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_fixtures(path):
    before, _, after = path.read_text(encoding="utf-8").partition(BORDER)
    kernel, = read_loops(Source(before, str(path)))
    changed = KERNEL_PASSES[path.parent.name](kernel, CPU)
    assert changed != kernel
    verify_kernel(changed)
    text = print_loops([changed])
    if os.environ.get("HLOC_GOLDEN"):
        path.write_text(f"{before}{BORDER}\n{text}", encoding="utf-8")
    else:
        assert after.strip() == text.strip()
    means_the_same(kernel, changed)


def means_the_same(kernel: Kernel, changed: Kernel) -> None:
    """On random arrays; whatever local arrays hold before they are written."""
    random = np.random.default_rng(3)
    given = {b.name: random_array(random, array(b.type, b.size)) for b in kernel.buffers}
    expected = {name: a.copy() for name, a in given.items()}
    interpret(kernel, expected)
    types = {b.name: b.type for b in kernel.buffers}
    for unwritten in (0, 77):
        actual = {name: a.copy() for name, a in given.items()}
        views = {b.name: a if types[b.name] == b.type else a.view(np.float64)          # complex numbers as wholes
                 for b, a in zip(changed.buffers, actual.values())}
        interpret(changed, views, unwritten)
        for name, result in actual.items():
            compare(f"{changed.name}: {name}", result, expected[name])


def test_every_pass_has_fixtures():
    assert {p.parent.name for p in FIXTURES} == set(KERNEL_PASSES)


def test_names_are_those_of_files():
    for name, one in KERNEL_PASSES.items():
        assert one.__module__.rpartition(".")[2] == name and one.__doc__


def test_ordering():
    order = [one.__name__ for one in KERNEL_PIPELINE]
    for first, second, why in KERNEL_ORDERING:
        assert order.index(first.__name__) < order.index(second.__name__), why


def test_neighbours_without_a_reason_can_be_swapped():
    """On the kernels of testdata/kernels: what ORDERING does not say does not matter."""
    reasons = {(first, second) for first, second, _ in KERNEL_ORDERING}
    usual = [run_kernel_passes(k, CPU) for k in lowered()]
    for n, pair in enumerate(zip(KERNEL_PIPELINE, KERNEL_PIPELINE[1:])):
        if pair not in reasons:
            swapped = (*KERNEL_PIPELINE[:n], *reversed(pair), *KERNEL_PIPELINE[n + 2:])
            for kernel, expected in zip(lowered(), usual):
                assert run_kernel_passes(kernel, CPU, swapped) == expected, [p.__name__ for p in pair]


def test_pixels_that_are_read_again_are_no_vectors():
    """Each iteration reads what the one before it has written."""
    text = "kernel k(out0: u8[90] update) { serial i < 20 { serial j < 3 { out0[3 * i + j + 3] = out0[3 * i + 2 - j] } } }"
    kernel, = read_loops(Source(text))
    assert KERNEL_PASSES["pixel_shuffles"](kernel, CPU) == kernel
    other, = read_loops(Source(text.replace("update)", "write, in0: u8[90] read)").replace("= out0", "= in0")))
    assert KERNEL_PASSES["pixel_shuffles"](other, CPU) != other


def test_kernels_keep_the_rules_after_every_pass():
    changed = set()

    def note(name: str, before: Kernel, after: Kernel) -> None:
        if before != after:
            changed.add(name)
    for kernel in lowered():
        run_kernel_passes(kernel, CPU, observe=note, verify=True)
    assert len(changed) > len(KERNEL_PIPELINE) * 2 // 3, sorted(changed)


def test_kernels_mean_the_same_after_all_passes():
    for case in small_cases():
        results = interpreted(case, lambda kernel: run_kernel_passes(kernel, CPU), unwritten=77)
        for actual, expected in zip(results, case.expected):
            compare(case.name, actual, expected)


# -- hloc opt --kernels ------------------------------------------------------------------------------------------------

@pytest.fixture
def opt(capsys):
    """Runs `hloc opt` with arguments: exit code, stdout, stderr."""
    return lambda *arguments: run(capsys, "opt", *arguments)


@pytest.fixture
def module(tmp_path) -> str:
    path = tmp_path / "m.hlo"
    path.write_text("ENTRY e { x = f32[9,77] parameter(0)  ROOT y = f32[9,77] exponential(x) }")
    return str(path)


def test_kernels_are_printed_and_read_back(opt, module, tmp_path):
    code, text, _ = opt(module, "--kernels", "--target", "cpu")
    assert code == 0 and len(read_loops(Source(text))) == 1 and "exp(in0[" in text
    loops = tmp_path / "k.loop"
    loops.write_text(text)
    assert opt(str(loops), "--kernels", "--passes=")[:2] == (0, text.partition("\n")[2])


def test_dumps_hold_what_a_pass_changed(opt, module):
    code, text, times = opt(module, "--kernels", "--dump-after", "loop_schedules", "--time-passes")
    assert code == 0 and text.startswith("// after loop_schedules\n")
    assert "kernels changed" in times and "loop_versioning" in times
    assert opt(module, "--kernels", "--dump-after", "function_calls")[1] == "// function_calls changes no kernel\n"


@pytest.mark.parametrize("arguments, message", [
    (["m.hlo", "--kernels", "--dump-after", "scalar_conversion"], "did you mean scalar_conversions?"),
    (["m.hlo", "--kernels", "--dump-after", "fusion"], "no pass on kernels 'fusion' for target cpu"),
    (["m.hlo", "--kernels", "-t", "h100", "--dump-after", "loop_schedules"], "passes: none"),
    (["m.hlo", "--kernels", "--dump-after", "loop_schedules", "--dump-dir", "d"], "--dump-dir writes HLO"),
    (["no.loop", "--kernels"], "cannot read no.loop"), (["binary.loop", "--kernels"], "is not text in UTF-8"),
    (["bad.loop", "--kernels"], "bad.loop:1:8: error: unexpected text"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_errors(opt, arguments, message, module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary.loop").write_bytes(b"\xff\xfe")
    (tmp_path / "bad.loop").write_text("kernel {")
    code, _, err = opt(*arguments)
    assert code in (2, 3) and message in err


def test_library_kernels_are_comments(opt, tmp_path):
    path = tmp_path / "m.hlo"
    path.write_text("ENTRY e { x = f32[90,90] parameter(0)  ROOT y = f32[90,90] dot(x, x), lhs_contracting_dims={1}, "
                    "rhs_contracting_dims={0} }")
    assert ": library kernel gemm(lhs, rhs, out0)" in opt(str(path), "--kernels", "--target", "cpu")[1]
