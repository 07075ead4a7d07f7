"""The C compiler of this machine: found, asked for its version, run.

    chain = toolchain.find(machine); chain.link([chain.compile_object(source, target)], output)

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
from hloc.errors import BuildError, RunError, UsageError
from hloc.files import opened
from hloc.machine import Machine
from hloc.processes import NotFinished
from hloc.workers import stop_event

# No -ffast-math: NaN, infinities and signed zeros mean what HLO says. Reassociation is explicit in the generated code.
FLAGS = ("-std=gnu11", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math",
         "-ffp-contract=fast", "-fopenmp-simd", "-fno-strict-aliasing", "-w", "-Werror=implicit-function-declaration")
X86 = ("x86_64", "amd64")
MARCH = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}", re.IGNORECASE)
DRIVER_FLAGS = ("-O1",)
LONG_DRIVER_FLAGS = ("-O1", "-fno-inline")     # a call for each of a thousand steps; gcc would spend most on copies
# Generated loops say what is a vector, and library kernels name theirs, so that -O3 finds little; gcc takes a third
# longer for it, and where a kernel is one long expression (random numbers) three times as long.
LIBRARY_KERNEL_FLAGS = ("-O2", "-fno-semantic-interposition", "-fno-stack-protector")
GCC_LIBRARY_KERNEL_FLAGS = ("-fpeel-loops", "-funswitch-loops", "-fvect-cost-model=dynamic",
                     "--param", "max-inline-insns-auto=30", "--param", "inline-min-speedup=15")
# Loops of kernels are unswitched up to this size: a select whose condition is the same for all elements cannot be a
# vector operation in gcc, which needs to see the comparison, or vectors of booleans.
# No partial redundancies, no threaded jumps: where one of a select's values is constant, or several selects have one
# condition, gcc would make a branch of all that follows. The other passes find next to nothing in straight code of
# named vectors and short loops, and take a seventh of gcc's time. (Value ranges stay: loops of gathers need them.)
GCC_KERNEL_FLAGS = ("--param", "max-unswitch-insns=150", *(f"-fno-{name}" for name in (
    "tree-pre", "thread-jumps", "gcse", "tree-dominator-opts", "schedule-insns2", "rerun-cse-after-loop",
    "cse-follow-jumps", "code-hoisting", "crossjumping", "tree-tail-merge", "lra-remat", "partial-inlining",
    "tree-switch-conversion", "optimize-strlen")))
# Gathers of two or four elements take two to three times as long as as many loads.
GATHER_FLAGS = ("-mtune-ctrl=^use_gather_2parts,^use_gather_4parts",)
FIRST_GCC_WITH_GATHER_FLAGS = 12
COMPILE_SECONDS, VERSION_SECONDS = 600, 30
SHOWN_LINES, SHOWN_COLUMNS = 20, 500           # of what a compiler says
ELF = b"\x7fELF"
# Macros of instruction sets that compilers use by themselves: not of tuning, modes or names.
INSTRUCTIONS = re.compile(r"__(S?SSE[34](_[12])?|AVX(?!512VP2)\w*|AMX\w+|FMA4?|F16C|BMI2?|LZCNT|ABM|POPCNT|MOVBE|"
                          r"XOP|TBM|GFNI)__")
_DEFINED = re.compile(r"^#define (\w+)", re.MULTILINE)
MARCH_HINT = "native, x86-64-v2, x86-64-v3 (AVX2), x86-64-v4 (AVX-512), or a CPU's name such as skylake or znver4"
UNSET = "unset CC, and cc, gcc and clang are looked for"
RUNTIME = Path(__file__).parent.parent / "runtime"
INCLUDE_FOLDERS = (RUNTIME, Path(__file__).parent.parent.parent / "c")


@dataclass(frozen=True)
class Toolchain:
    """command: how to call the compiler; version: its first line of --version; machine: to compile for."""

    command: tuple[str, ...]
    version: str
    machine: Machine

    def flags(self) -> tuple[str, ...]:
        facts = ("-DHLOC_AMX",) * self.machine.amx + ("-DHLOC_SLOW_PAIRS",) * self.machine.slow_pairs
        return FLAGS + self.native + facts + tuple(f"-I{folder}" for folder in INCLUDE_FOLDERS)

    @property
    def native(self) -> tuple[str, ...]:
        """Flags for the CPU."""
        return (self.march_flag(self.machine.march),)

    def march_flag(self, march: str) -> str:
        if march == "native" and os.uname().machine not in X86:
            return "-mcpu=native"
        return f"-march={march.replace('-', '_') if self.is_zig else march}"       # zig's names have no hyphens

    def identity(self) -> str:
        """What a cached build depends on, besides its source: the whole command, and all flags that may go with it."""
        cpu = _cpu_identity() if self.machine.march == "native" else str(self.machine.slow_pairs)
        return " ".join((*self._called(), self.version, *FLAGS, *self.native, str(self.machine.amx), *DRIVER_FLAGS,
                         *LONG_DRIVER_FLAGS, *self.kernel_flags(), *sanitize.flags(), cpu))

    def _called(self) -> tuple[str, ...]:
        """The command, whatever link to the compiler it goes by; some programs are several compilers, by name."""
        first = self.command[0]
        return os.path.realpath(shutil.which(first) or first), os.path.basename(first), *self.command[1:]

    def library_kernel_flags(self) -> tuple[str, ...]:
        """Optimization of the library kernels of runtime/."""
        if self.is_clang:
            return LIBRARY_KERNEL_FLAGS
        found = re.search(r"\) (\d+)\.", self.version)
        tuned = self.is_x86 and found is not None and int(found[1]) >= FIRST_GCC_WITH_GATHER_FLAGS
        return LIBRARY_KERNEL_FLAGS + GCC_LIBRARY_KERNEL_FLAGS + (GATHER_FLAGS if tuned else ())

    def kernel_flags(self) -> tuple[str, ...]:
        """Optimization of generated kernels."""
        if self.is_clang:
            return self.library_kernel_flags()
        return self.library_kernel_flags() + GCC_KERNEL_FLAGS

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version or self.is_zig

    @property
    def is_zig(self) -> bool:
        return "ziglang" in self.command

    def compile_object(self, source: Path, target: Path, optimize: tuple[str, ...]) -> Path:
        """One translation unit to an object file. Raises BuildError with the compiler's own words."""
        self._run([*self.command, *self.flags(), *optimize, *sanitize.flags(), "-c", str(source), "-o",
                   str(target)], target)
        return target

    def any_cpu(self) -> tuple[str, ...]:
        """Flags behind the others for code that must run on any CPU."""
        return (self.march_flag("x86-64"),) if self.is_x86 else ()

    @property
    def is_x86(self) -> bool:
        return self.native[0].startswith("-march")

    def link(self, objects: list[Path], output: Path, exports: Path | None = None) -> None:
        """A shared object. exports: the linker's script that says which symbols others see; without one, only this
        process and its like load it, which hold libc already: the linker has less to read."""
        plain = exports is None and not sanitize.flags()
        lean = plain and self.version.startswith(("gcc", "cc")) and not self.is_zig
        libraries = ("-nostdlib", "-lm", "-lgcc") if lean else ("-lm", "-lpthread")
        shown = () if exports is None else (f"-Wl,--version-script={exports}",)
        self._run([*self.command, "-shared", "-fPIC", *map(str, objects), "-o", str(output), *shown, *libraries,
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


def find(machine: Machine | None = None) -> Toolchain:
    """The first compiler that answers, for code of a machine, else of this one. Raises BuildError, with the commands
    that mend it, where none does."""
    refused = ""
    for command in candidates():
        version, refused = _version(command)
        if version:
            return Toolchain(command, version, machine or Machine.host())
    if given := os.environ.get("CC"):
        raise BuildError(f"$CC, {given!r}, is not a C compiler that answers --version: {refused}", hint=UNSET)
    raise BuildError("no C compiler found",
                     hint="apt-get install gcc, or: pip install ziglang; or run with --target reference")


def machine_of(march: str) -> Machine:
    """The CPU that a compiler's -march stands for; "native": this one. Raises UsageError for one that the C compiler
    does not know, BuildError where there is none."""
    if march == "native":
        return Machine.host()
    if not MARCH.fullmatch(march):
        raise UsageError(f"{march[:80]!r} is not the name of a CPU for a C compiler's -march", hint=MARCH_HINT)
    return Machine.of_march(march, predefined(march))


def predefined(march: str) -> frozenset[str]:
    """The names of the macros that say what a CPU can do. Raises as machine_of does."""
    chain = find()
    return _predefined(chain.command, chain.march_flag(march), march)


def refuse_foreign(machine: Machine) -> None:
    """RunError where this CPU does not do all that code of a machine may ask of it."""
    if machine.march != "native":
        missing = sorted(m for m in predefined(machine.march) - predefined("native") if INSTRUCTIONS.fullmatch(m))
        if missing:
            words = ", ".join(m.strip("_").lower() for m in missing[:4])
            raise RunError(f"this CPU has no {words}, which code for {machine.march} may use",
                           hint="hloc compile writes it to a file, for a CPU that has")


@lru_cache(maxsize=8)
def _predefined(command: tuple[str, ...], flag: str, march: str) -> frozenset[str]:
    try:
        done = processes.run([*command, flag, "-dM", "-E", "-x", "c", os.devnull], VERSION_SECONDS)
    except (NotFinished, OSError) as error:
        raise BuildError(f"cannot ask the C compiler {command[0]} about {flag}: {error}") from None
    macros = frozenset(_DEFINED.findall(done.output))
    if done.code or not macros:
        said = next((line for line in done.errors.splitlines() if "error" in line), "")[:SHOWN_COLUMNS]
        words = f"the C compiler {command[0]} does not know the CPU {march!r}\n{said}"
        raise UsageError(words.strip(), hint=MARCH_HINT)
    return macros


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
