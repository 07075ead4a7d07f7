"""What the explorer's page offers: kinds of pane, examples, and the words of HLO for its editor.

    facts(HloLexer.tokens["root"])
"""
from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from typing import Any

from hloc.explore.views import KINDS

# Pygments' names of tokens -> CodeMirror's.
WORDS = {"Comment.Single": "comment", "Comment.Multiline": "comment", "Literal.String": "string",
         "Keyword.Declaration": "keyword", "Name.Variable": "variableName", "Keyword.Type": "typeName",
         "Name.Attribute": "attributeName", "Name.Function": "name.standard", "Literal.Number": "number",
         "Keyword.Constant": "atom", "Name": "name", "Operator": "operator", "Punctuation": "punctuation"}


def facts(rules: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
    """What the page reads beside its text. rules: a Pygments lexer's, each a regular expression and a token."""
    kinds = {name: {"title": kind.title, "targets": kind.targets, "states": kind.states, "choices": kind.choices}
             for name, kind in KINDS.items()}
    return {"kinds": kinds, "words": [_word(pattern, token) for pattern, token in rules],
            "examples": [[name, title, text] for name, (title, text) in examples().items()]}


def _word(pattern: Any, token: object) -> tuple[str, str]:
    """Pygments holds lists of words as objects that make their expression."""
    text = pattern if isinstance(pattern, str) else pattern.get()
    return text, WORDS.get(str(token).removeprefix("Token."), "")


def examples() -> dict[str, tuple[str, str]]:
    """Name -> title and text; the title is the comment in the first line."""
    folder = resources.files("hloc.explore").joinpath("examples")
    found = {}
    for path in sorted(folder.iterdir(), key=lambda p: p.name):
        text = path.read_text(encoding="utf-8")
        found[path.name.removesuffix(".hlo")] = (text.split("\n")[0].removeprefix("// "), text)
    return found
