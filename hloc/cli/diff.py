"""hloc diff: the differences of two modules, or of two states of one module."""
from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from hloc.cli.options import fusion_option, lenient_reading_options, pass_options, precision_options
from hloc.cli.terminal import Progress, counted, line_of, print_table, read_module, source_json, source_of
from hloc.errors import EXIT_CODES, UsageError
from hloc.files import check_target, write

LONGEST_SHOWN = 140             # characters of a row's last column
EPILOG = """\b
Examples:
  hloc diff a.hlo b.hlo                                    # what came, went, moved, changed
  hloc diff a.hlo b.hlo -o diff.html                       # as a page
  hloc diff model.hlo --before fusion --after fusion       # what a pass did
  hloc diff model.hlo --after fusion                       # what all passes up to it did
  hloc diff a.hlo b.hlo --ignore metadata --ignore layout

Exit code 1 if the modules differ, 0 if not."""


@click.command("diff", epilog=EPILOG)
@click.argument("first", metavar="MODULE", type=click.Path(allow_dash=True))
@click.argument("second", metavar="[MODULE]", required=False, type=click.Path(allow_dash=True))
@click.option("--before", metavar="PASS", help="Of one module: its state before the first run of this pass "
              "(default: as it is in the file).")
@click.option("--after", metavar="PASS", help="Of one module: its state after the last run of this pass (default: "
              "after all passes).")
@click.option("--target", "-t", default="cpu", show_default=True, metavar="NAME",
              help="Of one module: whose passes to run: cpu, cuda, h100 ...")
@click.option("--ignore", "ignored", multiple=True, metavar="KIND",
              help="A kind of change to ignore: moved, shape, layout, attributes, value, operands, calls, "
              "metadata, header.")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FILE.html",
              help="Write a page instead of the table.")
@click.option("--top", default=50, show_default=True, type=click.IntRange(0), metavar="N",
              help="How many rows to list.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@fusion_option
@precision_options
@lenient_reading_options
def diff_command(first, second, before, after, target, ignored, output, top, as_json, fusion, precision,
                 reading) -> None:
    """Compare two modules, or one with itself before and after passes. Instructions are matched by structure: other
    names and another order of lines are no difference, unless both modules are scheduled."""
    from hloc.tools.diff import diff
    from hloc.tools.diff.changes import KINDS
    _check(first, second, before, after, ignored, (*KINDS, "header"), output)
    with Progress() as progress:
        if second is not None:
            modules = [read_module(path, reading, progress) for path in (first, second)]
            titles = [first, second]
        else:
            modules = _states(read_module(first, reading, progress), target, before, after,
                              pass_options(fusion, precision=precision), progress)
            titles = [f"before {before}" if before else "as read", f"after {after}" if after else "after all passes"]
        progress.report("compare")
        found = diff(modules[0], modules[1], ignored)
    if output is not None:
        write(output, _page(found, titles))
    if as_json:
        click.echo(json.dumps(_as_json(found), indent=1))
    elif output is None:
        _show(found, titles, top)
    sys.exit(EXIT_CODES["ok" if found.equal else "difference"])


def _check(first, second, before, after, ignored, kinds, output) -> None:
    if second is None and not (before or after):
        raise UsageError("one module: nothing to compare with", hint="name a second module, or passes: "
                         "--before fusion --after fusion")
    if second is not None and (before or after):
        raise UsageError("--before and --after need one module, and two are given")
    if first == second == "-":
        raise UsageError("only one of the two modules can be standard input")
    for kind in ignored:
        if kind not in kinds:
            raise UsageError(f"--ignore {kind!r} is not a kind of change", hint="kinds: " + ", ".join(kinds))
    if output is not None:
        if output.suffix != ".html":
            raise UsageError(f"cannot write {output}: a diff is written as a page, FILE.html",
                             hint="--json prints it for programs")
        check_target(output)


def _states(module, target, before, after, options, progress):
    from hloc.targets import find
    from hloc.tools.pass_states import pass_states
    progress.report("passes")
    return pass_states(module, find(target), options, before=before, after=after)


def _page(found, titles) -> str:
    from hloc.pages.diff_page import diff_page
    return diff_page(found, titles)


def _show(found, titles, top: int) -> None:
    sizes = [len(list(m.instructions())) for m in (found.before, found.after)]
    click.echo(f"{titles[0]}: {counted(sizes[0], 'instruction')}; {titles[1]}: {counted(sizes[1], 'instruction')}; "
               f"{found.matched} are in both")
    for detail in found.header:
        click.echo(_cut(f"header: {_detail(detail)}"))
    if found.equal:
        click.echo("no difference")
        return
    click.echo(", ".join(f"{kind} {count}" for kind, count in found.counts.items()) + "\n")
    print_table(["change", "before", "line", "after", "line", "source", "what"],
                [_row(change, found) for change in found.changes[:top]], right=(2, 4))
    if len(found.changes) > top:
        click.echo(f"... and {len(found.changes) - top} more (--top)")


def _row(change, found) -> list[str]:
    old, new = change.before, change.after
    return [" ".join(change.kinds), _place(old, found.home_before), str(line_of(old) or ""),
            _place(new, found.home_after), str(line_of(new) or ""), source_of(new or old), _cut(_what(change))]


def _place(instruction, home) -> str:
    return f"{home[instruction].name}/{instruction.name}" if instruction is not None else ""


def _what(change) -> str:
    if change.details:
        return "; ".join(map(_detail, change.details))
    from hloc.ir.printer import print_instruction
    return print_instruction(change.after or change.before, elide_constants=True).partition(" = ")[2]


def _detail(detail) -> str:
    return f"{detail.what}: {detail.before or 'none'} -> {detail.after or 'none'}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN - 3] + "..."


def _as_json(found) -> dict:
    return {
        "equal": found.equal, "counts": found.counts, "matched": found.matched,
        "instructions": [len(list(m.instructions())) for m in (found.before, found.after)],
        "header": [d._asdict() for d in found.header],
        "changes": [{"kinds": list(c.kinds), "before": _instruction_json(c.before, found.home_before),
                     "after": _instruction_json(c.after, found.home_after),
                     "details": [d._asdict() for d in c.details]} for c in found.changes]}


def _instruction_json(instruction, home) -> dict | None:
    if instruction is None:
        return None
    return {"name": instruction.name, "computation": home[instruction].name, "opcode": instruction.opcode,
            "shape": str(instruction.shape), "line": line_of(instruction), "source": source_json(instruction)}
