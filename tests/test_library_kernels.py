"""Which library kernels are compiled with a program: those that it may call, and no others."""

import pytest

from hloc import api
from hloc.errors import BuildError
from hloc.targets import find
from hloc.targets.cpu.program.sources import Sources, make_sources
from hloc.targets.target import Target

REGIONS = """
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
most { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] maximum(a, b) }
"""
ATTENTION = """
  q = f32[2,64,32] parameter(0)
  s = f32[2,64,64] dot(q, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}
  least = f32[] constant(-inf)
  m = f32[2,64] reduce(s, least), dimensions={2}, to_apply=most
  spread = f32[2,64,64] broadcast(m), dimensions={0,1}
  below = f32[2,64,64] subtract(s, spread)
  e = f32[2,64,64] exponential(below)
  zero = f32[] constant(0)
  t = f32[2,64] reduce(e, zero), dimensions={2}, to_apply=sum
  total = f32[2,64,64] broadcast(t), dimensions={0,1}
  w = f32[2,64,64] divide(e, total)
  o = f32[2,64,32] dot(w, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
"""
GRADIENT = """
  g = f32[2,64,32] dot(w, o), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}
"""


def convolution(features: int) -> str:
    return f"""
  x = bf16[2,16,16,{features}] parameter(0)
  w = bf16[1,1,{features},32] parameter(1)
  ROOT y = bf16[2,16,16,32] convolution(x, w), window={{size=1x1}}, dim_labels=b01f_01io->b01f
"""


def windows(x: str, w: str, y: str, window: str, groups: str) -> str:
    return (f"x = {x} parameter(0) w = {w} parameter(1) "
            f"ROOT y = {y} convolution(x, w), window={{size={window}}}, dim_labels=b01f_01io->b01f{groups}")


def dot(left: str, right: str) -> str:
    rows, columns = left.split("[")[1].split(",")[0], right[:-1].split(",")[1]
    return f"""
  x = {left} parameter(0)
  y = {right} parameter(1)
  d = {left.split("[")[0]}[{rows},{columns}] dot(x, y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
"""


def sources_of(body: str, target: Target) -> Sources:
    """What is compiled for a module with these instructions."""
    program = api.optimized_plan(api.load(f"{REGIONS}ENTRY e {{ {body} }}\n"), target)[1]
    return make_sources(program, target.machine)


@pytest.mark.parametrize("body, units", [
    ("p = f32[4] parameter(0)", []),
    (ATTENTION, ["attention.c"]),
    (ATTENTION + GRADIENT, ["gemm_f32.c"]),                   # the weights are kept for the gradient
    ("x = f32[8,100] parameter(0) t = (f32[8,5], s32[8,5]) topk(x), k=5, largest=true",
     ["topk.c:topk_network_f32_f32_32"]),
    ("x = f16[8,100] parameter(0) t = (f16[8,5], s32[8,5]) topk(x), k=5, largest=true",
     ["topk.c:topk_network_f16_f32_32"]),
    ("x = f32[64,8] parameter(0) y = f32[8,64] parameter(1) "
     "d = f32[64,64] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", []),
    ("x = f32[64,9] parameter(0) y = f32[9,64] parameter(1) "
     "d = f32[64,64] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ["gemm_f32.c"]),
    ("x = bf16[64,5,8] parameter(0) y = bf16[64,8,11] parameter(1) d = bf16[64,5,11] dot(x, y), lhs_batch_dims={0}, "
     "rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}", []),
    ("x = c64[64,64] parameter(0) d = c64[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
     ["complex_c64.c", "gemm_f32.c"]),
    ("x = bf16[64,64] parameter(0) y = s4[64,64] parameter(1) "
     "d = bf16[64,64] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ["gemm_f32.c"]),
    ("x = f8e4m3fn[64,64] parameter(0) "
     "d = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ["gemm_f32.c"]),
    ("x = s8[64,64] parameter(0) y = bf16[64,64] convert(x) "
     "d = bf16[64,64] dot(y, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ["gemm_bf16.c"]),
    ("x = f16[64,64] parameter(0) y = f32[64,64] convert(x) "
     "d = f32[64,64] dot(y, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ["gemm_f32.c"]),
    ("x = f16[64,64] parameter(0) y = f16[64,64] cholesky(x)", ["triangular_f32.c"]),
    ("x = f64[8,8] parameter(0) y = f64[8,8] cholesky(x)", []),
    (convolution(16), ["gemm_bf16.c"]),
    (windows("bf16[1,56,56,256]", "bf16[3,3,1,256]", "bf16[1,54,54,256]", "3x3", ", feature_group_count=256"),
     ["conv_depthwise.c", "conv_memory.c"]),
    (windows("f32[4,30,30,64]", "f32[3,3,16,64]", "f32[4,28,28,64]", "3x3", ", feature_group_count=4"),
     ["conv_rows.c", "conv_tiles.c", "conv.c", "conv_dots.c", "conv_memory.c"]),
    (windows("f32[4,30,30,64]", "f32[3,3,64,64]", "f32[4,28,28,64]", "3x3", ""),
     ["conv_tiles.c", "conv_winograd.c", "conv_memory.c"]),
    (windows("f32[16,30,30,32]", "f32[28,28,32,64]", "f32[16,3,3,64]", "28x28", ""),
     ["conv_rows.c", "conv_tiles.c", "conv.c", "conv_dots.c", "conv_memory.c"]),
    (windows("f16[2,14,14,64]", "f16[3,3,64,8]", "f16[2,27,27,8]", "3x3 pad=1_1x1_1 lhs_dilate=2x2", ""),
     ["gemm_f32.c", "conv_transposed.c", "conv_memory.c"]),
], ids=["none", "attention", "attention gradient", "topk", "topk of f16", "shallow dot", "dot",
        "many small dots", "complex dot", "mixed dot", "dot of 8 bits", "dot of whole numbers",
        "converted dot", "factor of f16", "small factor", "convolution of 1x1 windows",
        "depthwise convolution", "convolution of groups", "convolution by blocks", "filter gradient", "transposed convolution"])
def test_units(body, units):
    found = sources_of(body, find("cpu")).runtime_units()
    assert [unit for unit in found if unit not in ("pool.c", "turn.c")] == units


CONVOLUTION = windows("f32[2,16,16,64]", "f32[3,3,64,64]", "f32[2,14,14,64]", "3x3", "")
LESS = "less { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = pred[] compare(a, b), direction=LT }\n"


@pytest.mark.parametrize("assumption, body, message", [
    ("plans.matmul.tile_rows", dot("f32[64,64]", "f32[64,96]"), "hloc_gemm_f32_compiled_for_8_"),
    ("plans.convolutions.tile_rows", CONVOLUTION, "hloc_conv_compiled_for_8_"),
    ("tiles.source.KEYS", ATTENTION, "hloc_attention_compiled_for_"),
    ("tiles.fft.PLAN_BYTES", "x = c64[32,60] parameter(0) y = c64[32,60] fft(x), fft_type=FFT, fft_length={60}",
     "hloc_fft_f32_compiled_for_"),
    ("tiles.triangular.tile_rows", "x = f32[64,64] parameter(0) y = f32[64,64] cholesky(x)", "hloc_cholesky_f32_compiled_for_"),
    ("plans.sorts.CHUNK", "x = f32[3,5000] parameter(0) y = f32[3,5000] sort(x), dimensions={1}, to_apply=less",
     "static assertion failed"),
    ("plans.sorts.CHUNK", "x = f32[3,90] parameter(0) y = (f32[3,5], s32[3,5]) topk(x), k=5, largest=true",
     "hloc_topk_select_f32_f32_32_compiled_for_32_24_"),
], ids=["matmul", "convolution", "attention", "fft", "cholesky", "sort", "topk"])
def test_plan_for_other_sizes(monkeypatch, assumption, body, message):
    """A plan that assumes other sizes than a library kernel was compiled with is an error when the program is built."""
    other = (lambda machine: 8 if "triangular" not in assumption else 6) if assumption.endswith("rows") else 24
    monkeypatch.setattr(f"hloc.targets.cpu.{assumption}", other)
    with pytest.raises(BuildError, match=message):
        api.compile(f"HloModule m\n{REGIONS}{LESS}ENTRY e {{ {body} }}\n", "cpu")
