"""Signals: what runs ends soon, and nothing is left behind."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

HLOC = (sys.executable, "-m", "hloc.cli.main")
SOON = 5.0                              # seconds: one, and what a machine with all cores taken adds
SINES = "".join(f"  a{n} = c64[1000] {'sine' if n % 2 else 'tanh'}(r{n - 1})\n"
                f"  r{n} = c64[1000] reverse(a{n}), dimensions={{0}}\n" for n in range(1, 80))
LONG_TO_COMPILE = f"ENTRY e {{\n  r0 = c64[1000] parameter(0)\n{SINES}  ROOT t = (c64[1000]) tuple(r79)\n}}\n"


def signalled(number: int, command: Sequence[str], folder: Path, ready: Callable[[], bool]) -> tuple[int, str]:
    """The exit code of a command that is sent a signal once it is ready, and what it said. It must end soon."""
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "HLOC_CACHE_DIR": str(folder / "cache"),
                   "HLOC_ROUTINES": "0"}
    (folder / "tmp").mkdir()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                               cwd=folder)
    try:
        end = time.monotonic() + 60
        while not ready():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end, "never ready"
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=SOON)
    finally:
        process.kill()
        process.communicate()
    return process.returncode, said


def programs_about(folder: Path) -> list[bytes]:
    """Command lines that name a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:                                      # it has ended
            continue
    return [line for line in found if str(folder).encode() in line and b"cc1" in line]


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="no /proc that tells which programs run")
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_compilers_end_too(tmp_path, number, code) -> None:
    (tmp_path / "long.hlo").write_text(LONG_TO_COMPILE)
    command = [*HLOC, "compile", "long.hlo", "-t", "cpu", "-o", "long.so"]
    ended, said = signalled(number, command, tmp_path, lambda: bool(programs_about(tmp_path / "tmp")))
    assert ended == code and (said.strip() == "interrupted" if code == 130 else "Traceback" not in said), said
    assert not programs_about(tmp_path / "tmp")
    assert not list((tmp_path / "tmp").iterdir())
    assert {p.name for p in tmp_path.iterdir()} == {"long.hlo", "tmp", "cache"}
