"""Attributes with a special form: for each a function from HloInstructionProto and one to it.

    SPECIAL["padding"].read(context)                (PaddingDim(1, 2, 0),)
    SPECIAL["padding"].write(value, instruction)    {"padding_config": {"dimensions": [...]}}

Attributes that are one field are rows of the table in attributes.py.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hloc.errors import Span, UnsupportedError
from hloc.ir.attributes import (
    ConvolutionDimensionNumbers,
    PaddingDim,
    SliceDim,
    Verbatim,
    Window,
    WindowDim,
)
from hloc.ir.literal_printer import print_literal
from hloc.ir.module import Instruction
from hloc.ir.shapes import Shape
from hloc.phrases import Phrase, escaped, is_dictionary
from hloc.proto import devices, notes
from hloc.proto.literals import read_literal, write_literal
from hloc.proto.shapes import ShapeReader, write_shape
from hloc.proto.wire import Record
from hloc.text import parse_shape
from hloc.text.literals import literal

MOST_DIMENSIONS = 1000


class Context(NamedTuple):
    """The context for reading an attribute: its record and more."""

    opcode: str
    record: Record
    shape: Shape
    operands: list[Instruction]
    shapes: ShapeReader
    payloads: tuple[bytes, ...]


class Special(NamedTuple):
    """read(context) -> value or None; write(value, instruction) -> fields."""

    read: Callable[[Context], Any]
    write: Callable[[Any, Instruction], dict[str, Any]]


def _verbatim(text: str) -> Verbatim | None:
    return Verbatim(text) if text else None


def _note(field: str, read: Callable[[Record], str], write: Callable[..., dict[str, Any]]) -> Special:
    """An attribute that is a text in modules and a message in protos."""
    def reader(context: Context) -> Verbatim | None:
        return _verbatim(read(context.record[field])) if field in context.record else None

    def writer(value: str, instruction: Instruction) -> dict[str, Any]:
        return {field: write(value, instruction.span)}

    return Special(reader, writer)


def _read_metadata(record: Record) -> str:
    text = notes.read_metadata(record)
    return "" if text == "{}" else text


def _read_backend_config(context: Context) -> Verbatim | None:
    raw = context.record["backend_config"]
    payload = context.record["backend_config_payload"]
    if payload is not None:
        raw = payload["value"]
        if "id" in payload and 0 <= payload["id"] < len(context.payloads):
            raw = context.payloads[payload["id"]]
    if not raw:
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    return Verbatim(text if is_dictionary(text) else f'"{escaped(raw)}"')


def _write_backend_config(value: str, instruction: Instruction) -> dict[str, Any]:
    phrase = Phrase(value, instruction.span) if value[:1] in "\"'" else None
    return {"backend_config": phrase.string() if phrase else value.encode("utf-8")}


def _read_window(context: Context) -> Window | None:
    if not context.record.part("window")["dimensions"]:
        return None
    return Window(tuple(
        WindowDim(d["size"], d["stride"], d["padding_low"], d["padding_high"], d["base_dilation"],
                  d["window_dilation"], d["window_reversal"]) for d in context.record["window"]["dimensions"]))


def _write_window(value: Window, instruction: Instruction) -> dict[str, Any]:
    return {"window": {"dimensions": [
        {"size": d.size, "stride": d.stride, "padding_low": d.padding_low, "padding_high": d.padding_high,
         "base_dilation": d.base_dilation, "window_dilation": d.window_dilation, "window_reversal": d.reversal}
        for d in value.dimensions]}}


_CONVOLUTION = ("input_batch_dimension", "input_feature_dimension", "input_spatial_dimensions",
                "kernel_input_feature_dimension", "kernel_output_feature_dimension", "kernel_spatial_dimensions",
                "output_batch_dimension", "output_feature_dimension", "output_spatial_dimensions")


def _read_dim_labels(context: Context) -> ConvolutionDimensionNumbers | None:
    record = context.record["convolution_dimension_numbers"]
    if record is None:
        return None
    numbers = ConvolutionDimensionNumbers(*(record[name] for name in _CONVOLUTION))
    sides = ((numbers.input_batch, numbers.input_feature, *numbers.input_spatial),
             (numbers.kernel_input_feature, numbers.kernel_output_feature, *numbers.kernel_spatial),
             (numbers.output_batch, numbers.output_feature, *numbers.output_spatial))
    ranks = [o.shape.rank for o in context.operands[:2]] + [context.shape.rank]
    if context.opcode != "convolution" or len(ranks) != 3:
        ranks = [MOST_DIMENSIONS] * 3
    for side, rank in zip(sides, ranks):
        if any(not 0 <= d < rank for d in side) or len(set(side[2:])) != len(sides[0]) - 2:
            raise context.shapes.error("the dimension numbers of a convolution do not fit its shapes", record)
    return numbers


def _write_dim_labels(value: ConvolutionDimensionNumbers, instruction: Instruction) -> dict[str, Any]:
    return {"convolution_dimension_numbers": dict(zip(_CONVOLUTION, value))}


def _read_padding(context: Context) -> tuple[PaddingDim, ...]:
    return tuple(PaddingDim(d["edge_padding_low"], d["edge_padding_high"], d["interior_padding"])
                 for d in context.record.part("padding_config")["dimensions"])


def _write_padding(value: tuple[PaddingDim, ...], instruction: Instruction) -> dict[str, Any]:
    return {"padding_config": {"dimensions": [
        {"edge_padding_low": d.low, "edge_padding_high": d.high, "interior_padding": d.interior} for d in value]}}


def _read_slice(context: Context) -> tuple[SliceDim, ...]:
    return tuple(SliceDim(d["start"], d["limit"], d["stride"]) for d in context.record["slice_dimensions"])


def _write_slice(value: tuple[SliceDim, ...], instruction: Instruction) -> dict[str, Any]:
    return {"slice_dimensions": [{"start": d.start, "limit": d.limit, "stride": d.stride} for d in value]}


def _read_iota_dimension(context: Context) -> int:
    if len(context.record["dimensions"]) != 1:
        raise context.shapes.error("an iota has one dimension", context.record)
    return context.record["dimensions"][0]


def _read_inferred_dimension(context: Context) -> int | None:
    return context.record["dimensions"][0] if context.record["dimensions"] else None


def _read_sparsity(context: Context) -> None:
    if any(context.record.part("sparsity_config")[side] for side in ("lhs", "rhs")):
        span = Span(context.shapes.source, context.record.offset, context.record.offset + 1)
        raise UnsupportedError(f"sparse operands of {context.opcode}", span)


def _write_sparsity(value: str, instruction: Instruction) -> dict[str, Any]:
    raise UnsupportedError(f"sparse operands of {instruction.opcode}", instruction.span)


def _index_vector_field(opcode: str) -> str:
    return "scatter_dimension_numbers" if opcode.startswith("scatter") else "gather_dimension_numbers"


def _read_index_vector_dim(context: Context) -> int:
    return context.record.part(_index_vector_field(context.opcode))["index_vector_dim"]


def _write_index_vector_dim(value: int, instruction: Instruction) -> dict[str, Any]:
    return {_index_vector_field(instruction.opcode): {"index_vector_dim": value}}


def _options_field(opcode: str) -> str:
    return "cholesky_options" if opcode.startswith("cholesky") else "triangular_solve_options"


def _read_lower(context: Context) -> bool | None:
    return context.record.part(_options_field(context.opcode))["lower"] or None


def _write_lower(value: bool, instruction: Instruction) -> dict[str, Any]:
    return {_options_field(instruction.opcode): {"lower": value}}


def default_comparison(shape: Shape) -> str:
    if shape.kind in ("float", "complex"):
        return "FLOAT"
    return "SIGNED" if shape.kind == "signed" else "UNSIGNED"


ORDERS = {"": "", "TOTALORDER": "TOTALORDER", "TOTAL": "TOTALORDER", "PARTIALORDER": "FLOAT", "PARTIAL": "FLOAT"}


def _read_type(context: Context) -> str | None:
    """The order, from comparison_type; newer protos have comparison_order in addition or instead."""
    kind, order = context.record["comparison_type"], context.record["comparison_order"]
    if order not in ORDERS:
        span = Span(context.shapes.source, context.record.offset, context.record.offset + 1)
        raise UnsupportedError(f"comparison_order {order!r}", span)
    if context.operands and context.operands[0].shape.kind == "float":
        kind = ORDERS[order] or kind
    return None if not context.operands or kind in ("", default_comparison(context.operands[0].shape)) else kind


def _read_precision(context: Context) -> Verbatim | None:
    words = [w.lower() for w in context.record.part("precision_config")["operand_precision"]]
    return Verbatim("{" + ",".join(words) + "}") if any(w != "default" for w in words) else None


def _write_precision(value: str, instruction: Instruction) -> dict[str, Any]:
    words = [w.upper() for w in value.strip()[1:-1].replace(",", " ").split()]
    return {"precision_config": {"operand_precision": words}}


def _read_algorithm(context: Context) -> str | None:
    if context.opcode.startswith("rng-bit-generator"):
        return context.record["rng_algorithm"].lower()
    algorithm = context.record.part("precision_config")["algorithm"]
    return None if algorithm == "ALG_UNSET" else algorithm.removeprefix("ALG_").lower()


def _write_algorithm(value: str, instruction: Instruction) -> dict[str, Any]:
    if instruction.opcode.startswith("rng-bit-generator"):
        return {"rng_algorithm": value.upper()}
    return {"precision_config": {"algorithm": "ALG_" + value.upper()}}


def _read_api_version(context: Context) -> Verbatim | None:
    version = context.record["custom_call_api_version"]
    return None if version in ("API_VERSION_UNSPECIFIED", "API_VERSION_ORIGINAL") else Verbatim(version)


def _read_is_associative(context: Context) -> bool | None:
    state = context.record["is_associative"]
    return None if state == "TRI_STATE_UNSPECIFIED" else state == "TRI_STATE_TRUE"


def _write_is_associative(value: bool, instruction: Instruction) -> dict[str, Any]:
    return {"is_associative": "TRI_STATE_TRUE" if value else "TRI_STATE_FALSE"}


def _read_pairs(context: Context) -> Verbatim:
    pairs = (f"{{{p['source']},{p['target']}}}" for p in context.record["source_target_pairs"])
    return Verbatim("{" + ",".join(pairs) + "}")


def _write_pairs(value: str, instruction: Instruction) -> dict[str, Any]:
    pairs = Phrase(value, instruction.span).lists()
    return {"source_target_pairs": [{"source": p[0], "target": p[1]} for p in pairs if len(p) == 2]}


def _read_groups(context: Context) -> Verbatim:
    return Verbatim(devices.read_groups(context.record))


def _read_literal(context: Context) -> Verbatim | None:
    record = context.record["literal"]
    if record is None:
        return None
    shape = context.shapes.read(record.part("shape"))
    return Verbatim(f"{shape.to_string(False)} {print_literal(shape, read_literal(record, context.shapes))}")


def _write_literal(value: str, instruction: Instruction) -> dict[str, Any]:
    shape_text, _, text = value.partition(" ")
    shape = parse_shape(shape_text)
    assert instruction.span is not None
    return {"literal": write_literal(shape, literal(shape, text, instruction.span))}


def _read_constraints(context: Context) -> Verbatim | None:
    if not context.record["constrain_layout"]:
        return None
    shapes = (str(context.shapes.read(s)) for s in context.record["operand_shapes_with_layout"])
    return Verbatim("{" + ", ".join(shapes) + "}")


def _write_constraints(value: str, instruction: Instruction) -> dict[str, Any]:
    shapes = parse_shape(f"({value.strip()[1:-1]})").tuple_shapes
    return {"constrain_layout": True, "operand_shapes_with_layout": [write_shape(s) for s in shapes]}


def _read_aliasing(context: Context) -> Verbatim | None:
    pairs = (f"{_index(p['output_shape_index'])}: ({p['operand_index']}, {_index(p['operand_shape_index'])})"
             for p in context.record["output_operand_aliasing"])
    text = ", ".join(pairs)
    return Verbatim("{" + text + "}") if text else None


def _index(numbers: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def _write_aliasing(value: str, instruction: Instruction) -> dict[str, Any]:
    phrase = Phrase(value, instruction.span)
    pairs = []
    phrase.expect("{")
    while not phrase.accept("}"):
        pair: dict[str, Any] = {"output_shape_index": phrase.integers("{", "}")}
        phrase.expect(":")
        phrase.expect("(")
        pair["operand_index"] = phrase.integer()
        phrase.expect(",")
        pair["operand_shape_index"] = phrase.integers("{", "}")
        phrase.expect(")")
        pairs.append(pair)
        phrase.accept(",")
    return {"output_operand_aliasing": pairs}


def _read_outfeed_shape(context: Context) -> Verbatim | None:
    record = context.record["outfeed_shape"]
    return None if record is None else Verbatim(str(context.shapes.read(record)))


def _write_outfeed_shape(value: str, instruction: Instruction) -> dict[str, Any]:
    return {"outfeed_shape": write_shape(parse_shape(value))}


# An entry of the text is the users' side; an entry of the message is the operand's side.
_SIDES = {"entry": "domain_exit_sharding", "exit": "domain_entry_sharding"}


def _read_domain(context: Context) -> Verbatim:
    entry, exit_ = (_domain_side(context.record[_SIDES[side]]) for side in ("entry", "exit"))
    return Verbatim(f'{{kind="sharding", entry={entry}, exit={exit_}}}')


def _domain_side(record: Record | None) -> str:
    return "{}" if record is None else devices.read_sharding(record)


def _write_domain(value: str, instruction: Instruction) -> dict[str, Any]:
    phrase = Phrase(value, instruction.span)
    record: dict[str, Any] = {}
    phrase.expect("{")
    while not phrase.accept("}"):
        key = phrase.word()
        phrase.expect("=")
        if key == "kind":
            phrase.string()
        elif key not in _SIDES:
            raise phrase.error("kind, entry or exit")
        else:
            record[_SIDES[key]] = devices.write_sharding(phrase.balanced(), instruction.span)
        phrase.accept(",")
    return record


def _read_result_accuracy(record: Record) -> str:
    if "tolerance" in record:
        t = record["tolerance"]
        return f"{{tolerance={{atol={t['atol']:g},rtol={t['rtol']:g},ulps={t['ulps']}}}}}"
    return f"{{mode={record['mode'].lower()}}}" if record["mode"] != "DEFAULT" else ""


def _write_result_accuracy(value: str, span: Span | None) -> dict[str, Any]:
    phrase = Phrase(value, span)
    phrase.expect("{")
    if phrase.accept("mode"):
        phrase.expect("=")
        return {"mode": phrase.word().upper()}
    phrase.expect("tolerance")
    phrase.expect("=")
    phrase.expect("{")
    tolerance: dict[str, Any] = {}
    while not phrase.accept("}"):
        key = phrase.word()
        phrase.expect("=")
        tolerance[key] = phrase.integer() if key == "ulps" else notes.number(phrase)
        phrase.accept(",")
    return {"tolerance": tolerance}


def _read_replication(record: Record) -> str:
    return "{" + ",".join("true" if b else "false" for b in record["replicated_at_leaf_buffers"]) + "}"


def _write_replication(value: str, span: Span | None) -> dict[str, Any]:
    words = value.strip()[1:-1].replace(",", " ").split()
    return {"replicated_at_leaf_buffers": [w == "true" for w in words]}


def _read_origin(context: Context) -> Verbatim | None:
    record = context.record["original_value"]
    return None if record is None else Verbatim(notes.read_origin(record, context.shape))


def _field(name: str) -> Callable[[Any, Instruction], dict[str, Any]]:
    """A writer that stores the value unchanged."""
    return lambda value, instruction: {name: value}


SPECIAL: dict[str, Special] = {
    "metadata": _note("metadata", _read_metadata, notes.write_metadata),
    "frontend_attributes": _note("frontend_attributes", notes.read_frontend_attributes,
                                 notes.write_frontend_attributes),
    "sharding": _note("sharding", devices.read_sharding, devices.write_sharding),
    "statistics": _note("statistics_viz", notes.read_statistics, notes.write_statistics),
    "result_accuracy": _note("result_accuracy", _read_result_accuracy, _write_result_accuracy),
    "parameter_replication": _note("parameter_replication", _read_replication, _write_replication),
    "origin": Special(_read_origin, lambda v, i: {"original_value": notes.write_origin(v, i.span)}),
    "backend_config": Special(_read_backend_config, _write_backend_config),
    "window": Special(_read_window, _write_window),
    "dim_labels": Special(_read_dim_labels, _write_dim_labels),
    "padding": Special(_read_padding, _write_padding),
    "slice": Special(_read_slice, _write_slice),
    "iota_dimension": Special(_read_iota_dimension, lambda v, i: {"dimensions": (v,)}),
    "inferred_dimension": Special(_read_inferred_dimension, lambda v, i: {"dimensions": (v,)}),
    "sparsity_config": Special(_read_sparsity, _write_sparsity),
    "index_vector_dim": Special(_read_index_vector_dim, _write_index_vector_dim),
    "lower": Special(_read_lower, _write_lower),
    "type": Special(_read_type, _field("comparison_type")),
    "operand_precision": Special(_read_precision, _write_precision),
    "algorithm": Special(_read_algorithm, _write_algorithm),
    "api_version": Special(_read_api_version, lambda v, i: {"custom_call_api_version": str(v)}),
    "is_associative": Special(_read_is_associative, _write_is_associative),
    "source_target_pairs": Special(_read_pairs, _write_pairs),
    "replica_groups": Special(_read_groups, lambda v, i: devices.write_groups(v, i.span)),
    "literal": Special(_read_literal, _write_literal),
    "operand_layout_constraints": Special(_read_constraints, _write_constraints),
    "output_to_operand_aliasing": Special(_read_aliasing, _write_aliasing),
    "outfeed_shape": Special(_read_outfeed_shape, _write_outfeed_shape),
    "domain": Special(_read_domain, _write_domain),
}
