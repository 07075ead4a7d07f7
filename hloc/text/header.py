"""The header's attributes about the entry: its layout, and which results share memory with which parameters.

In: a module. Out: shapes and aliases, read from the header's text. Example:

    HloModule m, input_output_alias={ {1}: (0, {}, must-alias) }, entry_computation_layout={(f32[4]{0})->f32[4]{0}}
    aliases(m)          (Alias(output=(1,), parameter=0, parameter_index=(), kind="must-alias"),)
    entry_layout(m)     ((f32[4]{0},), f32[4]{0})
"""
from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from lark import Tree

from hloc.errors import ParseError, Source, Span
from hloc.ir import Instruction, Module, Shape
from hloc.text.grammar import parse
from hloc.text.parser import parse_shape
from hloc.text.tree_positions import tokens_of


class Alias(NamedTuple):
    """The result at tuple index `output` may (or must) share the memory of a parameter's part at `parameter_index`."""

    output: tuple[int, ...]
    parameter: int
    parameter_index: tuple[int, ...]
    kind: str = "may-alias"


class Donor(NamedTuple):
    """A parameter's part whose memory may be used for any result."""

    parameter: int
    parameter_index: tuple[int, ...]


def aliases(module: Module) -> tuple[Alias, ...]:
    """input_output_alias, in the order of the text."""
    return _aliases(module.attributes.get("input_output_alias", "{}"))


def operand_aliases(instruction: Instruction) -> tuple[Alias, ...]:
    """output_to_operand_aliasing; `parameter` is the operand's number. Raises ParseError if it has another form."""
    try:
        return _aliases(str(instruction.get("output_to_operand_aliasing", "{}")))
    except ParseError as error:
        raise ParseError(f"output_to_operand_aliasing: {error.message}", instruction.span) from None


def donors(module: Module) -> tuple[Donor, ...]:
    """buffer_donor, in the order of the text."""
    return _donors(module.attributes.get("buffer_donor", "{}"))


def entry_layout(module: Module) -> tuple[tuple[Shape, ...], Shape] | None:
    """Parameter shapes and result shape of entry_computation_layout; None if the header does not have it."""
    text = module.attributes.get("entry_computation_layout")
    return None if text is None else _entry_layout(text)


def place_of(module: Module, key: str) -> Span | None:
    """The place of a header attribute in the source."""
    if not isinstance(module.source, Source):
        return None
    start = module.source.text.find(f"{key}=")
    return None if start < 0 else Span(module.source, start, start + len(key))


@lru_cache(maxsize=64)
def _aliases(text: str) -> tuple[Alias, ...]:
    found = []
    for tree in _trees("aliases", text):
        children: list[Any] = tree.children
        output, parameter, index, *kind = children
        found.append(Alias(_integers(output), int(parameter), _integers(index), *map(str, kind)))
    return tuple(found)


@lru_cache(maxsize=64)
def _donors(text: str) -> tuple[Donor, ...]:
    trees: list[list[Any]] = [t.children for t in _trees("donors", text)]
    return tuple(Donor(int(parameter), _integers(index)) for parameter, index in trees)


def _trees(start: str, text: str) -> list[Tree]:
    return [c for c in parse(start, Source(text, start)).children if isinstance(c, Tree)]


def _integers(tree: Tree) -> tuple[int, ...]:
    return tuple(map(int, tokens_of(tree)))


@lru_cache(maxsize=64)
def _entry_layout(text: str) -> tuple[tuple[Shape, ...], Shape]:
    """{(parameters)->result}: no shape holds an arrow."""
    left, arrow, right = text.strip()[1:-1].partition("->")
    if not arrow:
        raise ParseError(f"entry_computation_layout={text} has no ->")
    return parse_shape(left).tuple_shapes, parse_shape(right)
