"""Library kernels that an installation compiles: all that a program may ask for, found again by CPU and compiler."""

import subprocess
import sys

import numpy as np
import pytest
from test_runtime import compiled as compile_text

from hloc.targets.cpu.building import prebuilt
from hloc.targets.cpu.building.library_kernels import (
    ALGORITHM_UNITS,
    ATTENTION_UNITS,
    FAST_TYPES,
    GENERIC,
    TOPK,
    compilation,
    units_of,
)
from hloc.targets.cpu.plans.complex_matmul import PARTS
from hloc.targets.cpu.plans.sorts import topk_elements

ENTRIES = [*(("gemm", type) for type in (*FAST_TYPES["gemm"], *PARTS)), *(name.split("_", 1) for name in GENERIC),
           *(("conv", f"{way}_{type}") for way in ALGORITHM_UNITS for type in FAST_TYPES["conv"]),
           *(("attention", kind) for kind in ATTENTION_UNITS),
           *((kind, type) for kind in ("fft", "cholesky", "trisolve") for type in ("f32", "f64"))]
DOUBLE = "HloModule double\nENTRY e { x = f32[3] parameter(0)  ROOT y = f32[3] add(x, x) }"


@pytest.mark.parametrize("kind, type", ENTRIES)
def test_all_that_a_program_may_call_is_there(kind, type):
    known = set(prebuilt.all_library_kernels())
    assert {compilation(unit) for unit in (*units_of(kind, type), "pool.c", "call.c")} <= known


def test_names_of_top_k_are_those_that_programs_ask_for():
    assert {name.split("_", 2)[2] for name in TOPK} == {topk_elements(type) for type in ("f32", "bf16", "f16", "s32")}


def test_an_installation_needs_no_other_package():
    """It runs before the dependencies are there, in an environment of setuptools alone."""
    alone = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "ml_dtypes", "lark", "click", "rich"):
            raise ImportError(name)
sys.meta_path.insert(0, Nothing())
from hloc.patterns import install
from hloc.targets.cpu.building.prebuilt import all_library_kernels, build_all
print(len(all_library_kernels()))
"""
    done = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) > 40, done.stderr


@pytest.fixture
def few(tmp_path, monkeypatch):
    """The folder of an installation that makes what every program needs, and nothing else."""
    folder = tmp_path / "prebuilt"
    monkeypatch.setattr(prebuilt, "all_library_kernels", lambda: [compilation("pool.c"), compilation("call.c")])
    monkeypatch.setattr(prebuilt, "PREBUILT", folder)
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("HLOC_PRECOMPILED", raising=False)
    return folder


def test_programs_take_what_is_installed(few, tmp_path, monkeypatch):
    assert prebuilt.how_many() == (0, 2)
    assert prebuilt.build_all(few) == (2, []) and prebuilt.how_many() == (2, 2)
    np.testing.assert_array_equal(compile_text(DOUBLE)(np.float32([1, 2, 3]))[0], [2, 4, 6])
    assert list((tmp_path / "cache").glob("*.so")) and not list((tmp_path / "cache").glob("*.o"))
    monkeypatch.setenv("HLOC_PRECOMPILED", "0")
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path / "other"))
    np.testing.assert_array_equal(compile_text(DOUBLE)(np.float32([1, 2, 3]))[0], [2, 4, 6])
    assert len(list((tmp_path / "other").glob("*.o"))) == 2


def test_what_serves_no_longer_goes(few):
    few.mkdir()
    (few / "older.o").write_bytes(b"")
    prebuilt.build_all(few)
    made = {path.name: path.stat().st_mtime_ns for path in few.iterdir()}
    assert len(made) == 2 and "older.o" not in made
    prebuilt.build_all(few)                                      # what is there stays
    assert made == {path.name: path.stat().st_mtime_ns for path in few.iterdir()}


def test_a_library_kernel_that_the_compiler_refuses_is_named(few, monkeypatch):
    monkeypatch.setattr(prebuilt, "all_library_kernels", lambda: [("pool.c", ("-Dstatic=+",)), ("call.c", ())])
    count, refused = prebuilt.build_all(few)
    assert count == 1 and len(refused) == 1 and refused[0].startswith("pool.c: ")
