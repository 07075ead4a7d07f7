"""What a "gemm" Tile asks for: the matrix product, its operands and its epilogue.

In: the Tile that hloc/kernels/products/gemm.py describes. Out: a Product, which exchanges rows and columns where that
is faster; texts of operands; the epilogue.
"""
from __future__ import annotations

from typing import NamedTuple

from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Stmt, Tile, Var
from hloc.targets.cuda.tiles.finish import VECTOR_BYTES
from hloc.targets.cuda.tiles.prologues import Computed, computed, prologue_struct
from hloc.targets.cuda.tiles.tiling import store_sum

THIN = 8                    # most rows (or columns) of the thin template (few_rows.py)


class Product(NamedTuple):
    """C[b, i, j] = sum over k of A B. exchanged: rows and columns of the Tile are exchanged. groups: the number of
    groups of rows, or 0; each group has its own B, and the inner batches are these."""

    m: int
    n: int
    k: int
    outer: int
    inner: int
    lhs: tuple[int, int, int, int, int]         # offset, outer, inner, row, k
    rhs: tuple[int, int, int, int, int]         # offset, outer, inner, k, column
    exchanged: bool = False
    groups: int = 0

    @staticmethod
    def of(tile: Tile) -> Product:
        facts = dict(tile.parameters)
        (m, n, k), (outer, inner) = facts["sizes"], facts["batches"]
        if "groups" in facts:
            return Product(m, n, k, outer, inner, facts["lhs"], facts["rhs"], groups=facts["groups"][0])
        product = Product(m, n, k, outer, inner, facts["lhs"], facts["rhs"])
        return product.exchange() if n <= THIN < m or (n < m and n <= THIN) else product

    def exchange(self) -> Product:
        """The same product as C^T = B^T A^T."""
        a, b = self.lhs, self.rhs
        return Product(self.n, self.m, self.k, self.outer, self.inner, (*b[:3], b[4], b[3]), (*a[:3], a[4], a[3]), True)

    def constants(self, width: int) -> dict[str, int]:
        """Constants of gemm.cuh. width: bytes of an element."""
        a, b = self.lhs, self.rhs
        grouped = {"GROUPS": self.groups} if self.groups else {}
        apart = self.groups and a[4] != 1           # a group may start at any row
        return {**grouped, "M": self.m, "N": self.n, "K": self.k,
                "BATCHES": self.outer * self.inner, "INNER": self.inner,
                "A_OUTER": a[1], "A_INNER": a[2], "A_ROW": a[3], "A_K": a[4],
                "B_OUTER": b[1], "B_INNER": b[2], "B_K": b[3], "B_COLUMN": b[4],
                "A_VECTOR": 1 if apart else vector_of(a[:3], (self.m, a[3]), (self.k, a[4]), width),
                "B_VECTOR": vector_of(b[:3], (self.n, b[4]), (self.k, b[3]), width)}


def vector_of(starts: tuple[int, ...], rows: tuple[int, int], depth: tuple[int, int], width: int) -> int:
    """Elements of an operand per vector load. They must be contiguous, and all offsets and other strides must be
    multiples of the vector length. rows, depth: size and stride of each."""
    (count, stride), (other, apart) = (depth, rows) if depth[1] == 1 else (rows, depth)
    if stride != 1:
        return 1
    vector = VECTOR_BYTES // width
    while vector > 1 and any(n % vector for n in (count, *starts, *([apart] if other > 1 else []))):
        vector //= 2
    return max(1, vector)


def places_of(product: Product) -> tuple[dict[str, int], str]:
    """The extents of the epilogue's names, and the one that runs along the product's columns."""
    rows, columns, count = product.m, product.n, product.outer * product.inner
    if product.exchanged:
        return {"batch": count, "row": columns, "column": rows}, "row"
    return {"batch": count, "row": rows, "column": columns}, "column"


def computed_sides(tile: Tile) -> dict[str, Computed]:
    """The operands ("lhs", "rhs") that are computed by a prologue."""
    m, n, k = dict(tile.parameters)["sizes"]
    return {p.operand: computed(p, m if p.operand == "lhs" else n, k) for p in tile.prologues}


def types_of(tile: Tile, names: tuple[str, ...] = ("lhs", "rhs")) -> list[str]:
    """The element types of the named operands."""
    types = {**{b.name: b.type for b in tile.buffers}, **{p.operand: p.type for p in tile.prologues}}
    return [types[n] for n in names]


def names_of(product: Product) -> tuple[str, str]:
    """The Tile's names of the left and the right operand."""
    return ("rhs", "lhs") if product.exchanged else ("lhs", "rhs")


def operands_of(tile: Tile, name: str, product: Product, made: dict[str, Computed]) -> tuple[str, str]:
    """The template's arguments for both operands: addresses, or prologue structs; and the text of these structs."""
    texts = []
    for operand, side in zip(names_of(product), (product.lhs, product.rhs)):
        if operand in made:
            texts.append(f"{name}_{operand}{{{', '.join(b.name for b in made[operand].buffers(tile))}}}")
        else:
            texts.append(operand + (f" + {side[0]}" if side[0] else ""))
    return ", ".join(texts), "".join(prologue_struct(m, tile, f"{name}_{n}") for n, m in made.items())


def epilogue(tile: Tile, total: str) -> tuple[Stmt, ...]:
    """The Tile's epilogue; without one, a store of the sum to out0."""
    if tile.epilogue:
        return tile.epilogue
    facts = dict(tile.parameters)
    outer, inner, row, column = facts["result"]
    batch = Var("batch", INDEX)
    count = Const(facts["batches"][1], INDEX)
    place: Expr = Const(0, INDEX)
    for value, stride in ((index_apply("divide", batch, count), outer),
                          (Apply("remainder", (batch, count), INDEX), inner),
                          (Var("row", INDEX), row), (Var("column", INDEX), column)):
        if stride:
            scaled = index_apply("multiply", value, Const(stride, INDEX)) if stride != 1 else value
            place = scaled if place == Const(0, INDEX) else index_apply("add", place, scaled)
    return (store_sum(next(b for b in tile.buffers if b.name == "out0"), place, total),)
