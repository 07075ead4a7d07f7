"""What a saved shared object holds besides its kernels: constants, a manifest, and a C function to call.

In: a plan.Program. Out: C text for the driver unit, the constants as one binary file, and the C header.
"""
from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hloc.analysis.packing import ALIGNMENT
from hloc.errors import printable
from hloc.ir import ELEMENT_TYPES
from hloc.kernels.plan import Program, Value

C_TYPES = {"pred": "uint8_t", "f32": "float", "f64": "double", "c64": "float _Complex", "c128": "double _Complex",
           **{f"{s}{b}": f"{'u' if s == 'u' else ''}int{b}_t" for s in "su" for b in (8, 16, 32, 64)}}


def write_constants(constants: Sequence[np.ndarray], path: Path) -> None:
    """All constants one behind the other, each at a multiple of ALIGNMENT, as the manifest says."""
    with open(path, "wb") as file:
        for constant in constants:
            file.write(constant.tobytes())
            file.write(b"\0" * (-constant.nbytes % ALIGNMENT))
        file.write(b"\0" * ALIGNMENT)


def c_string(text: str) -> str:
    """A C string literal with every unusual byte as an octal escape, so that no name can end it."""
    plain = set(range(32, 127)) - set(b'"\\?')
    return '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode()) + '"'


def export_unit(program: Program, facts: dict, constants: Path) -> str:
    """C text: the constants through the assembler, the manifest, which is `facts`, and hloc_run, which allocates the
    arena once."""
    offsets = facts["constants"]
    count = 1 + len(program.parameters) + len(program.results) + len(offsets)
    table = ", ".join(map(str, offsets)) or "0"
    return f"""
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
__asm__(".section .rodata\\n.balign {ALIGNMENT}\\n.global hloc_constants\\n.type hloc_constants, @object\\n"
        "hloc_constants:\\n.incbin {c_string(str(constants)).replace('"', chr(92) + '"')}\\n"
        ".size hloc_constants, .-hloc_constants\\n.previous\\n");
extern const char hloc_constants[];
__attribute__((visibility("default"))) const char hloc_manifest[] = {c_string(json.dumps(facts))};

/* inputs and results: one pointer per array, row-major. Returns 0, or 1 where memory is missing. Calls take turns. */
__attribute__((visibility("default"))) int hloc_run(const void *const *inputs, void *const *results) {{
  static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
  static const long offsets[] = {{{table}}};
  static void *arena;
  void *bases[{count}];
  pthread_mutex_lock(&turn);
  if (!arena) {{
    hloc_start((int)sysconf(_SC_NPROCESSORS_ONLN));
    if (posix_memalign(&arena, {ALIGNMENT}, {max(program.arena_size, ALIGNMENT)})) arena = 0;
  }}
  if (!arena) {{ pthread_mutex_unlock(&turn); return 1; }}
  bases[0] = arena;
  for (int i = 0; i < {len(program.parameters)}; i++) bases[1 + i] = (void *)inputs[i];
  for (int i = 0; i < {len(program.results)}; i++) bases[{1 + len(program.parameters)} + i] = results[i];
  for (int i = 0; i < {len(offsets)}; i++)
    bases[{1 + len(program.parameters) + len(program.results)} + i] = (void *)(hloc_constants + offsets[i]);
  int error = hloc_execute(bases, 0);
  pthread_mutex_unlock(&turn);
  return error;
}}
"""


def header_text(program: Program, stem: str) -> str:
    """The C header beside a saved shared object."""
    guard = "HLOC_" + re.sub(r"\W", "_", stem, flags=re.ASCII).upper() + "_H"
    lines = [f" *   inputs[{i}]  {_describe(v)}" for i, v in enumerate(program.parameters)]
    lines += [f" *   results[{i}] {_describe(v)}" for i, v in enumerate(program.results)]
    return "\n".join([
        f"/* {_comment(program.name)}: link with the shared object, -lm and -lpthread.", " *", *lines,
        " *", " * Arrays are row-major, aligned as malloc's are, and stay the caller's. Results are work space too.",
        " * Returns 0, or 1 where memory is missing. */",
        f"#ifndef {guard}", f"#define {guard}", "#include <stdint.h>", "#ifdef __cplusplus", 'extern "C" {', "#endif",
        "int hloc_run(const void *const *inputs, void *const *results);",
        "#ifdef __cplusplus", "}", "#endif", "#endif", ""])


def _describe(value: Value) -> str:
    element_type = value.shape.element_type
    dims = "".join(f"[{d}]" for d in value.shape.dimensions)
    c_type = C_TYPES.get(element_type, f"uint{8 * ELEMENT_TYPES[element_type].bytes}_t as {element_type}")
    return f"{c_type}{dims}  {_comment(value.name)}"


def _comment(text: str) -> str:
    """Text that cannot end a C comment."""
    return printable(text).replace("*/", "* /").replace("\\", "/")[:200]
