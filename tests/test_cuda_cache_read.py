"""What several loops of a row read comes from memory once. That it is right: testdata/cuda/cache_read.hlo, emulated by
test_cuda_kernels.py."""
from __future__ import annotations

import re

import pytest
from cuda_emulation.cases import program_of
from kernel_harness import collect
from test_cuda_kernels import DATA, SEPARATOR

from hloc import api
from hloc.targets.cuda.compiler import compiler_version
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

H200 = GPUS["h200"]
# part of the file -> how often the text of each kernel reads operands (complex sums are not dealt out to lanes)
READS = {"softmax": [1], "norm": [2], "two": [2], "padded": [2], "masked": [2], "types": [1, 1, 2], "long": [2]}
REDUCE = "{name} {{ a = {t}[] parameter(0)  b = {t}[] parameter(1)  ROOT r = {t}[] {op}(a, b) }}\n"
SOFTMAX = """ENTRY e {{ x = {t}[{r},{c}] parameter(0)  low = {t}[] constant(-inf)  z = {t}[] constant(0)
  m = {t}[{r}] reduce(x, low), dimensions={{1}}, to_apply=max  mb = {t}[{r},{c}] broadcast(m), dimensions={{0}}
  d = {t}[{r},{c}] subtract(x, mb)  e = {t}[{r},{c}] exponential(d)
  s = {t}[{r}] reduce(e, z), dimensions={{1}}, to_apply=add  sb = {t}[{r},{c}] broadcast(s), dimensions={{0}}
  ROOT q = {t}[{r},{c}] divide(e, sb) }}
"""


def reads(text: str) -> int:
    return len(re.findall(r"\bin\d+\[", text))


def test_operands_are_read_once():
    found = {}
    for text in SEPARATOR.split((DATA / "cuda" / "cache_read.hlo").read_text(encoding="utf-8")):
        cases = collect(text, "cache_read", machine=H200)
        name = re.search(r"HloModule (\w+)", text).group(1)
        found[name] = [reads(kernel) for kernel in make_sources(program_of(cases), H200).kernels]
    assert found == READS


@pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")
@pytest.mark.parametrize("columns", [40, 768, 1000, 4096, 16384, 50257])
@pytest.mark.parametrize("type", ["f32", "bf16"])
def test_one_read_and_no_spills(type, columns):
    """A softmax as JAX writes it, on rows of all lengths: the longest do not fit into registers and are read again."""
    head = "".join(REDUCE.format(name=n, t=type, op=op) for n, op in (("max", "maximum"), ("add", "add")))
    text = "HloModule m\n" + head + SOFTMAX.format(t=type, r=4096, c=columns)
    target = cuda_target(H200)
    sources = make_sources(api.plan(api.optimize(api.load(text), target), target), H200)
    (kernel,) = sources.kernels
    assert reads(kernel) == (1 if columns < 20_000 else 3)
    (found,) = resources(sources.single_file(), H200.arch).values()
    assert not found.spill_stores and not found.spill_loads
