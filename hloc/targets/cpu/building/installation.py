"""Setuptools commands for an installation from source, named in pyproject.toml: they compile the grammar's patterns for
this Python (hloc/patterns.py), and the library kernels for this CPU (prebuilt.py), so that the first compilation of a
model does not wait for them.

In: HLOC_PRECOMPILED=0 omits both, for a wheel for every machine. Out: files in the package; a wheel with them has a
platform tag, and a build tag that names the CPU. On another CPU it works, too: there library kernels are compiled when
a program first needs them. Without a C compiler the installation prints a note and continues: library kernels are then
compiled when a program first needs them, or all at once by `hloc precompile`.

Setuptools runs this file alone, in an environment that has neither hloc nor its dependencies.
"""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCES = Path(__file__).resolve().parents[4]
PREBUILT, PATTERNS = Path("hloc", "targets", "cpu", "prebuilt"), Path("hloc", "patterns.json")
LISTED = Path("grammar", "hlo.patterns.json")
COMPILE = """
import sys
from pathlib import Path
from hloc.patterns import install
from hloc.targets.cpu.building.prebuilt import build_all
library_kernels, patterns, listed = map(Path, sys.argv[1:])
install(listed, patterns)
try:
    count, refused = build_all(library_kernels)
except Exception as error:
    sys.exit(f"hloc: its library kernels are not compiled now, but when a program needs them: {error}")
print(f"hloc: {count} library kernels compiled for this CPU", *refused, sep="\\n")
"""


CPU = """
from hloc.machine import Machine
cpu = Machine.host()
vectors = {16: "_sse", 32: "_avx2", 64: "_avx512"}.get(cpu.vector_bytes, "") if cpu.arch == "x86_64" else ""
print(f"1_{cpu.arch}{vectors}{'_amx' if cpu.amx else ''}")
"""


def cpu_tag() -> str:
    """A wheel's build tag, which must begin with a digit: 1_x86_64_avx512."""
    done = subprocess.run([sys.executable, "-c", CPU], cwd=SOURCES, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def precompiles_library_kernels() -> bool:
    """Whether HLOC_PRECOMPILED permits it, as in prebuilt.py."""
    return os.environ.get("HLOC_PRECOMPILED") != "0"


class BuildWithLibraryKernels(build_py):
    """The package's files and the library kernels beside them: in the build folder or, for an editable installation, in
    the sources."""

    def run(self) -> None:
        super().run()
        if precompiles_library_kernels():
            into = SOURCES if self.editable_mode else Path(self.build_lib).resolve()
            paths = map(str, (into / PREBUILT, into / PATTERNS, LISTED))
            subprocess.run([sys.executable, "-c", COMPILE, *paths], cwd=SOURCES, check=False)


class WheelWithLibraryKernels(bdist_wheel):
    """A wheel for any Python; for this platform, and with the CPU in its name, if it contains library kernels."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if precompiles_library_kernels():
            self.root_is_pure = False
            self.build_number: str | None = self.build_number or cpu_tag()

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()
        return ("py3", "none", tag[2]) if precompiles_library_kernels() else tag
