"""Which routines are compiled before the passes have run: those that the program will call, and no others."""
import pytest

from hloc.machine import Machine
from hloc.targets.cpu.building.likely import likely_units
from hloc.text import parse_module

SCORES = """
  q = f32[2,64,32] parameter(0)
  s = f32[2,64,64] dot(q, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}
  e = f32[2,64,64] exponential(s)
  o = f32[2,64,32] dot(e, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}
"""
GRADIENT = """
  g = f32[2,64,64] dot(o, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}
  h = f32[2,64,32] dot(g, q), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}
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


@pytest.mark.parametrize("body, units", [
    ("p = f32[4] parameter(0)", []),
    (SCORES, ["attention.c", "attention_kernels.c"]),
    (SCORES.replace("64,32", "8,32").replace("64,64", "8,8"), ["attention_thin.c"]),
    (SCORES + GRADIENT, ["gemm_f32.c"]),                   # the weights are kept for the gradient
    ("x = f32[8,100] parameter(0) t = (f32[8,5], s32[8,5]) topk(x), k=5, largest=true", ["topk.c"]),
    ("x = f16[8,100] parameter(0) t = (f16[8,5], s32[8,5]) topk(x), k=5, largest=true", []),
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
     "d = f32[64,64] dot(y, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ["gemm_f16.c"]),
    ("x = f16[64,64] parameter(0) y = f16[64,64] cholesky(x)", ["triangular_f32.c"]),
    ("x = f64[8,8] parameter(0) y = f64[8,8] cholesky(x)", []),
    (convolution(8), []),
    (convolution(16), ["gemm_bf16.c", "conv_product.c"]),
    (windows("bf16[1,56,56,256]", "bf16[3,3,1,256]", "bf16[1,54,54,256]", "3x3", ", feature_group_count=256"),
     ["conv_depthwise.c", "conv_memory.c"]),
    (windows("f32[4,30,30,64]", "f32[3,3,16,64]", "f32[4,28,28,64]", "3x3", ", feature_group_count=4"),
     ["conv_rows.c", "conv_tiles.c", "conv.c", "conv_dots.c", "conv_memory.c"]),
    (windows("f32[4,30,30,64]", "f32[3,3,64,64]", "f32[4,28,28,64]", "3x3", ""),
     ["conv_tiles.c", "conv_winograd.c", "conv_memory.c"]),
    (windows("f32[16,30,30,32]", "f32[28,28,32,64]", "f32[16,3,3,64]", "28x28", ""), ["conv_outer.c", "conv_memory.c"]),
    (windows("f16[2,14,14,64]", "f16[3,3,64,8]", "f16[2,27,27,8]", "3x3 pad=1_1x1_1 lhs_dilate=2x2", ""),
     ["gemm_f32.c", "conv_transposed.c", "conv_memory.c"]),
], ids=["none", "attention", "attention of few queries", "attention gradient", "topk", "topk of f16", "shallow dot", "dot",
        "many small dots", "complex dot", "mixed dot", "dot of 8 bits", "dot of whole numbers",
        "converted dot", "factor of f16", "small factor", "shallow convolution", "convolution of 1x1 windows",
        "depthwise convolution", "convolution of groups", "convolution by blocks", "filter gradient", "transposed convolution"])
def test_likely_units(body, units):
    found, _ = likely_units(parse_module(f"ENTRY e {{ {body} }}"), Machine.host())
    assert [unit for unit in found if unit != "pool.c"] == units


MACHINE = Machine("test", "cpu", 4, 64, 1 << 15, 1 << 20, 1e10, 1e-6)


@pytest.mark.parametrize("body, unit, parts", [
    (dot("f32[1024,1024]", "f32[1024,1024]"), "gemm_f32.c", "BLOCKS KERNELS PACKING PACKING_ROWS"),
    (dot("f32[1000,1000]", "f32[1000,200]"), "gemm_f32.c", "A BLOCKS HALF_A PACKING_ROWS"),   # B is packed for all
    (dot("f32[40,100]", "f32[100,96]"), "gemm_f32.c", "AB BLOCKS"),                   # both lie as tiles want them
    (dot("f32[41,100]", "f32[100,96]"), "gemm_f32.c", "AB B BLOCKS PACKING"),           # a last odd row is packed
    (dot("f32[40,100]", "f32[100,100]"), "gemm_f32.c", "AB BLOCKS HALF_A PACKING_ROWS"),     # four columns are left
    (dot("f32[40,100]", "f32[100,120]"), "gemm_f32.c", "A AB BLOCKS PACKING_ROWS"),          # more than half a tile: packed
    (dot("f32[1,4096]", "f32[4096,1024]"), "gemm_f32.c", "THIN THIN_ROWS_1"),
    (dot("f32[1024,4096]", "f32[4096,1]"), "gemm_f32.c", "THIN THIN_DOTS_1"),
    (dot("f16[40,100]", "f16[100,96]"), "gemm_f16.c", "BLOCKS KERNELS PACKING PACKING_ROWS"),        # widened while they are packed
    ("x = c64[32,64] parameter(0) y = c64[32,64] fft(x), fft_type=FFT, fft_length={64}", "fft_f32.c", ""),
    ("x = c64[3,64] parameter(0) y = c64[3,64] fft(x), fft_type=FFT, fft_length={64}", "fft_f32.c", "FFT_ONE"),
    ("x = f64[32,60] parameter(0) y = c128[32,31] fft(x), fft_type=RFFT, fft_length={60}", "fft_f64.c",
     "FFT_MANY_ODD FFT_ONE FFT_ONE_ODD"),
    ("x = f32[64,64] parameter(0) y = f32[64,64] cholesky(x)", "triangular_f32.c", "CHOLESKY"),
    (SCORES, "attention_kernels.c", ""),
    (SCORES.replace("64", "40"), "attention_kernels.c", "ACROSS_ONE ALONG_ONE"),  # eight queries are left
], ids=["large", "rests", "small", "odd rows", "half a tile", "most of a tile", "one row", "one column", "f16", "powers of two", "few lines", "odd steps",
        "cholesky", "attention", "rest of queries"])
def test_parts(body, unit, parts):
    _, found = likely_units(parse_module(f"ENTRY e {{ {body} }}"), MACHINE)
    assert sorted(part.removeprefix("KERNELS_") for part in found[unit]) == parts.split()
