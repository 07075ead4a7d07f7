"""Partitioned programs on several devices give what one device gives, and send no more than XLA's."""
from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import op_examples as examples
import pytest
import sharding_examples as sharded

import hloc
from hloc.analysis.communication import bytes_sent, transfers
from hloc.cli.main import cli
from hloc.errors import ParseError, UnsupportedError, UsageError, VerifyError
from hloc.evaluate import evaluate
from hloc.evaluate.simulate import evaluate_devices
from hloc.inputs import check_arrays, entry_parameters, random_arrays
from hloc.inputs.global_arrays import parameters_of
from hloc.ir import Module
from hloc.parallel import Partition, partition
from hloc.passes.context import PassContext
from hloc.passes.pipelines import PARTITIONING
from hloc.passes.runner import run_passes
from hloc.passes.spmd_partitioner.halos import Piece, plan
from hloc.passes.spmd_partitioner.resharding import steps_between
from hloc.sharding.meshes import DeviceMesh
from hloc.text import parse_module
from hloc.verify import verify

HERE = Path(__file__).parent
SHARED = HERE.parent.parent / "shared" / "bench" / "devices"
CASES = [path for name in ("sharding_propagation", "spmd_partitioner")
         for path in sorted((HERE.parent / "testdata" / "passes" / name).glob("*.hlo"))]
MOST_SENT = 1.05                  # of the bytes that XLA's partitioner sends
ALL = {path.stem: examples.read_examples(path) for path in sorted(examples.FOLDER.glob("*.hlo"))}


def on_devices(divided: Partition, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Whole results of the evaluator on all devices."""
    verify(divided.module)
    return divided.joined(evaluate_devices(divided.module, [divided.parts(arrays, d) for d in range(divided.count)]))


def far(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference, relative to the largest magnitude."""
    a, b = (np.asarray(x, np.complex128 if x.dtype.kind == "c" else np.float64) for x in (got, want))
    return float(np.max(np.abs(a - b), initial=0) / max(np.max(np.abs(b), initial=0), 1e-30))


# -- every op, sharded at random ---------------------------------------------------------------------------------------

ORDERED = {"scatter.narrow"}      # sums of bf16, which depend on the order: 256 + 1 is 256


@pytest.mark.parametrize("name", [name for name in ALL if name not in ORDERED])
def test_ops_on_parts_give_what_they_give_on_whole_arrays(name):
    """Each instruction of each example has a random sharding over a random mesh."""
    for example in ALL[name]:
        for number, case in enumerate(c for c in example.cases if not c.devices):
            random = np.random.default_rng(zlib.crc32(f"{example.name}{number}".encode()))
            module = parse_module(example.text, example.name)
            sharded.annotate(module, sharded.random_mesh(random), random)
            try:
                divided = partition(module)
            except UsageError as error:
                assert "divide anything" in str(error)
                continue
            except UnsupportedError as error:
                assert "over" in str(error) and module.source is not None and error.span is not None
                continue
            arrays = check_arrays(parameters_of(divided.takes), next(iter(case.inputs.values()), []))
            results = on_devices(divided, arrays)
            for got, want in zip(results, next(iter(case.outputs.values())), strict=True):
                assert examples.difference(got, want, max(example.tolerance, 1e-6)) == "", example.name


def test_any_resharding_comes_to_an_end():
    """Dimensions that are cut unevenly are done once they have their axes."""
    for sizes, source, target in (((3, 4), ((), (0,)), ((1,), ())), ((5, 8), ((), (1,)), ((0,), ()))):
        steps = steps_between(sizes, source, target, DeviceMesh((2, 2)))
        assert [s.kind for s in steps if s.kind != "resize"] == ["slice", "gather"] and steps[-1].sharding == target


def test_axes_change_places_by_way_of_a_third_dimension():
    """Three exchanges of a part send less than gathering it."""
    mesh = DeviceMesh((4, 2))
    steps = steps_between((8, 8, 8), ((0,), (1,), ()), ((1,), (0,), ()), mesh)
    assert [s.kind for s in steps] == ["exchange"] * 3 and steps[-1].sharding == ((1,), (0,), ())
    assert sum(s.sent for s in steps) == 64 * (1 / 2 + 3 / 4 + 1 / 2)


UNEVEN = """HloModule uneven
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[7,8] parameter(0), sharding={devices=[3,1]<=[3]}
  y = f32[7,8] custom-call(x), custom_call_target="Sharding", sharding={devices=[1,3]<=[3]}
  w = f32[8,2] parameter(1), sharding={devices=[3,1]<=[3]}
  d = f32[7,2] dot(y, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[3,1]<=[3]}
  v = f32[4] parameter(2), sharding={devices=[3]<=[3]}
  zero = f32[] constant(0)
  s = f32[] reduce(v, zero), dimensions={0}, to_apply=add
  ROOT r = (f32[7,8], f32[7,2], f32[]) tuple(y, d, s)
}
"""


def test_uneven_dimensions_are_exchanged_and_scattered_with_their_padding():
    """[3,9] of [9,9] go from one dimension to the other, [9,2] of partial sums are scattered, and a sum of which the last
    device has padding alone is joined as others are."""
    module = parse_module(UNEVEN)
    divided = partition(module, strict=True)
    arrays = [np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes) for sizes in ((7, 8), (8, 2), (4,))]
    for got, want in zip(on_devices(divided, arrays), evaluate(module, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    assert [one.sent for one in transfers(divided.module)] == [4 * 3 * 9 * 2 / 3, 4 * 9 * 2 * 2 / 3, 4 * 2 * 2 / 3]


ONE_HOT = """HloModule one_hot
ENTRY main {
  places = s32[8] parameter(0), sharding={devices=[4]<=[4]}
  number = s32[8,16] broadcast(places), dimensions={0}
  column = s32[8,16] iota(), iota_dimension=1
  is_there = pred[8,16] compare(number, column), direction=EQ
  ones = f32[8,16] convert(is_there)
  ROOT all = f32[8,16] copy(ones), sharding={replicated}
}
"""


def test_what_small_arrays_tell_is_computed_again():
    """A one-hot matrix is wanted whole: two places of eight go to three devices."""
    module = parse_module(ONE_HOT)
    divided = partition(module, strict=True)
    places = np.arange(8, dtype=np.int32)[::-1].copy()
    np.testing.assert_array_equal(on_devices(divided, [places])[0], evaluate(module, [places])[0])
    assert bytes_sent(divided.module) == 4 * 2 * 3


def test_halos_are_counted_from_the_end_of_parts():
    """A window of three elements needs one of the part before and one of the part behind; a range that is far away, parts
    from there; of an array that ends within the last part, nothing behind its end."""
    near = plan(8, 4, (-1, 1, 3, 5), 4, True)
    assert near.pieces == (Piece(-1, 1, 2, (1, 2, 3)), Piece(0, 0, 2, (0, 1, 2, 3)), Piece(1, 0, 1, (0, 1, 2)))
    assert near.sent == 2 and near.starts == (0, 0, 0, 0) and near.is_masked
    far = plan(8, 4, (6, 6, 6, 6), 2, True)
    assert far.sent == 6 and [p.shift for p in far.pieces] == [0, 1, 2, 3] and not far.is_masked
    assert plan(7, 4, (7, 9, 11, 13), 2, True).pieces == ()


SHIFTS = """HloModule shifts
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[7] parameter(0), sharding={devices=[3]<=[3]}
  y = f32[6] parameter(1), sharding={devices=[3]<=[3]}
  z = f32[3,5] parameter(2), sharding={devices=[3,1]<=[3]}
  zero = f32[] constant(0)
  one = f32[] constant(1)
  wide = f32[9] pad(x, one), padding=1_1
  before = f32[7] slice(wide), slice={[0:7]}, sharding={devices=[3]<=[3]}
  up = f32[7] reduce-window(x, one), window={size=7 pad=6_0}, to_apply=add, sharding={devices=[3]<=[3]}
  down = f32[7] reduce-window(x, zero), window={size=7 pad=0_6}, to_apply=add, sharding={devices=[3]<=[3]}
  head = f32[2] slice(y), slice={[0:2]}
  tail = f32[4] slice(y), slice={[2:6]}
  rolled = f32[6] concatenate(tail, head), dimensions={0}, sharding={devices=[3]<=[3]}
  last = f32[1] slice(y), slice={[5:6]}, sharding={replicated}
  right = f32[3,4] slice(z), slice={[0:3], [1:5]}
  left = f32[3,1] slice(z), slice={[0:3], [0:1]}
  turned = f32[3,5] concatenate(right, left), dimensions={1}
  ROOT r = (f32[7], f32[7], f32[7], f32[6], f32[1], f32[3,5]) tuple(before, up, down, rolled, last, turned)
}
"""


def test_shifts_and_running_sums_send_little():
    """One element for a shift, one for each part of a running sum, a part for a roll by a part, none for a roll along
    what is whole."""
    module = parse_module(SHIFTS)
    divided = partition(module, strict=True)
    arrays = [np.arange(1, np.prod(sizes) + 1, dtype=np.float32).reshape(sizes) for sizes in ((7,), (6,), (3, 5))]
    for got, want in zip(on_devices(divided, arrays), evaluate(module, arrays), strict=True):
        np.testing.assert_array_equal(got, want)
    assert bytes_sent(divided.module) == pytest.approx(4 * (1 + 2 + 2 + 2 + 4 / 3))


# -- programs of JAX ---------------------------------------------------------------------------------------------------

CHOSEN = {4: ("scattered", "cut_and_joined", "choices", "layers_in_a_scan", "uneven", "manual_collectives", "heat",
              "cache_by_places", "random_numbers", "matrices"),
          8: ("fsdp_and_tensor", "moved", "pipeline")}


@pytest.fixture(scope="module", params=list(CHOSEN))
def exported(request, tmp_path_factory) -> tuple[Path, int]:
    """Some of the programs that benchmarks/partitioner.py measures."""
    pytest.importorskip("jax", reason="jax is not installed")
    folder, count = tmp_path_factory.mktemp("programs"), request.param
    program = HERE.parent / "benchmarks" / "sharded_programs"
    done = subprocess.run([sys.executable, program, folder, str(count), *CHOSEN[count]], text=True,
                          capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder, count


def test_programs_of_jax(exported):
    folder, count = exported
    for path in sorted(folder.glob("*.before.hlo")):
        name = path.name.removesuffix(".before.hlo")
        module = hloc.load(path)
        divided = partition(module)
        assert divided.count == count
        arrays = np.load(folder / f"{name}.npz")
        given = [arrays[f"in_{n}"] for n in range(len(divided.takes))]
        results = on_devices(divided, given)
        wanted = [arrays[f"out_{n}"] for n in range(len(results))]
        assert max(map(far, results, wanted)) < 2e-5, name
        if "GlobalToLocal" not in path.read_text():            # that one device could not run
            assert max(map(far, results, evaluate(module, given))) < 5e-6, name
        theirs = parse_module((folder / f"{name}.after.hlo").read_text(), name)
        assert bytes_sent(divided.module) <= MOST_SENT * bytes_sent(theirs), name


def test_xla_reads_the_module_after_each_pass(exported):
    from jaxlib import _hlo
    folder, count = exported
    for name in CHOSEN[count][:3]:
        module = hloc.load(folder / f"{name}.before.hlo")
        read = []
        run_passes(module, PARTITIONING, PassContext(), dump_after="all",
                   on_dump=lambda title, text: read.append(_hlo.hlo_module_from_text(text)))
        assert len(read) == len(PARTITIONING)


# -- programs that were measured ---------------------------------------------------------------------------------------

PROGRAMS = sorted(SHARED.glob("*.before.hlo"))


@pytest.mark.skipif(not PROGRAMS, reason="no shared/bench/devices beside this checkout")
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.name.removesuffix(".before.hlo"))
def test_measured_programs(path):
    module = hloc.load(path)
    divided = partition(module)
    after = path.with_name(path.name.replace("before", "after"))
    if not after.exists():
        assert divided.count == 1024 and transfers(divided.module)
        return
    theirs = hloc.load(after)
    assert bytes_sent(divided.module) <= MOST_SENT * bytes_sent(theirs)
    arrays = [a / max(1, a.shape[0] if a.ndim else 1) ** 0.5 for a in random_arrays(parameters_of(divided.takes), 3)]
    results = on_devices(divided, [a.astype(np.float32) for a in arrays])
    if "GlobalToLocal" in path.read_text():                   # one device cannot run it: XLA's partitioned text can
        parts = [divided.parts(arrays, d) for d in range(divided.count)]
        wanted = divided.joined(evaluate_devices(theirs, [[a.astype(np.float32) for a in p] for p in parts]))
    else:
        wanted = evaluate(module, [a.astype(np.float32) for a in arrays])
    assert max(map(far, results, wanted)) < 1e-5


# -- the command line and Python ---------------------------------------------------------------------------------------

PRODUCT = """HloModule product
ENTRY main {
  x = f32[8,6] parameter(0), sharding={mesh['data'=2,'model'=2], [{'data'}, {}]}
  w = f32[6,4] parameter(1), sharding={mesh['data'=2,'model'=2], [{}, {'model'}]}
  d = f32[8,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[8,4] tanh(d), sharding={mesh['data'=2,'model'=2], [{'data'}, {}]}
}
"""


@pytest.fixture
def product(tmp_path, monkeypatch) -> list[np.ndarray]:
    monkeypatch.chdir(tmp_path)
    Path("m.hlo").write_text(PRODUCT)
    arrays = [np.linspace(-1, 1, 48, dtype=np.float32).reshape(8, 6), np.ones((6, 4), np.float32)]
    np.savez("x.npz", *arrays)
    return arrays


def command(*words: str) -> None:
    cli.main([*words], standalone_mode=False)


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("how", [("--mesh", "data=4,model=2"), ("--devices", "4"), ("--mesh", "model=1,data=8")])
def test_run_takes_and_gives_whole_arrays(product, target, how):
    command("run", "m.hlo", "-t", target, "--inputs", "x.npz", "-o", "one.npz")
    command("run", "m.hlo", "-t", target, "--inputs", "x.npz", "-o", "many.npz", "--repeat", "2", *how)
    np.testing.assert_allclose(np.load("many.npz")["out_0"], np.load("one.npz")["out_0"], rtol=1e-6)


def test_random_inputs_are_the_same_on_any_number_of_devices(product, capsys):
    tables = []
    for how in ((), ("--devices", "4"), ("--mesh", "data=2,model=1")):
        command("run", "m.hlo", "-t", "reference", "--inputs", "random:3", *how)
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] == tables[2]


def test_files_per_device_still_work(product):
    for device in range(4):
        np.savez(f"x{device}.npz", product[0][device // 2 * 4:][:4], product[1][:, device % 2 * 2:][:, :2])
    command("run", "m.hlo", "-t", "reference", "--devices", "4", "--inputs", "x{device}.npz", "-o", "r{device}.npz")
    assert np.load("r3.npz")["out_0"].shape == (4, 4)


def test_check_compares_with_one_device(product, capsys):
    with pytest.raises(SystemExit) as ended:
        command("check", "m.hlo", "-t", "cpu", "--mesh", "data=2,model=2", "--inputs", "x.npz")
    assert ended.value.code == 0 and "8x4" in capsys.readouterr().out


def test_opt_prints_the_program_of_one_device(product, capsys):
    command("opt", "m.hlo", "--mesh", "data=4,model=2", "--dump-after", "spmd_partitioner")
    said = capsys.readouterr().out
    assert "num_partitions=8" in said and "f32[2,6]" in said and "all-gather" in said


def test_python_takes_and_gives_whole_arrays(product):
    exe = hloc.compile_for_mesh("m.hlo", {"data": 2, "model": 2}, "cpu")
    want = np.tanh(product[0] @ product[1])
    for _ in range(3):
        np.testing.assert_allclose(exe(*product)[0], want, rtol=1e-5)
    np.testing.assert_allclose(exe.bind({1: product[1]})(product[0])[0], want, rtol=1e-5)
    with pytest.raises(hloc.RunError, match=r"input 0 \(x\) must be f32\[8,6\]"):
        exe(product[1], product[1])


def test_a_partitioned_text_takes_whole_arrays(product, capsys):
    command("opt", "m.hlo", "--mesh", "data=2,model=2", "--passes", "dce", "-o", "parts.hlo")
    command("run", "parts.hlo", "-t", "reference", "--inputs", "x.npz", "-o", "many.npz")
    command("run", "m.hlo", "-t", "reference", "--inputs", "x.npz", "-o", "one.npz")
    np.testing.assert_allclose(np.load("many.npz")["out_0"], np.load("one.npz")["out_0"], rtol=1e-6)


# -- what does not fit -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("mesh, count, said", [
    ({"data": 2, "rows": 2}, None, "the module's mesh has no axis 'rows'; its axes are data=2, model=2"),
    ({"data": 2}, None, "the size of axis 'model' is missing"),
    (None, 3, "the shardings of product are for 4 devices, not for 3"),
    ({"data": 2, "model": 4}, 4, "for 8 devices, not for 4")])
def test_meshes_that_do_not_fit(mesh, count, said):
    with pytest.raises(UsageError, match=said):
        partition(parse_module(PRODUCT), mesh, count)


LESS = """less {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=LT
}
"""


def one(line: str, header: str = "", before: str = "") -> Module:
    return parse_module(f"HloModule m{header}\n{before}ENTRY main {{\n  x = f32[8] parameter(0)\n  {line}\n}}\n", "m.hlo")


SDY = ', frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["x"=2]>}}'


@pytest.mark.parametrize("line, kind, said", [
    ('ROOT y = f32[8] negate(x), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"x\\"}, {}]>"}',
     VerifyError, "m.hlo:4:8: error: pass sdy_round_trip_import: .* has 2 dimensions, f32.8. has 1"),
    ('ROOT y = f32[8] negate(x), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{\\"z\\"}]>"}',
     VerifyError, "m.hlo:4:8: error: .*the mesh has no axis 'z'"),
    ('ROOT y = f32[8] negate(x), frontend_attributes={xla.sdy.sharding="#sdy.sharding<@grid, [{}]>"}',
     ParseError, "m.hlo:4:8: error: .*a mesh that the module defines .mesh., not @grid"),
    ('ROOT y = f32[3] custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={'
     'xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"x\\"}]>]>",'
     'xla.sdy.manual_axes="#sdy<manual_axes{\\"x\\"}>"}',
     VerifyError, "m.hlo:4:8: error: .*dimension 0 of f32.8. in 2 parts is not that of f32.3.")])
def test_annotations_that_do_not_fit_have_a_place(line, kind, said):
    with pytest.raises(kind, match=said):
        partition(one(line, SDY))


def test_what_cannot_be_divided_is_told_or_refused():
    module = one("y = f32[8] custom-call(x), custom_call_target=\"Sharding\", sharding={devices=[2]<=[2]}\n"
                 "  ROOT r = f32[8] sort(y), dimensions={0}, to_apply=less, sharding={devices=[2]<=[2]}", before=LESS)
    told: list[tuple] = []
    divided = partition(module, warn=lambda message, span: told.append((message, span)))
    assert len(told) == 1 and "sort %r reaches over all of dimension 0" in told[0][0]
    assert told[0][1].source.line(told[0][1].start) == 10
    x = np.arange(8, dtype=np.float32)
    assert on_devices(divided, [x[::-1]])[0].tolist() == x.tolist()
    with pytest.raises(UnsupportedError, match="m.hlo:10:8: error: sort %r reaches over all"):
        partition(module, strict=True)


def test_transfers_with_the_host_are_refused():
    module = one("t = token[] after-all()\n  i = (f32[8], token[]) infeed(t)\n"
                 "  ROOT r = f32[8] get-tuple-element(i), index=0, sharding={devices=[2]<=[2]}")
    with pytest.raises(UnsupportedError, match="m.hlo:5:3: error: infeed in a program that is divided over 2 devices"):
        partition(module)


def test_annotations_of_another_mesh_are_told():
    module = one('a = f32[8] custom-call(x), custom_call_target="Sharding", sharding={devices=[4]0,1,2,3}\n'
                 '  ROOT b = f32[8] custom-call(a), custom_call_target="Sharding", sharding={devices=[4]0,3,1,2}')
    told: list[str] = []
    divided = partition(module, warn=lambda message, span: told.append(message))
    assert any("divides the devices otherwise" in message for message in told)
    x = np.arange(8, dtype=np.float32)
    assert on_devices(divided, [x])[0].tolist() == x.tolist()


def test_a_thousand_devices_are_partitioned_as_quickly_as_a_few():
    """One program for all: its size does not grow with the mesh."""
    text = PRODUCT.replace("f32[8", "f32[2048").replace("'data'=2", "'data'=512")
    module = partition(parse_module(text)).module
    assert len(module.entry.instructions) == len(partition(parse_module(PRODUCT)).module.entry.instructions)
    assert len(str(module)) < 3000


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_cases_of_the_passes_mean_what_they_mean_on_one_device(path):
    """The left sides of testdata/passes/sharding_propagation and spmd_partitioner."""
    text = path.read_text().split("// ==>")[0]
    module = parse_module(text, path.name)
    arrays = random_arrays(entry_parameters(module), 3)
    results = on_devices(partition(parse_module(text, path.name)), arrays)
    for got, want in zip(results, evaluate(module, arrays), strict=True):
        assert far(got, want) < 1e-5
