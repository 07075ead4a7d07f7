"""The host's memory, S(5): it stays on shapes to the plan, and is counted apart."""
from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from cuda_emulation import driver
from cuda_emulation.cases import backend_of, emulate

import hloc
from hloc.api import optimize, optimized_plan, plan
from hloc.cli.main import cli
from hloc.errors import UnsupportedError
from hloc.kernels.plan import Collective
from hloc.targets import find
from hloc.targets.cuda import container
from hloc.targets.cuda.execution.collectives import CudaCollectives
from hloc.targets.cuda.host_program import host_text
from hloc.targets.cuda.sources import make_sources

OFFLOAD = Path(__file__).parent.parent / "testdata" / "programs" / "offload.hlo"


def test_host_and_device_are_counted_apart():
    told = json.loads(CliRunner().invoke(cli, ["memory", str(OFFLOAD), "--json"]).output)
    assert told["host"] == {"parameters": 16384, "results": 4096, "arena": 3 * 4096, "peak": 8 * 4096}
    assert told["parameters"] == 4096 and told["results"] == 2 * 4096 and told["live"] <= told["arena"]
    text = CliRunner().invoke(cli, ["memory", str(OFFLOAD)]).output
    assert text.splitlines()[0].split() == ["memory", "device", "host"] and "parameter (host)" in text
    assert "host" not in CliRunner().invoke(cli, ["memory", str(OFFLOAD.parent / "distances.hlo")]).output


def test_on_a_cpu_both_are_one_block():
    program = plan(optimize(hloc.load(OFFLOAD), find("cpu")), find("cpu"))
    assert not program.host_apart and program.on_host == 8 * 4096
    exe = hloc.compile(OFFLOAD, target="cpu")
    assert exe.backend.program.arena_size == program.arena_size > program.host_arena_size


def test_a_cubin_knows_what_is_on_the_host(tmp_path):
    target = find("h100")
    program = plan(optimize(hloc.load(OFFLOAD), target), target)
    sources = make_sources(program, target.machine)
    with open(tmp_path / "offload.cubin", "w+b") as file:
        container.write(file, [b"image"] * 99, sources.program, sources.geometry, "sm_90a")
    packed = container.read(tmp_path / "offload.cubin")
    assert packed.host_arena_size == program.host_arena_size == 3 * 4096 and program.host_apart
    assert [v.shape.on_host for v in packed.parameters + packed.results] == [False, True, False, True, False]
    with open(tmp_path / "offload.cubin", "rb") as file, pytest.raises(UnsupportedError, match="host's memory"):
        host_text(file, sources.program, sources.geometry, "sm_90a", "offload")


def test_xla_reads_what_passes_print():
    hlo = pytest.importorskip("jaxlib._hlo", reason="jaxlib is not installed")
    text = str(optimize(hloc.load(OFFLOAD), find("cpu")))
    written = hlo.hlo_module_from_text(text).to_string()
    assert "f32[64,64]{1,0:S(5)} parameter(1)" in written and "S(5)" in written.splitlines()[0]


def test_sanitizers_have_gaps_in_both(monkeypatch):
    monkeypatch.setenv("HLOC_SANITIZE", "address")
    program = plan(optimize(hloc.load(OFFLOAD), find("cpu")), find("cpu"))
    places = np.array(program.gaps)
    assert (places[:, 0] + places[:, 1] <= program.arena_size).all() and (np.diff(places[:, 0]) > 0).all()


@pytest.mark.parametrize("fault", ["", "no wait after", "no wait before"])
def test_copies_run_beside_kernels(fault, monkeypatch):
    """Kernel by kernel and as graphs, in every order of two streams; a missing wait shows in the results."""
    target = find("h100")
    sources = make_sources(plan(optimize(hloc.load(OFFLOAD), target), target), target.machine)
    kinds = [s.is_done for s in sources.program.steps if isinstance(s, Collective)]
    assert kinds.count(False) == kinds.count(True) >= 4
    x, w = (np.random.default_rng(n).standard_normal(s, np.float32) / 4 for n, s in enumerate([(16, 64), (64, 64)]))
    judge = hloc.compile(OFFLOAD, target="reference")
    wanted = [judge(x / (1 + run), w) for run in range(3)]
    driver.install(monkeypatch)
    if fault == "no wait after":
        monkeypatch.setattr(CudaCollectives, "done", lambda self, step: None)
    elif fault:
        monkeypatch.setattr(driver.Stream, "wait_for_event", lambda self, event, wait=driver.Stream.wait_for_event:
                            None if event.mark.queue is not self and self.handle in late else wait(self, event))
    wrong = 0
    for number in (None, 0, 1):
        monkeypatch.setattr(driver.Stream, "late_ones", frozenset([] if number is None else [number]))
        driver.Stream.in_thread.count = 0
        late: set[int] = set()
        monkeypatch.setenv("HLOC_CUDA_GRAPHS", "off" if fault else "on")
        backend = backend_of(sources)
        late.add(backend.collectives.stream.handle)
        for run in range(3):                                # the first waits for each kernel
            found = backend([x / (1 + run), w])
            wrong += not all(np.allclose(a, b, atol=1e-4) for a, b in zip(found, wanted[run]))
        backend.close()
    assert (wrong > 0) == bool(fault)


def chain(size: int) -> str:
    """Products that are all read again at the end, in the reverse order."""
    lines = [f"x = f32[{size},{size}] parameter(0)"]
    last = "x"
    for n in range(6):
        lines += [f"d{n} = f32[{size},{size}] dot({last}, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
                  f"t{n} = f32[{size},{size}] tanh(d{n})"]
        last = f"t{n}"
    for n in reversed(range(6)):
        lines.append(f"g{n} = f32[{size},{size}] dot({last}, t{n}), lhs_contracting_dims={{1}}, "
                     "rhs_contracting_dims={0}")
        last = f"g{n}"
    return "HloModule chain\n\nENTRY e {\n  " + "\n  ".join([*lines[:-1], f"ROOT {lines[-1]}"]) + "\n}\n"


def limited(text: str, target, share: float) -> tuple:
    """The program without a limit, with one of that share of its arena, and what was done for it."""
    plain = optimized_plan(hloc.load(text), target)[1]
    options = hloc.Options(passes={"memory_limit": plain.peak - int((1 - share) * plain.arena_size)})
    module, program = optimized_plan(hloc.load(text), target, options)
    assert program.peak <= options.passes["memory_limit"]
    return plain, program, [s.how for s in options.saved], module


def test_costly_arrays_wait_on_the_host_and_cheap_ones_are_computed_again():
    assert set(limited(chain(8192), find("h100"), 0.7)[2]) == {"kept on the host"}
    assert set(limited(chain(512), find("h100"), 0.7)[2]) == {"computed again"}
    assert set(limited(chain(512), find("cpu"), 0.9)[2]) == {"computed again"}


def test_results_of_offloading_are_the_same(monkeypatch):
    """A bus that takes no time, so that small arrays wait on the host, too."""
    target = find("h100")
    target = dataclasses.replace(target, machine=dataclasses.replace(target.machine, host_bandwidth=1e18,
                                                                      launch_seconds=1e-9))
    plain, program, how, module = limited(chain(32), target, 0.7)
    assert "kept on the host" in how and program.host_arena_size and "S(5)" in str(module)
    x = np.linspace(-0.3, 0.3, 32 * 32, dtype=np.float32).reshape(32, 32)
    expected, found = (emulate(make_sources(p, target.machine), [x], monkeypatch)[0] for p in (plain, program))
    assert expected.tobytes() == found.tobytes()
