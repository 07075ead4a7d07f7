"""Units read those sections of scalar.h that hold the functions which they call (hloc/targets/cpu/building/header_selection.py)."""
from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from itertools import filterfalse

import pytest

from hloc.targets.cpu.building import toolchain
from hloc.targets.cpu.building.header_selection import needed_sections, with_needed_sections
from hloc.targets.inlining import HEADERS

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
        alike[tuple(needed_sections(name))].add(name)
    for names in alike.values():
        source = '#include "scalar.h"\n'
        read = _preprocessed(with_needed_sections(f"/* {min(names)} */\n{source}"))
        assert names <= set(_FUNCTION.findall(read))
        called = set(re.findall(r"\b(hloc_\w+)\(", read)) & whole
        assert called <= set(_FUNCTION.findall(read))


def test_sections_are_few():
    assert needed_sections("hloc_tanh_f32(x)") == ["f32", "floats"]
    assert needed_sections("float t = a + b;") == []
    assert needed_sections("hloc_f8e4m3_to_f32(x)") == ["f32", "floats", "narrow"]
    assert needed_sections("hloc_convert_s32_f64(x)") == ["convert", "f64", "floats", "integers", "s32"]
