"""Units read those sections of scalar.h that hold the functions which they call (hloc/targets/header_selection.py)."""
from __future__ import annotations

import re
import subprocess
from collections import Counter, defaultdict
from itertools import filterfalse
from pathlib import Path

import pytest
from kernel_harness import MACHINE, NOT_KERNELS

from hloc.kernels.lower import lower
from hloc.targets.cpu.building import toolchain
from hloc.targets.cpu.program.sources import print_kernels
from hloc.targets.header_selection import needed_sections, with_needed_sections
from hloc.targets.inlining import HEADERS
from hloc.text import parse_module

DATA = Path(__file__).parent.parent / "testdata"
SEPARATOR = re.compile(r"^// -----\n", re.MULTILINE)
# Parts of others, which no unit calls itself.
HELPER = re.compile(r"hloc_(remainder_step_f64|near_angle_f64|(times|over)_i_c128|root_(above|below)_c128|is_vast_c128|log_of_twice_c128|"
                    r"(popcount|leading_zeros)_\d+)")
PARTS = set(re.findall(r"HLOC_FN \w+ (hloc_\w+)\(", (HEADERS / "complex_parts.h").read_text(encoding="utf-8")))
_FUNCTION = re.compile(r"static inline __attribute__\(\(always_inline, unused\)\) [\w ]+?(hloc_\w+)\(")


def _preprocessed(text: str) -> str:
    chain = toolchain.find()
    command = [*chain.command, "-E", "-P", f"-I{HEADERS}", "-x", "c", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.skipif(not toolchain.candidates(), reason="no C compiler")
def test_every_function_of_scalar_h_is_in_the_sections_that_its_name_asks_for():
    whole = set(_FUNCTION.findall(_preprocessed('#include "scalar.h"')))
    assert len(whole) > 700
    alike = defaultdict(set)
    for name in filterfalse(HELPER.fullmatch, whole - PARTS):
        alike[tuple(needed_sections([name.removeprefix("hloc_")]))].add(name)
    for names in alike.values():
        source = '#include "scalar.h"\n'
        read = _preprocessed(with_needed_sections(source, [min(names).removeprefix("hloc_")]))
        assert names <= set(_FUNCTION.findall(read))
        called = set(re.findall(r"\b(hloc_\w+)\(", read)) & whole
        assert called <= set(_FUNCTION.findall(read))


def test_chapters_are_few():
    assert needed_sections(["tanh_f32"]) == ["f32", "floats"]
    assert needed_sections([]) == []
    assert needed_sections(["f8e4m3_to_f32"]) == ["f32", "floats", "narrow"]
    assert needed_sections(["convert_s32_f64"]) == ["convert", "f64", "floats", "integers", "s32"]


@pytest.mark.parametrize("path", sorted((DATA / "kernels").glob("*.hlo")), ids=lambda path: path.stem)
def test_functions_know_what_they_call(path):
    """Nobody reads that in their texts but this test."""
    for text in SEPARATOR.split(path.read_text(encoding="utf-8")):
        kernels = [call.kernel for i in parse_module(text).entry.instructions if i.opcode not in NOT_KERNELS
                   for call in lower(i, MACHINE).calls]
        for function in print_kernels(kernels, MACHINE)[1].values():
            code = re.sub(r"^/\*.*\*/$", "", function.text, flags=re.MULTILINE)
            called = re.findall(r"\bhloc_(\w+)\(", re.sub(r"(HLOC_CALLED.*) hloc_\w+\(", r"\1", code))
            calls = Counter(name for name in called if not name.startswith(("epilogue_", "score_")))     # its own parts
            assert calls == dict(function.calls), function.name
            assert re.findall(r'#include "(.*)"', code) == list(function.headers)
            assert function.loops == code.count("for (")
            assert f"void {function.name}(" in code
