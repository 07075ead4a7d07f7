"""Compilation takes time in proportion to a module: the functions that run for each instruction are counted at two
sizes, and so is what the C compiler gets, for the kinds of module that made some search or table grow faster (growing_modules.py)."""
from __future__ import annotations

import re

import pytest
from growing_modules import KINDS, sizes_of
from linearity import calls_made

from hloc import api
from hloc.machine import Machine
from hloc.targets import find
from hloc.targets.cpu.building.unit_costs import kernel_cost
from hloc.targets.cpu.program.sources import make_sources

LARGER = (150, 600)           # where an instruction takes little, or where large arrays have other kernels
OF_LITTLE = frozenset(["dots", "functions", "readers", "selects", "slices"])
MOST = 1.15                   # times as much for each instruction of the larger module
LONGEST = 1_500               # milliseconds of a C compiler for one function


@pytest.fixture(scope="module", autouse=True)
def _imported() -> None:
    """What a compilation imports is no part of it."""
    for target in ("cpu", "h200"):
        for make in KINDS.values():
            compilation_calls(make(4), target)


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_compilation_is_linear(kind: str, target: str) -> None:
    """Passes, lowering and printing; without the C compiler."""
    sizes = LARGER if kind in OF_LITTLE else sizes_of(kind)
    small, large = (compilation_calls(KINDS[kind](size), target) / size for size in sizes)
    assert large < MOST * small, f"{small:,.0f} calls for each of {sizes[0]}, {large:,.0f} for each of {sizes[1]}"


def compilation_calls(text: str, target: str) -> int:
    return calls_made(lambda module: api.compile(module, target, run=False).source, api.load(text))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_c_compiler_has_as_much_to_do(kind: str) -> None:
    """For each instruction of a larger module, by the estimate after which units are dealt out, and no single function
    has more to do than some 100 loops: compilers take longer for each statement of a longer one."""
    sizes = sizes_of(kind)
    small, large = (kernel_costs(KINDS[kind](size)) for size in sizes)
    assert sum(large) / sizes[1] < MOST * sum(small) / sizes[0]
    assert max(large) < LONGEST


@pytest.mark.parametrize("target", ["cpu", "h200"])
@pytest.mark.parametrize(("opcode", "shape", "function"), [
    ("sine", "f32[1000]", "sin_f32"), ("sine", "f32[]", "sin_f32"), ("tanh", "f64[100]", "tanh_f64"),
    ("exponential", "bf16[1000]", "exp_f32"), ("logistic", "f16[1000]", "logistic_f32"), ("log", "c64[100]", "log_c64")])
def test_functions_are_written_out_once(target: str, opcode: str, shape: str, function: str) -> None:
    """Of many in a kernel: others are calls. Vectors of each number of lanes have a function."""
    source = api.compile(api.load(KINDS["functions"](100, opcode, shape)), target, run=False).source
    widths = set(re.findall(rf"hlocv_{function}x\d+\(", source))
    assert source.count(f"hloc_{function}(") == max(1, len(widths)) <= 2


def test_an_incomplete_beta_function_is_no_more_than_its_text_says() -> None:
    """JAX's betainc: continued fractions in loops, with many selects in selects, which once became cases."""
    jax = pytest.importorskip("jax", reason="jax, which writes the module, is not installed")
    number = jax.ShapeDtypeStruct((1000,), "float32")
    text = jax.jit(jax.scipy.special.betainc).lower(number, number, number).as_text(dialect="hlo")
    count = len(list(api.load(text).instructions()))
    costs = kernel_costs(text)
    assert sum(costs) < 1.2 * count and max(costs) < LONGEST / 5, (sum(costs), max(costs), count)


def kernel_costs(text: str) -> list[float]:
    program = api.plan(api.optimize(api.load(text), find("cpu")), find("cpu"))
    return [kernel_cost(kernel) for kernel in make_sources(program, Machine.host()).kernels]
