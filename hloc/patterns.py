"""Long regular expressions, compiled before: those of whole phrases would take 60 ms at each start.

In: a pattern and flags. Out: what re.compile gives.

    compiled(r"(?:ROOT\\s+)?...", re.DOTALL).match

What is kept is the code of CPython's own matcher, which its C part checks before it takes it. An installation from
source makes that of the grammar's patterns (grammar/hlo.patterns.json) for the Python that it runs with, and lays it
into the package, as trusted as its code; of other patterns and Pythons it lies in the cache, under a key that names the
Python. Another Python than CPython, or a cache folder that cannot be used: the pattern is compiled every time.

The installation has nothing beside Python's own library: this file imports no more.
"""
from __future__ import annotations

import json
import re
import sys
from functools import lru_cache
from pathlib import Path

from hloc import cache, files
from hloc.errors import HlocError

LONG = 1200                                   # characters; shorter ones compile as fast as a file of the cache is read
INSTALLED = Path(__file__).parent / "patterns.json"
Code = tuple[int, list[int], int, dict[str, int]]


def compiled(pattern: str, flags: int = 0) -> re.Pattern:
    """re.compile(pattern, flags): from the installation, or, where it is long and was compiled before, the cache."""
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
    except (HlocError, OSError):              # no folder or no space: who compiles will hear of it
        return re.compile(pattern, flags)


@lru_cache(maxsize=1)
def _installed() -> dict[str, Code]:
    """By key; nothing where the installation had another Python, or was none."""
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
    """All flags, the matcher's code, the number of groups, and the groups that have names."""
    from re import _compiler, _parser
    parsed = _parser.parse(pattern, flags)
    return flags | parsed.state.flags, _compiler._code(parsed, flags), parsed.state.groups - 1, parsed.state.groupdict


def matcher(pattern: str, flags: int, code: list[int], groups: int, named: dict[str, int]) -> re.Pattern:
    """The pattern of what `code` gives, as re.compile makes it."""
    import _sre
    names = {number: name for name, number in named.items()}
    return _sre.compile(pattern, flags, code, groups, named, tuple(names.get(n) for n in range(groups + 1)))
