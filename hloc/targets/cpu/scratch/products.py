"""Scratch memory of matmuls: the choices of runtime/gemm_choice.h and gemm_thin.h, and the memory that they need.

In: a Tile of the library kernel "gemm", or a Product that another library kernel computes. Out: a Scratch (slots.py).
Names are those of the C code.
"""
from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import FAST_TYPES, SAME_PRODUCT, SMALLEST_THIN, is_thin
from hloc.targets.cpu.scratch.slots import NOTHING, Scratch, busy_threads
from hloc.targets.cpu.tiles.complex_products import PARTS, real_product

THIN_ROWS, THIN_SMALL, THIN_SMALL_NARROW, THIN_SHORT, THIN_PAGES = 4, 1024 << 10, 512 << 10, 32, 512
THIN_MANY_PAGES, THIN_WIDE, SHARED, PAGE = 2048, 1024, 10 << 20, 4096
ALIASED_ROWS = 8
AMX_ROWS = AMX_DEEP = 16             # HLOC_DEEP of gemm_amx.h
GROUP_PANELS, GROUP_BYTES, SHORT, WIDEST_OF_TILES, TWO_TILES = 8, 256 << 10, 128, 512, 16


class Product(NamedTuple):
    """The relevant sizes and strides of hloc_gemm_args; a and b: (outer, inner, row, column)."""

    type: str
    batches: int
    m: int
    n: int
    k: int
    a: tuple[int, int, int, int]
    b: tuple[int, int, int, int]
    has_epilogue: bool = False
    epilogue_arrays: int = 0
    is_packed: bool = False          # b is packed by an earlier step (packing.py)


class Kind(NamedTuple):
    """The macros of gemm_<type>.c: bytes of ELEMENT, UNIT and SUM; GROUP, UNIT_IS_MEMORY, G_OFFSETS_A and G_CORRECTS,
    whether G_AMX_MULTIPLY is defined."""

    element: int
    unit: int
    sum: int
    group: int = 1
    is_memory: bool = False
    offsets_a: bool = False
    amx: bool = False

    @property
    def has_halves(self) -> bool:
        """G_HALVES."""
        return self.is_memory and self.group == 1


def kind_of(type: str, machine: Machine) -> Kind:
    if type in ("f32", "s32"):
        return Kind(4, 4, 4, is_memory=True)
    if type in ("f64", "s64"):
        return Kind(8, 8, 8, is_memory=True)
    sums_groups = type in machine.dots
    if type == "s8":
        return Kind(1, 4, 4, 4, True, not machine.amx, machine.amx) if sums_groups else Kind(1, 4, 4)
    has_tiles = machine.amx and type == "bf16"
    return Kind(2, 4, 4, 2, True, amx=has_tiles) if sums_groups else Kind(2, 4, 4)


def rows_of(kind: Kind, machine: Machine) -> int:
    """HLOC_TILE_ROWS of an element type."""
    return AMX_ROWS if kind.amx else tile_rows(machine)


def tile_rows(machine: Machine) -> int:
    """HLOC_TILE_ROWS of most element types, and HLOC_CONV_ROWS."""
    return 14 if machine.vector_bytes == 64 else 12 if machine.arch == "aarch64" else 6


def product_of(tile: Tile) -> Product:
    """The Product of a Tile of the library kernel "gemm"; parameters as in hloc/kernels/products/dot.py."""
    given = dict(tile.parameters)
    (m, n, k), (outer, inner) = given["sizes"], given["batches"]
    whole = sum(b.size >= outer * inner * m * n for b in tile.buffers[2:])
    type = SAME_PRODUCT.get(given["types"][0], given["types"][0])
    return Product(type, outer * inner, m, n, k, given["lhs"][1:], given["rhs"][1:], bool(tile.epilogue),
                   whole if tile.epilogue else 0, given.get("packing") == "reads")


def gemm_scratch(tile: Tile, machine: Machine) -> Scratch:
    """runtime/gemm.h."""
    if dict(tile.parameters).get("packing") == "packs":
        return NOTHING                                       # it writes to its packed buffer
    g = product_of(tile)
    m, n, k = real_product(g.m, g.n, g.k, g.a, g.b).sizes if g.type in PARTS else (g.m, g.n, g.k)
    return product_scratch(g, machine, thin=is_thin(m, n, k))


@lru_cache(maxsize=4096)         # layers of a model have the same products
def product_scratch(g: Product, machine: Machine, *, thin: bool) -> Scratch:
    """thin: the program contains the part of the library kernel for products of few rows. For small products the
    library kernel also considers whether threads are awake. That is not known here: the memory is enough for both
    cases."""
    if g.type in PARTS and min(g.batches, g.m, g.n) > 0:
        return _complex(g, machine, thin=thin)
    if g.type not in FAST_TYPES["gemm"] or min(g.batches, g.m, g.n, g.k) <= 0:
        return NOTHING                                       # runtime/generic.c works in place
    kind = kind_of(g.type, machine)
    exchanged = is_exchanged(g, kind, machine)
    if exchanged:
        g = exchange(g)
    if thin and goes_thin(g, kind):
        return _thin(g, kind, machine)
    return _tiled(g, kind, machine, exchanged, 6e5).joined(
        _tiled(g, kind, machine, exchanged, 2e5))


def _complex(g: Product, machine: Machine, *, thin: bool) -> Scratch:
    """runtime/gemm_complex.h."""
    made, copies = product_of_reals(g)
    return product_scratch(made, machine, thin=thin).joined(Scratch.of(third=copies * ELEMENT_TYPES[g.type].bytes))


def product_of_reals(g: Product) -> tuple[Product, int]:
    """The real product that computes a complex one, and the number of complex numbers that need memory."""
    real = real_product(g.m, g.n, g.k, g.a, g.b, g.batches)
    m, n, k = real.sizes
    return Product(PARTS[g.type], g.batches, m, n, k, real.a, real.b, g.has_epilogue or real.finishes,
                   g.epilogue_arrays), real.room


def is_exchanged(g: Product, kind: Kind, machine: Machine) -> bool:
    """Whether C^T = B^T A^T is computed."""
    lanes = machine.vector_bytes // kind.sum
    halves = kind.has_halves and g.n > lanes // 2 and g.a[3] == 1
    return g.n <= min(lanes, rows_of(kind, machine)) and g.m > 2 * g.n and not halves


def exchange(g: Product) -> Product:
    (a_outer, a_inner, a_row, a_column), (b_outer, b_inner, b_row, b_column) = g.a, g.b
    return g._replace(m=g.n, n=g.m, a=(b_outer, b_inner, b_column, b_row), b=(a_outer, a_inner, a_column, a_row))


def goes_thin(g: Product, kind: Kind) -> bool:
    b_row, b_column = g.b[2:]
    size = g.n * g.k
    lies_well = kind.has_halves and b_column == 1 and not aliases(g, kind)
    if g.m > 3 and lies_well and size * kind.element <= 1 << 20:
        return False
    return g.m <= THIN_ROWS and (b_column == 1 or b_row == 1) and g.n >= 8 and size >= SMALLEST_THIN


def _thin(g: Product, kind: Kind, machine: Machine) -> Scratch:
    wanted, work = 4 * machine.cores, g.n * g.k * g.batches
    parts, splits = -(-g.n // 4096), 1
    if work >= 24576 and not is_held(g, kind, machine) and g.b[2] != 1 and parts * g.batches < wanted:
        splits = min(-(-wanted // (parts * g.batches)), (g.k + 63) // 64)
        splits = -(-g.k // ((-(-g.k // splits) + 3) // 4 * 4))
    a_bytes = (g.batches * g.m * g.k * kind.sum + 127) // 64 * 64
    return Scratch.of(first=a_bytes + g.batches * splits * g.m * g.n * kind.sum)


def is_held(g: Product, kind: Kind, machine: Machine) -> bool:
    """As gemm_thin.h decides."""
    if g.b[2] == 1:
        return False
    small = (THIN_SMALL if kind.element == kind.sum else THIN_SMALL_NARROW) * (2 if g.k <= THIN_PAGES else 1)
    if g.k <= THIN_SHORT or g.n * g.k * kind.element <= small:
        return True
    if not is_shared(g, kind, machine) or kind.element < kind.sum:
        return False
    if g.m == 1 and (g.n < THIN_WIDE or g.n * g.k * kind.element > SHARED // 2):
        return False
    return g.k * min(g.b[2] * kind.element, PAGE) <= THIN_MANY_PAGES * PAGE


class Limits(NamedTuple):
    """Size limits of a block: DEEPEST, WIDEST and A_WIDE of gemm_tile.h."""

    deepest: int
    widest: int
    a_wide: int


def limits(kind: Kind, machine: Machine) -> Limits:
    if tile_rows(machine) > 6:
        return Limits(512, 512, 16 * machine.vector_bytes // kind.sum)
    return Limits(768 if kind.unit == 8 else 1024, 4096 // kind.unit, 1 << 30)


def _k_block(k: int, kind: Kind, machine: Machine) -> int:
    most = limits(kind, machine).deepest * kind.group
    if k <= most * 5 // 4:
        return k
    blocks = -(-k // most)
    return (-(-k // blocks) + 15) // 16 * 16


def is_readable(g: Product, kind: Kind, machine: Machine) -> bool:
    """b_readable: whether tiles may read B in place."""
    is_met_once = g.m <= tile_rows(machine) and is_shared(g, kind, machine)
    return kind.has_halves and g.b[3] == 1 and (is_met_once or not aliases(g, kind))


def is_shared(g: Product, kind: Kind, machine: Machine) -> bool:
    """As gemm_tile.h decides."""
    return machine.vector_bytes == 64 and g.n * g.k * kind.element <= SHARED


def packs_streams(g: Product, kind: Kind, machine: Machine) -> bool:
    """packs, for a skinny product whose B is streamed."""
    return g.m > (4 if g.k <= SHORT else TWO_TILES if is_shared(g, kind, machine) else rows_of(kind, machine))


def aliases(g: Product, kind: Kind) -> bool:
    """b_aliases."""
    return g.m > 1 and g.k > ALIASED_ROWS and g.b[2] * kind.element % PAGE == 0


class Blocks(NamedTuple):
    """The decisions of G(choose) and G(choose_splits)."""

    rows: int
    m_block: int
    n_block: int
    k_block: int
    k_blocks: int
    share_a: bool
    share_b: bool
    sweeps: bool
    k_part: int
    group: int
    flat: bool                   # share_a, except for sums in parts


def choose(g: Product, kind: Kind, machine: Machine, exchanged: bool, least_work: float) -> Blocks:
    """least_work: a product with less work is one block."""
    most_rows, columns = rows_of(kind, machine), 2 * machine.vector_bytes // kind.sum
    rows, k_block, work = min(most_rows, (g.m + 1) // 2 * 2), _k_block(g.k, kind, machine), g.m * g.n * g.k
    b_readable = is_readable(g, kind, machine)
    narrow = kind.has_halves and g.n <= machine.vector_bytes // kind.sum
    if narrow and g.a[2] * kind.element % 4096 == 0:
        rows = min(rows, ALIASED_ROWS)
    small, skinny = work <= 3e6, g.m <= 4 * most_rows
    whole_rows = g.epilogue_arrays >= 4 and not small and not skinny and g.n <= 2048 and not exchanged
    flat = not small and not skinny and not narrow and g.m <= 32 * most_rows and g.batches == 1 and not whole_rows
    share_b = not flat and g.batches == 1 and not (b_readable and (small or skinny)) and not skinny
    streams = skinny and kind.has_halves and g.b[3] == 1 and g.n * g.k * kind.element > 512 << 10
    packs = flat or (streams and packs_streams(g, kind, machine)) or not b_readable
    most_k = (32 if g.m <= 16 else 64) if streams else 256 * kind.group
    if skinny and g.k > most_k:
        k_block = most_k
    m_panels, n_panels = -(-g.m // rows), -(-g.n // columns)
    widest = WIDEST_OF_TILES if exchanged or g.has_epilogue else limits(kind, machine).widest
    n_blocks = 1 if whole_rows else -(-g.n // widest)
    m_group = m_panels if flat else min(m_panels, 8)
    while whole_rows and m_group > 1 and m_group * rows * g.n * kind.sum > 256 << 10:
        m_group -= 1
    if work * g.batches < least_work:
        n_blocks, m_group = 1, m_panels
    else:
        while g.batches * n_blocks * -(-m_panels // m_group) < 4 * machine.cores:
            if m_group > (1 if whole_rows else 2) and not skinny and not flat:
                m_group = (m_group + 1) // 2
            elif n_blocks * 2 <= n_panels:
                n_blocks *= 2
            elif m_group > 1:
                m_group = (m_group + 1) // 2
            else:
                break
    m_block, n_block, k_blocks = m_group * rows, -(-n_panels // n_blocks) * columns, -(-g.k // k_block)
    sweeps = g.has_epilogue and not exchanged and n_block > columns and not small and (
        k_blocks > 1 or m_block * n_block * kind.sum <= 512 << 10)
    k_part, tasks = g.k, g.batches * -(-g.m // m_block) * -(-g.n // n_block)
    if tasks < machine.cores and k_blocks > 1 and work * g.batches >= 1e6:
        k_part = -(-k_blocks // min(k_blocks, 2 * machine.cores // tasks)) * k_block
    panel = columns * -(-k_block // kind.group) * kind.unit
    group = min(-(-n_block // columns), GROUP_PANELS, 1 + GROUP_BYTES // panel)
    groups = g.b[3] == 1 and packs and not share_b
    share_a = flat
    if k_part < g.k:
        share_a = share_b = sweeps = False
    return Blocks(rows, m_block, n_block, k_block, k_blocks, share_a, share_b, sweeps, k_part, group if groups else 1,
                  flat)


def reads_in_place(g: Product, kind: Kind, machine: Machine, blocks: Blocks) -> tuple[bool, bool]:
    """Whether A, and whether B, is read in place: wants_a, wants_b."""
    rows, lanes = rows_of(kind, machine), machine.vector_bytes // kind.sum
    small, skinny, narrow = g.m * g.n * g.k <= 3e6, g.m <= 4 * rows, kind.has_halves and g.n <= lanes
    aliased = g.a[2] * kind.element % 4096 == 0 and not narrow and min(rows, g.m) > ALIASED_ROWS // 2
    b_readable = is_readable(g, kind, machine)
    streams = skinny and kind.has_halves and g.b[3] == 1 and g.n * g.k * kind.element > 512 << 10
    packs = streams and packs_streams(g, kind, machine)
    reads_b = b_readable and not blocks.flat and not packs and (small or skinny or g.batches > 1)
    units = all(n % kind.group == 0 for n in (*g.a[:3], g.k, blocks.k_block))
    reads_a = kind.is_memory and not kind.offsets_a and g.a[3] == 1 and units and not blocks.flat \
        and (small or blocks.n_block <= limits(kind, machine).a_wide) and not (aliased and g.k > 64)
    return reads_a, reads_b


def _tiled(g: Product, kind: Kind, machine: Machine, exchanged: bool, least_work: float) -> Scratch:
    """G(share_a), G(panel_bytes) and G(take_scratch)."""
    b = choose(g, kind, machine, exchanged, least_work)
    columns, depth = 2 * machine.vector_bytes // kind.sum, -(-b.k_block // kind.group)
    m_panels, n_panels = -(-g.m // b.rows), -(-g.n // columns)
    a_units = -(-depth // AMX_DEEP) * AMX_DEEP if kind.amx else depth
    first = 0
    if b.share_a:
        vector = machine.vector_bytes // kind.unit
        panel = (b.rows * a_units + 2 * vector - 1) // vector * vector
        first = b.k_blocks * m_panels * panel * kind.unit
    elif b.share_b and not g.is_packed:
        packed_block = _k_block(g.k, kind, machine)
        corrections = n_panels * -(-g.k // packed_block) * columns * kind.sum if kind.offsets_a else 0
        first = n_panels * -(-g.k // kind.group) * columns * kind.unit + corrections
    panels = -(-b.m_block // b.rows)
    sums = panels * b.rows * -(-b.n_block // columns) * columns * kind.sum
    blocks = g.batches * -(-g.m // b.m_block) * -(-g.n // b.n_block)
    splits = -(-g.k // b.k_part)
    if splits > 1:
        first = blocks * splits * sums
    own = (0 if b.share_a else _spaced(panels * b.rows * a_units * kind.unit + machine.vector_bytes)) \
        + (0 if b.share_b or g.is_packed else _spaced(b.group * columns * depth * kind.unit)) \
        + (_spaced(sums) if (b.k_blocks > 1 or b.sweeps) and splits == 1 else 0) \
        + _spaced(rows_of(kind, machine) * columns * kind.sum) + _spaced(b.group * columns * kind.sum)
    tasks, per_task = blocks * splits, b.m_block * b.n_block * b.k_part
    grain = 1 if per_task > 1e5 else int(1e5 / per_task) + 1
    return Scratch.of(first=first, own=own, threads=busy_threads(tasks, grain, machine))


def _spaced(size: int) -> int:
    """G(aligned)."""
    return (size + 127) // 64 * 64 + 64
