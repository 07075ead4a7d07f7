"""The command line of the conformance runner."""
from __future__ import annotations

import sys
from pathlib import Path

import click

from hloc.tools.conformance import report
from hloc.tools.conformance.cases import cases
from hloc.tools.conformance.runner import Options, examine_all
from hloc.tools.conformance.verdicts import CHECKS

WRITE_EVERY = 50


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write counts, classes and all verdicts.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1), help="Modules at a time.")
@click.option("--seconds", default=20.0, show_default=True, help="Most time of a step; more is a hang.")
@click.option("--slow-seconds", default=40.0, show_default=True, help="The same for compiling CUDA C.")
@click.option("--memory", default=8.0, show_default=True, help="Most memory of a worker, in GiB.")
@click.option("--oracle-cache", type=click.Path(file_okay=False, path_type=Path),
              help="Folder in which XLA's answers are kept from run to run.")
@click.option("--only", default="", help="Only modules whose name holds this.")
@click.option("--again", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Only modules that were not as they should be in this --json report.")
@click.option("--checks", default=",".join(CHECKS), show_default=True, help="Which checks.")
@click.option("--xla/--no-xla", default=True, help="Ask XLA through jaxlib.")
@click.option("--verbose", is_flag=True, help="Name every module that differs, with the whole message.")
def conformance(folders: tuple[Path, ...], json_path: Path | None, workers: int, seconds: float, slow_seconds: float,
                memory: float, oracle_cache: Path | None, only: str, again: Path | None, checks: str, xla: bool,
                verbose: bool) -> None:
    """Read, print, check and run every module below FOLDERS, as hloc and as XLA do it, and count where they differ.

    Exit code 0 where nothing differs, else 1.
    """
    wanted = frozenset(c.strip() for c in checks.split(","))
    if wanted - set(CHECKS):
        raise click.BadParameter(f"unknown: {', '.join(sorted(wanted - set(CHECKS)))}; there are {', '.join(CHECKS)}")
    if xla and not has_jaxlib():
        click.echo("XLA is not here (pip install 'hloc[jax]'): only what needs no judge is checked", err=True)
        xla = False
    options = Options(workers, seconds, slow_seconds, int(memory * (1 << 30)), oracle_cache, wanted, xla)
    found = [case for folder in folders for case in cases(folder, only)]
    if again:
        names = report.not_good(again)
        found = [case for case in found if case.name in names]
    records = []
    with click.progressbar(length=len(found), file=sys.stderr, label="modules") as bar:
        for record in examine_all(found, options):
            records.append(record)
            bar.update(1)
            if json_path and len(records) % WRITE_EVERY == 0:
                report.write_json(json_path, records)         # a run over thousands may be cut short
    show(records, verbose)
    if json_path:
        report.write_json(json_path, records)
    sys.exit(0 if report.is_good(records) else 1)


def show(records: list[report.Record], verbose: bool) -> None:
    if verbose:
        for record in sorted(records):
            for check, verdict in record.verdicts.items():
                if verdict.kind not in report.GOOD and verdict.kind != "no judge":
                    click.echo(f"{record.name}\n  {check}: {verdict.kind}: {verdict.detail}\n")
    click.echo(report.table(records))
    click.echo(report.listing(records))


def has_jaxlib() -> bool:
    import importlib.util
    return importlib.util.find_spec("jaxlib") is not None
