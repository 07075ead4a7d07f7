"""How a matmul is computed: algorithm, blocks, scratch memory, tasks (runtime/gemm.h).

In: a Tile of the library kernel "gemm", or a Product that another library kernel computes. Out: what its plan is made
of; matmul_choice.py makes it. With vectors of 64 bytes and two cores:

    f32[500,200] by f32[200,300]    blocks of 112 by 160, B packed once for all tasks
    f32[1,900] by f32[900,400]      thin: B is read once; sums of 64 columns stay in registers
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import SAME_PRODUCT
from hloc.targets.cpu.plans.slots import Scratch

ALIASED_ROWS, PAGE = 8, 4096
SHARED = 10 << 20                    # bytes of B that may fit a shared cache
AMX_ROWS = 16


class Product(NamedTuple):
    """Sizes and strides, in elements, of hloc_gemm_args; a and b: (outer, inner, row, column); c: (row, column)."""

    type: str
    batches: int
    m: int
    n: int
    k: int
    a: tuple[int, int, int, int]
    b: tuple[int, int, int, int]
    c: tuple[int, int] = (0, 1)
    has_epilogue: bool = False
    epilogue_arrays: int = 0         # arrays as large as c that the epilogue reads and writes
    is_narrow: bool = False          # c holds elements narrower than the sums
    is_packed: bool = False          # b is packed by an earlier step, or by this one (packing.py)


class Constants(NamedTuple):
    """hloc_gemm_plan of runtime/gemm.h. Sizes but m are those after the exchange.

    is_thin                  gemm_thin.h computes it, else gemm_tile.h
    exchanged                C^T = B^T A^T is computed
    rows                     of a register tile, at most; even
    m_block, n_block, k_block    of the block of a task; thin: n_block columns
    k_part                   of a sum, by one task; less than k: parts are added afterwards
    group                    panels of B that a task packs at once
    a_in_place, b_in_place   are not packed; a_across: nor is A, whose rows are interleaved
    shares_a, shares_b       are packed once for all tasks
    sums_in_c                whole tiles are summed in C itself
    sweeps                   the epilogue runs after a block, along whole rows of it
    is_held                  thin: sums stay in registers; fetches: B is prefetched
    grain, grain_asleep      tasks that a thread takes at once; the second while workers sleep
    first, third, own        bytes of scratch memory; a_panel_units: of a shared panel of A
    at_b ...                 where these begin in `own`; thin: at_sums in `first`
    keeps_b ...              of complex numbers: as in RealProduct
    """

    batches: int
    m: int
    is_thin: bool = False
    exchanged: bool = False
    rows: int = 0
    m_block: int = 0
    n_block: int = 0
    k_block: int = 0
    k_part: int = 0
    group: int = 1
    a_in_place: bool = False
    a_across: bool = False
    b_in_place: bool = False
    shares_a: bool = False
    shares_b: bool = False
    sums_in_c: bool = False
    sweeps: bool = False
    is_held: bool = False
    fetches: bool = False
    grain: int = 1
    grain_asleep: int = 1
    first: int = 0
    third: int = 0
    own: int = 0
    a_panel_units: int = 0
    at_b: int = 0
    at_sums: int = 0
    at_tile: int = 0
    at_correction: int = 0
    keeps_b: bool = False
    along: bool = False
    transposed: bool = False
    orders: bool = False
    copies: bool = False
    finishes: bool = False


class MatmulPlan(NamedTuple):
    """product: the real one, and after the exchange."""

    product: Product
    constants: Constants
    scratch: Scratch


class Kind(NamedTuple):
    """Facts of an element type on a machine, as gemm_<type>.c has them: bytes of an element, of a unit, which is what
    one lane multiplies, and of a sum; elements of a unit; whether memory holds units; whether packed A is changed, and
    sums corrected for that; whether AMX multiplies. vector: bytes."""

    vector: int
    tile_rows: int
    element: int
    unit: int
    sum: int
    group: int = 1
    is_memory: bool = False
    offsets_a: bool = False
    amx: bool = False

    @property
    def reads_b(self) -> bool:
        """Whether tiles may read B in place."""
        return self.is_memory and self.group == 1

    @property
    def lanes(self) -> int:
        return self.vector // self.sum

    @property
    def columns(self) -> int:
        return 2 * self.lanes

    def units(self, k: int) -> int:
        return -(-k // self.group)


def kind_of(type: str, machine: Machine) -> Kind:
    rows, vector = tile_rows(machine), machine.vector_bytes
    if type in ("f32", "s32"):
        return Kind(vector, rows, 4, 4, 4, is_memory=True)
    if type in ("f64", "s64"):
        return Kind(vector, rows, 8, 8, 8, is_memory=True)
    sums_groups, amx = type in machine.dots, machine.amx and type in ("s8", "bf16")
    if amx:
        rows = AMX_ROWS
    if type == "s8":
        return Kind(vector, rows, 1, 4, 4, 4, True, not amx, amx) if sums_groups else Kind(vector, rows, 1, 4, 4)
    return Kind(vector, rows, 2, 4, 4, 2, True, amx=amx) if sums_groups else Kind(vector, rows, 2, 4, 4)


def tile_rows(machine: Machine) -> int:
    """HLOC_TILE_ROWS of most element types, and HLOC_CONV_ROWS."""
    return 14 if machine.vector_bytes == 64 else 12 if machine.arch == "aarch64" else 6


def product_of(tile: Tile) -> Product:
    """The Product of a Tile of the library kernel "gemm"; parameters as in hloc/kernels/products/gemm.py."""
    given, has_epilogue = dict(tile.parameters), bool(tile.epilogue)
    (m, n, k), (outer, inner) = given["sizes"], given["batches"]
    whole = sum(b.size >= outer * inner * m * n for b in tile.buffers[2:]) if has_epilogue else 0
    type = SAME_PRODUCT.get(given["types"][0], given["types"][0])
    c = (0, 1) if has_epilogue else given["result"][2:]
    narrow = not has_epilogue and len(tile.buffers) > 2 and tile.buffers[2].type in ("bf16", "f16")
    return Product(type, outer * inner, m, n, k, given["lhs"][1:], given["rhs"][1:], c, has_epilogue, whole, narrow,
                   "packing" in given)


def aliases(g: Product, kind: Kind) -> bool:
    """Whether rows of B share few cache sets: prefetched lines of a tile of columns would be evicted before use."""
    return g.m > 1 and g.k > ALIASED_ROWS and g.b[2] * kind.element % PAGE == 0


def is_shared(g: Product, kind: Kind) -> bool:
    """Whether vectors are whole cache lines, and B may fit a shared cache."""
    return kind.vector == 64 and g.n * g.k * kind.element <= SHARED
