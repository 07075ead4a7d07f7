"""Files generated from the grammar (grammar/hlo.lark): Lark's parse tables, and the list of the patterns that reading a
module needs, which an installation compiles ahead (hloc/patterns.py). `make tables` writes both.
"""
from __future__ import annotations

import json
import re
from pathlib import Path

from hloc import files
from hloc.errors import Source
from hloc.text.grammar import START, grammar_file, lark
from hloc.text.lexer import StateLexer
from hloc.text.parser import ModuleReader
from hloc.text.tables import built, key_of, tables_file, written


def patterns_file(grammar: Path) -> Path:
    """The file with a grammar's patterns: [[pattern, flags] ...]."""
    return grammar.with_suffix(".patterns.json")


def own_patterns() -> list[tuple[str, int]]:
    """The patterns of terminals and of phrases."""
    phrases = [p for p in vars(ModuleReader(Source(""))).values() if isinstance(p, re.Pattern)]
    return sorted({*((t.pattern.to_regexp(), 0) for t in lark().terminals),
                   *((p.pattern, int(re.DOTALL)) for p in phrases)})


def write() -> None:
    """Write both files."""
    file = grammar_file()
    grammar = file.read_text(encoding="utf-8")
    files.write(tables_file(file), written(built(grammar, START, StateLexer), key_of(grammar, START)))
    lines = ",\n".join(json.dumps(pattern) for pattern in own_patterns())
    files.write(patterns_file(file), f"[\n{lines}\n]\n")
