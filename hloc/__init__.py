"""hloc: a standalone compiler for HLO text, XLA's program format.

    import hloc
    exe = hloc.compile("model.hlo")
    results = exe(*arrays)
    f = hloc.jit(f)                                     functions of JAX (the `jax` extra)

Everything but the errors is imported when it is first used: an installation compiles hloc's library kernels before
NumPy is installed (targets/cpu/building/installation.py).
"""
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hloc.errors import (
    BuildError,
    HlocError,
    ParseError,
    RunError,
    UnsupportedError,
    UsageError,
    VerifyError,
)

if TYPE_CHECKING:
    from hloc.api import Options, compile, jit, load
    from hloc.executable import Executable
    from hloc.functions import CompiledFunction, JittedFunction
    from hloc.ir import Module
    from hloc.parallel import compile_for_mesh

__version__ = "0.1.0"
__all__ = ["BuildError", "CompiledFunction", "Executable", "HlocError", "JittedFunction", "Module", "Options",
           "ParseError", "RunError", "UnsupportedError", "UsageError", "VerifyError", "compile",
           "compile_for_mesh", "jit", "load"]
_LATER = {"Options": "hloc.api", "compile": "hloc.api", "jit": "hloc.api", "load": "hloc.api",
          "Executable": "hloc.executable", "CompiledFunction": "hloc.functions",
          "JittedFunction": "hloc.functions", "Module": "hloc.ir",
          "compile_for_mesh": "hloc.parallel"}


def __getattr__(name: str) -> Any:
    """Import one of _LATER, and keep it."""
    if name not in _LATER:
        raise AttributeError(f"module 'hloc' has no attribute {name!r}")
    globals()[name] = getattr(import_module(_LATER[name]), name)
    setattr(import_module("hloc.ir.html"), "drawer", _drawn)    # noqa: B010 - mypy knows no attributes of modules
    return globals()[name]


def _drawn(module: Any) -> str:
    """A module in a cell of a notebook."""
    return import_module("hloc.pages.notebook").frame(module)
