"""Runs the commands of README.md and docs/: in a copy of examples/, in the order of the page.

A fence marked `console` is a session: lines that begin with `$ ` are run by a shell, the lines behind one are what it
prints. Numbers are not compared, nor spaces; `...` stands for any lines; what is shown must come in this order, other
lines may stand between. `[exit code N]` is the exit code, 0 without it. In other fences, lines that begin with `hloc`
are not run (they need a GPU, other devices, a file of the reader's), but their options must exist.
A fence that begins with `// NAME.c` or `# NAME.py` is a file of the session.
"""
from __future__ import annotations

import importlib.util
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from hloc.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"-?\d[\d.,]*(e[+-]?\d+)?")
NAMED = re.compile(r"(?://|#) ([\w-]+\.(?:c|py|cpp|h))\n")
# A command that holds the text needs the package.
NEEDS = {"--against xla": "jaxlib", ".py:": "jaxlib", "python ": "jaxlib", ".cubin": "nvidia", "--emit ptx": "nvidia"}
# A page that shows instructions of x86-64 needs such a CPU.
DISASSEMBLES = "objdump "


class Fence(NamedTuple):
    kind: str
    text: str


class Command(NamedTuple):
    line: str
    shown: list[str]
    code: int


def fences(page: Path) -> list[Fence]:
    return [Fence(*found) for found in FENCE.findall(page.read_text(encoding="utf-8"))]


def commands(session: str) -> list[Command]:
    found: list[Command] = []
    for line in session.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], [], 0))
        elif code := re.fullmatch(r"\[exit code (\d+)\]", line):
            found[-1] = found[-1]._replace(code=int(code.group(1)))
        else:
            found[-1].shown.append(line)
    return found


def bare(line: str) -> str:
    """A line without its numbers and its columns' widths."""
    return " ".join(NUMBER.sub("#", line).split())


def missing(shown: list[str], printed: str) -> str | None:
    """The first line of the page that is not printed, behind those above it."""
    rest = iter([bare(line) for line in printed.splitlines()])
    return next((line for line in shown if line.strip() and line != "..." and bare(line) not in rest), None)


@pytest.fixture
def session(tmp_path):
    """A folder that holds examples/ and `hloc`, `python` of this environment; runs commands there."""
    files = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=files)
    (tmp_path / "bin").mkdir()
    for name, arguments in (("hloc", "-m hloc.cli.main"), ("python", "")):
        script = tmp_path / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
                   "COLUMNS": "200"}

    def run(line: str) -> tuple[int, str]:
        done = subprocess.run(line, shell=True, cwd=tmp_path / "examples", env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        return done.returncode, done.stdout

    run.folder = tmp_path / "examples"
    return run


SESSIONS = [page for page in PAGES if any(fence.kind == "console" for fence in fences(page))]


@pytest.mark.parametrize("page", SESSIONS, ids=lambda p: str(p.relative_to(ROOT)))
def test_sessions_print_what_the_page_shows(page, session):
    lines = [command.line for fence in fences(page) if fence.kind == "console" for command in commands(fence.text)]
    for text, package in NEEDS.items():
        if any(text in line for line in lines) and importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    if any(DISASSEMBLES in line for line in lines) and (platform.machine() != "x86_64" or not shutil.which("objdump")):
        pytest.skip("objdump and a CPU with x86-64 are needed")
    for fence in fences(page):
        if named := NAMED.match(fence.text):
            (session.folder / named.group(1)).write_text(fence.text)
        if fence.kind != "console":
            continue
        for command in commands(fence.text):
            if command.line.startswith("cd "):
                continue                                  # all sessions run in examples/
            code, printed = session(command.line)
            assert code == command.code, f"$ {command.line}\n{printed}"
            absent = missing(command.shown, printed)
            assert absent is None, f"$ {command.line}\nnot printed: {absent}\n{printed}"


def test_the_python_of_the_readme_runs(session):
    (program,) = [fence.text for fence in fences(ROOT / "README.md") if fence.kind == "python"]
    (session.folder / "program.py").write_text(program)
    code, printed = session("python program.py")
    assert code == 0 and "HloModule jit_model" in printed, printed


def other_commands() -> list[tuple[str, str]]:
    """The page and the line of every hloc command that is shown but not run."""
    found = []
    for page in PAGES:
        for fence in fences(page):
            if fence.kind in ("", "sh"):
                lines = [line.removeprefix("$ ") for line in fence.text.splitlines()]
                found += [(page.name, line) for line in lines if re.match(r"hloc [a-z]+ ", line)]
    return found


@pytest.mark.parametrize("page, line", other_commands())
def test_options_that_pages_show_exist(page, line):
    _, name, *arguments = shlex.split(re.split(r" (?:\||\|\||&&|>) ", line)[0], comments=True)
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, line
    command.make_context(name, arguments, resilient_parsing=False)


def test_commands_are_read_with_their_output_and_exit_code():
    first, second = commands("$ a --x\none 1.5\n...\n$ b\n[exit code 3]\n")
    assert first == ("a --x", ["one 1.5", "..."], 0) and second == ("b", [], 3)
    assert missing(first.shown, "before\none   27\nbehind") is None
    assert missing(["two", "one"], "one\ntwo") == "one" and missing(["one x"], "one y") == "one x"


def test_every_command_is_described():
    pages = (ROOT / "docs" / "commands").glob("*.md")
    described = [name for page in pages for name in re.findall(r"^##? hloc (\w+)$", page.read_text("utf-8"), re.MULTILINE)]
    assert sorted(described) == sorted(cli.list_commands(None))


def test_links_between_pages_lead_somewhere():
    """Relative links of README.md and docs/: the file exists, and so does the heading that is named."""
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if not file.exists() or (anchor and anchor not in headings(file)):
                broken.append(f"{page.name}: {target}")
    assert broken == []


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (extra: docs)")
    done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
                          cwd=ROOT, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.rglob("*.html"):
        assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=[\"'](?:https?:)?//", page.read_text("utf-8")), page
    assert "Why is it slow?" in (tmp_path / "index.html").read_text("utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    assert pages == listed
    benchmarks = (tmp_path / "benchmarks.html").read_text("utf-8")
    (plot,) = re.findall(r'src="(images/[^"]+\.png)"', benchmarks)
    assert (tmp_path / plot).exists() and "../benchmarks/" not in benchmarks


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout: this is the sdist itself")
def test_the_sdist_holds_what_its_tests_read():
    """Everything at the top that git tracks is in MANIFEST.in, or setuptools adds it."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    listed = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").split()
    added = {"README.md", "LICENSE", "pyproject.toml", "MANIFEST.in", "hloc", ".gitignore"}
    assert {name.split("/")[0] for name in tracked} - added - set(listed) == set()
