"""Whatever file a command is told to read: one error that says where, an exit code, soon, and in bounded memory.

Commands and their options come from the command line itself: a new one is tried without a line here.
"""
from __future__ import annotations

import os
import re
import resource
import sys
import time
from pathlib import Path

import click
import pytest

from hloc.cli.main import COMMANDS, cli, main

ADD = "HloModule add\nENTRY e {\n  x = f32[2,3] parameter(0)\n  ROOT s = f32[2,3] add(x, x)\n}\n"
LONG, LONGEST = 4 << 20, 100 << 20
MOST_SECONDS, MOST_BYTES = 60, 1 << 30                  # of this process, which other tests slow down
FILES = ("missing", "empty", "folder", "/dev/zero", "long", "garbage", "loop", "pipe", "text")
WRITTEN = frozenset({"output", "outfeed", "dump_dir"})      # and --trace, whose file is refused by its name
# What a command needs beside the file, and a target that reads it.
MORE = {"extract": ("--around", "s"), "diff": ("add.hlo",), "run": ("-t", "cpu"),
        "check": ("-t", "cpu"), "bench": ("-t", "cpu"), "compile": ("-t", "h100"), "report": ("--measure",), "simulate": ("-c", "dgx-h100")}
ENDINGS = {"compile": ".cu", "convert": ".pb", "graph": ".html", "report": ".html", "diff": ".html", "bundle": ".hlocz",
           "opt": ".hlo"}
ERROR = re.compile(r"^(?:[^\n]*: )?error: \S", re.M)


def reads(command: click.Command) -> list[click.Parameter]:
    """The arguments and options that name a file to read."""
    return [p for p in command.params if p.name not in WRITTEN and p.metavar and (
        p.param_type_name == "argument" and "MODULE" in p.metavar or "FILE" in p.metavar)]


CONTEXT = click.Context(cli)
PLACES = [(name, p.name) for name in COMMANDS for p in reads(cli.get_command(CONTEXT, name))]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a module, and files of every kind."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "add.hlo").write_text(ADD)
    (folder / "empty").write_bytes(b"")
    (folder / "folder").mkdir()
    (folder / "garbage").write_bytes(bytes(range(256)) * 64)
    (folder / "text").write_text("HloModule m\nENTRY e {\n  ROOT x = f32[3] nothing()\n}\n")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "long").write_bytes(b"a" * LONG)
    return folder


def command_line(name: str, place: str, file: str) -> list[str]:
    command = cli.get_command(CONTEXT, name)
    given = next(p for p in command.params if p.name == place)
    words = [name]
    if given.param_type_name == "option":
        words += ["add.hlo", given.opts[0], re.sub(r"[\w.|]*FILE.*", file, given.metavar).replace("CHANNEL", "1")]
    elif place == "second":
        words += ["add.hlo", file]
    else:
        words += [file]
    more = MORE.get(name, ())
    words += () if place in ("second", "cluster") else more
    if any(p.name == "output" and p.required for p in command.params):
        words += ["-o", f"made{ENDINGS.get(name, '.out')}"]
    if place == "tuning":
        words = [w for n, w in enumerate(words) if w not in ("-t", "cpu", "h100")] + ["-t", "h100"]
    return words


def one_error(words: list[str], file: str, capfd, monkeypatch) -> None:
    for old in Path().glob("made*"):
        old.unlink()
    monkeypatch.setattr(sys, "argv", ["hloc", *words])
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(SystemExit) as ended:
        main()
    seconds, told = time.process_time() - start, capfd.readouterr()
    assert ended.value.code in (2, 3, 6), told.err
    assert len(ERROR.findall(told.err)) == 1 and "Traceback" not in told.err, told.err
    assert Path(file).name in told.err and len(told.err) < 4000, told.err
    assert seconds < MOST_SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10 < MOST_BYTES
    assert not list(Path().glob("made*"))


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name, place", PLACES)
def test_one_error(files, name, place, file, capfd, monkeypatch):
    if place == "tuning" and file == "missing":
        return                                          # then it is written
    if (name, place) == ("bundle", "module") and file in ("empty", "long", "garbage", "text"):
        return                                          # what cannot be read is packed, too: to be reported
    monkeypatch.chdir(files)
    one_error(command_line(name, place, file), file, capfd, monkeypatch)


@pytest.mark.parametrize("name, place", [("run", "--inputs"), ("run", "module"), ("opt", "module")])
def test_a_hundred_megabytes(files, name, place, capfd, monkeypatch):
    """Of one word (hloc/text/long_words.py)."""
    monkeypatch.chdir(files)
    with open("longest", "wb") as file:
        for _ in range(LONGEST >> 20):
            file.write(b"a" * (1 << 20))
    words = ["longest"] if place == "module" else ["add.hlo", place, "longest"]
    one_error([name, *words, "-t", "cpu"], "longest", capfd, monkeypatch)


def test_every_command_is_tried():
    """But for those that read no file."""
    assert {*COMMANDS} - {name for name, _ in PLACES} == {
        "precompile", "doctor", "completion", "man", "explore"}          # explore opens what does not parse, to edit it
