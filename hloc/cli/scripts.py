"""A JAX function in a user's Python file as MODULE: `hloc run train.py:loss`. The file is run as `python train.py`
would.

In: the file, the function's name and the value of --inputs. Out: a Module. The function is traced on examples:

    example_arguments = (params, x)        in the file: a tuple, a function that returns one, or {function: tuple};
                                           arrays are the default inputs, jax.ShapeDtypeStructs only give shapes
    --inputs a.npy b.npz                   if the file has none: each array is an argument, in order
"""
from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hloc import files, jax_adapter
from hloc.errors import HlocError, UsageError
from hloc.functions import JittedFunction
from hloc.inputs import entry_parameters, host_arrays
from hloc.inputs.files import MADE_UP, read_arrays
from hloc.ir import Module, numpy_dtype

REFERENCE = re.compile(r"(.+\.py):([A-Za-z_]\w*)", re.DOTALL)
EXAMPLES = "example_arguments"
MOST_BYTES = 64 << 20                  # of a script
LISTED = 10


def is_script(path: str) -> bool:
    """Whether it is script.py:function, or script.py, or a file of such a name."""
    return REFERENCE.fullmatch(path) is not None or path.endswith(".py")


def module_of_script(path: str, inputs: Sequence[str], load: Callable[[bytes, str], Module]) -> Module:
    """The module of the function at `path`; `load` makes a module from content and a name. Its default inputs are
    the examples, if these have values. Raises UsageError for every error of the script, with its line."""
    found = REFERENCE.fullmatch(path)
    if found is None:
        raise UsageError(f"{path} is a script: name a function of it", hint=f"hloc run {path}:function")
    file, name = found[1], found[2]
    script = _run(file)
    function = getattr(script, name, None)
    is_ready = jax_adapter.is_lowered(function) or jax_adapter.is_traced(function)
    if not is_ready and not callable(function):
        near = [n for n, value in vars(script).items() if callable(value) and getattr(value, "__module__", "") ==
                script.__name__][:LISTED]
        raise UsageError(f"{file} has no function {name}", hint=f"it has {', '.join(near)}" if near else None)
    function = function.lowerable if isinstance(function, JittedFunction) else function
    with _blaming(file, name):
        args = () if is_ready else _examples(script, file, name, inputs)
        lowering = jax_adapter.lower(function if is_ready else _keeping_all(function), args)
    module = load(lowering.module, path)
    _give_inputs(module, lowering, () if is_ready else args, function)
    return module


def _run(file: str) -> Any:
    """Run the script as a Python module. Its folder comes first in sys.path, as with `python script.py`."""
    try:
        files.read(file, MOST_BYTES)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None
    place = Path(file).resolve()
    spec = importlib.util.spec_from_file_location(place.stem, place)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(place.parent))
    sys.modules[spec.name] = script                                  # dataclasses read their module there
    with _blaming(file, "<module>"):
        spec.loader.exec_module(script)
    return script


def _examples(script: Any, file: str, name: str, inputs: Sequence[str]) -> tuple[Any, ...]:
    given = getattr(script, EXAMPLES, None)
    if isinstance(given, dict):
        given = given.get(name)
    if callable(given):
        given = given()
    if given is not None and not isinstance(given, (tuple, list)):
        raise UsageError(f"{EXAMPLES} of {file} is a tuple of arguments, not {type(given).__name__}")
    if given is not None:
        return tuple(given)
    if not inputs or inputs[0].partition(":")[0] in MADE_UP:
        raise UsageError(f"{file}:{name} needs examples of its arguments: their types and shapes",
                         hint=f"define {EXAMPLES} = (x, y) in {file}, or name files: --inputs x.npy y.npy")
    return tuple(array for source in inputs for array in read_arrays(Path(source)))


def _keeping_all(function: Any) -> Any:
    """Lower with keep_unused, so that --inputs has one array per argument. With static arguments JAX's own choice is
    used."""
    numbers, names = jax_adapter.static_of(function) or ((), ())
    return function if numbers or names else jax_adapter.jitted(function, keep_unused=True)


def _give_inputs(module: Module, lowering: jax_adapter.Lowering, args: tuple[Any, ...], function: Any) -> None:
    dynamic, named, _ = jax_adapter.Statics.of(function, *(jax_adapter.static_of(function) or ((), ()))).split(args, {})
    leaves, parameters = jax_adapter.flatten((dynamic, named))[0], entry_parameters(module)
    chosen = [leaves[n] for n in lowering.kept] if leaves else []
    if len(lowering.constants) + len(chosen) == len(parameters) and all(map(jax_adapter.has_value, chosen)):
        wanted = parameters[len(lowering.constants):]
        chosen = [jax_adapter.as_array(leaf, numpy_dtype(p.shape.element_type)) for leaf, p in zip(chosen, wanted)]
        module.default_inputs = tuple(host_arrays(parameters, [*lowering.constants, *chosen]))
    elif lowering.constants:
        raise UsageError(f"{module.name} has constants of the function as parameters: its examples need values")


@contextmanager
def _blaming(file: str, name: str) -> Iterator[None]:
    """Turn an exception of the user's code into one error with the line of the script."""
    try:
        yield
    except (HlocError, KeyboardInterrupt):
        raise
    except SyntaxError as error:
        raise UsageError(f"{error.filename}:{error.lineno}: SyntaxError: {error.msg}") from None
    except (Exception, SystemExit) as error:
        own = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == Path(file).resolve()]
        place = f"{file}:{own[-1].lineno} ({own[-1].name})" if own else f"{file} ({name})"
        text = (str(error).strip().splitlines() or [""])[0]
        raise UsageError(f"{place}: {type(error).__name__}: {text}") from None
