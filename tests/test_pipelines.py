"""The pipelines keep their own ordering rules; the runner repeats, verifies, times, dumps, and names who failed."""
from __future__ import annotations

import pytest

from hloc.errors import UsageError, VerifyError
from hloc.passes.context import PassContext
from hloc.passes.pipelines import (
    ALL_PASSES,
    ORDERING,
    PARTITIONING,
    PARTITIONING_ORDERING,
    PIPELINES,
    pipeline_for,
)
from hloc.passes.runner import Repeat, flatten, named_passes, run_passes
from hloc.text import parse_module

TEXT = """
ENTRY e {
  x = f32[4] parameter(0)
  a = f32[4] negate(x)
  b = f32[4] negate(a)
  ROOT c = f32[4] add(b, b)
}
"""


@pytest.mark.parametrize("target", PIPELINES)
def test_ordering(target: str) -> None:
    order = [one.__name__ for one in flatten(pipeline_for(target))]
    for first, second, why in ORDERING:
        if {first.__name__, second.__name__} <= set(order):
            assert order.index(first.__name__) < order.index(second.__name__), why


def test_every_order_is_of_a_pipeline() -> None:
    pipelines = [{one.__name__ for one in flatten(passes)} for passes in PIPELINES.values()]
    assert all(any({a.__name__, b.__name__} <= own for own in pipelines) for a, b, _ in ORDERING)


def test_ordering_of_partitioning() -> None:
    order = [one.__name__ for one in flatten(PARTITIONING)]
    for first, second, why in PARTITIONING_ORDERING:
        assert order.index(first.__name__) < order.index(second.__name__), why


def test_names_are_the_functions() -> None:
    assert all(name == one.__name__ and one.__doc__ for name, one in ALL_PASSES.items())


def test_unknown_names() -> None:
    with pytest.raises(UsageError, match="unknown pass 'csee'"):
        named_passes(["csee"], ALL_PASSES)
    with pytest.raises(UsageError, match="no pipeline"):
        pipeline_for("abacus")


def test_the_failing_pass_is_named() -> None:
    def careless(module, context) -> bool:
        root = module.entry.root
        root.shape = root.shape.with_dimensions((5,))
        return True

    with pytest.raises(VerifyError, match="pass careless broke the module"):
        run_passes(parse_module(TEXT), [careless], PassContext())


def test_groups_repeat_until_nothing_changes_and_no_longer() -> None:
    runs = []

    def count_down(module, context) -> bool:
        runs.append(1)
        return len(runs) < 3

    run_passes(parse_module(TEXT), [Repeat("group", (count_down,))], PassContext())
    assert len(runs) == 3
    runs.clear()
    run_passes(parse_module(TEXT), [Repeat("group", (lambda m, c: not runs.append(1),), limit=5)], PassContext())
    assert len(runs) == 5


def test_timings_dumps_and_progress() -> None:
    timings, dumps, seen = [], [], []
    passes = named_passes(["algebraic_simplifier", "dce"], ALL_PASSES)
    run_passes(parse_module(TEXT), passes, PassContext(), timings=timings, progress=seen.append, dump_before=["dce"],
               dump_after=["all"], on_dump=lambda title, text: dumps.append((title, text)))
    assert [t.name for t in timings] == seen == ["algebraic_simplifier", "dce"]
    assert [t.changed for t in timings] == [True, False]
    assert [title for title, _ in dumps] == ["after algebraic_simplifier", "before dce", "after dce"]
    assert "negate" not in dumps[0][1]


def test_deep_modules_need_no_recursion() -> None:
    lines = ["ENTRY e {", "  x0 = f32[4] parameter(0)"]
    lines += [f"  x{n} = f32[4] {'negate' if n % 3 else 'exponential'}(x{n - 1})" for n in range(1, 20_000)]
    module = parse_module("\n".join([*lines, "  ROOT r = f32[4] negate(x19999)", "}"]))
    simplification = next(p for p in PIPELINES["cpu"] if isinstance(p, Repeat))
    run_passes(module, [simplification], PassContext(), verify=False)
    assert len(module.entry.instructions) < 10_000
