"""The command line's entry: one group, one file per command, loaded when called.

    hloc run model.hlo --inputs x.npy
"""
from __future__ import annotations

import importlib
import os
import sys
import traceback

import click

from hloc.cli.color import choose, color_option, tell

FAULT = 70                       # exit code of internal errors: sysexits' EX_SOFTWARE
NO_READER = 141                  # of commands that nobody reads: 128 + SIGPIPE

COMMANDS = {
    "run": "Run a module (or what `compile` wrote) and show its results.",
    "check": "Compare a target with the reference evaluator on the same inputs.",
    "bisect": "Find the pass, or the kernel, that changes a module's results.",
    "reduce": "Make a module on which a comparison fails as small as possible.",
    "extract": "Take out the part of a module around an instruction, as a module that runs.",
    "bundle": "Pack a module, inputs, versions, flags and a log into one file.",
    "nans": "List the instructions that produce the first NaN or infinity.",
    "bench": "Measure programs in turn: percentiles, and which is faster.",
    "compile": "Compile a module to a file: .so .c .cubin .cu .ptx .hlo.",
    "opt": "Run passes over a module and print HLO text.",
    "diff": "Show what differs between two modules, or between two passes of one.",
    "report": "Write a page about a module: kernels with their texts, costs, memory over time, passes, reasons.",
    "graph": "Write a module as a graph: an HTML page, a drawing, or text for Graphviz.",
    "explore": "Open a page on which HLO, as you type it, becomes kernels, C, CUDA C and machine code.",
    "explain": "List the kernels of a module, and why they were not fused.",
    "convert": "Write a module in another form: HLO text, binary proto, text proto.",
    "memory": "Show the memory that a run needs, and the largest buffers.",
    "simulate": "Predict a step on a cluster of many devices: time, communication, memory; compare meshes.",
    "precompile": "Compile hloc's library kernels for this machine, once.",
    "doctor": "List compilers, GPUs and packages, and how to install what is missing.",
    "completion": "Print the completion script for bash, zsh or fish.",
    "man": "Print or write manual pages.",
}


class LazyGroup(click.Group):
    """A group that imports a command's file only when that command is used: `hloc --help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"hloc.cli.{name}"), f"{name}_command")
        if not any(p.name == "color" for p in command.params):
            command.params.append(color_option())
        return command

    def invoke(self, ctx: click.Context) -> object:
        """A command whose reader went away (`| head`) ends with 141, as by SIGPIPE. Click would end it with 1, which
        says that a comparison failed."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(NO_READER)

    def resolve_command(self, ctx: click.Context, args: list[str]):
        import difflib
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            if near:
                raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", error.ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


EPILOG = """\b
Examples:
  hloc run model.hlo --inputs x.npy
  hloc run model.hlo --inputs random:1 -o results.npz
  hloc opt model.hlo --dump-after fusion
  hloc compile model.hlo -o model.so
  hloc check model.hlo --against xla
  hloc bisect model.hlo
  hloc memory model.hlo
  hloc convert model.hlo.pb -o model.hlo

Exit codes: 0 ok, 1 a comparison failed, 2 usage, 3 parse or verification error, 4 unsupported op,
5 the C or CUDA compiler failed, 6 run-time failure, 70 an internal error of hloc."""


def version() -> str:
    import hloc
    return hloc.__version__


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hloc", prog_name="hloc")
def cli() -> None:
    """hloc compiles and runs HLO text, the program format of XLA, without XLA."""


cli.params.append(color_option())


def main() -> None:
    """Run the command line; an HlocError ends as a message and its exit code, an internal error as a traceback."""
    from hloc.errors import HlocError
    from hloc.interrupts import ending_cleanly
    choose("auto")
    try:
        with ending_cleanly():
            cli.main(prog_name="hloc", standalone_mode=False)
    except HlocError as error:
        tell(str(error))
        sys.exit(error.code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except MemoryError:
        tell("error: out of memory")
        sys.exit(6)
    except OSError as error:                    # a folder for dumps that cannot be made, a full disk
        where = f"{error.filename}: " if error.filename else ""
        tell(f"error: {where}{error.strerror or error}")
        sys.exit(6)
    except Exception as error:
        traceback.print_exc()
        tell(f"error: {type(error).__name__}: this is an internal error of hloc, please report it\n"
             "hint: hloc reduce MODULE -o small.hlo makes a small module that shows it")
        sys.exit(FAULT)


if __name__ == "__main__":
    main()
