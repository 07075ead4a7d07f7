"""Compiles small C sources against the project's headers and calls them on NumPy arrays (no test of its own).

In: C source text. Out: a `ctypes.CDLL`. Example: `build("#include \"scalar.h\"\n...", tmp_path).f(pointer(array))`.
Large ones are built `once` for all workers of a run.
"""
import concurrent.futures
import ctypes
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from hloc import cache
from hloc.targets.cpu.building.library_kernels import GENERIC, TOPK
from hloc.targets.cpu.program.single_file import included

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = [ROOT / "hloc/targets/c", ROOT / "hloc/targets/cpu/runtime"]
FLAGS = ["-O2", "-ftree-vectorize", "-fopenmp-simd", "-march=native", "-fno-math-errno", "-fno-trapping-math",
         "-ffp-contract=fast"]


def build(source: str, folder: pathlib.Path, flags=FLAGS, name: str = "native") -> ctypes.CDLL:
    """Compile `source` into `folder` and load it; skips the test where there is no gcc."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    path, library = folder / f"{name}.c", folder / f"{name}.so"
    path.write_text(source)
    command = [compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", *flags, "-shared", "-fPIC", "-pthread"]
    command += [f"-I{folder_}" for folder_ in INCLUDE] + [str(path), "-o", str(library), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


def once(kind: str, flags: Iterable[str], make: Callable[[pathlib.Path], pathlib.Path]) -> ctypes.CDLL:
    """A library of the CPU runtime that the first worker to ask for it makes, in a folder, and the others wait for."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    texts = [p.read_bytes() for i in INCLUDE for p in sorted(i.iterdir()) if p.suffix in (".c", ".h")]
    key = cache.digest(kind, compiler, *flags, *texts)
    with cache.lock(key):
        made = cache.opened(key, ".so")
        if made is not None:
            with made:
                return ctypes.CDLL(made.name)
        with tempfile.TemporaryDirectory() as folder:
            return ctypes.CDLL(str(cache.put(key, ".so", make(pathlib.Path(folder)))))


def build_runtime(extra: str = "", flags=FLAGS) -> ctypes.CDLL:
    """The whole CPU runtime but call.c, which calls a program, and `extra` C source in one library."""
    common = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *flags, "-fPIC", *[f"-I{i}" for i in INCLUDE]]

    def make(folder: pathlib.Path) -> pathlib.Path:
        (folder / "extra.c").write_text(extra)
        units = [p.name for p in sorted(INCLUDE[1].glob("*.c")) if p.name not in ("call.c", "generic.c", "topk.c")]
        units += [*(f"generic.c:{name}" for name in GENERIC), *(f"topk.c:{name}" for name in TOPK)]
        sources = [*(source_of(unit, folder) for unit in units), folder / "extra.c"]

        def compile_one(source):
            return subprocess.run([*common, "-c", str(source), "-o", str(folder / f"{source.stem}.o")]).returncode

        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            assert set(executor.map(compile_one, sources)) == {0}
        objects = [str(folder / f"{source.stem}.o") for source in sources]
        subprocess.run(["gcc", "-shared", "-pthread", *objects, "-o", str(folder / "runtime.so"), "-lm"], check=True)
        return folder / "runtime.so"
    return once(f"runtime {extra}", flags, make)


def source_of(unit: str, folder: pathlib.Path) -> pathlib.Path:
    """The C file of a unit of runtime/; of one function of generic.c, a file in the folder that includes it."""
    if ":" not in unit:
        return INCLUDE[1] / unit
    path = folder / f"{unit.partition(':')[2]}.c"
    path.write_text(included(unit))
    return path


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    """The array's address, as a C function takes it."""
    return ctypes.c_void_p(array.ctypes.data)
