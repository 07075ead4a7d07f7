"""Program -> one self-contained C file: the model first, then library kernels, then the constants.

In: Sources, and the prefix of its functions. Out: C text that gcc and clang accept with -Wall -Werror, and the
same functions as a shared object has (export.py).

A compiler needs the library first, a reader the model: the file includes itself, and the included part is the library.
All names with hloc_ in generated code and in runtime/ get the program's prefix, so that several such files link into
one program: hloc_run is encoder_run, hloc_gemm_f32 is encoder_gemm_f32.
"""
from __future__ import annotations

import re

from hloc.targets.cpu.building.library_kernels import compilation
from hloc.targets.cpu.building.toolchain import RUNTIME
from hloc.targets.cpu.building.unit_costs import TEMPLATES
from hloc.targets.cpu.program.export import constants_text, entry_macros, header_text
from hloc.targets.cpu.program.sources import OUT_OF_MEMORY, PROLOGUE, Sources, calls_of
from hloc.targets.header_selection import needed_sections
from hloc.targets.inlining import HEADERS as SHARED
from hloc.targets.inlining import INCLUDE, inline_includes

# Names of the interface to communicators stay: several programs share them.
OWN = re.compile(r"hloc_(?!(?:communicator|collective|block|start_collective|kind)\b)")
READS = re.compile(r"#if HLOC_READS\((\w+)\)\n(.*?)#endif\n", re.DOTALL)
MACRO = re.compile(r"^#define (?!HLOC_|_)(\w+)", re.MULTILINE)
ABOUT = re.compile(r"\A/\* ([\w.]+: .*?)\*/\n", re.DOTALL)
EXPORTED = '__attribute__((visibility("default")))\n'
MODEL = "/* -- the model -- */\n"
FLAGS = "-O2 -march={march} -fvisibility=hidden -fopenmp-simd -fno-math-errno -fno-trapping-math -fno-strict-aliasing"

HEAD = """\
/* Compiled by hloc for {march}.
 *
 *   cc {flags} \\
 *      -c {name}.c           (link with -lm -lpthread)
 *
 * First the functions to call, the kernels and the plan; then the library that they are written in; then constants. The
 * compiler reads the library first: this file includes itself. Never add -ffast-math: NaN, infinities and signed zeros
 * have a meaning. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
"""
START = """
#if !defined(HLOC_READS_LIBRARY)
#define HLOC_READS_LIBRARY
#if defined(__FAST_MATH__)
#error "{name}: compile without -ffast-math"
#endif
#pragma GCC diagnostic ignored "-Wunknown-pragmas" /* omp simd, without -fopenmp-simd */
#pragma GCC diagnostic ignored "-Wunused-function" /* of the library */
#pragma GCC diagnostic ignored "-Wunused-variable" /* of loops that were split */
#pragma GCC diagnostic ignored "-Waddress" /* of library kernels that a program may lack */
#if defined(__clang__)
#pragma GCC diagnostic ignored "-Wunknown-warning-option"
#pragma GCC diagnostic ignored "-Wbitwise-instead-of-logical" /* on purpose: no branches */
#pragma GCC diagnostic ignored "-Wbitwise-conditional-parentheses"
#pragma GCC diagnostic ignored "-Wpass-failed" /* at a low level of optimization loops stay as they are */
#else
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized" /* where a flag says that nothing is there yet */
#endif
#if defined(__FILE_NAME__)
#include __FILE_NAME__
#else
#include "{name}.c"
#endif
"""
LIBRARY = """
#else
/* -- the library -- */
"""


def single_file(sources: Sources, name: str) -> str:
    """The whole text. sources: with kernels whose names have the prefix, too."""
    program, march = sources.program, sources.machine.march
    units = dict.fromkeys((*sources.runtime_units(), "cpu_needs.c"))
    most, driver = sources.driver.text.split("\n", 1)                       # #define HLOC_MOST_ARGUMENTS
    model = "\n".join([*(k.text for k in sources.kernels), driver.replace(EXPORTED, "")]) + OUT_OF_MEMORY
    library = "\n".join([*["#define HLOC_SLOW_PAIRS"] * sources.machine.slow_pairs, most,
                         *map(included, units), '#include "driver.h"', '#include "cpu_needs.h"',
                         PROLOGUE])
    library_kernels = inline_includes(library.replace(PROLOGUE, ""), (RUNTIME,), TEMPLATES)
    calls = calls_of((*sources.kernels, *sources.inlined))
    read = None if INCLUDE.search(library_kernels) else set(needed_sections(calls))
    library, model = inline_includes(
        library + MODEL + entry_macros(program, name) + '#include "entry.h"\n\n' + model, (RUNTIME, SHARED), TEMPLATES,
        lambda body: shortened(body, read)).split(MODEL)
    head = HEAD.format(march=march, flags=FLAGS.format(march=march), name=name) + header_text(program, name)
    text = START.format(name=name) + MODEL + model + LIBRARY + library
    return head + OWN.sub(f"{name}_", text) + constants_text(program.constants, name) + "#endif\n"


def included(unit: str) -> str:
    """A file of runtime/, or a function of generic.c, with its macros undefined at the end."""
    file, given = compilation(unit)
    names = dict.fromkeys(MACRO.findall((RUNTIME / file).read_text(encoding="utf-8")))
    return "\n".join([*("#define " + flag.removeprefix("-D").replace("=", " ") for flag in given),
                      f'#include "{file}"', *(f"#undef {name}" for name in names)])


def shortened(body: str, read: set[str] | None) -> str:
    """A header with one line about itself, and with the sections that are read, or all: library kernels make up names
    of scalar functions by macros."""
    if read is not None:
        body = READS.sub(lambda found: found[2] if found[1] in read else "", body)
    return ABOUT.sub(lambda found: f"/* {found[1].splitlines()[0].strip().rstrip('.')} */\n", body, count=1)
