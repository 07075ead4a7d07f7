"""The gradients of attention on the GPU: an "attention_gradient" Tile -> CUDA C that calls attention_gradient.cuh.

In: the Tile that hloc/kernels/attention/gradient.py describes. Out: structs of constants, a kernel, and its
launch. bf16 and f16 are multiplied on tensor cores if all arrays have that type, and if the weights may be rounded to
it or are split exactly into sums of three bf16 numbers; on sm_90a, if they may be rounded, also by warpgroups
(attention_gradient_group.cuh). Everything else is computed at full precision in registers.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hloc.analysis.prologues import is_limited_by_mma
from hloc.ir import ELEMENT_TYPES
from hloc.kernels.ir import Buffer, Tile
from hloc.machine import Machine
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.tiles.attention import (
    CHUNKS,
    KEYS,
    PANEL,
    batched_map,
    place_of,
    reader,
    stride_constants,
    two_dimensions,
)
from hloc.targets.cuda.tiles.attention_results import features_at_once, result_function
from hloc.targets.cuda.tiles.product_facts import vector_of
from hloc.targets.cuda.tiles.tensor_cores import PLAIN
from hloc.targets.cuda.tiles.tensor_maps import BYTES, PIECE, TensorMap
from hloc.targets.cuda.tiles.tiling import (
    BARRIER,
    BLOCKS_PER_SM,
    BULK_COLUMNS,
    WARP,
    kernel_text,
    shape_struct,
)
from hloc.targets.cuda.tiles.weights import fast_weights
from hloc.targets.printer import CUDA, print_statements

MOST_FEATURES = CHUNKS[-1]      # most features of a block
OF_PARTS = 6                    # registers per part of the weights after the first
MOST_REGISTERS = 160            # for sums and weights; the rest of 255: addresses, fragments, data of rows
# Rows and columns of a tile on tensor cores, the fastest first
SHAPES = ((128, 64), (64, 64), (128, 32), (64, 32), (64, 16), (32, 16))
ROWS = 64                       # rows of a tile in registers
STEP = 16
# For warpgroups: rows and columns of a tile, the fastest first; most tiles of columns in shared memory; registers per
# thread for sums, weights and their words, of 240
GROUPED, MOST_STAGES, MOST_GROUPED = ((128, 128), (128, 64), (64, 128), (64, 64)), 4, 224


class Facts(NamedTuple):
    """A tile's parameters; see attention/gradient.py."""

    rows: int
    columns: int
    batches: tuple[int, ...]
    products: tuple
    outputs: tuple
    types: dict[str, str]       # of the arrays

    @staticmethod
    def of(tile: Tile) -> Facts:
        facts = dict(tile.parameters)
        rows, columns = facts["sizes"]
        return Facts(rows, columns, facts["batches"], facts["products"], facts["outputs"],
                     {b.name: b.type for b in tile.buffers})

    @property
    def features(self) -> int:
        return max(features for features, *_ in self.outputs)

    @property
    def arrays(self) -> list[str]:
        """The names of the buffers that are multiplied."""
        return [a[0] for _, *sides in self.products for a in sides] + [x[0] for _, x, *_ in self.outputs]

    @property
    def narrow(self) -> str:
        """The element type if tensor cores can multiply all arrays, otherwise ""."""
        types = {self.types[a] for a in self.arrays}
        fits = len(types) == 1 and types <= {"bf16", "f16"} and all(parts for *_, parts in self.outputs)
        return types.pop() if fits else ""


class Shape(NamedTuple):
    """rows, columns: of a tile; features: of a block; registers: per thread, for sums; 0 without tensor cores."""

    rows: int
    columns: int
    features: int
    threads: int
    memory: int
    registers: int
    stages: int = 0             # tiles of columns in shared memory, for warpgroups

    @property
    def variant(self) -> str:
        """Its name in tuning files."""
        how = ", wgmma, bulk copies" if self.stages else "" if self.registers else ", f32"
        return f"{self.rows} rows, {self.columns} columns{how}"


def attention_gradient(tile: Tile, name: str, gpu: Machine, variant: str = "") -> tuple[str, Geometry]:
    """Text and launch. variant: one of attention_gradient_variants."""
    facts = Facts.of(tile)
    shapes = _shapes(facts, gpu)
    shape = next((s for s in shapes if s.variant == variant), shapes[0])
    batches = math.prod(facts.batches)
    constants = {"ROWS": facts.rows, "COLUMNS": facts.columns, "BATCHES": batches, "INNER": len(facts.products),
                 "OUTER": len(facts.outputs), "BM": shape.rows, "BN": shape.columns, "FC": shape.features}
    products = [_product(facts, *p) for p in facts.products]
    outputs = [_output(facts, shape, o[0], o[1], o[3]) for o in facts.outputs]
    results = [(next(b for b in tile.buffers if b.name == o[2][0]), facts.batches, o[2][1:]) for o in facts.outputs]
    for output, result in zip(outputs, results):
        output["STORED"] = features_at_once(*result, facts.rows, output["FEATURES"]) if shape.stages else 1
    maps: tuple[TensorMap, ...] = ()
    if shape.stages:
        maps = _map_arrays(tile, facts, shape, constants, products, outputs)
        weights = fast_weights(tile.epilogue, facts.narrow, {b.name: b.size for b in tile.buffers},
                               {"batch": batches, "row": facts.rows, "column": facts.columns})
        tile = tile._replace(buffers=(*tile.buffers, Buffer("maps", "u8", BYTES * len(maps), "read")), epilogue=weights)
    text = shape_struct(f"{name}_shape", constants)
    text += "".join(shape_struct(f"{name}_product{n}", p) for n, p in enumerate(products))
    text += "".join(shape_struct(f"{name}_output{n}", o) for n, o in enumerate(outputs))
    body = [*([] if maps else _arrays(facts)), _weigh(tile, facts)]
    body += [result_function(f"finish{n}", *result, output["STORED"])
             for n, (result, output) in enumerate(zip(results, outputs))]
    blocks = -(-facts.rows // shape.rows) * -(-facts.features // shape.features) * batches
    blocks = max(1, min(blocks, gpu.cores * (1 if shape.stages else BLOCKS_PER_SM)))
    start = Geometry(name, (blocks, 1, 1), (shape.threads, 1, 1), shape.memory, maps=maps)
    body.append(_call(name, facts, shape))
    return text + kernel_text(tile, name, shape.threads, body, shape.memory, shape.memory), start


def attention_gradient_variants(tile: Tile, gpu: Machine) -> list[str]:
    """The variants that a tuning file can select, the cost model's choice first."""
    return [s.variant for s in _shapes(Facts.of(tile), gpu)]


def _shapes(facts: Facts, gpu: Machine) -> list[Shape]:
    """The tiles that fit, the cost model's choice first."""
    found = []
    if facts.narrow:
        found = [s for s in (_on_cores(facts, *shape) for shape in SHAPES)
                 if s.memory <= gpu.shared_bytes and s.registers <= MOST_REGISTERS]
    grouped = _grouped_shapes(facts, gpu) if found else []
    blocks = math.prod(facts.batches) * -(-facts.rows // SHAPES[0][0])
    for shapes in (found, grouped):         # stable: otherwise in the order given; two tiles are used, others copied
        shapes.sort(key=lambda s: (s.rows > 64 and blocks < gpu.cores, s.stages == 2))
    found = [*grouped, *found] if _limited_by_mma(facts, gpu) else [*found, *grouped]
    chunk = next((c for c in CHUNKS if c >= facts.features), MOST_FEATURES)
    memory = 4 * (STEP * (ROWS + 4 + KEYS + 4 + chunk + 4) + KEYS * (ROWS + 4))
    return [*found, Shape(ROWS, KEYS, chunk, 256, memory, 0)]


def _on_cores(facts: Facts, rows: int, columns: int) -> Shape:
    """A tile for tensor cores. Its memory holds the rows of all products, and the columns twice."""
    features = min(_padded(facts.features), MOST_FEATURES)
    products = sum(_line(_padded(depth)) for depth, *_ in facts.products)
    own = sum(_shared(facts, x, features) < 0 for _, x, *_ in facts.outputs)
    memory = rows * products + 2 * columns * (products + own * _line(features))
    registers = (len(facts.outputs) * features + max(len(facts.products), len(facts.outputs)) * columns) // 2
    registers += OF_PARTS * (max(parts for *_, parts in facts.outputs) - 1)
    return Shape(rows, columns, features, 2 * rows, memory, registers)


def _limited_by_mma(facts: Facts, gpu: Machine) -> bool:
    batches = math.prod(facts.batches)
    widths = [depth for depth, *_ in facts.products] + [features for features, *_ in facts.outputs]
    return is_limited_by_mma(2 * batches * facts.rows * facts.columns * sum(widths),
                             2 * batches * (facts.rows + facts.columns) * sum(widths), 2, gpu)


def _grouped_shapes(facts: Facts, gpu: Machine) -> list[Shape]:
    """Tiles for wgmma (sm_90a), if tensor maps can describe all arrays and weights are rounded."""
    arrays = _mapped(facts, [-1] * len(facts.outputs))
    lines = all(_vector(facts, a, lines, width) * 2 == PIECE and (a[2] > 0 or lines == 1) for a, lines, width in arrays)
    batches = two_dimensions(facts.batches, [a[4] for a, *_ in arrays])
    if gpu.arch != "sm_90a" or not lines or batches is None or any(parts != 1 for *_, parts in facts.outputs):
        return []
    features = PANEL if facts.features <= PANEL else 2 * PANEL
    products = sum(_padded(depth, PANEL) for depth, *_ in facts.products)
    own = sum(_shared(facts, x, features, PANEL) < 0 for _, x, *_ in facts.outputs) * features
    found = []
    for rows, columns in GROUPED:
        stage = columns * (products + own) * 2
        rest = rows * products * 2 + (2 + 2 * MOST_STAGES) * BARRIER + rows * (BULK_COLUMNS + 8) * 4
        stages = min(MOST_STAGES, (gpu.shared_bytes - rest) // stage)
        registers = len(facts.outputs) * (features + columns // 2) // 2 + len(facts.products) * columns // 2
        if stages >= 2 and registers <= MOST_GROUPED:
            found.append(Shape(rows, columns, features, 2 * rows + 4 * WARP, rest + stages * stage, registers, stages))
    return found


def _mapped(facts: Facts, shared: Sequence[int]) -> list[tuple[tuple, int, int]]:
    """The arrays that tensor maps describe, in the order of these, with their lines and the elements of a line. shared:
    of each output, the product whose tile is its X too, or -1."""
    found = []
    for depth, a, b in facts.products:
        found += [(a, facts.rows, depth), (b, facts.columns, depth)]
    return found + [(x, facts.columns, features) for (features, x, *_), of in zip(facts.outputs, shared) if of < 0]


def _map_arrays(tile: Tile, facts: Facts, shape: Shape, constants: dict[str, int], products: list[dict[str, int]],
                outputs: list[dict[str, int]]) -> tuple[TensorMap, ...]:
    """The tensor maps of a grouped shape; adds what attention_gradient_group.cuh wants to the constants."""
    own = [n for n, o in enumerate(outputs) if o["SHARED"] < 0]
    arrays = _mapped(facts, [o["SHARED"] for o in outputs])
    batches = two_dimensions(facts.batches, [a[4] for a, *_ in arrays])
    assert batches is not None              # as _grouped_shapes has checked
    inner, strides = batches
    constants.update(STAGES=shape.stages, HEADS=inner)
    for n, (product, (depth, *_)) in enumerate(zip(products, facts.products)):
        product.update(DP=_padded(depth, PANEL), MAP=2 * n, **stride_constants("AB", strides[2 * n:2 * n + 2]))
    for n, number in enumerate(own, 2 * len(products)):
        outputs[number].update(MAP=n, **stride_constants("X", strides[n:n + 1]))
    names, outer = [b.name for b in tile.buffers], math.prod(facts.batches) // inner
    boxes = [shape.rows, shape.columns] * len(products) + [shape.columns] * len(own)
    return tuple(batched_map(names.index(a[0]), a[1], (width, (lines, a[2])), (outer, inner), stride, box)
                 for (a, lines, width), stride, box in zip(arrays, strides, boxes))


def _padded(size: int, unit: int = 16) -> int:
    return -(-size // unit) * unit


def _line(width: int) -> int:
    """Bytes of a line of 16-bit elements in shared memory (hloc_lines)."""
    return (width // 8 | 1) * 16


def _shared(facts: Facts, x: tuple, features: int, unit: int = 16) -> int:
    """The product whose second array is x and whose tile contains all features; -1 if there is none. unit: what depths
    are multiples of."""
    found = (n for n, (depth, _, b) in enumerate(facts.products) if b == x and facts.features <= depth
             and facts.features <= features <= _padded(depth, unit))
    return next(found, -1)


def _product(facts: Facts, depth: int, a: tuple, b: tuple) -> dict[str, int]:
    """Constants of one product."""
    return {"DEPTH": depth, "DP": _padded(depth), "A_ROW": a[2], "A_K": a[3], "B_COLUMN": b[2], "B_K": b[3],
            "A_VECTOR": _vector(facts, a, facts.rows, depth), "B_VECTOR": _vector(facts, b, facts.columns, depth)}


def _output(facts: Facts, shape: Shape, features: int, x: tuple, parts: int) -> dict[str, int]:
    """Constants of one output."""
    shared = _shared(facts, x, shape.features, PANEL if shape.stages else 16) if shape.registers else -1
    return {"FEATURES": features, "X_COLUMN": x[2], "X_FEATURE": x[3],
            "X_VECTOR": _vector(facts, x, facts.columns, features), "SHARED": shared, "PARTS": max(1, parts)}


def _vector(facts: Facts, where: tuple, lines: int, width: int) -> int:
    """Elements of an array per vector load."""
    buffer, offset, line, along, batches = where
    size = ELEMENT_TYPES[facts.types[buffer]].bytes
    return vector_of((offset, *batches), (lines, line), (width, along), size) if along == 1 else 1


def _names(facts: Facts) -> list[tuple[str, tuple]]:
    """Names of the functions that return the start of an array, each with its array. A single product or output is also
    the second one."""
    products = [facts.products[min(n, len(facts.products) - 1)] for n in (0, 1)]
    outputs = [facts.outputs[min(n, len(facts.outputs) - 1)] for n in (0, 1)]
    return [*((f"a{n}", p[1]) for n, p in enumerate(products)), *((f"b{n}", p[2]) for n, p in enumerate(products)),
            *((f"x{n}", o[1]) for n, o in enumerate(outputs))]


def _arrays(facts: Facts) -> list[str]:
    return [f"auto {name} = [&](long batch) {{ return {where[0]} + ({place_of(facts.batches, where[1], where[4])}); }};"
            for name, where in _names(facts)]


def _weigh(tile: Tile, facts: Facts) -> str:
    body = print_statements(tile.epilogue, CUDA, 1)
    second = "second = weight1;" if len(facts.outputs) > 1 else ""
    return (f"auto weigh = [&](long batch, long row, long column, float &first, float &second) {{\n"
            f"  const float acc0 = first, acc1 = second;\n  (void)acc0, (void)acc1;\n{body}\n"
            f"  first = weight0;\n  {second}\n}};")


def _call(name: str, facts: Facts, shape: Shape) -> str:
    structs = ", ".join(f"{name}_{kind}{min(n, len(those) - 1)}"
                        for kind, those in (("product", facts.products), ("output", facts.outputs)) for n in (0, 1))
    arrays = "memory, a0, a1, b0, b1, x0, x1"
    finish = f"weigh, finish0, finish{len(facts.outputs) - 1}"
    if shape.stages:
        return (f"hloc_attention_gradient_group<{name}_shape, {structs},\n    hloc_group_{facts.narrow}>(\n"
                f"    maps, memory, [](float low, float high) {{ return hloc_rounded_pair_{facts.narrow}(low, high); "
                f"}},\n    {finish});")
    if shape.registers:
        numbers = PLAIN[facts.narrow]
        return (f"hloc_attention_gradient_mma<{name}_shape, {structs},\n    {numbers.name}, {numbers.element}>(\n"
                f"    {arrays},\n    [](float low, float high) {{ return hloc_rounded_pair_{facts.narrow}(low, high); "
                f"}},\n    {finish});")
    reads = ",\n    ".join(reader(facts.types[where[0]]) for _, where in _names(facts))
    return f"hloc_attention_gradient_f32<{name}_shape, {structs}>(\n    {arrays},\n    {reads},\n    {finish});"
