"""Compiles small C sources against the project's headers and calls them on NumPy arrays (no test of its own).

In: C source text. Out: a `ctypes.CDLL`. Example: `build("#include \"scalar.h\"\n...", tmp_path).f(pointer(array))`.
"""
import concurrent.futures
import ctypes
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = [ROOT / "hloc/targets/c", ROOT / "hloc/targets/cpu/runtime"]
FLAGS = ["-O2", "-ftree-vectorize", "-fopenmp-simd", "-march=native", "-fno-math-errno", "-fno-trapping-math",
         "-ffp-contract=fast"]


def build(source: str, folder: pathlib.Path, flags=FLAGS, name: str = "native") -> ctypes.CDLL:
    """Compile `source` into `folder` and load it; skips the test where there is no gcc."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    path, library = folder / f"{name}.c", folder / f"{name}.so"
    path.write_text(source)
    command = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", *flags, "-shared", "-fPIC", "-pthread"]
    command += [f"-I{folder_}" for folder_ in INCLUDE] + [str(path), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def build_runtime(folder: pathlib.Path, extra: str = "", flags=FLAGS) -> ctypes.CDLL:
    """Compile the whole CPU runtime but call.c, which calls a program, and `extra` C source into one library."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc")
    (folder / "extra.c").write_text(extra)
    sources = [*sorted(p for p in INCLUDE[1].glob("*.c") if p.name != "call.c"), folder / "extra.c"]
    common = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", *flags, "-fPIC", *[f"-I{i}" for i in INCLUDE]]

    def compile_one(source):
        return subprocess.run([*common, "-c", str(source), "-o", str(folder / f"{source.stem}.o")]).returncode

    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        assert set(executor.map(compile_one, sources)) == {0}
    objects = [str(folder / f"{source.stem}.o") for source in sources]
    subprocess.run([compiler, "-shared", "-pthread", *objects, "-o", str(folder / "runtime.so"), "-lm"], check=True)
    return ctypes.CDLL(str(folder / "runtime.so"))


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    """The array's address, as a C function takes it."""
    return ctypes.c_void_p(array.ctypes.data)
