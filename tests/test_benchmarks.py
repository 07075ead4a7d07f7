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
    tables = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "benchmarks" / "results").glob("2*.json"))]
    assert report.sentence(tables) in (ROOT / "README.md").read_text(encoding="utf-8")
    page = tmp_path / "README.md"
    page.write_text(f"Before.\n{report.README_START}\nold\n{report.README_END}\nAfter.\n")
    report.write_readme([state], page)
    assert page.read_text() == f"Before.\n{report.README_START}\n{report.sentence([state])}\n{report.README_END}\nAfter.\n"
    with pytest.raises(SystemExit, match="no place"):
        page.write_text("nothing")
        report.write_readme([state], page)


def test_small_models_do_not_enter_the_headline():
    """In seconds: XLA takes 4 ms and 2 ms for the full-size ones, 0.1 ms for the small one."""
    def table(*rows):
        return {"machine": {"cores": 2}, "modules": [*rows, {"module": "d", "failed": "no answer"}]}

    newest = table(row("a", 1e-3, 4e-3, 1e-3), row("b", 2e-3, 2e-3, 2e-3), row("c", 1e-6, 1e-4, 1e-6))
    told = report.sentence([table(row("a", 3e-3, 4e-3, 3e-3)), newest])
    assert "in 0.50 of XLA's time" in told and "over the 2\n" in told and "between 0.25 and 1.00 (two cores;" in told
    assert "0.50 to 0.75 in the 2 tables" in told and "The 1 smaller ones take 0.01 of XLA's time" in told
    assert "smaller" not in report.sentence([table(row("a", 3e-3, 4e-3, 3e-3))])
    summary = report.summary(newest["modules"])
    assert (summary["full_size"], summary["modules"]) == (2, 3)
    assert (summary["run_full_size"], summary["run_small"]) == (pytest.approx(0.5), pytest.approx(0.01))
    assert report.speeds(summary) == "0.50 of XLA's over the 2 models that take XLA more than a millisecond, 0.01 over 1 smaller ones"


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
