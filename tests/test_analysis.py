"""What passes ask about instructions: costs, positions of reads, strides, memory; by hand-written values."""
from __future__ import annotations

import pytest

from hloc import load
from hloc.analysis.aliasing import leaf_values
from hloc.analysis.cost import bytes_accessed, flops, operations
from hloc.analysis.fusible import in_place_operands, is_elemental, is_elementwise
from hloc.analysis.liveness import last_reads, peak_bytes
from hloc.analysis.reads import BASE, Contexts, reads_own_position
from hloc.analysis.strides import behind, whole
from hloc.ir import Instruction
from hloc.text import parse_module

TEXT = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY e {
  x = f32[8,64] parameter(0)
  v = f32[8] parameter(1)
  c = f32[64] parameter(2)
  row = f32[1,64] parameter(3)
  i = s32[] parameter(4)
  zero = f32[] constant(0)
  many = f32[3] constant({1, 2, 3})
  tanh = f32[8,64] tanh(x)
  sum = f32[8,64] add(x, x)
  t = f32[64,8] transpose(x), dimensions={1,0}
  vb = f32[8,64] broadcast(v), dimensions={0}
  cb = f32[8,64] broadcast(c), dimensions={1}
  flat = f32[512] reshape(x)
  part = f32[8,16] slice(x), slice={[0:8], [32:48]}
  taken = f32[1,64] dynamic-slice(x, i, i), dynamic_slice_sizes={1,64}
  put = f32[8,64] dynamic-update-slice(x, row, i, i)
  d = f32[8,8] dot(x, t), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  r = f32[8] reduce(x, zero), dimensions={1}, to_apply=add
  h = u16[8,64,2] bitcast-convert(x)
  w = u32[8,64] bitcast-convert(x)
  pair = (f32[8,64], f32[512]) tuple(put, flat)
  ROOT p = f32[8,64] get-tuple-element(pair), index=0
}"""


@pytest.fixture(scope="module")
def module():
    return parse_module(TEXT)


@pytest.fixture(scope="module")
def named(module) -> dict[str, Instruction]:
    return {i.name: i for i in module.entry.instructions}


def test_costs(named) -> None:
    assert flops(named["d"]) == 2 * 8 * 8 * 64
    assert flops(named["r"]) == 512 and flops(named["sum"]) == 512 and flops(named["tanh"]) > 512
    assert bytes_accessed(named["sum"]) == 3 * 2048
    assert bytes_accessed(named["taken"]) == 2 * 256 + 8
    assert bytes_accessed(named["put"]) == 2 * 256
    assert operations(named["tanh"]) > 2 >= operations(named["sum"])


def test_roles(named) -> None:
    assert is_elementwise(named["w"]) and not is_elemental(named["h"])
    assert is_elemental(named["zero"]) and not is_elemental(named["many"])
    assert not is_elemental(named["put"]) and not is_elemental(named["r"])
    assert in_place_operands(named["put"]) == ((0, 0),) and in_place_operands(named["sum"]) == ()


def test_contexts(named) -> None:
    contexts = Contexts(512)
    assert contexts.through(named["sum"], 0, BASE) == contexts.through(named["flat"], 0, BASE) == BASE
    rows, columns = contexts.through(named["vb"], 0, BASE), contexts.through(named["cb"], 0, BASE)
    assert rows == contexts.quotient(BASE, 64) and columns not in (BASE, rows)
    assert contexts.evaluations[rows] == 8 and contexts.evaluations[columns] == 512
    assert contexts.through(named["t"], 0, BASE) == contexts.through(named["t"], 0, BASE) != BASE
    assert contexts.through(named["r"], 1, BASE) == contexts.scalar()
    other = Contexts(512)
    number = other.through(named["cb"], 0, BASE)
    assert contexts.absorb(other)[number] == columns


def test_own_position(named) -> None:
    assert reads_own_position(named["sum"], 0) and reads_own_position(named["flat"], 0)
    assert not reads_own_position(named["vb"], 0) and not reads_own_position(named["t"], 0)


def test_strides(named) -> None:
    assert behind(named["t"], whole((64, 8))) == ((64, 1), (8, 64))
    assert behind(named["part"], whole((8, 16))) == ((8, 64), (16, 1))
    assert behind(named["vb"], whole((8, 64))) == ((8, 1), (64, 0))
    assert behind(named["flat"], ((512, 1),)) == ((512, 1),)
    assert behind(named["t"], ((512, 1),)) is None
    assert behind(named["tanh"], whole((8, 64))) is None


def test_memory(module, named) -> None:
    values = leaf_values(module.entry, {})
    assert values[named["flat"]] == values[named["x"]]
    assert values[named["p"]] == values[named["put"]] and values[named["p"]] != values[named["x"]]
    last = last_reads(module.entry, values)
    assert last[values[named["put"]][0]] == len(module.entry.instructions)
    order = [i for i in module.entry.instructions if i.name in ("x", "row", "i", "put", "flat", "pair", "p")]
    assert peak_bytes(order, named["p"], values) == 2048


HINTED = """
below { p = (s32[], f32[]) parameter(0)  i = s32[] get-tuple-element(p), index=0  n = s32[] constant(10)
  ROOT c = pred[] compare(i, n), direction=LT }
step { p = (s32[], f32[]) parameter(0)  i = s32[] get-tuple-element(p), index=0  one = s32[] constant(2)
  x = f32[] get-tuple-element(p), index=1  j = s32[] add(i, one)  ROOT t = (s32[], f32[]) tuple(j, x) }
ENTRY e { z = s32[] constant(0)  x = f32[] parameter(0)  s = (s32[], f32[]) tuple(z, x)
  ROOT w = (s32[], f32[]) while(s), condition=below, body=step, backend_config=%s }"""


@pytest.mark.parametrize("config, said", [
    ('{"known_trip_count":{"n":"5"},"known_init_step":{"init":"0","step":"2"}}', []),
    ('{"known_trip_count":{"n":"4"}}', ["known_trip_count of %w says 4 (iterations), condition and body say 5"]),
    (r'"{\"known_trip_count\":{\"n\":\"6\"}}"', ["known_trip_count of %w says 6"]),
    ('{"known_init_step":{"init":"1","step":"3"},"known_induction_variable":{"tuple_index":"1"}}',
     ["known_init_step of %w says 1 (first value of the counter), condition and body say 0",
      "known_init_step of %w says 3 (step of the counter), condition and body say 2",
      "known_induction_variable of %w says 1 (counter), condition and body say 0"]),
    ('{"known_trip_count":7,"known_init_step":{"init":[]}}', []),
    ('"a loop"', []),
])
def test_hints_of_loops_that_contradict_them(config, said):
    warnings = []
    load(HINTED % config, warn=lambda message, span: warnings.append((message, str(span))))
    assert [m.startswith(s) for (m, _), s in zip(warnings, said, strict=True)] == [True] * len(said)
    assert all(span.endswith("7:8") for _, span in warnings)
