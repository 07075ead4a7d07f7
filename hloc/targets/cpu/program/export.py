"""The parts of a saved program besides its kernels: constants, a manifest, and functions for C and C++.

In: a plan.Program, and the prefix of its functions. Out: C text of the entry unit, the constants as one
binary file or as C text, and the C header.

    encoder_run(inputs, results)          hloc_run in runtime/entry.h
"""
from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hloc.analysis.packing import ALIGNMENT
from hloc.errors import UnsupportedError
from hloc.kernels.plan import Program
from hloc.targets.c_headers import arrays, c_string, comment, header
from hloc.targets.cpu.building.toolchain import RUNTIME
from hloc.targets.cpu.execution.executable import constant_places
from hloc.targets.inlining import inline_includes

PUBLIC = ("run", "start", "stop", "error")
# Entries that Python reads in <name>_program, the only other symbol of a library.
FOR_PYTHON = ("cpu_lacks", "execute", "use_threads", "threads", "share_threads", "forget_threads", "unplanned", "match",
              "are_idle", "run_alone", "call", "quick")
OF_DEVICES = ("devices_new", "devices_free", "devices_of", "devices_reset", "devices_leave", "devices_stop",
              "combine_parts")                # the same, of a program of several devices
MOST_TEXT_BYTES = 256 << 20               # of constants that C text spells out: gcc takes 3 GiB for them
BYTES_PER_LINE = 32
COMMUNICATORS = {"threads": ("threads.c", "threads.h"), "mpi": ("mpi.c", "mpi.h")}


def write_constants(constants: Sequence[np.ndarray], path: Path) -> None:
    """All constants one behind the other, each at a multiple of ALIGNMENT, as the manifest says."""
    with open(path, "wb") as file:
        file.writelines(_padded(constants))
        file.write(b"\0" * ALIGNMENT)


def _padded(constants: Sequence[np.ndarray]) -> Iterator[bytes]:
    for constant in constants:
        yield constant.tobytes()
        yield b"\0" * (-constant.nbytes % ALIGNMENT)


def constants_text(constants: Sequence[np.ndarray], name: str) -> str:
    """The same file as C text: <name>_constants. Raises UnsupportedError if it would be too long."""
    total = constant_places(constants)[-1]
    if total > MOST_TEXT_BYTES:
        raise UnsupportedError(f"the constants take {total / 2**20:,.0f} MiB, too much to spell out in C",
                               hint="a .so holds them as they are")
    data = b"".join(_padded(constants)) or b"\0"
    lines = "\n".join(f"  {c_string(data[i:i + BYTES_PER_LINE])}" for i in range(0, len(data), BYTES_PER_LINE))
    return (f"/* -- constants: {total:,} bytes -- */\n"
            f"static const char {name}_constants[{len(data) + 1}] __attribute__((aligned({ALIGNMENT}))) =\n{lines};\n")


def entry_macros(program: Program, name: str) -> str:
    """The facts about a program for runtime/entry.h."""
    places = constant_places(program.constants)[:-1] or [0]
    return "\n".join([
        *([f"#define HLOC_DEVICES {program.devices}"] if program.meets else []),
        f"#define HLOC_NAME {c_string(name)}",
        *(f"#define HLOC_{what} {count}" for what, count in (
            ("PARAMETERS", len(program.parameters)), ("RESULTS", len(program.results)),
            ("CONSTANTS", len(program.constants)), ("ARENA_BYTES", max(program.arena_size, ALIGNMENT)))),
        f"static const long hloc_constant_offsets[] = {{{', '.join(map(str, places))}}};", ""])


def entry_unit(program: Program, name: str, facts: dict, constants: Path) -> str:
    """C text of a unit of a shared object: its functions, the constants through the assembler, and what Python looks
    for: the manifest, which is `facts`, and functions by their names."""
    renamed = [f"#define hloc_{word} {name}_{word}" for word in (*PUBLIC, "program")]
    words = (*FOR_PYTHON, *(OF_DEVICES if program.meets else ()))
    rows = [f'  {{"hloc_{word}", (const void *)hloc_{word}}},' for word in words]
    return "\n".join([
        "#define _GNU_SOURCE", "#define HLOC_ENTRY_UNIT", *renamed,
        f'__asm__(".section .rodata\\n.balign {ALIGNMENT}\\n.hidden hloc_constants\\n.global hloc_constants\\n"',
        f'        "hloc_constants:\\n.incbin {escaped_again(str(constants))}\\n.previous\\n");',
        'extern __attribute__((visibility("hidden"))) const char hloc_constants[];',
        entry_macros(program, name), '#include "entry.h"', "",
        f"static const char hloc_manifest[] = {c_string(json.dumps(facts))};",
        *(f"void hloc_{word}(void);" for word in words if word not in ("cpu_lacks", "execute")),
        "HLOC_PUBLIC const struct { const char *name; const void *address; } hloc_program[] = {", *rows,
        '  {"hloc_manifest", hloc_manifest},', '  {"hloc_constants", hloc_constants},', "  {0, 0}};", ""])


def escaped_again(text: str) -> str:
    """A string literal of the assembler, within one of C."""
    return c_string(text).replace("\\", "\\\\").replace('"', '\\"')


def exported_names(name: str) -> list[str]:
    """The exported symbols of a shared object."""
    return [f"{name}_{word}" for word in (*PUBLIC, "program")]


def header_text(program: Program, name: str) -> str:
    """The C header beside a saved program."""
    title = f"{comment(program.name)}, for C and C++. Link with the shared object or the C file, -lm and -lpthread."
    if not program.meets:
        return header(title, arrays(program), ONE_RUN + USE.replace("TURNS", "runs of one program take turns"),
                      (RUN, *PROTOTYPES), name)
    use = DEVICE_RUN + USE.replace("TURNS", "each device has a thread of its own")
    about = f" * This is the program of each of {program.devices} devices. " + DEVICES
    prototypes = ["struct hloc_communicator;", RUN_ON_DEVICE, *PROTOTYPES]
    interface = (RUNTIME / "communicator.h").read_text(encoding="utf-8")
    return header(title, arrays(program), about + use, prototypes, name) + interface


def communicator_sources(kind: str) -> dict[str, str]:
    """The C files of a communicator by their names, each by itself: for the devices of a header that `header_text`
    made."""
    found = {}
    for name in COMMUNICATORS[kind]:
        text = inline_includes(f'#include "{name}"\n', (RUNTIME, RUNTIME.parent / "communicators"), frozenset())
        found[f"hloc_{name}"] = text
    return found


RUN = "int NAME_run(const void *const *inputs, void *const *results);"
RUN_ON_DEVICE = "int NAME_run(struct hloc_communicator *communicator, const void *const *inputs, void *const *results);"
PROTOTYPES = ("int NAME_start(int threads);", "void NAME_stop(void);", "const char *NAME_error(int code);")
DEVICES = """Arrays are the parts of one device.
 * communicator: how it exchanges arrays with the others, see below. `hloc compile --communicator` writes one for
 *     threads and one for MPI processes. All devices run at the same time.
 *
"""
ONE_RUN = """\
 * NAME_run(inputs, results): reads inputs[0], inputs[1] ..., writes results[0], results[1] ...: one pointer per array,
 *     row-major. Returns 0, else an error: 1, out of memory; 2, this CPU lacks instructions that the code uses.
"""
DEVICE_RUN = """\
 * NAME_run(communicator, inputs, results): the run of one device; reads inputs[0], inputs[1] ..., writes results[0],
 *     results[1] ...: one pointer per array, row-major. Returns 0, else an error: 1, out of memory; 2, this CPU lacks
 *     instructions that the code uses; 3, devices could not exchange arrays: the communicator's message says why;
 *     4, the communicator is of another version, or for another number of devices.
"""
USE = """\
 * NAME_start(threads), optional: takes memory and starts threads before the first run. threads: the caller's included;
 *     0: as many as there are CPUs for the process, which is what the first run does. Returns as NAME_run does.
 * NAME_stop(): frees memory and ends threads; the next run starts them again. Unloading the library does it, too.
 * NAME_error(code): the text of an error.
 *
 * Threads    any thread may call any of these; TURNS. Programs are independent.
 * Alignment  that of the element type, as malloc's; a multiple of 64 is fastest.
 * Lifetime   the caller owns all arrays. Inputs are only read. Results are undefined until NAME_run returns; none may
 *            overlap another array. No pointer is kept afterwards.
 * Numbers    during a run subnormal numbers are taken for zero; the caller's floating-point state is restored.
 * fork       a child may run the program; it starts its own threads. */"""
