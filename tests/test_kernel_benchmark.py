"""benchmarks/kernels.py and compare.py: their modules are valid HLO, and a comparison finds what differs."""
from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import hloc

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from compare import report  # noqa: E402
from kernel_modules import modules  # noqa: E402


def test_modules_are_valid_and_many():
    found = modules()
    assert 550 < len(found) < 700
    families = Counter(m.family for m in found)
    assert min(families.values()) >= 10
    for m in found[::7]:
        hloc.load(m.text)


def test_words_choose():
    assert {m.family for m in modules("softmax")} == {"normalization"} and modules("no such kernel") == []


def run(script: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(BENCHMARKS / script), *arguments], capture_output=True, text=True, timeout=300)


def test_figures_are_written(tmp_path):
    output = tmp_path / "k.json"
    done = run("kernels.py", "4x4x4 f32", "--seconds", "0.01", "--output", str(output))
    assert done.returncode == 0, done.stderr
    rows = json.loads(output.read_text())["rows"]
    assert [r["name"] for r in rows] == ["4x4x4 f32", "512 of 4x4x4 f32"] and all(r["us"] > 0 for r in rows)
    assert "matmul" in done.stdout


def test_two_checkouts_are_compared():
    here = str(BENCHMARKS.parent)
    done = run("compare.py", here, here, "4x4x4 f32", "--seconds", "0.02")
    assert done.returncode in (0, 1), done.stderr
    assert "results differ" not in done.stdout and "all                      2" in done.stdout


def test_what_differs_is_listed(capsys):
    row = {"family": "f", "name": "m", "old_us": 1.0, "new_us": 2.0, "ratio": 2.0, "compile_ratio": 1.0, "same": False}
    assert report([row, {"family": "f", "name": "n", "error": "HlocError: no"}]) == pytest.approx(2)
    text = capsys.readouterr().out
    assert "2.00  f: m  1.0 -> 2.0 us" in text and "results differ: f: m" in text and "f: n: HlocError: no" in text


def test_unknown_versions_are_errors():
    done = run("compare.py", "no-such-revision", ".", "4x4x4 f32")
    assert done.returncode == 1 and "neither a checkout of hloc nor a revision" in done.stderr
