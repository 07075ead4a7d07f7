"""Every module of testdata/programs on every target of this machine, against the evaluator, on a few inputs.

Finds of the property tests and of the fuzzer become files there. A file may hold nothing but a module; the comment on
top says what it is about.
"""
from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from cuda_emulation.cases import emulate
from module_equality import difference
from noise import Expectation, random_inputs

import hloc
from hloc import api
from hloc.evaluate import evaluate
from hloc.inputs import check_arrays, entry_parameters
from hloc.ir import Module, numpy_dtype
from hloc.passes.context import PassContext
from hloc.passes.pipelines import PIPELINES
from hloc.passes.runner import run_passes
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.presence import driver_present
from hloc.text import parse_module
from hloc.verify import verify

PROGRAMS = sorted((Path(__file__).parent.parent / "testdata" / "programs").glob("*.hlo"))
SEEDS = (0, 1, 2, 4)
EMULATED = 5                       # a program takes a second or more


def inputs_of(module: Module, seed: int) -> list[np.ndarray]:
    return random_inputs([p.shape for p in entry_parameters(module)], seed)


def read(path: Path) -> Module:
    module = parse_module(path.read_text(encoding="utf-8"), path.name)
    verify(module)
    return module


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_text(path: Path) -> None:
    module = read(path)
    assert difference(parse_module(str(module)), module) is None


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_pipelines(path: Path) -> None:
    """Passes keep what a program means. Excess precision, which alters results where f16 overflows, is off; its own
    tests are in test_cuda_precision.py."""
    original, exact = read(path), {"excess_precision": "off"}
    inputs = [inputs_of(original, seed) for seed in SEEDS]
    expected = [Expectation(original, arrays) for arrays in inputs]
    for target, passes in PIPELINES.items():
        module = read(path)
        context = PassContext(target=target) if target == "cpu" else PassContext(GPUS["h100"], target, exact)
        run_passes(module, passes, context)
        assert difference(parse_module(str(module)), module) is None
        for wanted, arrays in zip(expected, inputs):
            assert wanted.difference(evaluate(module, arrays)) == ""


@pytest.mark.parametrize("target", ["cpu", "cuda"] if driver_present() else ["cpu"])
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_target(path: Path, target: str) -> None:
    module = read(path)
    exe = hloc.compile(module, target=target)
    for seed in SEEDS:
        inputs = inputs_of(module, seed)
        assert Expectation(module, inputs).difference(exe(*inputs)) == ""


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
@pytest.mark.parametrize("path", PROGRAMS[::EMULATED], ids=lambda p: p.stem)
def test_emulated_gpu(path: Path, monkeypatch) -> None:
    """One in EMULATED programs as CUDA C, emulated on the CPU: a program takes seconds. On a GPU test_target runs all."""
    target = cuda_target(GPUS["h100"])
    module = read(path)
    inputs = inputs_of(module, SEEDS[0])
    options = api.Options(passes={"f32": "exact", "excess_precision": "off"})
    program = api.plan(api.optimize(read(path), target, options), target)
    results = emulate(make_sources(program, GPUS["h100"]), check_arrays(program.parameters, inputs), monkeypatch)
    assert Expectation(module, inputs).difference(results) == ""


@pytest.mark.parametrize("name", ["zeros_of_both_signs"])
def test_without_fusion(name: str) -> None:
    """Programs whose faults showed in kernels of single instructions."""
    module = read(PROGRAMS[0].with_name(f"{name}.hlo"))
    exe = hloc.compile(module, options=api.Options(passes={"fusion": "off"}))
    for seed in SEEDS:
        inputs = inputs_of(module, seed)
        assert Expectation(module, inputs).difference(exe(*inputs)) == ""


# -- names and metadata never change what is generated -----------------------------------------------------------------

HOSTILE = ["int", "for", "return", "while", "sizeof", "double", "static", "main", "hloc_execute", "buffers", "in0",
           "out0", "begin", "end", "i0", "__asm__", "define", "NULL", "errno", "threadIdx", "x" * 300]
METADATA = 'metadata={op_name="*/ #error \\"\\n??/ \x01\x7f \\\\" op_type="/*" source_file="a\\\\\\nb" source_line=1}'
TEXT = """HloModule plain
plain_f {{
  plain_a = f32[] parameter(0)
  plain_b = f32[] parameter(1)
  ROOT plain_c = f32[] add(plain_a, plain_b){m}
}}
ENTRY plain_e {{
  plain_x = f32[8,5] parameter(0){m}
  plain_z = f32[] constant(0)
  plain_s = f32[8] reduce(plain_x, plain_z), dimensions={{1}}, to_apply=plain_f{m}
  plain_t = f32[8] sort(plain_s), dimensions={{0}}, to_apply=plain_l{m}
  ROOT plain_r = (f32[8], f32[8]) tuple(plain_s, plain_t){m}
}}
"""
LESS = "plain_l {{ plain_p = f32[] parameter(0) plain_q = f32[] parameter(1) " \
       "ROOT plain_o = pred[] compare(plain_p, plain_q), direction=LT, type=TOTALORDER }}\n"


def code(text: str, target: str) -> str:
    """The generated program without its comments, in which names stand for readers, and strings."""
    source = hloc.compile(text, target=target, run=False).source
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", source, flags=re.S)


def program(metadata: str = "") -> str:
    head, rest = TEXT.format(m=metadata).split("\n", 1)
    return head + "\n" + LESS.format() + rest


def renamed(text: str, name: str) -> str:
    """The root is called `name`, everything else `name` and a letter."""
    return re.sub(r"(?<![\w%])plain_(\w)", lambda m: f"%{name}" + ("" if m[1] == "r" else f".{m[1]}"), text)


@pytest.mark.parametrize("target", ["cpu", "h100"])
def test_names_do_not_reach_the_code(target: str) -> None:
    plain = code(program(), target)
    assert "plain" not in plain
    for name in HOSTILE:
        assert code(renamed(program(), name), target) == plain, name


@pytest.mark.parametrize("target", ["cpu", "h100"])
def test_metadata_does_not_reach_the_code(target: str) -> None:
    assert code(program(", " + METADATA), target) == code(program(), target)


@pytest.mark.parametrize("op", ["maximum", "minimum"])
@pytest.mark.parametrize("type", ["f16", "bf16"])
def test_extrema_of_halves_see_special_values(type: str, op: str) -> None:
    """By rows, by columns and of everything: NaN of either sign wins, then infinities; -0 and 0 are equal."""
    dtype = numpy_dtype(type)
    text = (f"f {{ a = {type}[] parameter(0)  b = {type}[] parameter(1)  ROOT r = {type}[] {op}(a, b) }}\n"
            f"ENTRY e {{ x = {type}[9,200] parameter(0)  z = {type}[] constant({'-inf' if op == 'maximum' else 'inf'})\n"
            f"  rows = {type}[9] reduce(x, z), dimensions={{1}}, to_apply=f\n"
            f"  columns = {type}[200] reduce(x, z), dimensions={{0}}, to_apply=f\n"
            f"  all = {type}[] reduce(x, z), dimensions={{0,1}}, to_apply=f\n"
            f"  ROOT t = ({type}[9], {type}[200], {type}[]) tuple(rows, columns, all) }}")
    executable = hloc.compile(text, target="cpu")
    specials = [np.nan, np.inf, -np.inf, 0.0, 65504.0, -65504.0, 6e-8]
    rng = np.random.default_rng(0)
    for special in (None, *specials):
        x = rng.normal(size=(9, 200)).astype(dtype)
        if special is not None:
            x[2, 130] = x[5, 3] = dtype.type(special)
            x[7, 70] = -x[2, 130]
        function = np.maximum if op == "maximum" else np.minimum
        wide = x.astype(np.float32)
        for got, axis in zip(executable(x), (1, 0, None)):
            np.testing.assert_array_equal(np.asarray(got, np.float32), function.reduce(wide, axis=axis))


@pytest.mark.parametrize("type", ["f16", "bf16"])
def test_remainders_of_halves_are_exact(type: str) -> None:
    """Of any bit patterns: what is left has the dividend's sign, whatever the quotient; bf16 that f32 takes for zero
    is left out."""
    executable = hloc.compile(f"ENTRY e {{ a = {type}[60000] parameter(0)  b = {type}[60000] parameter(1)\n"
                              f"ROOT r = {type}[60000] remainder(a, b) }}", target="cpu")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 16, 60000).astype(np.uint16).view(numpy_dtype(type)) for _ in range(2))
    (got,) = executable(a, b)
    with np.errstate(all="ignore"):
        x, y, got = (v.astype(np.float64) for v in (a, b, np.asarray(got)))
        want = np.fmod(x, y)
    normal = (np.abs(x) > 1.2e-38) & (np.abs(y) > 1.2e-38) & ((want == 0) | (np.abs(want) > 1.2e-38))
    compared = normal | (type == "f16") | np.isnan(want)
    np.testing.assert_array_equal(got[compared], want[compared])
    assert (np.signbit(got) == np.signbit(x))[compared & ~np.isnan(want)].all()


@pytest.mark.parametrize("sides", [(2, 100), (2, 5), (9, 100), (2, 1)], ids=str)
@pytest.mark.parametrize("type, much", [("f32", 2e38), ("f64", 1e308)])
def test_diagonals_without_an_inverse_are_divided_by(type: str, much: float, sides: tuple[int, int]) -> None:
    """That of such a number is subnormal, which a run takes for zero."""
    batch, count = sides
    text = (f"ENTRY e {{ a = {type}[{batch},40,40] parameter(0)  b = {type}[{batch},40,{count}] parameter(1)\n"
            f"ROOT x = {type}[{batch},40,{count}] triangular-solve(a, b), left_side=true, lower=true, "
            f"transpose_a=NO_TRANSPOSE }}")
    dtype, rng = numpy_dtype(type), np.random.default_rng(0)
    a = np.broadcast_to(np.eye(40) * much, (batch, 40, 40)).astype(dtype)
    a[0] = np.eye(40) * 2
    b = (rng.normal(size=(batch, 40, count)) * (much / 10)).astype(dtype)
    (x,) = hloc.compile(text, target="cpu")(a, b)
    np.testing.assert_allclose(x, b / np.diagonal(a, axis1=1, axis2=2)[..., None], rtol=1e-6)
