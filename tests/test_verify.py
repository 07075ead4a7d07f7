"""testdata/verify/*.hlo: modules with what the verifier says of them.

    // error: 5:3: add: operands differ: f32[4] and f32[5]       line and column in the file
    // ok: why

One or several such lines stand above each module; `// -----` separates modules.
"""
from __future__ import annotations

import re
from pathlib import Path

import pytest
from linearity import assert_linear

from hloc.errors import VerifyError
from hloc.ir import Computation, Instruction, Module, array
from hloc.text import parse_module, parse_modules
from hloc.verify import verify, verify_all

FOLDER = Path(__file__).parent.parent / "testdata" / "verify"
FILES = sorted(FOLDER.glob("*.hlo"))


def found(module: Module) -> list[str]:
    """What the verifier says, in the form of the files."""
    errors = verify_all(module)
    return [f"{str(e.span).rpartition(path_of(module))[2].lstrip(':')}: {e.message}" for e in errors]


def path_of(module: Module) -> str:
    return module.source.name


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_says_what_is_written(path):
    text = path.read_text()
    wanted = [re.findall(r"^// error: ?(.*)$", part, re.M) for part in re.split(r"^// -----$", text, flags=re.M)]
    assert [found(m) for m in parse_modules(text, path.name)] == wanted


def test_verify_raises_the_first_error():
    module = parse_module("ENTRY e { a = f32[2] parameter(0)  b = s32[2] negate(a)  ROOT c = f32[3] negate(a) }")
    with pytest.raises(VerifyError, match="%b is written as"):
        verify(module)
    assert len(verify_all(module)) == 2


def changed(change) -> list[str]:
    """Messages about a good module after `change`, as a pass might leave it."""
    module = parse_module("""
        f { x = f32[2] parameter(0)  ROOT n = f32[2] negate(x) }
        ENTRY e { a = f32[2] parameter(0)  b = f32[2] negate(a)  ROOT c = f32[2] call(b), to_apply=f }""")
    verify(module)
    change(module)
    return [e.message for e in verify_all(module)]


def test_broken_structure():
    def swap(module):
        instructions = module.entry.instructions
        instructions[0], instructions[1] = instructions[1], instructions[0]

    def foreign(module):
        module.entry.instructions[1].operands[0] = module.computations[0].instructions[0]

    def same_name(module):
        module.entry.instructions[1].name = "a"

    def lost_root(module):
        module.entry.instructions.pop()

    def twice(module):
        module.entry.instructions.insert(1, module.entry.instructions[0])

    def callee_behind(module):
        module.computations.reverse()

    def callee_missing(module):
        del module.computations[0]

    def recursion(module):
        module.entry.root.attributes["to_apply"] = module.entry

    def parameter_number(number):
        def change(module):
            module.entry.instructions[1] = Instruction("b", "parameter", array("f32", 2), parameter_number=number)
            module.entry.root.operands[0] = module.entry.instructions[1]
        return change

    assert "parameter number 2 of %b must be below 2, the number of parameters of %e" in changed(parameter_number(2))
    assert "%b and %a have the same parameter number 0" in changed(parameter_number(0))
    assert changed(swap) == ["%b uses %a, which comes later"]
    assert changed(foreign) == ["%b uses %x, which is not in %e"]
    assert changed(same_name) == ["instruction %a is defined twice"]
    assert changed(lost_root) == ["the root %c is not in its computation %e"]
    assert "instruction %a stands twice in %e" in changed(twice)
    assert changed(callee_behind) == ["%e calls %f, which stands behind it; a called computation must stand before "
                                      "its caller"]
    assert changed(callee_missing) == ["%c calls %f, which is not in the module"]
    assert changed(recursion) == ["%e calls itself; a called computation must stand before its caller"]


def test_many_instructions_take_linear_time():
    """Passes verify after every step."""
    def chain(count):
        shape = array("f32", 8)
        instructions = [Instruction("p", "parameter", shape, parameter_number=0)]
        for number in range(count):
            instructions.append(Instruction(f"i{number}", "add", shape, [instructions[-1], instructions[0]]))
        entry = Computation("e", instructions)
        return verify, Module("m", [entry], entry)

    assert_linear(chain, 2_000)
