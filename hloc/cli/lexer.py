"""A Pygments lexer for HLO text, also used by Sphinx and `pygmentize -l hlo`; entry point `pygments.lexers`.

It colors wrong text, too: grammar/hlo.lark defines the language. Every pattern takes linear time.
"""
from __future__ import annotations

import re

from pygments.lexer import RegexLexer, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text, Whitespace

TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")


class HloLexer(RegexLexer):
    """`%y = f32[4]{0} add(%x, %x), metadata={op_name="f"}`: a name, a type, an opcode, operands, attributes."""

    name = "HLO"
    aliases = ["hlo", "xla-hlo"]
    filenames = ["*.hlo"]
    mimetypes = ["text/x-hlo"]
    url = "https://openxla.org/xla/operation_semantics"
    flags = re.MULTILINE

    tokens = {
        "root": [
            (r"\s+", Whitespace),
            (r"//[^\n]*", Comment.Single),
            (r"/\*[^*]*(?:\*(?!/)[^*]*)*\*/", Comment.Multiline),
            (r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', String),
            (words(("HloModule", "ENTRY", "ROOT", *TABLES), prefix=r"\b", suffix=r"\b"), Keyword.Declaration),
            (r"%[\w.\-]+", Name.Variable),
            (r"(?:pred|token|opaque|buffer|bf16|[suc]\d+|f\d\w*)(?=\[)", Keyword.Type),
            (r"[A-Za-z_]\w*(?==)", Name.Attribute),
            (r"[a-z][a-z0-9\-]*(?=\()", Name.Function),
            (r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.])", Number),
            (r"-?(?:nan|inf|true|false)\b", Keyword.Constant),
            (r"[A-Za-z_][\w.\-]*", Name),
            (r"->|[=?]|<=", Operator),
            (r"[\[\](){},:;]", Punctuation),
            (r".", Text),
        ],
    }

    def analyse_text(text: str) -> float:              # noqa: N805 - Pygments calls it without an instance
        """The confidence that a text is HLO, 0 to 1."""
        return 1.0 if re.match(r"(?:\s|//[^\n]*\n)*HloModule\b", text) else 0.0
