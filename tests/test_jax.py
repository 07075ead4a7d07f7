"""Functions of JAX through hloc: pytrees, pruned, donated and static arguments, binding, pickling, and what is refused."""
from __future__ import annotations

import doctest
import pickle
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import hloc
from hloc.errors import RunError, UnsupportedError, UsageError

jax = pytest.importorskip("jax", reason="jax is not installed: pip install 'hloc[jax]'")
jnp = jax.numpy
DOCS = Path(__file__).parent.parent / "docs"
PARAMS = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "b": np.ones(4, np.float32)}
X = np.linspace(-1, 3, 6, dtype=np.float32).reshape(2, 3)


def layer(params, x):
    return {"y": jnp.tanh(x @ params["w"] + params["b"]), "sum": jnp.sum(x)}, None


def scaled(params, x, unused, n, *, flag=True):
    y = x @ params["w"] * n
    return jnp.sum(y) if flag else y


@hloc.jit(target="cpu")
def at_the_top(x):
    return x


def same(mine, theirs):
    """The same pytree with the same types and values."""
    (a, tree), (b, wanted) = jax.tree_util.tree_flatten(mine), jax.tree_util.tree_flatten(theirs)
    assert tree == wanted
    for left, right in zip(a, b):
        assert left.dtype == right.dtype and left.shape == right.shape
        np.testing.assert_allclose(np.asarray(left, np.complex128), np.asarray(right, np.complex128), rtol=2e-6)


FORMS = {"function": lambda f, *x: hloc.compile(f, *x, target="cpu"),
         "jitted": lambda f, *x: hloc.compile(jax.jit(f), *x, target="cpu"),
         "traced": lambda f, *x: hloc.compile(jax.jit(f).trace(*x), target="cpu"),
         "lowered": lambda f, *x: hloc.compile(jax.jit(f).lower(*x), target="cpu"),
         "lowered, with examples": lambda f, *x: hloc.compile(jax.jit(f).lower(*x), *x, target="cpu"),
         "reference": lambda f, *x: hloc.compile(f, *x, target="reference"),
         "hloc.jit": lambda f, *x: hloc.jit(f, target="cpu"),
         "hloc.jit of jax.jit": lambda f, *x: hloc.jit(jax.jit(f), target="cpu"),
         "hloc.jit, compiled": lambda f, *x: hloc.compile(hloc.jit(f), *x, target="cpu")}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_function(form):
    compiled = FORMS[form](layer, PARAMS, X)
    same(compiled(PARAMS, X), jax.jit(layer)(PARAMS, X))
    same(compiled(jax.tree.map(jnp.asarray, PARAMS), jnp.asarray(X)), layer(PARAMS, X))


class Pair(NamedTuple):
    left: object
    right: object


PYTREES = [((), lambda: jnp.ones(3)), ((X,), lambda x: x), ((Pair(X, [X, None]),), lambda p: Pair(p.right[0], (p.left,))),
           ((X, 2), lambda x, n: x * n), ((True, 1.5), lambda a, b: jnp.where(a, b, -b)), (({},), lambda d: {"x": jnp.zeros(2)}),
           ((np.float64(2),), lambda x: x + 1), ((np.arange(3),), lambda x: x[::-1]), ((np.zeros((0, 3), "f4"),), lambda x: x.sum(0)),
           ((X.astype(jnp.bfloat16),), lambda x: x * 2), ((np.asfortranarray(X),), lambda x: x.T),
           ((X > 0,), lambda x: ~x), ((X + 1j * X,), lambda x: jnp.conj(x))]


@pytest.mark.parametrize("number", range(len(PYTREES)))
def test_pytrees_and_types(number):
    args, function = PYTREES[number]
    same(hloc.jit(function, target="cpu")(*args), jax.jit(function)(*args))
    same(hloc.compile(function, *args, target="cpu")(*args), jax.jit(function)(*args))


def test_keyword_arguments_are_those_of_the_example():
    compiled = hloc.jit(layer, target="cpu").compile(PARAMS, x=X)
    same(compiled(PARAMS, x=X), layer(PARAMS, X))
    with pytest.raises(RunError, match="takes 1 positional argument, but 2 were given"):
        compiled(PARAMS, X)
    same(compiled.bind(x=X)(PARAMS), layer(PARAMS, X))


def test_shapes_alone_are_examples():
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (PARAMS, X))
    same(hloc.compile(layer, *shapes, target="cpu")(PARAMS, X), layer(PARAMS, X))


@pytest.mark.filterwarnings("ignore:Some donated buffers")
def test_pruned_and_donated_arguments():
    """Arguments that are not read are no parameters; donated ones are not overwritten."""
    compiled = hloc.compile(jax.jit(scaled, static_argnums=3, donate_argnums=(0, 1)), PARAMS, X, 1.0, 2, target="cpu")
    assert str(compiled.executable.parameters) == "[params['w']: f32[3,4], x: f32[2,3]]"
    before = X.copy()
    same(compiled(PARAMS, X, object()), jnp.sum(X @ PARAMS["w"] * 2))
    assert np.array_equal(X, before)
    step = hloc.compile(jax.jit(lambda s: {"n": s["n"] + 1, "x": s["x"] * 2}, donate_argnums=0), {"n": 0, "x": X}, target="cpu")
    state = step(first := {"n": 0, "x": X.copy()})
    same(step(state), {"n": jnp.int32(2), "x": X * 4})
    assert np.array_equal(first["x"], X)


def test_static_arguments():
    """Each value is a compilation of its own, 1 and True too."""
    jitted = hloc.jit(scaled, target="cpu", static_argnums=3, static_argnames="flag")
    for n, flag in ((2, True), (3, True), (2, False), (True, True), (1, True)):
        same(jitted(PARAMS, X, 0.0, n, flag=flag), scaled(PARAMS, X, 0.0, n, flag=flag))
    count = len(jitted._known)
    jitted(PARAMS, X + 1, 1.0, 2, flag=True)
    assert count == 5 and len(jitted._known) == count
    by_name = hloc.jit(lambda x, n: x * n, static_argnames="n", target="cpu")
    same([by_name(X, 2), by_name(X, n=3)], [X * 2, X * 3])
    same(hloc.jit(lambda x, n: x * n, static_argnums=-1, target="cpu")(X, 2), X * 2)
    same(hloc.jit(jax.jit(scaled, static_argnums=3), target="cpu")(PARAMS, X, 0.0, 2), scaled(PARAMS, X, 0, 2))
    compiled = jitted.compile(PARAMS, X, 0.0, 2, flag=False)
    same(compiled(PARAMS, X, 0.0), scaled(PARAMS, X, 0.0, 2, flag=False))


def test_a_decorator_compiles_once_for_each_signature():
    @hloc.jit(target="cpu")
    def double(x):
        """Twice."""
        return x + x
    for x in (X, X[:1], X.astype(np.int32), X, 1, 1.0):
        same(double(x), jax.jit(lambda x: x + x)(x))
    assert len(double._known) == 5 and double.__doc__ == "Twice." and double.__name__ == "double"
    with jax.enable_x64(True):
        assert double(np.ones(2)).dtype == np.float64
    assert double(np.ones(2)).dtype == np.float32
    double.clear_cache()
    assert not double._known


def test_typed_keys_of_random_numbers():
    key = jax.random.key(7)
    draw = hloc.jit(lambda k: (jax.random.split(k, 3), jax.random.uniform(k, (4,))), target="cpu")
    keys, numbers = draw(key)
    assert keys.dtype == key.dtype and bool((keys == jax.random.split(key, 3)).all())
    np.testing.assert_array_equal(numbers, jax.random.uniform(key, (4,)))
    same(draw(keys[0])[1], jax.random.uniform(keys[0], (4,)))


def test_constants_of_the_closure():
    """JAX's own text elides large ones; hloc reads the proto."""
    table = np.random.default_rng(0).normal(size=3000).astype(np.float32)
    same(hloc.jit(lambda i: jnp.asarray(table)[i], target="cpu")(np.int32(1234)), table[1234])


def test_gradients_loops_and_branches():
    def loss(params, x):
        def body(state, _):
            return jnp.tanh(state @ params["w"][:, :3]), jnp.sum(state)
        state, sums = jax.lax.scan(body, x, None, length=4)
        return jnp.sum(state) + jax.lax.cond(sums[0] > 0, lambda: sums[1], lambda: sums[2])
    params = {"w": PARAMS["w"] / 20}
    mine, theirs = hloc.jit(jax.value_and_grad(loss), target="cpu")(params, X), jax.jit(jax.value_and_grad(loss))(params, X)
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-5)
    np.testing.assert_allclose(mine[1]["w"], theirs[1]["w"], rtol=1e-4, atol=1e-5)


# -- binding and pickling ----------------------------------------------------------------------------------------------

def test_bound_arguments():
    compiled = hloc.compile(scaled, PARAMS, X, 1.0, 2.0, target="cpu")
    bound = compiled.bind(PARAMS)
    same(bound(X, 1.0, 2.0), scaled(PARAMS, X, 1.0, 2.0))
    same(bound.bind(X)(1.0, 3.0), scaled(PARAMS, X, 1.0, 3.0))
    same(bound.bind(X, 0.0, 3.0)(), scaled(PARAMS, X, 0.0, 3.0))
    other = compiled.bind({"w": PARAMS["w"] * 2, "b": None or PARAMS["b"]})
    same([other(X, 1.0, 2.0), bound(X, 1.0, 2.0)], [scaled(PARAMS, X, 1.0, 4.0), scaled(PARAMS, X, 1.0, 2.0)])
    assert str(bound.executable.parameters) == "[x: f32[2,3], n: f32[]]"


def test_pickles():
    bound = hloc.compile(layer, PARAMS, X, target="cpu").bind(PARAMS)
    for written in (hloc.compile(layer, PARAMS, X, target="reference").bind(PARAMS), bound):
        again = pickle.loads(pickle.dumps(written))
        same(again(X), layer(PARAMS, X))
        assert again.executable.target == written.executable.target
    swap = hloc.compile(lambda p: Pair(p.right, [p.left]), Pair(X, X + 1), target="cpu")
    same(pickle.loads(pickle.dumps(swap))(Pair(X, X + 1)), Pair(X + 1, [X]))
    assert pickle.loads(pickle.dumps(at_the_top)) is at_the_top
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(hloc.jit(layer))


# -- source lines ------------------------------------------------------------------------------------------------------

def test_lines_of_the_user_are_in_errors_and_profiles():
    """Those of hloc are not, and functions that JAX writes once have the line of their call."""
    def asks(x):
        return jax.pure_callback(lambda y: y, x, x)
    first = asks.__code__.co_firstlineno
    with pytest.raises(UnsupportedError) as error:
        hloc.compile(asks, X, target="cpu")
    name = "test_lines_of_the_user_are_in_errors_and_profiles"
    assert f"written at test_jax.py:{first + 1} ({name}.<locals>.asks), called at test_jax.py:{first + 4} ({name})" in str(error.value)
    assert "jit(asks):byte" in str(error.value) and "api.py" not in str(error.value)

    def slow(x):
        y = jnp.dot(x, x)
        return jnp.sort(y, axis=0)
    compiled = hloc.compile(slow, np.ones((300, 300), np.float32), target="cpu", options=hloc.Options(profile=True))
    compiled(np.ones((300, 300), np.float32))
    lines = {step.instruction.written_at()[0].line for step in compiled.executable.profile()}
    assert lines == {slow.__code__.co_firstlineno + 1, slow.__code__.co_firstlineno + 2}


# -- what is refused ---------------------------------------------------------------------------------------------------

def test_refusals():
    jitted = hloc.jit(scaled, target="cpu", static_argnums=3)
    compiled = hloc.compile(scaled, PARAMS, X, 1.0, 2.0, target="cpu")
    place = f"test_jax.py:{scaled.__code__.co_firstlineno} (scaled)"
    deleted = jnp.ones((2, 3))
    deleted.delete()
    cases = [
        (lambda: hloc.jit(3), UsageError, "hloc compiles functions of JAX, not int"),
        (lambda: hloc.compile(jax.jit(scaled).lower(PARAMS, X, 1.0, 2.0).compile()), UsageError, "XLA has compiled this"),
        (lambda: hloc.compile(3), UsageError, "a module is a path, text or bytes, not int"),
        (lambda: hloc.compile("a.hlo", "cpu", X), UsageError, "examples of arguments are for functions"),
        (lambda: hloc.compile(scaled), UsageError, f"no arguments of {place}: missing a required argument: 'params'"),
        (lambda: hloc.compile(scaled, PARAMS, "x", 1.0, 2.0), UsageError, f"x of {place} is of type str, which JAX does not"),
        (lambda: hloc.compile(scaled, PARAMS, np.array(["x"]), 1.0, 2.0), UsageError, f"x of {place} is an array of <U1, which"),
        (lambda: compiled([PARAMS], X, 1.0, 2.0), RunError, f"params of {place} must be {{'b': *, 'w': *}}, but [{{'b'"),
        (lambda: compiled(PARAMS, X, 1.0), RunError, "takes 4 positional arguments, but 3 were given"),
        (lambda: compiled(PARAMS, X, 1.0, 2.0, flag=True), RunError, "has no keyword argument 'flag'"),
        (lambda: compiled(PARAMS, X[:1], 1.0, 2.0), RunError, "input 1 (x) must be f32[2,3], but f32[1,3] was given"),
        (lambda: compiled(PARAMS, X > 0, 1.0, 2.0), RunError, "input 1 (x) must be f32[2,3], but pred[2,3] was given"),
        (lambda: compiled(PARAMS, deleted, 1.0, 2.0), RunError, "input 1 (x) must be f32[2,3]: "),
        (lambda: compiled({"w": X, "b": 0}, X, 1.0, 2.0), RunError, "input 0 (params['w']) must be f32[3,4]"),
        (lambda: compiled.bind({"w": X, "b": 0}), RunError, "input 0 (params['w']) must be f32[3,4]"),
        (lambda: compiled.bind(PARAMS, X, 1.0, 2.0, 3.0), RunError, "takes 4 positional arguments, but 5 were given"),
        (lambda: compiled.bind(flag=1), RunError, "scaled) "),
        (lambda: jax.jit(lambda x: jitted(PARAMS, x, 1.0, 2))(X), UsageError, f"x of {place} is a tracer of JAX (float32[2,3])"),
        (lambda: jax.grad(lambda x: compiled(PARAMS, x, 1.0, 2.0))(X), UsageError, "is a tracer of JAX"),
        (lambda: jax.vmap(lambda x: compiled.bind(PARAMS, x))(X[None]), UsageError, "is a tracer of JAX"),
        (lambda: jitted(PARAMS, X, 1.0, [2]), UsageError, f"static argument 3 of {place} is of type list, which has no hash"),
        (lambda: hloc.jit(scaled, static_argnums=9), UsageError, f"jax.jit refuses {place}"),
        (lambda: hloc.jit(jax.jit(scaled), static_argnums=3), UsageError, "is jitted already"),
        (lambda: hloc.compile(jax.jit(layer).lower(PARAMS, X), X, target="cpu"), RunError, "takes 2 positional arguments, but 1"),
        (lambda: hloc.compile(jax.jit(jnp.sin).lower(X), "cpu"), RunError, "args[0] of jit(sin) is f32[2,3], but the example is of str\nhint: the target is named"),
        (lambda: hloc.compile(jax.jit(jnp.sin).lower(X), X[0]), RunError, "args[0] of jit(sin) is f32[2,3], but the example is of shape [3]"),
        (lambda: compiled.bind(PARAMS).executable.save("m.so"), UsageError, "has bound arguments"),
    ]
    for call, kind, words in cases:
        with pytest.raises(kind) as error:
            call()
        assert words in str(error.value), str(error.value)


def test_without_jax(monkeypatch):
    from hloc import jax_adapter
    monkeypatch.setitem(__import__("sys").modules, "jax", None)
    jax_adapter.library.cache_clear()
    try:
        with pytest.raises(UsageError, match="pip install 'hloc\\[jax\\]'"):
            hloc.jit(layer)(X)
    finally:
        jax_adapter.library.cache_clear()


# -- the docs ----------------------------------------------------------------------------------------------------------

def test_what_the_docs_show():
    """The session in "From JAX" of docs/python.md prints what it says."""
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    section = re.search(r"^## From JAX$(.*)", text, re.MULTILINE | re.DOTALL)[1]
    session = "\n".join(re.findall(r"^```pycon\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    example = doctest.DocTestParser().get_doctest(session, {}, "python.md", "python.md", 0)
    assert len(example.examples) > 5
    failed = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(example, out=failed.append)
    assert not failed, "".join(failed)


