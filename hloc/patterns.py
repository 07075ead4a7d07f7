"""Long regular expressions, compiled ahead: compiling them would take 60 ms at each start.

In: a pattern and flags. Out: what re.compile gives.

    compiled(r"(?:ROOT\\s+)?...", re.DOTALL).match

The stored form is the code of CPython's matcher, which its C part validates when it is loaded. An installation from
source compiles the grammar's patterns (grammar/hlo.patterns.json) for its Python, and stores them in the package.
Other patterns, and those of other Python versions, are stored in the cache, under a key with the Python version. With
another Python than CPython, or without a usable cache folder, a pattern is compiled every time.

The installation has only Python's standard library: this file imports nothing else.
"""
from __future__ import annotations

import json
import re
import sys
from functools import lru_cache
from pathlib import Path

from hloc import cache, files
from hloc.errors import HlocError

LONG = 1200                                   # characters; shorter ones compile as fast as a cached file is read
INSTALLED = Path(__file__).parent / "patterns.json"
Code = tuple[int, list[int], int, dict[str, int]]


def compiled(pattern: str, flags: int = 0) -> re.Pattern:
    """re.compile(pattern, flags): from the installation or, for a long pattern, from the cache."""
    if not _keeps_code():
        return re.compile(pattern, flags)
    key = _key(pattern, flags)
    installed = _installed().get(key)
    if installed:
        return matcher(pattern, *installed)
    return _cached(key, pattern, flags) if len(pattern) >= LONG else re.compile(pattern, flags)


def _keeps_code() -> bool:
    return sys.implementation.name == "cpython" and sys.version_info >= (3, 11)


def _key(pattern: str, flags: int) -> str:
    return cache.digest("pattern 1", sys.version, str(int(flags)), pattern)


def _cached(key: str, pattern: str, flags: int) -> re.Pattern:
    try:
        found = cache.opened(key, ".json")
        if found:
            with found:
                return matcher(pattern, *json.loads(found.read()))
        made = code(pattern, flags)
        cache.put_bytes(key, ".json", json.dumps(made).encode())
        return matcher(pattern, *made)
    except (HlocError, OSError):              # no folder or no space: the compiler stage reports it
        return re.compile(pattern, flags)


@lru_cache(maxsize=1)
def _installed() -> dict[str, Code]:
    """The installed patterns by key; empty if the installation used another Python, or none."""
    try:
        head, _, codes = INSTALLED.read_text(encoding="utf-8").partition("\n")
    except OSError:
        return {}
    return json.loads(codes) if head == _heading() else {}


def _heading() -> str:
    return sys.version.replace("\n", " ")


def install(listed: Path, into: Path = INSTALLED) -> int:
    """Compile the patterns of a file, [[pattern, flags] ...], for this Python; returns how many."""
    if not _keeps_code():
        return 0
    patterns = json.loads(listed.read_text(encoding="utf-8"))
    codes = {_key(pattern, flags): code(pattern, flags) for pattern, flags in patterns}
    files.write(into, f"{_heading()}\n{json.dumps(codes, separators=(',', ':'))}\n")
    return len(codes)


def code(pattern: str, flags: int) -> Code:
    """All flags, the matcher's code, the number of groups, and the named groups."""
    from re import _compiler, _parser  # type: ignore[attr-defined]
    parsed = _parser.parse(pattern, flags)
    return flags | parsed.state.flags, _compiler._code(parsed, flags), parsed.state.groups - 1, parsed.state.groupdict


def matcher(pattern: str, flags: int, code: list[int], groups: int, named: dict[str, int]) -> re.Pattern:
    """The compiled pattern from the parts that `code` returns."""
    import _sre
    names = {number: name for name, number in named.items()}
    return _sre.compile(pattern, flags, code, groups, named, tuple(names.get(n) for n in range(groups + 1)))
