"""Settings from the environment. A value that a variable does not take is an error; unset and empty mean the default.

    settings.choice("HLOC_AMX", "1", "0")              one of these; the first is the default
    settings.whole_number("HLOC_THREADS", least=1)     None where it is not set
"""
from __future__ import annotations

import os

from hloc.errors import UsageError

MOST_DIGITS = 18                     # of 64 bits


def choice(name: str, *values: str) -> str:
    """Raises UsageError for any other value."""
    value = os.environ.get(name) or values[0]
    if value not in values:
        raise UsageError(f"{name} is {value!r}; it takes {' or '.join(map(repr, values))}")
    return value


def whole_number(name: str, least: int) -> int | None:
    """Raises UsageError for what is no number, or below `least`."""
    text = os.environ.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS and int(text) >= least):
        raise UsageError(f"{name} is {text!r}; it takes a whole number from {least} on")
    return int(text)
