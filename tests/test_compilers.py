"""$CC in whatever state: one error for each, in bounded time; and a cache that tells one command from another."""
from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from test_runtime import DOUBLE

import hloc
from hloc import processes
from hloc.errors import BuildError
from hloc.processes import NotFinished
from hloc.targets.cpu.building import toolchain

ANSWERS = '#!/bin/sh\nif [ "$1" = --version ]; then echo "mine 1.0"; exit 0; fi\n'


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Nothing is compiled yet; compilers have a second to answer."""
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("HLOC_PRECOMPILED", "0")
    monkeypatch.setattr(toolchain, "VERSION_SECONDS", 3.0)
    monkeypatch.setattr(toolchain, "COMPILE_SECONDS", 2.0)
    toolchain._version.cache_clear()
    yield tmp_path
    toolchain._version.cache_clear()


def program(folder: Path, text: str) -> str:
    path = folder / "my cc"
    path.write_text(text)
    path.chmod(0o755)
    return f"'{path}'"


@pytest.mark.parametrize("given, words", [
    ("'gcc", "cannot be split into words: No closing quotation"), ('gcc "', "No closing quotation"),
    ("gcc \\", "No escaped character"), (" \t", "holds no word"), ("''", "is not a C compiler"),
    ("/nowhere/cc", "No such file"), ("'gcc -O1'", "No such file"), ("/", "Permission denied"),
    ("false", "exit code 1"), ("yes --", "printed more than 16 MiB"),
    ("cat /dev/zero --", "printed more than 16 MiB")])
def test_what_is_no_compiler(fresh, monkeypatch, given, words):
    monkeypatch.setenv("CC", given)
    with pytest.raises(BuildError) as caught:
        hloc.compile(DOUBLE % (4, 4), "cpu")
    assert words in caught.value.message and repr(given) in caught.value.message
    assert caught.value.hint and caught.value.code == 5


@pytest.mark.parametrize("script, words", [
    ("#!/bin/sh\nsleep 1000\n", "did not finish in 3 s"),
    ("#!/bin/sh\nsleep 1000 & exec sleep 1000\n", "did not finish in 3 s"),
    ("#!/bin/sh\nexit 0\n", "it prints nothing"),
    ("#!/bin/sh\necho; echo\n", "it prints nothing"),
    ("#!/bin/sh\nkill -SEGV $$\n", "exit code -11"),
    (ANSWERS, "wrote no code"),
    (ANSWERS + "echo out of luck >&2\n", "wrote no code\nout of luck"),
    (ANSWERS + 'for last; do :; done; echo junk > "$last"\n', "wrote no code"),
    (ANSWERS + 'for last; do case "$last" in *.o|*.so) printf "\\177ELF" > "$last";; esac; done\n', "is not a program"),
    (ANSWERS + "exit 3\n", "failed (exit 3)"),
    (ANSWERS + "printf '\\377\\376\\033[2J' >&2; exit 1\n", "\\xff\\xfe"),
    (ANSWERS + "head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1\n", "failed (exit 1)"),
    (ANSWERS + "cat /dev/zero\n", "printed more than 16 MiB"),
    (ANSWERS + "sleep 1000\n", "did not finish in 2 s"),
    (ANSWERS + "exec >&- 2>&-; sleep 1000\n", "did not finish in 2 s"),
    ("#!/bin/sh\nprintf '\\377\\376'\n", "wrote no code"),
    ("not a script\n", ""),
])
def test_compilers_that_do_not_compile(fresh, monkeypatch, script, words):
    monkeypatch.setenv("CC", program(fresh, script))
    start = time.monotonic()
    with pytest.raises(BuildError) as caught:
        hloc.compile(DOUBLE % (4, 4), "cpu")
    assert words in caught.value.message and len(str(caught.value)) < 2000 and "\033" not in str(caught.value)
    assert time.monotonic() - start < 30


def test_a_quoted_path_with_blanks_and_options_is_a_compiler(fresh, monkeypatch):
    monkeypatch.setenv("CC", program(fresh, '#!/bin/sh\nexec cc "$@"\n') + " -DMY='a b'")
    monkeypatch.setattr(toolchain, "COMPILE_SECONDS", 100.0)
    assert hloc.compile(DOUBLE % (4, 4), "cpu") is not None


def test_a_version_that_is_no_text(fresh, monkeypatch):
    monkeypatch.setenv("CC", program(fresh, "#!/bin/sh\nprintf 'gcc (Gr\\366\\337e) 12.2\\n'\n"))
    assert toolchain.find().version == "gcc (Gr\\xf6\\xdfe) 12.2"


def test_programs_of_other_commands_are_others():
    """The key holds the whole command; links to one compiler are the same."""
    chain = toolchain.find()
    others = [replace(chain, command=(*chain.command, flag)) for flag in ("-O0", "-fwrapv")]
    others += [replace(chain, version="other"), replace(chain, machine=replace(chain.machine, march="x86-64")),
               replace(chain, command=(sys.executable,))]
    assert len({c.identity() for c in (chain, *others)}) == 6


def test_links_to_a_compiler_are_the_same(tmp_path):
    chain = toolchain.find()
    link = tmp_path / Path(chain.command[0]).name
    link.symlink_to(chain.command[0])
    assert replace(chain, command=(str(link), *chain.command[1:])).identity() == chain.identity()


def test_what_a_program_started_ends_with_it(tmp_path):
    script = "import subprocess, time; print(subprocess.Popen(['sleep', '1000']).pid, flush=True); time.sleep(1000)"
    told = tmp_path / "pid"
    with pytest.raises(NotFinished):
        processes.run(["sh", "-c", f'"{sys.executable}" -c "{script}" > {told}'], 2.0)
    for _ in range(100):
        if not _runs(int(told.read_text())):
            return
        time.sleep(0.05)
    pytest.fail("it still runs")


def _runs(pid: int) -> bool:
    """Neither gone nor dead and waiting for its parent to look."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_program_in_the_background_is_not_waited_for():
    start = time.monotonic()
    done = processes.run(["sh", "-c", "sleep 5 & echo out; echo err >&2; exit 7"], 60)
    assert done == (7, "out\n", "err\n") and time.monotonic() - start < 4


def test_a_program_that_is_not_needed_any_more():
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    start = time.monotonic()
    with pytest.raises(NotFinished, match="not needed"):
        processes.run(["sleep", "100"], 100, stop=stop)
    assert time.monotonic() - start < 10


def test_one_unit_that_fails_ends_the_others(fresh, monkeypatch):
    """The first fails at once, the others would take as long as they may."""
    monkeypatch.setenv("CC", program(fresh, ANSWERS + f'mkdir "{fresh}/first" 2>/dev/null && exit 1; sleep 1000\n'))
    monkeypatch.setattr(toolchain, "COMPILE_SECONDS", 100.0)
    start = time.monotonic()
    with pytest.raises(BuildError, match="exit 1"):
        _ = hloc.compile(DOUBLE % (4, 4), "cpu", run=False).backend
    assert time.monotonic() - start < 30


def test_doctor_and_the_command_line_say_so(fresh):
    environment = {**os.environ, "CC": "'gcc", "PYTHONPATH": str(Path(hloc.__file__).parent.parent)}
    (fresh / "m.hlo").write_text(DOUBLE % (4, 4))
    for command, code in ((["run", "m.hlo"], 5), (["doctor"], 0), (["precompile"], 5), (["compile", "m.hlo", "-o", "m.so"], 5)):
        done = subprocess.run([sys.executable, "-m", "hloc.cli.main", *command], cwd=fresh, env=environment,
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == code and "Traceback" not in done.stderr, (command, done.stderr)
