"""Slices that are written into arrays in place, such as a decoder's keys and values, are one kernel on a GPU."""
from __future__ import annotations

import shutil

import numpy as np
import pytest
from cuda_emulation.cases import emulate

from hloc import api
from hloc.evaluate import evaluate
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

H100 = GPUS["h100"]
HEAD = """HloModule caches, input_output_alias={ {0}: (0, {}, may-alias), {1}: (1, {}, may-alias) }
ENTRY e {
  a = f32[2,9,4] parameter(0)  b = f32[2,9,4] parameter(1)  x = f32[2,8] parameter(2)  i = s32[] parameter(3)
  zero = s32[] constant(0)  k = f32[2,4] slice(x), slice={[0:2], [0:4]}  v = f32[2,4] slice(x), slice={[0:2], [4:8]}
"""
APART = HEAD + """  kk = f32[2,1,4] reshape(k)  vv = f32[2,1,4] reshape(v)
  c = f32[2,9,4] dynamic-update-slice(a, kk, zero, i, zero)  d = f32[2,9,4] dynamic-update-slice(b, vv, zero, i, zero)
  ROOT t = (f32[2,9,4], f32[2,9,4]) tuple(c, d)
}
"""
# what goes into the second array is read from the first one
TOGETHER = HEAD + """  kk = f32[2,1,4] reshape(k)  first = f32[2,1,4] slice(a), slice={[0:2], [3:4], [0:4]}
  vv = f32[2,1,4] reshape(v)  sum = f32[2,1,4] add(vv, first)
  c = f32[2,9,4] dynamic-update-slice(a, kk, zero, i, zero)  d = f32[2,9,4] dynamic-update-slice(b, sum, zero, i, zero)
  ROOT t = (f32[2,9,4], f32[2,9,4]) tuple(c, d)
}
"""
# the same array twice: one of the two works on a copy
TWICE = HEAD.replace(", {1}: (1, {}, may-alias)", "") + """  kk = f32[2,1,4] reshape(k)  vv = f32[2,1,4] reshape(v)
  c = f32[2,9,4] dynamic-update-slice(a, kk, zero, i, zero)  d = f32[2,9,4] dynamic-update-slice(a, vv, zero, i, zero)
  ROOT t = (f32[2,9,4], f32[2,9,4]) tuple(c, d)
}
"""


def program_of(text: str):
    return api.optimized_plan(api.load(text), cuda_target(H100))[1]


def test_two_updates_are_one_kernel():
    program = program_of(APART)
    assert len(program.kernels) == 1
    assert [b.access for b in program.kernels[0].buffers].count("update") == 2


def test_an_update_that_reads_what_the_other_overwrites_stays_apart():
    assert len(program_of(TOGETHER).kernels) == 2
    assert len(program_of(TWICE).kernels) >= 2


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
@pytest.mark.parametrize("place", [3, 100])
@pytest.mark.parametrize("text", [APART, TOGETHER, TWICE], ids=["apart", "together", "twice"])
def test_results(text, place, monkeypatch):
    random = np.random.default_rng(0)
    arrays = [random.normal(size=s).astype("f4") for s in ((2, 9, 4), (2, 9, 4), (2, 8))] + [np.int32(place)]
    results = emulate(make_sources(program_of(text), H100), [np.asarray(a) for a in arrays], monkeypatch, checked=True)
    for actual, expected in zip(results, evaluate(api.load(text), arrays)):
        np.testing.assert_array_equal(actual, np.asarray(expected))
