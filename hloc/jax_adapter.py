"""Functions of JAX as HLO: the file that imports jax to compile users' functions (the `jax` extra).

In: a function, plain, jitted, traced or lowered, and examples of its arguments. Out: a Lowering: the module as XLA's
proto, which holds constants and source lines, and how arguments and results map to it. jax.tree_util flattens pytrees.
JAX removes arguments that a function does not read (`kept` are the others), and may pass constants first.

    lower(jax.jit(f), (params, x)) -> Lowering(proto, "jit(f)", arguments=(({"w": 0}, 1), {}), kept=(0, 1), ...)
"""
from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hloc.errors import RunError, UsageError
from hloc.inputs.dlpack import form_of


class Lowering(NamedTuple):
    """arguments   the pytree (args, kwargs), whose leaves are their numbers
    paths       the name of each leaf for users: params['w'], or args[0]['w'] if the names are not known
    kept        the numbers of the leaves that are parameters of the module, in order
    constants   arrays that are the module's first parameters
    results     the pytree of the results, whose leaves are their numbers
    keys        for each result, the tag of JAX's PRNG (fry) if it is an array of typed keys, else ""
    names       of the positional arguments that are not static; () if they are not known
    """

    module: bytes
    name: str
    arguments: Any
    paths: tuple[str, ...]
    kept: tuple[int, ...]
    constants: tuple[np.ndarray, ...]
    results: Any
    keys: tuple[str, ...]
    names: tuple[str, ...]


@lru_cache(maxsize=1)
def library() -> Any:
    """Import jax, and exclude hloc's own frames from source lines. Raises UsageError without jax."""
    try:
        import jax
        from jax.extend import source_info_util
    except ImportError as error:
        raise UsageError(f"functions of JAX need jax, which is not installed ({error})", hint="pip install 'hloc[jax]'"
                         ) from None
    source_info_util.register_exclusion(str(Path(__file__).parent))
    return jax


def is_lowered(source: Any) -> bool:
    return hasattr(source, "compiler_ir")


def is_traced(source: Any) -> bool:
    return hasattr(source, "lower") and hasattr(source, "jaxpr")


def is_jitted(source: Any) -> bool:
    return callable(source) and hasattr(source, "lower") and hasattr(source, "trace")


def jitted(function: Any, **static: Any) -> Any:
    """Apply jax.jit to a function. Raises UsageError if it is no function, and for static arguments that JAX refuses.
    """
    if not callable(function):
        raise UsageError(f"hloc compiles functions of JAX, not {type(function).__name__}",
                         hint="modules are paths, text or bytes: hloc.compile(module, target)")
    if hasattr(function, "runtime_executable"):                              # jax.stages.Compiled
        raise UsageError("XLA has compiled this function already",
                         hint="give what jax.jit(f) or its .lower(...) returned, before .compile()")
    try:
        return library().jit(function, **static)
    except (TypeError, ValueError) as error:
        raise UsageError(f"jax.jit refuses {described(function)}: {_first_line(error)}") from None


def lower(source: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> Lowering:
    """The module of a function. It is lowered for CPUs, whose library calls hloc supports on every target. Raises
    UsageError for tracers and if JAX does not give the needed facts; exceptions of the function itself pass through.
    """
    jax = library()
    names: Sequence[str] = ()
    if not is_lowered(source):
        if not is_traced(source):
            names = Statics.of(source, *(static_of(source) or ((), ()))).dynamic_names
        traced = source if is_traced(source) else _traced(source, args, kwargs or {})
        source = traced.lower(lowering_platforms=("cpu",))
    module = source.compiler_ir("hlo").as_serialized_hlo_module_proto()
    leaves, tree = jax.tree_util.tree_flatten(source.args_info)
    with_paths = jax.tree_util.tree_flatten_with_path(source.args_info)[0]
    kept, constants = _kept(source, len(leaves))
    return Lowering(module, _name(source), jax.tree_util.tree_unflatten(tree, range(len(leaves))),
                    tuple(path_text(path, names) for path, _ in with_paths), kept, constants,
                    jax.tree_util.tree_unflatten(source.out_tree, range(source.out_tree.num_leaves)),
                    tuple(_key_tag(jax, leaf) for leaf in jax.tree_util.tree_leaves(source.out_info)),
                    tuple(names))


def _traced(function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    statics = Statics.of(function, *(static_of(function) or ((), ())))
    if statics.signature is not None:
        try:
            statics.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(f"the examples are no arguments of {described(function)}: {error}",
                             hint="give an example of each: hloc.compile(f, x, y)") from None
    jax, dynamic = library(), statics.split(args, kwargs)[:2]
    for path, leaf in jax.tree_util.tree_flatten_with_path(dynamic)[0]:
        name = path_text(path, statics.dynamic_names)
        refuse_tracer(leaf, name, described(function))
        kind = getattr(getattr(leaf, "dtype", None), "kind", "")             # "" for types of other libraries
        if kind in "OSUMm" and kind or not isinstance(leaf, (bool, int, float, complex)) and not hasattr(leaf, "dtype"):
            what = f"an array of {leaf.dtype}" if kind else f"of type {type(leaf).__name__}"
            raise UsageError(f"{name} of {described(function)} is {what}, which JAX does not compute with",
                             hint="other values can be static arguments: static_argnums, static_argnames")
    args = [a if n in statics.numbers else jax.tree_util.tree_map(as_shape, a) for n, a in enumerate(args)]
    kwargs = {name: a if name in statics.names else jax.tree_util.tree_map(as_shape, a) for name, a in kwargs.items()}
    return (function if is_jitted(function) else jitted(function)).trace(*args, **kwargs)


def _kept(lowered: Any, count: int) -> tuple[tuple[int, ...], tuple[np.ndarray, ...]]:
    """The numbers of kept arguments. JAX counts constants first, then arguments; it has no public interface for
    this."""
    lowering = getattr(lowered, "_lowering", None)
    constants = tuple(np.asarray(c) for c in getattr(lowering, "const_args", None) or ())
    kept = (getattr(lowering, "compile_args", None) or {}).get("kept_var_idx")
    if kept is None:
        return tuple(range(count)), constants
    return tuple(n - len(constants) for n in sorted(kept) if n >= len(constants)), constants


def _name(lowered: Any) -> str:
    name = str(getattr(getattr(lowered, "_lowering", None), "_name", "") or "function")
    return name if name.startswith("jit") else f"jit({name})"


def path_text(path: Sequence[Any], names: Sequence[str] = ()) -> str:
    """A path in the pytree (args, kwargs) as params['w']; names: of the positional arguments, if they are known."""
    keystr, rest = library().tree_util.keystr, path[1:]
    if path[0].idx == 1:
        return f"{rest[0].key}{keystr(rest[1:])}"
    return f"{names[rest[0].idx]}{keystr(rest[1:])}" if rest[0].idx < len(names) else f"args{keystr(rest)}"


# -- pytrees -----------------------------------------------------------------------------------------------------------

def flatten(tree: Any) -> tuple[list[Any], Any]:
    leaves, structure = library().tree_util.tree_flatten(tree)
    return leaves, structure


def unflatten(structure: Any, leaves: Sequence[Any]) -> Any:
    return library().tree_util.tree_unflatten(structure, leaves)


# -- leaves ------------------------------------------------------------------------------------------------------------

def refuse_tracer(leaf: Any, path: str, function: str) -> None:
    """Raise UsageError for a tracer: an argument without values."""
    if isinstance(leaf, library().core.Tracer):
        raise UsageError(f"{path} of {function} is a tracer of JAX ({leaf.aval}), which has no values",
                         hint="hloc compiles a whole function: call jax.grad, jax.vmap and the like inside it, and "
                              "hloc.jit on the outside")


def as_array(leaf: Any, dtype: np.dtype) -> Any:
    """A leaf as the executable takes it: typed keys as their numbers; arrays that JAX would narrow (f64 if x64 is off)
    converted; anything else unchanged."""
    jax = library()
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype != dtype and leaf.dtype.kind in "biufc" \
            and jax.dtypes.canonicalize_dtype(leaf.dtype) == dtype:
        return np.asarray(leaf, dtype)
    return leaf


def has_value(leaf: Any) -> bool:
    """Whether an example is more than a shape."""
    return not isinstance(leaf, library().ShapeDtypeStruct)


def _key_tag(jax: Any, result: Any) -> str:
    return str(result.dtype).removeprefix("key<").removesuffix(">") \
        if jax.dtypes.issubdtype(result.dtype, jax.dtypes.prng_key) else ""


def typed_keys(array: np.ndarray, tag: str) -> Any:
    """An array of JAX's typed keys, from their numbers."""
    names = {"fry": "threefry2x32", "rbg": "rbg", "urbg": "unsafe_rbg"}
    return library().random.wrap_key_data(np.array(array), impl=names.get(tag, tag))


def signature_of_leaf(leaf: Any) -> tuple[Any, ...]:
    """The facts that a compilation depends on: shape, type, and whether JAX may change the type (Python's numbers)."""
    if type(leaf) is np.ndarray:
        return leaf.shape, leaf.dtype, False
    if isinstance(leaf, (bool, int, float, complex)):
        return type(leaf),
    shape, dtype = getattr(leaf, "shape", None), getattr(leaf, "dtype", None)
    if shape is None or dtype is None:
        return type(leaf),
    return tuple(shape), dtype, bool(getattr(leaf, "weak_type", False))


def settings() -> tuple[Any, ...]:
    """The settings of JAX that the meaning of a function depends on."""
    config = library().config
    return config.jax_enable_x64, config.jax_default_matmul_precision, config.jax_numpy_dtype_promotion


def as_shape(leaf: Any) -> Any:
    """An array of another library (a tensor of PyTorch) as its shape and type; anything else unchanged."""
    if isinstance(leaf, np.ndarray) or not hasattr(leaf, "__dlpack__") or type(leaf).__module__.startswith("jax"):
        return leaf
    try:
        dtype, sizes = form_of(leaf)
    except RunError as error:
        raise UsageError(f"an example of type {type(leaf).__name__} has no type and shape that hloc reads: "
                         f"{error.message}", hint=error.hint) from None
    return library().ShapeDtypeStruct(sizes, dtype)


# -- functions in messages ---------------------------------------------------------------------------------------------

def described(function: Any) -> str:
    """A function's name for messages: net.py:7 (loss), or its repr."""
    inner = inspect.unwrap(function) if callable(function) else function
    code = getattr(inner, "__code__", None)
    name = getattr(inner, "__name__", None) or getattr(function, "fun_name", None) or type(function).__name__
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno} ({name})" if code is not None else str(name)


def static_of(function: Any) -> tuple[tuple[int, ...], tuple[str, ...]] | None:
    """The static arguments of a jitted function; None if this version of JAX does not expose them."""
    info = getattr(function, "_jit_info", None)
    if info is None or not hasattr(info, "static_argnums"):
        return None
    return tuple(info.static_argnums), tuple(info.static_argnames)


class Statics(NamedTuple):
    """The static arguments of a function: by position and by name, completed by the signature."""

    signature: inspect.Signature | None
    numbers: frozenset[int]
    names: frozenset[str]
    dynamic_names: tuple[str, ...]

    @classmethod
    def of(cls, function: Any, numbers: Sequence[int], names: Sequence[str]) -> Statics:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return cls(None, frozenset(numbers), frozenset(names), ())
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in signature.parameters.values() if p.kind in kinds]
        own = {n + len(positional) if n < 0 else n for n in numbers}
        own |= {positional.index(name) for name in names if name in positional}
        called = {*names, *(positional[n] for n in own if n < len(positional))}
        return cls(signature, frozenset(own), frozenset(called),
                   tuple(name for n, name in enumerate(positional) if n not in own))

    def split(self, args: Sequence[Any], kwargs: dict[str, Any],
              ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        """The arguments that JAX traces, and the others with their types: 1 and True are equal, and not the same."""
        if not self.numbers and not self.names:
            return tuple(args), kwargs, ()
        fixed: list[tuple[Any, ...]] = [(n, type(a), a) for n, a in enumerate(args) if n in self.numbers]
        fixed += [(name, type(a), a) for name, a in sorted(kwargs.items()) if name in self.names]
        return (tuple(a for n, a in enumerate(args) if n not in self.numbers),
                {name: a for name, a in kwargs.items() if name not in self.names}, tuple(fixed))

    def unhashable(self, fixed: tuple[Any, ...], function: str) -> UsageError:
        """The error for arguments that have no hash."""
        for name, kind, value in fixed:
            try:
                hash(value)
            except TypeError:
                return UsageError(f"static argument {name} of {function} is of type {kind.__name__}, which has no hash",
                                  hint="static arguments are compared by their values: numbers, strings, tuples ...")
        return UsageError(f"an argument of {function} cannot be told from others: its pytree or type has no hash")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
