"""What an installation from source does beside copying files: it compiles the grammar's patterns for this Python
(hloc/patterns.py), and the routines for this CPU (prebuilt.py), so that the first compilation of a model waits for no
matrix product. pyproject.toml names these commands of setuptools.

In: HLOC_ROUTINES=0 leaves both out, for a wheel that fits every machine. Out: files in the package; a wheel that holds
them says which platform it is for. Without a C compiler the installation goes on and says so: routines then compile
when a program first needs them, or all at once by `hloc routines`.

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
routines, patterns, listed = map(Path, sys.argv[1:])
install(listed, patterns)
try:
    count, refused = build_all(routines)
except Exception as error:
    sys.exit(f"hloc: its library kernels are not compiled now, but when a program needs them: {error}")
print(f"hloc: {count} library kernels compiled for this CPU", *refused, sep="\\n")
"""


def wants_routines() -> bool:
    """As routine_objects.py asks when a program compiles."""
    return os.environ.get("HLOC_ROUTINES") != "0"


class BuildWithRoutines(build_py):
    """The package's files, and the routines beside them: in the build folder, or in the sources where the installation
    is editable."""

    def run(self) -> None:
        super().run()
        if wants_routines():
            into = SOURCES if self.editable_mode else Path(self.build_lib).resolve()
            paths = map(str, (into / PREBUILT, into / PATTERNS, LISTED))
            subprocess.run([sys.executable, "-c", COMPILE, *paths], cwd=SOURCES, check=False)


class WheelWithRoutines(bdist_wheel):
    """A wheel for any Python, and for this platform where it holds routines."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if wants_routines():
            self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()
        return ("py3", "none", tag[2]) if wants_routines() else tag
