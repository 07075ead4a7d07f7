"""benchmarks/vs_torch.py: what it makes of its measurements, and what it says where something is missing or wrong."""
from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import vs_torch  # noqa: E402
from networks.programs import LAYERS, PROGRAMS  # noqa: E402

has_torch = importlib.util.find_spec("torch") is not None


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(ROOT / "benchmarks" / "vs_torch.py"), *arguments], capture_output=True, text=True,
                          timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)})


def rounds(*factors: float) -> list[dict]:
    """In each round all sides take `factor` times as long: hloc 1, bound 0.5, eager 3, inductor 2, frozen 1 ms."""
    milliseconds = {"hloc": 1, "bound": 0.5, "eager": 3, "inductor": 2, "frozen": 1}
    return [{side: (f * ms * 1e-3, f * ms * 2e-3) for side, ms in milliseconds.items()} for f in factors]


def test_ratios_are_of_one_round():
    found = vs_torch.summary(rounds(1, 10, 2))
    assert found["cpu"]["inductor"] == pytest.approx(4) and found["wall"]["bound"] == pytest.approx(2)
    assert found["cpu_ratio"]["hloc/inductor"] == pytest.approx(0.5) and found["wall_ratio"]["bound/frozen"] == pytest.approx(0.5)


def test_table_and_means():
    rows = {"vit": vs_torch.summary(rounds(1)), "conv_1x1": vs_torch.summary(rounds(2)), "resnet50": {"failed": "no answer in 900 s"}}
    lines = vs_torch.table(rows).splitlines()
    assert lines[2].startswith("| vit | 1.00 | 0.50 | 3.00 | 2.00 | 1.00 | 0.50 (0.50) |") and len(lines) == 7
    assert lines[5].startswith("Geometric means over 1 networks") and "bound / inductor 0.25" in lines[6]


@pytest.mark.parametrize("got, error", [([1.0, 2.0], 0.0), ([1.0, 2.5], 0.25), ([1.0], math.inf)])
def test_errors_are_relative_to_the_largest_magnitude(got, error):
    assert vs_torch.error_of(np.asarray(got), np.asarray([1.0, 2.0])) == error


def test_problems_are_named():
    rows = {"vit": {"failed": "no answer"}, "resnet50": {"wrong": ["bound"], "error": {"bound": 0.5}}, "convnext": {"wrong": []}}
    assert vs_torch.problems(rows) == ["vit: no answer", "resnet50: bound is wrong: its error is 5.0e-01 of the largest magnitude"]


def test_programs_are_chosen():
    assert vs_torch.chosen([]) == list(PROGRAMS) and vs_torch.chosen(["layers", "conv_1x1"]) == list(LAYERS)
    done = run("--programs", "vgg")
    assert done.returncode == 1 and done.stderr.startswith("no program is called vgg; there are networks, layers, vit, ")
    assert len(run("--list").stdout.splitlines()) == len(PROGRAMS)


@pytest.mark.skipif(has_torch, reason="PyTorch is installed")
def test_without_torch():
    done = run("--programs", "vit")
    assert done.returncode == 1 and "torch not installed: pip install 'hloc[jax,torch]'" in done.stderr


@pytest.mark.skipif(not has_torch, reason="PyTorch is not installed (extra: torch)")
@pytest.mark.parametrize("wrong", [False, True])
def test_results_are_compared(monkeypatch, wrong):
    """All sides against PyTorch in f64; a layer with another bias in JAX is found."""
    pytest.importorskip("jax", reason="jax is not installed (extra: jax)")
    from networks import operations
    if wrong:
        dense = operations.JaxOperations.dense
        monkeypatch.setattr(operations.JaxOperations, "dense", lambda *a, **k: dense(*a, **k) + 0.01)
    found = vs_torch.measure("product_1024", 1, 1)
    assert found["wrong"] == (["hloc", "bound"] if wrong else []) and set(found["cpu"]) == set(vs_torch.SIDES)
