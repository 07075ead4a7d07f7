"""Loops of testdata/updates that update arrays behind a choice: right on every target, and no step of a loop copies,
reads or writes a whole array. Bytes are counted in the plan; time says less and depends on the machine."""
from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from cuda_emulation.cases import emulate
from memory_model import check_memory
from random_updates import random_inputs, random_loop

import hloc
from hloc.evaluate import evaluate
from hloc.inputs import entry_parameters
from hloc.ir import Module, numpy_dtype
from hloc.kernels.plan import Branch, Copy, Launch, Program, Step, WhileLoop, all_steps
from hloc.kernels.planner import plan_module
from hloc.passes.context import PassContext
from hloc.passes.pipelines import pipeline_for
from hloc.passes.runner import run_passes
from hloc.targets import find
from hloc.targets.cuda.sources import make_sources
from hloc.text import parse_module

LOOPS = sorted((Path(__file__).parent.parent / "testdata" / "updates").glob("*.hlo"))
EMULATED = ("where_set", "where_two_updates", "caches_by_batch", "cond_append", "switch_of_arrays", "exchange",
            "where_converted_add", "where_of_two_scattered")
STEPS = 12                  # of each loop: arrays with so many rows are what the steps are given
names = pytest.mark.parametrize("path", LOOPS, ids=lambda p: p.stem)


def read(path: Path) -> Module:
    return parse_module(path.read_text(encoding="utf-8"), path.name)


def inputs_of(module: Module, seed: int) -> list[np.ndarray]:
    """Small whole numbers, whose sums are exact; places inside of the arrays, and a few outside."""
    rng = np.random.default_rng(seed)
    made = []
    for parameter in entry_parameters(module):
        shape = parameter.shape
        low, high = (-9, 520) if shape.element_type == "s32" and shape.dimensions[:1] == (STEPS,) else (-9, 10)
        dtype = numpy_dtype(shape.element_type)
        values = rng.integers(0, 2, shape.dimensions) if dtype == np.bool_ else rng.integers(low, high, shape.dimensions)
        made.append(np.asarray(values).astype(dtype))
    return made


def planned(module: Module, target: str) -> Program:
    """The plan, after the passes, which change the module."""
    chosen = find(target)
    run_passes(module, pipeline_for(chosen.name), PassContext(chosen.machine, chosen.name), verify=False)
    return plan_module(module, chosen.machine)


def steps_in_loops(steps: Sequence[Step]) -> Iterator[Step]:
    for step in all_steps(steps):
        if isinstance(step, WhileLoop):
            yield from all_steps(step.condition + step.body)


def moved(step: Step, program: Program) -> int:
    """Bytes that a step copies, or reads and writes, or may: a kernel writes all of a buffer that is no update."""
    if isinstance(step, Copy):
        return step.source.size
    if isinstance(step, Launch):
        kernel = program.kernels[step.kernel]
        written = [a.size for a, b in zip(step.arguments, kernel.buffers) if b.access == "write"]
        return max([kernel.cost.bytes, *written])
    assert isinstance(step, (WhileLoop, Branch))
    return 0


@pytest.mark.parametrize("target", ["cpu", "h200"])
@names
def test_steps_move_no_whole_arrays(path: Path, target: str) -> None:
    module = read(path)
    smallest = min(p.shape.num_bytes for p in entry_parameters(module)
                   if p.shape.dimensions and p.shape.dimensions[0] != STEPS)
    program = planned(module, target)
    steps = list(steps_in_loops(program.steps))
    assert steps
    assert max(moved(step, program) for step in steps) < smallest / 2


@names
def test_cpu(path: Path) -> None:
    module = read(path)
    executable = hloc.compile(module, target="cpu")
    for seed in range(3):
        inputs = inputs_of(module, seed)
        for got, want in zip(executable(*inputs), evaluate(module, inputs), strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
@pytest.mark.parametrize("name", EMULATED)
def test_cuda_emulated(name: str, monkeypatch) -> None:
    path = next(p for p in LOOPS if p.stem == name)
    inputs = inputs_of(read(path), 0)
    sources = make_sources(planned(read(path), "h100"), find("h100").machine)
    for got, want in zip(emulate(sources, inputs, monkeypatch), evaluate(read(path), inputs), strict=True):
        np.testing.assert_array_equal(got, want)


# -- random loops ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("first", range(0, 120, 40))
def test_random_loops_keep_what_is_read(first: int, target: str) -> None:
    for seed in range(first, first + 40):
        text, count = random_loop(random.Random(seed))
        module = parse_module(text, f"random_loop_{seed}")
        inputs = random_inputs(count, seed)
        want = evaluate(module, inputs)
        planned(module, target)
        check_memory(module)
        for got, right in zip(evaluate(module, inputs), want, strict=True):
            np.testing.assert_array_equal(got, right)


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_random_loops(seed: int) -> None:
    text, count = random_loop(random.Random(seed))
    inputs = random_inputs(count, seed)
    for got, want in zip(hloc.compile(text, target="cpu")(*inputs), evaluate(parse_module(text), inputs), strict=True):
        np.testing.assert_array_equal(got, want)
