"""hloc explore: a local page on which HLO becomes kernels, C, CUDA C and machine code."""
from __future__ import annotations

import os
import secrets
import socket
import sys
import webbrowser
from contextlib import suppress
from typing import Any

import click

from hloc.cli.options import Number, Reading, Size, lenient_reading_options
from hloc.errors import RunError, UsageError

EPILOG = """\b
Examples:
  hloc explore                       # opens the browser on an example
  hloc explore model.hlo
  hloc explore model.hlo --no-browser --port 8080
  hloc explore model.html            # a page that was saved to share"""
TOKEN_BYTES = 24


@click.command("explore", epilog=EPILOG)
@click.argument("module", required=False, type=click.Path(allow_dash=True))
@click.option("--port", default=0, type=click.IntRange(0, 65535), metavar="N",
              help="Listen on this port of 127.0.0.1. Default: one that is free.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option("--seconds", default=60.0, show_default=True, type=Number(0.1, 86400), metavar="N",
              help="The time that one change of the text may take to compute; then it is ended.")
@click.option("--memory", default="4GiB", show_default=True, type=Size(), metavar="SIZE",
              help="The memory that it may take.")
@lenient_reading_options
def explore_command(module, port, no_browser, seconds, memory, reading) -> None:
    """Open a page in the browser: on the left the text of MODULE to edit, on the right what becomes of it: HLO after
    any pass, kernels, C, CUDA C, PTX, machine code, graph, memory, predicted times, results.

    The page is served on 127.0.0.1 alone, to whoever has the address that is printed. Nothing is written but hloc's
    cache. Ctrl-C ends it.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise RunError(f"{error.name}, which serves the page, is not installed",
                       hint="pip install 'hloc[explore]'") from None
    from hloc.cli.lexer import HloLexer
    from hloc.explore.menu import facts
    from hloc.explore.pool import Limits
    from hloc.explore.server import serve
    offered = facts(HloLexer.tokens["root"])
    state = _opened(module, reading) if module else _example(offered)
    with _listening(port) as listening, suppress(KeyboardInterrupt):
        serve(listening, secrets.token_urlsafe(TOKEN_BYTES), state, offered, Limits(seconds, memory),
              lambda address: _tell(address, not no_browser))
    click.echo("hloc explore has ended", err=True)


def _example(offered: dict[str, Any]) -> dict[str, Any]:
    name, _, text = offered["examples"][0]
    return {"text": text, "name": f"{name}.hlo", "panes": []}


def _opened(path: str, reading: Reading) -> dict[str, Any]:
    """What the page opens with: the file's own text where it is HLO, though it may have faults; the text and the panes
    of a saved page; else HLO that says the same."""
    from hloc.cli.terminal import read_module, standard_input
    from hloc.explore.server import MOST_TEXT
    from hloc.pages.explore_page import state_of
    from hloc.sources import hlo_text, read_bytes
    name = os.path.basename(path) if path != "-" else "stdin.hlo"
    plain = ".py:" not in path and "#" not in path and reading.choice is None
    text = None
    if plain:
        data = standard_input() if path == "-" else read_bytes(path)
        with suppress(UnicodeDecodeError):
            if saved := state_of(data.decode()):
                return saved
        text = hlo_text(data, path)
    if text is None and path == "-":
        raise UsageError("standard input is not HLO text", hint="hloc explore FILE opens other forms")
    if text is None:
        text, name = str(read_module(path, reading)), name + ".hlo"
    if len(text) > MOST_TEXT:
        raise UsageError(f"{path} has {len(text):,} characters; the page takes {MOST_TEXT:,}",
                         hint="hloc extract takes out a part")
    return {"text": text.replace("\r\n", "\n"), "name": name, "panes": []}


def _listening(port: int) -> socket.socket:
    """A socket on 127.0.0.1. Raises RunError where the port is taken, or not to be had."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(64)
    except OSError as error:
        listening.close()
        raise RunError(f"cannot listen on port {port} of 127.0.0.1: {error.strerror}",
                       hint="without --port a free one is taken") from None
    return listening


def _tell(address: str, open_browser: bool) -> None:
    click.echo(f"the page is at {address} (Ctrl-C ends it)")
    sys.stdout.flush()
    if open_browser and _has_screen():
        with suppress(webbrowser.Error, OSError):
            webbrowser.open(address)


def _has_screen() -> bool:
    """Whether a browser would open a window; those for terminals would take this one."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
