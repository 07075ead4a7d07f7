"""Matmuls and convolutions of every three element types (lhs, rhs, result): evaluator, CPU, and CUDA under emulation.

The evaluator computes all triples. What is compiled are representatives of all classes of triples (product_types.py);
kernels of other triples are made of the same pieces, which is checked for random ones.
"""
from __future__ import annotations

import random
import shutil
from collections.abc import Sequence

import pytest
from cuda_emulation.cases import emulate
from product_types import (
    FORMS,
    LARGE,
    SMALL,
    SOME,
    TYPES,
    Triple,
    all_triples,
    modules,
    pieces,
    representatives,
    triples,
    wrong,
)

import hloc
from hloc import api
from hloc.inputs import check_arrays
from hloc.targets import find
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

OPS = tuple(FORMS)
CASES = [*((op, SMALL) for op in OPS), ("dot", LARGE), ("convolution", LARGE), ("ragged-dot", LARGE)]
H100 = GPUS["h100"]


def chosen(op: str, sizes) -> Sequence[Triple]:
    """Compiled: representatives, which are read and computed by loops; of some types, every two of them in every two
    places, where library kernels have code for both operands."""
    some = triples(SOME, OPS.index(op) + (sizes == LARGE))
    return some if sizes == LARGE else representatives()


@pytest.mark.parametrize("op", OPS)
def test_evaluator(op):
    """All of them for the dot; what the others do before and after they multiply does not depend on the result."""
    found, some = [], [t for shift in range(4) for t in triples(TYPES, shift)]
    for text, arrays, expected, these in modules(op, SMALL, all_triples(TYPES) if op == "dot" else some, most=5000):
        found += wrong(hloc.compile(text, "reference")(*arrays), expected, these)
    assert found == []


@pytest.mark.parametrize("op, sizes", CASES, ids=[f"{op}-{s.k}" for op, s in CASES])
def test_cpu(op, sizes):
    for text, arrays, expected, these in modules(op, sizes, chosen(op, sizes)):
        assert wrong(hloc.compile(text, "cpu")(*arrays), expected, these) == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
@pytest.mark.parametrize("op, sizes", CASES, ids=[f"{op}-{s.k}" for op, s in CASES])
def test_cuda(op, sizes, monkeypatch):
    target = cuda_target(H100)
    selected = representatives() if (op, sizes) == ("dot", SMALL) else triples(SOME, OPS.index(op))
    for text, arrays, expected, these in modules(op, sizes, selected):
        program = api.plan(api.optimize(api.load(text), target), target)
        results = emulate(make_sources(program, H100), check_arrays(program.parameters, arrays), monkeypatch)
        assert wrong(results, expected, these) == []


@pytest.mark.parametrize("name", ["cpu", "h100"])
def test_kernels_of_other_triples_are_made_of_the_same(name):
    target = find(name)

    def made(selected) -> set[tuple]:
        (text, *_), = modules("dot", SMALL, selected)
        return pieces(api.plan(api.optimize(api.load(text), target), target).kernels)
    others = random.Random(1).sample(all_triples(TYPES), 300)
    assert made(others) <= made(representatives())
