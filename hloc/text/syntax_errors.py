"""Syntax errors, told in the words of HLO.

In: where the parser stopped, and which terminals it would have taken. Out: a ParseError that says what was found,
what could stand there, and where.

    m.hlo:3:20: error: expected an operand or ')', found ','
"""
from __future__ import annotations

import re
from collections.abc import Iterable

from hloc.errors import ParseError, Source, Span

# What a terminal is called in a message; phrase terminals are named by what they begin with.
_NAMES = {
    "$END": "the end", "HLO_MODULE": "HloModule", "ENTRY": "ENTRY", "FILE_NAMES": "FileNames",
    "FUNCTION_NAMES": "FunctionNames", "FILE_LOCATIONS": "FileLocations", "STACK_FRAMES": "StackFrames",
    "COMPUTATION_HEAD": "a computation", "PARAMETER_NAME": "a parameter name",
    **dict.fromkeys(["NAME", "INDEXED_NAME"], "a name"),
    **dict.fromkeys(["HEAD", "INSTRUCTION"], "an instruction"),
    **dict.fromkeys(["ATTRIBUTE", "KEY", "COMPUTATION_KEY", "COMPUTATIONS_KEY"], "an attribute"),
    **dict.fromkeys(["OPCODE", "PARAMETER", "CONSTANT"], "an opcode and '('"),
    **dict.fromkeys(["ARRAY", "FLAT_TUPLE", "BUFFER"], "a shape"),
    "TYPE": "an element type", "UNBOUNDED": "'?'", "BOUNDED": "'<='", "LAYOUT_SUFFIX": "':' and tiles or memory space",
    "LITERAL": "a literal", "VALUE": "a value", **dict.fromkeys(["TEXT", "SLASH"], "text"), "WORD": "a word",
    **dict.fromkeys(["STRING", "LONG_STRING"], "a string"), "LONG_STRING_PART": "the rest of the string",
    **dict.fromkeys(["INTEGER", "NUMBER"], "a number"), "TRUE": "true", "FALSE": "false",
    "DIMENSIONS": "sizes such as 3x3", "PADDING": "padding such as 0_0x1_1", "WINDOW_KEY": "size=, stride=, pad= ...",
    "DIM_LABELS": "labels such as b01f_01io->b01f", "ALIAS_KIND": "may-alias or must-alias",
    "LBRACE": "'{'", "RBRACE": "'}'", "LPAREN": "'('", "RPAREN": "')'", "LSQUARE": "'['", "RSQUARE": "']'",
    "COMMA": "','", "COLON": "':'", "DOTS": "'...'", "QUOTE": "'\"'", "__ANON_0": "'->'",
}
_RESERVED = re.compile(r"true|false|inf|nan|HloModule|ENTRY|ROOT|maximal|replicated|manual|unknown|unreduced|shard_as|"
                       r"shard_like|last_tile_dim_replicate|pred|[su]\d+|b?f\d+\w*|c64|c128|token|opaque")
_HEADLINE = re.compile(r"HloModule|ENTRY|^\s*(ROOT\b|%|\w[\w.\-]*\s*(=|\(.*->))", re.MULTILINE)
NO_HLO = "nothing here looks like HLO text: HloModule, ENTRY, or lines such as y = f32[2] negate(x)"
_WORD = re.compile(r"%?[A-Za-z_][\w.\-]*|-?\d[\w.]*")
LONGEST_QUOTED = 80
_LAST_WORD = re.compile(r"(ROOT\s+)?%?[A-Za-z_][\w.\-]*\s*\Z")                # the text was cut off behind it
_SPACE = re.compile(r"\s*")
_AFTER_ROOT = re.compile(r"ROOT\s*")
_STRING_START = re.compile(r"[\"']")


def syntax_error(source: Source, start: int | None, expected: Iterable[str], whole: bool = False) -> ParseError:
    """The ParseError where one of the `expected` terminals should have begun at `start` (None: at the end). whole: the
    text should be a module."""
    text, wanted = source.text, set(expected)
    if start is None:
        return _end_of_text(source, wanted)
    space = _SPACE.match(text, start)
    start = space.end() if space else start
    if start >= len(text):
        return _end_of_text(source, wanted)
    found = _WORD.match(text, start)
    word = found.group() if found else text[start]
    span = Span(source, start, start + len(word))
    special = _special_case(text, start, word, span, wanted)
    if not special and _LAST_WORD.match(text, start) and _unclosed_bracket(text) is not None:
        return _end_of_text(source, wanted, text[start:].strip())
    hint = NO_HLO if whole and not _HEADLINE.search(text) else None
    return special or ParseError(f"expected {_either(wanted)}, found {_quoted(word)}", span, hint)


def _special_case(text: str, start: int, word: str, span: Span, expected: set[str]) -> ParseError | None:
    """Mistakes that deserve their own words."""
    if text.startswith("/*", start):
        return ParseError("this comment has no end", Span(span.source, start, start + 2), "close it with */")
    if word in "\"'" and not _closes(text, start):
        return ParseError("this string has no end", span)
    if text.startswith("[", start + len(word)) and "ARRAY" in expected:
        return ParseError(f"{word}[ begins a shape, but what follows is not its dimensions and ']'", span)
    if word == "{" and "OPCODE" in expected and re.match(r"\{\s*\}", text[start:start + 100]):
        return ParseError("an empty layout", span, "a scalar is written without a layout, or as f32[]")
    if "NAME" in expected or "HEAD" in expected:
        return _bad_name(text, start, word, expected, span.source)
    return None


def _bad_name(text: str, start: int, word: str, expected: set[str], source: Source) -> ParseError | None:
    """What stands where a name is wanted, and cannot be one."""
    if word == "ROOT" and "HEAD" in expected:
        after = _AFTER_ROOT.match(text, start)
        start = after.end() if after else start
        found = _WORD.match(text, start)
        word = found.group() if found else text[start:start + 1]
    span = Span(source, start, start + max(len(word), 1))
    if _RESERVED.fullmatch(word):
        return ParseError(f"{word!r} is a reserved word", span, f"as a name it is written %{word}")
    if re.match(r"%[0-9]", text[start:start + 2]):
        return ParseError("a name begins with a letter or an underscore", Span(source, start, start + 2))
    if _STRING_START.match(word):
        return ParseError("a name is not written in quotes", span)
    if text.startswith(":", start + len(word)) and "HEAD" in expected:
        return ParseError("a name has no colon", Span(source, start, start + len(word) + 1))
    if text.startswith("=", start + len(word)) and "HEAD" in expected:
        return ParseError(f"{word}= is read as an attribute", span, f"put a space before the sign: {word} =")
    return None


def _closes(text: str, start: int) -> bool:
    quote = text[start]
    return re.compile(rf"{quote}[^{quote}\\]*(?:\\[\s\S][^{quote}\\]*)*{quote}").match(text, start) is not None


def _end_of_text(source: Source, expected: set[str], last: str = "") -> ParseError:
    """The text ends where one of `expected` should begin, or in the `last` word, which is none of them yet."""
    end = len(source.text.rstrip())
    span = Span(source, end, end + 1)
    if not end:
        return ParseError("the text is empty: expected HLO, which begins with HloModule, ENTRY or a computation", span)
    opened = _unclosed_bracket(source.text)
    hint = None
    if opened is not None:
        line, column = source.position(opened)
        hint = f"the '{source.text[opened]}' at {line}:{column} is not closed"
    found = f", found {_quoted(last)}" if last else ""
    return ParseError(f"the text ends early: expected {_either(expected)}{found}", span, hint)


_BRACKETS = re.compile(r"[(){}\[\]]|\"[^\"\\]*(?:\\[\s\S][^\"\\]*)*\"|'[^'\\]*(?:\\[\s\S][^'\\]*)*'"
                       r"|/\*[^*]*(?:\*(?!/)[^*]*)*\*/|//[^\n]*")


def _unclosed_bracket(text: str) -> int | None:
    """The last bracket that is still open at the end of the text."""
    stack: list[int] = []
    for match in _BRACKETS.finditer(text):
        if match.group() in ("(", "{", "["):
            stack.append(match.start())
        elif match.group() in (")", "}", "]") and stack:
            stack.pop()
    return stack[-1] if stack else None


def _either(expected: set[str]) -> str:
    """'a name, a shape or an opcode' for a set of terminal names."""
    words = sorted({_NAMES.get(name, name.lower().replace("_", " ")) for name in expected
                    if name not in ("WHITE_SPACE", "COMMENT")})
    if len(words) <= 1:
        return words[0] if words else "something else"
    return ", ".join(words[:-1]) + " or " + words[-1]


def _quoted(word: str) -> str:
    word = word if len(word) <= LONGEST_QUOTED else f"{word[:LONGEST_QUOTED]}..."
    return f"'{word}'" if "'" not in word else f'"{word}"'
