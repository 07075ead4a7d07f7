"""Long regular expressions, kept compiled in the cache: those of whole phrases would take 50 ms at each start.

In: a pattern and flags. Out: what re.compile gives.

    compiled(r"(?:ROOT\\s+)?...", re.DOTALL).match

What is kept is the code of CPython's own matcher, which its C part checks before it takes it, under a key that names
the Python. Another Python than CPython, or a cache folder that cannot be used: the pattern is compiled every time.
"""
from __future__ import annotations

import json
import re
import sys

from hloc import cache
from hloc.errors import HlocError

LONG = 1200                                   # characters; shorter ones compile as fast as they are read


def compiled(pattern: str, flags: int = 0) -> re.Pattern:
    """re.compile(pattern, flags), from the cache where it is long and was compiled before."""
    if len(pattern) < LONG or sys.implementation.name != "cpython" or sys.version_info < (3, 11):
        return re.compile(pattern, flags)
    key = cache.digest("pattern 1", sys.version, str(int(flags)), pattern)
    try:
        found = cache.find(key, ".json")
        if found:
            return matcher(pattern, *json.loads(found.read_text(encoding="utf-8")))
        made = code(pattern, flags)
        cache.put_bytes(key, ".json", json.dumps(made).encode())
        return matcher(pattern, *made)
    except (HlocError, OSError):              # no folder or no space: who compiles will hear of it
        return re.compile(pattern, flags)


def code(pattern: str, flags: int) -> tuple[int, list[int], int, dict[str, int]]:
    """All flags, the matcher's code, the number of groups, and the groups that have names."""
    from re import _compiler, _parser
    parsed = _parser.parse(pattern, flags)
    return flags | parsed.state.flags, _compiler._code(parsed, flags), parsed.state.groups - 1, parsed.state.groupdict


def matcher(pattern: str, flags: int, code: list[int], groups: int, named: dict[str, int]) -> re.Pattern:
    """The pattern of what `code` gives, as re.compile makes it."""
    import _sre
    names = {number: name for name, number in named.items()}
    return _sre.compile(pattern, flags, code, groups, named, tuple(names.get(n) for n in range(groups + 1)))
