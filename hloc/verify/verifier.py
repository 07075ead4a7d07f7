"""Every rule that a module must keep, checked one by one.

In: a module. Out: nothing, or a VerifyError that points at the first instruction that breaks a rule.

    %s = f32[4] add(f32[4] %a, f32[2] %b)    -> VerifyError: add: operands differ: f32[4] and f32[2]

`verify` stops at the first error, `verify_all` collects them. Structure is checked first, because the other checks
depend on it. An op's rules for operands and attributes are in its row (hloc/ops: `infer`); here the inferred shape is
compared with the written one. XLA's verifier is the model (xla/service/hlo_verifier.cc): hloc accepts what it accepts.
"""
from __future__ import annotations

import re
from collections.abc import Iterator

from hloc.errors import VerifyError
from hloc.ir import ELEMENT_TYPES, Computation, Instruction, Module, Shape, reachable_computations
from hloc.ops.annotations import composite_problem, origin_problem
from hloc.ops.checks import listed, text, unquoted
from hloc.ops.op import Op
from hloc.ops.table import OPS
from hloc.text.header import operand_aliases
from hloc.text.parser import parse_shape
from hloc.verify.asynchronous import ending_errors
from hloc.verify.buffers import buffer_errors
from hloc.verify.devices import device_errors
from hloc.verify.header import header_errors
from hloc.verify.shapes import agrees, check_literal, check_shape, operand_part, part_of, same_kind_of_type, same_type

# All other ops may change the precision of floats: XLA's passes produce such mixtures.
SAME_PRECISION = frozenset({
    "bitcast", "bitcast-convert", "call", "conditional", "constant", "custom-call", "dynamic-update-slice", "fusion",
    "get-tuple-element", "infeed", "outfeed", "opt-barrier", "parameter", "recv", "recv-done", "send", "send-done",
    "tuple", "while",
})

COLLECTIVES_GROUP = re.compile(r"[{,]\s*_collectives_group\s*=")        # a name in frontend_attributes={...}
PINNING = frozenset({'"Pin"', '"Unpin"'})


def verify(module: Module) -> None:
    """Raises the first VerifyError, if there is one."""
    for error in _errors(module):
        raise error


def verify_all(module: Module) -> list[VerifyError]:
    """All errors; when the structure is broken, only those of the structure."""
    return list(_errors(module))


def _errors(module: Module) -> Iterator[VerifyError]:
    broken = False
    for error in structure_errors(module):
        broken = True
        yield error
    if not broken:
        yield from rule_errors(module)


def rule_errors(module: Module) -> Iterator[VerifyError]:
    """All errors except of the structure, which must be correct."""
    broken = False
    checked: set[int] = set()
    reachable = reachable_computations(module.entry)      # computations that are never called are not checked
    for computation in reachable:
        for instruction in computation.instructions:
            try:
                check_instruction(instruction, checked)
            except VerifyError as error:
                broken = True
                yield error
        yield from ending_errors(computation)
        yield from _thread_errors(computation)
    yield from _sharing_errors(reachable)
    if not broken:
        yield from device_errors(module, reachable)
        yield from buffer_errors(module, reachable)
    yield from header_errors(module)


# -- structure ---------------------------------------------------------------------------------------------------------

def structure_errors(module: Module) -> Iterator[VerifyError]:
    place = {computation: number for number, computation in enumerate(module.computations)}
    if module.entry not in place:
        yield VerifyError(f"the entry computation %{module.entry.name} is not in the module", module.entry.span)
    yield from _repeated(module.computations, "computation")
    for computation in module.computations:
        if computation.root is None:
            yield VerifyError(f"computation %{computation.name} has no instructions", computation.span)
            continue
        yield from _repeated(computation.instructions, "instruction")
        yield from _order_errors(computation)
        yield from _parameter_errors(computation)
        for instruction in computation.instructions:
            yield from _callee_errors(instruction, computation, place)


def _repeated(items: list, what: str) -> Iterator[VerifyError]:
    seen: set[str] = set()
    for item in items:
        if item.name in seen:
            yield VerifyError(f"{what} %{item.name} is defined twice", item.span)
        seen.add(item.name)


def _order_errors(computation: Computation) -> Iterator[VerifyError]:
    """Operands are defined in the same computation, before they are used."""
    members, defined = set(computation.instructions), set()
    for instruction in computation.instructions:
        for verb, needed in (("uses", instruction.operands), ("must wait for", instruction.control_predecessors)):
            for other in needed:
                if other not in defined:
                    where = "which comes later" if other in members else f"which is not in %{computation.name}"
                    yield VerifyError(f"%{instruction.name} {verb} %{other.name}, {where}", instruction.span)
        if instruction in defined:
            yield VerifyError(f"instruction %{instruction.name} is defined twice in %{computation.name}",
                              instruction.span)
        defined.add(instruction)
    if computation.root not in defined:
        yield VerifyError(f"the root %{computation.root.name} is not in its computation %{computation.name}",
                          computation.root.span)


def _parameter_errors(computation: Computation) -> Iterator[VerifyError]:
    """Parameters are numbered from 0, each number once."""
    parameters = [i for i in computation.instructions if i.opcode == "parameter"]
    taken: dict[int | None, Instruction] = {}
    for parameter in parameters:
        number = parameter.parameter_number
        if not isinstance(number, int) or not 0 <= number < len(parameters):
            yield VerifyError(f"parameter number {number} of %{parameter.name} must be below {len(parameters)}, the "
                              f"number of parameters of %{computation.name}", parameter.span)
        elif number in taken:
            yield VerifyError(f"%{parameter.name} and %{taken[number].name} have the same parameter number {number}",
                              parameter.span)
        taken[number] = parameter


def _callee_errors(instruction: Instruction, caller: Computation, place: dict) -> Iterator[VerifyError]:
    """Called computations stand before their callers, so none can call itself, however indirectly."""
    for callee in instruction.called_computations:
        if callee not in place:
            yield VerifyError(f"%{instruction.name} calls %{callee.name}, which is not in the module", instruction.span)
        elif place[callee] >= place[caller]:
            why = "itself" if callee is caller else f"%{callee.name}, which stands behind it"
            yield VerifyError(f"%{caller.name} calls {why}; a called computation must be defined before its caller",
                              instruction.span)


IN_SEQUENCE = frozenset(["call", "while", "conditional", "call-start", "async-start"])


def _sharing_errors(reachable: list[Computation]) -> Iterator[VerifyError]:
    """A computation belongs to one fusion, and either runs in sequence (call, while, conditional) or is applied to
    elements and parts (reduce, map, fusion ...); its callees are of the same kind. Callees come first in
    `reachable`."""
    owners: dict[Computation, Instruction] = {}
    kinds: dict[Computation, set[str]] = {c: set() for c in reachable}
    kinds[reachable[-1]].add("call")
    for caller in reversed(reachable):
        for instruction in caller.instructions:
            opcode = instruction.opcode
            if opcode.endswith(("-update", "-done")):            # these repeat what their -start calls
                continue
            for callee in instruction.called_computations:
                if opcode in ("fusion", "fusion-start") and owners.setdefault(callee, instruction) is not instruction:
                    yield VerifyError(f"%{callee.name} is fused by %{owners[callee].name} and by %{instruction.name}",
                                      instruction.span)
                before = len(kinds[callee])
                kinds[callee] |= kinds[caller] if opcode in IN_SEQUENCE else {opcode.removesuffix("-start")}
                if before < len(kinds[callee]) > 1 and "call" in kinds[callee]:
                    other = next(k for k in sorted(kinds[callee]) if k != "call")
                    yield VerifyError(f"%{callee.name} runs in sequence (call, while, conditional) in one place and is "
                                      f"applied by {other} in another", instruction.span)


# -- instructions ------------------------------------------------------------------------------------------------------

def check_instruction(instruction: Instruction, checked: set[int] | None = None) -> None:
    """All rules of one instruction whose operands exist. `checked` holds (by id) shapes that were checked."""
    op = row_of(instruction)
    checked = checked if checked is not None else set()
    if id(instruction.shape) not in checked:
        check_shape(instruction)
        checked.add(id(instruction.shape))
    _check_form(op, instruction)
    if op.domain:
        _check_domain(op, instruction)
    inferred = op.infer(instruction)
    if inferred is not None and inferred is not instruction.shape:
        _check_result(instruction, inferred)
    if instruction.opcode == "constant":
        check_literal(instruction)
    elif instruction.opcode == "fusion":
        _check_fused(instruction)
    elif instruction.opcode == "async-start":
        _check_wrapped(instruction)
    elif instruction.opcode == "call" and instruction.get("is_composite", False):
        problem = composite_problem(str(instruction.get("frontend_attributes", "{}")))
        if problem:
            raise VerifyError(problem, instruction.span)
    if "output_to_operand_aliasing" in instruction.attributes:
        _check_operand_aliases(instruction)
    if "outfeed_shape" in instruction.attributes:
        _check_outfeed(instruction)
    if "origin" in instruction.attributes:
        problem = origin_problem(str(instruction.get("origin")), instruction.shape)
        if problem:
            raise VerifyError(f"origin: {problem}", instruction.span)


def _check_outfeed(instruction: Instruction) -> None:
    """outfeed_shape is the operand's."""
    written, given = parse_shape(str(instruction.get("outfeed_shape"))), instruction.operands[0].shape
    if not agrees(given, written):
        raise VerifyError(f"outfeed_shape={text(written)}, but the operand is {text(given)}", instruction.span)


def _check_operand_aliases(instruction: Instruction) -> None:
    """Both sides exist and are equal; only pinning makes a buffer of an array."""
    for alias in operand_aliases(instruction):
        given = part_of(instruction.shape, alias.output)
        if given is None:
            raise VerifyError(f"output_to_operand_aliasing: {text(instruction.shape)} has nothing at "
                              f"{listed(alias.output)}", instruction.span)
        operands = [o.shape for o in instruction.operands]
        taken = operand_part(operands, alias.parameter, alias.parameter_index)
        if taken is None:
            raise VerifyError(f"output_to_operand_aliasing: there is no operand ({alias.parameter}, "
                              f"{listed(alias.parameter_index)})", instruction.span)
        if instruction.opcode == "custom-call" and str(instruction.get("custom_call_target")) in PINNING:
            taken, given = (s.tuple_shapes[0] if s.element_type == "buffer" else s for s in (taken, given))
        if instruction.opcode in ("custom-call", "fusion", "async-start") and not agrees(taken, given):
            raise VerifyError(f"output_to_operand_aliasing: {text(given)} is not {text(taken)}", instruction.span)


def _check_fused(fusion: Instruction) -> None:
    """Everything that is fused is read: a fusion has no dead parts, not even parameters."""
    fused = fusion.get("calls")
    read = {o for i in fused.instructions for o in i.operands} | {fused.root}
    for instruction in fused.instructions:
        if instruction not in read:
            raise VerifyError(f"nothing in %{fused.name} reads %{instruction.name}", instruction.span or fusion.span)


def _check_wrapped(start: Instruction) -> None:
    """An asynchronous computation is one instruction, or a group of collectives, which XLA marks."""
    wrapped = start.get("calls")
    if COLLECTIVES_GROUP.search(str(start.get("frontend_attributes", ""))):
        return
    if all(i.opcode in ("bitcast", "parameter", "recv", "send", "tuple") for i in wrapped.instructions):
        return                                           # transfers may start together
    for instruction in wrapped.instructions:
        if instruction.opcode != "parameter" and instruction is not wrapped.root:
            raise VerifyError(f"%{wrapped.name} runs asynchronously: it has parameters and a root, but also "
                              f"%{instruction.name}", instruction.span or start.span)


def row_of(instruction: Instruction) -> Op:
    """The row of an instruction's opcode; also of "slice-start" and other short forms of asynchronous ops."""
    try:
        return OPS[instruction.opcode]
    except KeyError:
        raise VerifyError(f"unknown opcode {instruction.opcode!r}", instruction.span) from None


def _check_form(op: Op, instruction: Instruction) -> None:
    count = len(instruction.operands)
    if count < op.least_operands or (op.most_operands is not None and count > op.most_operands):
        raise VerifyError(f"{op.opcode} takes {_count(op)}, but has {count}", instruction.span)
    for key in op.required:
        if key not in instruction.attributes:
            raise VerifyError(f"{op.opcode} needs the attribute {key}=", instruction.span)


def _count(op: Op) -> str:
    least, most = op.least_operands, op.most_operands
    numbers = str(least) if least == most else f"at least {least}" if most is None else f"{least} to {most}"
    return f"{numbers} operand{'' if numbers == '1' else 's'}"


def _check_domain(op: Op, instruction: Instruction) -> None:
    for index, operand in enumerate(instruction.operands):
        if operand.shape.element_type not in op.domain:
            kinds = sorted({ELEMENT_TYPES[t].kind for t in op.domain})
            takes = ", ".join(sorted(op.domain)) if len(op.domain) < 4 else ", ".join(kinds) + " types"
            raise VerifyError(f"operand {index} of {op.opcode} is {text(operand.shape)}, but {op.opcode} takes {takes}",
                              instruction.span)


def _check_result(instruction: Instruction, inferred: Shape) -> None:
    written, base = instruction.shape, instruction.opcode.removesuffix("-start")
    types = same_type if base in SAME_PRECISION else same_kind_of_type
    if not agrees(inferred, written, types):
        raise VerifyError(f"%{instruction.name} is written as {text(written)}, but {instruction.opcode} gives "
                          f"{text(inferred)}", instruction.span)


def _thread_errors(computation: Computation) -> Iterator[VerifyError]:
    """Computations of loops, branches and fusions run on the thread of their caller."""
    for instruction in computation.instructions:
        if instruction.opcode in ("while", "conditional", "fusion"):
            for callee in instruction.called_computations:
                here, there = _thread(computation), _thread(callee)
                if here != there:
                    yield VerifyError(f"%{callee.name} is for the thread {there}, {instruction.opcode} runs on {here}",
                                      instruction.span)


def _thread(computation: Computation) -> str:
    return unquoted(str(computation.attributes.get("execution_thread", "main"))) or "main"
