"""hloc doctor: what is installed on this machine, and how to install what is missing."""
from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil

import click

from hloc.cli.terminal import print_table

EPILOG = """\b
Examples:
  hloc doctor
  hloc doctor --json"""
ANSWER_SECONDS = 30


@click.command("doctor", epilog=EPILOG)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor_command(as_json: bool) -> None:
    """List what hloc found on this machine (compilers for C and CUDA, driver, GPU and libraries for it, PyCUDA,
    jaxlib), and how to install what is missing."""
    rows = [_python(), _c_compiler(), _library_kernels(), _nvrtc(), _nvcc(), _driver(),
            _package("pycuda", "run CUDA code", "hloc[cuda]"), *_libraries(),
            _package("jaxlib", "hloc check --against xla", "hloc[jax]"), _cache()]
    if as_json:
        click.echo(json.dumps([dict(zip(("what", "found", "needed_for", "get_it"), r)) for r in rows], indent=1))
        return
    print_table(["what", "found", "needed for", "to get it"], [[w, f or "missing", n, g if not f else ""]
                                                               for w, f, n, g in rows])


def _python() -> tuple[str, str, str, str]:
    return "python", f"{platform.python_version()} on {platform.machine()}", "everything", ""


def _c_compiler() -> tuple[str, str, str, str]:
    from hloc.errors import BuildError
    from hloc.targets.cpu.building.toolchain import find
    try:
        found = find()
        return "C compiler", f"{' '.join(found.command)}: {found.version}", "target cpu", ""
    except BuildError as error:
        return "C compiler", "", "target cpu", error.hint or ""


def _library_kernels() -> tuple[str, str, str, str]:
    from hloc.errors import BuildError
    from hloc.targets.cpu.building.prebuilt import how_many
    try:
        there, all_of_them = how_many()
        found = f"{there} of {all_of_them} compiled for this CPU and compiler" if there else ""
    except BuildError:
        found = ""
    return "library kernels", found, "faster first compilations", "hloc precompile"


def _nvrtc() -> tuple[str, str, str, str]:
    from hloc.targets.cuda.compiler import nvrtc_version
    return "NVRTC", nvrtc_version() or "", "hloc compile -o model.cubin", "pip install 'hloc[nvrtc]'"


def _nvcc() -> tuple[str, str, str, str]:
    path = shutil.which("nvcc")
    text = ""
    if path:
        release = next((line for line in _answer(path, "--version").splitlines() if "release" in line), "")
        text = f"{path}: {release.strip()}"
    return "nvcc", text, "the same, instead of NVRTC", "install the CUDA toolkit (NVRTC is enough)"


def _driver() -> tuple[str, str, str, str]:
    path = shutil.which("nvidia-smi")
    text = ""
    if path:
        said = _answer(path, "--query-gpu=name,driver_version", "--format=csv,noheader")
        text = "; ".join(said.strip().splitlines())
    return "GPU and driver", text, "running CUDA code", "a machine with an NVIDIA GPU and its driver"


def _libraries() -> list[tuple[str, str, str, str]]:
    """NVIDIA's, that programs for GPUs may call."""
    from hloc.errors import RunError
    from hloc.targets.cuda.libraries import cublaslt, cudnn, nccl
    rows = []
    for what, library, use in (("NCCL", nccl, "collectives of several GPUs"),
                               ("cuBLASLt", cublaslt, "its matmuls, with --tuning"),
                               ("cuDNN", cudnn, "its convolutions, with --tuning")):
        try:
            rows.append((what, library.version(), use, ""))
        except RunError as error:
            rows.append((what, "", use, error.hint or ""))
    return rows


def _answer(*command: str) -> str:
    """The output of a program; "" if it fails."""
    from hloc.processes import NotFinished, run
    try:
        done = run(command, ANSWER_SECONDS)
    except (NotFinished, OSError):
        return ""
    return done.output if done.code == 0 else ""


def _package(name: str, use: str, extra: str) -> tuple[str, str, str, str]:
    found = importlib.metadata.version(name) if importlib.util.find_spec(name) else ""
    return name, found, use, f"pip install '{extra}'"


def _cache() -> tuple[str, str, str, str]:
    from hloc.cache import folder
    from hloc.errors import RunError
    try:
        path = folder()
    except RunError as error:
        return "cache", "", "compiling once", f"{error.message}: {error.hint}"
    size = sum(p.lstat().st_size for p in path.iterdir())
    return "cache", f"{path} ({size / 2**20:.1f} MiB)", "compiling once", f"writable {os.fspath(path)}"
