"""Commands on modules of several devices: which devices they take, and what they tell of each."""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from hloc.api import load_compiled, plan
from hloc.cli.main import cli
from hloc.devices import with_device_counts
from hloc.errors import UnsupportedError, UsageError
from hloc.ops.collectives import named_devices
from hloc.targets import find
from hloc.text import parse_module

NAMED = """HloModule named
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[8] parameter(0)
  t = token[] after-all()
  BODY
}
"""
GROUPS, TRANSFER = "replica_groups={{0,1},{2,3}}", "frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}"
COUNTS = [
    ("ROOT r = f32[8] tanh(x)", 1, 1),
    (f"ROOT r = f32[8] all-reduce(x), {GROUPS}, to_apply=add", 4, 1),
    (f"ROOT r = f32[8] all-reduce(x), {GROUPS}, channel_id=1, to_apply=add", 4, 1),
    (f"ROOT r = f32[8] all-reduce(x), {GROUPS}, channel_id=1, use_global_device_ids=true, to_apply=add", 1, 4),
    ("ROOT r = f32[8] collective-permute(x), source_target_pairs={{0,2},{2,0}}", 3, 1),
    ("ROOT r = f32[8] collective-permute(x), source_target_pairs={{0,2},{2,0}}, channel_id=1", 1, 3),
    (f"ROOT r = (f32[8], u32[], token[]) send(x, t), channel_id=1, {TRANSFER}", 1, 3),
    (f"""y = f32[8] all-reduce(x), {GROUPS}, to_apply=add
  ROOT r = f32[8] all-reduce(y), {GROUPS}, channel_id=1, use_global_device_ids=true, to_apply=add""", 4, 1),
]


@pytest.mark.parametrize("body, replicas, partitions", COUNTS)
def test_devices_are_those_that_collectives_name(body, replicas, partitions):
    module = parse_module(NAMED.replace("BODY", body))
    assert named_devices(module.instructions()) == (replicas, partitions)
    counted = with_device_counts(module, replicas, partitions)
    assert plan(counted, find("cpu")).devices == replicas * partitions


STEP = """HloModule step, num_partitions=2

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}

ENTRY e {
  x = f32[64,64] parameter(0)
  l = f32[64,64] log(x)
  d = f32[64,64] dot(l, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = f32[64,64] all-reduce(d), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
}
"""


@pytest.fixture
def step(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("step.hlo").write_text(STEP)
    for device in range(2):
        np.save(f"x{device}.npy", np.random.default_rng(device).uniform(0.5, 1, (64, 64)).astype(np.float32))


def said_by(capsys, *arguments: str, code: int = 0) -> str:
    try:
        cli.main(list(arguments), standalone_mode=False)
    except SystemExit as ended:
        assert ended.code == code
    return capsys.readouterr().out


def test_repeated_and_profiled_runs_of_devices(step, capsys):
    told = json.loads(said_by(capsys, "run", "step.hlo", "-t", "cpu", "-i", "x{device}.npy", "--repeat", "4", "--json"))
    assert [len(one["seconds"]) for one in told] == [4, 4] and [one["device"] for one in told] == [0, 1]
    told = json.loads(said_by(capsys, "run", "step.hlo", "-t", "cpu", "-i", "x{device}.npy", "--profile", "--json"))
    for one in told:
        kernels = {row["kernel"] for row in one["profile"]}
        assert {"all-reduce start", "all-reduce done"} <= kernels and len(kernels) > 2
    shown = said_by(capsys, "run", "step.hlo", "-t", "cpu", "-i", "x{device}.npy", "--profile")
    assert "device 1 of 2" in shown and "all-reduce done" in shown


def test_check_and_bisect_of_devices(step, capsys, monkeypatch):
    assert "device 1: result.0" in said_by(capsys, "check", "step.hlo", "-t", "cpu", "-i", "x{device}.npy")
    assert "none changes the results; the kernels agree, too" in said_by(
        capsys, "bisect", "step.hlo", "-t", "cpu", "-i", "x{device}.npy")
    from hloc.passes import pipelines

    def dce(module, context):
        """Wrong on purpose: a log becomes a square root."""
        for instruction in module.entry.instructions:
            if instruction.opcode == "log":
                instruction.opcode = "sqrt"
        return True
    monkeypatch.setattr(pipelines, "CPU", (*pipelines.CPU[:2], dce, *pipelines.CPU[2:]))
    monkeypatch.setitem(pipelines.PIPELINES, "cpu", pipelines.TARGET_INDEPENDENT + pipelines.CPU)
    shown = said_by(capsys, "bisect", "step.hlo", "-t", "cpu", "-i", "x{device}.npy", code=1)
    assert "pass dce" in shown and "device 0: result.0" in shown and "device 1: result.0" in shown


def test_nans_of_devices(step, capsys):
    """Device 1 makes them, device 0 gets them."""
    np.save("x1.npy", np.full((64, 64), -1, np.float32))
    told = json.loads(said_by(capsys, "nans", "step.hlo", "-i", "x{device}.npy", "--json", code=1))
    assert [one["results"] for one in told] == [["result.0"]] * 2
    assert [origin["instruction"] for origin in told[1]["origins"]] == ["l"]
    assert "l" not in [origin["instruction"] for origin in told[0]["origins"]]


def test_memory_explain_and_bench_of_devices(step, capsys):
    parts = json.loads(said_by(capsys, "memory", "step.hlo", "--json"))
    assert parts["parameters"] == parts["results"] == 64 * 64 * 4
    assert "kernels" in said_by(capsys, "explain", "step.hlo")
    told = json.loads(said_by(capsys, "bench", "step.hlo", "step.hlo", "-t", "cpu", "--rounds", "3", "--json"))
    assert len(json.dumps(told)) > 100
    Path("whole.hlo").write_text("HloModule whole\n\nENTRY main {\n"
                                 "  x = f32[64,8] parameter(0), sharding={mesh['a'=2], [{'a'}, {}]}\n"
                                 "  ROOT r = f32[64,8] tanh(x), sharding={mesh['a'=2], [{'a'}, {}]}\n}\n")
    parts = json.loads(said_by(capsys, "memory", "whole.hlo", "--mesh", "a=4", "--json"))
    assert parts["parameters"] == 16 * 8 * 4
    with pytest.raises(UsageError, match="programs of one device"):
        said_by(capsys, "bench", "whole.hlo", "--devices", "2", "--against", "xla")


SUMS = """HloModule sums
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY main {
  x = f32[300,500] parameter(0), sharding={devices=[1,2]<=[2]}
  z = f32[] constant(0)
  ROOT s = f32[300] reduce(x, z), dimensions={1}, to_apply=add
}
"""


def test_schedules_are_those_of_each_device(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sums.hlo").write_text(SUMS)
    assert "250 iterations" in said_by(capsys, "explain", "sums.hlo", "--schedule", "--devices", "2")
    Path("named.hlo").write_text(NAMED.replace("BODY", COUNTS[1][0]))
    assert "some iterations" in said_by(capsys, "explain", "named.hlo", "--schedule")
    parts = json.loads(said_by(capsys, "memory", "named.hlo", "--json"))
    assert parts["parameters"] == parts["results"] == 8 * 4


GROUPED = """HloModule grouped
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[8] parameter(0)
  s = f32[8] all-reduce(x), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  ROOT p = f32[8] collective-permute(s), channel_id=2, source_target_pairs={{0,1},{2,3}}
}
"""


@pytest.fixture
def grouped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("grouped.hlo").write_text(GROUPED.replace("{{0,1}}", "{{0,1},{2,3}}"))
    Path("few.hlo").write_text(GROUPED)


@pytest.mark.parametrize("command", ["run", "check", "bisect", "nans", "bench"])
def test_commands_that_run_a_module_say_how_many_devices_it_needs(grouped, command):
    """The number is that of all collectives, whichever is the first to lack devices."""
    for module, options in (("grouped.hlo", []), ("few.hlo", ["--devices", "2"])):
        with pytest.raises(UnsupportedError, match=r"(grouped|few)\.hlo:\d+:\d+: (?s:.*)hint: --devices 4 gives it so many"):
            cli.main([command, module, *options], standalone_mode=False)


def test_commands_that_run_nothing_take_as_many_devices_as_collectives_name(grouped, capsys):
    assert json.loads(said_by(capsys, "simulate", "grouped.hlo", "-c", "dgx-h100", "--json"))["devices"] == 4
    said_by(capsys, "report", "grouped.hlo", "-o", "page.html", "--json")
    assert "collective-permute" in Path("page.html").read_text()
    with pytest.raises(UnsupportedError, match="hint: --devices 4 gives it so many"):
        cli.main(["explain", "grouped.hlo", "--devices", "2"], standalone_mode=False)


def test_partitions_are_what_collectives_name(grouped, capsys):
    """Without counts in the header: a permute with a channel is between partitions."""
    said_by(capsys, "run", "grouped.hlo", "--devices", "4", "-i", "random:1", "-o", "r{device}.npz")
    assert [bool(np.load(f"r{d}.npz")["out_0"].any()) for d in range(4)] == [False, True, False, True]


def test_manual_computations_are_always_divided(tmp_path, monkeypatch, capsys):
    """One device cannot run them."""
    monkeypatch.chdir(tmp_path)
    example = Path(__file__).parents[1] / "testdata" / "passes" / "sdy_round_trip_import" / "manual_computation.hlo"
    Path("manual.hlo").write_text(example.read_text().partition("// ==>")[0])
    cli.main(["compile", "manual.hlo", "-o", "manual.so"], standalone_mode=False)
    assert load_compiled(Path("manual.so")).devices == 4
    assert json.loads(said_by(capsys, "memory", "manual.hlo", "--json"))["parameters"] == 2 * 4 * 4
    assert "device 3: result.0" in said_by(capsys, "check", "manual.hlo", "-t", "cpu")
