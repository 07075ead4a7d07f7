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

from hloc.api import load, optimized_plan
from hloc.cli.main import main
from hloc.errors import HlocError, UnsupportedError, VerifyError
from hloc.ir import Computation, Instruction, Module, array
from hloc.ir.clone import clone_module
from hloc.proto import write_proto
from hloc.targets import find
from hloc.text import parse_module, parse_modules
from hloc.tools.explain import explain
from hloc.verify import verify, verify_all
from hloc.verify.unverified import blaming_faults

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


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_modules_that_break_rules_can_be_looked_at(path):
    """Shown, converted, explained, or refused by one located error; what is run refuses them."""
    target = find("cpu")
    looks = (str, write_proto, lambda m: explain(m, target), lambda m: optimized_plan(m, target))
    for text in re.split(r"^// -----$", path.read_text(), flags=re.M):
        module = load(text, name=path.name, broken_rules="warn")
        assert bool(module.faults) == ("// error" in text)
        for look in looks:
            own = clone_module(module)
            try:
                with blaming_faults(own, "this"):
                    look(own)
            except HlocError as error:
                assert error.span is not None
        if module.faults:
            with pytest.raises(VerifyError):
                load(module)


TOKENS = """add { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT s = f32[] add(x, y) }
ENTRY e {
  p = f32[8,4] parameter(0)
  t = f32[] constant(0)
  r = (f32[4,4], f32[]) reduce-scatter(p, t), replica_groups={{0,1}}, dimensions={0}, to_apply=add
  ROOT h = f32[4,4] get-tuple-element(r), index=0
}
"""


@pytest.mark.parametrize("command", ["opt", "opt --kernels", "convert -o -", "explain", "memory"])
def test_commands_that_show_modules_warn_of_broken_rules(tmp_path, capsys, monkeypatch, command):
    """Torch/XLA hands scalars through collectives to order them; XLA's parser reads that, its verifier does not."""
    path = tmp_path / "tokens.hlo"
    path.write_text(TOKENS)
    warning = "tokens.hlo:5:3: warning: reduce-scatter: dimensions={0}: there is no dimension 0"
    for more, code, told in (([], 0, warning), (["--no-verify"], 0, ""),
                             (["--strict"], 3, warning.replace("warning", "error"))):
        monkeypatch.setattr("sys.argv", ["hloc", *command.split(), str(path), *more])
        try:
            main()
            ended = 0
        except SystemExit as end:
            ended = end.code
        said = capsys.readouterr()
        assert ended == code and told in said.err and bool(said.out) == (code == 0), (more, said)
        assert told or not said.err


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


@pytest.mark.parametrize("counts", ["replica_count=18446744073709551616", "replica_count=2048, num_partitions=2048"])
def test_devices_whose_numbers_cannot_be_listed(counts):
    with pytest.raises(UnsupportedError, match="at most 1,048,576 devices"):
        load(f"HloModule m, {counts}\nENTRY e {{ ROOT x = f32[] parameter(0) }}")


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
    assert "instruction %a is defined twice in %e" in changed(twice)
    assert changed(callee_behind) == ["%e calls %f, which stands behind it; a called computation must be defined before "
                                      "its caller"]
    assert changed(callee_missing) == ["%c calls %f, which is not in the module"]
    assert changed(recursion) == ["%e calls itself; a called computation must be defined before its caller"]


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
