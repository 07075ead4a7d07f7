"""The Lark grammar (grammar/hlo.lark), loaded once; its parser's errors become ParseErrors.

In: a start rule and text. Out: Lark's tree, or a ParseError with its place. Example:

    parse("integers", Source("{0,1}"))     Tree('integers', [Token('INTEGER', '0'), Token('INTEGER', '1')])

The grammar file is beside the package in a checkout (grammar/) and inside it in a wheel (hloc/grammar/).
"""
from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from lark import Lark, Tree
from lark.exceptions import UnexpectedToken

from hloc.errors import ParseError, Source
from hloc.patterns import compiled
from hloc.text.lexer import NoTokenError, StateLexer
from hloc.text.tables import cached_parser

START = [
    "module", "shape", "array", "flat_tuple", "entry_layout", "aliases", "donors",
    "integers", "integer", "number", "boolean", "word", "names", "computation_name",
    "window", "slice", "padding", "dim_labels", "attribute_phrases", "literal_parts",
]


def grammar_file() -> Path:
    """The path of hlo.lark."""
    package = Path(__file__).resolve().parents[1]
    inside, beside = package / "grammar" / "hlo.lark", package.parent / "grammar" / "hlo.lark"
    return inside if inside.exists() else beside


@cache
def lark() -> Lark:
    """The LALR parser for all start rules."""
    return cached_parser(grammar_file(), START, StateLexer)


@cache
def pattern(*parts: str) -> re.Pattern:
    """A compiled pattern of terminals and pieces of regular expressions: pattern("(", "NAME", ")", r"\\s*=").

    SPACE is white space and comments, also none.
    """
    names = {t.name: t.pattern.to_regexp() for t in lark().terminals}
    names["SPACE"] = rf"\s*(?:(?:{names['COMMENT']})\s*)*"
    return compiled("".join(f"(?:{names[part]})" if part in names else part for part in parts), re.DOTALL)


def parse(start: str, source: Source) -> Tree:
    """The tree of a whole text by one start rule. Raises ParseError."""
    try:
        return lark().parse(source.text, start=start)
    except (NoTokenError, UnexpectedToken) as error:
        raise _located(source, error, start == "module") from None


def _located(source: Source, error: NoTokenError | UnexpectedToken, whole: bool) -> ParseError:
    from hloc.text.syntax_errors import syntax_error
    if isinstance(error, NoTokenError):
        return syntax_error(source, error.start, error.expected, whole)
    start = None if error.token.type == "$END" else error.token.start_pos
    return syntax_error(source, start, error.accepts or error.expected, whole)
