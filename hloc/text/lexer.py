"""The lexer for Lark's parser: it tries only the terminals that the parser can accept next.

In: Lark's terminals and the state of its parser. Out: tokens with their offsets. It works as Lark's contextual
lexer, with three differences that matter for large modules: it compiles a terminal when it is first needed, and only
once; it counts no lines (places are offsets, hloc/errors.py computes lines); it keeps no state between two texts.

If several terminals match, the one with the higher priority wins, then the one with the longer pattern.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from lark.lexer import Lexer, Token

from hloc.patterns import compiled


class NoTokenError(Exception):
    """No terminal that is expected matches at `start`."""

    def __init__(self, start: int, expected: set[str]):
        super().__init__(start)
        self.start, self.expected = start, expected


class StateLexer(Lexer):
    """For Lark(..., lexer=StateLexer)."""

    __future_interface__ = 2          # Lark passes the parser's state to lex()

    def __init__(self, conf: Any):
        self.ignored = frozenset(conf.ignore)
        order = sorted(conf.terminals, key=lambda t: (-t.priority, -len(t.pattern.value), t.name))
        self.sources = {t.name: t.pattern.to_regexp() for t in order}
        self.matchers: dict[str, Callable] = {}                       # filled as terminals are first needed
        self.by_state: dict[int, list[tuple[str, Callable]]] = {}

    def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[Token]:
        """The tokens of the text, each by the parser's current state."""
        text = lexer_state.text if isinstance(lexer_state.text, str) else lexer_state.text.text
        position, end, ignored, by_state = 0, len(text), self.ignored, self.by_state
        while position < end:
            state = parser_state.position
            candidates = by_state.get(state) or self.candidates(state, parser_state)
            for name, match in candidates:          # noqa: B007  the one that matched is used below
                found = match(text, position)
                if found is not None:
                    break
            else:
                raise NoTokenError(position, {candidate for candidate, _ in candidates} - ignored)
            start, position = position, found.end()
            if name not in ignored:
                token = Token(name, found.group(), start, end_pos=position)
                lexer_state.last_token = token
                yield token

    def candidates(self, state: int, parser_state: Any) -> list[tuple[str, Callable]]:
        """The terminals that are possible in a state of the parser, by priority."""
        accepted = parser_state.parse_conf.parse_table.states[state]
        names = [name for name in self.sources if name in accepted or name in self.ignored]
        found = self.by_state[state] = []
        found += [(name, self.matchers.get(name) or self.first_match(name, found, place))
                  for place, name in enumerate(names)]
        return found

    def first_match(self, name: str, candidates: list[tuple[str, Callable]], place: int) -> Callable:
        """A placeholder among the candidates that compiles its terminal when it is called; usually an earlier one
        matches."""
        def match(text: str, position: int) -> re.Match | None:
            if name not in self.matchers:
                self.matchers[name] = compiled(self.sources[name]).match
            candidates[place] = name, self.matchers[name]
            return self.matchers[name](text, position)
        return match
