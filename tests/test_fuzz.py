"""Damaged files and modules at the edges (fuzz.py), the same ones in every test run, and what the fuzzers once found."""
from __future__ import annotations

import os

import pytest
from fuzz import FORMATS, TESTDATA, finds, format_named, problem_of
from fuzz_text import attempt

import hloc
from hloc.errors import UnsupportedError

SECONDS = float(os.environ.get("HLOC_FUZZ_SECONDS", "120"))
COUNTS = {"text": 1500, "proto": 1500, "npz": 1500, "modules": 60}     # about 20 seconds on a free core


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(name: str) -> None:
    format, most = format_named(name), None if "HLOC_FUZZ_SECONDS" in os.environ else COUNTS[name]
    problems = [f"{name} {number}:\n{data!r}\n{problem}"
                for number, data, problem in finds(format, format.originals([TESTDATA]), 0, SECONDS, most)]
    assert not problems, problems[0]


FOUND = {
    "devices in an order that is none": "ENTRY e { p = f32[4] parameter(0) ROOT r = f32[8] all-gather(p), dimensions={0}, "
                                        "replica_groups=mesh['x'=2,'y'=2], device_ids=([2,2]T(10)) {'y'} }",
    "no shape where one is needed": "ENTRY e { p = f32[4] parameter(0) ROOT r = bitcast-convert(p) }",
    "group sizes that are a scalar": "ENTRY e { a = f32[6,3] parameter(0) b = f32[2,3,5] parameter(1) g = s32[] parameter(2) "
                                     "ROOT r = f32[6,5] ragged-dot(a, b, g), lhs_contracting_dims={1}, "
                                     "rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0} }",
    "a window left out": "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) } ENTRY e { "
                         "p = f32[4] parameter(0) z = f32[] constant(0) "
                         "ROOT r = f32[4] reduce-window(p, z), to_apply=add }",
    "a transposition that is none": "ENTRY e { a = f32[2,2] parameter(0) ROOT x = f32[2,2] custom-call(a, a), "
                                    "custom_call_target=\"lapack_strsm_ffi\", backend_config={trans_x = -1 : ui8} }",
    "a bitcast to a buffer": "ENTRY e { p = f32[4] parameter(0) ROOT b = b(f32[4]) bitcast(p) }",
    "a bitcast to a larger array": "ENTRY e { p = s32[0] parameter(0) b = s32[4,8] bitcast(p) "
                                   "ROOT c = s32[4,2,4] bitcast(b) }",
    "more dimensions of a result than it has": "ENTRY e { x = f32[1,5,5,2] parameter(0) w = f32[3,3,2,4] parameter(1) "
                                               "ROOT c = f32[1,5,5,4] convolution(x, w), "
                                               "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->?b01f }",
    "more dimensions of an operand than it has": "ENTRY e { x = f32[3,3,8,12] parameter(0) ROOT c = f32[3,3,8,12] "
                                                 "convolution(x, x), window={size=20x20}, dim_labels=?f01b_i01o->01bf }",
    "a library call without operands": "ENTRY e { ROOT r = (f32[3], s32[3]) custom-call(), custom_call_target=\"TopK\" }",
    "an element that is dynamic, of a tuple that is not": "ENTRY e { p = f32[4] parameter(0) t = (f32[4]) tuple(p) "
                                                          "ROOT r = f32[<=4] get-tuple-element(t), index=0 }",
    "an array padded to other bounds": "ENTRY e { x = f32[<=4,0] parameter(0) t = (f32[4,3], s32[], s32[]) custom-call(x), "
                                       "custom_call_target=\"PadToStatic\" ROOT a = f32[4,3] "
                                       "get-tuple-element(t), index=0 }",
}


def test_calls_of_calls_of_calls() -> None:
    """A short text that describes 2**40 instructions compiles to an error, soon."""
    calls = "".join(f"c{n} {{ p = f32[2] parameter(0) a = f32[2] call(p), to_apply=c{n - 1} "
                    f"b = f32[2] call(a), to_apply=c{n - 1} ROOT r = f32[2] add(a, b) }}\n" for n in range(1, 41))
    text = "c0 { p = f32[2] parameter(0) ROOT r = f32[2] sine(p) }\n" + calls
    with pytest.raises(UnsupportedError, match="calls of more than"):
        hloc.compile(text + "ENTRY e { p = f32[2] parameter(0) ROOT r = f32[2] call(p), to_apply=c40 }",
                     target="cpu", run=False)


@pytest.mark.parametrize("name", FOUND)
def test_finds(name: str) -> None:
    assert problem_of(FOUND[name], attempt) == ""
