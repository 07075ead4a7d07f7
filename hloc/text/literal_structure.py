"""The braces of an array literal against the array's dimensions.

In: dimensions, the text (comments blanked), the number of elements found in it. Out: nothing, or a ParseError that
says which part has too few or too many elements, and where. Example: for (2, 2)

    { {1, 2}, {3} }      3:9: error: expected 2 elements in [1], found 1

Braces are counted with NumPy, a few million characters at a time: at depth k there are prod(dimensions[:k]) opening
braces, the i-th of them after i * prod(dimensions[k:]) elements, the i-th closing one after (i + 1) * that.
"""
from __future__ import annotations

import math
import re

import numpy as np

from hloc.errors import ParseError, Span

CHUNK = 1 << 22
_BLANK = np.array([chr(c) in " \t\n\r\v\f,{}" for c in range(256)])
_TOKEN = re.compile(r"[{}]|\([^()]*\)|[^\s,{}()]+")
_PAYLOAD = re.compile(r"nan\([^()]*\)")


def check_structure(dimensions: tuple[int, ...], text: str, elements: int, span: Span, complex_pairs: bool) -> None:
    """Raises ParseError unless the braces of `text` split its elements as `dimensions` say."""
    if not dimensions and elements == 1 and "{" not in text and "}" not in text:
        return
    if "nan(" in text:
        text = _PAYLOAD.sub(lambda match: "n" * len(match.group()), text)
    if dimensions and elements == math.prod(dimensions) and _regular(dimensions, text, 2 if complex_pairs else 1):
        return
    _explain(dimensions, text, span)


def _regular(dimensions: tuple[int, ...], text: str, words_per_element: int) -> bool:
    signs, words = _braces(text)
    depths = np.cumsum(signs)
    if len(signs) == 0 or depths[-1] != 0 or depths.min() < 0 or depths.max() > len(dimensions):
        return False
    for k in range(len(dimensions)):
        size = math.prod(dimensions[k:]) * words_per_element
        count = math.prod(dimensions[:k])
        opening = words[(signs == 1) & (depths == k + 1)]
        closing = words[(signs == -1) & (depths == k)]
        if len(opening) != count or len(closing) != count:
            return False
        expected = np.arange(count, dtype=np.int64) * size
        if not (np.array_equal(opening, expected) and np.array_equal(closing, expected + size)):
            return False
    return True


def _braces(text: str) -> tuple[np.ndarray, np.ndarray]:
    """For every brace: +1 or -1, and the number of words before it."""
    signs, words, before, inside = [], [], 0, False
    for start in range(0, len(text), CHUNK):
        codes = np.frombuffer(text[start:start + CHUNK].encode("latin-1", "replace"), np.uint8)
        # The parentheses of complex pairs part words as blanks do.
        filled = ~_BLANK[codes] & (codes != ord("("))
        starts = filled.copy()
        starts[1:] &= ~filled[:-1]
        starts[0] &= not inside
        starts &= codes != ord(")")
        inside = bool(filled[-1])
        places = np.flatnonzero((codes == ord("{")) | (codes == ord("}")))
        signs.append(np.where(codes[places] == ord("{"), 1, -1).astype(np.int64))
        counted = np.cumsum(starts, dtype=np.int64)
        words.append(counted[places] + before)
        before += int(counted[-1])
    return (np.concatenate(signs), np.concatenate(words)) if signs else (np.zeros(0, np.int64),) * 2


def _explain(dimensions: tuple[int, ...], text: str, span: Span) -> None:
    """Walk the text in Python to find the first place that does not fit; always raises."""
    rank, counts = len(dimensions), [0] * (len(dimensions) + 1)
    depth = 0
    for match in _TOKEN.finditer(text):
        place = Span(span.source, span.start + match.start(), span.start + match.end())
        if match.group() == "}":
            depth -= 1
            if depth < 0:
                raise ParseError("a '}' without its '{'", place)
            if counts[depth] != dimensions[depth]:
                raise _wrong_count(dimensions, counts, depth, str(counts[depth]), place)
            counts[depth] = 0
            continue
        if match.group() == "{" and depth == rank:
            raise ParseError(_too_deep(rank), place)
        if match.group() != "{" and depth != rank:
            raise ParseError(f"the constant has {rank} dimensions: its elements stand in as many "
                             f"pairs of braces, here in {depth}", place)
        if depth:
            counts[depth - 1] += 1
            if counts[depth - 1] > dimensions[depth - 1]:
                raise _wrong_count(dimensions, counts, depth - 1, "more", place)
        elif counts[rank]:
            raise ParseError("expected ')' after the literal", place)
        else:
            counts[rank] = 1
        depth += match.group() == "{"
    raise ParseError(_missing(dimensions, counts[rank], depth), span)


def _too_deep(rank: int) -> str:
    if not rank:
        return "a scalar is written without braces"
    return f"the braces nest deeper than the constant's dimensions, which are {rank}"


def _missing(dimensions: tuple[int, ...], seen: int, depth: int) -> str:
    if depth:
        return "a '{' of the literal is not closed"
    return f"expected a literal of {math.prod(dimensions)} elements" if not seen else "the literal does not fit"


def _wrong_count(dimensions: tuple[int, ...], counts: list[int], level: int, found: str, place: Span) -> ParseError:
    where = ",".join(str(c - 1) for c in counts[:level])
    inside = f" in [{where}]" if level else ""
    return ParseError(f"expected {dimensions[level]} elements{inside}, found {found}", place)
