"""What benchmarks/ makes of its measurements: summary, tables, plot, and a page that can be written again and again."""
from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("benchmark_report", ROOT / "benchmarks" / "report.py")
report = importlib.util.module_from_spec(spec)
spec.loader.exec_module(report)


def row(name: str, hloc: float, xla: float, unfused: float) -> dict:
    return {"module": name, "hloc": hloc, "xla": xla, "fused": hloc, "unfused": unfused, "parse": 0.1, "compile_cold": 2.0,
            "compile_warm": 0.1, "compile_xla": 1.0, "memory": 1 << 20, "memory_xla": 2 << 20, "error": 1e-6, "floor": 0.5,
            "most_fusion": 3.0, "agrees": True}


@pytest.fixture
def state():
    rows = [row("a", 1.0, 4.0, 2.0), row("b", 2.0, 2.0, 4.0), {"module": "c", "failed": "no answer in 60 s"}]
    return {"date": "2026-01-01", "machine": {"cpu": "a CPU", "cores": 2, "load": 0.0, "compiler": "cc 12", "jax": "1"},
            "modules": rows, "summary": report.summary(rows)}


def test_summary(state):
    told = state["summary"]
    assert told["run"] == pytest.approx(0.5) and told["fusion"] == pytest.approx(2.0)
    assert (told["modules"], told["failed"], told["slower_than_xla"], told["slower_fused"]) == (2, 1, 0, 0)
    assert told["most_fusion"] == pytest.approx(3.0) and told["bounded"] == 2
    assert told["memory"] == pytest.approx(0.5) and told["more_memory_than_xla"] == 0


def test_nothing_measured():
    told = report.summary([{"module": "c", "failed": "no answer"}])
    assert told["run"] is None and told["failed"] == 1


def test_the_page_is_rewritten_between_its_marks(state, tmp_path):
    page = tmp_path / "docs" / "benchmarks.md"
    page.parent.mkdir()
    page.write_text((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8"), encoding="utf-8")
    report.write_docs(state, page, tmp_path / "benchmarks" / "results" / "2026-01-01")
    first = page.read_text(encoding="utf-8")
    assert "| a | 1000.000 | 4000.000 | 0.25 | 500.000 | 2.00x | 3.00x |" in first and "- c: no answer in 60 s" in first
    assert "](../benchmarks/results/2026-01-01.png)" in first and "## Method" in first
    report.write_docs(state, page, tmp_path / "benchmarks" / "results" / "2026-01-01")
    assert page.read_text(encoding="utf-8") == first


def test_a_page_without_marks_is_left_alone(state, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("text\n")
    with pytest.raises(SystemExit, match="no place"):
        report.write_docs(state, page, tmp_path / "x")
    assert page.read_text() == "text\n"


def test_readme_says_what_the_tables_say(state, tmp_path):
    newest = json.loads(max((ROOT / "benchmarks" / "results").glob("2*.json")).read_text(encoding="utf-8"))
    assert report.sentence(newest) in (ROOT / "README.md").read_text(encoding="utf-8")
    page = tmp_path / "README.md"
    page.write_text("It is fast, in 0.5 of XLA's time (geometric mean of [3 models](docs/benchmarks.md), two cores;\n"
                    "from 0.1 to 2.0). More.\n")
    report.write_readme(state, page)
    assert page.read_text() == f"It is fast, {report.sentence(state)}. More.\n"
    with pytest.raises(SystemExit, match="no sentence"):
        page.write_text("nothing")
        report.write_readme(state, page)


def test_plot(state, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (extra: bench)")
    report.plot(state, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("place, said", [("nowhere", "no such file or folder"), ("empty", "no .hlo file")])
def test_places_without_modules(tmp_path, place, said):
    (tmp_path / "empty").mkdir()
    done = subprocess.run([sys.executable, str(ROOT / "benchmarks" / "vs_xla.py"), place], cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith(f"{place}: ") and said in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["empty"]
