"""Functions of JAX, compiled by hloc: pytrees in, pytrees of NumPy arrays out.

    f = hloc.jit(lambda params, x: x @ params["w"])          y = f(params, x)            compiled by the first call
    g = hloc.compile(jax.jit(f), params, x)                  y = g(params, x)            compiled now
    h = g.bind(params)                                       y = h(x)                    params are fixed

Arguments may be arrays of NumPy, JAX or PyTorch, and Python's numbers; they are read in place (inputs/dlpack.py).
Static arguments are part of a compiled function, as in JAX. Only jax_adapter.py imports jax.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Union

import numpy as np

from hloc import jax_adapter as jax
from hloc.errors import RunError, UnsupportedError, UsageError
from hloc.executable import Executable
from hloc.inputs import Parameter
from hloc.ir import numpy_dtype

Compiler = Callable[[bytes, str], Executable]              # the content of a module's file and its name for messages
SHOWN_TREE = 200                                           # characters of a pytree in a message


class Lowerable(Protocol):
    """jax.stages.Traced."""

    def lower(self, *args: Any, **kwargs: Any) -> Any: ...


class Lowered(Protocol):
    """jax.stages.Lowered."""

    def compiler_ir(self, dialect: str | None = None) -> Any: ...


FunctionSource = Union[Callable[..., Any], Lowerable, Lowered]


@dataclass(eq=False)
class CompiledFunction:
    """executable   the program over flat arrays: its parameters are named as in the function (params['w'])
    arguments    the pytree (args, kwargs) that calls must have; its leaves are numbers
    kept         the numbers of the leaves that the program reads, in the order of its parameters
    results      the pytree of the results, whose leaves are numbers;  keys: which are JAX's typed keys
                 (jax_adapter.Lowering)
    names        of the positional arguments, if they are known
    """

    name: str
    executable: Executable
    arguments: Any
    kept: tuple[int, ...]
    results: Any
    keys: tuple[str, ...]
    names: tuple[str, ...] = ()
    _tree: Any = field(init=False, repr=False)
    _result_tree: Any = field(init=False, repr=False)
    _places: list[tuple[int, np.dtype[Any]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        numbers, self._tree = jax.flatten(self.arguments)
        self._result_tree = jax.flatten(self.results)[1]
        order = {number: place for place, number in enumerate(numbers)}
        self._places = [(order[n], numpy_dtype(p.shape.element_type)) for n, p in
                        zip(self.kept, self.executable.parameters)]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function's results, with NumPy arrays in place of JAX's. Raises RunError, naming the argument, if the
        arguments have another pytree, type or shape than it was compiled for, UsageError for JAX's tracers."""
        return self._tree_of(self.executable(*self._flat(args, kwargs)))

    def on_device(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; on a GPU the results stay there, as DeviceArrays, for later calls."""
        return self._tree_of(self.executable(*self._flat(args, kwargs), device=True))

    def bind(self, *args: Any, **kwargs: Any) -> CompiledFunction:
        """Fix the first arguments and those by keyword (see Executable.bind). Returns the function of the others.
        Raises the errors of a call."""
        structures, named = self.arguments
        if len(args) > len(structures) or kwargs.keys() - named.keys():
            raise self._other_arguments(args, kwargs)
        part = (structures[:len(args)], {name: named[name] for name in kwargs})
        numbers, tree = jax.flatten(part)
        leaves, given = jax.flatten((args, kwargs))
        if tree != given:
            raise self._other_tree(part, args, kwargs)
        fixed = {n: leaf for n, leaf in zip(numbers, leaves) if n in self.kept}
        weights = {place: self._leaf(fixed[n], place) for place, n in enumerate(self.kept) if n in fixed}
        rest = (structures[len(args):], {name: part for name, part in named.items() if name not in kwargs})
        return replace(self, executable=self.executable.bind(weights), arguments=rest, names=self.names[len(args):],
                       kept=tuple(n for n in self.kept if n not in fixed))

    def _flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        leaves, tree = jax.flatten((args, kwargs))
        if tree != self._tree:
            raise self._other_arguments(args, kwargs)
        arrays = []
        for number, (place, dtype) in enumerate(self._places):
            leaf = leaves[place]
            arrays.append(leaf if type(leaf) is np.ndarray and leaf.dtype is dtype else self._leaf(leaf, number))
        return arrays

    def check_examples(self, args: tuple[Any, ...]) -> None:
        """Raise RunError if examples, which may be only shapes, are no arguments of the function."""
        for parameter, leaf in zip(self.executable.parameters, self._flat(args, {})):
            sizes = getattr(leaf, "shape", () if isinstance(leaf, (bool, int, float, complex)) else None)
            if sizes is None or tuple(sizes) != parameter.shape.dimensions:
                given = type(leaf).__name__ if sizes is None else f"shape {list(sizes)}"
                raise RunError(f"{parameter.name} of {self.name} is {parameter.shape.to_string(False)}, but the "
                               f"example is of {given}", hint="the target is named: hloc.compile(f, x, target='cpu')"
                               if isinstance(leaf, str) else None)

    def _leaf(self, leaf: Any, number: int) -> Any:
        parameter = self.executable.parameters[number]
        jax.refuse_tracer(leaf, parameter.name, self.name)
        return jax.as_array(leaf, numpy_dtype(parameter.shape.element_type))

    def _tree_of(self, results: Sequence[Any]) -> Any:
        if any(self.keys):
            results = [jax.typed_keys(r, tag) if tag else r for r, tag in zip(results, self.keys)]
        return jax.unflatten(self._result_tree, results)

    def _other_arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunError:
        """The error for arguments that do not fit the function."""
        structures, named = self.arguments
        hint = "static arguments are part of a compiled function: omit them; pass the others, by position or by " \
               "name, as in the example"
        if len(args) != len(structures):
            wants = f"{len(structures)} positional argument{'' if len(structures) == 1 else 's'}"
            return RunError(f"{self.name} takes {wants}, but {len(args)} {'was' if len(args) == 1 else 'were'} given",
                            hint=hint)
        if kwargs.keys() != named.keys():
            unknown, missing = sorted(kwargs.keys() - named.keys()), sorted(named.keys() - kwargs.keys())
            told = f"has no keyword argument {unknown[0]!r}" if unknown else f"misses keyword argument {missing[0]!r}"
            return RunError(f"{self.name} {told}", hint=hint)
        return self._other_tree(self.arguments, args, kwargs)

    def _other_tree(self, wanted: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunError:
        paths = [*self.names, *(f"args[{n}]" for n in range(len(self.names), len(args)))]
        pairs = [*zip(paths, wanted[0], args)]
        pairs += [(name, wanted[1][name], kwargs[name]) for name in kwargs]
        for path, want, given in pairs:
            mine, theirs = jax.flatten(want)[1], jax.flatten(given)[1]
            if mine != theirs:
                return RunError(f"{path} of {self.name} must be {_shown(mine)}, but {_shown(theirs)} was given")
        return RunError(f"the arguments of {self.name} are of another pytree than those that it was compiled for")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle pytrees instead of JAX's treedefs, which do not pickle if they hold users' types."""
        return CompiledFunction, (self.name, self.executable, self.arguments, self.kept, self.results, self.keys,
                                  self.names)

    def __repr__(self) -> str:
        return f"<hloc function {self.name}: {self.executable!r}>"

    def _repr_html_(self) -> str:
        """A summary for notebooks."""
        return self.executable._repr_html_()


def compile_function(source: Any, example: Sequence[Any], compiler: Compiler) -> CompiledFunction:
    """hloc.compile for a function of JAX: plain, jitted (by JAX or by hloc), traced or lowered."""
    if isinstance(source, JittedFunction):
        return source.compile(*example, compiler=compiler)
    lowering, has_shapes = jax.lower(source, example), jax.is_lowered(source) or jax.is_traced(source)
    compiled = _compiled(lowering, lowering.name if has_shapes else jax.described(source), compiler)
    if example and has_shapes:
        compiled.check_examples(tuple(example))
    return compiled


def _compiled(lowering: jax.Lowering, described: str, compiler: Compiler) -> CompiledFunction:
    exe = compiler(lowering.module, lowering.name)
    first, count = len(lowering.constants), len(exe.parameters)
    if count != first + len(lowering.kept):
        raise UsageError(f"{described}: JAX removed arguments that the function does not read, and this version of it "
                         "does not say which", hint="jax.jit(f, keep_unused=True) keeps all")
    if len(exe.results) != len(lowering.keys):
        raise UnsupportedError(f"{described}: its program has {len(exe.results)} results, the function "
                               f"{len(lowering.keys)}: ordered effects are not supported")
    paths = [f"constant.{n}" for n in range(first)] + [lowering.paths[n] for n in lowering.kept]
    exe = replace(exe, parameters=[Parameter(path, p.shape) for path, p in zip(paths, exe.parameters)])
    if first:
        exe = exe.bind(list(lowering.constants))
    return CompiledFunction(described, exe, lowering.arguments, lowering.kept, lowering.results, lowering.keys,
                            lowering.names)


class JittedFunction:
    """What hloc.jit returns: compiles for each pytree, types and shapes of its arguments, and each value of its static
    ones."""

    def __init__(self, function: Any, static_argnums: int | Sequence[int], static_argnames: str | Sequence[str],
                 compiler: Compiler):
        numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums)
        names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
        self.described = jax.described(function)
        if jax.is_jitted(function):
            if numbers or names:
                raise UsageError(f"{self.described} is jitted already: its static arguments are those that jax.jit "
                                 "was given")
            self.lowerable, (numbers, names) = function, jax.static_of(function) or ((), ())
        else:
            self.lowerable = jax.jitted(function, **({"static_argnums": numbers} if numbers else {}),
                                        **({"static_argnames": names} if names else {}))
        self._compiler = compiler
        self._known: dict[Any, CompiledFunction] = {}
        self._statics = jax.Statics.of(function, numbers, names)
        self.__wrapped__ = function
        self.__module__ = getattr(function, "__module__", __name__)
        self.__qualname__ = getattr(function, "__qualname__", type(function).__name__)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__doc__ = getattr(function, "__doc__", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; compile first if there is no program for such arguments."""
        dynamic, named, static = self._statics.split(args, kwargs)
        leaves, tree = jax.flatten((dynamic, named))
        try:
            key = (tree, tuple(map(jax.signature_of_leaf, leaves)), static, jax.settings())
            compiled = self._known.get(key)
        except TypeError:
            raise self._statics.unhashable(static, self.described) from None
        if compiled is None:
            compiled = self._known[key] = self._compile(args, kwargs, self._compiler)
        return compiled(*dynamic, **named)

    def compile(self, *example: Any, compiler: Compiler | None = None, **named: Any) -> CompiledFunction:
        """The function for such arguments, compiled now. It takes them without the static ones."""
        return self._compile(example, named, compiler or self._compiler)

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any], compiler: Compiler) -> CompiledFunction:
        return _compiled(jax.lower(self.lowerable, args, kwargs), self.described, compiler)

    def clear_cache(self) -> None:
        """Discard all compiled programs."""
        self._known.clear()

    def __reduce__(self) -> str:
        """Pickle by name, as functions do: it must be importable by that name."""
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<hloc.jit of {self.described}>"


def _shown(tree: Any) -> str:
    text = str(tree).removeprefix("PyTreeDef(").removesuffix(")")
    return text if len(text) <= SHOWN_TREE else text[:SHOWN_TREE] + " ..."
