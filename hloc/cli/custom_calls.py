"""--custom-call NAME=MODULE:FUNCTION: the user's Python functions that implement custom calls.

In: the option's texts. Out: {target: function}. An exception of such a function is the user's error: it
becomes one RunError with the lines of the user's files,

    error: custom call 'gelu': ValueError: operands could not be broadcast together with shapes (4,) (3,)
      File "my.py", line 7, in helper
        return x + np.ones(3)
"""
from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from hloc.errors import HlocError, RunError, UsageError
from hloc.files import opened

MOST_FRAMES = 8                       # the last frames of the user's code that an error shows
MOST_MESSAGE = 2000                   # characters of an exception's own text
MACHINERY = (__file__, "<frozen importlib", os.path.dirname(importlib.__file__))


def custom_call_table(given: tuple[str, ...]) -> dict[str, Callable]:
    """{target: function}. Raises UsageError for what cannot be found or imported."""
    table = {}
    for text in given:
        name, equals, place = text.partition("=")
        module, colon, function = place.rpartition(":")
        if not (equals and colon and name and module and function):
            raise UsageError(f"--custom-call {text!r}: write NAME=MODULE:FUNCTION, as in gelu=my:gelu or "
                             "gelu=./my.py:gelu")
        table[name] = _reported_as_the_users(name, _function(text, module, function))
    return table


def _function(text: str, module: str, name: str) -> Callable:
    try:
        found = _imported(module)
    except HlocError as error:
        raise UsageError(f"--custom-call {text!r}: {error.message}", hint=error.hint) from None
    except (Exception, SystemExit) as error:                   # raised by the user's module while it is imported
        raise UsageError(f"--custom-call {text!r}: {_reported(error)}") from error
    function = getattr(found, name, None)
    if not callable(function):
        what = "no function" if function is None else f"a {type(function).__name__}, not a function,"
        raise UsageError(f"--custom-call {text!r}: {getattr(found, '__file__', None) or module} has {what} {name!r}")
    return function


def _imported(module: str) -> ModuleType:
    """Import a module by name, also from the working directory, or by file (a name with .py or a slash)."""
    if module.endswith(".py") or "/" in module:
        return _from_file(Path(module))
    if module.startswith("."):
        raise UsageError(f"{module} is not the name of a module", hint="for a file write ./my.py:function")
    _search_also(os.getcwd())
    return importlib.import_module(module)


def _from_file(path: Path) -> ModuleType:
    try:
        opened(path).close()                                   # a regular file that may be read
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    _search_also(str(path.resolve().parent))                   # for modules beside it
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file", hint="its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _search_also(folder: str) -> None:
    """Append to sys.path: a file random.py there must not replace Python's own."""
    if folder not in sys.path:
        sys.path.append(folder)


def _reported_as_the_users(name: str, function: Callable) -> Callable:
    @functools.wraps(function, assigned=("__name__", "__doc__"), updated=())
    def call(*operands):
        try:
            return function(*operands)
        except HlocError:
            raise
        except Exception as error:
            raise RunError(f"custom call {name!r}: {_reported(error)}") from error

    return call


def _reported(error: BaseException) -> str:
    """The exception's type and text, then its traceback without the lines of hloc and importlib."""
    message = "".join(traceback.format_exception_only(type(error), error)).strip()[:MOST_MESSAGE]
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(MACHINERY)]
    return message + "".join(f'\n  File "{_shown(f.filename)}", line {f.lineno}, in {f.name}'
                             + (f"\n    {f.line}" if f.line else "") for f in frames[-MOST_FRAMES:])


def _shown(path: str) -> str:
    here = os.getcwd() + os.sep
    return os.path.abspath(path).removeprefix(here)
