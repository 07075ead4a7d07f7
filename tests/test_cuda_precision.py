"""How precisely a GPU computes by default, and with --exact: the results, and where hloc tells of it."""
from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
from cuda_emulation.cases import emulate

from hloc import api
from hloc.cli.main import main
from hloc.errors import RunError, UsageError
from hloc.evaluate import evaluate
from hloc.inputs import random_arrays
from hloc.targets.cuda import container
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.tools.widened import widened_run

H200 = GPUS["h200"]
EXACT = {"excess_precision": "off", "f32": "exact"}
CHAIN = """HloModule m
add { a = bf16[] parameter(0)  b = bf16[] parameter(1)  ROOT r = bf16[] add(a, b) }
ENTRY e { x = bf16[40,96] parameter(0)  zero = bf16[] constant(0)
  t = bf16[40,96] tanh(x)  e = bf16[40,96] exponential(t)  m = bf16[40,96] multiply(e, x)
  s = bf16[40] reduce(m, zero), dimensions={1}, to_apply=add  ss = bf16[40,96] broadcast(s), dimensions={0}
  q = bf16[40,96] divide(e, ss)  ROOT d = bf16[40,96] add(q, t) }"""


def emulated(text: str, monkeypatch, passes: dict[str, str]):
    """(inputs, results) on an emulated GPU."""
    target = cuda_target(H200)
    module, program = api.optimized_plan(api.load(text), target, api.Options(passes=passes))
    arrays = random_arrays(program.parameters, 0)
    return arrays, emulate(make_sources(program, H200), arrays, monkeypatch, checked=True)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
def test_halves_are_f32_within_a_kernel(monkeypatch):
    """By default the result is that of f32 rounded once at the end; with --exact that of the evaluator."""
    arrays, (own,) = emulated(CHAIN, monkeypatch, {})
    _, (exact,) = emulated(CHAIN, monkeypatch, EXACT)
    module = api.load(CHAIN)
    wide, = widened_run(module)(arrays)
    rounded, = evaluate(module, arrays)

    def equal(a, b):
        return np.mean(a == b)
    assert equal(own, wide) > 0.97 and equal(exact, rounded) > 0.97
    assert equal(own, rounded) < 0.8


PRODUCTS = """HloModule m
ENTRY e {{ a = f32[192,128] parameter(0)  b = f32[128,256] parameter(1)  image = f32[2,14,14,32] parameter(2)
  filter = f32[3,3,32,64] parameter(3)  odd = f32[2,9,9,5] parameter(4)  small = f32[3,3,5,37] parameter(5)
  d = f32[192,256] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{asked}
  c = f32[2,14,14,64] convolution(image, filter), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_01io->b01f{asked}
  o = f32[2,4,4,37] convolution(odd, small), window={{size=3x3 stride=2x2}}, dim_labels=b01f_01io->b01f{asked}
  ROOT t = (f32[192,256], f32[2,14,14,64], f32[2,4,4,37]) tuple(d, c, o) }}"""
LARGE = """HloModule m
ENTRY e {{ a = f32[2048,1024] parameter(0)  b = f32[1024,2048] parameter(1)
  ROOT d = f32[2048,2048] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{asked} }}"""
HIGH = ", operand_precision={high,high}"


def tf32(x: np.ndarray) -> np.ndarray:
    """Rounded to 10 bits after the point, ties away from zero."""
    return ((x.view(np.uint32) + 0x1000) & np.uint32(0xFFFFE000)).view(np.float32)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
def test_products_of_f32_are_of_tf32(monkeypatch):
    """By default results are those of rounded operands; three products of parts, and --f32 exact, lose next to nothing.
    The tiles of registers, which multiply all bits, are taken out: they would be as right."""
    monkeypatch.setattr("hloc.targets.cuda.tiles.products.in_order_of_f32", on_tensor_cores)
    monkeypatch.setattr("hloc.targets.cuda.tiles.convolutions.in_order_of_f32", on_tensor_cores)
    text = PRODUCTS.format(asked="")
    arrays, own = emulated(text, monkeypatch, {})
    module = api.load(text)
    rounded, full = evaluate(module, list(map(tf32, arrays))), evaluate(module, arrays)
    for a, near, far in zip(own, rounded, full):
        assert np.abs(a - near).max() < 1e-5 * np.abs(near).max()
        assert np.abs(a - far).max() > 1e-4 * np.abs(far).max()
    for asked, passes in ((HIGH, {}), ("", {"f32": "exact"})):
        for a, far in zip(emulated(PRODUCTS.format(asked=asked), monkeypatch, passes)[1], full):
            assert np.abs(a - far).max() < 1e-5 * np.abs(far).max(), (asked, passes)


def on_tensor_cores(found, _):
    return [t for t in found if t.numbers is not None and not t.grouped]


def kernels(text: str, passes: dict[str, str]) -> str:
    target = cuda_target(H200)
    return make_sources(api.optimized_plan(api.load(text), target, api.Options(passes=passes))[1], H200).readable()


def on_cores(text: str, passes: dict[str, str]) -> bool:
    shown = kernels(text, passes)
    return "hloc_numbers" in shown or "hloc_group" in shown


def test_who_asks_for_all_bits_gets_them(monkeypatch):
    """By the option, the variable, the precision of one operand, or as complex numbers."""
    text = LARGE.format(asked="")
    assert "hloc_group_tf32" in kernels(text, {})
    assert "hloc_numbers_tf32<2, 1>" in kernels(LARGE.format(asked=HIGH), {})
    assert not on_cores(text, {"f32": "exact"})
    assert not on_cores(LARGE.format(asked=", operand_precision={default,highest}"), {})
    assert not on_cores("""HloModule m
ENTRY e { a = c64[96,128] parameter(0)  b = c64[128,96] parameter(1)
  ROOT d = c64[96,96] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }""", {})
    monkeypatch.setenv("HLOC_F32", "exact")
    assert not on_cores(text, {})
    assert on_cores(text, {"f32": "tf32"})
    monkeypatch.setenv("HLOC_F32", "half")
    with pytest.raises(UsageError, match="HLOC_F32 is 'half'; it takes 'tf32' or 'exact'"):
        kernels(text, {})


def told(arguments: list[str], monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hloc", *arguments])
    main()
    return capsys.readouterr()


def test_explain_tells(tmp_path, monkeypatch, capsys):
    path = tmp_path / "m.hlo"
    path.write_text(CHAIN)
    assert "bf16 and f16 are f32 within a kernel" in told(["explain", str(path), "-t", "h200"], monkeypatch, capsys).out
    exact = told(["explain", str(path), "-t", "h200", "--exact"], monkeypatch, capsys).out
    assert "bf16 and f16 are rounded after each operation" in exact
    assert "bf16 and" not in told(["explain", str(path), "-t", "cpu"], monkeypatch, capsys).out
    path.write_text(PRODUCTS.format(asked=""))
    assert "round operands to TF32" in told(["explain", str(path), "-t", "h200"], monkeypatch, capsys).out
    assert "multiply all bits" in told(["explain", str(path), "-t", "h200", "--f32", "exact"], monkeypatch, capsys).out
    path.write_text(PRODUCTS.format(asked=HIGH))
    assert "TF32" not in told(["explain", str(path), "-t", "h200"], monkeypatch, capsys).out
    path.write_text(CHAIN)
    as_json = json.loads(told(["explain", str(path), "-t", "h200", "--exact", "--json"], monkeypatch, capsys).out)
    assert as_json["precision"]["excess_precision"] == "off"
    assert as_json["precision"]["f32"] == "exact"


def test_cubins_keep_it(tmp_path):
    target = cuda_target(H200)
    _, program = api.optimized_plan(api.load(CHAIN), target, api.Options(passes=EXACT))
    sources = make_sources(program, H200)
    for name, precision in (("good", EXACT), ("bad", {"excess_precision": "some"})):
        with (tmp_path / name).open("w+b") as file:
            container.write(file, [b"image"] * 99, sources.program, sources.geometry, H200.arch, 13000, precision)
    assert container.read(tmp_path / "good").precision == EXACT
    with pytest.raises(RunError):
        container.read(tmp_path / "bad")
