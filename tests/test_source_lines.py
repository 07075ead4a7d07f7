"""Lines of the user's program: metadata and the module's tables, in errors and in what commands print."""
from __future__ import annotations

import json

import pytest
from test_cli import run

import hloc
from hloc.errors import VerifyError
from hloc.proto.files import write_proto
from hloc.source_lines import Frame, frames, op_name, written_at

# As JAX writes them: parents count from 1, a frame without one names itself.
TABLES = """FileNames
1 "/home/u/loss.py"
2 "train.py"

FunctionNames
1 "norm"
2 "loss"
3 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=11 end_column=25}
2 {file_name_id=1 function_name_id=2 line=6 end_line=6 column=19 end_column=26}
3 {file_name_id=2 function_name_id=3 line=30 end_line=30 column=4 end_column=9}

StackFrames
1 {file_location_id=3 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=1 parent_frame_id=3}
"""
MODULE = f"""HloModule m

{TABLES}
ENTRY e {{
  x = f32[64] parameter(0), metadata={{op_name="x"}}
  l = f32[64] log(x), metadata={{op_name="jit(step)/log" stack_frame_id=3}}
  ROOT y = f32[64] add(l, l), metadata={{op_name="jit(step)/add" stack_frame_id=2}}
}}
"""
CHAIN = "loss.py:3 (norm), called at loss.py:6 (loss), train.py:30 (step)"


def test_frames_lead_outwards():
    assert frames("stack_frame_id=3", TABLES) == (
        Frame("/home/u/loss.py", "norm", 3), Frame("/home/u/loss.py", "loss", 6), Frame("train.py", "step", 30))
    assert written_at("stack_frame_id=3", TABLES) == CHAIN
    assert written_at("stack_frame_id=3", TABLES, callers=1) == "loss.py:3 (norm), called at loss.py:6 (loss)"


@pytest.mark.parametrize("metadata, tables, expected", [
    ('op_name="f"', TABLES, ""), ("stack_frame_id=0", TABLES, ""), ("stack_frame_id=9", TABLES, ""),
    ("stack_frame_id=1", "", ""), ('source_file="/a/b.py" source_line=12', "", "b.py:12"),
    ('source_file="/a/b.py"', "", "b.py"), ('source_file="/a/b.py" source_line=4 stack_frame_id=1', TABLES,
                                            "train.py:30 (step)"),
    ("stack_frame_id=" + "9" * 5000, TABLES, ""),
    ("stack_frame_id=1", 'StackFrames\n1 {file_location_id=1 parent_frame_id=3}\n2 {parent_frame_id=2}', ""),
    ("stack_frame_id=1", TABLES.replace("{file_location_id=3 parent_frame_id=1}", "{file_location_id=3 parent_frame_id=3}"),
     "train.py:30 (step), called at loss.py:6 (loss), train.py:30 (step), loss.py:6 (loss)"),
], ids=["no place", "none", "unknown", "no tables", "a file", "no line", "both", "huge", "broken tables", "a circle"])
def test_what_is_not_there(metadata, tables, expected):
    assert written_at(metadata, tables) == expected


def test_names_of_operations():
    assert op_name('op_type="add" op_name="jit(f)/add"') == "jit(f)/add" and op_name("") == ""


@pytest.mark.parametrize("form", ["text", "proto"])
def test_instructions_know_their_frames(form, tmp_path):
    module = hloc.load(MODULE)
    if form == "proto":
        path = tmp_path / "m.pb"
        path.write_bytes(write_proto(module))
        module = hloc.load(path)
    log = next(i for i in module.entry.instructions if i.opcode == "log")
    assert [str(f) for f in log.written_at()] == ["loss.py:3 (norm)", "loss.py:6 (loss)", "train.py:30 (step)"]


def test_errors_say_where_the_line_was_written():
    with pytest.raises(VerifyError) as error:
        hloc.load(MODULE.replace("f32[64] log", "f32[63] log"))
    assert str(error.value).endswith(f"\n  written at {CHAIN}")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.hlo").write_text(MODULE)
    return "m.hlo"


@pytest.mark.parametrize("arguments, key", [
    (["run", "m.hlo", "-t", "cpu", "--profile", "--inputs", "zeros"], "profile"), (["explain", "m.hlo", "-t", "cpu", "--kernels"], "kernels"),
    (["memory", "m.hlo", "-t", "cpu"], None), (["nans", "m.hlo", "--inputs", "zeros", "--infinities"], "origins"),
], ids=lambda v: v[0] if isinstance(v, list) else "")
def test_commands_show_source_lines(arguments, key, path, capsys):
    _, out, _ = run(capsys, *arguments)
    assert "loss.py:" in out
    _, out, _ = run(capsys, *arguments, "--json")
    found = json.loads(out)
    if key:
        assert found[key][0]["source"][0]["file"] == "/home/u/loss.py"


def test_generated_code_says_so(path, capsys):
    run(capsys, "compile", "m.hlo", "-t", "cpu", "-o", "m.c")
    with open("m.c", encoding="utf-8") as file:
        assert "jit(step)/log, loss.py:3 (norm) */" in file.read()
