"""Color on a terminal: of messages, tables' titles and code. None in a pipe or file.

`--color auto` (the default): on a terminal that is not TERM=dumb, without NO_COLOR in the environment
(https://no-color.org). `always` colors pipes too, for `less -R`.
"""
from __future__ import annotations

import os
import re
import sys
from typing import IO

import click

from hloc.errors import printable_lines

MOST_CODE = 2_000_000                 # characters that are colored: about two seconds
_ANSI = {"error": "31;1", "warning": "33;1", "note": "36;1", "hint": "36;1", "caret": "32;1"}
_LABEL = re.compile(r"(?:(?<=^)|(?<=: ))(error|warning|note|hint)(?=:)")
_CARET = re.compile(r"^( +)(\^~*)$")
_mode = "auto"


def choose(mode: str) -> None:
    """Set auto, always or never, for all later output."""
    global _mode
    _mode = mode


def _take(_ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    if value is not None:
        choose(value)


def color_option() -> click.Option:
    """--color, of each command and of hloc itself."""
    return click.Option(["--color"], type=click.Choice(["auto", "always", "never"]), expose_value=False,
                        callback=_take, help="Color messages and code. Default: auto, on a terminal without NO_COLOR.")


def is_colored(stream: IO) -> bool:
    """Whether output to a stream is colored."""
    if _mode != "auto":
        return _mode == "always"
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def tell(message: str) -> None:
    """An error, warning, note or hint on stderr: its label, and the caret below a line of text, are colored."""
    if not is_colored(sys.stderr):
        click.echo(message, err=True, color=True)
        return
    lines = [_CARET.sub(lambda m: m[1] + _styled(m[2], "caret"), line) for line in message.split("\n")]
    lines = [_LABEL.sub(lambda m: _styled(m[1], m[1]), line, count=1) if n == 0 or line.startswith("hint:") else line
             for n, line in enumerate(lines)]
    click.echo("\n".join(lines), err=True, color=True)


def _styled(text: str, name: str) -> str:
    return f"\x1b[{_ANSI[name]}m{text}\x1b[0m"


def echo_code(text: str, language: str) -> None:
    """Code on stdout; language: hlo, or an alias of Pygments. On a terminal, control characters of the text are
    escaped."""
    if not text.endswith("\n"):
        text += "\n"
    if sys.stdout.isatty():
        text = printable_lines(text.expandtabs())
    if is_colored(sys.stdout) and len(text) <= MOST_CODE:
        text = _highlighted(text, language)
    click.echo(text, nl=False, color=True)


def _highlighted(text: str, language: str) -> str:
    from pygments import highlight
    from pygments.formatters.terminal import TERMINAL_COLORS, TerminalFormatter
    from pygments.token import Whitespace
    colors = {**TERMINAL_COLORS, Whitespace: ("", "")}
    return highlight(text, _lexer(language), TerminalFormatter(colorscheme=colors))


def _lexer(language: str):
    if language == "hlo":
        from hloc.cli.lexer import HloLexer
        return HloLexer(stripnl=False)
    from pygments.lexers import get_lexer_by_name
    return get_lexer_by_name(language, stripnl=False)
