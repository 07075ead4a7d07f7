"""Several devices: compiled programs that meet at collectives, simulated in threads and under MPI."""
from __future__ import annotations

import functools
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import op_examples as examples
import pytest

from hloc.api import compile_for_devices
from hloc.cli.main import cli
from hloc.errors import UnsupportedError
from hloc.evaluate.simulate import evaluate_devices, run_concurrently, simulated_devices
from hloc.inputs import check_arrays, entry_parameters, random_arrays
from hloc.text import parse_module

ALL = [e for path in sorted(examples.FOLDER.glob("*.hlo")) for e in examples.read_examples(path)]
CASES = [pytest.param(e, c, id=f"{e.name}:{i}") for e in ALL for i, c in enumerate(e.cases) if c.devices]
SUM = """HloModule sum, replica_count=2
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[3] parameter(0)
  s = f32[3] all-reduce(x), replica_groups={}, to_apply=add
  i = u32[] replica-id()
  ROOT t = (f32[3], u32[]) tuple(s, i)
}
"""


@pytest.mark.parametrize("example, case", CASES)
def test_compiled_collectives_give_what_the_evaluator_gives(example, case):
    module = parse_module(example.text, example.name)
    devices = simulated_devices(module, len(case.outputs))
    executables = compile_for_devices(module, devices, "cpu")
    inputs = [check_arrays(e.parameters, case.inputs.get(d.number, [])) for e, d in zip(executables, devices)]
    results = run_concurrently(devices, [lambda e=e, i=i: e(*i) for e, i in zip(executables, inputs)])
    for number, want in case.outputs.items():
        for got, wanted in zip(results[number], want, strict=True):
            assert examples.difference(got, wanted, example.tolerance) == "", f"device {number}"


@pytest.fixture
def sums(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sum.hlo").write_text(SUM)
    for device in range(2):
        np.save(f"x{device}.npy", np.arange(3, dtype=np.float32) * 10 ** device)
    return tmp_path


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_run_simulates_devices(sums, capsys, target):
    cli.main(["run", "sum.hlo", "-t", target, "-i", "x{device}.npy", "-o", "r{device}.npz"], standalone_mode=False)
    assert "device 1 of 2" in capsys.readouterr().out
    for device in range(2):
        saved = np.load(f"r{device}.npz")
        assert saved["out_0"].tolist() == [0, 11, 22] and saved["out_1"] == device
    cli.main(["run", "sum.hlo", "-t", target, "-i", "x0.npy", "--json"], standalone_mode=False)
    assert [o["results"][0]["first"] for o in json.loads(capsys.readouterr().out)] == ["0, 2, 4"] * 2


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_counts_that_only_the_command_gives(sums, capsys, target):
    """Without counts in the header, passes must not take the module for one of one device."""
    Path("sum.hlo").write_text(SUM.replace(", replica_count=2", ""))
    cli.main(["run", "sum.hlo", "-t", target, "-i", "x{device}.npy", "--devices", "2", "--json"], standalone_mode=False)
    assert [o["results"][0]["first"] for o in json.loads(capsys.readouterr().out)] == ["0, 11, 22"] * 2


def test_one_device_is_not_enough(sums):
    with pytest.raises(UnsupportedError, match="takes several devices"):
        cli.main(["run", "sum.hlo", "-t", "cpu", "--devices", "1"], standalone_mode=False)


def under_mpi(*arguments: str, module: tuple[str, ...] = ("-m", "hloc.cli.main")) -> subprocess.CompletedProcess:
    """hloc as two processes."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    launcher = shutil.which("mpirun", path=places) or shutil.which("mpiexec", path=places)
    if launcher is None:
        pytest.skip("mpirun is not installed")
    allowed = {f"{name}_ALLOW_RUN_AS_ROOT{more}": "1" for name in ("OMPI", "PRTE") for more in ("", "_CONFIRM")}
    return subprocess.run([launcher, "-n", "2", sys.executable, *module, *arguments], capture_output=True,
                          text=True, timeout=120, env={**os.environ, **allowed})


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_failing_process_ends_the_others(sums, target):
    """The first one waits at the all-reduce for the second, which has no inputs."""
    Path("x1.npy").unlink()
    done = under_mpi("run", "sum.hlo", "-t", target, "-i", "x{device}.npy", "-o", "r{device}.npz")
    assert done.returncode and "device 1 of 2: " in done.stderr and "x1.npy" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not list(sums.glob("r*.npz"))


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_processes_with_different_modules_all_say_so(sums, target):
    text = Path("sum.hlo").read_text()
    Path("m0.hlo").write_text(text)
    Path("m1.hlo").write_text(text.replace("add(a, b)", "maximum(a, b)"))
    Path("pick.py").write_text(
        "import os, sys\nfrom hloc.cli.main import main\n"
        "rank = os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK']\n"
        f"sys.argv = ['hloc', 'run', f'm{{rank}}.hlo', '-t', '{target}', '-i', 'x0.npy']\nmain()\n")
    done = under_mpi(module=("pick.py",))
    assert done.returncode == 6 and done.stderr.count("process 1 and process 0 have different modules") == 2, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_process_that_hangs_is_not_waited_for_forever(sums, monkeypatch, target):
    Path("slow.py").write_text("import os, time\n\n\ndef slow(x):\n"
                               "    rank = os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK']\n"
                               "    time.sleep(60 * int(rank))\n    return x\n")
    Path("slow.hlo").write_text(Path("sum.hlo").read_text().replace(
        "s = f32[3] all-reduce(x)", 'w = f32[3] custom-call(x), custom_call_target="slow"\n  s = f32[3] all-reduce(w)'))
    monkeypatch.setenv("HLOC_DEVICE_TIMEOUT", "2")
    done = under_mpi("run", "slow.hlo", "-t", target, "-i", "x0.npy", "--custom-call", "slow=./slow.py:slow")
    assert done.returncode and "device 0 has waited 2 s at all-reduce %s for the devices [1]" in done.stderr, done.stderr


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_process_that_dies_ends_the_others(sums, target):
    """Without a word, while the other one waits for it."""
    Path("die.py").write_text("import os, signal\n\n\ndef die(x):\n"
                              "    if int(os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK']):\n"
                              "        os.kill(os.getpid(), signal.SIGKILL)\n    return x\n")
    Path("die.hlo").write_text(Path("sum.hlo").read_text().replace(
        "s = f32[3] all-reduce(x)", 'w = f32[3] custom-call(x), custom_call_target="die"\n  s = f32[3] all-reduce(w)'))
    done = under_mpi("run", "die.hlo", "-t", target, "-i", "x0.npy", "--custom-call", "die=./die.py:die")
    assert done.returncode and "result.0" not in done.stdout, done.stdout


@pytest.mark.parametrize("changed", ["shapes", "version"])
def test_processes_with_other_shapes_or_another_hloc_all_say_so(sums, changed):
    text = Path("sum.hlo").read_text()
    Path("m0.hlo").write_text(text)
    Path("m1.hlo").write_text(text.replace("f32[3]", "f32[5]") if changed == "shapes" else text)
    Path("pick.py").write_text(
        "import os, sys\nimport hloc\n"
        "rank = os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK']\n"
        + ("hloc.__version__ += rank\n" if changed == "version" else "")
        + "from hloc.cli.main import main\n"
        "sys.argv = ['hloc', 'run', f'm{rank}.hlo', '-t', 'cpu', '-i', 'random:1']\nmain()\n")
    done = under_mpi(module=("pick.py",))
    assert done.returncode == 6 and done.stderr.count("process 1 and process 0 have different modules") == 2, done.stderr


SHARDED = """HloModule sharded, num_partitions=2
ENTRY main{ending} {{
  x = f32[4] parameter(0), {annotation}
  ROOT y = f32[4] add(x, x)
}}
"""


@pytest.mark.parametrize("annotation, divided", [
    ("sharding={devices=[2]<=[2]}", True), ("sharding={devices=[2]0,1}", True), ("sharding={replicated}", False),
    ("sharding={devices=[1,2]<=[2] last_tile_dim_replicate}", False), ("sharding={maximal device=0}", False),
    ("sharding={mesh['x'=2], [{'x'}]}", True)])
def test_devices_that_would_each_run_a_module_for_a_partitioner_are_refused(annotation, divided):
    module = parse_module(SHARDED.format(annotation=annotation, ending=""))
    said = ""
    try:
        simulated_devices(module, 2)
    except UnsupportedError as error:
        said = str(error)
    assert ("3:3: error: %x is sharded" in said) if divided else said == ""
    assert len(simulated_devices(parse_module(SHARDED.format(annotation=annotation, ending="_spmd")), 2)) == 2


def test_groups_may_be_along_parts_of_an_axis():
    text = SUM.replace("replica_groups={}", "replica_groups=mesh['x'=4] {'x':(1)2}").replace("count=2", "count=4")
    results = evaluate_devices(parse_module(text), [[np.full(3, 10.0 ** d, np.float32)] for d in range(4)])
    assert [r[0][0] for r in results] == [101, 1010, 101, 1010]


def test_groups_of_what_is_no_part_of_an_axis_are_refused_with_the_place():
    text = SUM.replace("replica_groups={}", "replica_groups=mesh['x'=4] {'x':(1)3}").replace("count=2", "count=4")
    with pytest.raises(UnsupportedError, match="device groups") as refusal:
        evaluate_devices(parse_module(text), [[np.zeros(3, np.float32)]] * 4)
    assert refusal.value.span is not None


def test_run_under_mpi(sums):
    done = under_mpi("run", "sum.hlo", "-t", "cpu", "-i", "x{device}.npy", "-o", "r{device}.npz")
    assert done.returncode == 0, done.stderr
    for device in range(2):
        saved = np.load(f"r{device}.npz")
        assert saved["out_0"].tolist() == [0, 11, 22] and saved["out_1"] == device


@pytest.mark.parametrize("count, opcode, type", [(3, "add", "f32"), (4, "multiply", "bf16"), (2, "maximum", "s32"),
                                                 (5, "and", "pred"), (4, "add", "f16"), (3, "minimum", "f8e4m3fn")])
def test_members_share_the_work_of_a_reduction(count, opcode, type):
    """Sizes that are no multiple of members or blocks; the same bits as from members in their order, in f64."""
    text = (f"HloModule m, replica_count={count}\n"
            f"f {{ a = {type}[] parameter(0)  b = {type}[] parameter(1)  ROOT r = {type}[] {opcode}(a, b) }}\n"
            f"ENTRY e {{ x = {type}[7,{10_007}] parameter(0)  y = {type}[{count},3] parameter(1)\n"
            f"  s = {type}[7,10007] all-reduce(x), replica_groups={{}}, to_apply=f\n"
            f"  p = {type}[1,3] reduce-scatter(y), replica_groups={{}}, dimensions={{0}}, to_apply=f\n"
            f"  ROOT t = ({type}[7,10007], {type}[1,3]) tuple(s, p) }}\n")
    module = parse_module(text)
    inputs = [random_arrays(entry_parameters(module), seed) for seed in range(count)]
    function = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
                "and": np.logical_and}[opcode]
    wide = np.float64 if type[0] in "bf" else inputs[0][0].dtype
    wanted = [functools.reduce(function, [i[k].astype(wide) for i in inputs]).astype(inputs[0][k].dtype) for k in (0, 1)]
    devices = simulated_devices(module, count)
    executables = compile_for_devices(module, devices, "cpu")
    for _ in range(2):
        for results in (evaluate_devices(module, inputs),
                        run_concurrently(devices, [lambda e=e, i=i: e(*i) for e, i in zip(executables, inputs)])):
            for number, (total, part) in enumerate(results):
                assert total.tobytes() == wanted[0].tobytes()
                assert part.tobytes() == wanted[1][number:number + 1].tobytes()


def test_threads_of_devices_stand_ready_until_nobody_has_the_devices():
    """A second run has the threads of the first; the child of a fork starts its own; they end with the devices."""
    devices = simulated_devices(parse_module(SUM), 2)

    def ran(devices) -> list[threading.Thread]:
        return run_concurrently(devices, [threading.current_thread] * 2)
    first = ran(devices)
    with pytest.raises(ZeroDivisionError):
        run_concurrently(devices, [lambda: 1 / 0] * 2)
    assert ran(devices) == first and len({*first, threading.current_thread()}) == 3
    child = os.fork()
    if not child:
        os._exit(0 if len({*ran(devices), *first}) == 4 else 1)      # a fault ends here, too, or waits for ever
    assert os.waitpid(child, 0)[1] == 0
    del devices
    gc.collect()                                              # the error knows the frames that it came through
    deadline = time.monotonic() + 20
    while any(thread.is_alive() for thread in first):
        assert time.monotonic() < deadline
        time.sleep(0.01)
