"""What the target-dependent passes promise to the kernels: forms of fusions, row-major arrays, shareable memory."""
from __future__ import annotations

from pathlib import Path

import pytest
from linearity import assert_linear
from memory_model import check_memory

from hloc.analysis.attention import attention_in
from hloc.analysis.attention_gradient import gradient_in
from hloc.analysis.control_flow import executed_computations
from hloc.analysis.fusible import is_elemental, is_elementwise, is_hero, is_update
from hloc.analysis.prologues import prologue_of, why_not
from hloc.analysis.sorted_parts import sorted_parts_in
from hloc.analysis.strides import VIEWS
from hloc.ir import Instruction, Module
from hloc.machine import Machine
from hloc.passes.context import PassContext
from hloc.passes.fusion.group import is_trailing, without_ones
from hloc.passes.pipelines import ALL_PASSES, pipeline_for
from hloc.passes.runner import run_passes
from hloc.text import parse_module

TESTDATA = Path(__file__).parent.parent / "testdata"
MODELS = ("digits", "lstm", "control_flow", "transformer_train", "unet_block", "gather_scatter", "random_threefry",
          "sort")
GPU = Machine("gpu", "gpu", 132, 16, 256 << 10, 50 << 20, 3e12, 4e-6, 227 << 10, "sm_90a")


def optimized(path: Path, target: str = "cpu") -> Module:
    module = parse_module(path.read_text(encoding="utf-8"), path.name)
    machine = GPU if target == "cuda" else Machine("cpu", "cpu", 2, 64, 32 << 10, 1 << 20, 20e9, 4e-6)
    run_passes(module, pipeline_for(target), PassContext(machine, target), verify=False)
    return module


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, target: str) -> None:
    module = optimized(TESTDATA / "models" / name / "model.hlo", target)
    assert module.is_scheduled
    check_memory(module)
    for computation in executed_computations(module):
        for instruction in computation.instructions:
            assert instruction.shape == instruction.shape.with_default_layout()
            if instruction.opcode == "fusion":
                kind = instruction.get("kind")
                check_output(instruction, target) if kind == "kOutput" else FORMS[kind](instruction)


def roots_of(fusion: Instruction) -> list[Instruction]:
    root = fusion.get("calls").root
    return list(root.operands) if root.opcode == "tuple" else [root]


def inside(fusion: Instruction) -> list[Instruction]:
    return [i for i in fusion.get("calls").instructions if i.opcode not in ("parameter", "tuple")]


def check_loop(fusion: Instruction) -> None:
    roots = roots_of(fusion)
    assert len({r.shape.num_elements for r in roots}) == 1
    for member in inside(fusion):
        if is_update(member):
            assert roots == [member] and member.operands[0].opcode == "parameter"
            assert sum(member.operands[0] in i.operands for i in inside(fusion)) == 1
        else:
            assert is_elemental(member), member


def check_input(fusion: Instruction) -> None:
    reduces = [i for i in inside(fusion) if i.opcode == "reduce"]
    assert reduces and all(is_elemental(i) for i in inside(fusion) if i.opcode != "reduce")
    assert len({(without_ones(r.operands[0].shape.dimensions), r.get("dimensions")) for r in reduces}) == 1
    known: set[Instruction] = set()
    for member in inside(fusion):
        after = any(o in known for o in member.operands)
        assert not (member.opcode == "reduce" and after), "a reduce of what depends on a reduce"
        if after or member.opcode == "reduce":
            known.add(member)


def check_output(fusion: Instruction, target: str) -> None:
    (hero,) = [i for i in inside(fusion) if is_hero(i)]
    for number, operand in enumerate(hero.operands):
        made = prologue_of(operand, lambda i: i.opcode == "parameter")
        while operand.opcode != "parameter" and operand.opcode in VIEWS and hero.opcode == "dot":
            operand = operand.operands[0]
        assert operand.opcode == "parameter" or target == "cuda" and why_not(hero, number, made, GPU) == ""
    known = {hero}
    for member in inside(fusion):
        if any(o in known for o in member.operands):
            assert is_elementwise(member) and member.shape.dimensions == hero.shape.dimensions
            known.add(member)
    assert all(r in known for r in roots_of(fusion))


def check_custom(fusion: Instruction) -> None:
    if any(is_hero(i) for i in inside(fusion)):
        return check_attention(fusion)
    if any(i.opcode == "sort" for i in inside(fusion)):
        return check_sort(fusion)
    reduces = [i for i in inside(fusion) if i.opcode == "reduce"]
    assert all(is_elemental(i) for i in inside(fusion) if i.opcode != "reduce")
    assert len({without_ones(r.operands[0].shape.dimensions) for r in reduces}) == 1
    assert all(is_trailing(r.operands[0].shape.dimensions, r.get("dimensions")) for r in reduces)


def check_attention(fusion: Instruction) -> None:
    attention, gradient = attention_in(fusion.get("calls")), gradient_in(fusion.get("calls"))
    if gradient is not None:
        views = [o for p in gradient.products for o in p.operands]
        views += [o.dot.operands[1 - o.slot] for o in gradient.outputs]
        assert len(roots_of(fusion)) == len(gradient.outputs)
    else:
        views = [*attention.scores.operands, attention.output.operands[1 - attention.slot]]
        assert len(set(roots_of(fusion)) - {attention.largest, attention.sum}) == 1
    for operand in views:
        while operand.opcode != "parameter":
            assert operand.opcode in VIEWS
            operand = operand.operands[0]


def check_sort(fusion: Instruction) -> None:
    parts = sorted_parts_in(fusion.get("calls"))
    assert set(parts.members) == set(inside(fusion)) and [p.slice for p in parts.parts] == roots_of(fusion)
    assert all(o.opcode == "parameter" for o in parts.sort.operands)


FORMS = {"kLoop": check_loop, "kInput": check_input, "kCustom": check_custom}


@pytest.mark.parametrize("path", sorted((TESTDATA / "passes" / "copy_insertion").glob("*.hlo")), ids=lambda p: p.stem)
def test_copies_are_needed_and_enough(path: Path) -> None:
    given, _, expected = path.read_text(encoding="utf-8").partition("\n// ==>\n")
    check_memory(parse_module(expected))
    if path.stem != "donated":
        with pytest.raises(AssertionError):
            check_memory(parse_module(given))


def test_big_modules_take_linear_time() -> None:
    """Up to 10,000 instructions: a residual chain with a reduction in every layer."""
    def run(module) -> None:
        for name in ("fusion", "hlo_memory_scheduler", "copy_insertion"):
            ALL_PASSES[name](module, PassContext(GPU))

    assert_linear(lambda layers: (run, residual_chain(layers)), 250)
    module = residual_chain(500)
    run(module)
    check_memory(module)


def residual_chain(layers: int):
    lines = ["  x0 = f32[64,64] parameter(0)", "  zero = f32[] constant(0)"]
    for n in range(layers):
        lines += [f"  sum{n} = f32[64] reduce(x{n}, zero), dimensions={{1}}, to_apply=add",
                  f"  b{n} = f32[64,64] broadcast(sum{n}), dimensions={{0}}", f"  t{n} = f32[64,64] tanh(b{n})",
                  f"  d{n} = f32[64,64] dot(t{n}, x{n}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
                  f"  x{n + 1} = f32[64,64] add(x{n}, d{n})"]
    add = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT s = f32[] add(a, b)\n}\n"
    return parse_module("HloModule big\n" + add + "ENTRY e {\n" + "\n".join(lines) + "\n}\n")
