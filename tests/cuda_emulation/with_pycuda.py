"""PyCUDA as it is installed, on a driver whose GPU is the CPU (libcuda.cpp).

    python tests/cuda_emulation/with_pycuda.py run model.hlo --target cuda          the command line of hloc, like that
    load()                                                                     the same for this process

Only the compiler is exchanged: NVRTC's place is taken by g++ (driver.images_of), which makes images that the emulated
driver loads. The runtime, PyCUDA and the calls of graphs.py are the real ones.
"""
from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
COMPILER = 13009                        # CUDA 13.0, and no version that there is: the cache keeps its code apart


def missing() -> str:
    """Why this cannot be used here; "" where it can."""
    if importlib.util.find_spec("pycuda") is None:
        return "PyCUDA is not installed (python benchmarks/gpu_wheels.py --install builds it without a GPU)"
    if any(Path(p).exists() for p in ("/dev/nvidiactl", "/dev/dxg")):
        return "there is a real driver here"
    return ""


def wanted_functions() -> set[str]:
    """The driver's functions that PyCUDA's extension names, where it is installed."""
    if (found := importlib.util.find_spec("pycuda")) is None:
        return set()
    folder = Path(found.submodule_search_locations[0])
    (extension,) = folder.glob("_driver*.so")
    return {name.decode() for name in re.findall(rb"\0(cu[A-Z]\w+)(?=\0)", extension.read_bytes())}


def driver_library(folder: Path, without: str = "") -> Path:
    """Build libcuda.so.1 in a folder; without: a function that it lacks, as an old driver's."""
    source = (HERE / "libcuda.cpp").read_text()
    own = set(re.findall(r"^API\((cu\w+)", source, re.MULTILINE))
    stubs = "".join(f'extern "C" __attribute__((visibility("default"))) int {name}() {{ return 801; }}\n'
                    for name in sorted(wanted_functions() - own - {without}))
    (folder / "stubs.cpp").write_text(stubs)
    library = folder / "libcuda.so.1"
    subprocess.run(["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden",
                    "-Wl,-soname,libcuda.so.1", str(HERE / "libcuda.cpp"), str(folder / "stubs.cpp"), "-ldl", "-o",
                    str(library)], check=True, timeout=120)
    return library


def nccl_library(folder: Path) -> Path:
    """Build libnccl.so.2 in a folder, for processes whose drivers are emulated."""
    library = folder / "libnccl.so.2"
    subprocess.run(["g++", "-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-fvisibility=hidden",
                    str(HERE / "libnccl.cpp"), "-ldl", "-o", str(library)], check=True, timeout=120)
    return library


def load(library: Path | None = None) -> None:
    """Let PyCUDA and hloc, in this process, find the emulated driver, and hloc the emulation's compiler."""
    with tempfile.TemporaryDirectory() as folder:
        ctypes.CDLL(str(library or driver_library(Path(folder))), mode=ctypes.RTLD_GLOBAL)
    from hloc.targets import presence
    from hloc.targets.cuda import compiler, kernel_images
    sys.path[:0] = [str(HERE.parent)]
    from cuda_emulation import driver
    presence.driver_present = lambda: True
    kernel_images.images_of = driver.images_of
    compiler.compiler_version = lambda: COMPILER


if __name__ == "__main__":
    load(Path(os.environ["EMULATED_LIBRARY"]) if "EMULATED_LIBRARY" in os.environ else None)
    from hloc.cli.main import main
    sys.path[:0] = [str(HERE.parent.parent)]
    main()
