"""hloc simulate: the models of collectives, cluster files, what a simulation adds up to, meshes, traces, pages."""
from __future__ import annotations

import importlib.util
import json
import math
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from test_pages import Reader

import hloc
from hloc.analysis.communication import bytes_sent
from hloc.analysis.links import Level, exchange, group_of, permutation
from hloc.cli.main import main
from hloc.errors import HlocError, UsageError
from hloc.pages.simulate_page import simulate_page
from hloc.tools.simulate import cluster_names, find_cluster, mesh_shapes, simulate
from hloc.tools.simulate.cluster import read_cluster
from hloc.tools.simulate.shapes import factorizations
from hloc.tools.simulate.trace import trace_of

STEP = Path(__file__).parent.parent / "examples" / "step.hlo"
NODES = (Level("inner", 4, 1e9, 1e-6), Level("outer", 8, 1e8, 1e-5))
LARGE = 1 << 30


@pytest.fixture(scope="module")
def step():
    return hloc.load(STEP)


@pytest.fixture(scope="module")
def told(step):
    return simulate(step, {"data": 4, "model": 2}, find_cluster("dgx-h100"), title="step.hlo")


# -- collectives -------------------------------------------------------------------------------------------------------

def test_one_level_by_hand():
    (inner,) = levels = NODES[:1]
    ring = 2 * 3 * inner.latency + 2 * LARGE * 3 / 4 / inner.bandwidth
    found = exchange(levels, "all-reduce", range(4), LARGE)
    assert found == (pytest.approx(ring), "ring", (2 * LARGE * 3 / 4,))
    assert exchange(levels, "all-gather", range(4), LARGE).seconds == pytest.approx(
        3 * inner.latency + LARGE * 3 / 4 / inner.bandwidth)
    assert exchange(levels, "reduce-scatter", range(4), LARGE).sent == (LARGE * 3 / 4,)
    assert exchange(levels, "all-to-all", range(4), LARGE) == (
        pytest.approx(3 * inner.latency + LARGE * 3 / 4 / inner.bandwidth), "pairwise", (LARGE * 3 / 4,))
    assert exchange(levels, "collective-broadcast", range(4), LARGE).seconds == pytest.approx(
        2 * inner.latency + LARGE / inner.bandwidth)
    assert exchange(levels, "all-reduce", [2], LARGE) == (0.0, "", (0.0,))


def test_short_messages_take_few_steps():
    found = exchange((Level("x", 64, 1e9, 1e-6),), "all-reduce", range(64), 64)
    assert found.algorithm in ("doubling", "tree") and found.seconds == pytest.approx(2 * 6e-6, rel=0.05)


def test_less_goes_over_the_outer_level():
    found = exchange(NODES, "all-reduce", range(32), LARGE)
    assert found.sent == pytest.approx((2 * LARGE * 3 / 4, 2 * LARGE / 4 * 7 / 8))
    assert found.seconds >= found.sent[1] / 1e8
    across = exchange(NODES, "all-reduce", range(0, 32, 4), LARGE)          # one device of each node
    assert across.sent == pytest.approx((0, 2 * LARGE * 7 / 8))


def test_devices_share_a_port():
    shared = (NODES[0], NODES[1]._replace(shared=True))
    alone, together = (exchange(levels, "all-gather", range(0, 32, 4), LARGE, 32).seconds for levels in (NODES, shared))
    assert together == pytest.approx(4 * alone, rel=0.01)                   # four groups cross at the same time
    assert group_of(shared, range(0, 32, 4), 32).rates == (1e9, 1e8 / 4)
    assert group_of(NODES, [0, 1, 4, 9], 32).counts == (2, 3)


def test_a_permutation_takes_as_long_as_its_slowest_pair():
    ring = [(n, (n + 1) % 8) for n in range(8)]
    found = permutation(NODES, ring, 1000, 8)
    assert found == (pytest.approx(1e-5 + 1000 / 1e8), "direct", (1000.0, 1000.0))
    assert permutation(NODES, [(0, 1), (1, 0)], 1000, 8).seconds == pytest.approx(1e-6 + 1000 / 1e9)
    assert permutation(NODES, [(3, 3)], 1000, 8).seconds == 0
    shared = (NODES[0], NODES[1]._replace(shared=True))
    swap = [(n, (n + 4) % 8) for n in range(8)]                             # all four devices of a node cross
    assert permutation(shared, swap, 1000, 8).seconds == pytest.approx(1e-5 + 4 * 1000 / 1e8)


@pytest.mark.parametrize("opcode", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-broadcast"])
def test_more_bytes_and_slower_links_take_longer(opcode):
    before = 0.0
    for bits in range(4, 34, 3):
        one = exchange(NODES, opcode, range(32), 1 << bits).seconds
        slow = tuple(level._replace(bandwidth=level.bandwidth / 2, latency=2 * level.latency) for level in NODES)
        assert before < one < exchange(slow, opcode, range(32), 1 << bits).seconds
        before = one


# -- a simulation ------------------------------------------------------------------------------------------------------

def test_a_step_adds_up(told):
    line = told.timeline
    assert line.total == pytest.approx(line.kernels + line.exposed)
    assert 0 < line.exposed < line.communication
    assert told.mesh == {"data": 4, "model": 2} and told.devices == 8 and told.fits
    rows = {row.axes: row for row in told.traffic}
    assert set(rows) == {"data", "model"} and (rows["data"].groups, rows["model"].groups) == (4, 2)
    assert sum(r.seconds for r in told.traffic) == pytest.approx(line.communication)


def test_bytes_are_those_of_the_partitioned_program(step, told):
    divided = hloc.parallel.partition(step, {"data": 4, "model": 2})
    assert told.sent == pytest.approx(bytes_sent(divided.module))
    assert all(row.sent[1] == 0 for row in told.traffic)                    # 8 devices are one node
    wide = simulate(step, {"data": 16, "model": 8}, find_cluster("dgx-h100"))
    rows = {row.axes: row.sent for row in wide.traffic}
    assert rows["model"][1] == 0 < rows["model"][0] and rows["data"][0] == 0 < rows["data"][1]


def test_work_hides_communication(step, told):
    exposed = simulate(step, {"data": 4, "model": 2}, find_cluster("dgx-h100"), overlap=False)
    assert exposed.timeline.exposed == pytest.approx(exposed.timeline.communication)
    assert told.timeline.total < exposed.timeline.total and told.peak >= exposed.peak
    assert told.timeline.kernels == pytest.approx(exposed.timeline.kernels)


def test_a_slower_link_takes_longer(step):
    text = json.dumps({"name": "c", "device": {"target": "h100"},
                       "levels": [{"name": "link", "joins": 8, "bandwidth": 1e9, "latency": 1e-5}]})
    slow, fast = (simulate(step, None, read_cluster(t, "c.json")).timeline
                  for t in (text, text.replace("1000000000.0", "2e9")))
    assert slow.kernels == fast.kernels and slow.communication > 1.9 * fast.communication


def test_a_module_that_came_partitioned(step):
    divided = hloc.parallel.partition(step)
    again = hloc.load(str(divided.module))
    assert simulate(again, None, find_cluster("dgx-h100")).timeline.total == pytest.approx(
        simulate(step, None, find_cluster("dgx-h100")).timeline.total, rel=1e-6)


def test_programs_of_replicas_and_of_one_device():
    text = """HloModule r, replica_count=4
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY e { x = f32[1048576] parameter(0)  ROOT r = f32[1048576] all-reduce(x), replica_groups={{0,2},{1,3}}, to_apply=add }
"""
    told = simulate(hloc.load(text), None, find_cluster("a100-pcie-8"))
    assert told.devices == 4 and told.traffic[0].groups == 2 and told.traffic[0].sent == (4 << 20, 0)
    alone = simulate(hloc.load("ENTRY e { x = f32[8] parameter(0) ROOT n = f32[8] negate(x) }\n"), None, find_cluster("dgx-h100"))
    assert alone.devices == 1 and alone.timeline.exposed == 0 and not alone.traffic


def test_combined_collectives_are_fewer(step):
    many, few = (simulate(step, None, find_cluster("dgx-h100"), options=hloc.Options(passes={"combine_bytes": n}))
                 for n in (0, 1 << 30))
    assert sum(t.runs for t in few.traffic) < sum(t.runs for t in many.traffic)
    assert few.sent == pytest.approx(many.sent)


# -- meshes ------------------------------------------------------------------------------------------------------------

def test_all_meshes_of_so_many_devices(step):
    found = mesh_shapes(step, 8, find_cluster("dgx-h100"))
    assert {tuple(s.mesh.values()) for s in found} == {(8, 1), (4, 2), (2, 4), (1, 8)}
    times = [s.told.timeline.total for s in found]
    assert times == sorted(times) and all(s.told.devices == 8 for s in found)


def test_meshes_that_do_not_fit_are_told(step):
    found = mesh_shapes(step, 16, find_cluster("a100-pcie-8"))
    assert all(s.told is None and "16 devices, 8x A100 PCIe 8" in s.problem for s in found)


def test_a_table_can_be_strict(tmp_path, capfd, monkeypatch):
    """As a single mesh can: what each device would do as a whole is refused."""
    (tmp_path / "m.hlo").write_text("ENTRY e { x = f32[8] parameter(0), sharding={devices=[2]<=[2]}\n"
                                    "ROOT r = f32[8] reverse(x), dimensions={0}, sharding={devices=[2]<=[2]} }\n")
    words = (str(tmp_path / "m.hlo"), "-c", "dgx-h100", "--table")
    _, err, code = command(capfd, monkeypatch, *words)
    assert code == 0 and err.count("m.hlo:2:6: warning: reverse %r reaches over all") == 1
    _, err, code = command(capfd, monkeypatch, *words, "--strict")
    assert code != 0 and "m.hlo:2:6: error: reverse %r reaches over all" in err


@pytest.mark.parametrize("count, axes", [(1, 2), (12, 2), (64, 3), (97, 1)])
def test_factorizations(count, axes):
    found = list(factorizations(count, axes, 1000))
    assert all(math.prod(sizes) == count and len(sizes) == axes for sizes in found)
    assert len(set(found)) == len(found) == sum(
        1 for n in range(1, count + 1) if count % n == 0 and axes > 1 for m in (range(1, count // n + 1) if axes > 2 else [1])
        if (count // n) % m == 0) + (axes == 1)


# -- cluster files -----------------------------------------------------------------------------------------------------

def test_named_clusters_say_where_their_figures_are_from():
    assert {"dgx-h100", "gb200-nvl72", "a100-pcie-8", "cpu-ethernet"} <= set(cluster_names())
    for name in cluster_names():
        found = find_cluster(name)
        assert found.about and found.memory and {"device", "levels", "efficiency", "latency"} <= set(found.sources)
    assert find_cluster("gb200-nvl72").levels[0] == Level("NVLink", 72, 720e9, 3e-6)


GOOD = {"name": "c", "device": {"target": "h100"},
        "levels": [{"name": "link", "joins": 8, "bandwidth": 1e9, "latency": 1e-5}]}


def changed(path: str, value: object) -> str:
    copy = json.loads(json.dumps(GOOD))
    *way, last = (int(key) if key.isdigit() else key for key in path.split("."))
    place = copy
    for key in way:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return json.dumps(copy)


@pytest.mark.parametrize("text, said", [
    ("", "c.json:1:1: error: no JSON: Expecting value"),
    ('{"name": "c",\n "levels": }', "c.json:2:12: error: no JSON"),
    ("[]", "a cluster must be an object with the keys name, about, device, levels, sources, is of 0 parts"),
    ("7" * 5000, "Exceeds the limit"),
    ('{"name": NaN}', "NaN is no figure of a cluster"),
    ('{"name": "a", "name": "b"}', "the key 'name' stands twice"),
    ("[" * 200_000, "nested too deep"),
    (changed("levels", []), "levels must name at least one link: without one, devices cannot reach each other"),
    (changed("levels", None), "levels must name at least one link"),
    (changed("levels", [{}] * 9), "levels must be a list of at most 8, is of 9 parts"),
    (changed("levels.0", 3), "levels[0] must be an object with the keys name, joins, bandwidth, efficiency, latency, port, is 3"),
    (changed("levels.0.joins", 0), "levels[0].joins must be a whole number of 1 to 1,048,576, is 0"),
    (changed("levels.0.joins", 1.5), "levels[0].joins must be a whole number"),
    (changed("levels.0.joins", None), "levels[0].joins is missing"),
    (changed("levels.0.bandwidth", -1), "levels[0].bandwidth must be a number of 1e-15 to 1e+18, is -1"),
    (changed("levels.0.bandwidth", "fast"), 'levels[0].bandwidth must be a number of 1e-15 to 1e+18, is "fast"'),
    (changed("levels.0.bandwidth", None), "levels[0].bandwidth must be a number of 1e-15 to 1e+18, is missing"),
    (changed("levels.0.latency", 11), "levels[0].latency must be a number of 0 to 10, is 11"),
    (changed("levels.0.efficiency", 2), "levels[0].efficiency must be a number of 1e-15 to 1, is 2"),
    (changed("levels.0.port", "node"), "levels[0].port must be 'device' or 'unit', is \"node\""),
    (changed("levels.0.bandwith", 1e9), "levels[0].bandwith is no key of a cluster file"),
    (changed("device", None), "device is missing"),
    (changed("device.target", "h1000"), 'device.target must be cpu or a GPU that hloc knows, such as h100, is "h1000"'),
    (changed("device.target", "auto"), 'device.target must be cpu or a GPU that hloc knows, such as h100, is "auto"'),
    (changed("device.cores", 4), "device.cores is known of h100: leave it out"),
    (changed("device.memory", True), "device.memory must be a whole number"),
    (changed("name", "x" * 10 + "\x1b[31m"), None),
    (changed("sources", {"a": 1}), "sources must be an object of texts, is of 1 parts"),
    (json.dumps(GOOD | {"levels": GOOD["levels"] * 8}), "levels join 16,777,216 devices; the most is 1,048,576")])
def test_wrong_cluster_files(text, said):
    if said is None:
        assert read_cluster(text, "c.json").devices == 8
        return
    with pytest.raises(HlocError) as error:
        read_cluster(text, "c.json")
    assert said in str(error.value) and "c.json" in str(error.value)


def test_cpus_are_described_by_the_file():
    text = json.dumps(GOOD | {"device": {"target": "cpu", "cores": 3, "vector_bytes": 32, "memory_bandwidth": 1e9,
                                         "kernel_time_factor": 2.0}})
    found = read_cluster(text, "c.json")
    assert (found.target.machine.cores, found.target.machine.vector_bytes, found.time_factor) == (3, 32, 2.0)
    module = hloc.load("ENTRY e { x = f32[8192,8192] parameter(0) ROOT n = f32[8192,8192] negate(x) }\n")
    assert simulate(module, None, found).timeline.total == pytest.approx(2 * 2 * (256 << 20) / 1e9, rel=0.01)


def test_a_fitted_cluster_gives_back_what_was_measured(monkeypatch):
    """benchmarks/fit_cluster.py: the matmul and the large all-reduce take what they took."""
    path = Path(__file__).parent.parent / "benchmarks" / "fit_cluster.py"
    spec = importlib.util.spec_from_file_location("fit_cluster", path)
    fit = importlib.util.module_from_spec(spec)
    monkeypatch.setenv("HLOC_THREADS", "1")                                 # as the script sets it: undone behind the test
    spec.loader.exec_module(fit)
    text = json.dumps(fit.fitted(3.0, 1e-4, 1.4e-4, 5e-3))
    found = read_cluster(text, "fitted")
    assert found.time_factor == 3.0 and found.devices == 2
    one = exchange(found.levels, "all-reduce", range(2), 4 * fit.MANY)
    assert one.seconds == pytest.approx(5e-3 - 1e-4, rel=0.02)
    assert simulate(hloc.load(fit.MATMUL), None, found).timeline.total == pytest.approx(
        3 * simulate(hloc.load(fit.MATMUL), None, fit.cluster_of(fit.fitted(1.0, 0, 0, 1))).timeline.total)


# -- the command -------------------------------------------------------------------------------------------------------

def command(capfd, monkeypatch, *words: str) -> tuple[str, str, int]:
    monkeypatch.setattr(sys, "argv", ["hloc", "simulate", *words])
    code = 0
    with suppress(SystemExit):
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    printed = capfd.readouterr()
    return printed.out, printed.err, code


@pytest.mark.parametrize("words, said", [
    (("--cluster", "dgx-h10"), "did you mean dgx-h100?"),
    (("--cluster", "none.json"), "cannot read none.json"),
    (("-c", "a100-pcie-8", "--mesh", "data=8,model=2"), "the mesh has 16 devices, 8x A100 PCIe 8: its levels join 4 x 2"),
    (("-c", "dgx-h100", "--mesh", "data=8,rows=2"), "the module's mesh has no axis 'rows'; its axes are data=4, model=2"),
    (("-c", "dgx-h100", "--mesh", "data=8"), "the size of axis 'model' is missing"),
    (("-c", "dgx-h100", "--devices", "8"), "--devices is for --table"),
    (("-c", "dgx-h100", "--table", "--mesh", "data=8,model=1"), "--table is about all meshes"),
    (("-c", "a100-pcie-8", "--table", "--devices", "16"), "no mesh of these devices can be simulated"),
    (("-c", "dgx-h100", "-o", "page.txt"), "name a FILE that ends with .html"),
    (("-c", "dgx-h100", "--trace", "trace.txt"), "name a FILE that ends with .json")])
def test_wrong_calls(words, said, capfd, monkeypatch):
    _, err, code = command(capfd, monkeypatch, str(STEP), *words)
    assert code == 2 and said in err and err.count("error:") == 1


def test_a_mesh_of_a_module_without_shardings(tmp_path, capfd, monkeypatch):
    (tmp_path / "m.hlo").write_text("ENTRY e { x = f32[8] parameter(0) ROOT n = f32[8] negate(x) }\n")
    _, err, code = command(capfd, monkeypatch, str(tmp_path / "m.hlo"), "-c", "dgx-h100", "--mesh", "data=2")
    assert code == 2 and err.count("error:") == 1


def test_unknown_custom_calls_are_told(tmp_path, capfd, monkeypatch):
    (tmp_path / "m.hlo").write_text('ENTRY e { x = f32[8] parameter(0) ROOT n = f32[8] custom-call(x), custom_call_target="mine" }\n')
    out, _, _ = command(capfd, monkeypatch, str(tmp_path / "m.hlo"), "-c", "dgx-h100")
    assert "counted as nothing, for nobody knows their time: mine" in out


def test_trace_and_page(told, tmp_path):
    events = trace_of(told)["traceEvents"]
    drawn = [e for e in events if e["ph"] == "X"]
    assert {e["cat"] for e in drawn} >= {"kernel", "collective", "wait"} and {e["tid"] for e in drawn} == {1, 2}
    for track in (1, 2):                                                    # slices of a track do not overlap
        own = sorted((e["ts"], e["ts"] + e["dur"]) for e in drawn if e["tid"] == track)
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in zip(own, own[1:]))
    assert max(e["ts"] + e["dur"] for e in drawn) == pytest.approx(told.timeline.total * 1e6)
    sent = next(e for e in drawn if e["cat"] == "collective")["args"]
    assert sent["algorithm"] and "NVLink" in sent["bytes sent"] and sent["source"].startswith("train.py")
    page = Reader(simulate_page(told, mesh_shapes(hloc.load(STEP), 4, find_cluster("a100-pcie-8"))))
    assert {"summary", "shapes", "timeline", "traffic", "collectives", "cluster"} <= {given.get("id") for _, given in page.elements}


def test_hostile_names_are_escaped(step):
    text = json.dumps(GOOD | {"name": "<script>alert(1)</script>\x1b[31m", "about": "<b>"})
    markup = simulate_page(simulate(step, None, read_cluster(text, "c.json"), title="<i>"))
    assert "<script>alert" not in markup and "<b>" not in markup and "<i>" not in markup and "\x1b" not in markup


def test_wrong_mesh_of_api(step):
    with pytest.raises(UsageError, match="partitioned already"):
        mesh_shapes(hloc.load(str(hloc.parallel.partition(step).module)), None, find_cluster("dgx-h100"))
