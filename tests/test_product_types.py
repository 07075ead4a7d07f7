"""Matmuls and convolutions of every three element types (lhs, rhs, result): evaluator, CPU, and CUDA under emulation."""
from __future__ import annotations

import shutil

import pytest
from cuda_emulation.cases import emulate
from product_types import FORMS, LARGE, SMALL, SOME, TYPES, all_triples, modules, triples, wrong

import hloc
from hloc import api
from hloc.inputs import check_arrays
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.sources import make_sources
from hloc.targets.cuda.target import cuda_target

OPS = tuple(FORMS)
CASES = [*((op, SMALL) for op in OPS), ("dot", LARGE), ("convolution", LARGE), ("ragged-dot", LARGE)]
H100 = GPUS["h100"]


def chosen(op: str, sizes) -> list:
    """Compiled: every two types in every two places for the small dot, of some types for the rest."""
    return triples(TYPES if (op, sizes) == ("dot", SMALL) else SOME, OPS.index(op) + (sizes == LARGE))


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


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulation needs g++")
@pytest.mark.parametrize("op, sizes", CASES, ids=[f"{op}-{s.k}" for op, s in CASES])
def test_cuda(op, sizes, monkeypatch):
    target = cuda_target(H100)
    for text, arrays, expected, these in modules(op, sizes, triples(SOME, OPS.index(op))):
        program = api.plan(api.optimize(api.load(text), target), target)
        results = emulate(make_sources(program, H100), check_arrays(program.parameters, arrays), monkeypatch)
        assert wrong(results, expected, these) == []
