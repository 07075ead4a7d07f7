"""The gradients of attention on the GPU: what becomes their kernels; emulated, every access looked at, against the
evaluator; what they take of an SM.
"""
from __future__ import annotations

import dataclasses
import re
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
from hloc.passes.context import PassContext
from hloc.passes.pipelines import pipeline_for
from hloc.passes.runner import run_passes
from hloc.targets.cuda.compiler import compiler_version
from hloc.targets.cuda.gpus import GPUS, gpu_named
from hloc.targets.cuda.resources import resources
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.attention_gradient import attention_gradient_variants

H100 = GPUS["h100"]
emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
compiled = pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")

MASKS = {
    "plain": "  score = f32[{s}] copy(scaled)\n",
    "causal": "  rows = s32[{s}] iota(), iota_dimension=1\n  columns = s32[{s}] iota(), iota_dimension=2\n"
              "  past = pred[{s}] compare(rows, columns), direction=GE\n  low = f32[] constant(-1e30)\n"
              "  lows = f32[{s}] broadcast(low), dimensions={{}}\n  score = f32[{s}] select(past, scaled, lows)\n",
    "bias": "  bs = f32[{s}] broadcast(4), dimensions={{1,2}}\n  score = f32[{s}] add(scaled, bs)\n",
}
# The gradient of the score from that of the weights: as derivatives of exp, sum and division; and as of a softmax.
FORMS = {
    "parts": """
  upper = f32[{s}] divide(dp, sums)
  one = f32[{m}] broadcast(unit), dimensions={{}}
  square = f32[{m}] multiply(sum, sum)
  inverse = f32[{m}] divide(one, square)
  inverses = f32[{s}] broadcast(inverse), dimensions={{0,1}}
  lower = f32[{s}] multiply(dp, inverses)
  each = f32[{s}] multiply(lower, e)
  d = f32[{m}] reduce(each, zero), dimensions={{2}}, to_apply=add
  less = f32[{m}] negate(d)
  ds = f32[{s}] broadcast(less), dimensions={{0,1}}
  both = f32[{s}] add(upper, ds)
  dz = f32[{s}] multiply(both, e)
""",
    "softmax": """
  each = f32[{s}] multiply(dp, weights)
  d = f32[{m}] reduce(each, zero), dimensions={{2}}, to_apply=add
  ds = f32[{s}] broadcast(d), dimensions={{0,1}}
  both = f32[{s}] subtract(dp, ds)
  dz = f32[{s}] multiply(weights, both)
"""}


class Case(NamedTuple):
    """o = softmax(score(q k^T)) v, and of its gradient `do` those that `wanted` names; interleaved: heads lie between
    rows and depth; wide: all dots give f32, and those of gradients take f32, as JAX writes them for preferred types;
    their results have the type that it names."""

    type: str
    mask: str = "plain"
    form: str = "parts"
    wanted: str = "qkv"
    rows: int = 40
    columns: int = 72
    depth: int = 32
    features: int = 32
    heads: int = 2
    interleaved: bool = False
    wide: str = ""

    def array(self, n: int, d: int) -> str:
        return f"{self.type}[{n},{self.heads},{d}]" if self.interleaved else f"{self.type}[{self.heads},{n},{d}]"

    def parameters(self) -> list[str]:
        found = [self.array(self.rows, self.depth), self.array(self.columns, self.depth),
                 self.array(self.columns, self.features), self.array(self.rows, self.features)]
        return found + ([f"f32[{self.rows},{self.columns}]"] if self.mask == "bias" else [])

    def dot(self, left: str, right: str, summed: tuple[int, int], own: str = "01") -> str:
        """own: which of the two are parameters, whose heads may lie between."""
        head = ["1" if self.interleaved and n in own else "0" for n in "01"]
        return f"dot({left}, {right}), lhs_batch_dims={{{head[0]}}}, rhs_batch_dims={{{head[1]}}}, " \
               f"lhs_contracting_dims={{{summed[0]}}}, rhs_contracting_dims={{{summed[1]}}}"

    def text(self, p: str) -> str:
        """Instructions whose names start with p, of parameters p0, p1 ...; results are p + "out", "dq", "dk", "dv"."""
        s, m, t, line = f"{self.heads},{self.rows},{self.columns}", f"{self.heads},{self.rows}", self.type, 1
        line, w = 0 if self.interleaved else 1, "w" if self.wide else ""
        sizes = {"out": (self.rows, self.features), "dq": (self.rows, self.depth), "dk": (self.columns, self.depth),
                 "dv": (self.columns, self.features)}
        dz = "dscaled" if self.wide else "dnarrow"
        products = {"out": self.dot("narrow", "2", (2, line), "1"), "dq": self.dot(dz, f"{w}1", (2, line), "1"),
                    "dk": self.dot(dz, f"{w}0", (1, line), "1"), "dv": self.dot(f"{w}narrow", f"{w}3", (1, line), "1")}
        lines = f"""
  scores = f32[{s}] {self.dot("0", "1", (2, 2))}
  c = f32[] constant(0.2)
  cs = f32[{s}] broadcast(c), dimensions={{}}
  scaled = f32[{s}] multiply(scores, cs)
{MASKS[self.mask].format(s=s)}  least = f32[] constant(-inf)
  zero = f32[] constant(0)
  unit = f32[] constant(1)
  top = f32[{m}] reduce(score, least), dimensions={{2}}, to_apply=max
  tops = f32[{s}] broadcast(top), dimensions={{0,1}}
  apart = f32[{s}] subtract(score, tops)
  e = f32[{s}] exponential(apart)
  sum = f32[{m}] reduce(e, zero), dimensions={{2}}, to_apply=add
  sums = f32[{s}] broadcast(sum), dimensions={{0,1}}
  weights = f32[{s}] divide(e, sums)
  narrow = {t}[{s}] convert(weights)
{self.widened(s)}  dp = f32[{s}] {self.dot(f"{w}3", f"{w}2", (2, 2))}
{FORMS[self.form].format(s=s, m=m)}  dscaled = f32[{s}] multiply(dz, cs)
  dnarrow = {t}[{s}] convert(dscaled)
"""
        if self.mask == "causal":
            lines = lines.replace("multiply(dz, cs)", "multiply(live, cs)").replace(
                "  dscaled =", f"  none = f32[{s}] broadcast(zero), dimensions={{}}\n"
                               f"  live = f32[{s}] select(past, dz, none)\n  dscaled =")
        for name in self.results():
            n, d = sizes[name]
            shape = f"[{self.heads},{n},{d}]"
            narrow = f"  {name} = {t}{shape} convert(f{name})\n" if self.wide == t else ""
            lines += f"  {'f' if narrow else ''}{name} = {'f32' if self.wide else t}{shape} {products[name]}\n{narrow}"
        lines = re.sub(r"^  (\w+) =", rf"  {p}\1 =", lines, flags=re.MULTILINE)
        return re.sub(r"(?<= )([\w-]+)\(([\w, ]*)\)", lambda f: f[0] if f[1] == "constant" else
                      f"{f[1]}({', '.join(p + o for o in f[2].split(', ') if o)})", lines)

    def widened(self, scores: str) -> str:
        """f32 of all that gradients are made of, but the weights'."""
        if not self.wide:
            return ""
        shapes = [a.replace(self.type, "f32") for a in self.parameters()[:4]]
        return "".join(f"  w{n} = {shape} convert({n})\n" for n, shape in enumerate(shapes)) + \
            f"  wnarrow = f32[{scores}] convert(narrow)\n"

    def results(self) -> list[str]:
        return ["out", *(f"d{w}" for w in self.wanted)]


def module(*cases: Case) -> str:
    """All of them, each with parameters of its own."""
    lines, names, types, count = [], [], [], 0
    for number, case in enumerate(cases):
        p = f"c{number}_"
        for n, shape in enumerate(case.parameters()):
            lines.append(f"  {p}{n} = {shape} parameter({count})")
            count += 1
        text = case.text(p)
        lines.append(text)
        names += [p + r for r in case.results()]
        types += [re.search(rf"  {p}{r} = (\S+)", text)[1] for r in case.results()]
    return ("HloModule attention\n"
            "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }\n"
            "max { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] maximum(a, b) }\n"
            "ENTRY e {\n" + "\n".join(lines) + f"\n  ROOT all = ({', '.join(types)}) tuple({', '.join(names)})\n}}\n")


def program_of(text: str, gpu):
    target = cuda_target(gpu)
    return api.plan(api.optimize(api.load(text), target), target)


def sources_of(program, gpu):
    return make_sources(program, gpu)


def check(cases: list[Case], gpu, monkeypatch, change=None) -> None:
    """One kernel of each attention, one of its row sums, one or two of its gradients; they compute what the evaluator
    computes."""
    text = module(*cases)
    program = program_of(text, gpu)
    kernels = [program.kernels[s.kernel] for s in program.steps]
    library_kernels = [k.library_kernel for k in kernels if isinstance(k, Tile)]
    wanted = sum(("q" in c.wanted) + ("k" in c.wanted or "v" in c.wanted) for c in cases)
    assert sorted(library_kernels) == ["attention"] * len(cases) + ["attention_gradient"] * wanted
    random = np.random.default_rng(0)
    arrays = [random.normal(size=v.shape.dimensions).astype(numpy_dtype(v.shape.element_type))
              for v in program.parameters]
    if change:
        change(arrays)
    results = emulate(sources_of(program, gpu), check_arrays(program.parameters, arrays), monkeypatch, checked=True,
                      backwards=True)
    names = [(c, r) for c in cases for r in c.results()]
    with np.errstate(all="ignore"):
        expected = Evaluator(api.load(text)).run(arrays)
    for name, result, right in zip(names, results, expected):
        tolerance = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}[result.dtype.name]
        scale = np.abs(np.nan_to_num(right.astype(float))).max()
        np.testing.assert_allclose(result.astype(float), right.astype(float), rtol=tolerance, atol=tolerance * scale,
                                   err_msg=str(name))


@emulated
@pytest.mark.parametrize("type, count", [("f32", 4), ("bf16", 4), ("f16", 1)])
def test_forms(type, count, monkeypatch):
    cases = [Case(type, "causal", "parts", interleaved=True), Case(type, "bias", "softmax", "k"),
             Case(type, "plain", "softmax", "v"), Case(type, "causal", "parts", "q")]
    check(cases[:count], H100, monkeypatch)


@emulated
@pytest.mark.parametrize("type, templates", [("bf16", {"mma"}), ("f16", {"mma", "f32"})])
def test_preferred_types(type, templates, monkeypatch):
    """Gradients of dots that prefer f32: two narrow operands are multiplied as they are; weights in f32, which meet bf16,
    as sums of three bf16 numbers, as exactly as f32: f16 has too few exponents for that."""
    cases = [Case(type, "causal", "softmax", "qkv", 70, 130, 64, 64, 1, wide=type),
             Case(type, "plain", "parts", "qv", interleaved=True, wide=type)]
    source = make_sources(program_of(module(*cases), H100), H100).readable()
    assert set(re.findall(r"hloc_attention_gradient_(\w+)<", source)) == templates
    assert ("PARTS = 3" in source) == (type == "bf16") and "hloc_tile" not in source
    check(cases, H100, monkeypatch)


@emulated
def test_parts_of_weights(monkeypatch):
    """Two parts are as good as three, up to what f32 holds; one is not."""
    driver.install(monkeypatch)
    sources = make_sources(program_of(module(Case("bf16", "plain", "softmax", "q", wide="f32")), H100), H100)
    text = driver.text_of(sources)
    random = np.random.default_rng(0)
    arrays = check_arrays(sources.program.parameters, [
        random.normal(size=v.shape.dimensions).astype(numpy_dtype(v.shape.element_type)) for v in sources.program.parameters])
    assert "PARTS = 3" in text
    found = {}
    for parts in (1, 2, 3):
        backend = backend_of(sources, image=driver.build_text(text.replace("PARTS = 3", f"PARTS = {parts}"), checked=False))
        found[parts] = np.array(backend(arrays)[1])
        backend.close()
    scale = np.abs(found[3]).max()
    assert found[3].dtype == np.float32 and np.abs(found[1] - found[3]).max() > 3e-4 * scale
    np.testing.assert_allclose(found[2], found[3], rtol=0, atol=1e-5 * scale)


SIZES = [(70, 130, 64, 64), (33, 65, 33, 48), (20, 40, 20, 200), (20, 40, 300, 32)]     # rows, columns, depth, features


@emulated
@pytest.mark.parametrize("type", ["f32", "bf16"])
def test_sizes(type, monkeypatch):
    """Several tiles; odd sizes; features of several blocks; depths that shared memory does not hold."""
    check([Case(type, "causal", "softmax", "qkv", *size, 1) for size in SIZES], H100, monkeypatch)


@emulated
def test_no_numbers(monkeypatch):
    """A row of which all is masked, an infinite score, a NaN: NaN where the evaluator has it."""
    def change(arrays):
        bias = arrays[4]
        bias[...] = 0
        bias[0], bias[1, 3], bias[2, 5] = -np.inf, np.inf, np.nan
    check([Case("bf16", "bias", "softmax", "qv")], H100, monkeypatch, change)


@emulated
@pytest.mark.parametrize("type, place", [
    ("bf16", "__syncthreads(); /* all have done with the last rows */"),
    ("bf16", "__syncthreads(); /* these columns have arrived, all have done with the last ones */"),
    ("bf16", "hloc_copy_wait<0>();"),
    ("f32", "__syncthreads(); /* all have read the last step */"),
    ("f32", "__syncthreads(); /* this step is there */"),
    ("f32", "__syncthreads(); /* all have read the last weights */"),
    ("f32", "if (c0 > 0) __syncthreads(); /* all have read the last values */"),
    ("f32", "__syncthreads(); /* and the weights are there */")], ids=lambda v: re.sub(r"\W+", "_", v)[-40:])
def test_missing_barrier(type, place, monkeypatch):
    """Each barrier and each wait is needed: without it the emulation's checker tells a race, or memory without a value."""
    small = dataclasses.replace(H100, cores=1)
    program = program_of(module(Case(type, "plain", "softmax", "kv", 20, 150, 32, 16, 10)), small)
    variants = [next(v for v in attention_gradient_variants(k, small) if "wgmma" not in v)
                if isinstance(k, Tile) and k.library_kernel == "attention_gradient" else "" for k in program.kernels]
    sources = make_sources(program, small, variants)
    text = driver.text_of(sources)
    start = text.index("struct hloc_gradient_place")
    assert place in text[start:]
    driver.install(monkeypatch)
    backend = backend_of(sources, image=driver.build_text(text[:start] + text[start:].replace(place, "", 1), checked=True))
    random = np.random.default_rng(0)
    arrays = [random.normal(size=v.shape.dimensions).astype(numpy_dtype(v.shape.element_type))
              for v in sources.program.parameters]
    with pytest.raises(RunError, match="thread|nothing has written"):
        backend(check_arrays(sources.program.parameters, arrays))
    backend.close()


@compiled
@pytest.mark.parametrize("arch, number", [("sm_80", 0), ("sm_89", 0), ("sm_90a", 0), ("sm_90a", 1), ("sm_90a", 2),
                                          ("sm_100a", 0), ("sm_120a", 0)])
def test_no_spills(arch, number):
    """Heads of 64 and 128; as the cost model chooses, and in other ways that a tuning file may choose."""
    gpu = gpu_named(arch)
    cases = [Case("bf16", "causal", "parts", "qkv", 1024, 1024, d, d, 16, wide="bf16" if number == 0 and d == 128 else "")
             for d in (64, 128)]
    program = program_of(module(*(cases[1:] if number else [*cases, cases[0]._replace(type="f32")])), gpu)
    variants = [attention_gradient_variants(k, gpu)[number] if isinstance(k, Tile) and k.library_kernel == "attention_gradient" else ""
            for k in program.kernels]
    assert any(variants)
    sources = make_sources(program, gpu, variants)
    found = resources(sources.single_file(), arch)
    assert {k: r for k, r in found.items() if r.spill_stores or r.spill_loads} == {}
    assert all(g.shared <= gpu.shared_bytes for g in sources.geometry)


@pytest.mark.parametrize("reader", ["f32[40,72] reduce(c0_dz, c0_zero), dimensions={0}, to_apply=add",
                                    "f32[2,40,72] negate(c0_dp)"])
def test_what_must_be_kept(reader):
    """A bias's own gradient sums what the kernels do not store: then all is products and rows, and the reason is told."""
    text = module(Case("f32", wanted="q")).replace("  ROOT all = (", f"  more = {reader}\n  ROOT all = (").replace(
        ") tuple(c0_out, c0_dq)", f", {reader.split(' ')[0]}) tuple(c0_out, c0_dq, more)")
    target, report = cuda_target(H100), []
    optimized = api.load(text)
    run_passes(optimized, pipeline_for("cuda"), PassContext(H100, "cuda", fusion_report=report))
    assert {k.library_kernel for k in api.plan(optimized, target).kernels if isinstance(k, Tile)} == {"gemm"}
    assert any(e.reason.startswith("others, such as a backward pass, read arrays that the attention kernel") for e in report)
