"""Affine forms of positions: hloc/kernels/affine.py, judged by the interpreter of the loop IR."""
from __future__ import annotations

import math

import numpy as np
import pytest

from hloc.kernels.affine import Along, affine, factors_of, forms, injective, of_names, stays_inside, stride, without
from hloc.kernels.indexing import index_apply, sum_of, sum_parts
from hloc.kernels.ir import (
    INDEX,
    SERIAL,
    SUM,
    VECTOR,
    Apply,
    Assign,
    Buffer,
    Const,
    Expr,
    For,
    Kernel,
    Let,
    Load,
    Store,
    Var,
)
from hloc.kernels.text.interpreter import interpret
from hloc.kernels.verify import KernelError, verify_kernel

I, J, P, Q = (Var(name, INDEX) for name in ("i", "j", "p", "q"))


def n(value: int) -> Const:
    return Const(value, INDEX)


def value(expr: Expr, **names: int) -> int:
    """What an expression is where names have these values."""
    out = np.zeros(1, np.int64)
    lets = tuple(Let(name, n(number)) for name, number in names.items())
    interpret(Kernel("k", (), (*lets, Store("out", n(0), Apply("convert", (expr,), "s64")))), {"out": out})
    return int(out[0])


Tree = tuple | str | int                # an operation and its operands, a name, a number


def random_position(random: np.random.Generator, names: str, depth: int) -> Tree:
    if depth == 0:
        return str(random.choice(list(names))) if random.random() < 0.6 else int(random.integers(-9, 9))
    kind = str(random.choice(["add", "subtract", "multiply", "remainder"], p=[0.4, 0.25, 0.25, 0.1]))
    left = random_position(random, names, depth - 1)
    return kind, left, 7 if kind == "remainder" else random_position(random, names, depth - 1)


def built(tree: Tree) -> Expr:
    """The tree in the loop IR."""
    if isinstance(tree, tuple):
        return index_apply(tree[0], *map(built, tree[1:]))
    return Var(tree, INDEX) if isinstance(tree, str) else n(tree)


def number(tree: Tree, **names: int) -> int:
    """The value of the tree, by Python's arithmetic."""
    if not isinstance(tree, tuple):
        return names[tree] if isinstance(tree, str) else tree
    a, b = (number(part, **names) for part in tree[1:])
    return {"add": a + b, "subtract": a - b, "multiply": a * b, "remainder": math.fmod(a, b or 1)}[tree[0]]


@pytest.mark.parametrize("seed", range(60))
def test_forms_have_the_values_of_their_expressions(seed):
    random = np.random.default_rng(seed)
    first, second = random_position(random, "ij", 2), random_position(random, "ijp", 2)
    known = forms([Let("p", built(first)), Let("q", built(second))])
    position = random_position(random, "ijpq", 3)
    form = affine(built(position), known)
    for i, j in random.integers(-20, 20, (4, 2)).tolist():
        p = number(first, i=i, j=j)
        q = number(second, i=i, j=j, p=p)
        right = number(position, i=i, j=j, p=p, q=q)
        assert value(form, i=i, j=j, p=p, q=q) == value(built(position), i=i, j=j, p=p, q=q) == right


@pytest.mark.parametrize("seed", range(60))
def test_steps_are_the_same_everywhere(seed):
    random = np.random.default_rng(seed)
    first, second = random_position(random, "ij", 2), random_position(random, "ip", 2)
    position = random_position(random, "ijpq", 2)
    along = Along(For("i", 10, VECTOR, (Let("p", built(first)), Let("q", built(second)))))
    step = along.step(built(position))
    if step is None:
        return

    def at(i: int) -> int:
        p = number(first, i=i, j=5)
        return number(position, i=i, j=5, p=p, q=number(second, i=i, p=p))
    assert [at(i + 1) - at(i) for i in range(8)] == [step] * 8
    assert value(without(affine(built(position), along.known), "i"), i=3, j=5) == at(0)


@pytest.mark.parametrize("seed", range(60))
def test_sums_have_one_form(seed):
    """In whatever order they are made; the verifier asks for it."""
    random = np.random.default_rng(seed)
    terms = [(random_position(random, "ijpq", 1), int(random.integers(-3, 4))) for _ in range(5)]
    one, other = (sum_of(((built(tree), factor) for tree, factor in order), 3) for order in (terms, terms[::-1]))
    assert dict(sum_parts(one)[0]) == dict(sum_parts(other)[0]) and affine(one, {}) == one
    if isinstance(one, Apply) and one.op == SUM:
        *factors, _ = one.immediate
        assert 0 not in factors and sorted(factors, key=abs, reverse=True) == factors
        assert not any(isinstance(atom, Const) or isinstance(atom, Apply) and atom.op == SUM for atom in one.arguments)


@pytest.mark.parametrize("position", [
    Apply("add", (I, J), INDEX), Apply("multiply", (I, n(2)), INDEX), Apply(SUM, (J, I), INDEX, (1, 2, 0)),
    Apply(SUM, (I,), INDEX, (1, 0)), Apply(SUM, (I, I), INDEX, (2, 1, 0)), Apply(SUM, (I, n(3)), INDEX, (2, 1, 0)),
    Apply(SUM, (I, J), INDEX, (2, 0, 1)), Apply(SUM, (), INDEX, (4,)), Apply(SUM, (I, J), INDEX, (2, 1)),
], ids=["addition", "multiple", "order", "one atom", "twice", "number", "factor 0", "no atom", "no constant"])
def test_the_verifier_refuses_other_sums(position):
    store = Store("out", position, Const(0.0, "f32"))
    loops = For("i", 2, SERIAL, (For("j", 2, SERIAL, (store,)),))
    with pytest.raises(KernelError):
        verify_kernel(Kernel("k", (Buffer("out", "f32", 9, "write"),), (loops,)))


def test_names_are_seen_through_but_for_what_is_no_sum():
    known = forms([Let("p", index_apply("add", J, n(4))), Let("q", index_apply("divide", I, n(3)))])
    position = index_apply("add", index_apply("add", index_apply("multiply", I, n(768)), P), Q)
    assert affine(position, known) == of_names({"i": 768, "j": 1, "q": 1}, 4)
    assert affine(index_apply("subtract", P, J), known) == n(4)


def test_products_of_names_are_atoms():
    product = index_apply("multiply", I, J)
    form = affine(index_apply("add", product, n(1)), {})
    assert form == sum_of([(product, 1)], 1) and factors_of(form) is None
    assert stride(form, "i", ()) is None and stride(form, "k", ()) == 0 and stride(form, "k", {"j"}) is None


def test_positions_that_data_or_the_loop_changes_have_no_step():
    read = Load("index", I, "s32")
    body = (Let("t", Apply("convert", (read,), INDEX)), Assign("v", index_apply("add", Var("v", INDEX), n(2))))
    along = Along(For("i", 10, VECTOR, body))
    assert along.step(index_apply("add", I, Var("t", INDEX))) is None
    assert along.step(index_apply("add", I, Var("v", INDEX))) is None
    assert along.step(index_apply("add", I, Apply("convert", (Load("x", J, "s32"),), INDEX))) is None
    assert along.step(index_apply("subtract", J, index_apply("multiply", n(3), I))) == -3


def test_different_counters_give_different_positions():
    factors = {"i": 768, "j": 1}
    assert injective(factors, {"i": 10, "j": 768}) and not injective(factors, {"i": 10, "j": 769})
    assert injective({"i": -4, "j": 1}, {"i": 9, "j": 4}) and not injective({"i": 1}, {"i": 9, "j": 2})


def test_positions_stay_inside_of_arrays():
    position = of_names({"i": -8, "j": 1}, 72)
    assert stays_inside(position, 80, {"i": 10, "j": 8}) and not stays_inside(position, 79, {"i": 10, "j": 8})
    assert not stays_inside(position, 80, {"i": 11, "j": 8}) and not stays_inside(position, 80, {"i": 10})


def test_arithmetic_of_positions_is_folded():
    assert index_apply("add", n(2), n(3)) == n(5) and index_apply("divide", n(15), n(4)) == n(3)
    assert index_apply("divide", n(-15), n(4)) == Apply("divide", (n(-15), n(4)), INDEX)        # C rounds toward zero
    assert index_apply("multiply", I, n(0)) == n(0) == index_apply("multiply", n(0), I)
    assert index_apply("add", n(0), I) == I == index_apply("subtract", I, n(0)) == index_apply("divide", I, n(1))
    assert index_apply("add", I, n(-4)) == index_apply("subtract", I, n(4)) == Apply(SUM, (I,), INDEX, (1, -4))
    assert index_apply("remainder", I, n(1)) == Apply("remainder", (I, n(1)), INDEX)
