"""hloc man: manual pages with the texts of --help.

click formats a command's help with a formatter that writes roff (man(7)) instead of columns, so a page always has the
content of --help.
"""
from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import click

EPILOG = """\b
Examples:
  hloc man | man -l -                      # of hloc itself
  hloc man run | man -l -
  hloc man -o ~/.local/share/man/man1      # hloc.1, hloc-run.1 ...; then: man hloc-run"""


@click.command("man", epilog=EPILOG)
@click.argument("command", required=False)
@click.option("--output", "-o", metavar="DIR", type=click.Path(path_type=Path),
              help="Write the pages of all commands into this folder.")
def man_command(command, output) -> None:
    """Print the manual page of hloc, or of one COMMAND, as roff; or write all of them."""
    from hloc.cli.main import COMMANDS, cli
    from hloc.errors import UsageError
    from hloc.files import make_folder, write
    if command is not None and command not in COMMANDS:
        raise UsageError(f"no command {command!r}", hint="hloc --help lists them")
    if output is None:
        click.echo(page(cli, command), nl=False)
        return
    if command is not None:
        raise UsageError("-o writes the pages of all commands", hint=f"hloc man {command} > hloc-{command}.1")
    make_folder(output)
    for name in (None, *COMMANDS):
        write(output / f"{'-'.join(filter(None, ('hloc', name)))}.1", page(cli, name))
    click.echo(f"{len(COMMANDS) + 1} pages in {output}", err=True)


def page(cli: click.Group, name: str | None) -> str:
    """The page of the whole group, or of the command `name`, in roff."""
    from hloc.cli.main import version
    context = click.Context(cli, info_name="hloc")
    if name is not None:
        command = cli.get_command(context, name)
        assert command is not None
        context = click.Context(command, parent=context, info_name=name)
    formatter = RoffFormatter()
    context.command.format_help(context, formatter)
    title = f"hloc-{name}" if name else "hloc"
    about = (context.command.help or "").split("\n\n")[0].replace("\n", " ").strip().rstrip(".")
    return (f'.TH "{title.upper()}" "1" "" "hloc {version()}" "hloc"\n.SH NAME\n{_text(title)} \\- {_text(about)}\n'
            + formatter.getvalue())


class RoffFormatter(click.HelpFormatter):
    """A formatter for click that writes roff."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.write(f".SH SYNOPSIS\n\\fB{_text(prog)}\\fR {_text(args.strip())}\n")
        self.write(".SH DESCRIPTION\n")

    def write_heading(self, heading: str) -> None:
        self.write(f".SH {_text(heading.upper())}\n")

    def write_paragraph(self) -> None:
        self.write(".PP\n")

    def write_text(self, text: str) -> None:
        """Write paragraphs; one after a line with \\b keeps its lines."""
        for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip("\n"))):
            kept = paragraph.lstrip().startswith("\b")
            lines = [line for line in paragraph.split("\n") if line.strip() != "\b"]
            if number:
                self.write(".PP\n")
            if kept:
                self.write(".nf\n" + "".join(f"{_text(line)}\n" for line in lines) + ".fi\n")
            else:
                self.write("".join(f"{_text(line.strip())}\n" for line in lines))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        for term, text in rows:
            self.write(f".TP\n\\fB{_text(term)}\\fR\n{_text(text)}\n")


def _text(text: str) -> str:
    """Text, escaped for roff."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)
