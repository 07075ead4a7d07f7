"""The flags of a bundle, for options that the command line does not set."""
from __future__ import annotations

import click

from hloc.cli.options import Reading
from hloc.errors import printable


def bundled_flags(path: str, target: str, fusion: str, memory_limit: int | None,
                  reading: Reading) -> tuple[str, str, int | None, Reading]:
    """The options, with defaults replaced by the bundle's flags; prints a note that lists these."""
    from hloc.bundles import flag_words, is_bundle, read_flags
    from hloc.sources import read_bytes
    data = read_bytes(path)
    flags = read_flags(data, path) if is_bundle(data) else {}
    if flags:
        click.echo(f"note: flags of the bundle: {printable(' '.join(flag_words(flags)))}", err=True)
    return (flags.get("target", target) if target == "auto" else target,
            flags.get("fusion", fusion) if fusion == "on" else fusion,
            flags.get("memory_limit") if memory_limit is None else memory_limit,
            reading._replace(elided=reading.elided or flags.get("elided")))
