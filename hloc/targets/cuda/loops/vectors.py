"""Pointwise kernels with vector accesses: a thread loads, computes and stores several adjacent elements at once.

In: a loop Kernel, its Space, and a width. Out: which accesses are of vectors; its text. Results are written in order.
Arrays that are contiguous along the elements are read several elements at a time, others one element at a time.

    out[i] = x[i] + b   in bf16   ->   hloc_pack<hloc_bf16, 8> x0 = *(const hloc_pack<hloc_bf16, 8> *)&in0[element];
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import For, Kernel, Load
from hloc.kernels.schedule.nest import Refused
from hloc.targets.cuda.loops.iteration_space import Access, Space, counters, inside, is_along
from hloc.targets.cuda.loops.printing import Pack, head, print_pack
from hloc.targets.printer import CUDA, StatementPrinter

VECTOR_BYTES = 16               # the most that one access to memory takes


class Vectors(NamedTuple):
    """width: adjacent elements of one thread; loads: those that are read as vectors."""

    space: Space
    width: int
    loads: dict[Load, Access]

    @property
    def threads(self) -> int:
        return self.space.elements // self.width


def vectors_of(kernel: Kernel, space: Space, width: int) -> Vectors:
    """The accesses of vectors of a width. Raises Refused where results are no such vectors."""
    if space.dimensions[0].size % width or not all(is_along(a, width) for a in space.stores.values()):
        raise Refused(f"results are no vectors of {width}")
    if width * widest(kernel, space) > VECTOR_BYTES:
        raise Refused(f"an access to memory has {VECTOR_BYTES} bytes at most")
    return Vectors(space, width, {load: a for load, a in space.loads.items()
                                  if is_along(a, width) and inside(kernel, load, a, space.dimensions)})


def widest(kernel: Kernel, space: Space) -> int:
    """The bytes of the widest element that is read or written at places in the space."""
    types = [load.type for load in space.loads] + \
        [b.type for b in kernel.buffers if any(s.buffer == b.name for s in space.stores)]
    return max(ELEMENT_TYPES[t].bytes for t in types)


def print_vectors(kernel: Kernel, vectors: Vectors, threads: int, name: str, index: str) -> str:
    """The whole kernel, as a function called `name`; index: the C type of positions."""
    printer, width = StatementPrinter(CUDA, index=index), vectors.width
    head(printer, kernel, name, threads)
    printer.line(1, f"for ({index} vector = {printer.first_thread}; vector < {vectors.threads}; "
                    f"vector += {printer.all_threads}) {{")
    loop = kernel.body[0]
    assert isinstance(loop, For)
    pack = Pack(width, {load: _place(vectors, a) for load, a in vectors.loads.items()},
                {store: _place(vectors, a) for store, a in vectors.space.stores.items()})
    print_pack(printer, pack, vectors.space.statements, counters(loop, f"vector * {width} + part", index),
               kernel.buffers, 2)
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
