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
PREBUILT = "hloc/targets/cpu/prebuilt"
FEW = '\n\ndef all_library_kernels():\n    return [("pool.c", ()), ("call.c", ())]\n'       # of some 60, half a minute of a core


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


@pytest.fixture(scope="module")
def wheel_of_this_cpu(sources, tmp_path_factory):
    """The folder of a wheel with library kernels, the parts of its name, and its files."""
    folder = tmp_path_factory.mktemp("wheel")
    return folder, *wheel(sources, folder, HLOC_PRECOMPILED="1")


def test_a_wheel_names_the_cpu_of_its_library_kernels(wheel_of_this_cpu):
    _, (name, _, build, python, abi, platform), files = wheel_of_this_cpu
    cpu = Machine.host()
    assert (name, python, abi) == ("hloc", "py3", "none") and platform.startswith("linux_")
    assert build.startswith(f"1_{cpu.arch}") and ("avx512" in build) == (cpu.arch == "x86_64" and cpu.vector_bytes == 64)
    assert len([f for f in files if f.endswith(".o")]) == 2
    assert any(f.endswith("hloc/patterns.json") for f in files)


# As on a machine with another CPU: whatever reads /proc/cpuinfo reads this model's name.
OTHER_CPU = """
import io, builtins
real = io.open
def other(file, *args, **kwargs):
    opened = real(file, *args, **kwargs)
    if str(file) != "/proc/cpuinfo":
        return opened
    with opened:
        lines = opened.read().splitlines()
    return io.StringIO("\\n".join("model name : Another CPU" if l.startswith(("model name", "CPU part")) else l
                                 for l in lines) + "\\n")
io.open = builtins.open = other
"""
PRODUCT = "ENTRY e {\n x = f32[64,96] parameter(0)  y = f32[96,80] parameter(1)  ROOT d = f32[64,80] dot(x, y), " \
          "lhs_contracting_dims={1}, rhs_contracting_dims={0} }"
RUN = f"""
import hloc, numpy as np
from hloc.targets.cpu.building.prebuilt import how_many
x = np.random.default_rng(0).normal(size=(64, 96)).astype("f")
y = np.random.default_rng(1).normal(size=(96, 80)).astype("f")
(d,) = hloc.compile({PRODUCT!r}, "cpu")(x, y)
np.testing.assert_allclose(d, x @ y, atol=1e-4)
print(hloc.__file__, how_many()[0])
"""


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="this system has no /proc/cpuinfo, which names the CPU")
def test_on_another_cpu_library_kernels_are_compiled_when_a_program_needs_them(wheel_of_this_cpu, tmp_path):
    folder, *_ = wheel_of_this_cpu
    (made,) = folder.glob("*.whl")
    run("pip", "install", "-q", "--no-deps", "--no-index", "--target", tmp_path / "site", made, cwd=tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sitecustomize.py").write_text(OTHER_CPU)

    def objects(cache: str, *paths: Path, **settings: str) -> tuple[int, int]:
        """Installed objects that fit the CPU, and those that running the program has compiled."""
        paths = (*paths, tmp_path / "site")
        done = subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, timeout=300,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)),
                                   "HLOC_CACHE_DIR": str(tmp_path / cache), **settings})
        assert done.returncode == 0, done.stderr[-2000:]
        file, fitting = done.stdout.split()
        assert Path(file).is_relative_to(tmp_path / "site")
        return int(fitting), len(list((tmp_path / cache).rglob("*.o")))
    here, elsewhere = objects("cache_here"), objects("cache_elsewhere", tmp_path / "other")
    assert here[0] == 2 and elsewhere == (0, here[1] + 2)        # call.c and pool.c, which every program needs
    assert objects("cache_elsewhere", tmp_path / "other") == elsewhere


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
    made_here = ("PKG-INFO", "setup.cfg", "hloc.egg-info")
    held = [str(p.relative_to(unpacked)) for p in unpacked.rglob("*") if p.is_file()]
    assert {name for name in held if not name.startswith(made_here)} <= {*tracked}       # no weights that a run has made
    if (ROOT / PREBUILT).exists():                     # half a minute of a core, spent when the checkout was installed
        shutil.copytree(ROOT / PREBUILT, unpacked / PREBUILT)
    run("pytest", "-q", "-p", "no:cacheprovider", "tests/test_tables.py", "tests/test_terminal.py", "-k", "tables",
        cwd=unpacked, PYTHONPATH=str(unpacked))        # the parse tables, and one that starts hloc
