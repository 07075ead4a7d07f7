"""The host's memory, S(5): it stays on shapes to the plan, and is counted apart."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import hloc
from hloc.api import optimize, plan
from hloc.cli.main import cli
from hloc.errors import UnsupportedError
from hloc.targets import find
from hloc.targets.cuda import container
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
    assert exe.backend.arena_size == program.arena_size > program.host_arena_size


def test_a_cubin_knows_what_is_on_the_host(tmp_path):
    target = find("h100")
    program = plan(optimize(hloc.load(OFFLOAD), target), target)
    sources = make_sources(program, target.machine)
    with open(tmp_path / "offload.cubin", "w+b") as file:
        container.write(file, b"image", sources.program, sources.geometry, "sm_90a")
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
