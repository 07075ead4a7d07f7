"""Collectives on GPUs: programs of several devices, threads here, by a stand-in for NCCL over the emulated driver.

Streams are emulated in their worst orders: what nothing forces to run before runs last. Tests have three orders: all at
once, communication late, kernels late; and run kernel by kernel first, then as graphs, on other inputs each time.
"""
from __future__ import annotations

import gc
import shutil
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from collective_forms import FORMS, LOOP, RAGGED, SIZES
from cuda_emulation import driver
from cuda_emulation.nccl import FakeNccl
from kernel_harness import compare

from hloc import api
from hloc.api import compile_for_devices
from hloc.errors import RunError, UnsupportedError
from hloc.evaluate.simulate import evaluate_devices, run_concurrently, simulated_devices
from hloc.inputs import check_arrays, entry_parameters, random_arrays
from hloc.kernels import overlap
from hloc.kernels.plan import Branch, Collective, Copy, Ref, all_steps
from hloc.targets import find
from hloc.targets.cuda import collective_steps, compiler, container, kernel_images, target
from hloc.targets.cuda.execution import graphs
from hloc.targets.cuda.execution.collectives import CudaCollectives
from hloc.targets.cuda.libraries import nccl
from hloc.text import parse_module

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
ORDERS = {"at once": frozenset(), "communication late": frozenset({1}), "kernels late": frozenset({0})}
building = threading.Lock()
LIBRARY = nccl.library


@pytest.fixture(autouse=True)
def library(monkeypatch):
    driver.install(monkeypatch)
    monkeypatch.setattr(driver.DEVICE, "count", 4)
    monkeypatch.setattr(kernel_images, "images_of",
                        lambda sources, *_: (build(sources),) * len(sources.units()))
    monkeypatch.setattr(compiler, "compiler_version", lambda: 13000)
    made = FakeNccl()
    monkeypatch.setattr(nccl, "library", lambda: made)
    return made


def build(sources) -> bytes:
    with building:
        return driver.build(sources)


def devices_of(text: str, count: int):
    """Devices and their executables."""
    module = parse_module(text)
    devices = simulated_devices(module, count)
    return devices, compile_for_devices(module, devices, "h100")


def run(devices, executables, arrays: Sequence[Sequence[np.ndarray]]):
    return run_concurrently(devices, [lambda e=e, a=a: e(*check_arrays(e.parameters, a))
                                      for e, a in zip(executables, arrays)])


def check(text: str, inputs, count: int, runs: int = 2) -> None:
    """The results of some runs on different inputs (device, run) are the evaluator's."""
    devices, executables = devices_of(text, count)
    for number in range(runs):
        arrays = [inputs(d, number) for d in range(count)]
        wanted = evaluate_devices(parse_module(text), arrays)
        for device, (results, want) in enumerate(zip(run(devices, executables, arrays), wanted)):
            for result, one in zip(results, want, strict=True):
                compare(f"device {device}, run {number}", result, one)


# -- what collectives compute -------------------------------------------------------------------------------------------

GROUPS = "replica_groups={{0,1}}, use_global_device_ids=true"
REDUCED = (("f32", "maximum"), ("bf16", "add"), ("s32", "multiply"), ("s16", "xor"), ("pred", "and"), ("c64", "add"),
           ("c64", "multiply"), ("f8e5m2", "add"))
MOVED = f"""
  g = bf16[4,12] all-gather(x1), channel_id=1, {GROUPS}, dimensions={{1}}
  h = bf16[8,6] all-gather(x1), channel_id=1, {GROUPS}, dimensions={{0}}
  t = s16[4,6] all-to-all(x3), channel_id=4, replica_groups={{{{1,0}}}}, dimensions={{1}}
  p = s16[4,6] collective-permute(x3), channel_id=5, source_target_pairs={{{{0,1}}}}
  b = c64[4,6] collective-broadcast(x5), channel_id=6, replica_groups={{{{1,0}}}}
  c = c64[4,6] collective-broadcast(x6), channel_id=7, replica_groups={{{{1}}}}
  q = (s32[4,6], s32[4,6]) all-to-all(x2, n2), channel_id=8, replica_groups={{{{0,1}}}}
  q0 = s32[4,6] get-tuple-element(q), index=0
  q1 = s32[4,6] get-tuple-element(q), index=1
  m = (bf16[4,6], f32[4,6]) all-reduce(x1, x0), channel_id=9, {GROUPS}, to_apply=wide
  m0 = bf16[4,6] get-tuple-element(m), index=0
  m1 = f32[4,6] get-tuple-element(m), index=1
  i = u32[] partition-id()
"""


def kinds() -> str:
    """Reductions of all types, and what else there is of some."""
    functions, body, results = ["wide { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }"], "", []
    for n, (type, op) in enumerate(REDUCED):
        functions.append(f"f{n} {{ a = {type}[] parameter(0)  b = {type}[] parameter(1)  ROOT r = {type}[] {op}(a, b) }}")
        body += f"  x{n} = {type}[4,6] parameter({n})\n"
        body += f"  all{n} = {type}[4,6] all-reduce(x{n}), channel_id=1, {GROUPS}, to_apply=f{n}\n"
        body += f"  part{n} = {type}[4,3] reduce-scatter(x{n}), channel_id=2, {GROUPS}, dimensions={{1}}, to_apply=f{n}\n"
        results += [(f"all{n}", f"{type}[4,6]"), (f"part{n}", f"{type}[4,3]")]
    results += [("g", "bf16[4,12]"), ("h", "bf16[8,6]"), ("t", "s16[4,6]"), ("p", "s16[4,6]"), ("b", "c64[4,6]"),
                ("c", "c64[4,6]"), ("q0", "s32[4,6]"), ("q1", "s32[4,6]"), ("m0", "bf16[4,6]"), ("m1", "f32[4,6]"), ("i", "u32[]")]
    moved = "  n2 = s32[4,6] negate(x2)" + MOVED
    return "\n".join(["HloModule kinds, num_partitions=2", *functions, "ENTRY e {", body + moved + "  ROOT o = ("
                      + ", ".join(shape for _, shape in results) + ") tuple(" + ", ".join(n for n, _ in results) + ")", "}"])


def test_every_collective(library):
    """Also reductions that NCCL does not have, and maxima, in which NaNs stay."""
    parameters = entry_parameters(parse_module(kinds()))

    def inputs(device: int, number: int):
        arrays = [np.array(a) for a in random_arrays(parameters, 2 * number + device)]
        if device:
            arrays[0].flat[3] = np.nan
        return arrays
    check(kinds(), inputs, 2)
    assert {name for name, *_ in library.calls} == {"all-reduce", "reduce-scatter", "all-gather", "broadcast", "send", "receive"}


def later(own):
    """Inputs that differ from run to run."""
    return lambda device, number: [a + number if a.dtype.kind == "f" else a for a in own(device)]


@pytest.mark.parametrize("form, count", [("ring", 3), ("ragged", 2)])
def test_forms_give_what_the_evaluator_gives(form, count):
    text, own = FORMS[form]
    check(text, later(own), count)


def test_sizes_of_groups(library):
    """NCCL adds in groups of several sizes, each by its own communicator; what it does not combine needs equal ones."""
    text = SIZES.replace("subtract", "add").replace("{2,0},{1}", "{2,0},{1,3}").replace("=3", "=4")
    check(text, lambda d, n: [np.arange(4, dtype=np.float32) * (d + 1) + n], 4)
    assert {(name, rank) for _, name, rank in library.calls} == {
        (f"id 1/1.{group}", rank) for group in range(2) for rank in range(2)}
    with pytest.raises(UnsupportedError, match="the groups have several sizes"):
        devices_of(SIZES, 3)


CHAIN = """HloModule chain, num_partitions=3
ENTRY e { x = f32[4] parameter(0)  start = token[] after-all()
  r = (f32[4], u32[], token[]) recv(start), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}
  y = f32[4] get-tuple-element(r), index=0  t = token[] get-tuple-element(r), index=2  z = f32[4] add(x, y)
  s = (f32[4], u32[], token[]) send(z, t), channel_id=1, frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}
  ROOT o = f32[4] get-tuple-element(s), index=0 }
"""


def test_a_chain_of_sends():
    """What a device sends depends on what it gets: one after the other."""
    check(CHAIN, lambda d, n: [np.arange(4, dtype=np.float32) + 10 * d + n], 3)


# -- the order of streams -----------------------------------------------------------------------------------------------

OVERLAP = """HloModule overlap, replica_count=2
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[16,16] parameter(0)
  a = f32[16,16] tanh(x)
  s = f32[16,16] all-reduce(a), replica_groups={}, to_apply=add
  b = f32[16,16] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  c = f32[16,16] dot(b, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[16,16] transpose(s), dimensions={1,0}
  u = f32[16,16] cosine(t)
  v = f32[16,16] dot(u, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  g = f32[32,16] all-gather(v), replica_groups={}, dimensions={0}
  h = f32[32,16] sine(g)
  ROOT o = (f32[32,16], f32[16,16]) tuple(h, c)
}
"""


def square(device: int, number: int):
    return [np.random.default_rng(2 * number + device).normal(size=(16, 16)).astype(np.float32) / 4]


def test_kernels_run_beside_a_collective():
    """Its operand stays, and its end comes late: where the result is used."""
    program = api.plan(api.optimize(parse_module(OVERLAP), find("h100")), find("h100"))
    kinds = [f"{s.kind} {s.is_done}" if isinstance(s, Collective) else type(s).__name__ for s in program.steps]
    assert kinds == ["Launch", "all-reduce False", "Launch", "Launch", "all-reduce True", "Launch", "all-gather False",
                     "all-gather True", "Launch"]
    assert [p.nodes for p in graphs.parts(program.steps)] == [7]


def test_memory_is_freed_with_the_last_reference():
    """Without the garbage collector: when Python exits, that runs after the context is released."""
    devices, executables = devices_of(OVERLAP, 2)
    gc.collect()
    gc.disable()
    try:
        for number in range(2):
            run(devices, executables, [square(d, number) for d in range(2)])
        backends = [weakref.ref(e.backend) for e in executables]
        assert all(backend().collectives is not None and backend().graphs for backend in backends)
        del executables
        assert [backend() for backend in backends] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("order", ORDERS)
def test_all_orders_of_streams(order, monkeypatch):
    """Kernel by kernel, then as graphs, in which both streams are branches; in a loop, too."""
    monkeypatch.setattr(driver.Stream, "late_ones", ORDERS[order])
    check(OVERLAP, square, 2, runs=3)
    if order == "kernels late":
        check(LOOP.replace("[N]", "[37]"), later(FORMS["loop"][1]), 3)


def without(name: str, monkeypatch) -> None:
    """Plant a fault."""
    start, done = CudaCollectives.start, CudaCollectives.done

    def started(self, step):
        before, after = self.events[step.number, step.kind]
        if name == "no wait before":
            self.stream.capture = self.compute.capture                     # a graph would not have it otherwise
            getattr(self, "_" + step.kind.replace("-", "_"))(step)
            after.record(self.stream)
        elif name == "the end is recorded too early":
            before.record(self.compute)
            self.stream.wait_for_event(before)
            after.record(self.stream)
            getattr(self, "_" + step.kind.replace("-", "_"))(step)
        else:
            start(self, step)
    monkeypatch.setattr(CudaCollectives, "start", started)
    monkeypatch.setattr(CudaCollectives, "done", (lambda *_: None) if name == "no wait after" else done)
    if name == "the operand is overwritten":
        follows = overlap.must_follow
        monkeypatch.setattr("hloc.kernels.planner.Planner.land", lambda *_: None)
        monkeypatch.setattr(overlap, "must_follow", lambda step, start, kernels: follows(
            step, start._replace(arguments=()), kernels))


def finish_all() -> None:
    """What nobody has waited for, so that it does not meet the next run."""
    threads = [threading.Thread(target=stream.run) for stream in list(driver.Stream.known.values())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


FAULTS = {"no wait before": "kernels late", "no wait after": "communication late",
          "the end is recorded too early": "communication late", "the operand is overwritten": "communication late"}


@pytest.mark.parametrize("graph", ["on", "off"])
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault, graph, monkeypatch):
    """Each by wrong numbers in one of the orders; a graph with work that nobody waits for is refused."""
    monkeypatch.setenv("HLOC_CUDA_GRAPHS", graph)
    without(fault, monkeypatch)
    monkeypatch.setattr(driver.Stream, "late_ones", ORDERS[FAULTS[fault]])
    devices, executables = devices_of(OVERLAP, 2)
    found = []
    for number in range(2):
        arrays = [square(d, number) for d in range(2)]
        wanted = evaluate_devices(parse_module(OVERLAP), arrays)
        try:
            results = run(devices, executables, arrays)
        except RunError as error:
            assert graph == "on" and number == 1 and "work that its origin does not wait for" in str(error)
            found.append("refused")
            continue
        finally:
            finish_all()
        same = all(np.allclose(g, w, atol=1e-4) for got, want in zip(results, wanted) for g, w in zip(got, want))
        found.append("right" if same else "wrong")
    refused = graph == "on" and fault in ("no wait after", "the end is recorded too early")
    first = "right" if fault == "no wait before" else "wrong"            # the first run waits after each kernel
    assert found == [first, "refused" if refused else "wrong"]


# -- what may be missing, or go wrong -------------------------------------------------------------------------------------

def failure(text: str, count: int, arrays) -> RunError:
    devices, executables = devices_of(text, count)
    with pytest.raises(RunError) as caught:
        run(devices, executables, [arrays] * count)
    assert caught.value.code == 6
    return caught.value


def test_nccl_is_missing_or_old(monkeypatch):
    monkeypatch.setattr(nccl, "library", lambda: FakeNccl(21704))
    assert "NCCL 2.17.4 is too old: collectives on GPUs need 2.18.0" in str(failure(OVERLAP, 2, square(0, 0)))
    monkeypatch.setattr(nccl.finding.ctypes, "CDLL", missing)
    with pytest.raises(RunError, match=r"NCCL is not installed \(libnccl\)") as caught:
        LIBRARY()
    assert caught.value.code == 6 and "hloc[nccl]" in (caught.value.hint or "")


def missing(name: str):
    raise OSError(name)


def test_devices_with_the_same_gpu(monkeypatch):
    monkeypatch.setattr(driver.DEVICE, "count", 1)
    error = failure(OVERLAP, 2, square(0, 0))
    assert "devices 0 and 1 have the same GPU" in str(error)


def test_no_library_for_a_device_by_itself(monkeypatch):
    """Groups of one are copies; numbers of devices need nobody."""
    monkeypatch.setattr(nccl, "library", missing)
    check(SIZES.replace("{2,0},{1}", "{2},{0},{1}"), later(FORMS["sizes"][1]), 3, runs=1)


def test_a_device_that_does_not_come(monkeypatch):
    """The others wait for so long, and say where; if one fails, no longer than that takes."""
    monkeypatch.setenv("HLOC_DEVICE_TIMEOUT", "0.05")
    monkeypatch.setattr(driver.Stream, "is_done", lambda self: False)
    monkeypatch.setattr(driver.Event, "query", lambda self: False)
    assert "has waited 0.05 s" in str(failure(OVERLAP, 2, square(0, 0)))
    monkeypatch.setenv("HLOC_DEVICE_TIMEOUT", "60")
    devices, executables = devices_of(OVERLAP, 2)
    with pytest.raises(ZeroDivisionError):
        run_concurrently(devices, [lambda: executables[0](*square(0, 0)), lambda: (executables[1].backend, 1 / 0)])


def test_a_file_holds_collectives(tmp_path):
    """Written, read, run; what does not fit is refused."""
    devices, executables = devices_of(kinds(), 2)
    executables[0].save(tmp_path / "kinds.cubin")
    saved = target.load_cubin(tmp_path / "kinds.cubin")
    assert saved.devices == 2
    with pytest.raises(UnsupportedError, match="is for 2 devices"):
        _ = saved.backend
    arrays = [random_arrays(executables[0].parameters, d) for d in range(2)]
    for got, want in zip(run(devices, [saved.on_device(d) for d in devices], arrays), run(devices, executables, arrays)):
        assert [g.tobytes() for g in got] == [w.tobytes() for w in want]
    steps = container.read(tmp_path / "kinds.cubin").steps
    place = next(n for n, s in enumerate(steps) if isinstance(s, Collective) and s.kind == "all-gather")
    own, small = steps[place], Ref("arena", 0, 0, 4)
    for wrong in (own._replace(results=(small,)), own._replace(groups=((0, 2),)), own._replace(groups=((0, 0),)),
                  own._replace(pairs=((0, 5),)), own._replace(blocks=(own.blocks[0]._replace(rows=2),)),
                  own._replace(kind="all-reduce"), own._replace(kind="all-to-all"), own._replace(is_done=True)):
        with pytest.raises(ValueError):
            collective_steps.check([*steps[:place], wrong, *steps[place + 1:]], 2)
    with pytest.raises(ValueError, match="does not end"):
        collective_steps.check([s for s in steps if not (isinstance(s, Collective) and s.is_done)], 2)


def test_parts_with_collectives():
    """A collective starts and ends in one graph, or in none."""
    start = next(s for s in all_steps(devices_plan(OVERLAP).steps) if isinstance(s, Collective) and not s.is_done)
    end, copy = start._replace(is_done=True), Copy(Ref("arena", 0, 0, 4), Ref("arena", 0, 4, 4))
    branch = Branch(Ref("arena", 0, 0, 1), "pred", ((copy,), (copy,)))
    assert [p.nodes for p in graphs.parts((copy, start, copy, copy, end, copy))] == [5]
    assert [p.nodes for p in graphs.parts((copy, start, copy, copy, branch, end, copy))] == [1, None, 2, None, None, 1]
    ragged = devices_plan(RAGGED).steps
    assert graphs.in_words(ragged).endswith("beside a ragged-all-to-all")


def devices_plan(text: str):
    return api.plan(api.optimize(parse_module(text), find("h100")), find("h100"))


def test_a_profile_has_both_streams():
    module = parse_module(OVERLAP)
    devices = simulated_devices(module, 2)
    executables = compile_for_devices(module, devices, "h100", options=api.Options(profile=True, trace=5))
    run(devices, executables, [square(d, 0) for d in range(2)])
    rows = {row.kernel: row for row in executables[1].profile()}
    assert rows["all-reduce start"].runs == rows["all-reduce done"].runs == 1
    trace = executables[0].trace()
    assert {trace.tracks[s.track] for s in trace.slices} == {"calls", "stream", "communication"}
