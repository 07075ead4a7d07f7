"""What a terminal gets and a pipe does not: color, wrapped tables, progress; completion, manual pages, HLO in Pygments."""
from __future__ import annotations

import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import click
import pytest
from pygments.token import Error, Keyword, Name, Number, String

from hloc.cli.lexer import HloLexer
from hloc.cli.main import COMMANDS, cli
from hloc.cli.man import page
from hloc.cli.terminal import Progress

ROOT = Path(__file__).parent.parent
TEXT = 'HloModule m\n\nENTRY e {\n  p = f32[4] parameter(0), metadata={op_name="' + "long/" * 8 + '"}\n  ROOT y = f32[4] add(p, p)\n}\n'
BROKEN = "ENTRY e {\n  p = f32[4] parameter(0)\n  ROOT y = f32[5] add(p, p)\n}\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("m.hlo").write_text(TEXT)
    Path("broken.hlo").write_text(BROKEN)


def on_terminal(source: str, columns: int = 60, **environment: str) -> str:
    """What Python code prints on a terminal."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES", "FORCE_COLOR")}
    with subprocess.Popen([sys.executable, "-c", source], stdin=child, stdout=child, stderr=child, env={
            **clean, "TERM": "xterm", "PYTHONPATH": str(ROOT), **environment}) as process:
        os.close(child)
        read = b""
        while True:
            try:
                block = os.read(parent, 1 << 16)
            except OSError:                                # the other side is closed
                break
            if not block:
                break
            read += block
        process.wait(60)
    os.close(parent)
    return read.decode().replace("\r\n", "\n")


def hloc(*arguments: str, **environment: str) -> str:
    return on_terminal(f"import sys\nfrom hloc.cli.main import main\nsys.argv = ['hloc', *{arguments}]\nmain()",
                       **environment)


def piped(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "hloc.cli.main", *arguments], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_color_is_for_terminals(here):
    show = ("convert", "m.hlo", "-o", "-")
    plain = piped(*show).stdout
    colored = hloc(*show)
    assert "\x1b[" not in plain and "\x1b[34mROOT\x1b[" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == plain
    assert hloc(*show, NO_COLOR="1") == hloc(*show, "--color=never") == hloc(*show, TERM="dumb") == plain
    assert hloc("--color=never", *show) == plain
    assert piped(*show, "--color=always").stdout == colored


def test_messages_are_colored(here):
    told = hloc("run", "broken.hlo")
    assert told.startswith("broken.hlo:3:8: \x1b[31;1merror\x1b[0m: %y is written as")
    assert "\n         \x1b[32;1m^~~" in told
    assert re.sub(r"\x1b\[[\d;]*m", "", told) == piped("run", "broken.hlo").stderr
    assert "\x1b[33;1mwarning\x1b[0m: " in hloc("convert", "broken.hlo", "-o", "-")


def test_control_characters_of_a_text_do_not_reach_the_terminal(here):
    Path("m.hlo").write_text(TEXT.replace("long/", "\x1b]0;title\x07", 1))
    assert "\x1b]" not in hloc("convert", "m.hlo", "-o", "-") and "\x1b]0;" in piped("convert", "m.hlo", "-o", "-").stdout


TABLE = ("from hloc.cli.terminal import print_table\n"
         "print_table(['name', 'bytes', 'empty', 'reason'], [['first', '1,000', '', 'word ' * 30], ['[b]x', '2', '', 'why']], (1,))")


def test_tables_wrap_on_a_terminal_and_stay_lines_in_a_pipe():
    wide = subprocess.run([sys.executable, "-c", TABLE], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert wide.stdout.splitlines() == ["name   bytes  reason", "first  1,000  " + ("word " * 30).strip(), "[b]x       2  why"]
    lines = on_terminal(TABLE, NO_COLOR="1").splitlines()
    assert max(map(len, lines)) <= 60 and len(lines) > 4
    assert [line.split() for line in (lines[0], lines[-1])] == [["name", "bytes", "reason"], ["[b]x", "2", "why"]]
    assert "\x1b[1mname" in on_terminal(TABLE)


def test_progress_names_the_stage_after_a_second():
    source = ("import time, sys\nfrom hloc.cli.terminal import Progress\nwith Progress() as p:\n"
              "    p.report('compile', 1, 3)\n    time.sleep({0})\nsys.stdout.write('done')")
    assert "compile 1 of 3 ... 1 s" in on_terminal(source.format(1.4))
    assert on_terminal(source.format(0.1)) == "done"


def test_progress_is_silent_in_a_pipe(capsys):
    with Progress() as progress:
        progress.report("parse")
        time.sleep(1.2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    script = piped("completion", shell).stdout
    assert f"_HLOC_COMPLETE={shell}_complete" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, capture_output=True).returncode == 0
    done = subprocess.run([sys.executable, "-m", "hloc.cli.main"], capture_output=True, text=True, timeout=60, env={
        **os.environ, "PYTHONPATH": str(ROOT), "_HLOC_COMPLETE": "bash_complete", "COMP_WORDS": "hloc me", "COMP_CWORD": "1"})
    assert done.stdout == "plain,memory\n"


def test_manual_pages_have_all_that_help_says(tmp_path):
    assert piped("man", "-o", str(tmp_path / "man1")).returncode == 0
    pages = {p.name for p in (tmp_path / "man1").iterdir()}
    assert pages == {"hloc.1", *(f"hloc-{name}.1" for name in COMMANDS)}
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        text = page(cli, name)
        assert text.startswith(f'.TH "HLOC-{name.upper()}" "1"')
        for option in (o for p in command.params if isinstance(p, click.Option) for o in p.opts):
            assert option.replace("-", "\\-") in text
        assert not re.search(r"^[.'](?!(TH|SH|TP|PP|nf|fi)\b)", text, re.M)
    assert piped("man", "rnu").returncode == 2


def test_groff_reads_manual_pages():
    if not shutil.which("groff"):
        pytest.skip("groff is not installed")
    done = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-z"], input=page(cli, "run"), capture_output=True, text=True)
    assert done.stderr == ""


def test_pygments_reads_hlo():
    tokens = dict((text, kind) for kind, text in HloLexer().get_tokens(TEXT))
    assert tokens["ENTRY"] is tokens["ROOT"] is Keyword.Declaration and tokens["f32"] is Keyword.Type
    assert tokens["add"] is Name.Function and tokens["metadata"] is Name.Attribute and tokens["4"] is Number
    assert tokens['"' + "long/" * 8 + '"'] is String
    assert HloLexer.analyse_text(TEXT) == 1 and HloLexer.analyse_text("int main() {}") == 0
    assert 'hlo = "hloc.cli.lexer:HloLexer"' in (ROOT / "pyproject.toml").read_text()


def test_pygments_loses_nothing_and_is_linear():
    for path in (ROOT / "testdata" / "ops").glob("*.hlo"):
        text = path.read_text()
        tokens = list(HloLexer(stripnl=False, ensurenl=False).get_tokens(text))
        assert "".join(t for _, t in tokens) == text and Error not in {kind for kind, _ in tokens}
    for hostile in ("/*" + "*" * 20_000, '"' + "\\" * 20_001, "a" * 20_000, "1" * 20_000, "%." * 20_000):
        start = time.perf_counter()
        list(HloLexer().get_tokens(hostile))
        assert time.perf_counter() - start < 2
