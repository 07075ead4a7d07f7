"""What surrounds the kernels of a CPU program: memory, calls, and what is said before a run."""
import gc
import os
import subprocess
import sys
import threading
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hloc
from hloc.analysis.packing import ALIGNMENT
from hloc.api import optimize, plan
from hloc.errors import RunError
from hloc.inputs import zero_arrays
from hloc.kernels.buffer_assignment import BufferAssignment, Home
from hloc.kernels.memory import MemoryUse, memory_use
from hloc.targets import find
from hloc.targets.c_function import c_function
from hloc.targets.cpu.building.unit_costs import kernel_cost
from hloc.targets.cpu.execution.result_memory import KEPT, SMALL_BYTES, ResultMemory
from hloc.targets.cpu.program.sources import make_sources
from hloc.targets.printer import C, StatementPrinter, comment

DATA = Path(__file__).parent.parent / "testdata" / "runtime"


def compiled(text: str, **options):
    return hloc.compile(text, target="cpu", **options)


DOUBLE = "HloModule double\nENTRY e {\n  x = f32[%d] parameter(0)\n  ROOT y = f32[%d] add(x, x)\n}\n"


def test_kernels_are_dealt_out_to_the_cores():
    """Each kernel stands in one unit; a program of one kernel, and any on a machine of one core, in as few as may be."""
    lines = [f"  in{n} = f32[{n + 3}] parameter({n})\n  y{n} = f32[] reduce(in{n}, zero), dimensions={{0}}, to_apply=fun{n % 3}"
             for n in range(24)]
    functions = [f"fun{n} {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] {op}(a, b) }}"
                 for n, op in enumerate(("add", "maximum", "multiply"))]
    text = "HloModule many\n" + "\n".join(functions) + "\nENTRY e {\n  zero = f32[] constant(0)\n" + "\n".join(lines) \
        + f"\n  ROOT t = tuple({', '.join(f'y{n}' for n in range(24))})\n}}\n"
    for module, several in ((hloc.load(text), True), (hloc.load(DOUBLE % (8, 8)), False)):
        target = find("cpu")
        sources = make_sources(plan(optimize(module, target), target), target.machine)
        kernels = [[k.name for k in sources.kernels if k.text in unit] for unit, *_ in sources.units(4)]
        assert sorted(sum(kernels, [])) == sorted(k.name for k in sources.kernels)
        assert (len([k for k in kernels if k]) > 1) is several
        assert len(sources.units(1)) <= len(sources.units(4))


# -- buffer assignment ------------------------------------------------------------------------------------------------

lives = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 30), st.integers(0, 12)), max_size=60)


@pytest.mark.parametrize("limit", [0, 100])
@given(lives=lives, joins=st.lists(st.tuples(st.integers(0, 59), st.integers(0, 59)), max_size=10))
@settings(max_examples=200, deadline=None)
def test_live_values_do_not_overlap(limit, lives, joins):
    """By both ways of packing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hloc.kernels.buffer_assignment.MOST_BY_SIZE", limit)
        check_packing(lives, joins)



def test_what_is_inlined_counts_more_than_what_is_written():
    def cost(text: str, call: str = "", headers: Sequence[str] = (), origin: Sequence[str] = (),
             vectors: Sequence[str] = ()) -> float:
        printer = StatementPrinter(C, calls=Counter([call]))
        return kernel_cost(c_function("k", [*vectors, *comment(origin), text], printer, headers=headers, origin=origin,
                                      vectors=vectors))
    long = "void k(void) {\n" + "  x = x + 1.0f;\n" * 20 + "}\n"
    assert cost("void k(void) { y = hloc_tan_c64(x); }", "tan_c64") > cost(long) > cost("void k(void) {}")
    assert cost(long, origin=["made of exp, exp, exp"]) == cost(long)
    assert cost(long, vectors=["hloc_f32x16 hlocv_splat_f32_f32x16(hloc_f32 a) {", "}"]) == cost(long)
    assert cost("y = hloc_add_c64(x, x);", "add_c64") < cost("y = hloc_power_c64(x, x);", "power_c64")
    assert cost('#include "sort.h"\n' + long, headers=["sort.h"]) > 2 * cost(long)


def check_packing(lives: list[tuple[int, int, int]], joins: list[tuple[int, int]]) -> None:
    assignment = BufferAssignment()
    values = []
    for size, start, length in lives:
        value = assignment.new(size)
        assignment.define(value, start)
        assignment.use(value, start + length)
        values.append(value)
    for a, b in joins:
        if max(a, b) < len(values):
            assignment.join(values[a], values[b])
    assignment.place()
    groups = list({id(assignment.root(v)): assignment.root(v) for v in values}.values())
    for i, a in enumerate(groups):
        assert a.offset % 64 == 0 and a.offset + a.size <= assignment.arena_size
        for b in groups[:i]:
            apart = a.last < b.first or b.last < a.first
            assert apart or a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
    for value in values:
        assert assignment.ref(value).offset == assignment.root(value).offset


def test_results_lend_their_memory_until_they_are_written():
    """Random lives: what is alive at once is apart, in the arena and in each result; a result is whole once written."""
    rng, lent = np.random.default_rng(3), 0
    for _ in range(40):
        assignment, values = BufferAssignment(), []
        for number in range(int(rng.integers(1, 5))):
            result = assignment.new(int(rng.integers(1, 6)) << 16, Home("result", number))
            assignment.define(result, int(rng.integers(1, 60)))
            assignment.use(result, 60)
        for _ in range(40):
            value = assignment.new(int(rng.integers(1, 40)) << int(rng.integers(6, 14)))
            assignment.define(value, start := int(rng.integers(0, 50)))
            assignment.use(value, start + int(rng.integers(0, 9)))
            values.append(value)
        values[0].stays = True
        assignment.place()
        refs = [assignment.ref(value) for value in assignment.values]
        lent += sum(value.lent is not None for value in values)
        assert values[0].lent is None
        for n, (a, value) in enumerate(zip(refs, assignment.values)):
            room = assignment.arena_size if a.region == "arena" else assignment.values[a.index].size
            assert a.offset % ALIGNMENT == 0 and a.offset + a.size <= room
            for b, other in zip(refs[:n], assignment.values):
                same = (a.region, a.index) == (b.region, b.index)
                apart = value.last < other.first or other.last < value.first
                assert not same or apart or a.offset + a.size <= b.offset or b.offset + b.size <= a.offset
    assert lent > 100


def test_arena_is_no_larger_than_what_lives_at_once_in_a_chain():
    """Each value is read once by the next: two buffers do."""
    assignment = BufferAssignment()
    for time in range(50):
        value = assignment.new(6400)
        assignment.define(value, time)
        assignment.use(value, time + 1)
    assignment.place()
    assert assignment.arena_size == 2 * 6400


def test_donated_parameters_stay_as_they_are():
    exe = hloc.compile(DATA / "donated.hlo", target="cpu")
    x, z = np.arange(8, dtype=np.float32), np.arange(8, dtype=np.float32)
    doubled, updated = exe(x, z, np.int32(0))
    np.testing.assert_array_equal(doubled, 32 * np.arange(8))
    np.testing.assert_array_equal(updated, [0, 1, 7, 3, 4, 5, 6, 7])
    np.testing.assert_array_equal(x, np.arange(8))
    np.testing.assert_array_equal(z, np.arange(8))


# -- result arrays ----------------------------------------------------------------------------------------------------

def block_of(array: np.ndarray) -> int:
    return array.ctypes.data


def test_result_memory_is_used_again_when_nobody_holds_it():
    memory = ResultMemory([((SMALL_BYTES,), np.dtype(np.float32))])
    (array,), (other,) = memory.arrays(), memory.arrays()
    first, second = block_of(array), block_of(other)
    assert first != second and first % 64 == 0
    del other
    view = array[10:20].reshape(2, 5).T
    del array
    assert block_of(memory.arrays()[0]) == second           # the view still holds the first
    buffer = memoryview(view.T)
    del view
    assert block_of(memory.arrays()[0]) == second
    del buffer
    assert [block_of(a) for a in [memory.arrays()[0], memory.arrays()[0]]] == [first, second]


def test_the_oldest_result_memory_is_forgotten_where_all_is_held():
    memory = ResultMemory([((SMALL_BYTES,), np.dtype(np.float32))])
    held = [memory.arrays()[0] for _ in range(KEPT + 1)]
    kept = [block_of(a) for a in held[1:]]
    oldest = held[0]
    del held
    assert [block_of(a) for a in [memory.arrays()[0] for _ in range(KEPT)]] == kept
    assert block_of(oldest) not in kept


def test_results_that_are_kept_keep_their_values():
    exe = compiled(DOUBLE % (SMALL_BYTES, SMALL_BYTES))
    inputs = [np.full(SMALL_BYTES, i, np.float32) for i in range(4 * KEPT)]
    results = [exe(x)[0] for x in inputs]
    assert all((r == 2 * i).all() for i, r in enumerate(results))
    results[0].shape = (2, -1)
    results[0].flags.writeable = False
    del results
    fresh = [exe(x)[0] for x in inputs]
    assert all(r.shape == (SMALL_BYTES,) and r.flags.writeable and (r == 2 * i).all() for i, r in enumerate(fresh))


@pytest.mark.parametrize("size", [6, SMALL_BYTES], ids=["small", "large"])
def test_results_are_given_out_again_when_nobody_holds_them(size):
    """Not those that somebody can still see, be it through a view, a buffer or a weak reference, or has changed."""
    exe = compiled(DOUBLE % (size, size))
    x = np.ones(size, np.float32)

    def address(result: np.ndarray) -> int:
        return result.ctypes.data

    def is_given_out_again(hold: Callable[[np.ndarray], object]) -> bool:
        result = exe(x)[0]
        place, alive = address(result), [hold(result)]
        del result
        later = [exe(x)[0] for _ in range(2 * KEPT)]
        alive.clear()
        return place in map(address, later)

    assert is_given_out_again(lambda result: None)
    assert not any(map(is_given_out_again, (lambda r: r, lambda r: r[1:], memoryview)))
    result = exe(x)[0]
    seen = weakref.ref(result)
    del result
    later = [exe(x) for _ in range(2 * KEPT)]
    assert all(seen() is not r for (r,) in later)
    del later
    result = exe(x)[0]
    result.shape, result.flags.writeable = (2, size // 2), False
    del result
    assert all(r.shape == (size,) and r.flags.writeable for (r,) in [exe(x) for _ in range(2 * KEPT)])


def test_results_that_could_not_be_made(monkeypatch):
    """C forgets those of earlier calls before they are given up for them."""
    exe = compiled(DOUBLE % (6, 6))
    x = np.ones(6, np.float32)
    held = [exe(x) for _ in range(KEPT)]
    with monkeypatch.context() as patch:
        patch.setattr(exe.backend._memory, "arrays", lambda: np.empty(1 << 62, np.uint8))
        with pytest.raises((MemoryError, ValueError)):
            exe(x)
    del held
    assert exe.backend._caller.count == 0
    assert (exe(x)[0] == 2).all()


@pytest.mark.parametrize("size", [6, SMALL_BYTES])
def test_a_result_as_the_next_input(size):
    exe = compiled(DOUBLE % (size, size))
    x = np.ones(size, np.float32)
    for _ in range(10):
        (x,) = exe(x)
    assert (x == 1024).all()


# -- calls ------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("array", [
    np.arange(4, dtype=np.float32), np.arange(4, dtype=np.float32).repeat(2)[::2],
    np.arange(3, -1, -1, dtype=np.float32)[::-1],
    np.arange(4, dtype=np.float32).astype(">f4").astype("<f4"), [0.0, 1.0, 2.0, 3.0],
    np.frombuffer(b"\0" + np.arange(4, dtype=np.float32).tobytes(), np.uint8)[1:].view(np.float32),
], ids=["plain", "strided", "reversed", "swapped", "list", "misaligned"])
def test_arrays_of_all_layouts(array):
    (result,) = compiled(DOUBLE % (4, 4))(array)
    np.testing.assert_array_equal(result, [0, 2, 4, 6])


@pytest.mark.parametrize("array", [
    np.zeros(5, np.float32), np.zeros(4), np.zeros((4, 1), np.float32), np.zeros(4, ">f4"),
], ids=["size", "type", "rank", "byte order"])
def test_wrong_arrays_are_named(array):
    with pytest.raises(RunError, match=r"input 0 \(x\) must be f32\[4\]"):
        compiled(DOUBLE % (4, 4))(array)


@pytest.mark.parametrize("count", [0, 2])
def test_wrong_number_of_arrays(count):
    with pytest.raises(RunError, match="takes 1 input"):
        compiled(DOUBLE % (4, 4))(*[np.zeros(4, np.float32)] * count)


TINY = """HloModule tiny
ENTRY e {
  x = f32[%d] parameter(0)
  half = f32[] constant(0.5)
  halves = f32[%d] broadcast(half), dimensions={}
  ROOT y = f32[%d] multiply(x, halves)
}
"""


@pytest.mark.parametrize("size", [5, 1 << 20])
def test_subnormal_numbers_count_as_zero_in_a_run_and_not_after_it(size):
    """On one thread and on several; as in XLA on CPUs."""
    smallest = np.finfo(np.float32).tiny
    assert not compiled(TINY % (size, size, size))(np.full(size, smallest, np.float32))[0].any()
    assert smallest * np.float32(0.5) > 0


def test_python_functions_see_subnormal_numbers():
    seen = []

    def function(x):
        seen.append(x * np.float32(0.5))
        return x

    text = ('HloModule m\nENTRY e {\n  x = f32[2] parameter(0)\n  c = f32[2] custom-call(x), custom_call_target="f"\n'
            '  ROOT y = f32[2] add(c, c)\n}\n')
    smallest = np.full(2, np.finfo(np.float32).tiny, np.float32)
    compiled(text, options=hloc.Options(custom_calls={"f": function}))(smallest)
    assert (seen[0] > 0).all()


def updates(count: int, chained: bool) -> str:
    """Cosines of small arrays; chained: each needs the largest of those before it."""
    lines, value = [], "x0"
    for i in range(count):
        lines.append(f"  x{i} = f32[{3000 + 8 * i}] parameter({i})")
    for i in range(count):
        n = 3000 + 8 * i
        source = f"x{i}"
        if chained and i:
            lines.append(f"  sum{i} = f32[] reduce({value}, zero), dimensions={{0}}, to_apply=larger")
            lines.append(f"  b{i} = f32[{n}] broadcast(sum{i}), dimensions={{}}")
            lines.append(f"  c{i} = f32[{n}] add(x{i}, b{i})")
            source = f"c{i}"
        lines.append(f"  e{i} = f32[{n}] cosine({source})")
        value = f"e{i}"
    types = ", ".join(f"f32[{3000 + 8 * i}]" for i in range(count))
    values = ", ".join(f"e{i}" for i in range(count))
    return ("HloModule updates\nlarger {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] maximum(a, b)"
            "\n}\nENTRY e {\n  zero = f32[] constant(0)\n" + "\n".join(lines)
            + f"\n  ROOT r = ({types}) tuple({values})\n}}\n")


@pytest.mark.parametrize("chained", [False, True])
def test_small_kernels_run_side_by_side_where_none_needs_another(chained, monkeypatch):
    monkeypatch.setattr("hloc.targets.cpu.program.grain.SMALLEST_PIECE_SECONDS", 2e-6)
    text = updates(30, chained)
    options = hloc.Options(passes={"fusion": "off"})
    program = compiled(text, options=options)
    arrays = [np.linspace(0, 3, 3000 + 8 * i, dtype=np.float32) for i in range(30)]
    assert ("hloc_launch_concurrently(" in program.source) == (not chained)
    expected = hloc.compile(text, target="reference")(*arrays)
    for got, want in zip(program(*arrays), expected):
        np.testing.assert_allclose(got, want, atol=1e-4)


LOOP = """HloModule steps
next {{ p = (s32[], f32[16,{n}], f32[{n},{n}]) parameter(0)  i = s32[] get-tuple-element(p), index=0
  h = f32[16,{n}] get-tuple-element(p), index=1  w = f32[{n},{n}] get-tuple-element(p), index=2
  d = f32[16,{n}] dot(h, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}  t = f32[16,{n}] tanh(d)
  one = s32[] constant(1)  j = s32[] add(i, one)  ROOT r = (s32[], f32[16,{n}], f32[{n},{n}]) tuple(j, t, w) }}
more {{ p = (s32[], f32[16,{n}], f32[{n},{n}]) parameter(0)  i = s32[] get-tuple-element(p), index=0
  last = s32[] constant(30)  ROOT c = pred[] compare(i, last), direction=LT }}
ENTRY e {{ h = f32[16,{n}] parameter(0)  w = f32[{n},{n}] parameter(1)  zero = s32[] constant(0)
  s = (s32[], f32[16,{n}], f32[{n},{n}]) tuple(zero, h, w)
  l = (s32[], f32[16,{n}], f32[{n},{n}]) while(s), condition=more, body=next  ROOT r = f32[16,{n}] get-tuple-element(l), index=1 }}
"""


@pytest.mark.parametrize("size, divided", [(4, False), (128, True)])
def test_threads_are_awake_in_loops_that_divide_their_steps(size, divided, monkeypatch):
    """Wakes the threads before the loop; steps so small that one thread does them all leave the others asleep."""
    monkeypatch.setenv("HLOC_THREADS", "3")
    program = compiled(LOOP.format(n=size))
    assert ("hloc_pool_rouse();" in program.source.partition("hloc_execute(")[2]) == divided
    arrays = [np.linspace(-1, 1, 16 * size, dtype=np.float32).reshape(16, size), np.eye(size, dtype=np.float32)]
    expected = hloc.compile(LOOP.format(n=size), target="reference")(*arrays)
    np.testing.assert_allclose(program(*arrays)[0], expected[0], atol=1e-5)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system has no /proc/self/maps, which tells what a process has loaded")
def test_programs_share_their_threads_and_are_unloaded(monkeypatch):
    """The threads of the first program serve all; a program that nobody holds leaves the process."""
    def loaded() -> set[str]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {line.split(maxsplit=5)[-1] for line in lines if ".so" in line}         # also of files that are gone

    def call(size: int) -> hloc.Executable:
        text = f"""HloModule m
            ENTRY e {{ x = f32[{size},512] parameter(0)  y = f32[{size},512] multiply(x, x)
                       ROOT r = f32[{size},512] exponential(y) }}"""
        program = hloc.compile(text)
        x = np.linspace(0, 1, size * 512, dtype=np.float32).reshape(size, 512)
        np.testing.assert_allclose(program(x)[0], np.exp(x * x), rtol=1e-5)
        return program

    monkeypatch.setenv("HLOC_THREADS", "3")
    gc.collect()                                   # programs of other tests
    first = call(400)
    threads, libraries = len(os.listdir("/proc/self/task")), loaded()
    others = [call(size) for size in (401, 402, 403)]
    assert len(os.listdir("/proc/self/task")) == threads
    assert len(loaded() - libraries) == len(others)
    others.clear()
    gc.collect()
    assert loaded() == libraries
    first(np.zeros((400, 512), np.float32))


def test_memory_of_a_program_goes_at_once():
    """Without the garbage collector: an arena may be most of the machine's memory."""
    program = compiled(CHAIN)
    program(np.zeros((512, 512), np.float32))
    backend = weakref.ref(program.backend)
    gc.collect()
    gc.disable()
    try:
        del program
        assert backend() is None
    finally:
        gc.enable()


TRANSFORMS = """
import gc, os
from pathlib import Path
import numpy as np
import hloc

TEXT = '''ENTRY e {
  x = c64[BATCH,524288] parameter(0)
  ROOT r = c64[BATCH,524288] fft(x), fft_type=FFT, fft_length={524288} }'''

def held():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def transform(batch):
    program = hloc.compile(TEXT.replace("BATCH", str(batch)), target="cpu")
    assert not program(np.zeros((batch, 1 << 19), np.complex64))[0].any()
    return program

first = transform(3)        # its threads, and what is loaded only once, stay
for batch in (1, 2):
    transform(batch)
before = held()
program = transform(1)
print(held() - before)
del program
for batch in (1, 2) * 8:
    transform(batch)
    gc.collect()
print(held() - before)
"""


def test_a_program_has_its_own_number_of_threads(monkeypatch):
    """Others may have asked for more: its plan has memory for as many as it was compiled for."""
    def allocated(asked: int) -> int:
        monkeypatch.setenv("HLOC_THREADS", str(asked))
        program = compiled(f"""HloModule m
            ENTRY e {{ x = c64[{300 + asked},997] parameter(0)
                       ROOT r = c64[{300 + asked},997] fft(x), fft_type=FFT, fft_length={{997}} }}""")
        count = program.backend.shared_object.hloc_unplanned
        before = count()
        program(np.zeros((300 + asked, 997), np.complex64))
        return count() - before

    assert [allocated(asked) for asked in (3, 2, 1)] == [0] * 3


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system has no /proc/self/statm, which tells what a process holds")
def test_plans_of_transforms_go_with_their_program():
    """Each of these programs keeps its roots, 2 MiB and more, which nobody else can use.

    In a process of its own whose allocator gives every large block back at once: what it would keep for later, above all
    in a process that has run other tests, hides the plans.
    """
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    ran = subprocess.run([sys.executable, "-c", TRANSFORMS], env=environment, capture_output=True, text=True, timeout=300)
    assert not ran.returncode, ran.stderr
    of_one, of_seventeen_gone = map(int, ran.stdout.split())
    assert of_one > 2 << 20
    assert of_seventeen_gone < 2 * of_one, ran.stdout


@pytest.mark.parametrize("size, calls, held", [(SMALL_BYTES, 20, 0), (6, 3000, 0), (6, 3000, 3)])
def test_calls_from_several_threads(size, calls, held):
    """Each gets its own results, whether it holds some of earlier calls or not."""
    exe = compiled(DOUBLE % (size, size))
    failures = []

    def work(number: int) -> None:
        x = np.full(size, number, np.float32)
        results = []
        for _ in range(calls):
            results = [*results, exe(x)[0]][-1 - held:]
            if not all((r == 2 * number).all() for r in results):
                failures.append(number)
            del results[:len(results) - held]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_scalars_go_the_quick_way_as_arrays(monkeypatch):
    exe = compiled("HloModule m\nENTRY e { x = f32[] parameter(0)  ROOT y = f32[] add(x, x) }")
    slow = []
    monkeypatch.setattr(type(exe.backend), "__call__", lambda self, arrays: slow.append(arrays))
    for two in (2.0, np.float32(2), np.array(2, np.float32)):
        assert exe(two)[0] == 4
    assert not slow


def test_the_function_that_calls_outlives_its_executable():
    exe = compiled(DOUBLE % (6, 6))
    x = np.ones(6, np.float32)
    exe(x)
    quick = exe.backend.quick
    assert quick((x,))[0].tolist() == [2] * 6
    del exe
    gc.collect()
    assert quick((x,))[0].tolist() == [2] * 6


def test_errors_of_python_functions_reach_the_caller():
    """In the first call, in ones that take the results of earlier calls, and in those between."""
    def function(x):
        if x[0] < 0:
            raise ValueError(f"{x[0]} is below zero")
        return x + 1

    text = 'HloModule m\nENTRY e { x = f32[2] parameter(0)  ROOT r = f32[2] custom-call(x), custom_call_target="f" }\n'
    exe = compiled(text, options=hloc.Options(custom_calls={"f": function}))
    for _ in range(4):
        for number in (-3, -2):
            with pytest.raises(ValueError, match=f"{number}.0 is below zero"):
                exe(np.full(2, number, np.float32))
        assert exe(np.ones(2, np.float32))[0].tolist() == [2, 2]


# -- what is said of memory before a run -------------------------------------------------------------------------------

CHAIN = """HloModule chain
ENTRY e {
  x = f32[512,512] parameter(0)
  a = f32[512,512] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[512,512] dot(a, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[512,512] dot(b, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT d = f32[512,512] dot(c, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}
}
"""
MEGABYTE = 1 << 20


def use_of(text: str) -> MemoryUse:
    target = find("cpu")
    return memory_use(optimize(hloc.load(text), target), target.machine, target.workspace)


def test_memory_of_a_chain_of_products():
    use = use_of(CHAIN)
    assert (use.parameters, use.results, use.constants) == (MEGABYTE, MEGABYTE, 0)
    assert 0 < use.scratch < 2 * MEGABYTE and use.stacks % MEGABYTE == 0
    # a and b are read while c is made; one of them lies where d will be
    assert use.arena == use.live == 2 * MEGABYTE + use.scratch
    assert use.at.opcode == "dot" and use.at.span.source.position(use.at.span.start)[0] == 6
    assert [b.size for b in use.buffers if b.region in ("arena", "lent")] == 3 * [MEGABYTE]
    assert [b.offset for b in use.buffers if b.region == "lent"] == [0]


@pytest.mark.parametrize("text", [CHAIN, DOUBLE % (MEGABYTE, MEGABYTE), (DATA / "donated.hlo").read_text()],
                         ids=["chain", "double", "donated"])
def test_a_run_allocates_what_was_said(text):
    use = use_of(text)
    tracemalloc.start()
    try:
        exe = compiled(text)
        results = exe(*zero_arrays(exe.parameters))
        mine = [tracemalloc.Filter(True, "*/result_memory.py")]
        allocated = sum(t.size for t in tracemalloc.take_snapshot().filter_traces(mine).traces)
    finally:
        tracemalloc.stop()
    margin = ALIGNMENT * (1 + len(results)) + 2048          # alignment, and the Python objects around the arrays
    assert use.arena + use.results <= allocated <= use.arena + use.results + margin
    assert use.peak == use.arena + use.results + use.parameters + use.constants
