"""The plan of a .cubin as a C program that uses the CUDA driver API, and needs neither Python nor CUDA's headers.

In: a written .cubin, still open, its Program and Geometry; the prefix of its functions. Out: C text (host/host.h and
the tables and steps of this plan), and its header.

    encoder_start("encoder.cubin");  encoder_run(inputs, results);  encoder_stop();
"""
from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hloc.errors import UnsupportedError
from hloc.ir.narrowing import known
from hloc.kernels.plan import Branch, Collective, Copy, Counter, DeviceNumber, Launch, Program, Ref, Step, WhileLoop
from hloc.targets.c_headers import arrays, c_string, comment, header
from hloc.targets.cuda.container import Geometry, image_members
from hloc.targets.cuda.libraries.cublaslt import LtProduct
from hloc.targets.cuda.tiles.tensor_maps import BYTES, TYPES
from hloc.targets.sealed import SEAL_BYTES

TEMPLATE = Path(__file__).parent / "host" / "host.h"
ALIGNMENT = 256                       # of each array in device memory
LOCAL_HEADER = 30                     # bytes of a zip member's local header, without name and extra field
PUBLIC = ("int NAME_start(const char *path);", "int NAME_run(const void *const *inputs, void *const *results);",
          "void NAME_stop(void);", "const char *NAME_error(int code);")
USE = """\
 * NAME_start(path): loads the .cubin that was compiled together with this file. Returns 0, else an error: 1, out of
 *     memory, here or on the GPU; 2, no driver, or no GPU that it was compiled for; 3, the file is missing or another;
 *     4, the GPU reported a fault.
 * NAME_run(inputs, results): copies inputs[0], inputs[1] ... to the GPU, runs, and copies to results[0], results[1] ...
 *     One pointer per array, row-major, in the host's memory. Returns when the results are there: 0 or an error.
 * NAME_stop(): gives back what it has on the GPU; NAME_start may follow.
 * NAME_error(code): the last error in words.
 *
 * Threads    any thread may call any of these; runs of one program take turns. The GPU's primary context is used, and
 *            the caller's current context is put back.
 * Lifetime   arrays are the caller's; nothing keeps a pointer after a run. Page-locked ones are copied faster. */"""


@dataclass
class Steps:
    """Collects the lines of the plan, the memory references in them and the tensor maps of launches."""

    program: Program
    geometry: Sequence[Geometry]
    refs: list[str] = field(default_factory=list)
    maps: list[tuple[Launch, int]] = field(default_factory=list)      # launch, and index among its kernel's maps
    lines: list[str] = field(default_factory=list)
    most: int = 0                                                     # the most arguments of a launch

    def ref(self, ref: Ref, further: str = "") -> str:
        """further: C that is added to the offset."""
        parameters, results = len(self.program.parameters), len(self.program.results)
        first = {"arena": 0, "parameter": 1, "result": 1 + parameters, "constant": 1 + parameters + results}
        return f"{{{first[ref.region] + ref.index}, {ref.offset}{further}}}"

    def steps(self, steps: Sequence[Step], indent: int) -> None:
        writers: dict[type, Callable[[Any, int], None]] = {
            Launch: self.launch, Copy: self.copy, WhileLoop: self.loop, Branch: self.branch,
            Collective: self.refuse, DeviceNumber: self.refuse}
        for step in steps:
            writers[type(step)](step, indent)

    def line(self, indent: int, text: str) -> None:
        self.lines.append("  " * indent + text)

    def does(self, indent: int, call: str) -> None:
        self.line(indent, f"if ((code = {call})) return code;")

    def launch(self, step: Launch, indent: int) -> None:
        kernel = self.geometry[step.kernel]
        if kernel.product:
            library = "cuBLASLt" if isinstance(kernel.product, LtProduct) else "cuDNN"
            raise UnsupportedError(f"a host program in C calls no library: {kernel.about} is computed by {library}",
                                   hint="compile without --tuning")
        maps = len(self.maps) if kernel.maps else -1
        self.maps += [(step, n) for n in range(len(kernel.maps))]
        first, self.most = len(self.refs), max(self.most, len(step.arguments))
        self.refs += [self.ref(r) for r in step.arguments]
        self.does(indent, f"hloc_launch({step.kernel}, refs + {first}, {len(step.arguments)}, {maps})")

    def copy(self, step: Copy, indent: int) -> None:
        to, source = self.ref(step.destination), self.ref(step.source)
        self.does(indent, f"hloc_copy((hloc_ref){to}, (hloc_ref){source}, {step.source.size})")

    def refuse(self, step: Collective | DeviceNumber, indent: int) -> None:
        raise UnsupportedError("a host program in C runs on one GPU: collectives of GPUs are run by hloc",
                               step.instruction.span if step.instruction is not None else None,
                               hint="hloc run FILE.cubin under mpirun")

    def loop(self, step: WhileLoop, indent: int) -> None:
        if step.trip_count is not None:
            self.line(indent, f"for (long iteration = 0; iteration < {step.trip_count}; iteration++) {{")
            for counter in step.counters:
                self.count(counter, indent + 1)
        else:
            self.line(indent, "for (;;) {")
            self.steps(step.condition, indent + 1)
            self.does(indent + 1, f"hloc_read((hloc_ref){self.ref(known(step.flag))}, 1, &value)")
            self.line(indent + 1, "if (!value) break;")
        self.steps(step.body, indent + 1)
        self.line(indent, "}")

    def count(self, counter: Counter, indent: int) -> None:
        """Sets a counter for the loop's round `iteration`."""
        size = counter.values.size
        now = self.ref(counter.values, f" + iteration * {size}")
        self.does(indent, f"hloc_copy((hloc_ref){self.ref(counter.place)}, (hloc_ref){now}, {size})")

    def branch(self, step: Branch, indent: int) -> None:
        is_pred = step.selector_type == "pred"
        self.does(indent, f"hloc_read((hloc_ref){self.ref(step.selector)}, {1 if is_pred else 4}, &value)")
        self.line(indent, "switch (value ? 0 : 1) {" if is_pred else "switch (value) {")
        for number, steps in enumerate(step.branches):
            last = number == len(step.branches) - 1
            self.line(indent, "default: {" if last else f"case {number}: {{")
            self.steps(steps, indent + 1)
            self.line(indent, "} break;")
        self.line(indent, "}")


def host_text(file: BinaryIO, program: Program, geometry: Sequence[Geometry], arch: str, name: str) -> str:
    """The C text. Raises UnsupportedError for a program that calls cuBLASLt or cuDNN."""
    if program.on_host:
        raise UnsupportedError(f"a host program in C keeps no arrays in the host's memory, S(5): {program.name} does",
                               hint="hloc run runs the .cubin")
    plan = Steps(program, geometry)
    plan.steps(program.steps, 1)
    values = [*program.parameters, *program.results]
    sizes = [v.shape.num_bytes for v in values] + [c.nbytes for c in program.constants]
    places, total = _places([program.arena_size, *sizes, BYTES * len(plan.maps)])
    images, constants, length, seal = _facts(file, geometry, len(program.constants))
    digits = arch.removeprefix("sm_")
    major, minor = divmod(int(digits.rstrip("af")), 10)
    numbers = {"KERNELS": len(geometry), "CONSTANTS": len(program.constants), "PARAMETERS": len(program.parameters),
               "RESULTS": len(program.results), "MAPS": len(plan.maps), "DEVICE_BYTES": total,
               "FILE_BYTES": length, "IMAGES": len(images), "MAJOR": major, "MINOR": minor,
               "EXACT": int(digits != digits.rstrip("af")),
               "MOST_ARGUMENTS": plan.most,
               "NAME": c_string(name), "ARCH": c_string(arch), "SEAL": c_string(seal)}
    kernels = [f"  {{{c_string(g.function)}, {_row(g.grid)}, {_row(g.block)}, {g.shared}, {g.image}, "
               f"{c_string(g.about)}}}," for g in geometry]
    types, _, functions = TEMPLATE.read_text(encoding="utf-8").partition("enum { HLOC_NO_MEMORY")
    text = "\n".join([
        *(f"#define HLOC_{what} {value}" for what, value in numbers.items()), types,
        "static const hloc_kernel hloc_kernels[] = {", *kernels, "  {0, {0}, {0}, 0, 0, 0}};",
        "static const hloc_image hloc_images[] = {", *(f"  {_row(image)}," for image in images), "  {0, 0}};",
        f"static const size_t hloc_places[] = {_row(places[:-1])};",
        f"static const size_t hloc_bytes[] = {_row([*sizes, 0])};",
        f"static const size_t hloc_in_file[] = {_row([*constants, 0])};",
        "static const hloc_map hloc_maps[] = {",
        *(_map(plan, launch, n, places[-1] + BYTES * i) for i, (launch, n) in enumerate(plan.maps)), "  {0}};", "",
        "enum { HLOC_NO_MEMORY" + functions,
        f"static const hloc_ref refs[] = {{{', '.join([*plan.refs, '{0, 0}'])}}};", "",
        "static int hloc_plan(void) {", "  int32_t value = 0;", "  int code = 0;", *plan.lines,
        "  return (void)refs, (void)value, code;", "}", ""])
    about = f"/* {comment(program.name)}, for {arch}: cc -O2 -c {name}.c; link with -ldl -lpthread */\n"
    return about + header_text(program, name) + text.replace("hloc_", f"{name}_")


def header_text(program: Program, name: str) -> str:
    title = f"{comment(program.name)} on a GPU, for C and C++. Link with the C file, -ldl and -lpthread."
    return header(title, arrays(program), USE, PUBLIC, name)


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """The offset of each array in one allocation, and the size of the allocation."""
    places, total = [], 0
    for size in sizes:
        places.append(total)
        total += -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
    return places, total


def _facts(file: BinaryIO, geometry: Sequence[Geometry], count: int
           ) -> tuple[list[tuple[int, int]], list[int], int, str]:
    """Facts of a .cubin: offsets and bytes of its images, offsets of its constants, its length and its seal."""
    length = file.seek(-SEAL_BYTES, 2) + SEAL_BYTES
    seal = file.read(SEAL_BYTES).decode("ascii")
    with zipfile.ZipFile(file) as archive:
        images = [(_offset(archive, name), archive.getinfo(name).file_size)
                  for _, name in sorted(image_members(geometry).items())]
        constants = [_offset(archive, f"constant_{i}") for i in range(count)]
    return images, constants, length, seal


def _offset(archive: zipfile.ZipFile, name: str) -> int:
    """The place of a stored member's bytes in the file."""
    return archive.getinfo(name).header_offset + LOCAL_HEADER + len(name)


def _map(plan: Steps, launch: Launch, number: int, place: int) -> str:
    map = plan.geometry[launch.kernel].maps[number]
    ref = launch.arguments[map.argument]
    array = plan.ref(ref._replace(offset=ref.offset + map.offset))
    rows = ", ".join(_row(r) for r in (map.sizes, map.strides, map.box, map.steps))
    return f"  {{{place}, {array}, {TYPES[map.width]}, {rows}}},"


def _row(numbers: Sequence[int]) -> str:
    return f"{{{', '.join(map(str, numbers))}}}"
