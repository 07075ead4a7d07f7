"""Properties that hold for every module, tried on random well-typed ones (random_modules.py).

parse(print(m)) == m; the verifier accepts m; XLA reads it, where jaxlib is installed; every pass alone and the whole
pipelines keep the meaning; compiled for the CPU, a module gives what the evaluator gives.

    HLOC_FUZZ_SECONDS=1800 python -m pytest tests/test_properties.py       hunts for that long, with fresh seeds

Meaning is compared element by element with what rounding may do (noise.py).
"""
from __future__ import annotations

import os
import time
from collections.abc import Callable
from itertools import count

import pytest
from combined import combined, split
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from module_equality import difference
from noise import Expectation, random_inputs
from random_body import Drawn, Seeded
from random_modules import Facts, random_facts, random_module

import hloc
from hloc.errors import UnsupportedError
from hloc.evaluate import evaluate
from hloc.inputs import entry_parameters
from hloc.ir import Module
from hloc.ir.clone import clone_module
from hloc.machine import Machine
from hloc.ops.table import OPS
from hloc.passes.context import PassContext
from hloc.passes.pipelines import ALL_PASSES, PIPELINES
from hloc.passes.runner import run_passes
from hloc.targets.cuda.gpus import GPUS
from hloc.text import parse_module
from hloc.verify import verify

try:
    from jaxlib import _hlo
except ImportError:
    _hlo = None

SECONDS = int(os.environ.get("HLOC_FUZZ_SECONDS", "0"))
CPU = Machine("test", "cpu", cores=2, vector_bytes=32, l1_bytes=32 << 10, l2_bytes=1 << 20, bandwidth=20e9,
              launch_seconds=4e-6)
# Excess precision alters results where f16 overflows; its own tests are in test_cuda_precision.py.
CONTEXTS = {"cpu": PassContext(CPU, "cpu"), "cuda": PassContext(GPUS["h100"], "cuda", {"excess_precision": "off"})}
ALWAYS = dict(deadline=None, suppress_health_check=list(HealthCheck))

settings.register_profile("ci", derandomize=True, max_examples=40, database=None, **ALWAYS)
settings.register_profile("hunt", max_examples=60, **ALWAYS)
settings.load_profile("hunt" if SECONDS else "ci")


@st.composite
def modules(draw) -> str:
    """The text of a module; hypothesis leaves out what a failure does not need."""
    choices = Drawn(draw, st.integers)
    return random_module(choices, random_facts(choices))


def hold(statement: Callable[[], None]) -> None:
    """Try a statement on its examples; in a hunt again and again, with others each time, for a third of the seconds."""
    end = time.monotonic() + SECONDS / 3
    statement()
    while time.monotonic() < end:
        statement()


def inputs_of(module: Module, seed: int):
    return random_inputs([p.shape for p in entry_parameters(module)], seed)


def assert_text(module: Module) -> None:
    """Printed and read again, it is the same; XLA reads it too."""
    text = str(module)
    assert difference(parse_module(text), module) is None
    assert str(parse_module(text)) == text
    if _hlo is not None:
        _hlo.hlo_module_from_text(text)


# -- text and passes ---------------------------------------------------------------------------------------------------

@given(modules())
def text_is_kept(text: str) -> None:
    module = parse_module(text)
    verify(module)
    assert_text(module)


def test_text() -> None:
    hold(text_is_kept)


@given(modules(), st.integers(0, 14))
def meaning_is_kept(text: str, seed: int) -> None:
    """By every pass alone, and by the pipelines."""
    module = parse_module(text)
    inputs = inputs_of(module, seed)
    wanted = Expectation(module, inputs)
    runs = [(name, (one,), "cpu") for name, one in ALL_PASSES.items()]
    seen = {str(module)}
    for name, passes, target in [*runs, *((name, passes, name) for name, passes in PIPELINES.items())]:
        copy = clone_module(module)
        run_passes(copy, passes, CONTEXTS[target])
        if str(copy) not in seen:
            seen.add(str(copy))
            assert_text(copy)
            assert wanted.difference(evaluate(copy, inputs)) == "", name


def test_meaning_is_kept() -> None:
    hold(meaning_is_kept)


@pytest.mark.parametrize("layouts", [False, True])
@pytest.mark.parametrize("all_types", [False, True])
def test_generator_is_broad(layouts: bool, all_types: bool) -> None:
    """Among few modules nearly all kinds of instructions occur, so that the properties speak of all of them."""
    seen: set[str] = set()
    for seed in range(60):
        module = parse_module(random_module(Seeded(seed), Facts(all_types, layouts, 30)))
        seen.update(i.opcode for i in module.instructions())
    assert len(seen) > 75 and {"while", "conditional", "fusion", "gather", "scatter", "convolution", "sort"} <= seen


def test_generator_knows_every_opcode() -> None:
    """Among modules at the edges all opcodes of the table occur: of no elements, one, primes, windows over padding. Not
    tuple-select, which XLA has no more and could not judge; testdata/ops holds its values."""
    seen: set[str] = {"tuple-select"}
    for seed in count():
        module = parse_module(random_module(Seeded(seed), Facts(True, bool(seed % 2), 40, edges=True)))
        seen.update(i.opcode for i in module.instructions())
        if seen >= set(OPS):
            break
        assert seed < 400, sorted(set(OPS) - seen)


# -- targets -----------------------------------------------------------------------------------------------------------

def batches():
    """Seeds of the modules that are built together: the same few in every test run, new ones for a third of a hunt.
    Those of every other batch are large."""
    if not SECONDS:
        yield from (range(first, first + 40) for first in (0, 40, 80))
        return
    start, first = time.monotonic(), time.time_ns() // 1_000_000_000 // 40 * 40
    for number in count():
        if time.monotonic() - start > SECONDS / 3:
            return
        yield range(first + 40 * number, first + 40 * (number + 1))


def test_cpu_gives_what_the_evaluator_gives() -> None:
    for seeds in batches():
        programs = [p for p in (supported(seed) for seed in seeds) if p is not None]
        assert len(programs) > len(seeds) * 3 // 4
        run_together(programs, is_large(seeds[0]))


def is_large(seed: int) -> bool:
    return seed // 40 % 2 == 1


def supported(seed: int) -> tuple[str, Module] | None:
    """A random module, or None where it has something that the target says it cannot compile."""
    choices = Seeded(seed)
    text = random_module(choices, random_facts(choices)._replace(large=is_large(seed)))
    module = parse_module(text)
    try:
        hloc.compile(module, target="cpu", run=False)
    except UnsupportedError:
        return None
    return text, module


def run_together(programs: list[tuple[str, Module]], large: bool) -> None:
    parts = [module for _, module in programs]
    exe = hloc.compile(combined(parts), target="cpu", consume=True)
    for seed in (0, 2) if large else (0, 2, 4):          # 4: huge numbers, too, whose long sums overflow in any order
        inputs = [inputs_of(module, seed) for module in parts]
        results = split(parts, exe(*[array for arrays in inputs for array in arrays]))
        for (text, module), given_arrays, got in zip(programs, inputs, results):
            assert Expectation(module, given_arrays, large).difference(got) == "", text
