"""Instructions: from tokens and trees to Instruction.

In: an INSTRUCTION token (the usual case) or the tree of an instruction in pieces; the Scope of its
computation. Out: instructions in the scope, computations in the reader.

Readers of nested constructs are generators that yield the generators they wait for (hloc/text/scopes.py: run).
"""
from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any

from lark import Token, Tree

from hloc.errors import HlocError, ParseError, Source, Span
from hloc.ir.module import Instruction
from hloc.ir.shapes import TOKEN, Shape, array
from hloc.ir.types import ELEMENT_TYPES
from hloc.ops.table import OPS
from hloc.text.attributes import COMPUTATION, COMPUTATIONS, Attributes
from hloc.text.forms import check_counts
from hloc.text.grammar import pattern
from hloc.text.literals import literal
from hloc.text.opcodes import COMMON, KNOWN_KEYS, Signature, signature
from hloc.text.scopes import Computations, Scope, Steps, did_you_mean
from hloc.text.shapes import Shapes, check_size, integer, parse_part
from hloc.text.tree_positions import start_of, tokens_of

_NAMES = re.compile(r"%?([A-Za-z_][A-Za-z0-9_.\-]*)")
_NUMBER = re.compile(r"-?[0-9]+")
_COMMENT = re.compile(r"/\*[^*]*(?:\*(?!/)[^*]*)*\*/|//[^\n\r]*")
_SHAPES = ("shape", "tuple_shape", "buffer_shape")
# Operands and attributes do not determine the shapes of these.
_WRITTEN_SHAPES = frozenset({"parameter", "broadcast", "reshape", "convert", "bitcast-convert", "stochastic-convert",
                             "iota"})
_REFERENCES = COMPUTATION | COMPUTATIONS | {"control-predecessors"}
_TYPE_NAMES = frozenset(ELEMENT_TYPES) - {"tuple", "buffer"}
_PENDING = (array("u32"), TOKEN)       # after the data of send and recv


class TextReader(Computations):
    """The state of reading a module's text, and the reader of its instructions."""

    def __init__(self, source: Source, strict: bool = False, warn: Callable[[str, Span], None] | None = None):
        super().__init__()
        self.source, self.strict, self.warn = source, strict, warn
        self.shapes, self.values = Shapes(source), Attributes(source)
        shape = ("(", "FLAT_TUPLE", "|", "ARRAY", ")")
        operands = ("(", "OPCODE", ")(", "FLAT_OPERANDS", r")?\)")
        constant = ("(", "CONSTANT", ")(", "FLAT_LITERAL", r")?\)")
        self.instruction_parts = pattern("(", "HEAD", ")", "SPACE", *shape, "SPACE", "(?:", *constant, "|(",
                                         "PARAMETER", ")|", *operands, ")", "SPACE", "(.*)")
        self.name_parts = pattern(r"(ROOT(?![A-Za-z0-9_.\-]))?", "SPACE", "(", "NAME", ")")
        self.operand_parts = pattern("(?:", *shape, "SPACE", ")?", "(", "NAME", ")")
        self.attribute_parts = pattern(",", "SPACE", "(", "FLAT_KEY", ")", "SPACE", "(", "MESH", "|",
                                       "TYPED_LITERAL", "|", "VALUE", ")")

    # ------------------------------------------------------------------------------------------ instructions

    def instructions(self, parts: Iterable[Token | Tree], scope: Scope) -> Steps:
        """All instructions of a computation."""
        for part in parts:
            if isinstance(part, Token):
                self.flat_instruction(part, (), scope)
            elif part.data == "long_instruction":
                yield self.long_instruction(part, scope)
            else:
                texts = []
                for attribute in part.children[1:]:
                    texts += yield self.attribute_texts(attribute)
                self.flat_instruction(tokens_of(part)[0], texts, scope)

    def flat_instruction(self, token: Token, more: Iterable[tuple[str, Any, Span]], scope: Scope) -> None:
        """An instruction that is one token; `more` are attributes outside of it."""
        match = self.instruction_parts.match(token)
        at = token.start_pos
        assert match is not None and at is not None           # as the lexer found it
        head, shape_text, _, literal_text, parameter, opcode_text, operand_text, rest = match.groups()
        name, is_root, span = self.head(head, at, at + len(token.rstrip()))
        shape = self.shapes.parse(shape_text, at + match.start(2))
        if opcode_text:
            instruction = Instruction(name, opcode_text[:-1].rstrip(), shape, span=span)
            if operand_text:
                instruction.operands = self.flat_operands(operand_text, at + match.start(7), scope)
        elif parameter:
            instruction = self.parameter(name, shape, parameter, span)
        else:
            place = Span(self.source, at + match.start(4), at + match.end(4)) if literal_text else span
            instruction = Instruction(name, "constant", shape, span=span)
            instruction.literal = literal(shape, literal_text or "", place)
        texts = [(m[1][:-1], m[2], at + match.start(8) + m.start(1), at + match.start(8) + m.end(2))
                 for m in self.attribute_parts.finditer(rest)] if rest else ()
        self.finish_instruction(instruction, texts, more, scope)
        self.add(instruction, is_root, scope)

    def long_instruction(self, tree: Tree, scope: Scope) -> Steps:
        """An instruction in pieces: HEAD [shape] call attribute*."""
        head = tokens_of(tree)[0]
        name, is_root, span = self.head(str(head), start_of(head), start_of(head) + len(head))
        yield self.call(tree.children[1:], name, span._replace(end=tree.meta.end_pos), is_root, scope)

    def bare_instruction(self, tree: Tree, scope: Scope) -> Steps:
        """An instruction without a name: shape call attribute*."""
        yield self.call(tree.children, "_", self.place(tree), True, scope)

    def call(self, parts: list[Tree | Token], name: str | None, span: Span, is_root: bool, scope: Scope) -> Steps:
        """[shape] (operands | PARAMETER | constant) attribute*, to an instruction of the scope."""
        shape = None
        if isinstance(parts[0], Tree) and parts[0].data in _SHAPES:
            shape, parts = self.shapes.from_tree(parts[0]), parts[1:]
        body, attributes = parts[0], parts[1:]
        instruction = Instruction(name or "", "", shape, span=span)      # type: ignore[arg-type]      # set at the end
        if isinstance(body, Token):
            self.set_parameter(instruction, body, span)
        elif body.data == "constant":
            instruction.opcode = "constant"
            instruction.literal = self.constant(shape, body, span)
        else:
            instruction.opcode = tokens_of(body)[0][:-1].rstrip()
            for operand in body.children[1:]:
                instruction.operands.append((yield self.operand(operand, scope)))
        texts = []
        for attribute in attributes:
            assert isinstance(attribute, Tree)
            texts += yield self.attribute_texts(attribute)
        self.finish_instruction(instruction, (), texts, scope)
        instruction.name = name or self.anonymous_name(instruction.opcode, scope)
        self.add(instruction, is_root, scope)
        return instruction

    def anonymous_name(self, opcode: str, scope: Scope) -> str:
        """A name for an operand that is an instruction itself."""
        while True:
            count = scope.anonymous.get(opcode, 0)
            scope.anonymous[opcode] = count + 1
            name = f"{opcode}.anon.{count}" if count else f"{opcode}.anon"
            if name not in scope.by_name:
                return name

    def place(self, tree: Tree | Token) -> Span:
        """The place of a tree or token."""
        at = tree if isinstance(tree, Token) else tree.meta
        assert at.start_pos is not None and at.end_pos is not None
        return Span(self.source, at.start_pos, at.end_pos)

    def head(self, text: str, start: int, end: int) -> tuple[str, bool, Span]:
        """Name, whether it is the root, and the place from the name on, of `ROOT %name =`."""
        match = self.name_parts.match(text)
        assert match is not None                              # as the lexer found it
        return match[2].lstrip("%"), match[1] is not None, Span(self.source, start + match.start(2), end)

    def parameter(self, name: str, shape: Shape, text: str, span: Span) -> Instruction:
        written = _NUMBER.search(text, text.index("("))
        assert written is not None
        number = integer(written.group(), span)
        if number < 0:
            raise ParseError("a parameter number is not negative", span)
        return Instruction(name, "parameter", shape, parameter_number=number, span=span)

    def set_parameter(self, instruction: Instruction, token: Token, span: Span) -> None:
        parsed = self.parameter(instruction.name, instruction.shape, token, span)
        instruction.opcode, instruction.parameter_number = "parameter", parsed.parameter_number

    def constant(self, shape: Shape | None, tree: Tree, span: Span) -> Any:
        if shape is None:
            raise ParseError("a constant needs a shape", span)
        place = self.place(tree.children[1])
        return literal(shape, self.source.text[place.start:place.end], place)

    def finish_instruction(self, instruction: Instruction, texts: Iterable[tuple[str, str, int, int]],
                           more: Iterable[tuple[str, Any, Span]], scope: Scope) -> None:
        """Attributes, number of operands, and the shape if it is not written."""
        opcode = instruction.opcode
        known = signature(opcode)
        if known is None:
            raise unknown_opcode(instruction)
        if opcode == "parameter" and instruction.parameter_number is None:
            raise ParseError("a parameter needs its number: parameter(0)", opcode_place(instruction))
        attributes = instruction.attributes
        for key, text, start, end in texts:
            if key in attributes or key not in known.allowed:
                self.check_key(key, instruction, known, Span(self.source, start, end))
            if key in _REFERENCES:
                self.set_reference(instruction, key, text, Span(self.source, end - len(text), end), scope)
            else:
                attributes[key] = self.values.value(key, text, end - len(text))
        for key, value, span in more:
            if key in attributes or key not in known.allowed:
                self.check_key(key, instruction, known, span)
            if key in _REFERENCES and isinstance(value, str):
                self.set_reference(instruction, key, value, Span(self.source, span.end - len(value), span.end), scope)
            elif isinstance(value, str):
                attributes[key] = self.values.value(key, value, span.end - len(value))
            else:
                attributes[key] = value
        check_signature(instruction, known)
        if instruction.shape is None:
            instruction.shape = inferred_shape(instruction)
        elif opcode in _GIVEN_SHAPES:
            instruction.shape = _GIVEN_SHAPES[opcode](instruction)

    def add(self, instruction: Instruction, is_root: bool, scope: Scope) -> None:
        """Add it to its computation."""
        name = instruction.name
        if name in scope.by_name:
            before = scope.by_name[name].span
            raise ParseError(f"the name {name} is defined twice in the computation", instruction.span,
                             f"first at {before}" if before else None)
        if name in _TYPE_NAMES:
            raise ParseError(f"{name} is an element type, no name", instruction.span, f"call it {name}_")
        scope.by_name[name] = instruction
        scope.instructions.append(instruction)
        if is_root:
            if scope.root is not None:
                raise ParseError("a second ROOT in the computation", instruction.span)
            scope.root = instruction

    # ------------------------------------------------------------------------------------------ operands

    def flat_operands(self, text: str, offset: int, scope: Scope) -> list[Instruction]:
        """Operands that are names, with or without their shapes."""
        by_name = scope.by_name
        if "[" not in text and "/" not in text:
            try:
                return [by_name[name] for name in _NAMES.findall(text)]
            except KeyError:
                pass
        found = []
        for match in self.operand_parts.finditer(_COMMENT.sub(lambda m: " " * len(m.group()), text)):
            shape = self.shapes.parse(match[1], offset + match.start(1)) if match[1] else None
            span = Span(self.source, offset + match.start(2), offset + match.end(2))
            found.append(self.find(match[2].lstrip("%"), shape, span, scope))
        return found

    def operand(self, tree: Tree, scope: Scope) -> Steps:
        """One operand: name, shape and name, shape alone, or a nested instruction."""
        span = self.place(tree)
        if tree.data == "nested_operand":
            return (yield self.call(tree.children, None, span, False, scope))
        if tree.data == "unnamed_operand":
            if not scope.creates_parameters:
                raise ParseError("an operand without a name", span)
            shape = self.shapes.from_tree(tree.children[0])
            return self.find(f"_{scope.created}", shape, span, scope)
        name = tokens_of(tree)[-1]
        if tree.data == "indexed_operand":
            return self.tuple_element(name, span, scope)
        written = self.shapes.from_tree(tree.children[0]) if tree.data == "typed_operand" else None
        return self.find(name.lstrip("%"), written, self.place(name), scope)

    def tuple_element(self, text: str, span: Span, scope: Scope) -> Instruction:
        """The operand %p#0: an element of a tuple, read by an instruction of its own (one for all its uses)."""
        name, *indices = text.lstrip("%").split("#")
        found = self.find(name, None, span, scope)
        for index in (integer(i, span) for i in indices):
            elements = found.shape.tuple_shapes
            if index >= len(elements):
                raise ParseError(f"{found.name} has the shape {found.shape}: there is no element {index}", span)
            name = f"{found.name}.element.{index}"
            if name not in scope.by_name:
                element = Instruction(name, "get-tuple-element", elements[index], [found], {"index": index}, span=span)
                self.add(element, False, scope)
            found = scope.by_name[name]
        return found

    def find(self, name: str, shape: Shape | None, span: Span, scope: Scope) -> Instruction:
        """The instruction called `name`; declared shapes must fit."""
        found = scope.by_name.get(name)
        if found is None and scope.creates_parameters:
            if shape is None:
                raise ParseError(f"the operand {name} of a single instruction needs a shape", span)
            found = Instruction(name, "parameter", shape, parameter_number=scope.created, span=span)
            scope.created += 1
            self.add(found, False, scope)
        if found is None:
            near = difflib.get_close_matches(name, list(scope.by_name)[-1000:], n=1)
            raise ParseError(f"{name} is not defined before this use", span, did_you_mean(near))
        if shape is not None and not shape.compatible(found.shape):
            raise ParseError(f"the operand is written with the shape {shape}, but {name} has {found.shape}", span)
        return found

    # ------------------------------------------------------------------------------------------ attributes

    def attribute_texts(self, tree: Tree) -> Steps:
        """(key, text or computations, place) of the attributes in a tree."""
        first = tokens_of(tree)[0]
        at = start_of(first)
        if first.type == "ATTRIBUTE":
            match = self.attribute_parts.match(first)
            assert match is not None                          # as the lexer found it
            return [(match[1][:-1], match[2], Span(self.source, at + match.start(1), at + match.end(2)))]
        key = str(first[:-1])
        if tree.data == "group_attribute":
            value = self.place(tree.children[1])
            return [(key, self.source.text[value.start:value.end], self.place(tree)._replace(start=at))]
        span = self.place(first)
        computations = []
        for callee in tree.children[1:]:
            computations.append((yield self.callee(callee)))
        return [(key, computations[0] if tree.data == "computation_attribute" else tuple(computations), span)]

    def callee(self, tree: Tree) -> Steps:
        """A computation: by name, or written inline."""
        if tree.data == "callee":
            child = tree.children[0]
            if isinstance(child, Token):
                return self.find_computation(child.lstrip("%"), self.place(child))
            tree = child
        scope = Scope("_", self.place(tree.children[0]))
        yield self.instructions(tree.children[1:-1], scope)
        computation = self.finish_computation(scope)
        self.inline.append(computation)
        self.computations.append(computation)
        return computation

    def set_reference(self, instruction: Instruction, key: str, text: str, span: Span, scope: Scope) -> None:
        """An attribute that names computations or instructions."""
        if key in COMPUTATION:
            parse_part("computation_name", text, span.start, self.source)
            instruction.attributes[key] = self.find_computation(text.lstrip("%"), span)
            return
        tokens = tokens_of(parse_part("names", text, span.start, self.source))
        places = [Span(self.source, span.start + start_of(t), span.start + start_of(t) + len(t)) for t in tokens]
        names = [t.lstrip("%") for t in tokens]
        if key in COMPUTATIONS:
            instruction.attributes[key] = tuple(map(self.find_computation, names, places))
        elif not names:
            raise ParseError("control-predecessors names at least one instruction", span)
        else:
            instruction.control_predecessors = tuple(self.find(n, None, p, scope) for n, p in zip(names, places))

    def check_key(self, key: str, instruction: Instruction, known: Signature, span: Span) -> None:
        """Handle an attribute that is given twice, belongs to other ops, or is unknown."""
        if key in instruction.attributes:
            raise ParseError(f"the attribute {key} is given twice", span)
        if key in KNOWN_KEYS:
            own = ", ".join(sorted(known.allowed - COMMON))
            raise ParseError(f"{instruction.opcode} has no attribute {key}", span, f"it has {own}" if own else None)
        self.unknown_attribute(key, instruction.opcode, span, known.allowed)

    def unknown_attribute(self, key: str, where: str, span: Span, allowed: frozenset[str]) -> None:
        """Keep an unknown attribute, with a warning; an error if strict."""
        if self.strict:
            near = difflib.get_close_matches(key, allowed, n=1)
            raise ParseError(f"unknown attribute {key} of {where}", span, did_you_mean(near))
        if self.warn:
            self.warn(f"unknown attribute {key} of {where} is kept as it is written", span)


def check_signature(instruction: Instruction, known: Signature) -> None:
    """Number of operands and required attributes. Raises ParseError."""
    count = len(instruction.operands)
    if count < known.least or known.most is not None and count > known.most:
        wanted = known.least if known.least == known.most else f"at least {known.least}"
        raise ParseError(f"{instruction.opcode} takes {wanted} operand{'s' * (wanted != 1)}, here are {count}",
                         opcode_place(instruction))
    if instruction.opcode == "broadcast" and "dimensions" not in instruction.attributes:
        if instruction.operands[0].shape.rank:
            raise ParseError("broadcast needs the attribute dimensions", opcode_place(instruction))
        instruction.attributes["dimensions"] = ()
    for key in known.required:
        if key not in instruction.attributes:
            raise ParseError(f"{instruction.opcode} needs the attribute {key}", opcode_place(instruction))
    check_counts(instruction, opcode_place)


def unknown_opcode(instruction: Instruction) -> ParseError:
    """The error for an unknown opcode, with the nearest one."""
    near = difflib.get_close_matches(instruction.opcode, OPS, n=1)
    return ParseError(f"unknown opcode {instruction.opcode!r}", opcode_place(instruction),
                      did_you_mean(near))


def opcode_place(instruction: Instruction) -> Span:
    """The place of an instruction's opcode in the text."""
    span = instruction.span
    assert span is not None
    found = re.compile(rf"(?<![\w.\-]){re.escape(instruction.opcode)}\s*\(").search(span.source.text, span.start)
    return span if found is None else Span(span.source, found.start(), found.start() + len(instruction.opcode))


def _received(instruction: Instruction, shape: Shape, *rest: Shape) -> Shape:
    """(data, rest ...) with the data of a written tuple."""
    if not shape.tuple_shapes:
        raise ParseError(f"{instruction.opcode} gives a tuple that begins with the data, not {shape.to_string(False)}",
                         opcode_place(instruction))
    return Shape.tuple([shape.tuple_shapes[0], *rest])


# The results of these are known except for the data: XLA's parser ignores the rest of the written shape.
_GIVEN_SHAPES: dict[str, Callable[[Instruction], Shape]] = {
    "infeed": lambda i: _received(i, i.shape, TOKEN),
    "recv": lambda i: _received(i, i.shape, *_PENDING),
    "recv-done": lambda i: _received(i, i.operands[0].shape, TOKEN),
    "send": lambda i: Shape.tuple([i.operands[0].shape, *_PENDING]),
    "send-done": lambda i: TOKEN,
    "outfeed": lambda i: TOKEN,
    "after-all": lambda i: TOKEN,
    "add-dependency": lambda i: i.operands[0].shape,
}


def inferred_shape(instruction: Instruction) -> Shape:
    """The shape of an instruction that is written without one, by its op's rule."""
    op = OPS.get(instruction.opcode)
    try:
        shape = op.infer(instruction) if op and instruction.opcode not in _WRITTEN_SHAPES else None
    except HlocError as error:
        raise ParseError(error.message, error.span or instruction.span, error.hint) from None
    if shape is None:
        raise ParseError(f"the shape of {instruction.opcode} cannot be inferred: it must be written",
                         opcode_place(instruction))
    assert instruction.span is not None
    check_size(shape, instruction.span)
    return shape
