"""Pointwise kernels with vector accesses: a thread loads, computes and stores several adjacent elements at once.

In: a loop Kernel and its Space. Out: the vector width (16 bytes of the widest type), or None if results are not
written in order; its text. Arrays that are contiguous along the elements are read 8 or 16 bytes at a time, others one
element at a time.

    out[i] = x[i] + b   in bf16   ->   hloc_pack<hloc_bf16, 8> x0 = *(const hloc_pack<hloc_bf16, 8> *)&in0[element];
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import INDEX, For, Kernel, Load, Store, Var
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.loops.iteration_space import Access, Space, counters, inside, is_along, replaced
from hloc.targets.printer import CUDA, StatementPrinter, comment, kernel_start, pointer_type

VECTOR_BYTES = 16
THREADS = 256
BLOCKS_PER_SM = 16
ENOUGH = 256                    # the fewest threads per SM


class Vectors(NamedTuple):
    """width: adjacent elements of one thread; loads: those that are read as vectors."""

    space: Space
    width: int
    loads: dict[Load, Access]

    @property
    def threads(self) -> int:
        return self.space.elements // self.width


def find_vectors(kernel: Kernel, space: Space, gpu: Machine) -> Vectors | None:
    """How to read and write several elements at once; None if that is not possible or leaves too few threads."""
    if space.dimensions[0].size % 2 or not space.stores:
        return None
    widest = max(ELEMENT_TYPES[s.type].bytes for s in (*space.loads, *_buffers(kernel, space)))
    width = VECTOR_BYTES // widest
    while width > 1 and (space.dimensions[0].size % width or space.elements // width < ENOUGH * gpu.cores
                         or not all(is_along(a, width) for a in space.stores.values())):
        width //= 2
    if width < 2:
        return None
    loads = {load: a for load, a in space.loads.items()
             if is_along(a, width) and inside(kernel, load, a, space.dimensions)}
    return Vectors(space, width, loads)


def _buffers(kernel: Kernel, space: Space) -> list:
    return [b for b in kernel.buffers if any(s.buffer == b.name for s in space.stores)]


def vector_geometry(vectors: Vectors, name: str, gpu: Machine) -> Geometry:
    blocks = max(1, min(-(-vectors.threads // THREADS), gpu.cores * BLOCKS_PER_SM))
    return Geometry(name, (blocks, 1, 1), (THREADS, 1, 1))


def print_vectors(kernel: Kernel, vectors: Vectors, name: str, index: str) -> str:
    """The whole kernel, as a function called `name`; index: the C type of positions."""
    printer, width = StatementPrinter(CUDA, index=index), vectors.width
    printer.lines.extend(comment(kernel.origin))
    parameters = ", ".join(f"{pointer_type(b)}{b.name}" for b in kernel.buffers)
    printer.line(0, f'extern "C" __global__ void __launch_bounds__({THREADS}) {name}({parameters}) {{')
    printer.lines.extend(kernel_start(kernel.buffers))
    printer.line(1, f"for ({index} vector = {printer.first_thread}; vector < {vectors.threads}; "
                    f"vector += {printer.all_threads}) {{")
    for n, load in enumerate(vectors.loads):
        type = f"hloc_pack<{c_type(load.type)}, {width}>"
        printer.line(2, f"const {type} x{n} = *(const {type} *)&{load.buffer}"
                        f"[{_place(vectors, vectors.loads[load])}];")
    stores = list(vectors.space.stores)
    types = {b.name: b.type for b in kernel.buffers}
    for n, store in enumerate(stores):
        printer.line(2, f"hloc_pack<{c_type(types[store.buffer])}, {width}> y{n};")
    printer.line(2, "#pragma unroll")
    printer.line(2, f"for (int lane = 0; lane < {width}; lane++) {{")
    loop = kernel.body[0]
    assert isinstance(loop, For)
    for line in counters(loop, f"vector * {width} + lane", index):
        printer.line(3, line)
    places = {load: Load(f"x{n}.at", Var("lane", INDEX), load.type) for n, load in enumerate(vectors.loads)}
    for statement in vectors.space.statements:
        new = replaced(statement, places)
        if isinstance(statement, Store):
            new = Store(f"y{stores.index(statement)}.at", Var("lane", INDEX), new.value)
        printer.statements([new], 3)
    printer.line(2, "}")
    for n, store in enumerate(stores):
        type = f"hloc_pack<{c_type(types[store.buffer])}, {width}>"
        printer.line(2, f"*({type} *)&{store.buffer}[{_place(vectors, vectors.space.stores[store])}] = y{n};")
    printer.line(1, "}")
    printer.line(0, "}")
    return "\n".join(printer.lines) + "\n"


def _place(vectors: Vectors, access: Access) -> str:
    """The position of a vector's first element."""
    dimensions, terms = vectors.space.dimensions, []
    for n, (dimension, step) in enumerate(zip(dimensions, access.steps)):
        if step:
            divisor = max(1, dimension.divisor // vectors.width) if n else 1
            size = dimension.size // (vectors.width if n == 0 else 1)
            part = "vector" if divisor == 1 else f"vector / {divisor}"
            part = part if n == len(dimensions) - 1 else f"{part} % {size}"
            terms.append(f"{part} * {step * (vectors.width if n == 0 else 1)}")
    return " + ".join([*terms, *([str(access.constant)] if access.constant else [])]) or "0"
