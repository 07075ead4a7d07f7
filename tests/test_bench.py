"""`hloc bench`: percentiles of programs that run in turn, and a verdict that knows its noise."""
from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest

from hloc.tools.bench import Contestant, Effort, bench
from hloc.tools.timings import Summary, compare_times

SMALL = """HloModule small
ENTRY e {
  x = f32[64,64] parameter(0)
  ROOT y = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
LARGE = SMALL.replace("64", "512")


def noisy(generator, mean: float, drift: np.ndarray) -> np.ndarray:
    """Times that wander with the machine, with the long tail that times have."""
    return mean * drift * (1 + generator.exponential(0.05, len(drift)))


def test_equal_programs_are_told_equal_and_others_apart():
    found = []
    for seed in range(40):
        generator = np.random.default_rng(seed)
        drift = np.exp(np.cumsum(generator.normal(0, 0.05, 150)))
        a, b, faster = (noisy(generator, mean, drift) for mean in (1.0, 1.0, 0.94))
        found.append((compare_times(a, b).winner, compare_times(a, faster).winner))
    assert sum(same is not None for same, _ in found) <= 5
    assert sum(apart == 1 for _, apart in found) >= 36


def test_percentiles():
    assert Summary.of(list(range(101))) == (0, 50, 90, 99)


def test_all_run_in_turn_each_second_round_in_reverse():
    ran = []
    found = bench([Contestant(name, lambda name=name: ran.append(name)) for name in "abc"], Effort(rounds=2, warm_up=1))
    assert "".join(ran) == "abc" + "abc" + "cba"
    assert [len(t) for t in found.times] == [2, 2, 2] and [len(t) for t in found.warm_up] == [1, 1, 1]


def test_command(tmp_path, monkeypatch, hloc_run):
    monkeypatch.chdir(tmp_path)
    for name, text in (("small.hlo", SMALL), ("large.hlo", LARGE)):
        (tmp_path / name).write_text(text)
    code, out, err = hloc_run("bench", "large.hlo", "small.hlo", "-t", "cpu", "--rounds", "12")
    assert code == 0 and "12 rounds): small.hlo is faster" in out and "small.hlo has other shapes" in err
    code, out, _ = hloc_run("bench", "small.hlo", "-t", "cpu", "--against", "reference", "--rounds", "5",
                       "--fusion", "off", "--json")
    told = json.loads(out)
    assert [p["name"] for p in told["programs"]] == ["small.hlo", "reference"] and told["rounds"] == 5
    assert {"min", "median", "p90", "p99"} == told["programs"][0]["percentiles"].keys()
    (verdict,) = told["comparisons"]
    assert verdict["low"] <= verdict["ratio"] <= verdict["high"] and len(told["programs"][1]["seconds"]) == 5


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="jax is not installed")
def test_against_xla_results_are_compared(tmp_path, monkeypatch, hloc_run):
    path = tmp_path / "m.hlo"
    path.write_text(SMALL)
    code, out, err = hloc_run("bench", str(path), "-t", "cpu", "--against", "xla", "--rounds", "4")
    assert code == 0 and "xla takes" in out and "differ" not in err


@pytest.mark.parametrize("arguments, code, words", [
    (["nowhere.hlo"], 2, "cannot read nowhere.hlo"), (["empty.hlo"], 3, "empty.hlo"), (["x.npy"], 2, "x.npy is not a module"),
    (["m.hlo", "x.npy"], 2, "inputs go to --inputs"), (["m.hlo", "--inputs", "nowhere.npy"], 6, "nowhere.npy"),
    (["m.hlo", "--rounds", "1"], 2, "--rounds"), ([], 2, "MODULE")])
def test_bad_calls(tmp_path, monkeypatch, arguments, code, words, hloc_run):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.hlo").write_text(SMALL)
    (tmp_path / "empty.hlo").write_text("")
    got, out, err = hloc_run("bench", *arguments, "-t", "cpu")
    assert got == code and words in err and out == "" and "Traceback" not in err
