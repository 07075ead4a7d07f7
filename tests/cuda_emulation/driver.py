"""A stand-in for pycuda.driver that runs hloc's CUDA C on the CPU: what hloc/targets/cuda/runtime.py uses, no more.

In: an "image" that is a shared object, made by `build` from CUDA C with g++ and emulation.h. Out: the same numbers as a
GPU's. Memory starts as 0xff (NaN), is bounded by guard bytes, and copies beyond its end are refused.

    image = build(sources)                        # bytes, in place of a cubin
    monkeypatch.setattr(runtime, "driver", lambda: driver)
    CudaBackend(container._replace(image=image), {})(arrays)
"""
from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
import weakref
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
HLOC = HERE.parent.parent / "hloc" / "targets"
GUARD, GUARD_BYTE = 256, 0xA5
FLAGS = ("-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-fno-strict-aliasing", "-ffp-contract=off",
         "-fvisibility=hidden")


class Error(Exception):
    """Any failure that PyCUDA would report."""


class MemoryError(Error):            # noqa: A001 - PyCUDA's name
    """Out of device memory."""


def build(sources) -> bytes:
    """CudaSources -> a shared object with a launcher per kernel; cached by content."""
    launchers = "".join(f"HLOC_LAUNCHER({g.function})\n" for g in sources.geometry)
    text = f'#include "emulation.h"\n{sources.readable()}\n{launchers}'
    files = sorted([*HERE.glob("*.h"), *HLOC.glob("c/*.h"), *HLOC.glob("cuda/*.cuh")])
    headers = b"".join(p.read_bytes() for p in files)
    cache = Path(os.environ.get("HLOC_CACHE_DIR", tempfile.gettempdir())) / "hloc-emulation"
    cache.mkdir(parents=True, exist_ok=True)
    output = cache / (hashlib.sha256(text.encode() + headers).hexdigest() + ".so")
    if not output.exists():
        _compile(text, output)
    return output.read_bytes()


def _compile(text: str, output: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        unit, product = Path(folder) / "kernels.cpp", Path(folder) / "kernels.so"
        unit.write_text(text)
        command = ["g++", *FLAGS, f"-I{HERE}", f"-I{HLOC / 'c'}", f"-I{HLOC / 'cuda'}", str(unit), "-o", str(product)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise AssertionError(f"g++ refuses the CUDA C\n{done.stderr[:6000]}")
        os.replace(product, output)


class Allocation:
    """A piece of memory between guards; int() gives its address."""

    living: weakref.WeakValueDictionary[int, Allocation] = weakref.WeakValueDictionary()

    def __init__(self, size: int):
        self.size = size
        self.bytes = np.full(size + 2 * GUARD + 64, 0xFF, np.uint8)
        start = -(self.bytes.ctypes.data + GUARD) % 64 + GUARD
        self.bytes[:start] = self.bytes[start + size:] = GUARD_BYTE
        self.start = start
        self.living[int(self)] = self

    def __int__(self) -> int:
        return self.bytes.ctypes.data + self.start

    def check(self) -> None:
        outside = (self.bytes[:self.start], self.bytes[self.start + self.size:])
        if any((part != GUARD_BYTE).any() for part in outside):
            raise Error(f"a kernel wrote outside of its {self.size} bytes")


def mem_alloc(size: int) -> Allocation:
    return Allocation(size)


def mem_get_info() -> tuple[int, int]:
    return 1 << 30, 1 << 30


def _bytes_at(address: int, size: int) -> np.ndarray:
    for memory in list(Allocation.living.values()):
        offset = int(address) - int(memory)
        if 0 <= offset and offset + size <= memory.size:
            return memory.bytes[memory.start + offset:][:size]
    raise Error(f"a copy of {size} bytes outside of any allocation")


def memcpy_htod_async(target, array: np.ndarray, stream) -> None:
    _bytes_at(int(target), array.nbytes)[...] = memoryview(array).cast("B")     # what has no buffer protocol is refused


def memcpy_dtoh_async(array: np.ndarray, source, stream) -> None:
    memoryview(array).cast("B")[:] = memoryview(_bytes_at(int(source), array.nbytes))


def memcpy_dtod_async(target, source, size: int, stream) -> None:
    _bytes_at(target, size)[...] = _bytes_at(source, size).copy()


class Stream:
    def synchronize(self) -> None:
        for memory in list(Allocation.living.values()):
            memory.check()


class Context:
    def push(self) -> None:
        pass

    def pop(self) -> None:
        pass


class Device:
    def __init__(self, number: int):
        assert number == 0

    def retain_primary_context(self) -> Context:
        return Context()

    def name(self) -> str:
        return "the emulation"


class function_attribute:            # noqa: N801 - PyCUDA's name
    MAX_DYNAMIC_SHARED_SIZE_BYTES = 8


class Module:
    """A loaded image. `backwards`: the last thread of each block starts first."""

    def __init__(self, image: bytes):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(image)
            file.flush()
            self.library = ctypes.CDLL(file.name)

    def get_function(self, name: str) -> Function:
        return Function(name, getattr(self.library, f"launch_{name}"))

    def set_backwards(self, backwards: bool) -> None:
        ctypes.c_int.in_dll(self.library, "emulation_backwards").value = int(backwards)


class Function:
    def __init__(self, name: str, launch):
        self.name, self.launch = name, launch

    def __call__(self, *addresses, grid, block, shared, stream) -> None:
        if shared:
            raise Error("dynamic shared memory is not emulated")
        pointers = (ctypes.c_void_p * max(1, len(addresses)))(*[int(a) for a in addresses])
        code = self.launch(pointers, (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block))
        if code:
            raise Error(f"{self.name}: {'a barrier that some threads never reach' if code == 1 else 'bad launch'}")


def module_from_buffer(image: bytes) -> Module:
    return Module(image)
