"""Which matmuls cuBLASLt can compute: a "gemm" Tile -> an LtProduct, or None.

In: the Tile. Out: its operands as column-major matrices, and the name of its epilogue, which must be one of the
library's: a bias for each column, ReLU, GELU with tanh. The product is not rounded before its epilogue, as in XLA's
calls of the library.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import constant_of, of_names
from hloc.kernels.ir import INDEX, Apply, Const, Expr, Load, Store, Tile, Var
from hloc.kernels.walks import are_lets
from hloc.targets.cuda.libraries import cublaslt
from hloc.targets.cuda.libraries.cublaslt import LtProduct, Matrix
from hloc.targets.cuda.tiles.product_facts import Product
from hloc.targets.cuda.tiles.tensor_cores import TF32

SMALLEST = 1 << 21                  # multiply-adds; with fewer the call costs more than the product
GELU_CUBIC, GELU_SCALE = 0.044715, 0.7978845608        # of gelu(x) = x / 2 (1 + tanh(scale (x + cubic x^3)))
CLOSE = 4e-3                        # relative error of constants, which may have been rounded to bf16


def library_product(tile: Tile) -> LtProduct | None:
    """The library's product; None if the library cannot compute it in one call."""
    if tile.prologues:
        return None
    facts = dict(tile.parameters)
    (m, n, k), (outer, inner), (_, total) = facts["sizes"], facts["batches"], facts["types"]
    types = {b.name: b.type for b in tile.buffers}
    names = [b.name for b in tile.buffers]
    stores = [b.name for b in tile.buffers if b.access != "read"]
    element = types["lhs"]
    asked = facts.get("algorithm", TF32)    # the library uses all bits of f32, more than TF32
    if stores != ["out0"] or asked != TF32 or "groups" in facts or types["rhs"] != element \
            or total != cublaslt.SUMS.get(element) or types["out0"] not in (element, total) \
            or m * n * k * outer * inner < SMALLEST:
        return None
    product = Product(m, n, k, outer, inner, facts["lhs"], facts["rhs"])
    exchanged, result = False, facts["result"]
    if result[3] != 1 or n == 1:
        product, exchanged, result = product.exchange(), True, (*result[:2], result[3], result[2])
    found = _epilogue(tile, facts, exchanged)
    if found is None or result[3] != 1 or product.n == 1:
        return None
    epilogue, bias = found
    first, second = ("lhs", "rhs") if exchanged else ("rhs", "lhs")
    a = _matrix(names.index(first), _Strides.of(product.rhs, 4, 3), product.n, product.k, product)
    b = _matrix(names.index(second), _Strides.of(product.lhs, 4, 3), product.k, product.m, product)
    d = _matrix(names.index("out0"), _Strides(0, result[0], result[1], 1, result[2]), product.n, product.m, product)
    if a is None or b is None or d is None or d.transposed:
        return None
    return LtProduct(element, types["out0"], total, outer * inner, a, b, d, epilogue,
                     names.index(bias) if bias else -1, types.get(bias, ""))


class _Strides(NamedTuple):
    """offset, batch strides, and the strides along the rows and the columns of a column-major matrix."""

    offset: int
    outer: int
    inner: int
    down: int
    across: int

    @staticmethod
    def of(side: tuple[int, ...], down: int, across: int) -> _Strides:
        """down, across: where in `side` these are."""
        return _Strides(side[0], side[1], side[2], side[down], side[across])


def _matrix(argument: int, strides: _Strides, rows: int, columns: int, product: Product) -> Matrix | None:
    """A matrix with these strides; None unless one of its dimensions is contiguous and its batches have one stride."""
    offset, outer, inner, down, across = strides
    if product.outer > 1 and product.inner > 1 and outer != product.inner * inner:
        return None
    apart = inner if product.inner > 1 else outer if product.outer > 1 else 0
    if (down == 1 or rows == 1) and across >= rows:
        return Matrix(argument, offset, rows, columns, across, apart)
    if (across == 1 or columns == 1) and down >= columns:
        return Matrix(argument, offset, columns, rows, down, apart, True)
    return None


# -- epilogues ---------------------------------------------------------------------------------------------------------

def _epilogue(tile: Tile, facts: dict, exchanged: bool) -> tuple[str, str] | None:
    """(name, buffer of the bias) of the Tile's epilogue, or None for another one."""
    return named_epilogue(tile, lambda position: _in_place(position, facts), exchanged)


def named_epilogue(tile: Tile, in_place: Callable[[Expr], bool], exchanged: bool = False) -> tuple[str, str] | None:
    """The same; in_place tells whether an element is stored at its position without an epilogue."""
    if not tile.epilogue:
        return "", ""
    *lets, last = tile.epilogue
    if not isinstance(last, Store) or not are_lets(lets):
        return None
    if last.buffer != "out0" or not in_place(last.position):
        return None
    known: dict[str, object] = {}
    for statement in lets:
        known[statement.name] = _normal(statement.value, known, exchanged)
    return _name(_normal(last.value, known, exchanged))


def _in_place(position: Expr, facts: dict) -> bool:
    """Whether the element is stored at its position without an epilogue."""
    outer, inner, row, column = facts["result"]
    many, each = facts["batches"]
    if constant_of(position) or (many > 1 and each > 1 and outer != each * inner):
        return False
    m, n, _ = facts["sizes"]
    apart = inner if each > 1 else outer
    wanted = {"row": row if m > 1 else 0, "column": column if n > 1 else 0, "batch": apart if many * each > 1 else 0}
    return position == of_names(wanted)


def _normal(expr: Expr, known: Mapping[str, object], exchanged: bool) -> object:
    """The normal form of a value, nested tuples: ("add", x, y ...), ("mul", factor, x ...), "acc", ("bias", buffer), a
    number; None for a value that such an epilogue cannot contain. Conversions between floats are left out."""
    if isinstance(expr, Const):
        return float(expr.real)
    if isinstance(expr, Var):
        return "acc" if expr.name == "acc" else known.get(expr.name)
    if isinstance(expr, Load):
        along = Var("row" if exchanged else "column", INDEX)
        return ("bias", expr.buffer) if expr.position == along else None
    if not isinstance(expr, Apply) or expr.type == INDEX or ELEMENT_TYPES[expr.type].kind != "float":
        return None
    parts = [_normal(a, known, exchanged) for a in expr.arguments]
    if None in parts:
        return None
    if expr.op == "convert":
        return parts[0]
    if expr.op == "divide" and isinstance(parts[1], float) and parts[1]:
        return _joined("mul", [parts[0], 1 / parts[1]])
    if expr.op in ("add", "multiply", "maximum"):
        return _joined({"add": "add", "multiply": "mul", "maximum": "max"}[expr.op], parts)
    return (expr.op, *parts)


def _joined(op: str, parts: list) -> object:
    """One flattened sum, product or maximum: its constant first, then the other operands in order."""
    flat = [x for p in parts for x in (p[1:] if isinstance(p, tuple) and p[0] == op else (p,))]
    numbers, rest = [x for x in flat if isinstance(x, float)], [x for x in flat if not isinstance(x, float)]
    join: dict[str, Callable[[list[float]], float]] = {"add": sum, "mul": _product, "max": max}
    number = join[op](numbers) if numbers else None
    kept = ([] if number is None or number == {"add": 0.0, "mul": 1.0}.get(op) else [number]) + sorted(rest, key=repr)
    return kept[0] if len(kept) == 1 else (op, *kept)


def _product(numbers: list[float]) -> float:
    result = 1.0
    for number in numbers:
        result *= number
    return result


def _name(value: object) -> tuple[str, str] | None:
    """The library's epilogue that equals a value in normal form; None if there is none."""
    for name, before in (("", value), ("relu", _of_relu(value)), ("gelu", _of_gelu(value))):
        if before == "acc":
            return name, ""
        if isinstance(before, tuple) and before[0] == "add" and len(before) == 3 and "acc" in before:
            (bias,) = (p for p in before[1:] if p != "acc")
            if isinstance(bias, tuple) and bias[0] == "bias":
                return f"{name}_bias".lstrip("_"), bias[1]
    return None


def _of_relu(value: object) -> object:
    """The x of max(0, x); None for another value."""
    return value[2] if isinstance(value, tuple) and value[:2] == ("max", 0.0) and len(value) == 3 else None


def _of_gelu(value: object) -> object:
    """The x of x / 2 (1 + tanh(...)): the formula of gelu(x) must equal the value. None if there is no such x."""
    if not isinstance(value, tuple) or value[0] != "mul" or len(value) != 4:
        return None
    for x in value[2:]:
        inner = _joined("add", [x, _joined("mul", [GELU_CUBIC, x, x, x])])
        formula = _joined("mul", [0.5, x, _joined("add", [1.0, ("tanh", _joined("mul", [GELU_SCALE, inner]))])])
        if _close(value, formula):
            return x
    return None


def _close(a: object, b: object) -> bool:
    """Whether two normal forms are equal up to the rounding of constants."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= CLOSE * abs(b)
    return a == b
