"""hloc completion: the script of click with which a shell completes commands, options and file names."""
from __future__ import annotations

import click

EPILOG = """\b
Examples:
  hloc completion bash > ~/.local/share/bash-completion/completions/hloc
  hloc completion zsh > ~/.zfunc/_hloc          # ~/.zfunc being in fpath, before compinit
  hloc completion fish > ~/.config/fish/completions/hloc.fish"""


@click.command("completion", epilog=EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion_command(shell) -> None:
    """Print the script with which SHELL completes hloc's commands, options and file names."""
    from click.shell_completion import get_completion_class

    from hloc.cli.main import cli
    click.echo(get_completion_class(shell)(cli, {}, "hloc", "_HLOC_COMPLETE").source())
