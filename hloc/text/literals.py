"""Literals: from the text of a constant to arrays.

In: a shape, the text between the parentheses of constant(...), and its place. Out: an ndarray of the shape's
dimensions, a tuple of them for a tuple shape, None where the text is elided ({...}). Example:

    literal(Shape s32[2,2], "{ {1, 2}, {3, 4} }", span)     array([[1, 2], [3, 4]], dtype=int32)

As in XLA's parser, commas between elements may be missing, and one bare number for an array is its first element (the
others are zero). Decimal numbers are rounded to f64 and from there to their type. Time and memory are linear in the
text; nothing is allocated by the shape before the text has been seen to hold that many elements.
"""
from __future__ import annotations

import re

import numpy as np

from hloc.errors import ParseError, Span
from hloc.ir.shapes import UNBOUNDED, Shape
from hloc.ir.types import ELEMENT_TYPES, numpy_dtype
from hloc.text.literal_structure import check_structure

CHUNK = 1 << 20                    # characters that are turned into numbers at a time
LARGEST_FILLED = 1 << 26           # elements of an array that is written as one bare number
_COMMENT = re.compile(r"/\*[^*]*(?:\*(?!/)[^*]*)*\*/|//[^\n\r]*")
_ELIDED = re.compile(r"\s*\{\s*\.\.\.\s*\}\s*")
_NO_NUMBERS = str.maketrans("{},()", "     ")
_NOT_INTEGER = re.compile(r"[^0-9\-\s]")
_NOT_DECIMAL = re.compile(r"[^0-9eE+\-.naif\s]")
_DECIMAL = re.compile(r"-?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|nan)")
_LEADING_DOT = re.compile(r"\.[0-9]")
_PLUS = re.compile(r"(?<![eE])\+")
_PAIR = re.compile(r"\(\s*[^\s(),{}]+\s*,\s*[^\s(),{}]+\s*\)")
_NAN = re.compile(r"(-?)nan(?:\(0x([0-9a-fA-F]+)\))?")
_NAN_PAYLOAD = re.compile(r"nan\(0x[0-9a-fA-F]+\)")
_SPACE = re.compile(r"\s")
_END_OF_WORD = re.compile(r"[,)]")
_BRACE = re.compile(r"[{}]")
_PARTS: dict[str, np.dtype] = {"c64": np.dtype(np.float32), "c128": np.dtype(np.float64)}
_PRED = {"true": True, "false": False}


def literal(shape: Shape, text: str, span: Span) -> np.ndarray | tuple | None:
    """The value of a constant of `shape`; `span` is the place of `text`. Raises ParseError."""
    if "/" in text:
        text = _COMMENT.sub(lambda comment: " " * len(comment.group()), text)
    if shape.is_tuple:
        return _TupleReader(text, span).read(shape)
    return _array(shape, text, span)


def _array(shape: Shape, text: str, span: Span) -> np.ndarray | None:
    if not shape.is_array or UNBOUNDED in shape.dimensions:
        raise ParseError(f"a constant cannot have the shape {shape.to_string(False)}", span)
    if ELEMENT_TYPES[shape.element_type].dtype is None:
        raise ParseError(f"the installed ml_dtypes has no {shape.element_type}", span)
    if "..." in text and shape.rank and _ELIDED.fullmatch(text):
        return None
    values = _elements(shape.element_type, text, span)
    if shape.rank and "{" not in text and len(values) == 1 and "(" not in text.replace("nan(", ""):
        return _first_element(shape, values, span)
    check_structure(shape.dimensions, text, len(values), span, shape.kind == "complex")
    return values.reshape(shape.dimensions)


def _first_element(shape: Shape, values: np.ndarray, span: Span) -> np.ndarray:
    """XLA's reading of `f32[4] constant(2)`: {2, 0, 0, 0}."""
    if not 0 < shape.num_elements <= LARGEST_FILLED:
        raise ParseError(f"expected {shape.num_elements} elements, found 1", span)
    array = np.zeros(shape.num_elements, values.dtype)
    array[0] = values[0]
    return array.reshape(shape.dimensions)


def _elements(element_type: str, text: str, span: Span) -> np.ndarray:
    """All numbers of the text, in order, as a flat array of the element type."""
    kind = ELEMENT_TYPES[element_type].kind
    if kind == "complex":
        _check_pairs(text, span)
    elif "(" in text:
        _check_no_pairs(text, span)
    chunks, start = [], 0
    flat = text.translate(_NO_NUMBERS) if "nan(" not in text else _keep_payloads(text)
    while start < len(flat):
        end = start + CHUNK
        boundary = _SPACE.search(flat, end) if end < len(flat) else None
        end = boundary.start() if boundary else len(flat)
        chunks.append(_Chunk(element_type, flat, start, end, span).values(kind))
        start = end
    dtype = numpy_dtype(element_type)
    if not chunks:
        return np.zeros(0, dtype)
    values = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return values.view(dtype) if kind == "complex" else values      # a chunk may end between real and imaginary part


def _keep_payloads(text: str) -> str:
    """Braces, commas and parentheses as blanks, but for the parentheses of nan(0x...)."""
    parts, last = [], 0
    for match in _NAN_PAYLOAD.finditer(text):
        parts += [text[last:match.start()].translate(_NO_NUMBERS), match.group()]
        last = match.end()
    return "".join(parts) + text[last:].translate(_NO_NUMBERS)


def _check_pairs(text: str, span: Span) -> None:
    """Complex elements are pairs (real, imaginary), and nothing else is there."""
    blank = _NAN_PAYLOAD.sub(lambda m: "nan" + "_" * (len(m.group()) - 3), text) if "nan(" in text else text
    rest = re.search(r"[^\s{},]", _PAIR.sub(lambda m: " " * len(m.group()), blank))
    if rest:
        raise ParseError("a complex element is written (real, imaginary)", _at(span, rest.start()))


def _check_no_pairs(text: str, span: Span) -> None:
    place = re.compile(r"(?<!nan)\(").search(text)
    if place:
        raise ParseError("parentheses are for complex elements only", _at(span, place.start()))


class _Chunk:
    """A range of text with only numbers and blanks."""

    def __init__(self, element_type: str, text: str, start: int, end: int, span: Span):
        self.element_type, self.type = element_type, ELEMENT_TYPES[element_type]
        self.text, self.start, self.end, self.span = text, start, end, span
        self.words = text[start:end].split()

    def values(self, kind: str) -> np.ndarray:
        if kind == "pred":
            return np.fromiter((_PRED[w] if w in _PRED else self.integer(w) != 0 for w in self.words), np.bool_,
                               len(self.words))
        if kind in ("signed", "unsigned"):
            return self.integers()
        return self.rounded(self.decimals(), _PARTS.get(self.element_type) or numpy_dtype(self.element_type))

    def integer(self, word: str) -> int:
        if not re.fullmatch(r"-?[0-9]+", word):
            self.fail(self.words.index(word), "an integer" if self.type.kind != "pred" else "true or false")
        if len(word) > 40:
            self.fail_range(self.words.index(word))
        return int(word)

    def integers(self) -> np.ndarray:
        if _NOT_INTEGER.search(self.text, self.start, self.end):
            self.fail(next(i for i, w in enumerate(self.words) if _NOT_INTEGER.search(w)), "an integer")
        bits = self.type.bits
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if self.type.kind == "signed" else (0, (1 << bits) - 1)
        try:
            wide = np.fromiter(map(int, self.words), np.uint64 if low == 0 and bits == 64 else np.int64,
                               len(self.words))
            if len(wide) == 0 or bits == 64 or low <= wide.min() and wide.max() <= high:
                return wide.astype(self.type.dtype)
        except (OverflowError, ValueError):
            pass
        return self.integers_one_by_one(low, high)

    def integers_one_by_one(self, low: int, high: int) -> np.ndarray:
        """With the place of the first that is no integer or out of range.

        XLA reads numbers into 64 bits: from 2^63 on they are the negative numbers of the same bits, and u64 takes any.
        """
        values = [self.integer(w) for w in self.words]
        for i, value in enumerate(values):
            if 2**63 <= value < 2**64:
                value = values[i] = value - 2**64
            fits = -(2**63) <= value < 2**63 if high == 2**64 - 1 else low <= value <= high
            if not fits:
                self.fail_range(i, f", which holds {low} to {high}")
        return np.array([v % (high + 1) if low == 0 else v for v in values],
                        np.uint64 if low == 0 else np.int64).astype(self.type.dtype)

    def decimals(self) -> np.ndarray:
        """The numbers as f64. Python reads more than HLO has (1_000, +1, infinity), so letters and signs come first."""
        words = self.words
        blank_and_dot = any(self.text.find(blank + ".", self.start, self.end) >= 0 for blank in " \t\r\n")
        if blank_and_dot or words and words[0][0] == ".":
            wrong = next((i for i, w in enumerate(words) if _LEADING_DOT.match(w)), None)
            if wrong is not None:
                self.fail(wrong, "a number that begins with a digit")
        if self.text.find("nan", self.start, self.end) >= 0:
            words = ["nan" if "nan" in w and _NAN.fullmatch(w) else w for w in words]
        for pattern in (_NOT_DECIMAL, _PLUS):
            if words is self.words and not pattern.search(self.text, self.start, self.end):
                continue
            wrong = next((i for i, w in enumerate(words) if pattern.search(w)), None)
            if wrong is not None:
                self.fail(wrong, "a number")
        try:
            values = np.fromiter(map(float, words), np.float64, len(words))
        except ValueError:
            self.fail(next(i for i, w in enumerate(words) if not _DECIMAL.fullmatch(w)), "a number")
        for i in np.flatnonzero(np.isinf(values)).tolist():
            if "inf" not in words[i]:
                self.fail_range(i)
        return values

    def rounded(self, values: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Rounded to the element type; finite numbers must stay finite."""
        with np.errstate(all="ignore"):
            result = values.astype(dtype)
            lost = np.isfinite(values) & ~np.isfinite(result.astype(np.float64))
        if lost.any():
            self.fail_range(int(np.flatnonzero(lost)[0]))
        if self.text.find("nan", self.start, self.end) >= 0:
            self.set_nans(result)
        return result

    def set_nans(self, result: np.ndarray) -> None:
        """Signs and payloads of NaNs: -nan, nan(0x1234)."""
        mantissa = ELEMENT_TYPES[self.element_type].payload_bits
        bits = result.view(f"u{result.dtype.itemsize}")
        for i, word in enumerate(self.words):
            match = _NAN.fullmatch(word)
            if not match or word == "nan":
                continue
            payload = int(match[2], 16) if match[2] else 1 << max(mantissa - 1, 0)
            if match[2] and not 0 < payload < 1 << mantissa:
                self.fail_range(i)
            if mantissa:
                width = 8 * result.dtype.itemsize
                exponent = (1 << width - 1 - mantissa) - 1
                bits[i] = (bool(match[1]) << width - 1) | exponent << mantissa | payload
            elif match[1] and self.element_type == "f8e4m3fn":
                bits[i] |= 0x80

    def fail(self, index: int, wanted: str) -> None:
        word = self.words[index]
        raise ParseError(f"expected {wanted} for {self.element_type}, found {word[:40]!r}", self.place(index))

    def fail_range(self, index: int, bounds: str = "") -> None:
        raise ParseError(f"{self.words[index][:40]} is out of range for {self.element_type}{bounds}", self.place(index))

    def place(self, index: int) -> Span:
        for i, match in enumerate(re.compile(r"\S+").finditer(self.text, self.start, self.end)):
            if i == index:
                return _at(self.span, match.start(), match.end())
        return self.span


class _TupleReader:
    """Reads (a, {b, c}, (d, e)) by a tuple shape, with a stack of its own: tuples nest thousands deep."""

    def __init__(self, text: str, span: Span):
        self.text, self.span, self.place = text, span, 0

    def read(self, shape: Shape) -> tuple:
        self.expect("(", shape)
        stack: list[tuple[Shape, list]] = [(shape, [])]
        while True:
            top, values = stack[-1]
            if len(values) == len(top.tuple_shapes):
                self.expect(")", top)
                stack.pop()
                if not stack:
                    return self.finish(tuple(values))
                stack[-1][1].append(tuple(values))
                continue
            if values:
                self.expect(",", top)
            element = top.tuple_shapes[len(values)]
            if element.is_tuple:
                self.expect("(", element)
                stack.append((element, []))
            else:
                values.append(self.array(element))

    def finish(self, value: tuple) -> tuple:
        self.skip()
        if self.place < len(self.text):
            raise ParseError("expected ')' after the literal", _at(self.span, self.place))
        return value

    def array(self, shape: Shape) -> np.ndarray | None:
        self.skip()
        start, end = self.place, self.end_of_array()
        self.place = end
        return _array(shape, self.text[start:end], _at(self.span, start, end))

    def end_of_array(self) -> int:
        opening = self.text[self.place:self.place + 1]
        if opening == "(":
            end = self.text.find(")", self.place) + 1
            return end or len(self.text)
        if opening != "{":
            payload = _NAN.match(self.text, self.place)
            blank = _END_OF_WORD.search(self.text, payload.end() if payload else self.place)
            return blank.start() if blank else len(self.text)
        depth = 0
        for brace in _BRACE.finditer(self.text, self.place):
            depth += 1 if brace.group() == "{" else -1
            if not depth:
                return brace.end()
        return len(self.text)

    def expect(self, character: str, shape: Shape) -> None:
        self.skip()
        if self.text[self.place:self.place + 1] != character:
            count = len(shape.tuple_shapes)
            raise ParseError(f"expected {character!r} in the literal of a tuple with {count} elements",
                             _at(self.span, self.place))
        self.place += 1

    def skip(self) -> None:
        while self.place < len(self.text) and self.text[self.place].isspace():
            self.place += 1


def _at(span: Span, start: int, end: int | None = None) -> Span:
    """A place inside the literal, as a place in the source."""
    return Span(span.source, span.start + start, span.start + (start + 1 if end is None else end))

