"""What kernels take of an SM, as ptxas tells it: nothing spills where it need not, and every kernel can start."""
from __future__ import annotations

from pathlib import Path

import pytest
from cuda_emulation.cases import program_of
from kernel_harness import collect
from test_cuda_kernels import DATA, SEPARATOR

from hloc import api
from hloc.kernels.ir import Tile
from hloc.targets.cuda.compiler import compiler_version
from hloc.targets.cuda.costs.loop_choice import chosen_form
from hloc.targets.cuda.costs.loop_work import loop_work
from hloc.targets.cuda.gpus import FACTS, GPUS, gpu_named
from hloc.targets.cuda.resources import Resources, resources
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target
from hloc.targets.inlining import c_name

pytestmark = pytest.mark.skipif(compiler_version() == 0, reason="neither NVRTC nor nvcc is installed")

LOOPS = ("kernels/loop", "kernels/reduce", "kernels/rows", "kernels/window", "kernels/indexing", "cuda/teams",
         "cuda/cache_read", "cuda/joined_sums", "cuda/places", "cuda/scans")
ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120a")
MODELS = ("digits", "bf16", "cumsum", "control_flow")
LONG = ("resnet50_train",)   # minutes of ptxas; resnet_reduced_train has the same kinds of kernels
WHOLE = sorted(p.parent.name for p in DATA.glob("models/*/model.hlo") if p.parent.name not in LONG)
REGISTERS, STATIC_SHARED = 65536, 48 << 10


def loop_kernels(path: Path, gpu):
    """The pointwise, reduction and row-wise kernels of a file."""
    texts = SEPARATOR.split(path.read_text(encoding="utf-8"))
    cases = [c for n, text in enumerate(texts) for c in collect(text, f"{path.stem}#{n}", machine=gpu)
             if not any(isinstance(call.kernel, Tile) for call in c.lowered.calls)]
    return make_sources(program_of(cases), gpu)


def model_sources(name: str, gpu):
    """The plan of a model for a GPU, and its CUDA C."""
    target = cuda_target(gpu)
    program = api.plan(api.optimize(api.load(DATA / "models" / name / "model.hlo"), target), target)
    return program, make_sources(program, gpu)


def check_starts(sources, found: dict[str, Resources]) -> None:
    """Registers and shared memory of a block are there."""
    assert found.keys() == {g.function for g in sources.geometry}
    for start in sources.geometry:
        needs = found[start.function]
        assert needs.registers * start.block[0] <= REGISTERS, start
        assert needs.shared <= STATIC_SHARED, start


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", LOOPS)
def test_no_spills(name, arch):
    sources = loop_kernels(DATA / f"{name}.hlo", gpu_named(arch))
    found = resources(sources.single_file(), arch)
    check_starts(sources, found)
    assert {k: r for k, r in found.items() if r.spill_stores or r.spill_loads} == {}


def test_spills_are_told():
    """The reader of ptxas's words: a kernel that must spill, one with shared memory."""
    spilling = ('extern "C" __global__ void __maxnreg__(24) spill(float *a) { float v[64];\n#pragma unroll\n'
                'for (int i = 0; i < 64; i++) v[i] = a[i * 7];\n__syncthreads();\n#pragma unroll\n'
                'for (int i = 0; i < 64; i++) a[i] = v[i] * v[63 - i]; }\n')
    sharing = ('extern "C" __global__ void share(float *a) { __shared__ float s[256]; s[threadIdx.x] = a[threadIdx.x];\n'
               '__syncthreads(); a[threadIdx.x] = s[255 - threadIdx.x]; }\n')
    found = resources(spilling + sharing, "sm_90a")
    assert found["spill"].spill_stores > 0 and found["spill"].spill_loads > 0 and found["spill"].registers <= 24
    assert found["share"].shared == 1024 and found["share"].spill_stores == 0


@pytest.mark.parametrize("arch", [a for a in ARCHITECTURES if a != "sm_90a"])
@pytest.mark.parametrize("name", MODELS)
def test_models_for_every_architecture(name, arch):
    """And for sm_90a all models: test_every_kernel_of_every_model."""
    _, sources = model_sources(name, gpu_named(arch))
    check_starts(sources, resources(sources.single_file(), arch))


@pytest.mark.parametrize("name", WHOLE)
def test_every_kernel_of_every_model(name):
    """On an H200: all of them compile and can start, and those that are not library kernels do not spill."""
    program, sources = model_sources(name, gpu_named("h200"))
    found = resources(sources.single_file(), "sm_90a")
    check_starts(sources, found)
    loops = [c_name(n, kernel.name) for n, kernel in enumerate(program.kernels) if not isinstance(kernel, Tile)]
    assert {k: found[k] for k in loops if found[k].spill_stores or found[k].spill_loads} == {}


@pytest.mark.parametrize("threads", [256, 512, 1024])
def test_registers_of_kept_arrays_are_foreseen(threads):
    """Of a softmax whose rows are kept: 64, 32 and 16 registers of a lane's part of two arrays, some of them reused."""
    h200, text = GPUS["h200"], """a { p = f32[] parameter(0)  q = f32[] parameter(1)  ROOT s = f32[] add(p, q) }
m { p = f32[] parameter(0)  q = f32[] parameter(1)  ROOT s = f32[] maximum(p, q) }
ENTRY e { x = f32[4096,8192] parameter(0)  zero = f32[] constant(0)  low = f32[] constant(-inf)
  most = f32[4096] reduce(x, low), dimensions={1}, to_apply=m  all = f32[4096,8192] broadcast(most), dimensions={0}
  less = f32[4096,8192] subtract(x, all)  e = f32[4096,8192] exponential(less)
  sum = f32[4096] reduce(e, zero), dimensions={1}, to_apply=a  sums = f32[4096,8192] broadcast(sum), dimensions={0}
  ROOT o = f32[4096,8192] divide(e, sums) }"""
    target = cuda_target(h200)
    program = api.plan(api.optimize(api.load(text), target), target)
    schedule = f"bind(i0,block) threads({threads}) cache_read(in0) split(row,4) vectorize(rowi,4) bind(rowo,lane)"
    (kernel,), sources = program.kernels, make_sources(program, h200, [schedule])
    (took,) = resources(sources.single_file(), h200.arch).values()
    assert took.spill_stores == 0
    assert loop_work(chosen_form(kernel, h200, schedule), h200).registers == pytest.approx(took.registers, rel=0.3)


def test_occupancy():
    facts = FACTS["h100"]
    full = Resources(32, 0, 0, 0, 0)
    assert full.blocks_per_sm(256, facts["registers"], facts["threads"], facts["shared_kib"] << 10) == 8
    assert Resources(255, 0, 0, 0, 0).blocks_per_sm(256, 65536, 2048, 227 << 10) == 1
    assert Resources(32, 100 << 10, 0, 0, 0).blocks_per_sm(128, 65536, 2048, 227 << 10) == 2


def test_facts_of_gpus():
    """What the data file says is there for each, and fits together."""
    assert {g.arch for g in GPUS.values()} == set(ARCHITECTURES)
    for name, facts in FACTS.items():
        gpu = GPUS[name]
        assert gpu.shared_bytes <= gpu.l1_bytes and gpu.bandwidth > 1e11 and facts["threads"] in (1536, 2048)
        assert gpu_named(gpu.arch).arch == gpu.arch
        assert gpu_named(gpu.arch.rstrip("a")).arch == (gpu.arch if gpu.arch != "sm_90a" else "sm_90")
