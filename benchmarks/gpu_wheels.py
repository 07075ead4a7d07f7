"""Wheels for a GPU machine that reaches no network, made on one that has no GPU.

    python benchmarks/gpu_wheels.py .gpu/wheels          for the Python that runs this: take the GPU machine's version
    python benchmarks/gpu_wheels.py --install            PyCUDA into this Python, for tests/test_cuda_pycuda.py

PyCUDA is published as source only, and its build wants a driver's library to link to and curand: here it gets a stub
that defines every function that cuda.h names (an empty one would be dropped by the linker), and no curand. What is
needed: g++, pip, and cuda.h. Wheels for another machine are built with that of CUDA 12, which is fetched: drivers for
CUDA 13 know what CUDA 12 names, but not the other way around. --install takes the one from $CUDA_HOME, or from the
wheels that hloc[nvrtc] installs. What a CUDA image usually holds is not in the list: NumPy, ml_dtypes, JAX with CUDA,
NVRTC or nvcc, compute-sanitizer.
"""
from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PYCUDA = "pycuda==2026.1"
HEADERS = "nvidia-cuda-runtime-cu12>=12.4,<12.5"
NEEDED = ("click", "lark", "rich", "markdown-it-py", "mdurl", "pygments", "mako", "markupsafe", "platformdirs",
          "pytools", "siphash24", "typing-extensions",
          "pytest", "pluggy", "iniconfig", "packaging")          # the op examples are read by the tests' own modules
PROFILER = """typedef enum CUoutput_mode_enum { CU_OUT_KEY_VALUE_PAIR, CU_OUT_CSV } CUoutput_mode;
extern "C" { CUresult cuProfilerInitialize(const char *, const char *, CUoutput_mode);
             CUresult cuProfilerStart(void); CUresult cuProfilerStop(void); }
"""                                     # cudaProfiler.h, which the wheels leave out
FUNCTION = re.compile(r"\bcu[A-Z]\w*\b")


def include_folder() -> Path:
    """Where cuda.h lies: in $CUDA_HOME, if that is set."""
    spec = importlib.util.find_spec("nvidia")
    wheels = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    home = os.environ.get("CUDA_HOME")
    installed = [*(p.parent for w in wheels for p in w.glob("*/include/cuda.h")), Path("/usr/local/cuda/include")]
    for folder in [Path(home) / "include"] if home else installed:
        if (folder / "cuda.h").is_file():
            return folder
    raise SystemExit("error: no cuda.h: pip install nvidia-cuda-runtime nvidia-cuda-crt, or set CUDA_HOME")


def old_headers(folder: Path) -> Path:
    """What stands for a toolkit of CUDA 12: its headers, unpacked into a folder."""
    pip("download", "--no-deps", "--only-binary=:all:", "-d", str(folder), HEADERS)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "nvidia" / "cuda_runtime"


def stub(folder: Path, include: Path) -> None:
    """libcuda.so with all names and no deeds."""
    text = (include / "cuda.h").read_text(errors="replace") + PROFILER
    names = sorted(set(FUNCTION.findall(text)))
    if not (include / "cudaProfiler.h").exists():
        (folder / "cudaProfiler.h").write_text(PROFILER)
    (folder / "stub.c").write_text("".join(f"int {name}(void) {{ return 34; }}\n" for name in names))
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-Wl,-soname,libcuda.so.1", str(folder / "stub.c"), "-o",
                    str(folder / "libcuda.so")], check=True)


def pycuda_wheel(output: Path) -> None:
    """Build PyCUDA for this Python."""
    include = include_folder()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stub(folder, include)
        (folder / ".aksetup-defaults.py").write_text(
            f"CUDA_ROOT = {str(include.parent)!r}\nCUDA_INC_DIR = {[str(include), name]}\nCUDA_ENABLE_CURAND = False\n"
            f"CUDADRV_LIB_DIR = [{name!r}]\n")
        quick = {"CFLAGS": "-O1 -g0"}                                   # half the time; its loops are the driver's
        pip("wheel", "--no-deps", "-w", str(output), PYCUDA, HOME=name, **quick)


def pip(*arguments: str, **settings: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "-q"], check=True,
                   env={**os.environ, **settings})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", nargs="?", type=Path, help="folder of the wheels")
    parser.add_argument("--install", action="store_true", help="install PyCUDA here instead")
    asked = parser.parse_args()
    if asked.install == (asked.output is not None):
        parser.error("give a folder, or --install")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) if asked.install else asked.output
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as headers:
            if not asked.install and "CUDA_HOME" not in os.environ:
                os.environ["CUDA_HOME"] = str(old_headers(Path(headers)))
            pycuda_wheel(output)
        if asked.install:
            pip("install", *map(str, output.glob("*.whl")))
        else:
            pip("download", "--no-deps", "--only-binary=:all:", "-d", str(output), *NEEDED)
            print(*sorted(p.name for p in output.iterdir()), sep="\n")


if __name__ == "__main__":
    main()
