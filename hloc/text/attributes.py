"""Attribute values: from text to the types of hloc/ir/attributes.py.

In: a key, the text of its value, its place. Out: a value; keys without an entry in KINDS stay Verbatim. Example:

    Attributes(source).value("window", "{size=3x3 pad=1_1x1_1}", offset)     Window((WindowDim(3, ...), ...))

Equal texts share one value. The parser, which knows the names, looks up computations.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lark import Token, Tree

from hloc.errors import ParseError, Source, Span
from hloc.ir.attributes import (
    ConvolutionDimensionNumbers,
    PaddingDim,
    SliceDim,
    Verbatim,
    Window,
    WindowDim,
)
from hloc.text.forms import check_form
from hloc.text.shapes import integer, parse_part
from hloc.text.tree_positions import tokens_of

# The kind of each key's value. Other keys stay Verbatim.
KINDS: dict[str, str] = {
    **dict.fromkeys([
        "dimensions", "lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims",
        "lhs_ragged_dims", "rhs_group_dims", "fft_length", "offset_dims", "collapsed_slice_dims", "start_index_map",
        "operand_batching_dims", "start_indices_batching_dims", "update_window_dims", "inserted_window_dims",
        "scatter_dims_to_operand_dims", "input_batching_dims", "scatter_indices_batching_dims",
        "dynamic_slice_sizes", "slice_sizes",
    ], "integers"),
    **dict.fromkeys([
        "index", "feature_group_count", "batch_group_count", "k", "iota_dimension", "exponent_bits", "mantissa_bits",
        "index_vector_dim", "feature_index", "channel_id", "inferred_dimension", "cross_program_prefetch_index",
        "delta", "num_carries",
    ], "integer"),
    **dict.fromkeys([
        "is_stable", "largest", "lower", "left_side", "unit_diagonal", "indices_are_sorted", "unique_indices",
        "constrain_layout", "use_global_device_ids", "is_host_transfer", "custom_call_has_side_effect",
        "is_composite", "is_reverse", "is_associative",
    ], "boolean"),
    **dict.fromkeys(["direction", "type", "kind", "fft_type", "distribution", "algorithm", "transpose_a"], "word"),
    "epsilon": "number",
    "window": "window",
    "dim_labels": "dim_labels",
    "padding": "padding",
    "slice": "slice",
}
COMPUTATION = frozenset(["to_apply", "condition", "body", "calls", "select", "scatter", "true_computation",
                         "false_computation"])
COMPUTATIONS = frozenset(["branch_computations", "called_computations"])
# Words that a key takes; others are errors.
WORDS: dict[str, tuple[str, ...]] = {
    "direction": ("EQ", "NE", "GE", "GT", "LE", "LT"),
    "type": ("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"),
    "kind": ("kLoop", "kInput", "kOutput", "kCustom"),
    "fft_type": ("FFT", "IFFT", "RFFT", "IRFFT"),
    "distribution": ("rng_uniform", "rng_normal"),
    "transpose_a": ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT", "TRANSPOSE_INVALID"),
    "algorithm": ("rng_default", "rng_three_fry", "rng_philox", "unset", "dot_any_f8_any_f8_f32",
                  "dot_any_f8_any_f8_f32_fast_accum", "dot_f16_f16_f16", "dot_f16_f16_f32", "dot_bf16_bf16_bf16",
                  "dot_bf16_bf16_f32", "dot_bf16_bf16_f32_x3", "dot_bf16_bf16_f32_x6", "dot_bf16_bf16_f32_x9",
                  "dot_tf32_tf32_f32", "dot_tf32_tf32_f32_x3", "dot_f32_f32_f32", "dot_f64_f64_f64"),
}
_WINDOW_KEYS = {"size=": 0, "stride=": 1, "pad=": 2, "lhs_dilate=": 4, "rhs_dilate=": 5, "rhs_reversal=": 6}


class Attributes:
    """Parses the attribute values of one source; remembers those it has seen."""

    def __init__(self, source: Source):
        self.source = source
        self.seen: dict[tuple[str, str], object] = {}

    def value(self, key: str, text: str, offset: int) -> object:
        """The value of `key`; raises ParseError if the text does not have the key's form."""
        kind = KINDS.get(key)
        if kind is None or (key == "slice_sizes" and "{" in text[1:]):     # collective-permute's list of lists
            if (key, text) not in self.seen:
                check_form(key, text, Span(self.source, offset, offset + len(text)))
                self.seen[key, text] = Verbatim(text)
            return self.seen[key, text]
        value = self.seen.get((key, text))
        if value is None:
            value = self._parse(key, kind, text, offset)
            self.seen[key, text] = value
        return value

    def _parse(self, key: str, kind: str, text: str, offset: int) -> object:
        span = Span(self.source, offset, offset + len(text))
        tree = parse_part(kind, text, offset, self.source)
        value = _READERS[kind](tree.children, span)
        if kind == "word" and value not in WORDS.get(key, (value,)):
            raise ParseError(f"{key} is one of {', '.join(WORDS[key])}, not {value}", span)
        return value


def _integers(tokens: list[Token], span: Span) -> tuple[int, ...]:
    return tuple(integer(t, span) for t in tokens)


def _integer(tokens: list[Token], span: Span) -> int:
    return integer(tokens[0], span)


def _boolean(tokens: list[Token], span: Span) -> bool:
    return tokens[0] == "true"


def _number(tokens: list[Token], span: Span) -> float:
    return float(tokens[0])


def _word(tokens: list[Token], span: Span) -> str:
    return str(tokens[0])


def _slice(ranges: list[Tree], span: Span) -> tuple[SliceDim, ...]:
    return tuple(SliceDim(*(integer(t, span) for t in tokens_of(r))) for r in ranges)


def _padding(tokens: list[Token], span: Span) -> tuple[PaddingDim, ...]:
    dimensions = tuple(PaddingDim(*(integer(n, span) for n in part.split("_"))) for part in tokens[0].split("x"))
    if any(d.interior < 0 for d in dimensions):
        raise ParseError("the padding between elements is not negative", span)
    return dimensions


def _window(tokens: list[Token], span: Span) -> Window:
    """size, stride ... each with one number (or pair) per dimension; all but size may be missing."""
    fields: dict[str, list] = {}
    for key, text in zip(tokens[::2], tokens[1::2]):
        if key not in _WINDOW_KEYS or key in fields:
            raise ParseError(f"a window has size, stride, pad, lhs_dilate, rhs_dilate, rhs_reversal, each once: {key}",
                             span)
        fields[key] = _window_numbers(key, text, span)
    rank = len(fields.get("size=", ()))
    for field, numbers in fields.items():
        if len(numbers) != rank:
            raise ParseError(f"the window has {rank} sizes, but {len(numbers)} in {field}", span)
    return Window(tuple(_window_dimension(fields, i) for i in range(rank)))


def _window_numbers(key: str, text: Token, span: Span) -> list:
    if (key == "pad=") != (text.type == "PADDING"):
        raise ParseError(f"{key} must hold {'pairs such as 0_0x1_1' if key == 'pad=' else 'numbers such as 3x3'}", span)
    if key != "pad=":
        return [integer(n, span) for n in text.split("x")]
    pairs = [[integer(n, span) for n in part.split("_")] for part in text.split("x")]
    if any(len(p) != 2 for p in pairs):
        raise ParseError("pad= must hold pairs: low_high", span)
    return pairs


def _window_dimension(fields: dict[str, list], i: int) -> WindowDim:
    def get(key: str, default: int) -> int:
        return fields[key][i] if key in fields else default

    low, high = fields["pad="][i] if "pad=" in fields else (0, 0)
    return WindowDim(get("size=", 1), get("stride=", 1), low, high, get("lhs_dilate=", 1), get("rhs_dilate=", 1),
                     get("rhs_reversal=", 0) == 1)


def _dim_labels(tokens: list[Token], span: Span) -> ConvolutionDimensionNumbers:
    """b01f_01io->b01f: the place of each letter; a '?' is a dimension without a role."""
    left, output = tokens[0].split("->")
    lhs, rhs = left.split("_")
    batch, feature, spatial = _label_places(lhs, "bf", span)
    kernel_in, kernel_out, kernel_spatial = _label_places(rhs, "io", span)
    out_batch, out_feature, out_spatial = _label_places(output, "bf", span)
    if not len(spatial) == len(kernel_spatial) == len(out_spatial):
        raise ParseError("input, kernel and output have the same number of spatial dimensions, but here are "
                         f"{len(spatial)}, {len(kernel_spatial)}, {len(out_spatial)}", span)
    return ConvolutionDimensionNumbers(batch, feature, spatial, kernel_in, kernel_out, kernel_spatial,
                                       out_batch, out_feature, out_spatial)


def _label_places(labels: str, letters: str, span: Span) -> tuple[int, int, tuple[int, ...]]:
    used = [c for c in labels if c != "?"]
    digits = sorted(c for c in used if c.isdigit())
    if len(set(used)) != len(used) or digits != [str(i) for i in range(len(digits))]:
        raise ParseError(f"dimension labels are {letters[0]}, {letters[1]}, 0, 1 ..., each once: {labels}", span)
    first, second = (max(labels.find(letter), 0) for letter in letters)
    return first, second, tuple(labels.index(d) for d in digits)


_READERS: dict[str, Callable[[list[Any], Span], Any]] = {
    "integers": _integers, "integer": _integer, "boolean": _boolean, "number": _number, "word": _word,
    "window": _window, "dim_labels": _dim_labels, "padding": _padding, "slice": _slice}
