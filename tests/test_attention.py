"""Attention as one kernel: random forms and shapes on the CPU against the evaluator, NaN and infinities included; what
is not one, and why.
"""
from __future__ import annotations

import random
import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import hloc
from hloc.analysis.attention import attention_in, joined, reshaped, walk_of
from hloc.passes.context import PassContext
from hloc.passes.fusion import attention as fusion_attention
from hloc.passes.fusion import fusion
from hloc.passes.runner import run_passes
from hloc.text import parse_module

DATA = Path(__file__).parent.parent / "testdata"
TYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
REDUCERS = "".join(f"{op} {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] {op}(a, b) }}\n"
                   for op in ("maximum", "add"))


def attention(choose: random.Random) -> str:
    """The text of an attention of some form and shape."""
    type = choose.choice(["f32", "f32", "f32", "bf16", "f16"])
    b, h, q = choose.choice([1, 3]), choose.choice([1, 2, 5]), choose.choice([1, 2, 4, 9, 16, 31, 33, 70])
    k, d, f = choose.choice([2, 15, 64, 140, 141, 290]), choose.choice([16, 17, 40]), choose.choice([16, 33, 64])
    sequence, heads = choose.choice([(2, 1), (1, 2)])

    def array(rows: int, columns: int) -> str:
        sizes = [b, h, rows, columns] if sequence == 2 else [b, rows, h, columns]
        return f"{type}{sizes}".replace(" ", "")
    scores, turned, rows = f"f32[{b},{h},{q},{k}]", f"f32[{b},{h},{k},{q}]", f"f32[{b},{h},{q}]"
    dots = f"lhs_batch_dims={{0,{heads}}}, lhs_contracting_dims={{3}}, rhs_batch_dims={{0,{heads}}}, " \
           "rhs_contracting_dims={3}"
    lines = [f"q = {array(q, d)} parameter(0)", f"k = {array(k, d)} parameter(1)", f"v = {array(k, f)} parameter(2)",
             f"none = f32[] constant({choose.choice(['-1e30', '-inf', '-10000'])})",
             f"nones = {scores} broadcast(none), dimensions={{}}", "third = f32[] constant(0.3)",
             f"thirds = {scores} broadcast(third), dimensions={{}}", "least = f32[] constant(-inf)",
             "zero = f32[] constant(0)", "one = f32[] constant(1)"]
    if choose.random() < 0.3:
        lines += [f"kq = {turned} dot(k, q), {dots}", f"qk = {scores} transpose(kq), dimensions={{0,1,3,2}}"]
    else:
        lines += [f"qk = {scores} dot(q, k), {dots}"]
    lines += [f"scaled = {scores} multiply(qk, thirds)", *masked(choose.randrange(5), b, h, q, k, scores),
              f"largest = {rows} reduce(z, least), dimensions={{3}}, to_apply=maximum",
              f"spread = {scores} broadcast(largest), dimensions={{0,1,2}}", f"less = {scores} subtract(z, spread)",
              f"e = {scores} exponential(less)", f"sum = {rows} reduce(e, zero), dimensions={{3}}, to_apply=add"]
    lines += ending(choose, type, (b, h, q, k, f), sequence, heads)
    return f"HloModule attention\n{REDUCERS}ENTRY e {{\n  " + "\n  ".join(lines) + "\n}\n"


def masked(form: int, b: int, h: int, q: int, k: int, scores: str) -> list[str]:
    """Lines that make the score z: nothing, a mask of keys, of pairs, a bias, a causal mask."""
    choice = f"z = {scores} select(masks, scaled, nones)"
    masks = scores.replace("f32", "pred")
    return [
        [f"z = {scores} copy(scaled)"],
        [f"mask = pred[{b},{k}] parameter(3)", f"masks = {masks} broadcast(mask), dimensions={{0,3}}", choice],
        [f"mask = pred[{q},{k}] parameter(3)", f"masks = {masks} broadcast(mask), dimensions={{2,3}}", choice],
        [f"bias = f32[{h},{q},{k}] parameter(3)", f"biases = {scores} broadcast(bias), dimensions={{1,2,3}}",
         f"z = {scores} add(scaled, biases)"],
        [f"i = s32[{q},{k}] iota(), iota_dimension=0", f"j = s32[{q},{k}] iota(), iota_dimension=1",
         f"mask = pred[{q},{k}] compare(i, j), direction=GE", f"masks = {masks} broadcast(mask), dimensions={{2,3}}",
         choice]][form]


def ending(choose: random.Random, type: str, sizes: tuple[int, ...], sequence: int, heads: int) -> list[str]:
    """Lines from e and its sum to the result: the division before or after the second product, or by an inverse."""
    b, h, q, k, f = sizes
    form, swapped = choose.choice(["divide", "inverse", "late"]), choose.random() < 0.3
    weights = {"divide": ["sums = SCORES broadcast(sum), dimensions={0,1,2}", "w = SCORES divide(e, sums)"],
               "inverse": ["ones = ROWS broadcast(one), dimensions={}", "inverse = ROWS divide(ones, sum)",
                           "inverses = SCORES broadcast(inverse), dimensions={0,1,2}", "w = SCORES multiply(e, inverses)"],
               "late": ["w = SCORES copy(e)"]}[form]
    lines = [line.replace("SCORES", f"f32[{b},{h},{q},{k}]").replace("ROWS", f"f32[{b},{h},{q}]") for line in weights]
    lines += [f"narrow = {type}[{b},{h},{q},{k}] convert(w)"]
    result = f"f32[{b},{h},{f},{q}]" if swapped else f"f32[{b},{h},{q},{f}]"
    mine, values = ("0,1", 3), (f"0,{heads}", sequence)
    left, right = (values, mine) if swapped else (mine, values)
    order = "v, narrow" if swapped else "narrow, v"
    lines += [f"o = {result} dot({order}), lhs_batch_dims={{{left[0]}}}, lhs_contracting_dims={{{left[1]}}}, "
              f"rhs_batch_dims={{{right[0]}}}, rhs_contracting_dims={{{right[1]}}}"]
    if form == "late":
        lines += [f"later = {result} broadcast(sum), dimensions={{{'0,1,3' if swapped else '0,1,2'}}}",
                  f"o2 = {result} divide(o, later)"]
    last = "o2" if form == "late" else "o"
    order = "0,3,1,2" if swapped else "0,2,1,3"
    return [*lines, f"ROOT result = f32[{b},{q},{h},{f}] transpose({last}), dimensions={{{order}}}"]


def arrays(module, seed: int) -> list[np.ndarray]:
    """Random arguments; now and then NaN and infinities among them, and rows without any key."""
    choose, random_numbers = random.Random(seed), np.random.default_rng(seed)
    found = []
    for parameter in module.entry.parameters:
        sizes, type = parameter.shape.dimensions, parameter.shape.element_type
        if type == "pred":
            found.append(random_numbers.random(sizes) < choose.choice([0.0, 0.02, 0.5, 0.9]))
            continue
        array = random_numbers.standard_normal(sizes).astype(TYPES[type])
        if choose.random() < 0.25 and type == "f32":
            places = [choose.randrange(array.size) for _ in range(2)]
            array.reshape(-1)[places] = choose.choice([np.nan, np.inf, -np.inf])
        found.append(array)
    return found


@pytest.mark.parametrize("seed", range(18))
def test_random_attention(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fusion_attention, "LEAST_PRODUCT", 0)
    monkeypatch.setattr(fusion_attention, "FEW_QUERIES", 0)
    text = attention(random.Random(seed))
    module = parse_module(text)
    inputs = arrays(module, seed)
    narrow = any(t in text for t in ("bf16", "f16"))
    with np.errstate(all="ignore"):
        (want,) = hloc.compile(text, target="reference")(*inputs)
    executable = hloc.compile(text, target="cpu", run=False)
    assert re.search(r"hloc_attention(_pairs)?\(", executable.source)
    (got,) = executable(*inputs)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite & ~np.isnan(want)], want[~finite & ~np.isnan(want)])
    scale = np.abs(want[finite]).max(initial=1e-3)
    assert np.abs(got[finite] - want[finite]).max(initial=0) <= (3e-2 if narrow else 2e-5) * scale


def fused(text: str, target: str = "cpu"):
    """The fusion that holds two dots, and the reasons that were told, after fusion of a module in its final form."""
    edges: list = []
    module = parse_module(text)
    run_passes(module, (fusion,), PassContext(target=target, fusion_report=edges), verify=True)
    found = [i for i in module.entry.instructions if i.opcode == "fusion"
             and sum(m.opcode == "dot" for m in i.get("calls").instructions) == 2]
    return (found[0] if found else None), {e.reason for e in edges}


PLAIN = (DATA / "passes" / "fusion" / "attention.hlo").read_text(encoding="utf-8").split("// ==>")[0]


def test_the_fusion_holds_an_attention() -> None:
    instruction, _ = fused(PLAIN)
    assert instruction.get("kind") == "kCustom"
    found = attention_in(instruction.get("calls"))
    assert (found.keys, found.side, found.slot, found.divides_later) == ((24, 1), 1, 1, False)


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("dimensions={3}, to_apply=add", "dimensions={2}, to_apply=add",
     "the softmax does not run over the contracting dimension of the second matmul"),
    ("b1 = f32[2,2,24,24] broadcast(largest), dimensions={0,1,2}",
     "b1 = f32[2,2,24,24] broadcast(largest), dimensions={0,1,3}", "the softmax does not subtract and divide row by row"),
    ("b2 = f32[2,2,24,24] broadcast(sum), dimensions={0,1,2}",
     "b2 = f32[2,2,24,24] broadcast(sum), dimensions={0,1,3}", "the softmax does not subtract and divide row by row"),
    ("dot1 = f32[2,2,24,24] dot(qh, kh), lhs_batch_dims={0,2}, lhs_contracting_dims={3}, rhs_batch_dims={0,2}, "
     "rhs_contracting_dims={3}", "dot1 = f32[2,2,24,24] parameter(2)", "the softmax is not applied to a matmul"),
    ("ROOT result = f32[2,24,32] reshape(turned)",
     "result = f32[2,24,32] reshape(turned)\n  ROOT both = (f32[2,24,32], f32[2,2,24,24]) tuple(result, scaled)",
     "others, such as a backward pass, read arrays that the attention kernel would not store"),
])
def test_what_is_no_attention_says_why(old: str, new: str, reason: str) -> None:
    assert old in PLAIN
    instruction, reasons = fused(PLAIN.replace(old, new))
    assert instruction is None
    assert reason in reasons


@pytest.mark.parametrize(("old", "new"), [
    ("constant(-inf)", "constant(-1e+9)"),                       # the maximum begins at a number
    ("least), dimensions={3}, to_apply=max", "least), dimensions={3}, to_apply=add"),
    ("subtract(score, b1)", "subtract(scaled, b1)"),             # the largest of something else
])
def test_what_is_no_softmax(old: str, new: str) -> None:
    assert old in PLAIN
    assert fused(PLAIN.replace(old, new))[0] is None


def test_targets_without_the_kernel_do_not_see_it() -> None:
    assert fused(PLAIN, "reference")[0] is None


def test_walks() -> None:
    scores = walk_of((2, 1, 3, 8))
    assert scores == ((2, 24), (1, 0), (3, 8), (8, 1))
    assert reshaped(scores, (6, 2, 4)) == ((6, 8), (2, 4), (4, 1))
    assert reshaped((scores[2], scores[0], scores[3]), (3, 2, 8)) == ((3, 8), (2, 24), (8, 1))
    assert reshaped((scores[2], scores[0], scores[3]), (6, 8)) is None
    assert joined(scores, (0, 2)) == (6, 8)
    assert joined(scores, (0, 3)) is None
    assert joined(scores, (1,)) == (1, 0)
