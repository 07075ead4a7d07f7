"""The place of each parse tree in the text, as by Lark's propagate_positions, without lines and columns.

Lark's own takes a quarter of the time of a parse, mostly for unused lines and columns.

    with_positions(parser).parse("{0,1}", start="integers").meta.start_pos        0
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lark import Lark, Token, Tree


class Place:
    """The `meta` of a tree with tokens. outer: including surrounding brackets that are not part of the tree."""

    __slots__ = ("end_pos", "outer_end", "outer_start", "start_pos")
    empty = False

    def __init__(self, start: int, end: int):
        self.start_pos = self.outer_start = start
        self.end_pos = self.outer_end = end


def with_positions(parser: Lark) -> Lark:
    """The same parser, which from now on sets places."""
    for rule, build in parser._callbacks.items():
        parser._callbacks[rule] = placed(build)
    return parser


def placed(build: Callable) -> Callable:
    """A rule's callback that also sets the place of its tree, from its first child's start to its last child's end."""
    def with_place(children: list) -> Tree | Token:
        made = build(children)
        if not isinstance(made, Tree):
            return made
        start: int | None = None
        for child in children:
            if isinstance(child, Token):
                start = child.start_pos
            elif child._meta is not None:
                start = child._meta.outer_start
            else:
                continue
            break
        if start is None:
            return made
        end = start
        for child in reversed(children):
            if isinstance(child, Token):
                end = child.end_pos or start
            elif child._meta is not None:
                end = child._meta.outer_end
            else:
                continue
            break
        place: Any = made._meta
        if place is None:
            made._meta = Place(start, end)     # type: ignore[assignment]    # the part of Lark's Meta that is read
        else:                                                     # a rule that returns its only child
            place.outer_start, place.outer_end = start, end
        return made
    return with_place


def tokens_of(tree: Tree) -> list[Token]:
    """The children of a tree of a rule that has only tokens, or of which the caller reads only those."""
    children: list[Any] = tree.children
    return children


def start_of(token: Token) -> int:
    """Where a token of the lexer stands in its text."""
    assert token.start_pos is not None
    return token.start_pos
