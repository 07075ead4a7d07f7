"""Lark's parse tables, kept in the cache: building them from the grammar takes longer than reading most modules.

In: the grammar's text, start rules and lexer class. Out: the Lark parser, from JSON where it was built before.

    parser = cached_parser(grammar, START, StateLexer)

Where the cache folder cannot be used, the parser is built from the grammar every time.
"""
from __future__ import annotations

import json
from typing import Any

import lark
from lark import Lark
from lark.grammar import Rule
from lark.lexer import Lexer, TerminalDef

from hloc import cache
from hloc.errors import HlocError
from hloc.text.places import with_places


def cached_parser(grammar: str, start: list[str], lexer: type[Lexer]) -> Lark:
    """The LALR parser of a grammar for all start rules."""
    try:
        key = cache.digest("grammar 2", lark.__version__, grammar, *start)
        found = cache.find(key, ".json")
        if found:
            stored = json.loads(found.read_text(encoding="utf-8"), object_pairs_hook=_with_numbers)
            return with_places(restored(stored, lexer))
        parser = built(grammar, start, lexer)
        cache.put_bytes(key, ".json", json.dumps(tables_of(parser)).encode())
        return with_places(parser)
    except (HlocError, OSError):                              # no folder or no space: who compiles will hear of it
        return with_places(built(grammar, start, lexer))


def built(grammar: str, start: list[str], lexer: type[Lexer]) -> Lark:
    """The parser from its grammar."""
    return Lark(grammar, parser="lalr", lexer=lexer, start=start, maybe_placeholders=False)


def tables_of(parser: Lark) -> dict[str, Any]:
    """What Lark's own `save` writes, as plain data; the lexer's class stays out."""
    data, memo = parser.memo_serialize([TerminalDef, Rule])
    data["options"].pop("lexer")
    data["parser"]["lexer_conf"].pop("lexer_type")
    return {"data": data, "memo": memo}


def restored(tables: dict[str, Any], lexer: type[Lexer]) -> Lark:
    """The parser from its tables, as Lark's own `load` makes it, but from plain data."""
    tables["data"]["options"]["lexer"] = lexer
    tables["data"]["parser"]["lexer_conf"]["lexer_type"] = lexer
    return Lark.__new__(Lark)._load(tables)


def _with_numbers(pairs: list[tuple[str, Any]]) -> dict:
    """A JSON object whose keys were numbers before they became strings."""
    return {int(k) if k.isdigit() else k: v for k, v in pairs}
