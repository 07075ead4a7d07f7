"""Images of kernels: shared objects that g++ makes from hloc's CUDA C and emulation.h, in place of cubins.

    image = build(sources, checked=True)        checked: with checks.cpp, which finds what compute-sanitizer finds
"""
from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
HLOC = HERE.parent.parent / "hloc" / "targets"
# As it is when a run of tests begins: what single tests set for hloc's own cache would have each build all anew.
IMAGES = Path(os.environ.get("HLOC_CACHE_DIR", tempfile.gettempdir())) / "hloc-emulation"
FLAGS = ("-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-fvisibility=hidden",
         "-fno-exceptions", "-fno-asynchronous-unwind-tables")
# Each image is built once and runs small shapes: g++ leaves out what costs it more than kernels gain. (clang++ without
# optimizations compiles in a third of the time, and what it makes runs twice to four times as long: no gain in all.)
QUICK = ("-fno-tree-pta", "-fno-tree-loop-optimize")
CHECKS = ("-DEMULATION_CHECKED", "-fsanitize=thread,alignment", "-fno-threadsafe-statics",
          "--param=tsan-instrument-func-entry-exit=0")
WRAPPED = ("-Wl,--wrap=memcpy", "-Wl,--wrap=memmove", "-Wl,--wrap=memset")        # copies of structures: checks.cpp
LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\((\d+)(?:, \d+)?\)\s+(\w+)\(")


def build(sources, checked: bool = False) -> bytes:
    """CudaSources -> a shared object with a launcher per kernel; cached by content."""
    return build_text(f"{sources.readable()}\n{_launchers(sources)}", checked)


def images_of(sources, arch: str = "", report: Callable | None = None) -> tuple[bytes, ...]:
    """What kernel_images.images_of does, for the emulation: one image has all kernels."""
    return (build(sources),) * len(sources.units())


def text_of(sources) -> str:
    """CudaSources -> CUDA C for build_text, hloc's headers included: tests plant faults in it."""
    return sources.single_file() + _launchers(sources)


def _launchers(sources) -> str:
    return "".join(f"HLOC_LAUNCHER({g.function})\n" for g in sources.geometry if not g.product)


def build_text(text: str, checked: bool = False) -> bytes:
    """CUDA C that ends with HLOC_LAUNCHER(kernel) lines -> a shared object."""
    bounds = "".join(f'extern "C" __attribute__((visibility("default"))) int bounds_{name} = {most};\n'
                     for most, name in LAUNCH_BOUNDS.findall(text))
    text = f'#include "emulation.h"\n{text}\n{bounds}'
    files = sorted([*HERE.glob("*.h"), *HERE.glob("*.cpp"), *HLOC.glob("c/*.h"), *HLOC.glob("cuda/device/*.cuh")])
    headers = hashlib.sha256(b"".join(p.read_bytes() for p in files) + bytes([checked]))
    IMAGES.mkdir(parents=True, exist_ok=True)
    output = IMAGES / (hashlib.sha256(text.encode() + headers.digest()).hexdigest() + ".so")
    if not output.exists():
        _compile(text, output, _common(IMAGES / f"common-{headers.hexdigest()}", checked), checked)
    return output.read_bytes()


def _common(folder: Path, checked: bool) -> Path:
    """The folder with what all images share, made where it is missing: emulation.h as the compiler has read it, and the
    machine that runs kernels, with the checker."""
    if not folder.exists():
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        command = ("g++", *FLAGS, *(CHECKS if checked else ()))
        _run(*command, *QUICK, "-x", "c++-header", str(HERE / "emulation.h"), "-o", str(made / "emulation.h.gch"))
        for name in ("machine", "engines"):
            _run(*command, "-c", str(HERE / f"{name}.cpp"), "-o", str(made / f"{name}.o"))
        if checked:
            _run("g++", *FLAGS, "-O2", "-c", str(HERE / "checks.cpp"), "-o", str(made / "checks.o"))
        try:
            made.rename(folder)
        except OSError:                     # another process was first
            shutil.rmtree(made)
    return folder


def _compile(text: str, output: Path, common: Path, checked: bool) -> None:
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        unit, product = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        unit.write_text(text)
        paths = (common, HERE, HLOC / "c", HLOC / "cuda" / "device")
        _run("g++", *FLAGS, *QUICK, *(CHECKS if checked else ()), *(f"-I{p}" for p in paths), "-c", str(unit), "-o", f"{unit}.o")
        _run("g++", "-shared", *(WRAPPED if checked else ()), f"{unit}.o", *map(str, common.glob("*.o")), "-o", str(product))
        os.replace(product, output)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise AssertionError(f"g++ refuses the CUDA C\n{done.stderr[:6000]}")
