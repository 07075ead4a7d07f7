"""No kernel reads a register that nothing has written: what loops carry from one step to the next has a first value.

ptxas may take any register for a value without one. Two products were wrong on an H200 for it, though no step used the
value and the emulation, compute-sanitizer and PTX at -O0 were right. So NVRTC's PTX is looked at (ptx.py).
"""
from __future__ import annotations

import dataclasses
import math
import re

import pytest
from cuda_emulation.cases import program_of
from kernel_harness import collect
from ptx import Unwritten, before_wait, unwritten
from test_cuda_attention import Case as Attention
from test_cuda_attention import module as attention
from test_cuda_attention_gradient import Case as Gradient
from test_cuda_attention_gradient import module as gradient
from test_cuda_faults import MODULES, changed
from test_cuda_kernels import DATA, SEPARATOR
from test_cuda_ragged import ragged

from hloc import api
from hloc.kernels.ir import Tile
from hloc.targets.cuda.compiler import compile_cuda, nvrtc_version
from hloc.targets.cuda.gpus import gpu_named
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.cuda.tiles.source import CUDNN, LIBRARY, tile_source, variants

compiled = pytest.mark.skipif(nvrtc_version() is None, reason="NVRTC is not installed")

FILES = sorted([*(DATA / "cuda").glob("*.hlo"),
                *(DATA / "kernels" / f"{n}.hlo" for n in ("few_bits", "reduce", "rows", "window"))])
DOT = """HloModule dots
ENTRY e {{ a = {t}[{m},{k}] parameter(0)  b = {t}[{k},{n}] parameter(1)
  ROOT d = {r}[{m},{n}] dot(a, b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{how} }}
"""
CONVOLUTION = """HloModule convolution
ENTRY e {{ x = {t}[2,13,13,{c}] parameter(0)  w = {t}[3,3,{c},{f}] parameter(1)
  ROOT y = {t}[2,13,13,{f}] convolution(x, w), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_01io->b01f }}
"""


def dot(type: str, result: str, how: str, sizes: tuple[int, int, int]) -> str:
    m, k, n = sizes
    return DOT.format(t=type, r=result, how=how, m=m, k=k, n=n)


ODD, EVEN, WHOLE = (70, 91, 65), (70, 90, 66), (64, 160, 128)  # read one by one, in pairs, 16 bytes at a time
TYPES = (("f32", "f32", ", algorithm=dot_tf32_tf32_f32"), ("bf16", "f32", ""), ("s8", "s32", ""))
TILES = {
    "products": [dot(*types, size) for types in TYPES for size in (ODD, EVEN, WHOLE)],
    "convolutions": [CONVOLUTION.format(t=t, c=c, f=f) for t, c, f in (("f32", 3, 7), ("bf16", 64, 64))],
    "ragged": [ragged("bf16", "f32"), ragged("s8", "s32", k=90, n=65), ragged("f32", "f32", k=91, n=65)],
    "attention": [attention(Attention(t, "causal")) for t in ("bf16", "f32")],
    "gradients": [gradient(Gradient("bf16")), gradient(Gradient("f32", "causal"))],
}


def sources_of_file(path, gpu):
    texts = SEPARATOR.split(path.read_text(encoding="utf-8"))
    return make_sources(program_of([c for n, text in enumerate(texts)
                                    for c in collect(text, f"{path.stem}#{n}", machine=gpu)]), gpu)


def ends(found: list[str]) -> list[str]:
    """The smallest and the largest of each kind of variant; those between have the same text with other sizes."""
    kinds: dict[str, list[str]] = {}
    for variant in sorted(found, key=lambda variant: math.prod(map(int, re.findall(r"\d+", variant)))):
        kinds.setdefault(re.sub(r"\d+", "N", variant), []).append(variant)
    return [variant for same in kinds.values() for variant in dict.fromkeys((same[0], same[-1]))]


def kernels_of(texts: list[str], arch: str) -> str:
    """CUDA C of all modules' templates: for sm_90a in each kind of variant, but for the number of pieces."""
    gpu = gpu_named(arch)
    target, found = cuda_target(gpu), []
    for text in texts:
        program = api.plan(api.optimize(api.load(text), target), target)
        for kernel in program.kernels:
            if isinstance(kernel, Tile):
                own = ends([w for w in variants(kernel, gpu) if "splits" not in w and w not in (LIBRARY, CUDNN)]) or [""]
                found += [(kernel, variant) for variant in own[:None if arch == "sm_90a" else 1]]
    kernels = [tile_source(kernel, f"k{n}", gpu, variant).text for n, (kernel, variant) in enumerate(found)]
    return dataclasses.replace(make_sources(program, gpu), kernels=tuple(kernels)).single_file()


def found_in(text: str, arch: str) -> dict[str, list[Unwritten]]:
    """Kernels that read what nothing has written."""
    made = compile_cuda(text, arch, "ptx").decode()
    read = unwritten(made)
    assert read and before_wait(made) == []
    return {kernel: registers for kernel, registers in read.items() if registers}


@compiled
@pytest.mark.parametrize("path", FILES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_kernels(path):
    assert found_in(sources_of_file(path, gpu_named("sm_90a")).single_file(), "sm_90a") == {}


@compiled
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", TILES)
def test_templates(name, arch):
    assert found_in(kernels_of(TILES[name], arch), arch) == {}


# A module, and what of its CUDA C is changed: what stands there, and what stands in its place.
PLANTED = {
    "a step's place": (dot("s8", "s32", "", (70, 90, 65)),      # as it was, and as it was wrong on an H200
                       ("COUNT : 1];\n\n  HLOC_MEMBER static", "COUNT : 1];\n  long next;\n\n  HLOC_MEMBER static"),
                       ("fetch(long k0) {\n    if constexpr (Source::AHEAD)",
                        "fetch(long k0) {\n    next = k0;\n    if constexpr (Source::AHEAD)"),
                       ("read(i, k0), stored)", "read(i, next), stored)")),
    "what a step has read": (dot("f32", "f32", "", EVEN), ("held[i] = typename Source::Held();", ";")),
    # So many rows that a block walks over several.
    "what is kept of a row": (MODULES["softmax"].replace("[3", "[5000").replace("1500", "2500"),
                              ("cached0[20] = {};", "cached0[20];")),
    "a group's rows": (ragged("s8", "s32", k=90, n=65), (": row(0), column(0), end(0), found(false)", ": found(false)")),
}


@compiled
@pytest.mark.parametrize("name", PLANTED)
def test_planted(name):
    """Each is found, in the loop that carries it."""
    module, *changes = PLANTED[name]
    text = kernel_text(module)
    for old, new in changes:
        text = changed(text, old, new)
    (found,) = found_in(text, "sm_90a").values()
    assert found and all(one.loop for one in found)


@compiled
def test_accesses_before_the_wait():
    """A load that is moved before the wait for the kernel before is found."""
    text = kernel_text(MODULES["pointwise"])
    assert before_wait(compile_cuda(text, "sm_90a", "ptx").decode()) == []
    wrong = changed(text, "  hloc_await_previous();\n", "  if (in0[1] == 3) out0[0] = 1;\n  hloc_await_previous();\n")
    load, store = before_wait(compile_cuda(wrong, "sm_90a", "ptx").decode())
    assert load.startswith("ld.global") and store.startswith("st.global")


def kernel_text(module: str) -> str:
    gpu = gpu_named("sm_90a")
    target = cuda_target(gpu)
    return make_sources(api.plan(api.optimize(api.load(module), target), target), gpu).single_file()


# -- the reader --------------------------------------------------------------------------------------------------------

BODY = """.visible .entry k(.param .u64 k_param_0)
.maxntid 128, 1, 1
{
	.reg .pred 	%p<9>;
	.reg .b32 	%r<9>;
	ld.param.u64 	%rd1, [k_param_0];
"""
LOOP = BODY + """	mov.u32 	%r1, 0;
$L__BB0_1:
	.pragma "nounroll";
	setp.eq.s32 	%p1, %r1, 0;
	@%p1 bra 	$L__BB0_2;
	st.global.u32 	[%rd1], %r2;    // what the step before has set
$L__BB0_2:
	add.s32 	%r2, %r1, 1;
	mov.u32 	%r1, %r2;
	setp.lt.s32 	%p2, %r1, 9;
	@%p2 bra 	$L__BB0_1;
	ret;
}
"""


@pytest.mark.parametrize("text, registers", [
    (LOOP, [Unwritten("%r2", "st.global.u32 [%rd1], %r2", "$L__BB0_1")]),
    (LOOP.replace("mov.u32 	%r1, 0;", "mov.u32 	%r1, 0;\n	mov.u32 	%r2, 0;"), []),
    (BODY + "@%p1 mov.u32 %r1, 1;\nst.global.u32 [%rd1], {%r1, %r1};\nret;\n}",
     [Unwritten("%p1", "@%p1 mov.u32 %r1, 1", ""), Unwritten("%r1", "@%p1 mov.u32 %r1, 1", "")]),
    (BODY + "mov.u32 %r1, 0;\nts: .branchtargets $L1, $L2;\nbrx.idx %r1, ts;\n$L1: mov.u32 %r2, 1;\n"
     "$L2: st.global.u32 [%rd1+4], %r2;\nexit;\n}", [Unwritten("%r2", "st.global.u32 [%rd1+4], %r2", "")]),
    (BODY + "{ .reg .pred done; .reg .b32 own, all; mov.u32 own, 1; setp.ne.u32 done, all, own; }\nret;\n}",
     [Unwritten("all", "setp.ne.u32 done, all, own", "")]),
    (BODY + "{ .param .b64 param0; st.param.b64 [param0+0], %rd1; call.uni (retval0), f, (param0); }\nret;\n}", []),
    (BODY + "shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;\nret;\n}",
     [Unwritten("%r2", "shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1", "")]),
    *((BODY + f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f1, %f2}}, %rd1, %rd1, {add}, 1, 1;\nret;\n}}",
       [Unwritten(r, f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{%f1, %f2}}, %rd1, %rd1, {add}, 1, 1", "")
        for r in own]) for add, own in (("0", []), ("1", ["%f1", "%f2"])))])
def test_reader(text, registers):
    assert unwritten(text) == {"k": registers}


def test_what_the_reader_does_not_know():
    with pytest.raises(ValueError, match="unknown PTX instruction: frob.u32 %r1, %r2"):
        unwritten(BODY + "frob.u32 %r1, %r2;\n}")
