"""The modules of a folder.

In: a folder. Out: a Case per module: its text and, where the folder has an index.jsonl, what XLA said of it. The index
has a line of JSON per file: {"path": "a.hlo", "xla_parser": "accepts" or "rejects", "xla_verifier": "ok" or "invalid",
"template": true where the text has placeholders}; other keys are ignored.
"""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

SEPARATOR = re.compile(r"^// -----.*$", re.MULTILINE)
SUFFIXES = (".hlo", ".txt")


class Case(NamedTuple):
    """name: path below the folder, with #2 for the second module of a file. known: the line of the index, or {}."""

    name: str
    text: str
    known: dict


def cases(folder: Path, only: str = "") -> list[Case]:
    """Every module below `folder` whose name holds `only`, small ones first. A file of an index is one module."""
    index = read_index(folder)
    paths = [folder / name for name in index] if index else sorted(
        p for p in folder.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    found = []
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            found += [Case(name, text, index[name])] if index else split(name, text)
    return sorted((c for c in found if only in c.name), key=lambda c: len(c.text))


def read_index(folder: Path) -> dict[str, dict]:
    """Lines of index.jsonl by path; empty where there is none."""
    path = folder / "index.jsonl"
    if not path.is_file():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {line["path"]: line for line in lines}


def split(name: str, text: str) -> list[Case]:
    """The modules of one text: `// -----` stands between them."""
    parts = [p for p in SEPARATOR.split(text) if p.strip()]
    if len(parts) < 2:
        return [Case(name, text, {})]
    return [Case(f"{name}#{i + 1}", part, {}) for i, part in enumerate(parts)]
