"""What engineers come for, from the command line alone: two models in one C program, NaN to a line of Python, what is
slow to a named matmul and its line, what differs to a named pass."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hloc.cli.main import main
from hloc.passes.pipelines import pipeline_for
from hloc.tools import bisect as bisecting

EXAMPLES = Path(__file__).parent.parent / "examples"
LOSSY = """HloModule lossy
ENTRY e {
  x = f32[8,16] parameter(0)
  y = f32[8,16] parameter(1)
  e = f32[8,16] exponential(x)
  ROOT p = f32[8,16] multiply(e, y), metadata={source_file="net.py" source_line=12}
}
"""


def hloc(*arguments: object, code: int = 0) -> None:
    sys.argv = ["hloc", *map(str, arguments)]
    try:
        main()
    except SystemExit as end:
        assert (end.code or 0) == code
    else:
        assert code == 0


@pytest.mark.skipif(shutil.which("gcc") is None, reason="the C program is compiled by gcc")
def test_two_models_in_one_c_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("encoder", "decoder"):
        hloc("compile", EXAMPLES / "ahead" / f"{name}.hlo", "-o", f"{name}.so", "--name", name, "--target", "cpu")
    subprocess.run(["gcc", "-Wall", "-Werror", "-I.", str(EXAMPLES / "ahead" / "main.c"), "encoder.so", "decoder.so",
                    "-Wl,-rpath,$ORIGIN", "-o", "both"], check=True, timeout=300)
    done = subprocess.run(["./both"], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split()[:2] == ["0.92423", "0.48984"]


def test_nan_to_a_line_of_python(capsys):
    hloc("nans", EXAMPLES / "loss.hlo", "--inputs", EXAMPLES / "loss.npz", "--json", code=1)
    (found,) = json.loads(capsys.readouterr().out)["origins"]
    frame = found["source"][0]
    assert (found["instruction"], found["opcode"]) == ("mul.1", "multiply")
    assert (frame["file"], frame["line"], frame["function"]) == ("loss.py", 8, "cross_entropy")


def test_slow_to_a_named_matmul_and_its_line(capsys):
    hloc("run", EXAMPLES / "slow.hlo", "--profile", "--repeat", "2", "-t", "cpu", "--json")
    slowest = json.loads(capsys.readouterr().out)["profile"][0]
    assert (slowest["operation"]["name"], slowest["operation"]["opcode"]) == ("dot_general.2", "dot")
    frame = slowest["source"][0]
    assert (frame["file"], frame["line"], frame["function"]) == ("slow.py", 8, "project")


def divides(module, context) -> bool:
    """A pass with a fault."""
    for instruction in module.entry.instructions:
        if instruction.opcode == "multiply":
            instruction.opcode = "divide"
            return True
    return False


def test_differing_to_a_named_pass(tmp_path, capsys, monkeypatch):
    """check says so, bisect names the pass; both compile with the pass that was planted."""
    right = pipeline_for("cpu")
    wrong = (*right[:8], divides, *right[8:])
    for place in ("hloc.passes.pipelines.pipeline_for", "hloc.tools.bisect.pipeline_for"):
        monkeypatch.setattr(place, lambda *_: wrong)
    assert bisecting.pipeline_for("cpu") is wrong
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path / "cache"))          # programs of the right passes are there
    (tmp_path / "lossy.hlo").write_text(LOSSY)
    hloc("check", tmp_path / "lossy.hlo", "-t", "cpu", code=1)
    assert "result.0" in capsys.readouterr().out
    hloc("bisect", tmp_path / "lossy.hlo", "-t", "cpu", "--json", code=1)
    assert json.loads(capsys.readouterr().out)["culprit"] == "pass divides"
