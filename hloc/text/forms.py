"""The syntax of Verbatim attribute values, and further checks of XLA's parser.

In: a key, the text of its value, its place. Out: nothing, or a ParseError if XLA would not read the value. Example:

    check_form("sharding", "{devices=[2,1]}", span)     ParseError: sharding is written {replicated}, ...

The forms are FORM_ terminals in grammar/hlo.lark. A value that passes may still be wrong: see hloc/verify.
"""
from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from hloc.errors import ParseError, Span
from hloc.ir import Computation, Instruction
from hloc.text.grammar import pattern
from hloc.text.shapes import Shapes, parse_part

LONGEST = 1 << 16               # longer values, and those with many escapes, are not checked
MOST_ESCAPES = 500

_PART_NAME = re.compile(r"(\w+)=")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
# What may follow a backslash in a string, as in C; and how deep strings lie that are not those of JSON.
_ESCAPE = re.compile(r"""\\(?:[abfnrtv\\?'"]|[0-3][0-7]{2}|[0-7]{1,2}(?![0-7])|[xX]0*[0-9a-fA-F]{1,2}(?![0-9a-fA-F])"""
                     r"""|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})""")
_IOTA_ORDER = re.compile(r"<=\s*\[([\d,\s]+)\]\s*T\(([\d,\s]+)\)")
_AXIS_SIZE = re.compile(r"""["']([^"']+)["']\s*=\s*(\d+)""")
_AXIS_USE = re.compile(r"""["']([^"']+)["'](?:\s*:\s*\(\d+\)\s*(\d+))?""")
_STRING_DEPTHS = {"metadata": 1, "frontend_attributes": 1, "backend_config": 0, "custom_call_target": 0}


class Form(NamedTuple):
    """The terminal of the grammar, and an example for messages."""

    terminal: str
    example: str


FORMS: dict[str, Form] = {
    "sharding": Form("FORM_SHARDING", "{replicated}, {maximal device=0}, {devices=[2,1]<=[2]}, {manual} ..., or a list "
                                      "of these in braces"),
    "metadata": Form("FORM_METADATA", '{op_name="text" source_line=7 ...}'),
    "frontend_attributes": Form("FORM_FRONTEND_ATTRIBUTES", '{name="text",...}'),
    "backend_config": Form("FORM_BACKEND_CONFIG", 'a string, or {"name":value,...}'),
    "statistics": Form("FORM_STATISTICS", "{visualizing_index=0,name=1.5,...}"),
    "origin": Form("FORM_ORIGIN", '{{"name" {0}}}, or such arrays in parentheses'),
    "origin_recovery_table": Form("FORM_RECOVERY_TABLE", '{{"name" {0}} : {"name"}, "HloModule ..." ...}'),
    "parameter_replication": Form("FORM_BOOLEANS", "{true,false}"),
    "result_accuracy": Form("FORM_RESULT_ACCURACY", "{mode=highest} or {tolerance={atol=0.1,rtol=0.2,ulps=3}}"),
    "operand_precision": Form("FORM_PRECISIONS", "{default,high,highest}"),
    "replica_groups": Form("FORM_REPLICA_GROUPS", "{{0,1},{2,3}}, [2,2]<=[4] or mesh['x'=2,'y'=2] {'x'}"),
    "source_target_pairs": Form("FORM_PAIRS", "{{0,1},{1,2}}"),
    "custom_call_target": Form("FORM_STRING", '"text"'),
    "api_version": Form("FORM_API_VERSION", "API_VERSION_ORIGINAL, API_VERSION_STATUS_RETURNING, "
                                            "API_VERSION_STATUS_RETURNING_UNIFIED or API_VERSION_TYPED_FFI"),
    "schedule": Form("FORM_SCHEDULE", "SCHEDULE_NONE, SCHEDULE_LATEST or SCHEDULE_EARLIEST"),
    "padding_type": Form("FORM_PADDING_TYPE", "PADDING_INVALID, PADDING_VALID or PADDING_SAME"),
}


def check_form(key: str, text: str, span: Span) -> None:
    """Raises ParseError if the value of `key` does not have the key's form."""
    if key == "output_to_operand_aliasing":
        parse_part("aliases", text, span.start, span.source)
    form = FORMS.get(key)
    if form is None or len(text) > LONGEST or text.count("\\") > MOST_ESCAPES:
        return
    bare = _COMMENT.sub(" ", text) if "/*" in text else text
    if pattern(form.terminal).fullmatch(bare.strip()) is None:
        raise ParseError(f"{key} is written {form.example}", span)
    if "\\" in bare and key in _STRING_DEPTHS:
        _check_escapes(key, bare, span)
    if "<=" in bare and key in ("sharding", "replica_groups"):
        _check_order(key, bare, span)
    if key == "replica_groups" and bare.lstrip().startswith("mesh") and _devices_of_group(bare) < 2:
        raise ParseError("replica_groups: a mesh's groups have more than one device", span)
    if key == "metadata":
        names = _PART_NAME.findall(pattern("STRING").sub("", bare))
        if len(set(names)) != len(names):
            raise ParseError(f"metadata has {next(n for n in names if names.count(n) > 1)} twice", span)


def _devices_of_group(text: str) -> int:
    """The number of devices in a group of mesh['x'=2,'y'=4] {'x', 'y':(2)2}: 4."""
    mesh, _, named = text.partition("]")
    sizes = {name: int(size) for name, size in _AXIS_SIZE.findall(mesh)}
    used = _AXIS_USE.findall(named[named.rindex("{"):])
    return math.prod(int(part) if part else sizes.get(name, 2) for name, part in used)


def _check_order(key: str, text: str, span: Span) -> None:
    """Raises ParseError if the T(...) of an iota list names dimensions that the list before it does not have."""
    for sizes, order in _IOTA_ORDER.findall(text):
        if any(int(n) > sizes.count(",") for n in order.split(",")):
            raise ParseError(f"{key}: T({order}) names a dimension that [{sizes}] does not have", span)


def _check_escapes(key: str, text: str, span: Span) -> None:
    """Raises ParseError for \\q and the like, in the strings outside JSON."""
    depth, deepest = 0, _STRING_DEPTHS[key]
    for token in re.finditer(f"[{{}}]|{pattern('STRING').pattern}", text, re.DOTALL):
        found = token.group()
        depth += (found == "{") - (found == "}")
        if len(found) > 1 and depth <= deepest and "\\" in _ESCAPE.sub("", found):
            raise ParseError(f"a string of {key} has a backslash that begins no escape", span)


# -- values that must fit their instruction ----------------------------------------------------------------------------

def check_counts(instruction: Instruction, place: Callable[[Instruction], Span]) -> None:
    """Raises ParseError, at `place`, if a value does not fit the instruction's operands, shape or other values."""
    attributes = instruction.attributes
    problem = None
    if "parameter_replication" in attributes:
        problem = _replication_problem(instruction)
    if "use_global_device_ids" in attributes and attributes["use_global_device_ids"] and "channel_id" not in attributes:
        problem = "use_global_device_ids=true needs a channel_id"
    if "operand_layout_constraints" in attributes:
        problem = _constraint_problem(instruction)
    if instruction.opcode in _OPERAND_PROBLEMS:
        problem = problem or _OPERAND_PROBLEMS[instruction.opcode](instruction)
    elif instruction.opcode.endswith(("-start", "-update", "-done")):
        problem = problem or _async_problem(instruction)
    if problem:
        raise ParseError(problem, place(instruction))


def _replication_problem(instruction: Instruction) -> str | None:
    """One true or false for each array of the shape."""
    given = len(re.findall("true|false", instruction.get("parameter_replication")))
    wanted, pending = 0, [instruction.shape]
    while pending:
        top = pending.pop()
        wanted += not top.is_aggregate
        pending.extend(top.tuple_shapes)
    return f"parameter_replication has {given} parts, the shape has {wanted}" if given != wanted else None


def _constraint_problem(instruction: Instruction) -> str | None:
    """One shape for each operand, of its element type and dimensions."""
    span, operands = instruction.span, instruction.operands
    assert span is not None
    text = f"({instruction.get('operand_layout_constraints').strip()[1:-1]})"
    shapes = Shapes(span.source).from_tree(parse_part("shape", text, span.start, span.source)).tuple_shapes
    if len(shapes) != len(operands):
        return f"operand_layout_constraints has {len(shapes)} shapes, the call has {len(operands)} operands"
    for number, (shape, operand) in enumerate(zip(shapes, operands)):
        if not shape.compatible(operand.shape):
            return f"operand_layout_constraints gives operand {number} the shape {shape}, it has {operand.shape}"
    return None


# -- operands that XLA's parser counts ---------------------------------------------------------------------------------

def _one_dimension(instruction: Instruction) -> str | None:
    count = len(instruction.get("dimensions", ()))
    return None if count == 1 else f"{instruction.opcode} has one dimension, here are {count}"


def _start_problem(instruction: Instruction) -> str | None:
    """A start for each dimension or, in older modules, one vector."""
    first = 1 if instruction.opcode == "dynamic-slice" else 2
    starts, rank = instruction.operands[first:], instruction.operands[0].shape.rank
    if len(starts) == rank or (len(starts) == 1 and starts[0].shape.rank == 1):
        return None
    return f"{instruction.opcode} of {rank} dimensions has as many starts, here are {len(starts)}"


def _branch_problem(instruction: Instruction) -> str | None:
    """A pred chooses between true_computation and false_computation, an s32 one of branch_computations."""
    selector, key = instruction.operands[0].shape, "branch_computations"
    if selector.rank or selector.element_type not in ("pred", "s32"):
        return f"the first operand of conditional is pred[] or s32[], not {selector.to_string(False)}"
    wanted = (key,) if selector.element_type == "s32" else ("true_computation", "false_computation")
    missing = next((k for k in wanted if k not in instruction.attributes), None)
    if missing:
        return f"conditional on {selector.element_type} needs the attribute {missing}"
    branches = len(instruction.get(key)) if wanted == (key,) else 2
    if len(instruction.operands) != 1 + branches:
        return f"{branches} branches take one operand each, here are {len(instruction.operands) - 1}"
    return None


def _tuple_problem(instruction: Instruction) -> str | None:
    shape, count = instruction.shape, len(instruction.operands)
    if shape is None or not shape.is_aggregate or len(shape.tuple_shapes) == count:
        return None
    return f"the tuple is written with {len(shape.tuple_shapes)} parts, here are {count}"


def _outfeed_problem(instruction: Instruction) -> str | None:
    """outfeed_shape is a shape."""
    text, span = instruction.get("outfeed_shape"), instruction.span
    if text is not None:
        assert span is not None
        Shapes(span.source).from_tree(parse_part("shape", text, span.start, span.source))
    return None


def _channel_problem(instruction: Instruction) -> str | None:
    """A -done has the channel of its -start, if it has one."""
    started = instruction.operands[0]
    mine, theirs = instruction.get("channel_id"), started.get("channel_id")
    if started.opcode not in ("send", "recv") or mine is None or mine == theirs:
        return None
    return f"{instruction.opcode} has channel_id={mine}, its {started.opcode} {theirs}"


def _domain_problem(instruction: Instruction) -> str | None:
    kind = re.search(r"kind\s*=\s*[\"']([^\"']*)", str(instruction.get("domain")))
    return None if kind and kind[1] == "sharding" else 'domain is written {kind="sharding", entry={...}, exit={...}}'


# The collectives and copies that are ops of their own in XLA, not wrapped by async-start.
_OWN_STARTS = frozenset(["all-gather", "all-reduce", "collective-permute", "copy", "send", "recv"])


def _async_problem(instruction: Instruction) -> str | None:
    """The result of async-start is ((operands), result, state); -update and -done take the result of a -start."""
    base, _, ending = instruction.opcode.rpartition("-")
    if base in _OWN_STARTS:
        return None
    if ending == "start":
        parts = instruction.shape.tuple_shapes if instruction.shape is not None else ()
        fits = instruction.shape is None or len(parts) >= 2 and parts[0].is_tuple
        return None if fits else f"{instruction.opcode} gives ((operands), result, state)"
    started = instruction.operands[0]
    if not _goes_on(base, started):
        return f"{instruction.opcode} takes what {base}-start or {base}-update gives, not what {started.opcode} gives"
    if instruction.get("calls") is not None and instruction.get("calls") is not _wrapped(started):
        return f"{instruction.opcode} calls another computation than what it goes on with"
    if ending == "update" and instruction.shape is not None and not instruction.shape.compatible(started.shape):
        return f"{instruction.opcode} gives what it takes, {started.shape.to_string(False)}"
    return None


def _goes_on(base: str, started: Instruction) -> bool:
    """Whether base-update and base-done may continue a -start. The short forms of an op and the general ones may be
    mixed, as slice-start and async-done, if the op is the same."""
    first = _first(started)
    begun = first.opcode.removesuffix("-start")
    if begun == first.opcode or begun in _OWN_STARTS or not started.opcode.endswith(("-start", "-update")):
        return False
    if begun == "async" and first.get("calls") is not None:
        begun = first.get("calls").root.opcode
    return base in ("async", begun)


def _first(started: Instruction) -> Instruction:
    """The -start of a chain."""
    while started.opcode.endswith("-update") and started.operands:
        started = started.operands[0]
    return started


def _wrapped(started: Instruction) -> Computation | None:
    """The computation that the -start of a chain calls."""
    return _first(started).get("calls")


_OPERAND_PROBLEMS: dict[str, Callable[[Instruction], str | None]] = {
    "concatenate": _one_dimension, "sort": _one_dimension, "dynamic-slice": _start_problem,
    "dynamic-update-slice": _start_problem, "conditional": _branch_problem, "tuple": _tuple_problem,
    "outfeed": _outfeed_problem, "send-done": _channel_problem, "recv-done": _channel_problem,
    "domain": _domain_problem,
}
