"""Planted faults: what is wrong in a kernel is found by the emulation, each in CUDA C that hloc really emits.

A barrier taken away, an element too many, a pitch that breaks alignment, memory read before it is written, more threads
than the launch bounds allow: each must be told, and the unchanged kernels must run without a word.
"""
from __future__ import annotations

import dataclasses
import gc
import re
import shutil
import weakref

import numpy as np
import pytest
from cuda_emulation import driver
from cuda_emulation.cases import backend_of

from hloc import api
from hloc.errors import RunError
from hloc.inputs import check_arrays
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")

H100 = GPUS["h100"]
ADD = "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }\n"
LESS = "less { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = pred[] compare(a, b), direction=LT }\n"
MODULES = {
    "softmax": f"""HloModule softmax
{ADD}{ADD.replace("add", "maximum")}
ENTRY e {{
  x = f32[3,1500] parameter(0)
  low = f32[] constant(-inf)
  m = f32[3] reduce(x, low), dimensions={{1}}, to_apply=maximum
  mb = f32[3,1500] broadcast(m), dimensions={{0}}
  d = f32[3,1500] subtract(x, mb)
  e = f32[3,1500] exponential(d)
  z = f32[] constant(0)
  s = f32[3] reduce(e, z), dimensions={{1}}, to_apply=add
  sb = f32[3,1500] broadcast(s), dimensions={{0}}
  ROOT q = f32[3,1500] divide(e, sb)
}}
""",
    "product": """HloModule product
ENTRY e {
  a = f32[70,50] parameter(0)
  b = f32[50,66] parameter(1)
  ROOT d = f32[70,66] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""",
    "half": """HloModule half
ENTRY e {
  a = bf16[70,96] parameter(0)
  b = bf16[96,66] parameter(1)
  ROOT d = bf16[70,66] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""",
    "pipeline": """HloModule pipeline
ENTRY e {
  a = bf16[70,448] parameter(0)
  b = bf16[448,64] parameter(1)
  ROOT d = bf16[70,64] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
""",
    "sort": f"""HloModule sort
{LESS}ENTRY e {{ x = f32[2,700] parameter(0)  ROOT s = f32[2,700] sort(x), dimensions={{1}}, to_apply=less }}
""",
    "fft": "HloModule fft\nENTRY e { x = c64[2,96] parameter(0)  ROOT f = c64[2,96] fft(x), fft_type=FFT, fft_length={96} }\n",
    "sums": f"""HloModule sums
{ADD}ENTRY e {{ x = f32[9000,64] parameter(0)  z = f32[] constant(0)
  ROOT s = f32[64] reduce(x, z), dimensions={{0}}, to_apply=add }}
""",
    "row": f"""HloModule row
{ADD}ENTRY e {{ x = f32[2,40000] parameter(0)  z = f32[] constant(0)
  ROOT s = f32[2] reduce(x, z), dimensions={{1}}, to_apply=add }}
""",
    "few": """HloModule few
ENTRY e { x = f32[2,3000] parameter(0)  ROOT t = (f32[2,3], s32[2,3]) topk(x), k=3, largest=true }
""",
    "pointwise": "HloModule p\nENTRY e { x = f32[1000] parameter(0)  ROOT t = f32[1000] negate(x) }\n",
}


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    driver.install(monkeypatch)


def sources_of(name: str):
    target = cuda_target(H100)
    return make_sources(api.plan(api.optimize(api.load(MODULES[name]), target), target), H100)


def run(sources, text: str) -> None:
    """The program under the checker, on random inputs."""
    random = np.random.default_rng(0)
    arrays = [random.normal(size=v.shape.dimensions).astype("complex64" if v.shape.element_type == "c64" else "f4")
              for v in sources.program.parameters]
    if any(v.shape.element_type == "bf16" for v in sources.program.parameters):
        import ml_dtypes
        arrays = [a.astype(ml_dtypes.bfloat16) for a in arrays]
    backend = backend_of(sources, image=driver.build_text(text, checked=True))
    try:
        backend(check_arrays(sources.program.parameters, arrays))
    finally:
        backend.close()


def changed(text: str, old: str, new: str, number: int = 0) -> str:
    """The text with one occurrence replaced; there must be one."""
    places = [m.start() for m in re.finditer(re.escape(old), text)]
    assert len(places) > number, f"{old!r} is not in the source"
    return text[:places[number]] + new + text[places[number] + len(old):]


@pytest.mark.parametrize("name", MODULES)
def test_kernels_without_a_fault(name):
    sources = sources_of(name)
    run(sources, driver.text_of(sources))


BARRIERS = [
    ("softmax", "__syncthreads(); /* the last total has been read */"),
    ("softmax", "if (threadIdx.x % 32 == 0) totals[threadIdx.x / 32] = value;\n  __syncthreads();"),
    ("product", "__syncthreads(); /* all have read the last tile */\n      a_stage.template put<1, A_PITCH>("),
    ("product", "b_stage.template put<1, B_PITCH>(b_tile, k0, hloc_same<T>());\n      __syncthreads();"),
    ("half", "__syncthreads(); /* all have read the last tile */\n      a_stage.template put<PITCH, 1>("),
    ("half", "b_stage.template put<PITCH, 1>(b_tile, k0, [](T x) { return Numbers::rhs(x); });\n      __syncthreads();"),
    ("pipeline", "__syncthreads(); /* this step has arrived, and all have read the last one */"),
    ("pipeline", "__syncthreads(); /* all have read the last step */"),
    ("sort", "__syncthreads();\n      for (int t = threadIdx.x; t < COUNT / 2"),
    ("sort", "  __syncthreads();\n}"),
    ("few", "__syncthreads(); /* the lists of this round are there */"),
    ("fft", "first[i] = load(line, i);\n    __syncthreads();"),
]


@pytest.mark.parametrize("name, place", BARRIERS, ids=lambda v: re.sub(r"\W+", "_", v)[:40])
def test_missing_barrier(name, place):
    sources = sources_of(name)
    text = changed(driver.text_of(sources), place, place.replace("__syncthreads();", ""))
    with pytest.raises(RunError, match="thread"):
        run(sources, text)


def test_memory_of_others_is_freed_after_a_launch(monkeypatch):
    """Of programs that nobody has any more. If it were freed once the checker knows it, the emulation would be given it
    for its own threads, whose accesses the checker would then tell."""
    tell, freed = driver.Function._tell, []

    def tell_and_collect(*arguments):
        for size in (1 << n for n in range(14, 20)):
            garbage = driver.Allocation(size)
            garbage.itself = garbage
            weakref.finalize(garbage, freed.append, size)
        del garbage
        kept = tell(*arguments)
        gc.collect()
        assert not freed
        return kept
    monkeypatch.setattr(driver.Function, "_tell", tell_and_collect)
    sources = sources_of("few")
    gc.disable()
    try:
        run(sources, driver.text_of(sources))
    finally:
        gc.enable()
    gc.collect()
    assert len(freed) >= 6


def test_divergent_barrier():
    sources = sources_of("product")
    text = changed(driver.text_of(sources), "__syncthreads(); /* all have read the last tile */",
                   "if (threadIdx.x < 100) __syncthreads();")
    with pytest.raises(RunError, match="some threads never reach|thread"):
        run(sources, text)


def test_out_of_bounds():
    sources = sources_of("pointwise")
    text = changed(driver.text_of(sources), "< 1000;", "< 1001;")
    with pytest.raises(RunError, match="read outside of memory: thread 232 of block 3, 4 bytes at byte 4000 of argument 0") as caught:
        run(sources, text)
    assert "negate" in caught.value.message and "stopped in kernel k0" in caught.value.message


def test_misaligned_vector_access():
    sources = sources_of("product")
    text = changed(driver.text_of(sources), "A_PITCH = S::BM + V", "A_PITCH = S::BM + 1")
    with pytest.raises(RunError, match="misaligned access"):
        run(sources, text)


@pytest.mark.parametrize("place, wrong", [("hloc_copy_wait<S::STAGES - 2>();", "hloc_copy_wait<S::STAGES - 1>();"),
                                          ("hloc_copy_wait<S::STAGES - 2>();", ""),
                                          ("    hloc_copy_commit();\n    fetch(", "    fetch(")])
def test_copies_that_nobody_waits_for(place, wrong):
    """What is on its way has no value yet."""
    sources = sources_of("pipeline")
    with pytest.raises(RunError, match="nothing has written.*shared"):
        run(sources, changed(driver.text_of(sources), place, wrong))


def test_copies_into_memory_that_is_still_read():
    """A step copied where others still read the one before."""
    sources = sources_of("pipeline")
    text = changed(driver.text_of(sources), "a.copy(tile(step), ", "a.copy(tile(step % (S::STAGES - 1)), ")
    with pytest.raises(RunError, match="thread|nothing has written"):
        run(sources, text)


def test_too_much_shared_memory():
    sources = sources_of("pipeline")
    start = sources.geometry[0]
    wrong = dataclasses.replace(sources, geometry=(start._replace(shared=240 << 10),))
    with pytest.raises(RunError, match="invalid argument"):
        run(wrong, driver.text_of(wrong))


@pytest.mark.parametrize("name, place", [("product", "a_stage.template put<1, A_PITCH>(a_tile, k0, hloc_same<T>());"),
                                         ("half", "b_stage.template put<PITCH, 1>(b_tile, k0, "
                                                  "[](T x) { return Numbers::rhs(x); });"),
                                         ("pipeline", "b.copy(tile(step) + Left::BYTES, (long)step * S::BK);"),
                                         ("softmax", "totals[threadIdx.x / 32] = value;")])
def test_shared_memory_read_before_it_is_written(name, place):
    sources = sources_of(name)
    with pytest.raises(RunError, match="nothing has written.*shared"):
        run(sources, changed(driver.text_of(sources), place, ";"))


def test_arena_read_before_it_is_written():
    """A step left out: its reader finds memory that has no value."""
    target = cuda_target(H100)
    text = MODULES["product"].replace("ROOT d", "d").replace("\n}\n", "\n  ROOT s = f32[66,66] dot(d, d), "
                                                             "lhs_contracting_dims={0}, rhs_contracting_dims={0}\n}\n")
    program = api.plan(api.optimize(api.load(text), target), target)
    sources = make_sources(program._replace(steps=program.steps[1:]), H100)
    with pytest.raises(RunError, match="nothing has written.*device memory"):
        run(sources, driver.text_of(sources))


ARRIVE = "  __threadfence();\n  const unsigned before = atomicInc(arrived, count - 1);\n  __threadfence();\n"


@pytest.mark.parametrize("name", ["sums", "row", "few"])
@pytest.mark.parametrize("old, new", [
    (ARRIVE, ARRIVE.replace("  __threadfence();\n", "", 1)), (ARRIVE, ARRIVE.removesuffix("  __threadfence();\n")),
    ("== count - 1);", "== count - 2);")],
    ids=["fence before", "fence after", "the last but one joins"])
def test_last_block(name, old, new):
    """What the last block reads was stored by others: fences and barriers hand it on, and all must have arrived."""
    sources = sources_of(name)
    assert "hloc_last_block" in driver.text_of(sources)
    with pytest.raises(RunError, match="thread|nothing has written"):
        run(sources, changed(driver.text_of(sources), old, new))


@pytest.mark.parametrize("old, new", [("__syncthreads();\n  return __syncthreads_or", "return __syncthreads_or"),
                                      ("__syncthreads_or(", "(")])
def test_last_block_without_its_barriers(old, new):
    """It arrives before all have stored; or only one thread learns that it is the last block."""
    sources = sources_of("sums")
    with pytest.raises(RunError, match="thread|nothing has written"):
        run(sources, changed(driver.text_of(sources), old, new))


def test_a_counter_that_is_not_reset():
    sources = sources_of("sums")
    text = changed(driver.text_of(sources), "atomicInc(arrived, count - 1)", "atomicInc(arrived, 0xffffffffu)")
    with pytest.raises(RunError, match="a counter is [0-9]+ at the end of the launch, not zero"):
        run(sources, text)


def test_launch_bounds():
    sources = sources_of("product")
    start = sources.geometry[0]
    wrong = dataclasses.replace(sources, geometry=(start._replace(block=(start.block[0] * 2, 1, 1)),))
    with pytest.raises(RunError, match="512 threads in a block, its __launch_bounds__ are 256"):
        run(wrong, driver.text_of(wrong))
