"""hloc bundle: a module, its inputs and the log of a run in one file, for a bug report."""
from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
from pathlib import Path

import click
import numpy as np

from hloc.cli.bundled_flags import flags_of_precision
from hloc.cli.options import (
    Number,
    fusion_option,
    inputs_option,
    memory_limit_option,
    module_argument,
    precision_options,
    reading_options,
    target_option,
)
from hloc.cli.saved_inputs import save_inputs
from hloc.cli.terminal import Progress, counted, input_reader
from hloc.errors import BuildError, HlocError
from hloc.files import check_target, writing
from hloc.tools.formatting import size_text

EPILOG = """\b
Examples:
  hloc bundle model.hlo -o case.zip                     # with inputs that fit the model, and the log of a run
  hloc bundle model.hlo --inputs x.npy --target cpu --fusion off -o case.zip
  hloc run case.zip                                     # as does every command that takes a module"""


@click.command("bundle", epilog=EPILOG)
@module_argument
@inputs_option
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), metavar="FILE",
              help="The bundle, a zip file.")
@target_option
@click.option("--timeout", default=300.0, show_default=True, type=Number(0.1, 86400), metavar="SECONDS",
              help="Time limit of the run whose log is packed.")
@click.option("--json", "as_json", is_flag=True, help="Print what was packed as JSON.")
@fusion_option
@precision_options
@memory_limit_option
@reading_options
def bundle_command(module, inputs, output, target, timeout, as_json, fusion, precision, memory_limit, reading) -> None:
    """Pack MODULE, its inputs, versions, flags and the log of a run into one file, which `hloc run` and all commands
    that take a module take.

    The run happens in a process of its own: the log also shows a crash, an error or a timeout.
    A module that cannot be read is packed with the error. The file holds the module's bytes and the inputs:
    check that you may share them.
    """
    from hloc.bundles import Bundle, module_name, write_bundle
    from hloc.sources import split_choice
    check_target(output)
    path, choice = split_choice(module)
    data = _bytes(path)
    given = {"target": target, "fusion": fusion, "memory_limit": memory_limit,
             **flags_of_precision(precision), "elided": reading.elided}
    flags = {name: value for name, value in given.items() if value not in (None, "auto", "on", False)}
    with Progress() as progress:
        arrays = _inputs(data, path, choice, inputs, reading, progress)
        case = Bundle(module_name(path), data, reading.choice or choice, flags, arrays)
        progress.report("run")
        code, log = _run(case, timeout)
        progress.report("write")
        with writing(output) as file:
            write_bundle(file, case, versions(), log)
    size = output.stat().st_size
    if as_json:
        click.echo(json.dumps({"output": str(output), "bytes": size, "module": case.name, "inputs": len(arrays),
                               "flags": flags, "versions": versions(), "exit_code": code}, indent=1))
    else:
        click.echo(f"{output}: {size_text(size)}, {counted(len(arrays), 'input')}; the run ended with "
                   f"{'exit code ' + str(code) if code is not None else 'a timeout'}")


def _bytes(path: str) -> bytes:
    from hloc.cli.terminal import standard_input
    from hloc.sources import read_bytes
    return standard_input() if path == "-" else read_bytes(path)


def _inputs(data: bytes, path: str, choice: str | None, inputs, reading, progress: Progress) -> tuple[np.ndarray, ...]:
    """The input arrays of the bundle; none if the module cannot be read and --inputs is not given."""
    from hloc.api import load
    from hloc.inputs import check_inputs, entry_parameters
    try:
        options = reading._asdict()
        options["choice"] = reading.choice or choice
        parsed = load(data, name=path, **options)
        return tuple(check_inputs(parsed, input_reader(inputs, parsed)(entry_parameters(parsed))))
    except HlocError as error:
        if inputs:
            raise
        click.echo(f"note: packed without inputs: {error.message.splitlines()[0]}", err=True)
        return ()


def _run(case, timeout: float) -> tuple[int | None, str]:
    """The exit code of `hloc run` on the bundle, and its output; the code is None after a timeout."""
    from hloc.bundles import flag_words
    from hloc.processes import NotFinished, run
    with tempfile.TemporaryDirectory() as folder:
        path, inputs = Path(folder) / case.name, Path(folder) / "inputs.npz"
        path.write_bytes(case.module)
        words = ["run", str(path), *flag_words(case.flags)]
        if case.choice is not None:
            words += ["--module", case.choice]
        if case.arrays:
            save_inputs(inputs, case.arrays)
            words += ["--inputs", str(inputs)]
        shown = f"$ hloc {' '.join(words)}\n"
        try:
            done = run([sys.executable, "-m", "hloc", *words], timeout,
                       environment={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
            code, text = done.code, f"{shown}{done.output}{done.errors}\n[exit code {done.code}]\n"
        except NotFinished as error:
            code, text = None, f"{shown}[{error}]\n"
        return code, text.replace(f"{folder}/", "")


def versions() -> dict[str, str]:
    """Versions of hloc, Python, NumPy and the C compiler; nothing that identifies the user or the machine."""
    import hloc
    from hloc.machine import Machine
    from hloc.targets.cpu.building.toolchain import find
    try:
        compiler = find().version
    except BuildError:
        compiler = "none"
    host = Machine.host()
    return {"hloc": hloc.__version__, "python": platform.python_version(), "numpy": np.__version__,
            "system": f"{platform.system()} {platform.machine()}", "compiler": compiler,
            "cores": str(host.cores), "vector_bytes": str(host.vector_bytes)}
