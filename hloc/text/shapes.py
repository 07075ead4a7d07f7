"""Shapes: from text to Shape.

In: the text of one shape. Out: a Shape; arrays without a layout get the row-major one, as in XLA's parser. Example:

    Shapes(source).parse("(f32[2,<=3]{1,0:T(8,128)}, token[])", offset)

Equal texts share one Shape: a module with 10,000 instructions has a few hundred different ones.
"""
from __future__ import annotations

import difflib
import re

from lark import Token, Tree

from hloc.errors import ParseError, Source, Span
from hloc.ir.shapes import UNBOUNDED, Layout, Shape, default_layout
from hloc.ir.types import ELEMENT_TYPES
from hloc.text.grammar import parse
from hloc.text.tree_positions import start_of, tokens_of

MAX_DIMENSION = 2**63 - 1
MAX_NESTING = 100                      # of tuples: shapes are compared and printed recursively
MAX_PARTS = 1_000_000                  # of a tuple whose shape is inferred
_NOT_WRITTEN = ("tuple", "buffer")     # element types with their own syntax
_WITHOUT_DIMENSIONS = ("token", "opaque")
_COMMENT = re.compile(r"/\*[^*]*(?:\*(?!/)[^*]*)*\*/|//[^\n\r]*")


class Shapes:
    """Parses the shapes of one source; remembers those it has seen."""

    def __init__(self, source: Source):
        self.source = source
        self.seen: dict[str, Shape] = {}

    def parse(self, text: str, offset: int) -> Shape:
        """The Shape of a flat text (an array, or a tuple of arrays) that begins at `offset` of the source."""
        shape = self.seen.get(text)
        if shape is None:
            shape = self._flat_tuple(text, offset) if text[0] == "(" else self._array(text, offset)
            self.seen[text] = shape
        return shape

    def from_tree(self, tree: Tree) -> Shape:
        """The Shape of a tree of the rule `shape`, however deep."""
        pending: list[tuple[Tree, list[Shape | None]]] = [(tree, [])]
        while True:
            node, parts = pending[-1]
            if len(pending) > MAX_NESTING:
                place = Span(self.source, node.meta.start_pos, node.meta.end_pos)
                raise ParseError(f"the shape nests deeper than {MAX_NESTING} tuples", place)
            if len(parts) < len(node.children) and node.data in ("tuple_shape", "buffer_shape"):
                child = node.children[len(parts)]
                if isinstance(child, Token):                  # the opening of a buffer
                    parts.append(None)
                else:
                    pending.append((child, []))
                continue
            pending.pop()
            shape = self._node(node, parts)
            if not pending:
                return shape
            pending[-1][1].append(shape)

    def _node(self, node: Tree, parts: list[Shape | None]) -> Shape:
        inner = tuple(part for part in parts if part is not None)
        if node.data == "tuple_shape":
            return Shape.tuple(inner)
        if node.data == "buffer_shape":
            return Shape("buffer", (), inner)
        token = tokens_of(node)[0]
        return self.parse(str(token), start_of(token))

    def _flat_tuple(self, text: str, offset: int) -> Shape:
        tokens = tokens_of(self._parse("flat_tuple", text, offset))
        return Shape.tuple(self.parse(str(t), offset + start_of(t)) for t in tokens)

    def _array(self, text: str, offset: int) -> Shape:
        tree = self._parse("array", text, offset)
        span = Span(self.source, offset, offset + len(text))
        element_type = str(tree.children[0])
        if element_type not in ELEMENT_TYPES or element_type in _NOT_WRITTEN:
            raise unknown_type(element_type, span)
        sizes, dynamic = self._dimensions(tree, span)
        layouts = [c for c in tree.children[1:] if c.data == "layout"]
        if element_type in _WITHOUT_DIMENSIONS:
            if sizes:
                raise ParseError(f"{element_type} has no dimensions", span)
            return Shape(element_type)
        layout = self._layout(layouts[0], len(sizes), span) if layouts else default_layout(len(sizes))
        return Shape(element_type, sizes, (), dynamic if any(dynamic) else (), layout)

    def _dimensions(self, tree: Tree, span: Span) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        sizes, dynamic = [], []
        for dimension in tree.children[1:]:
            if not isinstance(dimension, Tree) or dimension.data != "dimension":
                continue
            last = tokens_of(dimension)[-1]
            unbounded = last.type == "UNBOUNDED"
            sizes.append(UNBOUNDED if unbounded else integer(last, span))
            dynamic.append(unbounded or len(dimension.children) == 2)
            if not unbounded and sizes[-1] < 0:
                raise ParseError(f"a dimension cannot be negative: {sizes[-1]}", span)
        return tuple(sizes), tuple(dynamic)

    def _layout(self, tree: Tree, rank: int, span: Span) -> Layout:
        tokens = tokens_of(tree)
        order = tuple(integer(t, span) for t in tokens if t.type == "INTEGER")
        suffix = [t for t in tokens if t.type == "LAYOUT_SUFFIX"]
        if len(order) != rank:
            raise ParseError(f"the shape has {rank} dimensions, its layout {len(order)}", span)
        if sorted(order) != list(range(rank)):
            raise ParseError(f"a layout names every dimension from 0 to {rank - 1} once", span)
        return Layout(order, "".join(_COMMENT.sub("", suffix[0][1:]).split()) if suffix else "")

    def _parse(self, start: str, text: str, offset: int) -> Tree:
        return parse_part(start, text, offset, self.source)


def parse_part(start: str, text: str, offset: int, source: Source) -> Tree:
    """The tree of a piece of the source; errors are located in the whole."""
    try:
        return parse(start, Source(text))
    except ParseError as error:
        span = error.span
        where = Span(source, offset + span.start, offset + span.end) if span else None
        raise ParseError(error.message, where, error.hint) from None


def check_size(shape: Shape, span: Span) -> None:
    """Raises ParseError if a tuple nests too deep or has too many parts to be printed."""
    pending, parts = [(shape, 1)], 0
    while pending:
        top, depth = pending.pop()
        parts += 1
        if depth > MAX_NESTING or parts > MAX_PARTS:
            raise ParseError("the tuple is too large: it has too many parts, or they nest too deep", span)
        pending.extend((part, depth + 1) for part in top.tuple_shapes)


def integer(text: str, span: Span) -> int:
    """A 64-bit integer. Raises ParseError if it does not fit."""
    if len(text) > 20 or not -MAX_DIMENSION - 1 <= int(text) <= MAX_DIMENSION:
        raise ParseError(f"{text[:40]} does not fit into 64 bits", span)
    return int(text)


def unknown_type(name: str, span: Span) -> ParseError:
    """The error for an unknown element type, with the nearest known ones."""
    near = difflib.get_close_matches(name, [t for t in ELEMENT_TYPES if t not in _NOT_WRITTEN], n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else None
    return ParseError(f"unknown element type {name!r}", Span(span.source, span.start, span.start + len(name)), hint)
