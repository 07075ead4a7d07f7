"""hloc: a standalone compiler for HLO text, XLA's program format.

    import hloc
    exe = hloc.compile("model.hlo")
    results = exe(*arrays)
"""
from hloc.api import Options, compile, load
from hloc.errors import (
    BuildError,
    HlocError,
    ParseError,
    RunError,
    UnsupportedError,
    UsageError,
    VerifyError,
)
from hloc.executable import Executable
from hloc.ir import Module

__version__ = "0.1.0"
__all__ = ["BuildError", "Executable", "HlocError", "Module", "Options", "ParseError", "RunError", "UnsupportedError",
           "UsageError", "VerifyError", "compile", "load"]
