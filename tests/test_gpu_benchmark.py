"""benchmarks/gpu.py, its own logic: every section on the emulated driver, time limits, crashes, a machine without GPU."""
from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "gpu.py"


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("gpu_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*arguments: str) -> subprocess.CompletedProcess:
    patient = {**os.environ, "HLOC_GPU_PATIENCE": "4"}          # of a busy machine
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300,
                          env=patient)


def _has_weights(name: str) -> bool:
    """Whether the inputs of one of testdata/models are there (make models)."""
    folder = ROOT / "testdata" / "models"
    listed = json.loads((folder / "models.json").read_text(encoding="utf-8"))
    return all((folder / path).exists() for model in listed if model["name"] == name for path in model["inputs"])


# Without jax, which exports it, or its weights, ResNet's training step is a row that says so: one program fewer. Others
# are compiled with and without fusion.
PROGRAMS = 7 if importlib.util.find_spec("jax") and _has_weights("resnet_reduced_train") else 6

# section -> what its table must hold; None: a row with a value, else the reason why it has none
EXPECTED = {
    "once_wrong": {"products of s8": None, "products of f16": None, "convolutions": None, "ragged bf16, 91 x 65": None,
                   "attention f32, 1 heads, 24 positions of 17": None},
    "new": {"f32 matmul of 40 cubed, TF32": None, "bf16 pooling's gradient, 2 images of 24x24": None,
            "a round of 2 kernels and a counter, decided by the device": None},
    "prepare": {f"{PROGRAMS} programs compiled": None},
    "kernels": {"softmax chain f32[12,40]": None, "softmax chain f32[12,40]: k0_fusion_subtract_exponential_divide": None},
    "launches": {"a step of 8 kernels as a graph": None},
    "bandwidth": {"a copy on the device": None, "softmax bf16[12,40]": None, "transpose f32[12,40]": None},
    "products": {"mma.sync on bf16, no memory": None, "s8 40 x 40 x 40": None, "cuBLASLt": "does not run",
                 "attention bf16 2 heads, 40 positions of 16": None,
                 "attention bf16 with gradients, 2 heads, 40 positions of 16": None},
    "tuning": {"f32 40 x 40 x 40": None, "bf16 convolution 3x3, 1 images of 6x6, 16 channels": None},
    "warpgroups": {"bf16 40 x 40 x 40, 128x256, wgmma, bulk copies": None,
                   "attention bf16 2 heads, 40 positions of 16, 128 queries, 128 keys, wgmma, bulk copies": None},
    "ops": {"cuda/teams": None, "ops/abs to abs": None},
    "models": {"cumsum": None},
    "xla": {"XLA:GPU": "does not run"},
    "end_to_end": {"cumsum": None, "softmax chain f32[12,40]": None,
                   "MLP bf16 12 rows, 3 layers of 32": None},
    "sanitizer": {"memcheck on the op examples": "own checks", "racecheck on the op examples": "own checks"},
}


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
@pytest.mark.parametrize("section", EXPECTED)
def test_sections_on_the_emulation(section, tmp_path):
    done = run(section, "--emulated", "--output", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr + done.stdout
    found = json.loads((tmp_path / "out.json").read_text())
    rows = {r["what"]: r for r in found["rows"]}
    assert not any(r.get("wrong") or r["what"].startswith("the rest of") for r in found["rows"]), found["rows"]
    for what, reason in EXPECTED[section].items():
        if reason is None:
            assert rows[what]["value"]
        else:
            assert reason in rows[what]["missing"]
    text = (tmp_path / "out.md").read_text()
    assert found["device"] == "the emulation" and "these times mean nothing" in text and found["date"] in text
    assert text.count("not measured: ") == sum("missing" in r for r in found["rows"])


def test_every_section_is_tried(gpu):
    assert EXPECTED.keys() == gpu.SECTIONS.keys()
    assert sum(seconds for seconds, _ in gpu.SECTIONS.values()) <= 420


def test_without_a_gpu():
    if any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/dxg")):
        pytest.skip("a machine without a GPU is needed: this one has one")
    done = run()
    assert done.returncode == 6 and done.stdout == ""
    assert done.stderr.startswith("error: running on a GPU needs") and "Traceback" not in done.stderr


def test_what_a_device_would_be_given(gpu):
    """The kernel that is written for this script alone compiles as it does there: no header is left to be found."""
    from gpu_sections import sanitizer
    from gpu_sections.device import device_code
    from gpu_sections.products import peak_text

    from hloc.targets.cuda.compiler import compile_cuda, compiler_version
    text = device_code(peak_text(4096))
    assert '#include "' not in text
    assert sanitizer.SECONDS < gpu.SECTIONS["sanitizer"][0] - 3 and sanitizer.LEAST * 4 < sanitizer.SECONDS
    if compiler_version():
        assert b"peak" in compile_cuda(text, "sm_90a", "cubin")


def test_short_work_is_timed_together(gpu):
    """A start costs as much as a small kernel: several are one measurement, of which each has its part."""
    from types import SimpleNamespace

    from gpu_sections.device import Device
    clock, device = [0.0], Device.__new__(Device)

    class Event:
        def record(self, stream):
            clock[0] += 5e-6                                    # what a look costs
            self.when = clock[0]

        def synchronize(self):
            pass

        def time_since(self, earlier):
            return (self.when - earlier.when) * 1e3
    device.emulated, device.cuda = False, SimpleNamespace(Event=Event)
    nothing = SimpleNamespace(push=lambda: None, pop=lambda: None, synchronize=lambda: None)

    def measured(seconds: float) -> float:
        return device.median(lambda: clock.__setitem__(0, clock[0] + seconds), nothing, nothing)
    assert measured(30e-6) == pytest.approx(30e-6, rel=0.01) and measured(0.1) == pytest.approx(0.1, rel=0.01)


def test_unknown_section():
    done = run("speed")
    assert done.returncode == 2 and "no section 'speed'" in done.stderr


def fake(gpu, monkeypatch, tmp_path, body: str) -> None:
    (tmp_path / "gpu.py").write_text(body)
    monkeypatch.setattr(gpu, "HERE", tmp_path)


def test_time_limit_keeps_what_was_measured(gpu, monkeypatch, tmp_path):
    fake(gpu, monkeypatch, tmp_path, "import time\nprint('{\"section\": \"x\", \"what\": \"a\", \"value\": 1}', flush=True)\n"
         "time.sleep(60)\n")
    rows = gpu.section_in_process("x", False, 2)
    assert rows == [{"section": "x", "what": "a", "value": 1},
                    {"section": "x", "what": "the rest of x", "missing": "time limit of 2 s"}]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="this system tells nothing of processes in /proc")
def test_time_limit_ends_what_the_section_has_started(gpu, monkeypatch, tmp_path):
    fake(gpu, monkeypatch, tmp_path, "import json, subprocess, sys, time\n"
         "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
         "print(json.dumps({'section': 'x', 'what': 'a', 'value': child.pid}), flush=True)\ntime.sleep(60)\n")
    first, _ = gpu.section_in_process("x", False, 2)
    stat = Path(f"/proc/{first['value']}/stat")
    for _ in range(50):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("a process that the section started goes on")


def test_crash_is_told(gpu, monkeypatch, tmp_path):
    fake(gpu, monkeypatch, tmp_path, "print('noise')\nraise SystemError('the device is gone')\n")
    (row,) = gpu.section_in_process("x", False, 30)
    assert row["missing"] == "exit code 1: SystemError: the device is gone"


def test_wrong_results_fail(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "section_in_process", lambda name, emulated, limit: [
        {"section": name, "what": "a | b", "value": "1 of 2 wrong", "wrong": True, "note": "k:\nall"}])
    monkeypatch.setattr(sys, "argv", ["gpu.py", "ops", "--emulated", "--output", str(tmp_path / "o")])
    from cuda_emulation import driver

    from hloc.targets.cuda.execution import context, graphs
    for module, name in ((context, "driver"), (context, "pinned_pool"), (graphs, "library")):
        monkeypatch.setattr(module, name, getattr(module, name))        # put back afterwards
    driver.install(monkeypatch)
    assert gpu.main() == 1
    assert "| a / b | 1 of 2 wrong |  | k: all |" in (tmp_path / "o.md").read_text()


def test_results_are_written_after_each_section(gpu, monkeypatch, tmp_path):
    def section(name: str, emulated: bool, limit: float) -> list[dict]:
        if name == "ops":
            assert [r["what"] for r in json.loads((tmp_path / "o.json").read_text())["rows"]] == ["of launches"]
        return [{"section": name, "what": f"of {name}", "value": 1}]
    monkeypatch.setattr(gpu, "section_in_process", section)
    facts = {"device": "a device", "emulated": False, "date": "today", "driver": "13.0", "compiler": "13.0"}
    assert len(gpu.measured(["launches", "ops"], facts, tmp_path / "o")) == 2
    assert list(json.loads((tmp_path / "o.json").read_text())["section_seconds"]) == ["launches", "ops"]
    assert "of launches" in (tmp_path / "o.md").read_text() and "of ops" in (tmp_path / "o.md").read_text()


def test_numbers_to_reach(gpu, tmp_path):
    """Each goal is judged by the rows that sections give; what no row tells is not measured."""
    from gpu_sections.goals import GOALS, verdicts
    assert {g.section for g in GOALS} <= gpu.SECTIONS.keys()
    assert all(row[2:] == ["not measured"] * 2 for row in verdicts([]))
    rows = [{"section": "bandwidth", "what": "add f32[16384,4096]", "value": 1, "compared": {"the copy": 0.93}},
            {"section": "bandwidth", "what": "softmax bf16[16384,4096]", "value": 1, "compared": {"the copy": 0.5}},
            {"section": "launches", "what": "a step of 500 kernels as a graph", "value": 0.8, "unit": "us per kernel"},
            *({"section": "xla", "what": f"m{n}", "value": 1, "compared": {"XLA:GPU's time": r}}
              for n, r in enumerate((0.5, 1.3))), {"section": "xla", "what": "m2", "missing": "no jax"}]
    found = {row[0]: row[2:] for row in verdicts(rows)}
    assert found["add f32"] == ["0.93", "reached"] and found["softmax bf16"] == ["0.50", "not reached"]
    assert found["a kernel of a step of 500, in a graph"] == ["0.80", "reached"]
    assert found["whole programs, each"] == ["1.30", "not reached"] and found["whole programs, together"] == ["0.81", "reached"]
    assert "| softmax bf16 | at least 0.9 of the copy | 0.50 | not reached |" in gpu.goals(rows)


def test_every_way_by_warpgroups_is_offered(gpu):
    """The labels that section warpgroups asks for, on the GPU itself."""
    from types import SimpleNamespace

    from gpu_sections import warpgroups

    from hloc import api
    from hloc.targets.cuda.gpus import GPUS
    from hloc.targets.cuda.target import cuda_target
    from hloc.targets.cuda.tiles.source import variants
    machine = GPUS["h200"]
    for case in warpgroups.CASES:
        text = warpgroups.problem(SimpleNamespace(size=lambda full, _: full), *case)[1]
        _, program = api.optimized_plan(api.load(text), cuda_target(machine))
        labels = variants(program.kernels[0], machine)
        assert any(w.startswith(case[1]) and w.endswith(case[2]) for w in labels), (case, labels)


def test_what_was_once_wrong(gpu, monkeypatch):
    """The list that a device is given: the wrong products themselves, every type at every depth, every kind of tile."""
    from types import SimpleNamespace

    from gpu_sections import once_wrong

    from hloc.targets.cuda.gpus import GPUS
    from hloc.targets.cuda.sources import make_sources
    assert next(iter(gpu.SECTIONS)) == "once_wrong"
    machine = GPUS["h200"]
    found = once_wrong.sets(SimpleNamespace(emulated=False, machine=machine))
    made = {what: make() for what, make in found.items()}
    text = {what: "".join(make_sources(m.program, machine, m.variants).kernels) for what, m in made.items()}
    for name in once_wrong.TYPES:
        own = text[f"products of {name}"]
        assert all(f" K = {depth}, BATCHES = 1" in own for depth in once_wrong.DEPTHS), name
        assert "M = 9, N = 9, K = 7, BATCHES = 90" in own and "M = 70, N = 65, K = 90" in own
    for tile in ("hloc_tile<", "hloc_tile_mma<", "hloc_tile_pipeline<", "hloc_tile_warpgroup<", "hloc_tile_bulk<"):
        assert any(tile in t for t in text.values()), tile
    whole = "".join(text.values())
    assert all(f"{tile}<" in whole for tile in ("hloc_ragged", "hloc_attention_f32", "hloc_attention_mma",
                                                "hloc_attention_group", "hloc_attention_gradient_f32",
                                                "hloc_attention_gradient_mma", "hloc_attention_gradient_group"))
    assert sum(len(m.expected) for m in made.values()) > 850


@pytest.mark.parametrize("said, row", [
    ("all agree\n========= ERROR SUMMARY: 0 errors\n", {"value": "0 errors"}),
    ("all agree\n========= ERROR SUMMARY: 3 errors\n", {"value": "3 errors", "wrong": True}),
    ("all agree\n========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n", {"value": "1 errors", "wrong": True}),
    ("Error: cannot attach\n", {"missing": "exit code 7: Error: cannot attach"})])
def test_words_of_the_sanitizer(gpu, said, row):
    from gpu_sections.sanitizer import summary
    found = summary("memcheck", said, 7)
    assert {k: v for k, v in found.items() if k != "what"} == row


def test_what_xla_has_compiled_before_is_measured(gpu, monkeypatch, tmp_path):
    """By XLA:CPU in the GPU's place: programs are compiled ahead, and not once more where they are measured."""
    pytest.importorskip("jax", reason="jax is not installed")
    from types import SimpleNamespace

    import jax
    from gpu_sections import prepare, xla
    from gpu_sections.programs import FOLDER, Case

    from hloc import api
    text = "HloModule m\nENTRY e { x = f32[3] parameter(0)  ROOT y = f32[3] add(x, x) }\n"
    found = [Case("good", text=text), Case("bad", text="HloModule")]
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(xla, "cases", lambda device: found)
    monkeypatch.setattr(xla, "xla_missing", lambda device: "")
    monkeypatch.setattr(xla, "own_device", lambda: jax.devices("cpu")[0])
    assert xla.compile_ahead(SimpleNamespace(emulated=False)) == 0
    assert xla.path_of("good").exists() and not xla.path_of("bad").exists()
    monkeypatch.setattr(prepare, "COMMAND", (sys.executable, "-c", "import sys; print('one', file=sys.stderr)"))
    row = prepare.XlaAhead().row(found, time.monotonic() + 20)
    assert row["what"] == "1 of 2 programs compiled by XLA:GPU" and row["note"] == "one"
    monkeypatch.setattr(prepare, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    assert prepare.XlaAhead().row([], time.monotonic() + 1)["missing"] == "not ready in time"
    import numpy as np
    monkeypatch.setattr(xla, "compiled", None)
    program = xla.Xla("good", api.load(text), [np.float32([1, 2, 3])])
    program.run()
    assert program.first() == 2
    assert 0 < xla.seconds(program.run) < 1


EMPTY_ELF = bytes(0x3A) + b"\x40" + bytes(5)           # a header that says: 0 sections of 64 bytes


def test_kernels_of_the_test_data_are_compiled_ahead(gpu, monkeypatch, tmp_path):
    """What `prepare` compiles is what sections ops and sanitizer find in the cache."""
    from gpu_sections import ops, prepare
    from gpu_sections.device import Device

    from hloc.targets.cuda import compiler
    from hloc.targets.cuda.gpus import GPUS
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path))
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(compiler, "compile_units", lambda units, *_: asked.append(units) or [EMPTY_ELF] * len(units))
    device = Device.__new__(Device)
    device.emulated, device.machine = False, GPUS["h200"]
    prepare.compile_one(device, "cuda/sorts", prepare.KERNELS)
    assert len(asked) == 1
    from cuda_emulation.cases import program_of
    device.built(program_of(ops.groups(device)["cuda/sorts"]()))
    assert len(asked) == 1
    assert sum(len(cases()) for cases in list(ops.groups(device).values())[-3:]) > 250
