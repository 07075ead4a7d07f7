"""Attributes of instructions: the field of HloInstructionProto for each, and its form in records and in modules.

In: an instruction's record. Out: attribute values as hloc.text parses them, and back. Example:

    read_attributes(record, "iota", ...)        {"iota_dimension": 1}, from {"dimensions": (1,)}
    write_attributes(instruction, ...)          {"dimensions": (1,)}

Most attributes are a row of PLAIN: the path of the value and its kind. The others have a pair of functions in
attribute_forms.py. Called computations are handled in reader.py and writer.py.
"""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hloc.errors import Span, UnsupportedError
from hloc.ir.attributes import Verbatim
from hloc.ir.module import Instruction
from hloc.phrases import Phrase, escaped
from hloc.proto.attribute_forms import SPECIAL, Context, default_comparison
from hloc.proto.notes import text_of
from hloc.proto.shapes import write_shape
from hloc.text.opcodes import signature


class Plain(NamedTuple):
    """path: field, or message.field; kind: see _read_plain and _write_plain; prefix: of an enum's names."""

    path: str
    kind: str
    prefix: str = ""


PLAIN: dict[str, Plain] = {
    "dimensions": Plain("dimensions", "integers"),
    "dynamic_slice_sizes": Plain("dynamic_slice_sizes", "integers"),
    "slice_sizes": Plain("gather_slice_sizes", "integers"),
    "fft_length": Plain("fft_length", "integers"),
    **{key: Plain("dot_dimension_numbers." + key.replace("_dims", "_dimensions"), "integers")
       for key in ("lhs_contracting_dims", "rhs_contracting_dims", "lhs_batch_dims", "rhs_batch_dims")},
    "lhs_ragged_dims": Plain("ragged_dot_dimension_numbers.lhs_ragged_dimensions", "integers"),
    "rhs_group_dims": Plain("ragged_dot_dimension_numbers.rhs_group_dimensions", "integers"),
    **{key: Plain(f"gather_dimension_numbers.{key}", "integers")
       for key in ("offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims",
                   "start_indices_batching_dims")},
    **{key: Plain(f"scatter_dimension_numbers.{key}", "integers")
       for key in ("update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims",
                   "input_batching_dims", "scatter_indices_batching_dims")},
    "index": Plain("tuple_index", "integer"),
    "feature_group_count": Plain("feature_group_count", "count"),
    "batch_group_count": Plain("batch_group_count", "count"),
    **{key: Plain(key, "integer") for key in ("k", "exponent_bits", "mantissa_bits", "feature_index", "channel_id",
                                              "delta", "num_carries")},
    "cross_program_prefetch_index": Plain("cross_program_prefetch_index", "present"),
    "epsilon": Plain("epsilon", "number"),
    **{key: Plain(key, "boolean") for key in (
        "is_stable", "largest", "indices_are_sorted", "unique_indices", "constrain_layout", "use_global_device_ids",
        "is_host_transfer", "custom_call_has_side_effect", "is_composite", "is_reverse")},
    "left_side": Plain("triangular_solve_options.left_side", "boolean"),
    "unit_diagonal": Plain("triangular_solve_options.unit_diagonal", "boolean"),
    "transpose_a": Plain("triangular_solve_options.transpose_a", "enum"),
    "direction": Plain("comparison_direction", "word"),
    "kind": Plain("fusion_kind", "word"),
    "fft_type": Plain("fft_type", "enum"),
    "distribution": Plain("distribution", "lower enum"),
    "schedule": Plain("custom_call_schedule", "verbatim enum"),
    "padding_type": Plain("padding_type", "verbatim enum"),
    "convolution_kind": Plain("conv_kind", "lower verbatim enum", "CONVOLUTION_KIND_"),
    "custom_call_target": Plain("custom_call_target", "string"),
    "async_execution_thread": Plain("async_execution_thread", "string"),
    "infeed_config": Plain("infeed_config", "string"),
    "outfeed_config": Plain("outfeed_config", "string"),
}
_CONTRACTING = ("lhs_contracting_dims", "rhs_contracting_dims")
# Printed also with their default value, as by XLA's printer.
_ALWAYS = frozenset([("broadcast", "dimensions"), ("map", "dimensions"), ("topk", "largest"),
                     *((dot, side) for dot in ("dot", "ragged-dot", "scaled-dot") for side in _CONTRACTING)])


def read_attributes(context: Context) -> dict[str, Any]:
    """All attributes that are present except computations, by the keys that the opcode takes."""
    known = signature(context.opcode)
    assert known is not None                      # the reader has checked the opcode
    found: dict[str, Any] = {}
    for key in (*known.required, *sorted(known.allowed.difference(known.required))):
        value = read_attribute(key, context, key in known.required)
        if value is not None:
            found[key] = value
    return found


def read_attribute(key: str, context: Context, required: bool) -> Any:
    if key in SPECIAL:
        return SPECIAL[key].read(context)
    plain = PLAIN.get(key)
    if plain is None:
        return None
    message, _, field = plain.path.rpartition(".")
    record = context.record
    if message == "dot_dimension_numbers" and context.opcode.startswith("ragged-dot"):
        record = record.part("ragged_dot_dimension_numbers")
    record = record.part(message) if message else record
    value = record[field]
    if plain.kind == "present":
        return value if field in record else None
    is_default = value == record.message.by_name[field].default or plain.kind == "count" and value == 1
    if is_default and not required and (context.opcode, key) not in _ALWAYS:
        return None
    return _read_plain(plain, value)


def _read_plain(plain: Plain, value: Any) -> Any:
    if plain.kind == "string":
        return Verbatim(f'"{escaped(value)}"')
    if plain.kind == "number":
        return float(str(np.float32(value)))              # as few digits as the f32 needs
    if "enum" in plain.kind:
        text = value.removeprefix(plain.prefix)
        text = text.lower() if "lower" in plain.kind else text
        return Verbatim(text) if "verbatim" in plain.kind else text
    return value


def write_attributes(instruction: Instruction, known_elsewhere: frozenset[str]) -> dict[str, Any]:
    """The fields of attributes that are not in `known_elsewhere`. Raises UnsupportedError for one without a field."""
    record: dict[str, Any] = {}
    for key, value in instruction.attributes.items():
        if key in known_elsewhere:
            continue
        if key in SPECIAL:
            _merge(record, SPECIAL[key].write(value, instruction))
        elif key in PLAIN and not (key == "slice_sizes" and isinstance(value, Verbatim)):
            _merge(record, _write_plain(PLAIN[key], value, instruction.span))
        else:
            raise UnsupportedError(f"a proto has no field for the attribute {key} of {instruction.opcode}",
                                   instruction.span)
    _fill_in(record, instruction)
    return record


def _merge(record: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds fields; messages that are in both are merged."""
    for name, value in more.items():
        if isinstance(value, dict) and name in record:
            _merge(record[name], value)
        else:
            record[name] = value


def _write_plain(plain: Plain, value: Any, span: Span | None) -> dict[str, Any]:
    if plain.kind == "string":
        value = Phrase(value, span).string()
        value = value if plain.path.endswith("_config") else text_of(value)
    elif "enum" in plain.kind:
        value = plain.prefix + (value.upper() if "lower" in plain.kind else value)
    message, _, field = plain.path.rpartition(".")
    return {message: {field: value}} if message else {field: value}


def _fill_in(record: dict[str, Any], instruction: Instruction) -> None:
    """Add fields that XLA's reader requires although the text omits them."""
    opcode = instruction.opcode
    if opcode in ("convolution", "custom-call"):
        record.setdefault("feature_group_count", 1)
        record.setdefault("batch_group_count", 1)
    if opcode in ("dot", "convolution", "ragged-dot", "scaled-dot"):
        record.setdefault("precision_config", {}).setdefault("operand_precision", ("DEFAULT", "DEFAULT"))
    if opcode == "custom-call":
        record.setdefault("precision_config", {}).setdefault("operand_precision",
                                                             ("DEFAULT",) * len(instruction.operands))
        record.setdefault("custom_call_api_version", "API_VERSION_ORIGINAL")
    if opcode in ("dot", "scaled-dot"):
        record.setdefault("dot_dimension_numbers", {})
    if opcode == "ragged-dot":
        record["ragged_dot_dimension_numbers"] = {"dot_dimension_numbers": record.pop("dot_dimension_numbers", {}),
                                                  **record.get("ragged_dot_dimension_numbers", {})}
    if opcode in ("convolution", "reduce-window", "select-and-scatter"):
        record.setdefault("window", {})
    if opcode == "cholesky":
        record.setdefault("cholesky_options", {})
    if opcode == "outfeed":
        record.setdefault("outfeed_shape", write_shape(instruction.operands[0].shape))
    if opcode == "compare":
        record.setdefault("comparison_type", default_comparison(instruction.operands[0].shape))
