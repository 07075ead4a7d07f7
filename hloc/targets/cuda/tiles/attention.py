"""Attention on the GPU: an "attention" Tile -> CUDA C that calls a template of attention.cuh.

In: the Tile that kernels/attention/attention.py describes. Out: a struct of constants, kernels, and their launches.
bf16 and f16 of a depth up to MOST_DEPTH are multiplied on tensor cores, on sm_90a also by warpgroups
(attention_group.cuh). Of a few queries, such as a decoder's, keys are shared out among lanes (attention_few.cuh).
Everything else is computed at full precision in registers. If there are too few queries and
batches to fill the GPU, the keys are split into pieces, and a second kernel joins the partial results.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hloc.analysis.prologues import is_limited_by_mma
from hloc.ir import ELEMENT_TYPES
from hloc.kernels import scalars
from hloc.kernels.attention.score_masks import mask_of
from hloc.kernels.ir import INDEX, Apply, Buffer, Const, Let, Stmt, Tile, Var
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type, expression
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.tiles.attention_results import features_at_once, result_function
from hloc.targets.cuda.tiles.new_lines import (
    STORE_THREADS,
    STORES,
    blocks_of_lines,
    first_lines,
    line_functions,
    place_of,
    read_in_place,
    store_calls,
    vector_of_lines,
)
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
    store_sum,
)
from hloc.targets.printer import CUDA, print_statements

MOST_DEPTH = 256                # on tensor cores: queries and two tiles of keys are in shared memory
KEYS = 64                       # most keys of a tile
FEW_ROWS = 16
# attention_few.cuh: most queries, threads of a block, registers of a lane for the keys and values that it loads at once
QUERIES_BY_LANES, THREADS_BY_LANES, LOADED = 4, 256, 64
# Queries and keys of a tile on tensor cores, and blocks of 16 queries per warp
SHAPES = ((128, 64, 2), (128, 32, 2), (64, 64, 1), (64, 32, 1), (16, 64, 1), (16, 32, 1))
MOST_REGISTERS = 192            # for sums and scores; the rest of 255: addresses and fragments
ARRAYS = ("query", "key", "value")
GROUPED, GROUPED_STAGES = ((128, 128), (64, 128), (128, 64), (64, 64)), 4       # queries and keys, for warpgroups
PANEL = 64                      # elements per line of 128 bytes
CHUNKS = (16, 32, 64, 128)      # features of a block
FEWEST_KEYS = 256               # least keys of a piece
MOST_PIECES = 32
EXPONENTS = {"bf16": 0x7F80, "f16": 0x7C00}
ROW = (("batch", INDEX), ("row", INDEX))


def attention(tile: Tile, name: str, gpu: Machine, variant: str = "") -> tuple:
    """Text, launches and scratch bytes. variant: one of attention_variants."""
    facts = _facts(tile)
    rows, columns, depth, features = facts["sizes"]
    batches = math.prod(facts["batches"])
    shapes = _shapes(facts, gpu)
    shape = next((s for s in shapes if s.variant == variant), shapes[0])
    constants = {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "FEATURES": features, "BATCHES": batches,
                 "FC": _chunk(features), **shape.constants, **_strides(facts)}
    blocks = -(-rows // constants["BM"]) * -(-features // constants["FC"]) * batches
    splits, part = _pieces(blocks, columns, max(KEYS, constants["BN"]), gpu)
    stored = features_at_once(*_result(tile, facts), rows, features) if shape.grouped and splits == 1 else 1
    constants.update(SPLITS=splits, PART=part, STATES=1 if splits > 1 or facts.get("states") else 0, STORED=stored)
    threads, memory = shape.threads, shape.memory
    inside = shape.by_lines and read_in_place(tile, facts)
    constants["NEW_LINES"] = int(inside and tile.updates != ())
    body = [_place(f"{key}_at", facts["batches"], facts[key]) for key in ARRAYS]
    stores = [*first_lines(tile), *store_calls(tile, facts, constants)]
    if shape.by_lines:
        body += [*(stores if inside else ()), *line_functions(tile, facts, inside)]
    statements, mask = tile.epilogue or (Let("score", Var("acc", "f32")),), None
    if shape.registers:
        mask, scale = _mask(tile), scale_of(statements)
        constants["SCALE"] = scale or 1.0
        statements = (Let("score", Var("acc", "f32")),) if scale else statements
    constants["MASKED"] = EXPONENTS[facts["types"][0]] if mask else 0
    body += [_score(statements), *_outputs(tile, facts, constants), *(mask[:1] if mask else ())]
    call = _call(name, facts["types"], shape, mask)
    blocks = max(1, min(blocks * splits, gpu.cores * (1 if shape.grouped else BLOCKS_PER_SM)))
    maps = _maps(tile, facts, constants) if shape.grouped else ()
    start = Geometry(name, (blocks, 1, 1), (threads, 1, 1), memory, maps=maps)
    mapped = (Buffer("maps", "u8", BYTES * len(maps), "read"),) if maps else ()
    text, before = shape_struct(f"{name}_shape", constants), []
    sums, states = splits * batches * rows * features, splits * batches * rows * 2
    scratch = (Buffer("scratch", "f32", sums + states, "update"),) if splits > 1 else ()
    with_scratch = tile._replace(buffers=(*tile.buffers, *scratch))
    if stores and not inside:
        text += kernel_text(with_scratch, name + STORES, STORE_THREADS, stores)
        before = [Geometry(name + STORES, (blocks_of_lines(tile, facts, gpu), 1, 1), (STORE_THREADS, 1, 1))]
    pieces = with_scratch._replace(buffers=(*with_scratch.buffers, *mapped))
    text += kernel_text(pieces, name, threads, [*body, call], memory, memory)
    if splits == 1:
        return text, [*before, start]
    join = f"hloc_attention_join<{name}_shape>(scratch, scratch + {sums}L, finish, store_state);"
    finish = result_function("finish", *_result(tile, facts))
    text += kernel_text(with_scratch, f"{name}_join", 256, [finish, _state(tile, facts), join])
    blocks = max(1, min(-(-batches * rows * features // 256), gpu.cores * BLOCKS_PER_SM))
    return text, [*before, start, Geometry(f"{name}_join", (blocks, 1, 1), (256, 1, 1))], 4 * (sums + states)


def attention_variants(tile: Tile, gpu: Machine) -> list[str]:
    """The variants that a tuning file can select, the cost model's choice first."""
    return [s.variant for s in _shapes(_facts(tile), gpu)]


def _facts(tile: Tile) -> dict:
    """The parameters of a tile, and its updates by the arrays."""
    return dict(tile.parameters, updates={u.array: u for u in tile.updates})


def _chunk(features: int) -> int:
    return next((c for c in CHUNKS if c >= features), CHUNKS[-1])


def _shapes(facts: dict, gpu: Machine) -> list[Shape]:
    """The tiles that fit, the cost model's choice first."""
    rows, _, depth, features = facts["sizes"]
    chunk = _chunk(features)
    found = []
    if len(set(facts["types"])) == 1 and facts["types"][0] in ("bf16", "f16") and depth <= MOST_DEPTH:
        found = [s for s in (_on_cores(*shape, depth, chunk) for shape in SHAPES)
                 if s.memory <= gpu.shared_bytes and s.registers <= MOST_REGISTERS]
    most = _most_rows(rows, -(-features // chunk) * math.prod(facts["batches"]), gpu)
    found.sort(key=lambda s: s.constants["BM"] > most)                  # stable: otherwise in the order of SHAPES
    grouped = _grouped_shapes(facts, gpu) if found else []
    if grouped and _limited_by_mma(facts, gpu):
        grouped.sort(key=lambda s: s.constants["BM"] > most)
        return [*grouped, *found]
    few = _few_queries(facts, gpu)
    if found and found[0].constants["BM"] <= most:
        return [*few, *found, *grouped]
    return [*few, _in_registers(FEW_ROWS if rows <= FEW_ROWS else 64, chunk), *found, *grouped]


def _limited_by_mma(facts: dict, gpu: Machine) -> bool:
    (rows, columns, depth, features), batches = facts["sizes"], math.prod(facts["batches"])
    return is_limited_by_mma(2 * batches * rows * columns * (depth + features),
                             2 * batches * (rows + columns) * (depth + features), 2, gpu)


def _most_rows(rows: int, count: int, gpu: Machine) -> int:
    """Most queries of a block: 128 if there are then enough blocks for all SMs, otherwise fewer."""
    return FEW_ROWS if rows <= FEW_ROWS else 128 if -(-rows // 128) * count >= gpu.cores else 64


class Shape(NamedTuple):
    """constants: BM, BN and TM of attention.cuh; registers: per thread, for sums and scores."""

    constants: dict[str, int]
    threads: int
    memory: int
    registers: int

    @property
    def variant(self) -> str:
        """Its name in tuning files."""
        how = ", wgmma, bulk copies" if self.grouped else ", few" if self.few else "" if self.registers else ", f32"
        return f"{self.constants['BM']} queries, {self.constants['BN']} keys{how}"

    @property
    def few(self) -> bool:
        """Keys are shared out among the lanes of a block (attention_few.cuh)."""
        return "LANES" in self.constants

    @property
    def by_lines(self) -> bool:
        """Keys and values are read line by line, wherever each is."""
        return self.few or self.registers > 0 and not self.grouped

    @property
    def grouped(self) -> bool:
        """Computed by warpgroups of four warps (attention_group.cuh)."""
        return "STAGES" in self.constants


def _on_cores(rows: int, keys: int, of_warp: int, depth: int, features: int) -> Shape:
    """A tile for tensor cores. Its memory holds queries, and keys and values twice; at the end it holds the sums."""
    def line(width: int) -> int:
        return (width // 8 | 1) * 16
    padded = -(-depth // 16) * 16
    tiles = rows * line(padded) + 2 * keys * (line(padded) + line(features))
    warps = rows // (16 * of_warp)
    memory = max(tiles, 4 * (16 * warps * (features + 8) + 16 * warps))
    constants = {"BM": rows, "BN": keys, "DP": padded, "TM": of_warp}
    return Shape(constants, 32 * warps, memory, of_warp * (features + 2 * keys) // 2)


def _grouped_shapes(facts: dict, gpu: Machine) -> list[Shape]:
    """Tiles for wgmma (sm_90a), if tensor maps can describe all arrays."""
    pairs, strides = _pairs(facts), _strides(facts)
    apart = all(facts[key][1] > 0 or facts["sizes"][key != "query"] == 1 for key in ARRAYS)
    if gpu.arch != "sm_90a" or not pairs or not apart or any(strides[f"{n}_VECTOR"] * 2 != PIECE for n in "QKV"):
        return []
    depth, features = -(-facts["sizes"][2] // PANEL) * PANEL, PANEL if facts["sizes"][3] <= PANEL else 2 * PANEL
    found = []
    for rows, keys in GROUPED:
        stage = keys * max(depth, features) * 2
        rest = rows * depth * 2 + (2 + 2 * GROUPED_STAGES) * BARRIER + rows * (BULK_COLUMNS + 8) * 4
        constants = {"BM": rows, "BN": keys, "DP": depth, "FC": features, "TM": 1, "STAGES": GROUPED_STAGES, **pairs}
        found.append(Shape(constants, 2 * rows + 4 * WARP, GROUPED_STAGES * stage + rest, (features + 2 * keys) // 2))
    return [s for s in found if s.memory <= gpu.shared_bytes and s.registers <= MOST_REGISTERS]


def _pairs(facts: dict) -> dict[str, int]:
    """Batches as two dimensions: the size of the inner one, and each array's strides of both. Empty if tensor maps
    cannot describe them."""
    found = two_dimensions(facts["batches"], [facts[key][3] for key in ARRAYS])
    return {"INNER": found[0], **stride_constants("QKV", found[1])} if found else {}


def two_dimensions(batches: Sequence[int], arrays: Sequence[Sequence[int]]) -> tuple[int, list[tuple[int, int]]] | None:
    """The dimensions of batches as two, from the strides of arrays: the size of the inner one, and each array's strides
    of the outer and the inner one. None if two are not enough, or if a stride is negative."""
    sizes, strides = list(batches), [list(own) for own in arrays]
    for d in range(len(sizes) - 2, -1, -1):                 # merges dimensions that are contiguous in all arrays
        if sizes[d] == 1 or sizes[d + 1] == 1 or all(s[d] == s[d + 1] * sizes[d + 1] for s in strides):
            for s in strides:
                s[d:d + 2] = [s[d] if sizes[d + 1] == 1 else s[d + 1]]
            sizes[d:d + 2] = [sizes[d] * sizes[d + 1]]
    if len(sizes) > 2 or any(stride < 0 for s in strides for stride in s):
        return None
    padding = 2 - len(sizes)
    pairs = [([0] * padding + own)[:2] for own in strides]
    return ([1] * padding + sizes)[1], [(outer, inner) for outer, inner in pairs]


def stride_constants(letters: Sequence[str], strides: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Constants of the batch strides of arrays, in elements."""
    return {f"{letter}_{name}": stride for letter, pair in zip(letters, strides)
            for name, stride in zip(("OUTER", "INNER"), pair)}


def batched_map(argument: int, offset: int, line: tuple[int, tuple[int, int]], batches: tuple[int, int],
                strides: tuple[int, int], lines: int) -> TensorMap:
    """The tensor map of an array of 16-bit elements in two dimensions of batches. offset: of its first element; line:
    the elements of a line, and the number of lines and their stride; batches, strides: of the outer and the inner
    dimension. Its boxes are panels of 64 contiguous elements of so many `lines`."""
    dimensions = ((line[0], 1), line[1], (batches[1], strides[1]), (batches[0], strides[0]))
    return TensorMap.of(argument, 2, offset, dimensions, (PANEL, lines))


def _maps(tile: Tile, facts: dict, c: dict[str, int]) -> tuple[TensorMap, ...]:
    """Tensor maps of queries, keys and values."""
    rows, columns, depth, features = facts["sizes"]
    names, batches = [b.name for b in tile.buffers], (c["BATCHES"] // c["INNER"], c["INNER"])
    return tuple(batched_map(names.index(key), facts[key][0], (along, (lines, facts[key][1])), batches,
                             (c[f"{letter}_OUTER"], c[f"{letter}_INNER"]), box)
                 for key, letter, along, lines, box in zip(ARRAYS, "QKV", (depth, depth, features),
                                                           (rows, columns, columns), (c["BM"], c["BN"], c["BN"])))


def _in_registers(rows: int, features: int) -> Shape:
    memory = 4 * (16 * (rows + 4 + KEYS + 4 + features + 4) + KEYS * (rows + 4))
    return Shape({"BM": rows, "BN": KEYS, "TM": rows // 16}, 256, memory, 0)


def _few_queries(facts: dict, gpu: Machine) -> list[Shape]:
    """For a few queries whose keys and values lie along their elements, if a block's sums fit."""
    rows, _, depth, features = facts["sizes"]
    strides = _strides(facts)
    if rows > QUERIES_BY_LANES or strides["K_K"] != 1 or strides["V_FEATURE"] != 1:
        return []
    packs = max(-(-depth // strides["K_VECTOR"]), -(-features // strides["V_VECTOR"]))
    lanes = min(WARP, 1 << (packs - 1).bit_length())
    deep, wide = (-(-n // (lanes * v)) * v for n, v in ((depth, strides["K_VECTOR"]), (features, strides["V_VECTOR"])))
    at_once = max(1, min(4, LOADED // (deep + wide)))
    keys, memory = THREADS_BY_LANES // lanes * at_once, THREADS_BY_LANES // lanes * rows * (features + 2) * 4
    constants = {"BM": rows, "TM": rows, "BN": keys, "FC": features, "LANES": lanes, "AT_ONCE": at_once, "DEEP": deep,
                 "WIDE": wide}
    fits = memory <= gpu.shared_bytes and rows * (deep + wide) <= LOADED * 2
    return [Shape(constants, THREADS_BY_LANES, memory, 0)] if fits else []


def _pieces(blocks: int, columns: int, keys: int, gpu: Machine) -> tuple[int, int]:
    """The number of pieces of the keys, and their length, which is a multiple of `keys`."""
    wanted = min(2 * gpu.cores // max(1, blocks), columns // FEWEST_KEYS, MOST_PIECES)
    part = -(-columns // (max(1, wanted) * keys)) * keys
    return -(-columns // part), part


def _strides(facts: dict) -> dict[str, int]:
    """Strides of lines and elements, and elements per vector load."""
    rows, columns, depth, features = facts["sizes"]
    found = {}
    for letter, key, lines, other, (line, along), names in (
            ("Q", "query", rows, depth, facts["query"][1:3], ("ROW", "K")),
            ("K", "key", columns, depth, facts["key"][1:3], ("COLUMN", "K")),
            ("V", "value", columns, features, facts["value"][1:3], ("COLUMN", "FEATURE"))):
        type = facts["types"][("query", "key", "value").index(key)]
        starts = (facts[key][0], *facts[key][3])
        found[f"{letter}_{names[0]}"], found[f"{letter}_{names[1]}"] = line, along
        found[f"{letter}_VECTOR"] = vector_of(starts, (lines, line), (other, along), ELEMENT_TYPES[type].bytes) \
            if along == 1 else 1
        if key in facts["updates"]:
            found[f"{letter}_VECTOR"] = min(found[f"{letter}_VECTOR"], vector_of_lines(facts["updates"][key], facts))
    return found


def _place(name: str, batches: tuple[int, ...], where: tuple) -> str:
    """C function of a batch's number: the offset of the batch."""
    return f"auto {name} = [](long batch) -> long {{ return {place_of(batches, where[0], where[-1])}; }};"


def scale_of(statements: Sequence[Stmt]) -> float | None:
    """The factor of a score that is its sum times constants; None for any other score, and for factors beyond what
    hloc_exp_of_scores in attention.cuh takes."""
    factors = {"acc": 1.0}
    for statement in statements:
        match statement:
            case Let(name, Var(other)) if other in factors:
                factors[name] = factors[other]
            case Let(name, Apply("multiply", (Var(other), Const(float(value))))) if other in factors:
                factors[name] = factors[other] * value
            case _:
                return None
    scale = factors.get("score", 0.0)
    return scale if 2.0 ** -20 <= scale <= 1 else None


def _score(statements: Sequence[Stmt]) -> str:
    body = print_statements(tuple(statements), CUDA, 1)
    return f"auto score_of = [&](long batch, long row, long column, float acc) {{\n{body}\n  return score;\n}};"


def _mask(tile: Tile) -> tuple[str, str] | None:
    """C of a function that returns whether a score is unmasked, and of the value of masked scores. None without a mask.
    A mask in memory is read again for the score, from L1. Keeping its bits in registers would cause register spills in
    kernels for heads of 128."""
    mask = mask_of(tile.epilogue) if tile.epilogue else None
    if mask is None:
        return None
    body = print_statements((*mask.needed, Let("live", mask.condition)), CUDA, 1)
    return (f"auto live_at = [&](long batch, long row, long column) -> bool {{\n{body}\n  return live;\n}};",
            expression(Const(mask.value, "f32")))


def _result(tile: Tile, facts: dict) -> tuple[Buffer, tuple[int, ...], tuple]:
    """The buffer of the result, the batches, and its strides (attention_results.py)."""
    return next(b for b in tile.buffers if b.name == facts.get("stored", "out0")), facts["batches"], facts["result"]


def _state(tile: Tile, facts: dict) -> str:
    """C function that stores the statistics of a row for the backward pass."""
    lines = []
    for name, what, row, strides in facts.get("states", ()):
        out = next(b for b in tile.buffers if b.name == name)
        place = f"{place_of(facts['batches'], 0, strides)} + row * {row}"
        store = store_sum(out, Var("place", INDEX), "f32")
        lines += ["  {", f"    const long place = {place};", f"    const float acc = {what};",
                  print_statements((store,), CUDA, 2), "  }"]
    return "\n".join(["auto store_state = [&](long batch, long row, float largest, float sum) {", *lines, "};"])


def _outputs(tile: Tile, facts: dict, c: dict[str, int]) -> list[str]:
    """The functions finish, keep and keep_state for attention.cuh."""
    if c["SPLITS"] == 1:
        state = "auto keep_state = [&](long, long batch, long row, float largest, float sum) {\n" \
                "  store_state(batch, row, largest, sum);\n};"
        finish = result_function("finish", *_result(tile, facts), c["STORED"])
        return [finish, _state(tile, facts), "auto keep = 0;", state]
    rows, features = c["BATCHES"] * c["ROWS"], c["FEATURES"]
    line = f"(piece * {rows}L + batch * {c['ROWS']} + row)"
    return ["auto finish = 0;",
            f"auto keep = [&](long piece, long batch, long row, long feature, float sum) {{\n"
            f"  scratch[{line} * {features} + feature] = sum;\n}};",
            f"auto keep_state = [&](long piece, long batch, long row, float largest, float total) {{\n"
            f"  float *state = scratch + {c['SPLITS'] * rows * features}L + {line} * 2;\n"
            f"  state[0] = largest;\n  state[1] = total;\n}};"]


def _call(name: str, types: tuple[str, ...], shape: Shape, mask: tuple[str, str] | None) -> str:
    arrays = "query, memory, query_at, key_line, value_line"
    if shape.registers:
        how = f"hloc_attention_group<{name}_shape, hloc_group_{types[0]}>(maps, memory" if shape.grouped else \
            f"hloc_attention_mma<{name}_shape, {PLAIN[types[0]].name}>({arrays}"
        return (f"{how},\n    [](float low, float high) {{ return hloc_rounded_pair_{types[0]}(low, high); }},\n"
                f"    {f'live_at, {mask[1]}' if mask else '0, 0.0f'}, score_of, keep, keep_state, finish);")
    reads = ",\n    ".join(reader(t) for t in types)
    if not shape.few:
        arrays = "query, key, value, memory, query_at, key_at, value_at"
    how = "few" if shape.few else "f32"
    return f"hloc_attention_{how}<{name}_shape>({arrays},\n    {reads},\n    score_of, keep, keep_state, finish);"


def reader(type: str) -> str:
    """[](x): C lambda that converts an element to f32."""
    value = expression(scalars.convert_to(scalars.widen(Var("x", type)), "f32"))
    return f"[]({c_type(type)} x) -> float {{ return {value}; }}"
