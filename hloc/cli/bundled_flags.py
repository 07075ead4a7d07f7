"""The flags of a bundle, for options that the command line does not set."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from hloc.cli.options import Reading
from hloc.errors import printable


def bundled_flags(path: str, target: str, fusion: str, memory_limit: int | None, precision: dict[str, str],
                  reading: Reading) -> tuple[str, str, int | None, dict[str, str], Reading]:
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
            precision or precision_of_flags(flags),
            reading._replace(elided=reading.elided or flags.get("elided")))


def flags_of_precision(precision: Mapping[str, str]) -> dict[str, bool | str]:
    """What a bundle keeps of --exact and --f32."""
    return {"exact": True} if "excess_precision" in precision else dict(precision)


def precision_of_flags(flags: Mapping[str, Any]) -> dict[str, str]:
    """The same as options of passes."""
    if flags.get("exact"):
        return {"excess_precision": "off", "f32": "exact"}
    return {"f32": flags["f32"]} if "f32" in flags else {}
