"""HLO text to Module.

In: text. Out: a Module whose instructions have their place in the text; every error is a ParseError. Example:

    module = parse_module("ENTRY e { p = f32[2] parameter(0) ROOT n = negate(p) }")
    module.entry.root.shape                                    f32[2]{0}

The grammar gives a tree with one token for an ordinary instruction; hloc/text/instructions.py turns these into
instructions, this file into computations and modules.
"""
from __future__ import annotations

import re
from collections.abc import Callable

from lark import Token, Tree

from hloc.errors import ParseError, Source, Span
from hloc.ir.attributes import Verbatim
from hloc.ir.module import Computation, Instruction, Module
from hloc.ir.shapes import Shape
from hloc.text.forms import check_form
from hloc.text.grammar import parse, pattern
from hloc.text.instructions import TextReader
from hloc.text.long_words import check_words
from hloc.text.scopes import Scope, Steps, run
from hloc.text.shapes import Shapes, parse_part
from hloc.text.tree_positions import start_of, tokens_of

Warn = Callable[[str, Span], None]
_SEPARATOR = re.compile(r"^// -----[ \t\r]*$", re.MULTILINE)
# Header attributes whose inner form is checked here, by their rule in the grammar.
_CHECKED = {"input_output_alias": "aliases", "buffer_donor": "donors", "is_scheduled": "boolean",
            "replica_count": "integer", "num_partitions": "integer", "alias_passthrough_params": "boolean",
            "entry_computation_layout": "entry_layout"}
_HEADER_KEYS = frozenset(_CHECKED) | {
    "frontend_attributes", "allow_spmd_sharding_propagation_to_parameters",
    "allow_spmd_sharding_propagation_to_output", "origin_recovery_table", "debug_attributes"}


def parse_module(text: str, name: str = "<text>", strict: bool = False, warn: Warn | None = None) -> Module:
    """The module in `text`; `name` is shown in messages.

    Unknown attributes are kept and reported through warn(message, span); with `strict` they are errors.
    """
    return ModuleReader(Source(text, name), strict, warn).read()


def parse_modules(text: str, name: str = "<text>", strict: bool = False, warn: Warn | None = None) -> list[Module]:
    """All modules of a text in which lines `// -----` stand between modules. Places are those of the whole text."""
    cuts = [m.span() for m in _SEPARATOR.finditer(text)]
    starts, ends = [0] + [c[1] for c in cuts], [c[0] for c in cuts] + [len(text)]
    parts = [(s, e) for s, e in zip(starts, ends) if text[s:e].strip()] or [(0, len(text))]
    # Blank lines before it keep the line numbers of the whole text.
    return [parse_module("\n" * text.count("\n", 0, s) + text[s:e], name, strict, warn) for s, e in parts]


def parse_shape(text: str, name: str = "<shape>") -> Shape:
    """The shape in `text`, e.g. (f32[2,3]{1,0}, token[])."""
    source = Source(text, name)
    return Shapes(source).from_tree(parse("shape", source))


def parse_instruction(text: str, name: str = "<text>") -> Instruction:
    """A single instruction; operands that are written with their shapes become parameters."""
    return parse_module(text, name).entry.root


class ModuleReader(TextReader):
    """Builds one module."""

    def __init__(self, source: Source, strict: bool = False, warn: Warn | None = None):
        super().__init__(source, strict, warn)
        self.head_parts = pattern("(", "ENTRY", ")?", "SPACE", "(", "NAME", ")", "SPACE", "(", "FLAT_SIGNATURE", ")?")

    def read(self) -> Module:
        check_words(self.source)
        tree = parse("module", self.source)
        name, attributes, tables, entry = "", {}, "", None
        for part in tree.children:
            kind = part.data if isinstance(part, Tree) else "instruction"
            if kind == "header":
                name, attributes = run(self.header(part))
            elif kind == "tables":
                tables = self.source.text[part.meta.start_pos:part.meta.end_pos].rstrip()
            elif kind == "computation":
                entry = self.computation(part, entry)
            else:
                entry = self.single_instruction(part, kind)
        entry = entry or self.computations[-1]
        self.name_inline_computations()
        # XLA reads a text of one instruction as a module "_" with a fixed schedule.
        alone = not name and kind != "computation"
        is_scheduled = alone or attributes.pop("is_scheduled", None) == "true"
        name = "_" if alone else name or f"module_{entry.name}"
        module = Module(name, self.computations, entry, attributes, tables, self.source)
        module.is_scheduled = is_scheduled
        return module

    def header(self, tree: Tree) -> Steps:
        name = tokens_of(tree)[1].strip("%:")
        attributes: dict[str, object] = {}
        for part in tree.children[2:]:
            for key, value, span in (yield self.attribute_texts(part)):
                if key in attributes:
                    raise ParseError(f"attribute {key} is given twice", span)
                if key in _CHECKED:
                    parse_part(_CHECKED[key], value, span.end - len(value), self.source)
                elif key == "origin_recovery_table":
                    check_form(key, str(value), span)
                elif key not in _HEADER_KEYS:
                    self.unknown_attribute(key, "HloModule", span, _HEADER_KEYS)
                attributes[key] = Verbatim(value)
        return name, attributes

    def computation(self, tree: Tree, entry: Computation | None) -> Computation | None:
        """Reads one computation; returns the module's entry so far."""
        is_entry, name, span, result = self.computation_head(tree.children[0])
        close = next(i for i, c in enumerate(tree.children) if isinstance(c, Token) and c.type == "RBRACE")
        scope = Scope(name, span)
        run(self.instructions(tree.children[1:close], scope))
        computation = self.finish_computation(scope)
        for part in tree.children[close + 1:]:
            for key, value, place in run(self.attribute_texts(part)):
                if key != "execution_thread" or key in computation.attributes:
                    raise ParseError(f"a computation has no attribute {key} but execution_thread, once", place)
                computation.attributes[key] = Verbatim(value)
        if result is not None and not result[0].compatible(computation.root.shape):
            raise ParseError(f"the computation returns {result[0]}, but its root {computation.root.name} has the "
                             f"shape {computation.root.shape}", result[1])
        self.add_computation(computation)
        if is_entry and entry is not None:
            raise ParseError("a second ENTRY", span)
        return computation if is_entry else entry

    def computation_head(self, tree: Tree) -> tuple[bool, str, Span, tuple[Shape, Span] | None]:
        """Whether it is the entry, its name, the name's place, and the result shape where a signature is written."""
        first = tokens_of(tree)[0]
        if first.type == "COMPUTATION_HEAD":
            match = self.head_parts.match(first)
            assert match is not None                          # as the lexer found it
            at = start_of(first)
            span = Span(self.source, at + match.start(2), at + match.end(2))
            result = self.result_shape(match[3], at + match.start(3)) if match[3] else None
            return match[1] is not None, match[2].lstrip("%"), span, result
        name = next(c for c in tree.children if isinstance(c, Token) and c.type == "NAME")
        signatures = [c for c in tree.children if isinstance(c, Tree)]
        span = self.place(name)
        result = self.signature(signatures[0]) if signatures else None
        return first.type == "ENTRY", name.lstrip("%"), span, result

    def result_shape(self, signature: str, offset: int) -> tuple[Shape, Span]:
        arrow = signature.rindex("->") + 2
        text = signature[arrow:].lstrip()
        start = offset + len(signature) - len(text)
        return self.shapes.parse(text, start), Span(self.source, start, start + len(text))

    def signature(self, tree: Tree) -> tuple[Shape, Span]:
        for parameter in tree.children[:-1]:
            self.shapes.from_tree(parameter.children[1])
        result = tree.children[-1]
        return self.shapes.from_tree(result), self.place(result)

    def single_instruction(self, part: Tree | Token, kind: str) -> Computation:
        """A text that is one instruction: its operands become parameters."""
        scope = Scope("_", Span(self.source, 0, 0), creates_parameters=True)
        if isinstance(part, Tree) and kind == "bare_instruction":
            run(self.bare_instruction(part, scope))
        else:
            run(self.instructions([part], scope))
        scope.root = scope.instructions[-1]
        computation = self.finish_computation(scope)
        self.add_computation(computation)
        return computation
