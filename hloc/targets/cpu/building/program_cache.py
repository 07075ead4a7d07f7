"""The cache of compiled programs: a hit needs no passes, lowering, printing or compiler.

In: a parsed module and a function that compiles it. Out: an Executable: from the cache, or compiled and stored.

Two files are stored under the hash of everything that a compilation depends on: facts (.json: parameters, results,
arena, held arrays, the key of the shared object) and constants (.bin, memory-mapped). The cache checks their hashes; if
anything is missing or does not fit, the module is compiled again. The source of a program from the cache is available,
too: the module is then compiled again for it.

Programs that call Python are not stored, because they hold functions. Those that call LAPACK need SciPy again
(lapack.py).
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache as once
from functools import partial
from importlib.util import find_spec
from typing import Any, BinaryIO

import numpy as np

from hloc import cache
from hloc.executable import Executable
from hloc.ir import Module
from hloc.ir.printer import print_module
from hloc.machine import Machine
from hloc.ops.values import flatten
from hloc.targets.cpu.building import toolchain
from hloc.targets.cpu.execution.executable import CpuBackend, backend_of, manifest


def from_cache(machine: Machine, module: Module, passes: dict, compile_text: Callable[[str], Executable],
             compile_now: Callable[[], Executable]) -> Executable:
    """The executable of `module`: from the cache, else by compile_now. compile_text compiles HLO text, for the source.

    machine the CPU to compile for
    passes  options of passes, which are part of the key
    """
    key = cache.digest("program 3", cache.package_identity(), toolchain.find(machine).identity(), repr(machine),
                       json.dumps(passes, sort_keys=True, default=repr), print_module(module, elide_constants=True),
                       constants_identity(module), f"SciPy {find_spec('scipy') is not None}")
    backend = _find(key)
    if backend is None:
        exe = compile_now()
        made: Any = exe.backend                       # a CpuBackend
        _remember(key, made)
        return exe
    anew = once(lambda: compile_text(str(module)))

    def written(form: str, suffix: str, *arguments):
        return getattr(anew(), form)[suffix](*arguments)

    program = backend.program
    return Executable(program.name, "cpu", program.parameters, program.results, lambda: backend, lambda: anew().source,
                      texts={suffix: partial(written, "texts", suffix) for suffix in (".c", ".hlo")},
                      files={".so": partial(written, "files", ".so")},
                      headers={suffix: partial(written, "headers", suffix) for suffix in (".so", ".c")},
                      optimized=lambda: _optimized(anew()))


def _optimized(exe: Executable) -> Module:
    assert exe.optimized is not None                  # of one that was compiled in this process
    return exe.optimized()


def constants_identity(module: Module) -> str:
    """A hash of the values of all constants, which is much faster than printing them."""
    digest = hashlib.sha256()
    for instruction in module.instructions():
        if instruction.opcode == "constant" and instruction.literal is not None:
            for array in flatten(instruction.literal):
                digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _find(key: str) -> CpuBackend | None:
    """The backend stored under `key`; None if there is no usable one."""
    with ExitStack() as held:
        def found(name: str, suffix: str) -> BinaryIO | None:
            file = cache.opened(name, suffix)
            return file and held.enter_context(file)
        if (text := found(key, ".json")) and (blob := found(key, ".bin")):
            facts = json.loads(text.read())
            library = found(facts["library"], ".so")
            if library:
                constants = np.memmap(blob, np.uint8, "r")
                return backend_of(library, facts, constants, facts["library"], held=facts["held"])
    return None


def _remember(key: str, backend: CpuBackend) -> None:
    if backend.host_calls:
        return
    from hloc.targets.cpu.program.export import write_constants
    facts = {**manifest(backend.program, backend.devices), "held": backend.program.held, "library": backend.key}
    with cache.workspace() as folder:
        blob = folder / "constants"
        write_constants(backend.program.constants, blob)
        cache.put(key, ".bin", blob)
    cache.put_bytes(key, ".json", json.dumps(facts).encode())
