"""CUDA C -> cubin or PTX, without a GPU: NVRTC if its library is here, else nvcc as a subprocess.

    image = compile_cuda(source, "sm_90a", "cubin")
    images = compile_units({"k0_dot": text, "k1_add": other}, "sm_90a")         cubins, by all cores

The architecture is always explicit. Raises BuildError with the compiler's own message, or with the command that
installs a compiler.
"""
from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

from hloc import cache, processes
from hloc.errors import BuildError
from hloc.machine import available_cores
from hloc.processes import NotFinished
from hloc.workers import Workers, in_background, stop_event

COMPILE_SECONDS, VERSION_SECONDS = 900, 60
QUICK = ("--Ofast-compile=mid",)
LIBRARY_PATTERNS = ("nvidia/cu13/lib/libnvrtc.so.*", "nvidia/cuda_nvrtc/lib/libnvrtc.so.*")
SYSTEM_LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")
HEADERS = Path(__file__).parent.parent / "c"
OWN_HEADERS = Path(__file__).parent / "device"


def compile_cuda(source: str, arch: str, form: str, *, quick: bool = False) -> bytes:
    """`form` is "cubin" (bytes of an ELF image) or "ptx" (text). arch: sm_80, sm_90a ... quick: compiles in
    half the time, for slower kernels; compilers before CUDA 13 cannot do that, and take their usual time."""
    more = QUICK if quick and compiler_version() >= 13000 else ()
    return _compile_all([("", source)], arch, form, 1, lambda _: None, *more)[0]


def compile_units(units: Mapping[str, str], arch: str, done: Callable[[int], None] = lambda _: None) -> list[bytes]:
    """The cubins of several texts by the names that errors call them, compiled by all cores. NVRTC compiles on several
    threads at once. done: is called with the number of units that are compiled."""
    return _compile_all(list(units.items()), arch, "cubin", available_cores(), done)


def _compile_all(units: Sequence[tuple[str, str]], arch: str, form: str, count: int, done: Callable[[int], None],
                 *more: str) -> list[bytes]:
    library = _nvrtc()
    if library is not None:
        return in_background([partial(_compile_with_nvrtc, library, text, arch, form, *more, name=name)
                              for name, text in units], count, done)
    if shutil.which("nvcc"):
        with Workers(count) as workers:
            return list(workers.map(lambda unit: _compile_with_nvcc(unit[1], arch, form, *more, name=unit[0]), units))
    raise BuildError("no CUDA compiler found", hint="pip install 'hloc[nvrtc]' (no toolkit and no GPU needed), "
                                                    "or put nvcc on PATH")


def nvrtc_version() -> str | None:
    """NVRTC's version, or None if it is not installed."""
    library = _nvrtc()
    if library is None:
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_verbosely(source: str, arch: str) -> str:
    """The report of ptxas about each kernel: registers, spills, shared memory. Raises BuildError."""
    library = _nvrtc()
    if library is not None:
        return in_background([lambda: _with_nvrtc(
            library, source, arch, lambda program: _text(library, program, "ProgramLog"), "--ptxas-options=-v")])[0]
    if shutil.which("nvcc"):
        return _with_nvcc(source, arch, "cubin", "-Xptxas", "-v")[1]
    raise BuildError("no CUDA compiler found", hint="pip install 'hloc[nvrtc]'")


def compiler_version() -> int:
    """The CUDA version of the compiler that compile_cuda uses, in the driver's format (13000); 0 if there is none."""
    text = nvrtc_version() or _nvcc_version()
    major, _, minor = text.partition(".")
    return int(major) * 1000 + int(minor or 0) * 10 if major.isdigit() else 0


@lru_cache(maxsize=1)
def _nvcc_version() -> str:
    if shutil.which("nvcc") is None:
        return ""
    try:
        said = processes.run(["nvcc", "--version"], VERSION_SECONDS).output
    except (NotFinished, OSError):
        return ""
    found = re.search(r"release (\d+\.\d+)", said)
    return found.group(1) if found else ""


@lru_cache(maxsize=1)
def _nvrtc() -> ctypes.CDLL | None:
    """The library of the wheel or of the system; its builtins are loaded first, since it finds them by name."""
    for path in _wheel_libraries():
        for helper in sorted(path.parent.glob("libnvrtc-builtins.so*")):
            ctypes.CDLL(str(helper), mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(path))
    for name in SYSTEM_LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _wheel_libraries() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p).parent for p in (spec.submodule_search_locations or [])] if spec else []
    return [p for folder in folders for pattern in LIBRARY_PATTERNS for p in sorted(folder.glob(pattern))]


def _compile_with_nvrtc(library: ctypes.CDLL, source: str, arch: str, form: str, *more: str,
                        name: str = "") -> bytes:
    """For a virtual architecture NVRTC stops at the PTX, which is the same: ptxas would take most of the time."""
    if form == "ptx":
        arch = arch.replace("sm_", "compute_")
    return _with_nvrtc(library, source, arch,
                       lambda program: _fetch(library, program, "CUBIN" if form == "cubin" else "PTX"), *more,
                       name=name)


def _with_nvrtc(library: ctypes.CDLL, source: str, arch: str, answer: Callable, *more: str, name: str = ""):
    """Compiles, and returns the result of `answer` for the compiled program. name: of a kernel, for messages."""
    program = ctypes.c_void_p()
    options = [*more, f"--gpu-architecture={arch}", "--std=c++17", "-default-device", "--fmad=true"]
    options += [f"-I{folder}" for folder in (HEADERS, OWN_HEADERS)]
    _check(library, library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"hloc.cu", 0, None, None))
    try:
        array = (ctypes.c_char_p * len(options))(*(o.encode() for o in options))
        code = library.nvrtcCompileProgram(program, len(options), array)
        if code:
            log = _text(library, program, "ProgramLog")
            raise BuildError(f"NVRTC failed for {arch}{_of(name)}\n" + _first_lines(log))
        return answer(program)
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    data = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, data))
    return data.raw if what == "CUBIN" else data.raw.rstrip(b"\0")


def _text(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    return _fetch(library, program, what).decode(errors="replace")


def _check(library: ctypes.CDLL, code: int) -> None:
    if code:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise BuildError(f"NVRTC: {library.nvrtcGetErrorString(code).decode()}")


def _compile_with_nvcc(source: str, arch: str, form: str, *more: str, name: str = "") -> bytes:
    return _with_nvcc(source, arch, form, *more, name=name)[0]


def _with_nvcc(source: str, arch: str, form: str, *more: str, name: str = "") -> tuple[bytes, str]:
    """The compiled file, and the output of nvcc."""
    with cache.workspace() as folder:
        unit, output = folder / "hloc.cu", folder / f"hloc.{form}"
        unit.write_text(source, encoding="utf-8")
        command = ["nvcc", f"--{form}", *more, f"-arch={arch}", "-std=c++17", "-w", f"-I{HEADERS}", f"-I{OWN_HEADERS}",
                   str(unit), "-o", str(output)]
        try:
            done = processes.run(command, COMPILE_SECONDS, stop=stop_event())
        except NotFinished as error:
            raise BuildError(str(error)) from None
        except OSError as error:
            raise BuildError(f"cannot run nvcc: {error.strerror}") from None
        if done.code:
            raise BuildError(f"nvcc failed for {arch}{_of(name)}\n" + _first_lines(done.errors))
        if not output.is_file():
            raise BuildError("nvcc reported no error, but wrote nothing")
        return output.read_bytes(), done.errors


def _of(name: str) -> str:
    return f", kernel {name}" if name else ""


def _first_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[:20])
