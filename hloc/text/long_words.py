"""A bound on names and numbers in HLO text: words that go on for more than LONGEST_WORD characters are no HLO.

In: a Source. Out: nothing, or a ParseError at the first such word outside of strings and comments. The parser looks at
a word once for each terminal that it may be, and messages search in it: a file of 100 MB of one word would take 20 s.

    check_words(Source("HloModule " + "a" * 1_000_000))     ParseError: a word of 1,000,000 characters ...
"""
from __future__ import annotations

import re

from hloc.errors import ParseError, Source, Span

LONGEST_WORD = 1 << 16
STEP = LONGEST_WORD // 2                # a longer word has so many characters behind one of these places
SHOWN = 40                              # characters that the message underlines
_WORD = re.compile(r"[\w.\-]*", re.ASCII)
_BACK = re.compile(r"[^\w.\-]", re.ASCII)
_SKIPPED = re.compile(r'''"[^"\\]*(?:\\.[^"\\]*)*"|'[^'\\]*(?:\\.[^'\\]*)*'|//[^\n]*|/\*.*?\*/''', re.DOTALL)


def check_words(source: Source) -> None:
    """Raises ParseError for the first word that is too long."""
    text, free = source.text, 0
    for place in range(0, len(text), STEP):
        if place < free:
            continue
        free = _end_of_word(text, place)
        if free - place < STEP:
            continue
        start = _start_of_word(text, place)
        if free - start > LONGEST_WORD and not _is_skipped(text, start):
            raise ParseError(f"a word of {free - start:,} characters: names and numbers have at most "
                             f"{LONGEST_WORD:,}", Span(source, start, start + SHOWN))


def _end_of_word(text: str, place: int) -> int:
    found = _WORD.match(text, place)
    return found.end() if found else place


def _start_of_word(text: str, place: int) -> int:
    """The place after the last character before `place` that belongs to no word. Such a word begins after the last
    examined place, at most STEP characters before this one, or is the first."""
    first = max(0, place - STEP)
    last = [m.end() for m in _BACK.finditer(text, first, place)]
    return last[-1] if last else first


def _is_skipped(text: str, place: int) -> bool:
    """Whether a place is inside a string or a comment."""
    position = 0
    while found := _SKIPPED.search(text, position):
        if found.start() > place:
            return False
        position = found.end()
        if position > place:
            return True
    return False
