"""hloc precompile: compile hloc's library kernels for this machine."""
from __future__ import annotations

import click

from hloc.cli.terminal import Progress
from hloc.errors import RunError

EPILOG = """\b
Examples:
  hloc precompile
  CC=clang hloc precompile         # for another C compiler"""


@click.command("precompile", epilog=EPILOG)
def precompile_command() -> None:
    """Compile all of hloc's library kernels (matmuls, convolutions, FFTs ...) for this CPU and C compiler.

    An installation from source has done this. Run it if that installation had no C compiler, if you installed a wheel
    without library kernels, or if you use another C compiler. Otherwise each library kernel is compiled when a program
    first needs it.
    """
    from hloc.targets.cpu.building.prebuilt import PREBUILT, build_all
    try:
        with Progress() as progress:
            count, refused = build_all(report=progress.report)
    except (OSError, RunError) as error:
        reason = error.message if isinstance(error, RunError) else f"cannot write to {PREBUILT}: {error.strerror}"
        raise RunError(reason, hint="library kernels are compiled into the cache when a program needs them") from None
    click.echo(f"{count} library kernels in {PREBUILT}")
    for said in refused:
        click.echo(f"refused: {said}", err=True)
