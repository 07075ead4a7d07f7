"""Attention that stores keys and values into the arrays that it reads, as a decoder's cache: one kernel, emulated, every
access looked at, against the evaluator."""
from __future__ import annotations

import dataclasses
import shutil
from typing import NamedTuple

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of, emulate

from hloc import api
from hloc.errors import RunError
from hloc.evaluate import Evaluator
from hloc.inputs import check_arrays
from hloc.ir import numpy_dtype
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.target import cpu_target
from hloc.targets.cuda.compiler import compiler_version
from hloc.targets.cuda.gpus import GPUS, gpu_named
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import CudaSources, make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.source import variants

H100 = GPUS["h100"]
SMALL = dataclasses.replace(H100, cores=1, bandwidth=H100.bandwidth / 132)
emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
compiled = pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")
HEAD = """HloModule decoder
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
max { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] maximum(a, b) }
"""


class Decoder(NamedTuple):
    """A step: new keys and values, `rows` of each, are stored at `position`, and as many queries see what is not behind
    it. between: heads lie between length and features; groups: queries per head of keys; keys, values: what is
    stored."""

    type: str = "f32"
    batch: int = 1
    heads: int = 2
    rows: int = 1
    columns: int = 40
    depth: int = 32
    features: int = 32
    between: bool = False
    groups: int = 1
    keys: bool = True
    values: bool = True

    def sizes(self, n: int, d: int) -> str:
        return f"{self.batch},{n},{self.heads},{d}" if self.between else f"{self.batch},{self.heads},{n},{d}"

    def step(self, p: str = "") -> str:
        """Instructions that make `out`, `cached_k` and `cached_v` of q, k, v, cache_k, cache_v and position."""
        t, rows = self.type, self.rows * self.groups
        s, m = f"{self.batch},{self.heads},{rows},{self.columns}", f"{self.batch},{self.heads},{rows}"
        head, line = ("0,2", 1) if self.between else ("0,1", 2)
        at = "zero, position, zero, zero" if self.between else "zero, zero, position, zero"
        stored = {"k": self.keys, "v": self.values}
        caches = "".join(
            f"  cached_{n} = {t}[{self.sizes(self.columns, d)}] " +
            (f"dynamic-update-slice(cache_{n}, {n}, {at})\n" if stored[n] else f"add(cache_{n}, cache_{n})\n")
            for n, d in (("k", self.depth), ("v", self.features)))
        return f"""  zero = s32[] constant(0)
{caches}  scores = f32[{s}] dot(q, cached_k), lhs_batch_dims={{0,1}}, rhs_batch_dims={{{head}}}, lhs_contracting_dims={{3}}, rhs_contracting_dims={{3}}
  columns = s32[{s}] iota(), iota_dimension=3
  last = s32[{s}] broadcast(position), dimensions={{}}
  seen = pred[{s}] compare(columns, last), direction=LE
  low = f32[] constant(-1e30)
  lows = f32[{s}] broadcast(low), dimensions={{}}
  score = f32[{s}] select(seen, scores, lows)
  least = f32[] constant(-inf)
  top = f32[{m}] reduce(score, least), dimensions={{3}}, to_apply=max
  tops = f32[{s}] broadcast(top), dimensions={{0,1,2}}
  apart = f32[{s}] subtract(score, tops)
  e = f32[{s}] exponential(apart)
  none = f32[] constant(0)
  sum = f32[{m}] reduce(e, none), dimensions={{3}}, to_apply=add
  sums = f32[{s}] broadcast(sum), dimensions={{0,1,2}}
  weights = f32[{s}] divide(e, sums)
  narrow = {t}[{s}] convert(weights)
  out = {t}[{m},{self.features}] dot(narrow, cached_v), lhs_batch_dims={{0,1}}, rhs_batch_dims={{{head}}}, lhs_contracting_dims={{3}}, rhs_contracting_dims={{{line}}}
"""

    @property
    def shapes(self) -> dict[str, str]:
        """Of everything that a step reads and gives."""
        t, rows = self.type, self.rows * self.groups
        cache_k, cache_v = (f"{t}[{self.sizes(self.columns, d)}]" for d in (self.depth, self.features))
        return {"q": f"{t}[{self.batch},{self.heads},{rows},{self.depth}]",
                "k": f"{t}[{self.sizes(self.rows, self.depth)}]", "v": f"{t}[{self.sizes(self.rows, self.features)}]",
                "cache_k": cache_k, "cache_v": cache_v, "position": "s32[]",
                "out": f"{t}[{self.batch},{self.heads},{rows},{self.features}]"}

    def module(self) -> str:
        shapes = self.shapes
        given = "".join(f"  {name} = {shape} parameter({n})\n" for n, (name, shape) in enumerate([*shapes.items()][:6]))
        return (f"{HEAD}ENTRY e {{\n{given}{self.step()}"
                f"  ROOT all = ({shapes['out']}, {shapes['cache_k']}, {shapes['cache_v']}) tuple(out, cached_k, cached_v)\n}}\n")

    def loop(self, steps: int) -> str:
        """Steps in a loop: the result of one is the next one's query, and what it stores."""
        shapes = self.shapes
        carried = ["s32[]", shapes["q"], shapes["cache_k"], shapes["cache_v"]]
        tuple_ = f"({', '.join(carried)})"
        elements = "".join(f"  {name} = {shape} get-tuple-element(p), index={n}\n"
                           for n, (name, shape) in enumerate(zip(("position", "q", "cache_k", "cache_v"), carried)))
        given = "".join(f"  {name} = {shape} parameter({n})\n"
                        for n, (name, shape) in enumerate(zip(("q", "cache_k", "cache_v"), carried[1:])))
        return f"""{HEAD}
body {{
  p = {tuple_} parameter(0)
{elements}  k = {shapes["k"]} tanh(q)
  v = {shapes["v"]} negate(q)
{self.step()}  one = s32[] constant(1)
  next = s32[] add(position, one)
  ROOT t = {tuple_} tuple(next, out, cached_k, cached_v)
}}
condition {{
  p = {tuple_} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant({steps})
  ROOT r = pred[] compare(i, n), direction=LT
}}
ENTRY e {{
{given}  start = s32[] constant(0)
  t = {tuple_} tuple(start, q, cache_k, cache_v)
  ROOT w = {tuple_} while(t), condition=condition, body=body
}}
"""


def program_of(text: str, gpu: Machine):
    target = cuda_target(gpu)
    return api.plan(api.optimize(api.load(text), target), target)


def attentions_of(program) -> list[Tile]:
    return [k for k in program.kernels if isinstance(k, Tile) and k.library_kernel == "attention"]


def arguments(program, position: int | None = None) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [np.int32(position).reshape(()) if v.shape.element_type == "s32" else
            random.normal(size=v.shape.dimensions).astype(numpy_dtype(v.shape.element_type))
            for v in program.parameters]


def check(text: str, sources: CudaSources, arrays: list[np.ndarray], monkeypatch) -> None:
    results = emulate(sources, check_arrays(sources.program.parameters, arrays), monkeypatch, checked=True,
                      backwards=True)
    expected = Evaluator(api.load(text)).run(arrays)
    assert len(results) == len(expected)
    for result, wanted in zip(results, expected):
        tolerance = {"float32": 1e-5, "int32": 0, "bfloat16": 2e-2, "float16": 2e-3}[result.dtype.name]
        np.testing.assert_allclose(result.astype(float), wanted.astype(float), rtol=tolerance, atol=tolerance)


def run(case: Decoder, gpu: Machine, monkeypatch, positions=(0, 7, 1000), kernels: int = 1, how: str = "") -> CudaSources:
    """One kernel per step, whose results are the evaluator's."""
    program = program_of(case.module(), gpu)
    chosen = [next(v for v in variants(k, gpu) if how in v) if isinstance(k, Tile) else "" for k in program.kernels]
    sources = make_sources(program, gpu, chosen) if how else make_sources(program, gpu)
    names = [k.name for k in program.kernels if not k.name.startswith("copy")]      # of parameters, which stay as they are
    assert len(names) == 2 - (case.keys and case.values) and len(attentions_of(program)) == 1
    assert [u.array for u in attentions_of(program)[0].updates] == ["key"] * case.keys + ["value"] * case.values
    assert len([g for g in sources.geometry if "exponential" in g.function]) == kernels
    for position in positions:
        check(case.module(), sources, arguments(program, position), monkeypatch)
    return sources


@emulated
@pytest.mark.parametrize("case, gpu, kernels", [
    (Decoder(columns=96, depth=64, features=64), H100, 1), (Decoder("bf16", 2), H100, 1),
    (Decoder("f16", rows=3, depth=36, features=20), H100, 1), (Decoder(between=True, batch=2), SMALL, 1),
    (Decoder("bf16", columns=600, depth=64, features=64), H100, 2), (Decoder(groups=4, depth=48), H100, 1),
    (Decoder(keys=False), H100, 1), (Decoder(values=False, features=130), H100, 1),
    (Decoder("bf16", rows=9), H100, 1), (Decoder("bf16", rows=20, columns=150, between=True), SMALL, 1),
    (Decoder("bf16", rows=1, groups=8, features=200), H100, 1), (Decoder(rows=7), H100, 2),
    (Decoder(rows=5, columns=600), H100, 3)])
def test_one_kernel(case, gpu, kernels, monkeypatch):
    """One query; several; heads inside; keys in pieces (a second kernel joins them); queries that share keys; one array
    that is only read; tensor cores; and in registers, where a launch before stores the lines."""
    run(case, gpu, monkeypatch, kernels=kernels)


@emulated
@pytest.mark.parametrize("how, type, kernels", [
    ("few", "bf16", 1), ("16 queries, 32 keys", "bf16", 1), ("f32", "f32", 2), ("64 queries, 64 keys, wgmma", "bf16", 2)])
def test_every_variant(how, type, kernels, monkeypatch):
    run(Decoder(type, rows=2, columns=70, depth=64, features=64), H100, monkeypatch, (5, 69), kernels, how)


@emulated
def test_loop(monkeypatch):
    """The cache stays in its place from step to step: no kernel or copy besides the attention and what makes its lines."""
    case = Decoder(columns=70, depth=32, features=32)
    program = program_of(case.loop(3), H100)
    assert [u.array for u in attentions_of(program)[0].updates] == ["key", "value"]
    assert "dynamic-update-slice" not in {i.opcode for i in api.optimize(api.load(case.loop(3)), cuda_target(H100)).entry.instructions}
    sources = make_sources(program, H100)
    check(case.loop(3), sources, arguments(program), monkeypatch)


OLD = "  old = {c} negate(cache_k)\n  ROOT all = ({c}, {c}, {c}, {o}) tuple(old, cached_k, cached_v, out)\n}}\n"
AGAIN = "  twice = {c} add(cached_k, cached_v)\n  ROOT all = ({c}, {o}) tuple(twice, out)\n}}\n"


@emulated
@pytest.mark.parametrize("tail", [OLD, AGAIN], ids=["the old keys are read later", "the new ones are read by others"])
def test_other_readers(tail, monkeypatch):
    case = Decoder()
    text = case.module()
    text = text[:text.index("  ROOT all")] + tail.format(c=case.shapes["cache_k"], o=case.shapes["out"])
    program = program_of(text, H100)
    assert attentions_of(program)[0].updates
    check(text, make_sources(program, H100), arguments(program, 11), monkeypatch)


@emulated
def test_kernels_before(monkeypatch):
    """A query that is made of the new keys, values that are the keys, lines that are no whole keys: the update has a
    kernel of its own. A mask that reads the old keys is computed before."""
    text = Decoder(depth=40, features=40).module()
    first = "  first = f32[1,2,1,40] slice(cached_k), slice={[0:1], [0:2], [0:1], [0:40]}\n"
    old = first.replace("first", "old").replace("cached_k", "cache_k")
    cases = [(text.replace("  scores", first + "  own = f32[1,2,1,40] add(q, first)\n  scores").replace("dot(q,", "dot(own,"), []),
             (text.replace("dot(narrow, cached_v)", "dot(narrow, cached_k)"), []),
             (text.replace("k = f32[1,2,1,40] parameter(1)", "k = f32[1,1,1,40] parameter(1)"), ["value"]),
             (text.replace("  columns", old + "  most = f32[1,2,1,40] negate(old)\n  columns").replace(
                 "select(seen, scores, lows)", "add(scores, most)"), ["key", "value"])]
    for changed, updates in cases:
        program = program_of(changed, H100)
        assert changed != text and [u.array for u in attentions_of(program)[0].updates] == updates
        check(changed, make_sources(program, H100), arguments(program, 13), monkeypatch)


@emulated
@pytest.mark.parametrize("type, rows", [("f32", 1), ("bf16", 9)])
@pytest.mark.parametrize("old, new", [
    ("return line >= 0 && line < {n} ? key_lines", "return false ? key_lines"),
    ("return line >= 0 && line < {n} ? value_lines", "return line >= 1 && line < {n} ? value_lines"),
    ("(value_first + line) * 64L", "(value_first + line + 1) * 64L"),
    ("const long line = column - key_first;", "const long line = column - key_first + 1;")],
    ids=["keys are read from the cache", "the first value is", "the wrong line is stored", "the wrong line is read"])
def test_planted_faults(type, rows, old, new, monkeypatch):
    """A line that is read where it is stored is a race."""
    case = Decoder(type, rows=rows, features=64)
    program = program_of(case.module(), H100)
    sources, arrays = make_sources(program, H100), arguments(program, 20)
    text = driver.text_of(sources)
    old, new = old.replace("{n}", str(rows)), new.replace("{n}", str(rows))
    assert old in text
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(text.replace(old, new), checked=True))
    given = check_arrays(program.parameters, arrays)
    with pytest.raises(RunError, match="thread"):
        backend(given)
    backend.close()


def test_cpu_runs_what_was_fused_for_a_gpu():
    """A kernel before the attention stores the lines there."""
    case = Decoder(rows=2, columns=300)
    fused = str(api.optimize(api.load(case.module()), cuda_target(H100)))
    assert "dynamic-update-slice" in fused and fused.count(" fusion(") == 1
    target = cpu_target()
    program = api.plan(api.optimize(api.load(fused), target), target)
    arrays = arguments(program, 30)
    results = api.compile(fused, "cpu")(*arrays)
    for result, wanted in zip(results, Evaluator(api.load(case.module())).run(arrays)):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)


@compiled
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a"])
def test_no_spills(arch):
    gpu = gpu_named(arch)
    for case in (Decoder(heads=12, columns=96, depth=64, features=64),
                 Decoder("bf16", 4, 8, columns=4096, depth=128, features=128),
                 Decoder("bf16", 4, 8, columns=4096, depth=128, features=128, groups=8)):
        sources = make_sources(program_of(case.module(), gpu), gpu)
        found = resources(sources.single_file(), arch)
        assert {k: r for k, r in found.items() if r.spill_stores or r.spill_loads} == {}
