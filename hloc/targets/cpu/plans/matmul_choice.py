"""The plan of a matmul: how the library kernels of runtime/gemm.h compute it, decided here and printed into C.

In: a Tile of the library kernel "gemm", or a Product that another library kernel computes. Out: a MatmulPlan; the
library kernel decides nothing. With vectors of 64 bytes and two cores:

    f32[500,200] by f32[200,300]    blocks of rows by columns, B packed once for all tasks
    f32[1,900] by f32[900,400]      thin: B is read once
"""
from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from hloc.kernels.ir import Tile
from hloc.machine import Machine
from hloc.targets.cpu.plans.complex_matmul import PARTS, real_product
from hloc.targets.cpu.plans.matmul import Constants, Kind, MatmulPlan, Product, kind_of, product_of
from hloc.targets.cpu.plans.matmul_blocks import plan_of_blocks
from hloc.targets.cpu.plans.slots import NOTHING, Scratch
from hloc.targets.cpu.plans.thin_matmul import goes_thin, plan_of_thin


@lru_cache(maxsize=4096)         # layers of a model have the same products
def plan_of(g: Product, machine: Machine) -> MatmulPlan | None:
    """None: there is nothing to compute."""
    if g.type in PARTS and min(g.batches, g.m, g.n) > 0:
        return _complex(g, machine)
    if min(g.batches, g.m, g.n, g.k) <= 0:
        return None
    kind = kind_of(g.type, machine)
    exchanged = _is_exchanged(g, kind)
    inner = _exchange(g) if exchanged else g
    plan = plan_of_thin(inner, kind, machine) if goes_thin(inner, kind) else \
        plan_of_blocks(inner, kind, machine, exchanged)
    return plan._replace(constants=plan.constants._replace(m=g.m, exchanged=exchanged))


def _complex(g: Product, machine: Machine) -> MatmulPlan:
    """The plan of the real product; m is that of the complex one."""
    real = real_product(g.m, g.n, g.k, g.a, g.b, g.batches,
                        stores_rows=not g.has_epilogue and (g.c[1] == 1 or g.n == 1))
    m, n, k = real.sizes
    made = Product(PARTS[g.type], g.batches, m, n, k, real.a, real.b, (2 * g.c[0], 1), real.finishes, g.epilogue_arrays)
    plan, third = plan_of(made, machine), real.room * (8 if g.type == "c64" else 16)
    plan = plan or MatmulPlan(made, Constants(g.batches, g.m), NOTHING)
    return plan._replace(scratch=plan.scratch.joined(Scratch.of(third=third)), constants=plan.constants._replace(
        m=g.m, third=third, keeps_b=real.keeps_b, along=real.along, transposed=real.transposed, orders=real.orders,
        copies=real.copies, finishes=real.finishes))


def _is_exchanged(g: Product, kind: Kind) -> bool:
    """Columns that fill less than half a tile; but half tiles are fast if A's rows are contiguous."""
    halves = kind.reads_b and g.n > kind.lanes // 2 and g.a[3] == 1
    return g.n <= min(kind.lanes, kind.tile_rows) and g.m > 2 * g.n and not halves


def _exchange(g: Product) -> Product:
    (a_outer, a_inner, a_row, a_column), (b_outer, b_inner, b_row, b_column) = g.a, g.b
    return g._replace(m=g.n, n=g.m, a=(b_outer, b_inner, b_column, b_row), b=(a_outer, a_inner, a_column, a_row))


def gemm_scratch(tile: Tile, machine: Machine) -> Scratch:
    """Of a Tile of the library kernel "gemm"; one that packs an operand writes to its packed buffer."""
    packs = dict(tile.parameters).get("packing") == "packs"
    return NOTHING if packs else scratch_of_all([product_of(tile)], machine)


def scratch_of_all(products: Sequence[Product], machine: Machine) -> Scratch:
    """Enough memory for each."""
    found = NOTHING
    for g in products:
        plan = plan_of(g, machine)
        found = found.joined(plan.scratch) if plan else found
    return found
