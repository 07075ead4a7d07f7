"""Attribute texts such as {{0}: (1, {}, may-alias)} or {devices=[2,1]<=[2]}, word by word.

In: the verbatim text of an attribute and its place. Out: words, numbers, strings, lists. Example:

    p = Phrase("{0,1} 'x'"); p.integers("{", "}"); p.string()         (0, 1), then "x"

Strings are C strings: backslash escapes stand for bytes.
"""
from __future__ import annotations

import re

from hloc.errors import ParseError, Span

_TOKEN = re.compile(r"""\s*(?:/\*.*?\*/\s*)*(["']|->|<=|[\w.+\-@/]+|[^\s\w]|\Z)""", re.DOTALL)
_ESCAPE = re.compile(rb"\\([0-7]{1,3}|[xX][0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_QUOTES = ('"', "'")
_NAMED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}
_BRACE_OR_QUOTE = re.compile(r'[{}"]')
_TO_ESCAPE = re.compile(rb"[\x00-\x1f\x7f-\xff\"'\\]")
_SHORT = {b"\n": "\\n", b"\t": "\\t", b"\r": "\\r", b'"': '\\"', b"'": "\\'", b"\\": "\\\\"}


class Phrase:
    """A text that is read token by token, from left to right."""

    def __init__(self, text: str, span: Span | None = None):
        self.whole, self.span = text, span
        self.at = 0
        self.text = ""
        self.step()

    def step(self) -> str:
        """Return the current token and go to the next."""
        last = self.text
        match = _TOKEN.match(self.whole, self.at)
        assert match is not None                           # it takes any character, and the end
        self.text, self.start, self.at = match[1], match.start(1), match.end()
        if self.text in _QUOTES and (end := string_end(self.whole, self.start)):
            self.text, self.at = self.whole[self.start:end], end
        return last

    def error(self, wanted: str) -> ParseError:
        found = repr(self.text[:40]) if self.text else "the end"
        return ParseError(f"{wanted} is expected, but here is {found}, in {self.whole[:200]}", self.span)

    def accept(self, text: str) -> bool:
        """Skip the token `text` if it is next; return whether it was."""
        if self.text != text:
            return False
        self.step()
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(text)

    def word(self) -> str:
        """A name or a number as text."""
        if not re.match(r"[\w.+\-@/]", self.text):
            raise self.error("a word")
        return self.step()

    def integer(self) -> int:
        if not re.fullmatch(r"-?[0-9]{1,20}", self.text):
            raise self.error("a whole number")
        return int(self.step())

    def is_string(self) -> bool:
        return self.text[:1] in _QUOTES

    def string(self) -> bytes:
        """The value of a string in quotes."""
        if not self.is_string() or len(self.text) < 2:
            raise self.error("a string")
        return unescaped(self.step()[1:-1])

    def integers(self, opening: str, closing: str) -> tuple[int, ...]:
        """Numbers between brackets, with commas."""
        self.expect(opening)
        numbers = []
        while not self.accept(closing):
            numbers.append(self.integer())
            if self.text != closing:
                self.expect(",")
        return tuple(numbers)

    def lists(self) -> list[tuple[int, ...]]:
        """{{0,1},{2}}, or {} for none."""
        self.expect("{")
        found = []
        while not self.accept("}"):
            found.append(self.integers("{", "}"))
            self.accept(",")
        return found

    def balanced(self) -> str:
        """The text of a group in brackets, or of one word."""
        start, depth = self.start, 0
        while True:
            if not self.text:
                raise self.error("a closing bracket")
            depth += (self.text in "{([") - (self.text in "})]")
            end = self.at
            self.step()
            if depth <= 0:
                return self.whole[start:end]

    def end(self) -> None:
        if self.text:
            raise self.error("the end")


def string_end(text: str, start: int) -> int | None:
    """The position after the quote that closes the one at `start`; None if there is none. (A pattern would need memory
    for each escape.)"""
    at = start
    while (at := text.find(text[start], at + 1)) > 0:
        before = at
        while text[before - 1] == "\\":
            before -= 1
        if (at - before) % 2 == 0:
            return at + 1
    return None


def escaped(value: str | bytes) -> str:
    """Escape the inside of a string as printable ASCII that reads back as the same bytes."""
    raw = value.encode("utf-8") if isinstance(value, str) else value
    return _TO_ESCAPE.sub(lambda m: (_SHORT.get(m[0]) or f"\\{m[0][0]:03o}").encode(), raw).decode("ascii")


def unescaped(text: str) -> bytes:
    """The bytes of the inside of a string."""
    raw = text.encode("utf-8", "surrogatepass")
    return _ESCAPE.sub(_byte, raw) if b"\\" in raw else raw


def _byte(match: re.Match) -> bytes:
    code = match[1]
    if code[:1] in b"01234567":
        return bytes([int(code, 8) & 0xFF])
    if code[:1] in b"xX" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    if code[:1] in b"uU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number if number <= 0x10FFFF else 0xFFFD).encode("utf-8", "replace")
    return _NAMED.get(code, code)


def is_dictionary(text: str) -> bool:
    """Whether a text is one group in braces, as XLA prints such without quotes."""
    if not text.startswith("{"):
        return False
    depth, at = 0, 0
    while (match := _BRACE_OR_QUOTE.search(text, at)) is not None:
        at = match.end()
        if match[0] == '"':
            end = string_end(text, match.start())
            if end is None:
                return False
            at = end
            continue
        depth += 1 if match[0] == "{" else -1
        if depth <= 0:
            break
    return depth == 0 and at == len(text)
