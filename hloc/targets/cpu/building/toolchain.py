"""The C compiler of this machine: found, asked for its version, run.

    chain = toolchain.find(); chain.link([chain.compile_object(source, target)], output)

Order: $CC, then cc, gcc, clang from PATH, then the `ziglang` package (clang in a wheel). None: a BuildError with the
commands that mend it.
"""
from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hloc import processes, sanitize
from hloc.errors import BuildError
from hloc.files import opened
from hloc.machine import has_amx, has_slow_pairs
from hloc.processes import NotFinished
from hloc.workers import stop_event

# No -ffast-math: NaN, infinities and signed zeros mean what HLO says. Reassociation is explicit in the generated code.
FLAGS = ("-std=gnu11", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
         "-ffp-contract=fast", "-fopenmp-simd", "-fno-strict-aliasing", "-w", "-Werror=implicit-function-declaration")
X86_NATIVE = ("-march=native",)
DRIVER_FLAGS = ("-O1",)
LONG_DRIVER_FLAGS = ("-O1", "-fno-inline")     # a call for each of a thousand steps; gcc would spend most on copies
# Generated loops say what is a vector, and routines name theirs, so that -O3 finds little; gcc takes a third longer for
# it, and where a kernel is one long expression (random numbers) three times as long.
ROUTINE_FLAGS = ("-O2", "-fno-semantic-interposition", "-fno-stack-protector")
GCC_ROUTINE_FLAGS = ("-fpeel-loops", "-funswitch-loops", "-fvect-cost-model=dynamic",
                     "--param", "max-inline-insns-auto=30", "--param", "inline-min-speedup=15")
# Loops of kernels are unswitched up to this size: a select whose condition is the same for all elements cannot be a
# vector operation in gcc, which needs to see the comparison, or vectors of booleans.
# No partial redundancies, no threaded jumps: where one of a select's values is constant, or several selects have one
# condition, gcc would make a branch of all that follows.
GCC_KERNEL_FLAGS = ("--param", "max-unswitch-insns=150", "-fno-tree-pre", "-fno-thread-jumps")
# Functions of complex numbers are hundreds of instructions without branches, where these passes find nothing: a quarter
# of gcc's time.
GCC_LONG_FLAGS = ("-fno-gcse", "-fno-tree-dominator-opts", "-fno-tree-vrp")
# Gathers of two or four elements take two to three times as long as as many loads.
GATHER_FLAGS = ("-mtune-ctrl=^use_gather_2parts,^use_gather_4parts",)
FIRST_GCC_WITH_GATHER_FLAGS = 12
COMPILE_SECONDS, VERSION_SECONDS = 600, 30
SHOWN_LINES, SHOWN_COLUMNS = 20, 500           # of what a compiler says
ELF = b"\x7fELF"
UNSET = "unset CC, and cc, gcc and clang are looked for"
RUNTIME = Path(__file__).parent.parent / "runtime"
INCLUDE_FOLDERS = (RUNTIME, Path(__file__).parent.parent.parent / "c")


@dataclass(frozen=True)
class Toolchain:
    """command: how to call the compiler; version: its first line of --version; native: flags for this CPU."""

    command: tuple[str, ...]
    version: str
    native: tuple[str, ...]

    def flags(self) -> tuple[str, ...]:
        facts = (("-DHLOC_AMX",) if has_amx() else ()) + (("-DHLOC_SLOW_PAIRS",) if has_slow_pairs() else ())
        return FLAGS + self.native + facts + tuple(f"-I{folder}" for folder in INCLUDE_FOLDERS)

    def identity(self) -> str:
        """What a cached build depends on, besides its source: the whole command, and all flags that may go with it."""
        return " ".join((*self._called(), self.version, *FLAGS, *self.native, str(has_amx()), *DRIVER_FLAGS,
                         *LONG_DRIVER_FLAGS, *self.kernel_flags(long=True), *sanitize.flags(), _cpu_identity()))

    def _called(self) -> tuple[str, ...]:
        """The command, whatever link to the compiler it goes by; some programs are several compilers, by name."""
        first = self.command[0]
        return os.path.realpath(shutil.which(first) or first), os.path.basename(first), *self.command[1:]

    def routine_flags(self, *, lean: bool = False) -> tuple[str, ...]:
        """Optimization of the routines of runtime/. lean: for code whose vectors are all named."""
        if self.is_clang or lean:
            return ROUTINE_FLAGS
        found = re.search(r"\) (\d+)\.", self.version)
        tuned = self.native == X86_NATIVE and found is not None and int(found[1]) >= FIRST_GCC_WITH_GATHER_FLAGS
        return ROUTINE_FLAGS + GCC_ROUTINE_FLAGS + (GATHER_FLAGS if tuned else ())

    def kernel_flags(self, *, long: bool = False) -> tuple[str, ...]:
        """Optimization of generated kernels. long: of those that call functions of complex numbers."""
        if self.is_clang:
            return self.routine_flags()
        return self.routine_flags() + GCC_KERNEL_FLAGS + (GCC_LONG_FLAGS if long else ())

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version or "ziglang" in self.command

    def compile_object(self, source: Path, target: Path, optimize: tuple[str, ...]) -> Path:
        """One translation unit to an object file. Raises BuildError with the compiler's own words."""
        self._run([*self.command, *self.flags(), *optimize, *sanitize.flags(), "-c", str(source), "-o",
                   str(target)], target)
        return target

    def link(self, objects: list[Path], output: Path, *, for_python: bool = False) -> None:
        """A shared object. for_python: one that only this process and its like load, which hold libc already: the
        linker has less to read."""
        plain = for_python and not sanitize.flags()
        lean = plain and self.version.startswith(("gcc", "cc")) and "ziglang" not in self.command
        libraries = ("-nostdlib", "-lm", "-lgcc") if lean else ("-lm", "-lpthread")
        self._run([*self.command, "-shared", "-fPIC", *map(str, objects), "-o", str(output), *libraries,
                   *sanitize.flags()], output)

    def _run(self, command: list[str], target: Path) -> None:
        """The compiler's own files on their way lie beside the target: what a killed one leaves goes with it."""
        try:
            done = processes.run(command, COMPILE_SECONDS, stop=stop_event(),
                                 environment={**sanitize.environment(), "TMPDIR": str(target.parent)})
        except NotFinished as error:
            raise BuildError(f"the C compiler {error}") from None
        except OSError as error:
            raise BuildError(f"cannot run the C compiler {command[0]}: {error.strerror}") from None
        said = first_lines(done.errors)
        if done.code:
            raise BuildError(f"the C compiler failed (exit {done.code})\n{said}")
        if not _is_native(target):
            raise BuildError(f"the C compiler {command[0]} reported no error, but wrote no code\n{said}".strip())


def _is_native(path: Path) -> bool:
    try:
        with opened(path) as file:
            return file.read(len(ELF)) == ELF
    except OSError:
        return False


def first_lines(text: str) -> str:
    """What a reader needs of what a compiler said."""
    return "\n".join(line[:SHOWN_COLUMNS] for line in text.strip().splitlines()[:SHOWN_LINES])


@lru_cache(maxsize=1)
def _cpu_identity() -> str:
    """The CPU's model and features: code made with -march=native must not be found by another CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return " ".join(os.uname())
    wanted = ("model name", "flags", "Features", "CPU part")
    return "|".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))


def candidates() -> list[tuple[str, ...]]:
    """Commands that may be C compilers here, best first; where $CC names one, that and no other. Raises BuildError
    where $CC is no command line."""
    if given := os.environ.get("CC"):
        try:
            words = tuple(shlex.split(given))
        except ValueError as error:
            raise BuildError(f"$CC, {given!r}, cannot be split into words: {error}", hint=UNSET) from None
        if not words:
            raise BuildError(f"$CC, {given!r}, holds no word", hint=UNSET)
        return [words]
    found: list[tuple[str, ...]] = [(path,) for name in ("cc", "gcc", "clang") if (path := shutil.which(name))]
    if importlib.util.find_spec("ziglang"):
        found.append((sys.executable, "-m", "ziglang", "cc"))
    return found


def find() -> Toolchain:
    """The first compiler that answers. Raises BuildError, with the commands that mend it, where none does."""
    refused = ""
    for command in candidates():
        version, refused = _version(command)
        if version:
            native = X86_NATIVE if os.uname().machine in ("x86_64", "amd64") else ("-mcpu=native",)
            return Toolchain(command, version, native)
    if given := os.environ.get("CC"):
        raise BuildError(f"$CC, {given!r}, is no C compiler that answers --version: {refused}", hint=UNSET)
    raise BuildError("no C compiler found",
                     hint="apt-get install gcc, or: pip install ziglang; or run with --target reference")


@lru_cache(maxsize=8)
def _version(command: tuple[str, ...]) -> tuple[str, str]:
    """The first line that a compiler prints of its version, or why it has none."""
    try:
        done = processes.run([*command, "--version"], VERSION_SECONDS)
    except NotFinished as error:
        return "", str(error)
    except (OSError, ValueError) as error:
        return "", getattr(error, "strerror", None) or str(error)
    if done.code:
        return "", f"exit code {done.code}"
    lines = done.output.strip().splitlines()
    return (lines[0][:SHOWN_COLUMNS], "") if lines else ("", "it prints nothing")
