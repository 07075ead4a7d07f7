"""Kernels: testdata/kernels/*.hlo and testdata/ops/*.hlo, each entry instruction lowered, compiled, run and compared
with the evaluator; the printed C of a few in testdata/emit (HLOC_GOLDEN=1 rewrites it).
"""
from __future__ import annotations

import dataclasses
import os
import re
from pathlib import Path

import numpy as np
import pytest
from kernel_harness import MACHINE, Case, build, collect, compare, run
from op_examples import read_examples

import hloc
from hloc.errors import UnsupportedError
from hloc.ir import ELEMENT_TYPES
from hloc.kernels.affine import of_names
from hloc.kernels.indexing import index_apply
from hloc.kernels.ir import (
    INDEX,
    PARALLEL,
    SERIAL,
    VECTOR,
    Apply,
    Assign,
    Buffer,
    Const,
    For,
    If,
    Kernel,
    Let,
    Load,
    Local,
    Mutable,
    Store,
    Tile,
    Var,
)
from hloc.kernels.lower import lower
from hloc.kernels.schedule.choice import candidates
from hloc.kernels.verify import KernelError, verify_kernel
from hloc.kernels.walks import expressions, parts, walk
from hloc.targets.c_expressions import ExpressionPrinter, expression
from hloc.targets.cpu.tiles.epilogues import epilogue_of
from hloc.targets.cpu.tiles.source import tile_functions
from hloc.targets.cpu.vector_loops.bitcast_copies import bitcast_copies
from hloc.targets.cpu.vector_loops.call_printer import RowPrinter, transpose_call
from hloc.targets.cpu.vector_loops.loop_schedules import nests
from hloc.targets.cpu.vector_loops.loop_versioning import loop_versioning
from hloc.targets.cpu.vector_loops.pipeline import run_kernel_passes
from hloc.targets.cpu.vector_loops.row_schedules import row_schedules, with_row_nests
from hloc.targets.cpu.vector_loops.specialization import specialization
from hloc.targets.cpu.vector_loops.ssa_conversion import ssa_conversion
from hloc.targets.cuda.gpus import GPUS
from hloc.targets.cuda.loops.kernels import kernel_source
from hloc.targets.cuda.loops.teams import by_threads
from hloc.targets.printer import escaped, print_kernel
from hloc.text import parse_module

DATA = Path(__file__).parent.parent / "testdata"
SEPARATOR = re.compile(r"^// -----.*$", re.MULTILINE)
# Ops that kernels leave to passes, to the planner or to the targets' own steps; layouts that a pass takes away, and
# result types of products (result_caster).
ELSEWHERE = re.compile(r"copy-(start|done)|bitcast|.*-(start|done|update)|all-.*|collective-.*|"
                       r"partition-id|replica-id|infeed|outfeed|send.*|recv.*|custom-call.*|"
                       r".*\.results")

# Ops that passes write as others; bitcast-convert of types under a byte among them.
EXPANDED = {"batch-norm-grad", "batch-norm-inference", "batch-norm-training", "bitcast-convert", "cholesky",
            "dynamic-reshape", "get-dimension-size", "ragged-dot", "rng", "rng-bit-generator",
            "rng-get-and-update-state", "scaled-dot", "scan", "set-dimension-size", "triangular-solve", "tuple-select"}


def modules(folder: str) -> list[tuple[str, str]]:
    """(name, text) of every module in the files of a folder."""
    found = []
    for path in sorted((DATA / folder).glob("*.hlo")):
        for number, text in enumerate(SEPARATOR.split(path.read_text(encoding="utf-8"))):
            found.append((f"{path.stem}#{number}", text))
    return found


def has_templates(case: Case) -> bool:
    try:
        for call in case.lowered.calls:
            if isinstance(call.kernel, Tile):
                tile_functions(call.kernel, "k", MACHINE)
    except UnsupportedError:
        return False
    return True


def check(cases: list[Case], folder: Path) -> None:
    cases = [c for c in cases if has_templates(c)]
    library = build(cases, folder)
    for case in cases:
        for share in (False, True):
            for actual, expected in zip(run(case, library, share), case.expected):
                compare(case.name, actual, expected)


def test_kernels(tmp_path):
    cases = [case for name, text in modules("kernels") for case in collect(text, name)]
    assert len(cases) > 60
    check(cases, tmp_path)


def test_ops(tmp_path):
    """The examples of the op table that have kernels of their own, on their own inputs."""
    cases, missing = [], set()
    for path in sorted((DATA / "ops").glob("*.hlo")):
        for example in read_examples(path):
            for number, case in enumerate(example.cases):
                if case.devices or ELSEWHERE.fullmatch(example.name.split(":")[0]):
                    continue
                try:
                    cases += collect(example.text, f"{example.name}:{number}", case.inputs.get(0, []))
                except UnsupportedError:
                    missing.add(path.stem)
    assert len(cases) > 250 and missing == EXPANDED
    check(cases, tmp_path)


def test_what_rows_need_of_their_columns_is_computed_once():
    """testdata/kernels/column_tables.hlo: each kernel has tables, and rows divide by no group's size."""
    for text in SEPARATOR.split((DATA / "kernels" / "column_tables.hlo").read_text(encoding="utf-8")):
        fusion = next(i for i in parse_module(text).entry.instructions if i.opcode == "fusion")
        statements = list(walk(row_schedules(lower(fusion, MACHINE).calls[0].kernel, MACHINE).body))
        assert any(isinstance(s, Local) and "table" in s.name for s in statements)
        of_rows, = (s for s in statements if isinstance(s, For) and any(
            isinstance(one, Store) and one.buffer.startswith("out") for one in s.body))
        found = [e for s in walk(of_rows.body) for e in parts(expressions(s)) if isinstance(e, Apply)]
        assert not any(e.op in ("divide", "rsqrt") for e in found)


def test_rows_that_end_in_a_reduce_are_not_loops_in_loops():
    text = SEPARATOR.split((DATA / "kernels" / "rows.hlo").read_text(encoding="utf-8"))[1]
    kernel = lower(parse_module(text).entry.root, MACHINE).calls[0].kernel
    rows, = (s for s in walk(kernel.body) if isinstance(s, For) and s.kind == SERIAL)
    inner = [s for s in rows.body if isinstance(s, For)]
    assert len(inner) == 3 and not any(isinstance(s, For) for loop in inner for s in walk(loop.body))


@pytest.mark.parametrize("text, calls", [
    ("x = f32[100,70] parameter(0) ROOT y = f32[70,100] transpose(x), dimensions={1,0}",
     ["hloc_transpose_32(in0 + p1 * 2240 + p0 * 32, 70, tile0, 32, "]),
    ("x = f32[3,64,128] parameter(0) ROOT y = f32[3,128,64] transpose(x), dimensions={0,2,1}",
     ["hloc_transpose_32(", ", tile0, 32, "]),
    ("x = c64[40,50] parameter(0) ROOT y = c64[50,40] transpose(x), dimensions={1,0}", ["hloc_transpose_64("]),
    ("x = c128[40,50] parameter(0) ROOT y = c128[50,40] transpose(x), dimensions={1,0}", []),
    ("x = f32[100,70] parameter(0) ROOT y = f32[100,35] slice(x), slice={[0:100], [0:70:2]}", []),
], ids=["a transpose", "whole tiles", "c64", "elements of 16 bytes", "a strided slice"])
def test_copies_of_rows_to_columns_are_calls(text, calls):
    """By way of a tile."""
    kernel = lower(parse_module(f"HloModule m ENTRY e {{ {text} }}").entry.root, MACHINE).calls[0].kernel
    printed = print_kernel(kernel, "k", printer=RowPrinter())
    assert all(call in printed for call in calls) and printed.count("hloc_transpose_") == bool(calls)


@pytest.mark.parametrize("target, source, columns, call", [
    ((1, 64), (9, 1), 4, "hloc_transpose_16(x, 9, t, 64, 64, 4);"),
    ((5, 1), (1, 70), 4, "hloc_transpose_16(x, 70, t, 5, 4, 64);"),
    ((1, 64), (9, 2), 4, None), ((1, 64), (9, 1), 2, None), ((2, 64), (9, 1), 4, None), ((1, 64), (-9, 1), 4, None),
], ids=["turned", "turned back", "columns apart", "two columns", "rows apart", "backwards"])
def test_which_copies_turn(target, source, columns, call):
    """array[a i + b j] = array[c i + d j] in loops over i < 64 and j < columns."""
    def copy(*arrays):
        to, start = (of_names({"i": factors[0], "j": factors[1]}) for factors in (target, source))
        inner = For("j", columns, SERIAL, (Store(arrays[0], to, Load(arrays[1], start, "f16")),))
        return transpose_call(For("i", 64, SERIAL, (inner,)), printer)
    printer = ExpressionPrinter()
    found = copy("t", "x")
    assert (None if found is None else f"{printer.call(*found)};") == call
    assert copy("x", "x") is None


@pytest.mark.parametrize("operation, is_whole", [
    ("c64[9,40] reverse(x), dimensions={1}", True), ("c64[9,43] pad(x, one), padding=0_0x1_2", True),
    ("c64[9,43] pad(x, not), padding=0_0x1_2", True), ("c64[9,40] negate(x)", False), ("f32[9,40] real(x)", False),
], ids=["moved", "and a constant", "that is no number", "computed", "taken apart"])
def test_complex_numbers_that_are_moved_are_f64(operation, is_whole):
    root = parse_module(f"""ENTRY e {{ x = c64[9,40] parameter(0)  one = c64[] constant((1, -2))
      not = c64[] constant((0, nan))  ROOT r = {operation} }}""").entry.root
    kernel = bitcast_copies(lower(root, MACHINE).calls[0].kernel, MACHINE)
    printed = print_kernel(kernel, "k")
    assert ("hloc_c64" not in printed and "double" in printed) == is_whole


def test_thin_products_are_one_of_operands_in_order():
    """testdata/kernels/products.hlo: no batch of products of three columns or rows."""
    text = SEPARATOR.split((DATA / "kernels" / "products.hlo").read_text(encoding="utf-8"))[1]
    tiles = [lower(i, MACHINE).calls[-1].kernel for i in parse_module(text).entry.instructions if i.opcode == "dot"]
    assert [dict(t.parameters)["sizes"] for t in tiles] == [(24, 72, 20), (144, 18, 12)]
    assert [dict(t.parameters)["batches"] for t in tiles] == [(1, 1), (1, 1)]


@pytest.mark.parametrize("operation, is_moved", [
    ("[60,700] transpose(x), dimensions={1,0}", True), ("[700,20] slice(x), slice={[0:700], [0:60:3]}", True),
    ("[700,63] pad(x, none), padding=0_0x1_2", True), ("[700,63] pad(x, one), padding=0_0x1_2", False),
    ("[700,60] negate(x)", False)], ids=["transposed", "apart", "and zeros", "and ones", "computed"])
@pytest.mark.parametrize("type", ["s32", "u64"])
def test_integers_that_are_moved_are_floats(operation, is_moved, type):
    root = parse_module(f"""ENTRY e {{ x = {type}[700,60] parameter(0)  one = {type}[] constant(1)
      none = {type}[] constant(0)  ROOT r = {type}{operation} }}""").entry.root
    kernel = bitcast_copies(lower(root, MACHINE).calls[0].kernel, MACHINE)
    verify_kernel(kernel)
    assert ({b.type for b in kernel.buffers} == {"f32" if type == "s32" else "f64"}) == is_moved


def test_few_terms_by_columns_that_lie_apart_are_loops():
    """Points by a transposed matrix: the matrix is brought into order once."""
    text = """ENTRY e {{ x = f32[4000,{k}] parameter(0)  m = f32[{n},{k}] parameter(1)
      ROOT d = f32[4000,{n}] dot(x, m), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}} }}"""
    for n, k, is_loops in ((3, 4, True), (2, 2, True), (128, 8, True), (4, 9, False), (2049, 4, True)):
        root = parse_module(text.format(n=n, k=k)).entry.root
        *packing, product = lower(root, MACHINE).calls
        assert isinstance(product.kernel, Tile) != is_loops
        assert [call.kernel.buffers[-1].size for call in packing] == [n * k] * is_loops


def test_softmax_of_three_classes_has_rows_in_lanes():
    """So few elements of a row would be no vector, and each exponential a call; without a parameter of full size, too."""
    text = """max { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT m = f32[] maximum(a, b) }
      add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
      f { x = f32[40] parameter(0)  m = f32[3] parameter(1)  zero = f32[] constant(0)  low = f32[] constant(-inf)
        xs = f32[40,3] broadcast(x), dimensions={0}
        ms = f32[40,3] broadcast(m), dimensions={1}
        d = f32[40,3] multiply(xs, ms)
        t = f32[40] reduce(d, low), dimensions={1}, to_apply=max
        ts = f32[40,3] broadcast(t), dimensions={0}
        z = f32[40,3] subtract(d, ts)
        e = f32[40,3] exponential(z)
        s = f32[40] reduce(e, zero), dimensions={1}, to_apply=add
        ss = f32[40,3] broadcast(s), dimensions={0}
        ROOT r = f32[40,3] divide(e, ss) }
      ENTRY e { x = f32[40] parameter(0)  m = f32[3] parameter(1)
        ROOT r = f32[40,3] fusion(x, m), kind=kCustom, calls=f }"""
    nest, = nests(lower(parse_module(text).entry.root, MACHINE).calls[0].kernel, MACHINE, with_row_nests)
    assert "vectorize" in candidates(nest, dataclasses.replace(MACHINE, vector_bytes=64))[0].text


def test_what_is_written_out_has_names_for_its_steps():
    """A maximum over three channels is no variable of a VECTOR loop: what follows, a remainder, finds vectors."""
    text = """max { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT m = f32[] maximum(a, b) }
      f { x = f32[400,3] parameter(0)  low = f32[] constant(-inf)  six = f32[] constant(6)
        m = f32[400] reduce(x, low), dimensions={1}, to_apply=max
        n = f32[400] broadcast(six), dimensions={}
        ROOT r = f32[400] remainder(m, n) }
      ENTRY e { x = f32[400,3] parameter(0)  ROOT r = f32[400] fusion(x), kind=kInput, calls=f }"""
    wide = dataclasses.replace(MACHINE, vector_bytes=64)
    kernel = row_schedules(lower(parse_module(text).entry.root, MACHINE).calls[0].kernel, wide)
    kernel = ssa_conversion(specialization(kernel, MACHINE), MACHINE)
    verify_kernel(kernel)
    assert not any(isinstance(s, (Mutable, Assign)) for s in walk(kernel.body))
    cut = loop_versioning(kernel, MACHINE)
    assert any(e.op == "remainder_near" for s in walk(cut.body) for e in parts(expressions(s)) if isinstance(e, Apply))


@pytest.mark.parametrize("type, rows", [("f32", 40), ("bf16", 40), ("f16", 200)])
def test_elements_that_differ_by_their_places_are_written_out(type, rows):
    """No iteration chooses among the joined pieces, whatever is computed of them."""
    shape = f"{type}[{rows},3]"
    text = f"""f {{ x = {shape} parameter(0)
        a = {type}[{rows},1] slice(x), slice={{[0:{rows}], [0:1]}}
        b = {type}[{rows},1] slice(x), slice={{[0:{rows}], [1:2]}}
        ab = {type}[{rows},1] multiply(a, b)
        j = {shape} concatenate(b, ab, a), dimensions={{1}}
        ROOT r = {shape} add(x, j) }}
      ENTRY e {{ x = {shape} parameter(0)  ROOT r = {shape} fusion(x), kind=kLoop, calls=f }}"""
    kernel = run_kernel_passes(lower(parse_module(text).entry.root, MACHINE).calls[0].kernel, MACHINE, verify=True)
    assert not any(isinstance(s, If) for s in walk(kernel.body))
    assert all(s.trip_count > 3 for s in walk(kernel.body) if isinstance(s, For) and s.kind == VECTOR)


def test_channels_become_planes_pixel_by_pixel():
    """Written out; four or more that are only moved are transposed by a call."""
    text = SEPARATOR.split((DATA / "kernels" / "loop.hlo").read_text(encoding="utf-8"))[-1]
    for instruction in parse_module(text).entry.instructions:
        if instruction.opcode in ("fusion", "transpose"):
            kernel = row_schedules(lower(instruction, MACHINE).calls[0].kernel, MACHINE)
            stores = sum(isinstance(s, Store) for s in _innermost(kernel.body))
            is_call = "hloc_transpose_" in print_kernel(kernel, "k", RowPrinter())
            assert stores == (1 if is_call else instruction.operands[0].shape.dimensions[-1])
            assert is_call == (instruction.opcode == "transpose" and stores == 1)


def test_tiles_lie_in_the_array():
    """testdata/kernels/tiling.hlo: a tile is read of the plain transpose, none of the padded one."""
    text = SEPARATOR.split((DATA / "kernels" / "tiling.hlo").read_text(encoding="utf-8"))[0]
    padded, plain = (i for i in parse_module(text).entry.instructions if i.opcode == "fusion")
    found = [any(isinstance(s, Local) for s in walk(lower(i, MACHINE).calls[0].kernel.body)) for i in (padded, plain)]
    assert found == [False, True]


@pytest.mark.parametrize("type, sizes", [("f32", (2048, 1600)), ("f32", (1999, 1701)), ("bf16", (2504, 2600)),
                                         ("s64", (1300, 1280)), ("u8", (4000, 3500))])
def test_transposes_larger_than_the_caches(type, sizes):
    """Rows of whole lines of a cache, and others; tiles that are cut at the end."""
    rows, columns = sizes
    exe = hloc.compile(f"HloModule m\nENTRY e {{ x = {type}[{rows},{columns}] parameter(0)\n ROOT t = "
                       f"{type}[{columns},{rows}] transpose(x), dimensions={{1,0}} }}", target="cpu")
    x = np.random.default_rng(0).integers(0, 100, sizes).astype(ELEMENT_TYPES[type].dtype)
    np.testing.assert_array_equal(exe(x)[0], x.T)


def _innermost(statements):
    while any(isinstance(s, For) for s in statements):
        statements = next(s for s in statements if isinstance(s, For)).body
    return statements


@pytest.mark.parametrize("name", ["loop", "reduce", "rows", "indexing"])
def test_golden_c(name):
    """The C that a person reads. Rewritten by HLOC_GOLDEN=1."""
    text = SEPARATOR.split((DATA / "kernels" / f"{name}.hlo").read_text(encoding="utf-8"))[0]
    parts = []
    for instruction in parse_module(text).entry.instructions:
        if instruction.opcode not in ("parameter", "constant", "tuple", "iota"):
            for call in lower(instruction, MACHINE).calls:
                parts.append(print_kernel(call.kernel, f"{instruction.name}_{len(parts)}"))
    path = DATA / "emit" / f"{name}.c"
    if os.environ.get("HLOC_GOLDEN"):
        path.write_text("\n".join(parts), encoding="utf-8")
    assert "\n".join(parts) == path.read_text(encoding="utf-8")


def test_what_a_row_shares_stands_in_front_of_its_columns():
    """A product's epilogue asks data for a place once for each row."""
    text = SEPARATOR.split((DATA / "kernels" / "products.hlo").read_text(encoding="utf-8"))[-1]
    tile = lower(parse_module(text).entry.root, MACHINE).calls[0].kernel
    of_row, of_column = epilogue_of(tile, MACHINE).function.text.split("for (long j", 1)
    assert "hloc_maximum_s32(" in of_row and "hloc_maximum_s32(" not in of_column


def test_conditions_on_places_become_loops():
    """A padded row is three loops: before, inside, after; the place in the middle is asked for by no condition."""
    text = """ENTRY e { a = f32[64] parameter(0)  b = f32[] constant(1)
      ROOT p = f32[80] pad(a, b), padding=5_11 }"""
    kernel = lower(parse_module(text).entry.root, MACHINE).calls[0].kernel
    split = specialization(kernel, MACHINE)
    verify_kernel(split)
    assert any(isinstance(s, If) for s in walk(kernel.body))
    assert not any(isinstance(s, If) for s in walk(split.body))
    assert [s.extent for s in walk(split.body) if isinstance(s, For)] == [5, 64, 11]


def test_conditions_on_rows_stand_around_loops():
    """Spread and joined rows, as associative scans make them: loops for each case have no conditions in them."""
    text = """f { a = f32[16,32] parameter(0)  b = f32[15,32] parameter(1)  c = f32[15,32] parameter(2)  z = f32[] constant(0)
        s = f32[1,32] slice(a), slice={[0:1], [0:32]}
        p = f32[15,32] multiply(b, c)  j = f32[16,32] concatenate(s, p), dimensions={0}
        even = f32[32,32] pad(j, z), padding=0_1_1x0_0  odd = f32[32,32] pad(a, z), padding=1_0_1x0_0
        ROOT r = f32[32,32] add(even, odd) }
      ENTRY e { a = f32[16,32] parameter(0)  b = f32[15,32] parameter(1)  c = f32[15,32] parameter(2)
        ROOT r = f32[32,32] fusion(a, b, c), kind=kLoop, calls=f }"""
    kernel = specialization(lower(parse_module(text).entry.root, MACHINE).calls[0].kernel, MACHINE)
    verify_kernel(kernel)
    vectors = [s for s in walk(kernel.body) if isinstance(s, For) and s.kind == VECTOR]
    assert len(vectors) > 3
    assert not any(isinstance(s, If) for loop in vectors for s in walk(loop.body))


def test_equal_kernels_have_equal_structure():
    text = """ENTRY e { a = f32[64] parameter(0)  b = f32[64] parameter(1)  c = f32[64] add(a, b)  d = f32[64] add(b, c)
      ROOT t = (f32[64], f32[64]) tuple(c, d) }"""
    first, second = (lower(i, MACHINE).calls[0].kernel for i in parse_module(text).entry.instructions
                     if i.opcode == "add")
    assert first.structure() == second.structure()


# -- printer and verifier ----------------------------------------------------------------------------------------------

def test_expressions_have_few_parentheses():
    i, x, y = Var("i", INDEX), Var("x", "f32"), Var("y", "f32")
    seven = Const(7, INDEX)
    add = index_apply("add", index_apply("multiply", i, seven), seven)
    assert expression(add) == "i * 7 + 7"
    assert expression(index_apply("multiply", add, seven)) == "i * 49 + 49"
    assert expression(Apply("remainder", (add, seven), INDEX)) == "(i * 7 + 7) % 7"
    assert expression(index_apply("subtract", seven, index_apply("multiply", i, seven))) == "7 - i * 7"
    less = Apply("subtract", (x, Apply("subtract", (y, x), "f32")), "f32")
    assert expression(less) == "x - (y - x)"
    assert expression(Apply("negate", (Apply("negate", (x,), "f32"),), "f32")) == "- -x"
    assert expression(Apply("convert", (i,), "f32")) == "(float)i"
    assert expression(Const(-0.0, "f32")) == "-0.0f" and expression(Const(float("nan"), "f64")) == "HLOC_NAN_F64"
    assert expression(Const(-(1 << 31), "s32")) == "(-2147483647 - 1)"
    assert expression(Const(1.5, "bf16")) == "0x3fc0"


def test_truths_become_numbers_in_lanes_of_their_width():
    same = Apply("compare_eq", (Var("a", "s32"), Var("b", "s32")), "pred")
    assert expression(Apply("convert", (same,), "f32")) == "a == b ? 1.0f : 0.0f"
    assert expression(Apply("convert", (Load("p", Var("i", INDEX), "pred"),), "f32")) == "hloc_convert_pred_f32(p[i])"


def test_comments_cannot_be_escaped():
    kernel = Kernel("k", (), (), origin=('x = f32[] /* */ int evil; \\\n??/ "',))
    text = print_kernel(kernel, "k").splitlines()[0]
    assert text.count("*/") == 1 and "\\" not in text and "??" not in text
    assert escaped("*/") == "* /" and escaped("**//") .count("*/") == 0


def test_cuda_says_it_differently():
    body = For("i0", 1024, PARALLEL, (Store("out0", Var("i0", INDEX), Load("in0", Var("i0", INDEX), "f32")),))
    kernel = Kernel("k", (Buffer("in0", "f32", 1024), Buffer("out0", "f32", 1024, "write")), (body,))
    text, _ = kernel_source(by_threads(kernel, 256), "k", GPUS["h100"])
    assert 'extern "C" __global__ void __launch_bounds__(256) k(const float *in0, float *out0)' in text
    assert "i0 = blockIdx.x * blockDim.x + threadIdx.x; i0 < 1024" in text


@pytest.mark.parametrize("statement, message", [
    (Assign("x", Const(1.0, "f32")), "not mutable"),
    (Let("a", Var("b", "f32")), "unknown name"),
    (Let("a", Apply("add", (Const(1.0, "f32"), Const(1.0, "f64")), "f32")), "differ in type"),
    (Let("a", Apply("add", (Const(1.0, "bf16"), Const(1.0, "bf16")), "bf16")), "storage type"),
    (Store("in0", Const(0, INDEX), Const(1.0, "f32")), "read only"),
    (For("i", 4, VECTOR, (For("j", 4, "serial", ()),)), "inside a VECTOR loop"),
    (For("i", 4, "serial", (For("j", 4, PARALLEL, ()),)), "not outermost"),
    (For("i", 4, PARALLEL, (Mutable("s", Const(0.0, "f32")), Assign("s", Const(0, "s32")))), "another type"),
])
def test_verifier_refuses(statement, message):
    kernel = Kernel("k", (Buffer("in0", "f32", 4),), (statement,))
    with pytest.raises(KernelError, match=message):
        verify_kernel(kernel)
