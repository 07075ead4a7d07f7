"""What a process may take, in containers of both versions of control groups and under `ulimit -v`."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hloc
from hloc import limits, machine

GIB = 1 << 30


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Writes files of a made-up system: {path below /sys/fs/cgroup: text}, and the groups of the process."""
    def write(own: str, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = tmp_path / "cgroup" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        (tmp_path / "own").write_text(own)
        (tmp_path / "meminfo").write_text("MemTotal: 99999999 kB\nMemAvailable: 16777216 kB\n")
        monkeypatch.setattr(limits, "CGROUPS", tmp_path / "cgroup")
        monkeypatch.setattr(limits, "OWN_CGROUPS", tmp_path / "own")
        monkeypatch.setattr(limits, "MEMORY", tmp_path / "meminfo")
    return write


def test_no_container(groups):
    groups("0::/\n", {"cpu.max": "max 100000"})
    assert limits.available_memory() == 16 * GIB and limits.quota_cores() is None


def test_second_version(groups):
    """The limit of a group above holds; what files keep in memory can be had back."""
    groups("0::/pod/box\n", {
        "pod/memory.max": str(4 * GIB), "pod/memory.current": str(3 * GIB),
        "pod/memory.stat": f"anon 5\ninactive_file {GIB}",
        "pod/box/memory.max": "max", "pod/box/memory.current": str(GIB),
        "pod/box/cpu.max": "250000 100000", "pod/cpu.max": "max 100000"})
    assert limits.available_memory() == 2 * GIB and limits.quota_cores() == 3


def test_first_version(groups):
    groups("9:name=systemd:/\n4:memory:/box\n2:cpu,cpuacct:/box\n", {
        "memory/box/memory.limit_in_bytes": str(GIB), "memory/box/memory.usage_in_bytes": "1000000",
        "memory/memory.limit_in_bytes": str(1 << 63), "memory/memory.usage_in_bytes": str(9 * GIB),
        "cpu/box/cpu.cfs_quota_us": "50000", "cpu/box/cpu.cfs_period_us": "100000", "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000"})
    assert limits.available_memory() == GIB - 1000000 and limits.quota_cores() == 1


def test_more_is_used_than_there_may_be(groups):
    groups("0::/box\n", {"box/memory.max": "1000", "box/memory.current": "2000"})
    assert limits.available_memory() == 0


def test_cores(groups, monkeypatch):
    groups("0::/box\n", {"box/cpu.max": "150000 100000"})
    monkeypatch.delenv("HLOC_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    assert machine.available_cores() == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)
    assert machine.available_cores() == 1
    monkeypatch.setenv("HLOC_THREADS", "6")
    assert machine.available_cores() == 6
    monkeypatch.setenv("HLOC_THREADS", "1000")
    assert machine.available_cores() == 256                 # plans set memory aside for each; the pool has no more


def test_a_limited_shell_is_told_before_anything_is_allocated():
    script = """import resource, hloc
text = "HloModule m\\nENTRY e { x = f32[] parameter(0)  ROOT b = f32[2000000000] broadcast(x), dimensions={} }"
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
try:
    hloc.compile(text, target="cpu")
except hloc.HlocError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(Path(hloc.__file__).parent.parent)})
    assert "needs 7.5 GiB, but only" in done.stdout and "%b" in done.stdout, done.stderr
