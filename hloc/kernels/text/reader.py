"""The text of the loop IR -> Kernels. The syntax is grammar/loops.lark's; printer.py writes it.

In: a Source. Out: the kernels, verified (hloc/kernels/verify.py). Errors are ParseErrors with their position.

    read_loops(Source("kernel k(out: f32[2] write) { parallel i < 2 { out[i] = f32(0.0) } }"))
"""
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from hloc.errors import ParseError, Source, Span
from hloc.ir import ELEMENT_TYPES
from hloc.kernels import ir
from hloc.kernels.indexing import index_apply
from hloc.kernels.operations import CONVERSIONS, result_type
from hloc.kernels.text.printer import INFIX
from hloc.kernels.vectors import is_vector
from hloc.kernels.verify import KernelError, verify_kernel
from hloc.text.grammar import grammar_file

OF_SIGN = {sign: op for op, (sign, _) in INFIX.items()}
DEEPEST = 200                   # nested brackets: the reader of expressions is recursive


def read_loops(source: Source) -> list[ir.Kernel]:
    """All kernels of a text. Raises ParseError if it is not loop IR or breaks one of its rules."""
    _refuse_deep(source)
    try:
        tree = parser().parse(source.text)
    except UnexpectedInput as error:
        raise _located(source, error) from None
    return [_Reader(source).kernel(node) for node in _children(tree)]


def _located(source: Source, error: UnexpectedInput) -> ParseError:
    if isinstance(error, UnexpectedCharacters):
        place: int = error.pos_in_stream       # type: ignore[assignment]      # always set by this subclass
        return ParseError("a character that no loop IR has", Span(source, place, place + 1))
    token = error.token if isinstance(error, UnexpectedToken) else None
    if token is None or token.type == "$END":
        return ParseError("unexpected text", Span(source, len(source.text), len(source.text) + 1))
    start = token.start_pos or 0
    return ParseError("unexpected text", Span(source, start, start + max(1, len(token))))


@cache
def parser() -> Lark:
    """The LALR parser of the grammar."""
    text = grammar_file().with_name("loops.lark").read_text(encoding="utf-8")
    return Lark(text, parser="lalr", propagate_positions=True, maybe_placeholders=True)


def _refuse_deep(source: Source) -> None:
    depth = 0
    for place, character in enumerate(source.text):
        depth += (character in "([{") - (character in ")]}")
        if depth > DEEPEST:
            raise ParseError(f"more than {DEEPEST} brackets in one another", Span(source, place, place + 1))


def _children(node: Tree) -> list[Any]:
    """Tokens and trees, as the rule of the grammar says."""
    return node.children


class _Reader:
    """One kernel. types: of the names in scope; arrays: element types of buffers and local arrays."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.types: dict[str, str] = {}
        self.arrays: dict[str, str] = {}

    def fail(self, message: str, token: Token | Tree) -> ParseError:
        place = token if isinstance(token, Token) else token.meta
        return ParseError(message, Span(self.source, place.start_pos or 0, place.end_pos or 1))

    def kernel(self, node: Tree) -> ir.Kernel:
        name, *buffers, body = _children(node)
        kernel = ir.Kernel(name.strip('"'), tuple(self.buffer(b) for b in buffers if b is not None), self.block(body))
        try:
            verify_kernel(kernel)
        except KernelError as error:
            raise self.fail(str(error), name) from None
        return kernel

    def buffer(self, node: Tree) -> ir.Buffer:
        name, array, access = _children(node)
        return ir.Buffer(str(name), *self.array(name, array), str(access))

    def array(self, name: Token, node: Tree) -> tuple[str, int]:
        type, size = _children(node)
        self.arrays[name] = self.element_type(type)
        return str(type), int(size)

    def element_type(self, token: Token) -> str:
        if token != ir.INDEX and token not in ELEMENT_TYPES:
            raise self.fail("not an element type", token)
        return str(token)

    def value_type(self, token: Token) -> str:
        """An element type, or that of a vector."""
        return str(token) if is_vector(token) else self.element_type(token)

    # -- statements

    def block(self, node: Tree) -> tuple[ir.Stmt, ...]:
        types, arrays = dict(self.types), dict(self.arrays)
        body = tuple(self.statement(child) for child in node.children)
        self.types, self.arrays = types, arrays
        return body

    def statement(self, node: Tree) -> ir.Stmt:
        return getattr(self, node.data)(*node.children)

    def define(self, name: Token, type: str) -> str:
        self.types[name] = type
        return str(name)

    def let(self, name: Token, value: Tree) -> ir.Let:
        read = self.expression(value)
        return ir.Let(self.define(name, read.type), read)

    def mutable(self, name: Token, value: Tree, reassociable: Token | None) -> ir.Mutable:
        read = self.expression(value)
        return ir.Mutable(self.define(name, read.type), read, str(reassociable or ""))

    def assign(self, name: Token, value: Tree) -> ir.Assign:
        return ir.Assign(str(name), self.expression(value))

    def store(self, name: Token, position: Tree, value: Tree) -> ir.Store:
        return ir.Store(str(name), self.expression(position), self.expression(value))

    def for_loop(self, kind: Token, name: Token, extent: Tree, body: Tree) -> ir.For:
        read = self.expression(extent)
        types = dict(self.types)
        self.define(name, ir.INDEX)
        statements = self.block(body)
        self.types = types
        count = read.integer if isinstance(read, ir.Const) and read.type == ir.INDEX else read
        return ir.For(str(name), count, str(kind), statements)

    def while_loop(self, condition: Tree, body: Tree) -> ir.While:
        return ir.While(self.expression(condition), self.block(body))

    def condition(self, condition: Tree, then: Tree, otherwise: Tree | None) -> ir.If:
        return ir.If(self.expression(condition), self.block(then), self.block(otherwise) if otherwise else ())

    def last(self, count: Token, groups: Token, position: Tree, body: Tree) -> ir.Last:
        return ir.Last(self.expression(position), int(groups), int(count), self.block(body))

    def local(self, name: Token, array: Tree) -> ir.Local:
        return ir.Local(str(name), *self.array(name, array))

    def shared(self, name: Token, array: Tree) -> ir.Shared:
        return ir.Shared(str(name), *self.array(name, array))

    def barrier(self) -> ir.Barrier:
        return ir.Barrier()

    def atomic(self, op: Token, name: Token, position: Tree, value: Tree) -> ir.Atomic:
        return ir.Atomic(str(op), str(name), self.expression(position), self.expression(value))

    # -- expressions

    def expression(self, node: Tree) -> ir.Expr:
        return self.EXPRESSIONS[node.data](self, node)

    def index(self, node: Tree) -> ir.Const:
        return ir.Const(int("".join(_children(node))), ir.INDEX)

    def constant(self, node: Tree) -> ir.Const:
        type, _, values = str(_children(node)[0]).rstrip(")").partition("(")
        texts = [text.strip() for text in values.split(",")]
        read: dict[str, Callable[[str], int | float | complex]] = {
            "pred": _boolean, "signed": int, "unsigned": int, "float": float}
        try:
            kind = ELEMENT_TYPES[type].kind
            if len(texts) != 1 + (kind == "complex"):
                raise ValueError
            value = complex(*map(float, texts)) if kind == "complex" else read[kind](texts[0])
        except (KeyError, ValueError):
            raise self.fail("not a constant of an element type", _children(node)[0]) from None
        return ir.Const(value, type)

    def variable(self, node: Tree) -> ir.Var:
        name = _children(node)[0]
        if name not in self.types:
            raise self.fail(f"no variable {name} here", name)
        return ir.Var(str(name), self.types[name])

    def load(self, node: Tree) -> ir.Load:
        name, position, written = _children(node)
        if name not in self.arrays:
            raise self.fail(f"no array {name} here", name)
        type = self.value_type(written) if written else self.arrays[name]
        return ir.Load(str(name), self.expression(position), type)

    def infix(self, node: Tree) -> ir.Expr:
        left, sign, right = _children(node)
        arguments = self.expression(left), self.expression(right)
        op = OF_SIGN[str(sign)]
        if arguments[0].type == arguments[1].type == ir.INDEX and op in ("add", "subtract", "multiply"):
            return index_apply(op, *arguments)
        type = result_type(op, [a.type for a in arguments])
        if type is None:
            raise self.fail(f"{sign} of {arguments[0].type}", sign)
        return ir.Apply(op, arguments, type)

    def call(self, node: Tree) -> ir.Apply:
        op, written, *rest, facts = _children(node)
        arguments = tuple(self.expression(child) for child in rest if child is not None)
        if not arguments:
            raise self.fail("an operation without arguments", op)
        type = self.value_type(written) if written else result_type(op, [a.type for a in arguments])
        if type is None:
            raise self.fail(f"{op} does not say to which type: write {op}:f32(...)" if op in CONVERSIONS
                            else f"{op} of {arguments[0].type}", op)
        return ir.Apply(str(op), arguments, type, tuple(map(int, facts.children)) if facts else ())

    EXPRESSIONS: dict[str, Callable[[_Reader, Any], ir.Expr]] = {
        "index": index, "constant": constant, "variable": variable, "load": load, "call": call, "infix_sum": infix,
        "infix_product": infix, "comparison": infix}


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text]
