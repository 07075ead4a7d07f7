"""HloModuleProto to Module: computations in their order, operands by id, the schedule, the header.

In: a record (wire.decode, text_format.parse_text). Out: the Module that hloc's parser gives for the text by XLA's
printer. Errors give the offset of the byte (or character) of the wrong part. Example:

    read_module(record, source)          <module f: 1 computation>

Asynchronous ops are read in their short form (slice-start instead of async-start, calls=...) if XLA prints it: if the
computation that they call is a single op.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from hloc.errors import ParseError, Source, Span, UnsupportedError
from hloc.ir.attributes import Verbatim
from hloc.ir.module import Computation, Instruction, Module
from hloc.ops.table import OPS
from hloc.proto.attribute_forms import Context
from hloc.proto.attributes import read_attributes
from hloc.proto.header import read_header, read_tables
from hloc.proto.literals import read_literal
from hloc.proto.shapes import ShapeReader
from hloc.proto.wire import ByteSource, Record
from hloc.text.attributes import WORDS
from hloc.text.instructions import check_signature, unknown_opcode
from hloc.text.long_words import LONGEST_WORD
from hloc.text.opcodes import COMMON, signature

Warn = Callable[[str, Span], None]
TO_APPLY = frozenset(["call", "map", "reduce", "reduce-window", "all-reduce", "all-reduce-start", "reduce-scatter",
                      "scatter", "sort", "scan"])
ASYNC = frozenset(["async-start", "async-update", "async-done"])
SHOWN = 80                      # characters of names in messages
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-]")


def read_module(record: Record, source: Source) -> Module:
    """The module of an HloModuleProto. Raises ParseError or UnsupportedError with the location in the source."""
    return _ModuleReader(source, record).read()


class _ModuleReader:
    """Reads one module."""

    def __init__(self, source: Source, record: Record):
        self.source, self.record = source, record
        self.shapes = ShapeReader(source)
        self.by_id: dict[int, Computation] = {}
        self.records: dict[Computation, dict[Instruction, Record]] = {}
        self.names: dict[str, int] = {}
        self.expanded: set[Computation] = set()        # computations represented by a short form
        self.called: set[Computation] = set()

    def error(self, message: str, record: Record) -> ParseError:
        return ParseError(message, self.span(record))

    def name(self, record: Record, default: str) -> str:
        """Its name, or `default` with none. Raises ParseError for one that the text could not have."""
        name = record["name"] or default
        if len(name) >= LONGEST_WORD:
            raise self.error(f"a name of {len(name):,} characters: names have fewer than {LONGEST_WORD:,}", record)
        return _name(name)

    def span(self, record: Record) -> Span:
        return Span(self.source, record.offset, record.offset + 1)

    def read(self) -> Module:
        schedule = {entry["key"]: entry.part("value")["instruction_ids"]
                    for entry in self.record.part("schedule")["sequences"]}
        computations = [self.computation(c, schedule.get(c["id"])) for c in self.record["computations"]]
        if not computations:
            raise self.error("the module has no computations", self.record)
        entry = self.entry(computations)
        hidden = self.expanded - self.called - {entry}
        module = Module(self.name(self.record, "module"), [c for c in computations if c not in hidden], entry,
                        read_header(self.record, self.shapes), read_tables(self.record), self.source)
        module.is_scheduled = "schedule" in self.record
        return module

    def entry(self, computations: list[Computation]) -> Computation:
        number, name = self.record["entry_computation_id"], self.record["entry_computation_name"]
        if number in self.by_id and (number or not name or self.by_id[number].name == _name(name)):
            return self.by_id[number]
        named = [c for c in computations if c.name == _name(name)]
        if not named:
            raise self.error(f"the entry computation {name or number} is not there", self.record)
        return named[0]

    # -- computations --------------------------------------------------------------------------------------------------

    def computation(self, record: Record, order: Iterable[int] | None) -> Computation:
        computation = Computation(unique(self.name(record, "computation"), self.names), span=self.span(record))
        by_id: dict[int, Instruction] = {}
        records: dict[Instruction, Record] = {}
        names: dict[str, int] = {}
        for part in record["instructions"]:
            if isinstance(self.source, ByteSource):
                names_shown = part["name"][:SHOWN], record["name"][:SHOWN]
                self.source.notes[part.offset] = "instruction {} of computation {}".format(*names_shown)
            instruction = self.instruction(part, by_id, names)
            if part["id"] in by_id:
                raise self.error(f"a second instruction has the number {part['id']}", part)
            by_id[part["id"]] = instruction
            records[instruction] = part
        for instruction, part in records.items():
            if part["control_predecessor_ids"]:
                instruction.control_predecessors = self.operands(part, "control_predecessor_ids", by_id)
        if record["root_id"] not in by_id:
            raise self.error(f"the computation {computation.name} has no root {record['root_id']}", record)
        computation.root = by_id[record["root_id"]]
        computation.instructions = self.ordered(by_id, order, record)
        self.check_parameters(computation, record)
        if record["execution_thread"] not in ("", "main"):
            computation.attributes["execution_thread"] = Verbatim(f'"{_name(record["execution_thread"])}"')
        if record["id"] in self.by_id:
            raise self.error(f"a second computation has the number {record['id']}", record)
        self.by_id[record["id"]] = computation
        self.records[computation] = records
        return computation

    def ordered(self, by_id: dict[int, Instruction], order: Iterable[int] | None, record: Record
                ) -> list[Instruction]:
        """In the order of the schedule, if there is one."""
        if order is None:
            return list(by_id.values())
        if sorted(order) != sorted(by_id):
            raise self.error(f"the schedule of {record['name']} does not hold each of its instructions once", record)
        seen: set[Instruction] = set()
        instructions = [by_id[number] for number in order]
        for instruction in instructions:
            if not seen.issuperset(instruction.operands):
                raise ParseError(f"{instruction.name} is scheduled before its operands", instruction.span)
            seen.add(instruction)
        return instructions

    def check_parameters(self, computation: Computation, record: Record) -> None:
        numbers = [p.parameter_number for p in computation.parameters]
        if numbers != list(range(len(numbers))):
            raise self.error(f"the parameters of {computation.name} are not numbered from 0: {numbers}", record)

    # -- instructions --------------------------------------------------------------------------------------------------

    def instruction(self, record: Record, by_id: dict[int, Instruction], names: dict[str, int]) -> Instruction:
        opcode, span = record["opcode"], self.span(record)
        if "shape" not in record:
            raise self.error("an instruction without a shape", record)
        name = unique(self.name(record, opcode), names)
        operands = list(self.operands(record, "operand_ids", by_id))
        instruction = Instruction(name, opcode, self.shapes.read(record["shape"]), operands, span=span)
        own = record
        if opcode in ASYNC:
            own = self.short_form(instruction, record) or record
        known = signature(instruction.opcode)
        if known is None:
            raise unknown_opcode(instruction)
        self.refuse_unknown_meaning(own, span)
        if opcode == "parameter":
            instruction.parameter_number = record["parameter_number"]
        elif opcode == "constant" and "literal" in record:
            instruction.literal = read_literal(record["literal"], self.shapes, instruction.shape)
        context = Context(opcode, record, instruction.shape, operands, self.shapes, self.record["payloads"])
        if own is not record:
            wrapped = context._replace(opcode=own["opcode"], record=own)
            notes = {k: v for k, v in read_attributes(context).items() if k in COMMON or k.startswith("async")}
            instruction.attributes = {k: v for k, v in read_attributes(wrapped).items() if k not in COMMON} | notes
        else:
            instruction.attributes = read_attributes(context)
        if isinstance(self.source, ByteSource) and "metadata" in instruction.attributes:
            self.source.metadata[record.offset] = str(instruction.attributes["metadata"])
        instruction.attributes |= self.calls(instruction, own)
        self.check(instruction, record, known)
        return instruction

    def refuse_unknown_meaning(self, record: Record, span: Span | None) -> None:
        """Refuse fields of newer protos that change the meaning of an instruction."""
        if any(side in record.part("block_scaling_config") for side in ("lhs", "rhs")):
            raise UnsupportedError(f"{record['opcode']} with block_scaling_config: operands that are scales", span)
        if record["has_dynamic_root"]:
            raise UnsupportedError(f"{record['opcode']} with has_dynamic_root: an operand that names the root", span)

    def operands(self, record: Record, field: str, by_id: dict[int, Instruction]) -> tuple[Instruction, ...]:
        try:
            return tuple(by_id[number] for number in record[field])
        except KeyError as error:
            raise self.error(f"{record['name']} uses the instruction {error.args[0]}, which is not defined before",
                             record) from None

    def check(self, instruction: Instruction, record: Record, known: Any) -> None:
        """The checks that the text's parser makes on every instruction."""
        check_signature(instruction, known)
        if (instruction.parameter_number or 0) < 0:
            raise self.error("a parameter number is not negative", record)
        for key, words in WORDS.items():
            value = instruction.attributes.get(key)
            if value is not None and value not in words:
                raise self.error(f"{key} is one of {', '.join(words)}, not {value}", record)

    def short_form(self, instruction: Instruction, record: Record) -> Record | None:
        """Set the short opcode of an asynchronous instruction; return the record of the op that a start wraps."""
        stage = instruction.opcode.rpartition("-")[2]
        if stage != "start":
            if not instruction.operands:
                raise self.error(f"{instruction.opcode} takes 1 operand, here are 0", record)
            stem = instruction.operands[0].opcode.rpartition("-")[0]
            instruction.opcode = f"{stem or 'async'}-{stage}"
            return None
        callee = self.callee(record, 0)
        root = callee.root
        inner = [i for i in callee.instructions if i is not root]
        if any(i.opcode != "parameter" for i in inner) or root.operands != callee.parameters or \
                root.opcode in ("parameter", "constant") or root.opcode not in OPS:
            return None
        instruction.opcode = f"{root.opcode}-start"
        self.expanded.add(callee)
        return self.records[callee][root]

    # -- computations that an instruction calls ------------------------------------------------------------------------

    def callee(self, record: Record, index: int) -> Computation:
        numbers = record["called_computation_ids"]
        if index >= len(numbers):
            raise self.error(f"{record['name']} calls {len(numbers)} computations, which is not enough", record)
        if numbers[index] not in self.by_id:
            raise self.error(f"the computation {numbers[index]} is not defined before this use", record)
        return self.by_id[numbers[index]]

    def calls(self, instruction: Instruction, record: Record) -> dict[str, Any]:
        """The attributes that name computations."""
        opcode = record["opcode"]
        if opcode == "while":
            found = {"condition": self.callee(record, 1), "body": self.callee(record, 0)}
        elif opcode == "select-and-scatter":
            found = {"select": self.callee(record, 0), "scatter": self.callee(record, 1)}
        elif opcode in TO_APPLY:
            found = {"to_apply": self.callee(record, 0)}
        elif opcode == "fusion" or opcode == instruction.opcode == "async-start":
            found = {"calls": self.callee(record, 0)}
        elif opcode in ("conditional", "custom-call"):
            found = self.several(instruction, record)
        else:
            return {}
        for value in found.values():
            self.called.update(value if isinstance(value, tuple) else (value,))
        return found

    def several(self, instruction: Instruction, record: Record) -> dict[str, Any]:
        """Branches of a conditional, or the computations that a custom call calls."""
        callees = tuple(self.callee(record, i) for i in range(len(record["called_computation_ids"])))
        if record["opcode"] == "custom-call":
            return {"called_computations": callees} if callees else {}
        operands = instruction.operands
        if len(callees) == 2 and operands and operands[0].shape.element_type == "pred":
            return {"true_computation": callees[0], "false_computation": callees[1]}
        if not callees:
            raise self.error("a conditional without branches", record)
        return {"branch_computations": callees}


def _name(text: str) -> str:
    """A name made valid for the text's grammar, in the same way as XLA does."""
    text = _NOT_IN_NAMES.sub("_", text)
    return text if text[:1].isalpha() or text[:1] == "_" else "_" + text


def unique(name: str, taken: dict[str, int]) -> str:
    """`name`, or name.1, name.2 ... if it is taken; `taken` records it, and the last number of each name."""
    found = name
    while found in taken:
        taken[name] += 1
        found = f"{name}.{taken[name]}"
    taken[found] = 0
    return found
