"""hloc routines: compile hloc's own routines for this machine."""
from __future__ import annotations

import click

from hloc.cli.terminal import Progress
from hloc.errors import RunError

EPILOG = """\b
Examples:
  hloc routines
  CC=clang hloc routines         # for another compiler"""


@click.command("routines", epilog=EPILOG)
def routines_command() -> None:
    """Compile all of hloc's own routines (products, convolutions, transforms ...) for this CPU and C compiler.

    An installation from source has done so. It is of use after an installation without a compiler or from a wheel for
    any machine, and after a change of compiler: without it each routine compiles when a program first needs it.
    """
    from hloc.targets.cpu.building.prebuilt import PREBUILT, build_all
    try:
        with Progress() as progress:
            count, refused = build_all(report=progress.report)
    except (OSError, RunError) as error:
        reason = error.message if isinstance(error, RunError) else f"cannot write to {PREBUILT}: {error.strerror}"
        raise RunError(reason, hint="routines compile when a program needs them, into the cache") from None
    click.echo(f"{count} routines in {PREBUILT}")
    for said in refused:
        click.echo(f"refused: {said}", err=True)
