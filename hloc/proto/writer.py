"""Module to HloModuleProto.

In: a Module. Out: the record of a proto that XLA reads as the same module. Example:

    module_record(module)["computations"][0]["instructions"][0]        {"name": "p", "opcode": "parameter", ...}

A short form of an asynchronous op (slice-start) becomes an async-start that calls a new computation. Every instruction
gets a number that is unique in the module; operands, schedule and calls refer to instructions by number.
"""
from __future__ import annotations

from typing import Any

from hloc.errors import ParseError, UnsupportedError
from hloc.ir.module import Computation, Instruction, Module
from hloc.ir.shapes import Shape
from hloc.phrases import Phrase
from hloc.proto.attributes import write_attributes
from hloc.proto.header import write_header
from hloc.proto.literals import write_literal
from hloc.proto.notes import text_of
from hloc.proto.reader import unique
from hloc.proto.shapes import write_shape
from hloc.text.attributes import COMPUTATION, COMPUTATIONS
from hloc.text.opcodes import COMMON

_OWN_ASYNC = frozenset(["all-gather", "all-reduce", "collective-permute", "copy", "send", "recv", "async"])
# The order of called computations in a proto; text names them.
_CALLS = ("body", "condition", "select", "scatter", "true_computation", "false_computation", "to_apply", "calls",
          "branch_computations", "called_computations")
_ELSEWHERE = COMPUTATION | COMPUTATIONS


def module_record(module: Module) -> dict[str, Any]:
    """The fields of an HloModuleProto. Raises UnsupportedError for attributes without a field."""
    return _ModuleWriter(module).write()


class _ModuleWriter:
    """Writes one module."""

    def __init__(self, module: Module):
        self.module = module
        self.next_id = 0
        self.numbers: dict[Computation, int] = {}
        self.computations: list[dict[str, Any]] = []
        self.names = {c.name: 0 for c in module.computations}
        self.instruction_names: dict[str, int] = {}       # XLA requires them to be unique in the module
        self.begun: dict[Instruction, int] = {}            # asynchronous instruction -> computation it runs

    def write(self) -> dict[str, Any]:
        sequences = []
        for computation in self.module.computations:
            record = self.computation(computation)
            sequences.append({"key": record["id"],
                              "value": {"instruction_ids": [i["id"] for i in record["instructions"]]}})
        result = {"name": self.module.name, "entry_computation_name": self.module.entry.name,
                  "entry_computation_id": self.numbers[self.module.entry], "computations": self.computations,
                  **write_header(self.module)}
        if self.module.is_scheduled:
            result["schedule"] = {"sequences": sequences}
        return result

    def number(self) -> int:
        self.next_id += 1
        return self.next_id

    def computation(self, computation: Computation) -> dict[str, Any]:
        """Appends a computation, after those that its asynchronous instructions need."""
        ids: dict[Instruction, int] = {}
        records = []
        for instruction in computation.instructions:
            ids[instruction] = self.number()
            records.append(self.instruction(instruction, ids))
        for instruction, record in zip(computation.instructions, records):
            if instruction.control_predecessors:
                record["control_predecessor_ids"] = [ids[p] for p in instruction.control_predecessors]
        record = self.finished(computation.name, records, ids[computation.root], computation)
        self.numbers[computation] = record["id"]
        return record

    def finished(self, name: str, records: list[dict[str, Any]], root: int, computation: Computation | None
                 ) -> dict[str, Any]:
        by_id = {r["id"]: r for r in records}
        parameters = sorted((r for r in records if r["opcode"] == "parameter"), key=lambda r: r["parameter_number"])
        record = {"name": name, "id": len(self.computations) + 1, "root_id": root, "instructions": records,
                  "program_shape": {"parameters": [p["shape"] for p in parameters], "result": by_id[root]["shape"],
                                    "parameter_names": [p["name"] for p in parameters]}}
        if computation is not None and "execution_thread" in computation.attributes:
            record["execution_thread"] = text_of(Phrase(computation.attributes["execution_thread"]).string())
        self.computations.append(record)
        return record

    def instruction(self, instruction: Instruction, ids: dict[Instruction, int]) -> dict[str, Any]:
        stem, _, stage = instruction.opcode.rpartition("-")
        if stage in ("start", "update", "done") and stem not in ("", *_OWN_ASYNC):
            return self.asynchronous(instruction, stem, stage, ids)
        if stem == "async":
            called = instruction.get("calls")
            if called is None and stage != "start":
                return self.asynchronous(instruction, stem, stage, ids)
            self.begun[instruction] = self.numbers[called]
        record = self.plain(instruction, ids, write_attributes(instruction, _ELSEWHERE))
        return record | self.calls(instruction)

    def plain(self, instruction: Instruction, ids: dict[Instruction, int], fields: dict[str, Any]) -> dict[str, Any]:
        record = {"name": unique(instruction.name, self.instruction_names), "opcode": instruction.opcode,
                  "shape": write_shape(instruction.shape), "id": ids[instruction],
                  "operand_ids": [ids[o] for o in instruction.operands], **fields}
        if instruction.opcode == "parameter":
            record["parameter_number"] = instruction.parameter_number
        if instruction.opcode == "constant" and instruction.literal is not None:
            record["literal"] = write_literal(instruction.shape, instruction.literal)
        return record

    def calls(self, instruction: Instruction) -> dict[str, Any]:
        numbers: list[int] = []
        for key in _CALLS:
            value = instruction.attributes.get(key)
            if value is not None:
                numbers += [self.numbers[c] for c in (value if isinstance(value, tuple) else (value,))]
        return {"called_computation_ids": numbers} if numbers else {}

    # -- asynchronous ops ----------------------------------------------------------------------------------------------

    def asynchronous(self, instruction: Instruction, stem: str, stage: str, ids: dict[Instruction, int]
                     ) -> dict[str, Any]:
        """async-start, async-update or async-done for a short form, or for one that does not name its computation."""
        own = {k: v for k, v in instruction.attributes.items() if k in COMMON or k == "async_execution_thread"}
        outer = instruction.copy(opcode=f"async-{stage}", attributes=own)
        record = self.plain(outer, ids | {outer: ids[instruction]}, write_attributes(outer, _ELSEWHERE))
        if stage == "start":
            self.begun[instruction] = self.wrapped(instruction, stem)["id"]
        elif instruction.operands[0] in self.begun:
            self.begun[instruction] = self.begun[instruction.operands[0]]
        else:
            raise UnsupportedError(f"{instruction.opcode} of something that no {stem}-start has begun",
                                   instruction.span)
        return record | {"called_computation_ids": [self.begun[instruction]]}

    def wrapped(self, instruction: Instruction, stem: str) -> dict[str, Any]:
        """A computation that consists of the op and its parameters."""
        if not instruction.shape.is_tuple or len(instruction.shape.tuple_shapes) < 2:
            raise ParseError(f"{instruction.opcode} has the shape ((operands), result, ...), not {instruction.shape}",
                             instruction.span)
        parameters = [Instruction(f"param_{i}", "parameter", o.shape, parameter_number=i)
                      for i, o in enumerate(instruction.operands)]
        attributes = {k: v for k, v in instruction.attributes.items() if k not in COMMON and
                      k != "async_execution_thread"}
        result: Shape = instruction.shape.tuple_shapes[1]
        root = Instruction(f"wrapped_{stem}", stem, result, parameters, attributes, span=instruction.span)
        ids = {i: self.number() for i in (*parameters, root)}
        records = [self.instruction(i, ids) for i in (*parameters, root)]
        record = self.finished(unique("async_computation", self.names), records, ids[root], None)
        if "async_execution_thread" in instruction.attributes:
            record["execution_thread"] = text_of(Phrase(instruction.attributes["async_execution_thread"]).string())
        return record
