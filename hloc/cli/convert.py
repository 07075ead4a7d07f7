"""hloc convert: write a module in another form; the ending of the file selects it."""
from __future__ import annotations

import gzip
from pathlib import Path

import click

from hloc.cli.color import echo_code
from hloc.cli.options import lenient_reading_options, module_argument
from hloc.cli.terminal import Progress, read_module, warn
from hloc.errors import UsageError
from hloc.files import check_target, write
from hloc.verify.unverified import blaming_faults

EPILOG = """\b
Endings:
  .hlo .txt              HLO text
  .pb                    HloModuleProto, XLA's binary form (.hlo.pb)
  .pbtxt .textproto      HloModuleProto as protobuf text
  .gz behind any of them: compressed
\b
Examples:
  hloc convert module_0001.hlo.pb -o model.hlo
  hloc convert model.hlo -o model.hlo.pb
  hloc convert xla.log --module jit_train_step -o step.hlo   # one of several modules of a log
  hloc convert f.mlir -o f.hlo                               # StableHLO (needs the jax extra)
  hloc convert model.hlo.pb -o - --to pbtxt | less"""

FORMS = {".hlo": "hlo", ".txt": "hlo", ".pb": "pb", ".pbtxt": "pbtxt", ".textproto": "pbtxt"}


@click.command("convert", epilog=EPILOG)
@module_argument
@click.option("--output", "-o", required=True, metavar="FILE", help="The file to write; '-' prints.")
@click.option("--to", "form", type=click.Choice(["hlo", "pb", "pbtxt"]), help="The form. Default: by FILE's ending.")
@lenient_reading_options
def convert_command(module, output, form, reading) -> None:
    """Read MODULE in any form ('-' for stdin), verify it, and write it as HLO text or as a proto."""
    form = form or _form(output)
    if output != "-":
        check_target(Path(output))
    with Progress() as progress:
        parsed = read_module(module, reading, progress)
        progress.report("write")
        with blaming_faults(parsed, "hloc convert"):
            data = _data(parsed, form)
        if output == "-" and form == "hlo":
            echo_code(data.decode(), "hlo")
            return
        if output == "-":
            click.echo(data, nl=False)
            return
        write(Path(output), gzip.compress(data, mtime=0) if output.endswith(".gz") else data)
    if parsed.default_inputs is not None:
        warn(f"the arguments in the snapshot are not written to {output}")
    click.echo(f"{output}: {Path(output).stat().st_size:,} bytes", err=True)


def _form(output: str) -> str:
    if output == "-":
        return "hlo"
    suffix = Path(output.removesuffix(".gz")).suffix
    if suffix not in FORMS:
        raise UsageError(f"{output}: the ending must be one of {' '.join(FORMS)}", hint="or give --to hlo, pb or pbtxt")
    return FORMS[suffix]


def _data(module, form: str) -> bytes:
    if form == "hlo":
        return str(module).encode("utf-8")
    from hloc.proto import left_out, write_proto, write_text_proto
    data = write_proto(module) if form == "pb" else write_text_proto(module).encode("utf-8")
    if left_out(module):
        warn(f"a proto has no field for {', '.join(left_out(module))}: omitted")
    return data

