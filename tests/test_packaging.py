"""The wheel says what it is for: a build tag names the CPU of its library kernels; without them it is for every machine.
The sdist tests itself: its own tests run in it."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from hloc.machine import Machine

ROOT = Path(__file__).parent.parent
FEW = '\n\ndef all_library_kernels():\n    return compiled(["pool.c", "call.c"], {})\n'       # of some 260, half a minute of a core


def run(*command: object, cwd: Path, **settings: str) -> None:
    done = subprocess.run([sys.executable, "-m", *map(str, command)], cwd=cwd, capture_output=True, text=True, timeout=300,
                          env={**os.environ, **settings})
    if "No matching distribution found for setuptools" in done.stdout + done.stderr:
        pytest.skip("pip cannot fetch setuptools, which builds the package")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """What a wheel is built from, with few library kernels."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("hloc", "grammar"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "prebuilt", "patterns.json"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    with open(folder / "hloc/targets/cpu/building/prebuilt.py", "a") as file:
        file.write(FEW)
    return folder


def wheel(sources: Path, into: Path, **settings: str) -> tuple[list[str], set[str]]:
    """The parts of a wheel's name, and the files in it."""
    shutil.rmtree(sources / "build", ignore_errors=True)
    run("pip", "wheel", "-q", "--no-deps", "-w", into, ".", cwd=sources, **settings)
    (made,) = into.glob("*.whl")
    return made.stem.split("-"), set(zipfile.ZipFile(made).namelist())


def test_a_wheel_names_the_cpu_of_its_library_kernels(sources, tmp_path):
    (name, _, build, python, abi, platform), files = wheel(sources, tmp_path, HLOC_PRECOMPILED="1")
    cpu = Machine.host()
    assert (name, python, abi) == ("hloc", "py3", "none") and platform.startswith("linux_")
    assert build.startswith(f"1_{cpu.arch}") and ("avx512" in build) == (cpu.arch == "x86_64" and cpu.vector_bytes == 64)
    assert len([f for f in files if f.endswith(".o")]) == 2
    assert any(f.endswith("hloc/patterns.json") for f in files)


def test_a_wheel_for_every_machine(sources, tmp_path):
    parts, files = wheel(sources, tmp_path, HLOC_PRECOMPILED="0")
    assert parts[2:] == ["py3", "none", "any"]
    assert not [f for f in files if f.endswith(".o")] and "hloc/patterns.json" not in files
    assert {"hloc/py.typed", "hloc/grammar/hlo.lark", "hloc/targets/cpu/runtime/gemm_tile.h"} <= files


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout: this is the sdist itself")
def test_the_sdist_tests_itself(tmp_path):
    run("build", "-q", "--sdist", "--outdir", tmp_path, ".", cwd=ROOT)
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / made.name.removesuffix(".tar.gz")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, text=True, capture_output=True, check=True).stdout.split()
    missing = [name for name in tracked if not (unpacked / name).exists() and not name.startswith(".git")]
    assert missing == []
    run("pytest", "-q", "-p", "no:cacheprovider", "tests/test_tables.py", "tests/test_terminal.py", cwd=unpacked,
        PYTHONPATH=str(unpacked))
