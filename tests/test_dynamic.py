"""Bounded dynamic dimensions: the CPU target against the evaluator, at several sizes of the same program."""
from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import hloc
from hloc.api import load
from hloc.errors import RunError, UnsupportedError
from hloc.evaluate import evaluate
from hloc.inputs import random_arrays

DATA = Path(__file__).parent.parent / "testdata" / "dynamic" / "ops.hlo"
TEXTS = re.split(r"^// -----\n", DATA.read_text(encoding="utf-8"), flags=re.M)


def sized_arrays(parameters, seed: int) -> list[np.ndarray]:
    """Random arrays; dynamic dimensions of the same bound get the same size."""
    generator, sizes = np.random.default_rng(seed), {}
    arrays = []
    for parameter, array in zip(parameters, random_arrays(parameters, seed)):
        flags = parameter.shape.dynamic_dimensions or (False,) * array.ndim
        cut = tuple(slice(0, sizes.setdefault(n, int(generator.integers(0, n + 1))) if flag else n)
                    for n, flag in zip(array.shape, flags))
        arrays.append(np.array(array[cut], order="C"))
    return arrays


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: re.search(r"HloModule (\w+)", text)[1])
def test_dynamic_dimensions(text):
    module = load(text)
    exe = hloc.compile(module, "cpu")
    for seed in range(6):
        arrays = sized_arrays(exe.parameters, seed)
        for actual, expected in zip(exe(*arrays), evaluate(module, arrays), strict=True):
            assert actual.shape == expected.shape
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_sizes_above_the_bound():
    exe = hloc.compile(TEXTS[0], "cpu")
    with pytest.raises(RunError, match="must be f32"):
        exe(np.zeros((9, 4), np.float32), np.zeros((9, 4), np.float32))
    assert [p.shape.to_string(False) for p in exe.parameters] == ["f32[<=8,4]", "f32[<=8,4]"]


@pytest.mark.parametrize("line, message", [
    ("x = f32[<=4] parameter(0)\n ROOT r = f32[<=4] cholesky(x)", "'cholesky' of dynamic dimensions"),
    ("x = f32[?] parameter(0)\n ROOT r = f32[?] negate(x)", "unbounded"),
])
def test_refused_by_name(line, message):
    from hloc.passes.context import PassContext
    from hloc.passes.dynamic_padder import dynamic_padder
    from hloc.text import parse_module
    module = parse_module("ENTRY e {\n" + line + "\n}\n")
    with pytest.raises(UnsupportedError, match=message):
        dynamic_padder(module, PassContext())


def test_a_branch_of_dynamic_size_where_the_conditional_is_static():
    text = """f { x = f32[4] parameter(0)\n ROOT r = f32[4] negate(x) }
        g { x = f32[4] parameter(0)\n ROOT r = f32[<=4] negate(x) }
        ENTRY e { x = f32[4] parameter(0)\n p = pred[] parameter(1)
          ROOT r = f32[4] conditional(p, x, x), true_computation=f, false_computation=g }"""
    with pytest.raises(UnsupportedError, match="'conditional' where caller and callee disagree about dynamic dimensions"):
        hloc.compile(text, "cpu")


@pytest.mark.parametrize("target, operands, message", [
    ("Forward", "x, k", "has windows of dynamic size and PADDING_SAME"), ("KernelGrad", "x, k", "has windows of dynamic size"),
    ("Forward", "x", "it takes 2 operands, and dim_labels"), ("InputGrad", "x, k", "it takes 3 operands, and dim_labels"),
])
def test_dynamic_convolutions_that_depend_on_sizes_are_refused(target, operands, message):
    text = f"""ENTRY e {{ x = f32[1,<=8,1] parameter(0)  k = f32[3,1,1] parameter(1)
        ROOT r = f32[1,<=8,1] custom-call({operands}), window={{size=3 pad=1_1}}, dim_labels=b0f_0io->b0f,
            padding_type=PADDING_SAME, custom_call_target="DynamicConvolution{target}" }}"""
    arrays = [np.ones((1, 8, 1), np.float32), np.ones((3, 1, 1), np.float32)]
    for way in (lambda: hloc.compile(text + "\n", "cpu"), lambda: evaluate(load(text + "\n"), arrays)):
        with pytest.raises(UnsupportedError, match=message) as error:
            way()
        assert error.value.span is not None
