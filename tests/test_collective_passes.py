"""Passes on collectives: on the devices that a case's header names, each gives what it gave before, and XLA reads it."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import test_passes as cases

from hloc.analysis.aliasing import leaf_values, module_invariants
from hloc.analysis.asynchronous import base_of
from hloc.analysis.liveness import last_reads, peak_bytes
from hloc.analysis.timeline import WAIT, replay
from hloc.api import Options, optimize
from hloc.devices import device_counts
from hloc.evaluate.simulate import evaluate_devices
from hloc.inputs import entry_parameters, random_arrays
from hloc.ir.printer import print_module
from hloc.parallel import partition
from hloc.passes.context import PassContext
from hloc.passes.pipelines import COLLECTIVES, OVERLAP, PIPELINED
from hloc.passes.runner import run_passes
from hloc.targets import find
from hloc.text import parse_module
from hloc.tools.explain import explain
from hloc.tools.overlap import exposures
from hloc.tools.sharding_causes import sharding_causes

COLLECTIVE_PASSES = {one.__name__ for one in (*COLLECTIVES, *PIPELINED, *OVERLAP)}
CASES = [path for path in cases.CASES if path.parent.name in COLLECTIVE_PASSES]


def sides(path: Path) -> tuple[str, str]:
    given, _, expected = path.read_text(encoding="utf-8").partition(cases.ARROW)
    return given, expected


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_devices_give_what_they_gave(path):
    before, after = (parse_module(text, path.name) for text in sides(path))
    replicas, partitions = device_counts(before)
    for seed in (0, 1):
        inputs = [random_arrays(entry_parameters(before), 100 * seed + n) for n in range(replicas * partitions)]
        for old, new in zip(evaluate_devices(before, inputs), evaluate_devices(after, inputs), strict=True):
            cases.assert_same_values(old, new)


@pytest.mark.parametrize("path", CASES, ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_xla_reads_what_is_written(path):
    hlo = pytest.importorskip("jaxlib._hlo", reason="XLA's parser comes with jaxlib")
    hlo.hlo_module_from_text(sides(path)[1])


def test_explain_tells_what_is_exposed():
    """The product does not need the sum, and runs beside it; the module is explained as it would run."""
    given, _ = sides(cases.FOLDER / "latency_hiding_scheduler" / "work_between.hlo")
    given = given.replace("ROOT z = f32[256,256] add(y, r)", "ROOT z = (f32[256,256], f32[256,256]) tuple(y, r)")
    told = explain(parse_module(given), find("cpu"))
    (one,) = told.collectives
    assert (one.devices, one.runs, one.sent) == (2, 1, 256 * 256 * 4) and one.beside
    assert 0 <= one.exposed < one.seconds
    assert "all-reduce" in {k.instruction.opcode for k in told.kernels}
    alone = explain(parse_module("ENTRY e { x = f32[8] parameter(0) ROOT n = f32[8] negate(x) }"), find("cpu"))
    assert alone.collectives == ()


def test_explain_names_the_shardings():
    """Of sums the annotation that reached their operand through others; of combined all-gathers those of each array."""
    module = parse_module("""HloModule because
      ENTRY e { x = f32[8,16] parameter(0), sharding={mesh['data'=2,'model'=2], [{'data'}, {}]}
                w = f32[16,32] parameter(1), sharding={mesh['data'=2,'model'=2], [{}, {'model'}]}
                v = f32[32,16] parameter(2)
                a = f32[64] parameter(3), sharding={mesh['data'=2,'model'=2], [{'data'}]}
                b = f32[32] parameter(4), sharding={mesh['data'=2,'model'=2], [{'data'}]}
                h = f32[8,32] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
                t = f32[8,32] tanh(h)
                y = f32[8,16] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
                c = f32[64] sine(a)
                ROOT r = (f32[8,16], f32[64], f32[32]) tuple(y, c, b), sharding={
                  {mesh['data'=2,'model'=2], [{'data'}, {}]}, {replicated}, {replicated}} }""")
    divided = partition(module)
    told = explain(divided.module, find("cpu"), causes=sharding_causes(module, divided, None))
    found = {base_of(one.instruction): [(c.axes, c.annotation.name) for c in one.causes] for one in told.collectives}
    assert found == {"all-reduce": [(("model",), "w")], "all-gather": [(("data",), "a"), (("data",), "b")]}


def test_explain_lists_a_collective_of_two_loops_once():
    told = explain(parse_module("""HloModule two, num_partitions=2
      sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
      body { s = (s32[], f32[64]) parameter(0)  i = s32[] get-tuple-element(s), index=0
             x = f32[64] get-tuple-element(s), index=1  one = s32[] constant(1)  j = s32[] add(i, one)
             r = f32[64] all-reduce(x), to_apply=sum, channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true
             ROOT t = (s32[], f32[64]) tuple(j, r) }
      cond { s = (s32[], f32[64]) parameter(0)  i = s32[] get-tuple-element(s), index=0
             n = s32[] constant(9)  ROOT c = pred[] compare(i, n), direction=LT }
      ENTRY e { x = f32[64] parameter(0)  z = s32[] constant(0)
                t = (s32[], f32[64]) tuple(z, x)  w = (s32[], f32[64]) while(t), body=body, condition=cond
                y = f32[64] get-tuple-element(w), index=1  u = (s32[], f32[64]) tuple(z, y)
                v = (s32[], f32[64]) while(u), body=body, condition=cond
                ROOT r = f32[64] get-tuple-element(v), index=1 }"""), find("cpu"))
    (one,) = told.collectives
    assert one.runs == 18


PAIR = """HloModule pair, is_scheduled=true, num_partitions=2
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY main {
  x = f32[64] parameter(0)
  n = f32[64] negate(x)
  s = f32[64] all-reduce-start(n), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  c = f32[64] cosine(x)
  d = f32[64] sine(c)
  r = f32[64] all-reduce-done(s)
  ROOT z = f32[64] add(d, r)
}
"""


def seconds_of(**table):
    return lambda i: float(table.get(i.name, 0))


def test_what_runs_beside_a_collective_hides_it():
    entry = parse_module(PAIR).entry
    line = replay(entry, seconds_of(n=1, s=5, c=2, d=1, z=1))
    assert line.total == 1 + 5 + 1 and line.kernels == 5 and line.communication == 5 and line.exposed == 2
    wait = next(s for s in line.slices if s.kind == WAIT)
    assert (wait.begin, wait.end, wait.instruction.name) == (4.0, 6.0, "s")
    assert replay(entry, seconds_of(n=1, s=2, c=2, d=1, z=1)).exposed == 0


def test_collectives_run_one_after_the_other():
    text = PAIR.replace("  c = ", "  t = f32[64] all-reduce-start(x), channel_id=2, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add\n  c = ")
    text = text.replace("  ROOT z = f32[64] add(d, r)", "  q = f32[64] all-reduce-done(t)\n  ROOT z = f32[64] add(q, r)")
    line = replay(parse_module(text).entry, seconds_of(s=5, t=4, c=1))
    assert line.total == 9 and line.exposed == 8


def test_a_loop_counts_as_often_as_it_runs():
    given, _ = sides(cases.FOLDER / "latency_hiding_scheduler" / "in_a_loop.hlo")
    line = replay(parse_module(given).entry, seconds_of(s=2, y=1, c=0.5))
    assert line.total == 3 * (2 + 1 + 0.5) and line.exposed == 6 and line.communication == 6
    assert [t.runs for t in line.transfers.values()] == [3]


def test_operands_are_kept_until_the_done():
    module = parse_module(PAIR)
    values = leaf_values(module.entry, module_invariants(module))
    by_name = {i.name: i for i in module.entry.instructions}
    last = last_reads(module.entry, values)
    assert last[values[by_name["n"]][0]] == module.entry.instructions.index(by_name["r"])
    assert values[by_name["r"]] == values[by_name["s"]]
    order = module.entry.instructions
    assert peak_bytes(order, module.entry.root, values) == 4 * 256        # n, s, c and d at once


@pytest.mark.parametrize("seed", range(60))
def test_any_schedule_stays_one(seed):
    """Random graphs of collectives and kernels with random times: the order stays valid, takes no longer, and devices
    give the same."""
    random = np.random.default_rng(seed)
    text = random_program(random)
    module = parse_module(text)
    times = {i.name: float(random.choice([0.5, 1, 3, 10])) for i in module.entry.instructions if i.opcode != "parameter"}
    before = replay(module.entry, seconds_of(**times)).total
    run_passes(module, OVERLAP, PassContext(seconds=lambda i: times.get(i.name, 1.0 if i.opcode.endswith("-start") else 0.0)))
    names = {i: n for n, i in enumerate(module.entry.instructions)}
    assert all(names[o] < names[i] for i in module.entry.instructions for o in i.operands)
    assert replay(module.entry, seconds_of(**times)).total <= before + 1e-9
    inputs = [random_arrays(entry_parameters(module), n) for n in range(2)]
    for old, new in zip(evaluate_devices(parse_module(text), inputs), evaluate_devices(module, inputs)):
        assert all(np.array_equal(a, b) for a, b in zip(old, new))


@pytest.mark.parametrize("seed", range(16))
def test_pipelined_loops_give_the_same_bits(seed):
    """Random loops with collectives of counters' slices and of what is written: all that can moves, once."""
    random = np.random.default_rng(seed)
    text, moves = random_loop(random)
    module = parse_module(text)
    assert run_passes(module, PIPELINED, PassContext()) == moves
    assert not run_passes(parse_module(print_module(module)), PIPELINED, PassContext())
    inputs = [random_arrays(entry_parameters(module), n) for n in range(2)]
    for old, new in zip(evaluate_devices(parse_module(text), inputs), evaluate_devices(module, inputs)):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(old, new))


def random_loop(random: np.random.Generator) -> tuple[str, bool]:
    """The module, and whether a collective of it may move."""
    steps, step = int(random.integers(1, 5)), int(random.choice([-3, -1, 1, 2]))
    start = int(random.integers(-2, 5))
    near = start + steps * step - int(np.sign(step)) * int(random.integers(0, abs(step)))
    state = "(s32[], f32[8], f32[16,4], f32[16,8], s32[])"
    group = "replica_groups={{0,1}}, use_global_device_ids=true"
    kinds = set(random.choice(["gather", "scatter", "plain"], int(random.integers(1, 4))))
    index = random.choice(["i", "k", "m"])
    lines = [f"  c = s32[] constant({step})", "  n = s32[] add(i, c)", "  two = s32[] constant(2)", "  z = s32[] constant(0)",
             "  kn = s32[] subtract(k, two)", "  m = s32[] maximum(i, k)", "  y0 = f32[8] sine(x)"]
    last, written = "y0", "gs"
    if "gather" in kinds:
        lines += [f"  s = f32[1,4] dynamic-slice(ws, {index}, z), dynamic_slice_sizes={{1,4}}", "  f = f32[4] reshape(s)",
                  f"  w = f32[8] all-gather(f), channel_id=1, {group}, dimensions={{0}}", f"  y1 = f32[8] add({last}, w)"]
        last = "y1"
    if "plain" in kinds:
        lines += [f"  a = f32[8] all-reduce({last}), channel_id=2, {group}, to_apply=add", "  y2 = f32[8] cosine(a)"]
        last = "y2"
    if "scatter" in kinds:
        lines += [f"  g = f32[8] negate({last})", f"  r = f32[8] all-reduce(g), channel_id=3, {group}, to_apply=add",
                  "  p = f32[8] multiply(r, r)" if random.integers(2) else "  p = f32[8] abs(r)", "  q = f32[1,8] reshape(p)",
                  f"  v = f32[16,8] dynamic-update-slice(gs, q, {index}, z)"]
        written = "v"
    return (f"""HloModule loop, num_partitions=2
add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }}
body {{
  t = {state} parameter(0)  i = s32[] get-tuple-element(t), index=0  x = f32[8] get-tuple-element(t), index=1
  ws = f32[16,4] get-tuple-element(t), index=2  gs = f32[16,8] get-tuple-element(t), index=3  k = s32[] get-tuple-element(t), index=4
""" + "\n".join(lines) + f"""
  ROOT o = {state} tuple(n, {last}, ws, {written}, kn) }}
cond {{ t = {state} parameter(0)  i = s32[] get-tuple-element(t), index=0  l = s32[] constant({near})
  ROOT c = pred[] compare(i, l), direction={"LT" if step > 0 else "GT"} }}
ENTRY e {{ x = f32[8] parameter(0)  ws = f32[16,4] parameter(1)  gs = f32[16,8] parameter(2)  k = s32[] {
        random.choice(["parameter(3)", "constant(9)"])}
  i = s32[] constant({start})  t = {state} tuple(i, x, ws, gs, k)  w = {state} while(t), condition=cond, body=body
  a = f32[8] get-tuple-element(w), index=1  b = f32[16,8] get-tuple-element(w), index=3  c = s32[] get-tuple-element(w), index=4
  d = s32[] get-tuple-element(w), index=0
  ROOT r = (f32[8], f32[16,8], s32[], s32[]) tuple(a, b, c, d) }}
""", steps > 1 and kinds != {"plain"})


@pytest.mark.parametrize("seed", range(10))
def test_dots_in_parts_give_the_same_bits(seed):
    """Random dots of integers, of which any dimension is gathered or scattered, by chains and by loops."""
    random = np.random.default_rng(seed)
    text = random_window(random)
    module = parse_module(text)
    seconds = {"all-gather": 1.0, "reduce-scatter": 1.0, "dot": 1.0}
    windowed = [one for one in PIPELINED if one.__name__ == "windowed_einsum"]
    context = PassContext(seconds=lambda i: seconds.get(i.opcode, 0.0) * (0.01 if i.name == "part" else 1.0))
    assert run_passes(module, windowed, context) and not run_passes(module, windowed, context)
    replicas, partitions = device_counts(module)
    inputs = [random_arrays(entry_parameters(module), n) for n in range(replicas * partitions)]
    for old, new in zip(evaluate_devices(parse_module(text), inputs), evaluate_devices(module, inputs)):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(old, new))


def test_a_matmul_does_not_wait_for_what_runs_beside_it():
    """Sums that come from a neighbour are added by a kernel of their own, if it may run later than the matmul."""
    _, parts = sides(cases.FOLDER / "windowed_einsum" / "scattered.hlo")

    def beside(**options):
        module = optimize(parse_module(parts), find("cpu"), Options(passes=options))
        return [any("dot" in name for name in one.beside) for one in exposures(module, PassContext(cases.MACHINE))]
    assert beside(pipelined="on") == [True, True] and beside() == [False, False]


def random_window(random: np.random.Generator) -> str:
    size, groups = int(random.choice([2, 3, 8, 9, 10])), int(random.integers(1, 3))
    devices = random.permutation(size * groups).reshape(groups, size).tolist()
    lists = "{" + ",".join("{" + ",".join(map(str, g)) + "}" for g in devices) + "}"
    replicas = bool(random.integers(2))
    where = f"replica_groups={lists}" + ("" if replicas else ", channel_id=1, use_global_device_ids=true")
    names = {"b": 2 * size, "m": size, "n": 3 * size, "k": 2 * size}
    own = list(random.permutation(list("bmk")))
    other = list(random.permutation(list("bnk")))
    if random.integers(2):
        own, other = other, own
    free = ["m", "n"] if "m" in own else ["n", "m"]
    dims = [f"{s}_{kind}_dims={{{dims.index(name)}}}" for s, dims in (("lhs", own), ("rhs", other))
            for kind, name in (("batch", "b"), ("contracting", "k"))]

    def shape(dims, cut=None):
        return "s32[" + ",".join(str(names[d] // (size if d == cut else 1)) for d in dims) + "]"
    result, text = ["b", *free], ""
    if random.integers(2):
        cut = random.choice(own)
        text = (f"  x = {shape(own, cut)} parameter(0)  w = {shape(other)} parameter(1)\n"
                f"  g = {shape(own)} all-gather(x), {where}, dimensions={{{own.index(cut)}}}\n"
                f"  ROOT y = {shape(result)} dot(g, w), {', '.join(dims)}\n")
    else:
        cut = random.choice(result)
        text = (f"  x = {shape(own)} parameter(0)  w = {shape(other)} parameter(1)\n"
                f"  y = {shape(result)} dot(x, w), {', '.join(dims)}\n"
                f"  ROOT r = {shape(result, cut)} reduce-scatter(y), {where}, dimensions={{{result.index(cut)}}}, to_apply=add\n")
    return (f"HloModule window, {'replica_count' if replicas else 'num_partitions'}={size * groups}\n"
            "add { a = s32[] parameter(0)  b = s32[] parameter(1)  ROOT s = s32[] add(a, b) }\n"
            f"ENTRY e {{\n{text}}}\n")


def random_program(random: np.random.Generator) -> str:
    lines, names, channel = [], ["x", "y"], 0
    for n in range(int(random.integers(3, 25))):
        kind = random.choice(["add", "negate", "all-reduce", "all-gather", "update", "collective-permute"])
        a, b = random.choice(names, 2)
        channel += 1
        group = f"channel_id={channel}, replica_groups={{{{0,1}}}}, use_global_device_ids=true"
        made = {"add": f"f32[8] add({a}, {b})", "negate": f"f32[8] negate({a})",
                "all-reduce": f"f32[8] all-reduce({a}), {group}, to_apply=add",
                "all-gather": f"f32[16] all-gather({a}), {group}, dimensions={{0}}",
                "collective-permute": f"f32[8] collective-permute({a}), channel_id={channel}, source_target_pairs={{{{0,1}},{{1,0}}}}",
                "update": f"f32[8] dynamic-update-slice({a}, u, zero)"}[kind]
        name = f"v{n}"
        lines.append(f"  {name} = {made}")
        if kind == "all-gather":
            lines.append(f"  w{n} = f32[8] slice({name}), slice={{[4:12]}}")
            name = f"w{n}"
        names.append(name)
    return ("HloModule random, is_scheduled=true, num_partitions=2\n"
            "add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }\n"
            "ENTRY main {\n  x = f32[8] parameter(0)\n  y = f32[8] parameter(1)\n  u = f32[2] constant({3, 4})\n"
            "  zero = s32[] constant(0)\n" + "\n".join(lines)
            + f"\n  ROOT r = (f32[8], f32[8]) tuple({names[-1]}, {names[-2]})\n}}\n")
