"""Operands that a kernel packs before a matrix product: as lines along the depth, in the scratch memory.

The instructions of sm_90a read bytes and f32 only along the depth, and f32 without the last 13 bits. In: an operand
that lies otherwise, or is f32. Out: the text and launch of the kernel that packs it (lines.cuh), its place behind the
partial sums, and its Work. f32 are rounded to TF32. Such a kernel reads and writes the operand once, usually a filter
or weights; the product then reads the copy by the bulk copy engine.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.costs.work import WARP, Work
from hloc.targets.cuda.tiles.tiling import Tiling, kernel_text, shape_struct

PIECE, ALIGNED = 16, 256            # bytes: of one store; alignment of an operand
THREADS, BLOCKS_PER_SM = 128, 16
OPERATIONS = 2                      # instructions per element: rounding, or moving bytes to other places of a word


class Lines(NamedTuple):
    """side: 0 for the left operand, 1 for the right one; type: of elements; rows, depth, batches: of the operand;
    source: C text of the source (gemm.cuh) of a `batch`; vector: elements per load; pairs: the order of lines.cuh's
    hloc_paired, for another operand that is read across the depth."""

    side: int
    type: str
    rows: int
    depth: int
    batches: int
    source: str
    vector: int
    pairs: bool

    @property
    def width(self) -> int:
        return ELEMENT_TYPES[self.type].bytes

    @property
    def line(self) -> int:
        """Elements from one row to the next, all of them written. Pairs change places within groups of 8."""
        most = 8 if self.pairs else PIECE // self.width
        return -(-self.depth // most) * most

    @property
    def bytes(self) -> int:
        return self.batches * self.rows * self.line * self.width

    def blocks(self, gpu: Machine) -> int:
        pieces = self.bytes // PIECE // (1 if self.vector == 1 else min(self.vector, PIECE // self.width))
        return max(1, min(-(-pieces // THREADS), gpu.cores * BLOCKS_PER_SM))

    def kernel(self, tile: Tile, name: str, gpu: Machine, offset: int) -> tuple[str, Geometry]:
        """Text and launch. tile: with the scratch memory; offset: bytes from its start."""
        own, type = f"{name}_{'lhs' if self.side == 0 else 'rhs'}_lines", c_type(self.type)
        constants = {"ROWS": self.rows, "DEPTH": self.depth, "BATCHES": self.batches, "LINE": self.line,
                     "PAIRS": int(self.pairs)}
        body = [f"hloc_pack_lines<{own}_shape>([&](long batch) {{ return {self.source}; }},\n"
                f"    ({type} *)((unsigned char *)scratch + {offset}));"]
        text = shape_struct(f"{own}_shape", constants) + kernel_text(tile, own, THREADS, body)
        return text, Geometry(own, (self.blocks(gpu), 1, 1), (THREADS, 1, 1))

    def work(self, gpu: Machine) -> Work:
        """The Work of the launch."""
        elements, blocks = self.bytes / self.width, self.blocks(gpu)
        accesses = 1 / self.vector + self.width / PIECE
        counts = {"access": elements / WARP * accesses, "alu": elements / WARP * OPERATIONS}
        rounds = self.bytes / PIECE / (blocks * THREADS) / max(1, min(self.vector, PIECE // self.width))
        return Work(blocks, THREADS, 64, 0, 2.0 * self.bytes, 2.0 * self.bytes, counts, rounds=max(1.0, rounds))


def sums_bytes(tiling: Tiling, width: int) -> int:
    """Bytes of the partial sums of a split depth. width: of a sum."""
    return tiling.elements * tiling.splits * width if tiling.splits > 1 else 0


def offsets(tiling: Tiling, width: int, lines: Sequence[Lines]) -> tuple[list[int], int]:
    """Where each packed operand lies in the scratch memory, in bytes, and how many bytes that has. width: of a sum."""
    end, places = sums_bytes(tiling, width), []
    for one in lines:
        places.append(-(-end // ALIGNED) * ALIGNED)
        end = places[-1] + one.bytes
    return places, end
