"""$HLOC_SANITIZE: generated C with sanitizers, to find errors of hloc's own code.

    export HLOC_SANITIZE=address,undefined ASAN_OPTIONS=detect_leaks=0
    LD_PRELOAD=$(gcc -print-file-name=libasan.so) hloc run model.hlo

Generated C and library kernels are compiled with these sanitizers of gcc and clang. Arrays of the arena have gaps
between them that must not be accessed. The first finding ends the process, with the place in the C text.
"""
from __future__ import annotations

import ctypes
import os

from hloc.errors import RunError, UsageError

KNOWN = ("address", "undefined")
GAP = 256                             # bytes between arrays of the arena, at least


def sanitizers() -> tuple[str, ...]:
    """The sanitizers that the variable names. Raises UsageError for an unknown one."""
    named = tuple(dict.fromkeys(n.strip() for n in os.environ.get("HLOC_SANITIZE", "").split(",") if n.strip()))
    for name in named:
        if name not in KNOWN:
            raise UsageError(f"HLOC_SANITIZE names {name!r}, which is none of {', '.join(KNOWN)}")
    return named


def flags() -> tuple[str, ...]:
    """The last flags for the compiler and the linker."""
    named = sanitizers()
    return (f"-fsanitize={','.join(named)}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1",
            "-O1") if named else ()


def environment() -> dict[str, str]:
    """The environment for child processes, without the sanitizer."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" or not sanitizers()}


def check_runtime() -> None:
    """Raise RunError if the process was started without the sanitizer's library, which would end it."""
    if "address" in sanitizers() and not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise RunError("HLOC_SANITIZE=address needs the sanitizer's library in the process from its start",
                       hint="LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 hloc ...")
