"""Sorts and top-k on the GPU: "sort" and "topk" Tiles -> CUDA C that calls sort.cuh.

In: the Tiles of kernels/library_kernels (sort.py, whole_arrays.py). Out: one kernel if a row fits into a block's shared
memory. One, too, if few elements of a longer row are wanted: the last block of a row sorts the first ones of all
chunks; if they are very few, threads keep them in registers, and nothing is sorted. Otherwise: one kernel that sorts
chunks, one per round of merging, and one that moves the elements; positions are in scratch memory.
"""
from __future__ import annotations

from hloc.ir import ELEMENT_TYPES
from hloc.kernels import scalars
from hloc.kernels.ir import Apply, Buffer, Expr, Stmt, Tile, Var
from hloc.machine import Machine
from hloc.targets.c_expressions import c_type, expression
from hloc.targets.cuda.container import Geometry
from hloc.targets.cuda.tiles.tiling import kernel_text, shape_struct
from hloc.targets.printer import CUDA, print_statements

CHUNK = 2048                    # positions that a block sorts in shared memory
SMALLEST_CHUNK = 512
CHUNKS = (SMALLEST_CHUNK, 1024, CHUNK)
THREADS = 256
PICKED = 8                      # elements that a thread keeps in registers
FEWEST_SEEN, MOST_SEEN = 4, 64  # elements of a row that a thread looks at
BLOCKS_PER_SM = 16


def wanted(tile: Tile) -> int:
    """How many elements of a sorted row are wanted: those up to the last one that is read."""
    facts = dict(tile.parameters)
    return facts["k"] if "k" in facts else max(last for *_, last in facts["results"])


def sort(tile: Tile, name: str, gpu: Machine) -> tuple:
    """Text, launches and scratch bytes of a sort."""
    facts = dict(tile.parameters)
    length, stride, results = facts["length"], facts["stride"], facts["results"]
    reads, writes = tile.buffers[:-len(results)], tile.buffers[-len(results):]
    assert tile.comparator is not None
    names, body, result = tile.comparator
    start = f"row / {stride} * {stride * length}L + row % {stride}" if stride > 1 else f"row * {length}"
    at = f"start + {{}} * {stride}L" if stride > 1 else "start + {}"
    loads = [f"{c_type(t)} {n} = {reads[k // 2].name}[{at.format('ij'[n.startswith('right')])}];"
             for k, (n, t) in enumerate(names)]
    moves = [_part(w, length, stride, part, f"{reads[part[0]].name}[{at.format('from')}]")
             for w, part in zip(writes, results)]
    return _code(tile, name, gpu, (facts["rows"], length, wanted(tile)),
                 _before(start, loads, body, result), _move(start, moves))


def _part(buffer: Buffer, length: int, stride: int, part: tuple[int, int, int], value: str) -> str:
    """Stores the element with index `to` in the sorted row, if this part of the row contains it."""
    _, first, last = part
    if (first, last) == (0, length):
        return f"{buffer.name}[start + to * {stride}L] = {value};"
    kept = last - first
    start = f"row / {stride} * {stride * kept}L + row % {stride}" if stride > 1 else f"row * {kept}L"
    return f"if (to >= {first} && to < {last}) {buffer.name}[{start} + (to - {first}) * {stride}L] = {value};"


def topk(tile: Tile, name: str, gpu: Machine) -> tuple:
    """Text, launches and scratch bytes of a top-k: the first k of a sort in total order."""
    facts = dict(tile.parameters)
    length, k = facts["length"], facts["k"]
    source, values, positions = tile.buffers
    kind = ELEMENT_TYPES[source.type].kind
    direction = ("compare_gt" if facts["largest"] else "compare_lt") + ("_total" if kind == "float" else "")
    sides = tuple(scalars.widen(Var(n, source.type)) for n in ("left", "right"))
    loads = [f"{c_type(source.type)} {n} = {source.name}[start + {i}];" for n, i in (("left", "i"), ("right", "j"))]
    moves = [f"{values.name}[row * {k} + to] = {source.name}[start + from];", _position(positions, k)]
    return _code(tile, name, gpu, (facts["rows"], length, k),
                 _before(f"row * {length}", loads, (), Apply(direction, sides, "pred")),
                 _move(f"row * {length}", moves))


def _position(buffer: Buffer, k: int) -> str:
    return f"{buffer.name}[row * {k} + to] = ({c_type(buffer.type)})from;"


def _before(start: str, loads: list[str], body: tuple[Stmt, ...], result: Expr) -> str:
    """before(row, i, j): the comparator applied to the elements at these positions."""
    lines = ["auto before = [&](long row, long i, long j) -> bool {", f"  const long start = {start};",
             *(f"  const {line}" for line in loads)]
    if body:
        lines.append(print_statements(body, CUDA, 1))
    return "\n".join([*lines, f"  return {expression(result)};", "};"])


def _move(start: str, moves: list[str]) -> str:
    return "\n".join(["auto move = [&](long row, long from, long to) {", f"  const long start = {start};",
                      *(f"  {line}" for line in moves), "};"])


def _code(tile: Tile, name: str, gpu: Machine, sizes: tuple[int, int, int], before: str, move: str) -> tuple:
    rows, length, keep = sizes
    segment = 1 << max(0, length - 1).bit_length()
    short = segment <= CHUNK
    chunk = max(segment, SMALLEST_CHUNK) if short else CHUNK
    constants = {"ROWS": rows, "LENGTH": length, "KEEP": keep, "CHUNK": chunk, "SEGMENT": segment}
    text = shape_struct(f"{name}_shape", constants)
    if short:
        body = [before, move, f"hloc_sort_short<{name}_shape>((int *)memory, before, move);"]
        blocks = _blocks(-(-rows // (chunk // segment)), gpu)
        return text + kernel_text(tile, name, THREADS, body, chunk * 4), Geometry(name, (blocks, 1, 1), (THREADS, 1, 1))
    if keep <= PICKED:
        constants |= {"CHUNK": picked_chunk(rows, length, gpu), "THREADS": THREADS}
        return _few(tile, name, gpu, constants, THREADS * keep, before, move)
    for chunk in CHUNKS:
        chunks = -(-length // chunk)
        if chunks * keep <= chunk:
            constants |= {"CHUNK": chunk, "SEGMENT": chunk}
            return _few(tile, name, gpu, constants, chunk, before, move)
    return _long(tile, name, gpu, constants, text, before, move)


def picked_chunk(rows: int, length: int, gpu: Machine) -> int:
    """The elements of a row among which a block finds the first ones: there are two blocks per SM if rows allow."""
    seen = -(-rows * length // (2 * gpu.cores * THREADS))
    return THREADS * min(MOST_SEEN, max(FEWEST_SEEN, seen))


def _few(tile: Tile, name: str, gpu: Machine, constants: dict[str, int], positions: int, before: str,
         move: str) -> tuple:
    """One kernel: blocks sort chunks, or pick their first elements; the last one of a row does so with what is left.
    positions: in shared memory."""
    rows, chunk = constants["ROWS"], constants["CHUNK"]
    blocks = rows * -(-constants["LENGTH"] // chunk)
    kept = Buffer("scratch", "s32", blocks * constants["KEEP"], "update")
    with_scratch = tile._replace(buffers=(*tile.buffers, kept))
    text = shape_struct(f"{name}_shape", constants) + f"__device__ unsigned {name}_arrived[{rows}];\n"
    how = "pick" if "THREADS" in constants else "sort"
    call = f"hloc_{how}_few<{name}_shape>((int *)memory, scratch, {name}_arrived, before, move);"
    text += kernel_text(with_scratch, name, THREADS, [before, move, call], positions * 4)
    start = Geometry(name, (_blocks(blocks, gpu), 1, 1), (THREADS, 1, 1))
    return text, [start], blocks * constants["KEEP"] * 4


def _long(tile: Tile, name: str, gpu: Machine, constants: dict[str, int], text: str, before: str, move: str) -> tuple:
    """Kernels that sort chunks, merge, and move. Merging alternates between two halves of the scratch memory."""
    rows, length = constants["ROWS"], constants["LENGTH"]
    with_scratch = tile._replace(buffers=(*tile.buffers, Buffer("scratch", "s32", 2 * rows * length, "update")))
    halves = ("scratch", f"scratch + {rows * length}L")
    shape, now = f"{name}_shape", 0
    call = f"hloc_sort_chunks<{shape}>((int *)memory, {halves[0]}, before);"
    steps = [(f"{name}_chunks", [before, call], CHUNK * 4, rows * -(-length // CHUNK))]
    width = CHUNK
    threads = rows * -(-length // 8)
    while width < length:
        call = f"hloc_sort_merge<{shape}, {width}>({halves[now]}, {halves[1 - now]}, before);"
        steps.append((f"{name}_merge_{width}", [before, call], 0, -(-threads // THREADS)))
        width, now = 2 * width, 1 - now
    call = f"hloc_sort_move<{shape}>({halves[now]}, move);"
    steps.append((f"{name}_move", [move, call], 0, -(-rows * constants["KEEP"] // THREADS)))
    launches = []
    for function, body, memory, blocks in steps:
        text += kernel_text(with_scratch, function, THREADS, body, memory)
        launches.append(Geometry(function, (_blocks(blocks, gpu), 1, 1), (THREADS, 1, 1)))
    return text, launches, 2 * rows * length * 4


def _blocks(wanted: int, gpu: Machine) -> int:
    return max(1, min(wanted, gpu.cores * BLOCKS_PER_SM))
