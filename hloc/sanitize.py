"""$HLOC_SANITIZE: C that looks at each of its accesses to memory, to find faults of hloc's own code.

    export HLOC_SANITIZE=address,undefined ASAN_OPTIONS=detect_leaks=0
    LD_PRELOAD=$(gcc -print-file-name=libasan.so) hloc run model.hlo

Generated C and routines are compiled with these sanitizers of gcc and clang, and arrays of the arena lie apart, with
gaps between them that nothing may touch. The first finding ends the process, with the place in the C text.
"""
from __future__ import annotations

import ctypes
import os

from hloc.errors import RunError, UsageError

KNOWN = ("address", "undefined")
GAP = 256                             # bytes between arrays of the arena, at least


def sanitizers() -> tuple[str, ...]:
    """What the variable names. Raises UsageError for what is no sanitizer."""
    named = tuple(dict.fromkeys(n.strip() for n in os.environ.get("HLOC_SANITIZE", "").split(",") if n.strip()))
    for name in named:
        if name not in KNOWN:
            raise UsageError(f"HLOC_SANITIZE names {name!r}, which is none of {', '.join(KNOWN)}")
    return named


def flags() -> tuple[str, ...]:
    """For the compiler and the linker, behind all others."""
    named = sanitizers()
    return (f"-fsanitize={','.join(named)}", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g1",
            "-O1") if named else ()


def environment() -> dict[str, str]:
    """For programs that are started: they are not to be watched."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD" or not sanitizers()}


def check_runtime() -> None:
    """RunError where the process was started without the library that watches its memory: it would be ended."""
    if "address" in sanitizers() and not hasattr(ctypes.CDLL(None), "__asan_init"):
        raise RunError("HLOC_SANITIZE=address needs the sanitizer's library in the process from its start",
                       hint="LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 hloc ...")
