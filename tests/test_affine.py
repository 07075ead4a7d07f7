"""Affine forms of positions: hloc/kernels/affine.py, judged by the interpreter of the loop IR."""
from __future__ import annotations

import numpy as np
import pytest

from hloc.kernels.affine import Affine, Along, affine, forms, injective, of_names
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, VECTOR, Apply, Assign, Const, Expr, For, Kernel, Let, Load, Store, Var
from hloc.kernels.text.interpreter import interpret

I, J, P, Q = (Var(name, INDEX) for name in ("i", "j", "p", "q"))


def n(value: int) -> Const:
    return Const(value, INDEX)


def op(name: str, a: Expr, b: Expr) -> Apply:
    return Apply(name, (a, b), INDEX)


def value(expr: Expr, **names: int) -> int:
    """What an expression is where names have these values."""
    out = np.zeros(1, np.int64)
    lets = tuple(Let(name, n(number)) for name, number in names.items())
    interpret(Kernel("k", (), (*lets, Store("out", n(0), Apply("convert", (expr,), "s64")))), {"out": out})
    return int(out[0])


def random_position(random: np.random.Generator, names: list[Var], depth: int) -> Expr:
    if depth == 0:
        return names[random.integers(len(names))] if random.random() < 0.6 else n(int(random.integers(-9, 9)))
    kind = random.choice(["add", "subtract", "multiply", "remainder"], p=[0.4, 0.25, 0.25, 0.1])
    left = random_position(random, names, depth - 1)
    if kind == "remainder":
        return op(kind, left, n(7))
    return op(str(kind), left, random_position(random, names, depth - 1))


@pytest.mark.parametrize("seed", range(60))
def test_forms_have_the_values_of_their_expressions(seed):
    random = np.random.default_rng(seed)
    lets = [Let("p", random_position(random, [I, J], 2)), Let("q", random_position(random, [I, J, P], 2))]
    position, known = random_position(random, [I, J, P, Q], 3), forms(lets)
    form = affine(position, known)
    for i, j in random.integers(-20, 20, (4, 2)).tolist():
        p = value(lets[0].value, i=i, j=j)
        q = value(lets[1].value, i=i, j=j, p=p)
        assert value(form.expression(), i=i, j=j, p=p, q=q) == value(position, i=i, j=j, p=p, q=q)


@pytest.mark.parametrize("seed", range(60))
def test_steps_are_the_same_everywhere(seed):
    random = np.random.default_rng(seed)
    lets = (Let("p", random_position(random, [I, J], 2)), Let("q", random_position(random, [I, P], 2)))
    position = random_position(random, [I, J, P, Q], 2)
    along = Along(For("i", 10, VECTOR, lets))
    step = along.step(position)
    if step is None:
        return

    def at(i: int) -> int:
        p = value(lets[0].value, i=i, j=5)
        return value(position, i=i, j=5, p=p, q=value(lets[1].value, i=i, p=p))
    assert [at(i + 1) - at(i) for i in range(8)] == [step] * 8
    assert value(along.start(position), j=5) == at(0)


def test_names_are_seen_through_but_for_what_is_no_sum():
    known = forms([Let("p", op("add", J, n(4))), Let("q", op("divide", I, n(3)))])
    position = op("add", op("add", op("multiply", I, n(768)), P), Q)
    assert affine(position, known) == of_names({"i": 768, "j": 1, "q": 1}, 4)
    assert affine(op("subtract", P, J), known) == Affine({}, 4)


def test_products_of_names_are_atoms():
    product = op("multiply", I, J)
    form = affine(op("add", product, n(1)), {})
    assert form == Affine({product: 1}, 1) and form.factors is None
    assert form.step("i", ()) is None and form.step("k", ()) == 0 and form.step("k", {"j"}) is None


def test_positions_that_data_or_the_loop_changes_have_no_step():
    read = Load("index", I, "s32")
    body = (Let("t", Apply("convert", (read,), INDEX)), Assign("v", op("add", Var("v", INDEX), n(2))))
    along = Along(For("i", 10, VECTOR, body))
    assert along.step(op("add", I, Var("t", INDEX))) is None
    assert along.step(op("add", I, Var("v", INDEX))) is None
    assert along.step(op("add", I, Apply("convert", (Load("x", J, "s32"),), INDEX))) is None
    assert along.step(op("subtract", J, op("multiply", n(3), I))) == -3


def test_different_counters_give_different_positions():
    factors = {"i": 768, "j": 1}
    assert injective(factors, {"i": 10, "j": 768}) and not injective(factors, {"i": 10, "j": 769})
    assert injective({"i": -4, "j": 1}, {"i": 9, "j": 4}) and not injective({"i": 1}, {"i": 9, "j": 2})


def test_arithmetic_of_positions_is_folded():
    assert index_apply("add", n(2), n(3)) == n(5) and index_apply("divide", n(15), n(4)) == n(3)
    assert index_apply("divide", n(-15), n(4)) == op("divide", n(-15), n(4))        # C rounds toward zero
    assert index_apply("multiply", I, n(0)) == n(0) == index_apply("multiply", n(0), I)
    assert index_apply("add", n(0), I) == I == index_apply("subtract", I, n(0)) == index_apply("divide", I, n(1))
    assert index_apply("add", I, n(-4)) == op("subtract", I, n(4))
    assert index_apply("remainder", I, n(1)) == op("remainder", I, n(1))
