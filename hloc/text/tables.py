"""Lark's parse tables: building them from the grammar takes longer than reading most modules.

In: the grammar's file, start rules and lexer class. Out: the Lark parser. Its tables lie beside the grammar
(hlo.tables.json), as `make tables` wrote them; where these are of another grammar or another Lark, in the cache.

    parser = cached_parser(grammar_file, START, StateLexer)

Where the cache folder cannot be used either, the parser is built from the grammar every time.
"""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import lark
from lark import Lark
from lark.grammar import Rule
from lark.lexer import Lexer, TerminalDef

from hloc import cache
from hloc.errors import HlocError
from hloc.text.tree_positions import with_positions


def cached_parser(file: Path, start: list[str], lexer: type[Lexer]) -> Lark:
    """The LALR parser of a grammar for all start rules."""
    grammar = file.read_text(encoding="utf-8")
    key = key_of(grammar, start)
    stored = read_tables(tables_file(file), key)
    if stored is not None:
        return with_positions(restored(stored, lexer))
    try:
        found = cache.opened(cache.digest(key), ".json")
        if found:
            with found:
                tables = parsed(found.read().decode(), key)
            if tables is not None:
                return with_positions(restored(tables, lexer))
        parser = built(grammar, start, lexer)
        cache.put_bytes(cache.digest(key), ".json", written(parser, key).encode())
        return with_positions(parser)
    except (HlocError, OSError):                              # no folder or no space: who compiles will hear of it
        return with_positions(built(grammar, start, lexer))


def key_of(grammar: str, start: list[str]) -> str:
    """What tables depend on: Lark's form of them is its own."""
    return f"{cache.digest('grammar 3', grammar, *start)} of Lark {lark.__version__}"


def tables_file(grammar: Path) -> Path:
    """Where the tables of a grammar's file lie."""
    return grammar.with_suffix(".tables.json")


def read_tables(path: Path, key: str) -> dict[str, Any] | None:
    """The tables in a file; None where it is of another key, or missing."""
    try:
        return parsed(path.read_text(encoding="utf-8"), key)
    except FileNotFoundError:
        return None


def parsed(text: str, key: str) -> dict[str, Any] | None:
    """The tables that `written` wrote; None where they are of another key."""
    head, _, tables = text.partition("\n")
    return json.loads(tables, object_pairs_hook=_with_numbers) if head == key else None


def written(parser: Lark, key: str) -> str:
    """The content of a file: the key, then JSON; a line for each state and rule, for those who compare versions."""
    text = json.dumps(tables_of(parser), separators=(",", ":"))
    return key + "\n" + re.sub(r"},(?=\"\d+\":)", "},\n", text) + "\n"


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
