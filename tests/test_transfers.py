"""infeed, outfeed, send and recv on targets that run here: the host's values go in, the program's come out in order."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import hloc
from hloc.api import Options
from hloc.cli.main import cli
from hloc.errors import RunError
from hloc.ops.host import Transfers

LOOP = Path(__file__).parent.parent / "testdata" / "transfers" / "loop.hlo"
PIPELINED = LOOP.with_name("pipelined.hlo")


def given(rounds: int) -> Transfers:
    infeed = [array for n in range(rounds) for array in (np.full(2, n + 1, np.float32), np.array(n, np.int32))]
    return Transfers(infeed=infeed, received={2: [np.array([10, 20], np.float32)]})


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_values_go_both_ways(target):
    transfers = given(3)
    grown, first = hloc.compile(LOOP, target, options=Options(transfers=transfers))()
    assert grown.tolist() == [16, 26] and first.tolist() == [10, 20]
    assert [(x.tolist(), int(n)) for x, n in transfers.outfeed] == [([11, 21], 0), ([13, 23], 1), ([16, 26], 2)]
    assert [(channel, x.tolist()) for channel, x in transfers.sent] == [(5, [11, 21]), (5, [13, 23]), (5, [16, 26])]
    assert not transfers.infeed


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_loop_hands_transfers_on(target):
    """What a turn of a loop begins to send or to receive, the next one awaits."""
    values = [np.full(2, n, np.float32) for n in range(1, 5)]
    transfers = Transfers(received={2: list(values)})
    last, = hloc.compile(PIPELINED, target, options=Options(transfers=transfers))()
    assert last.tolist() == [4, 4]
    assert [(channel, x.tolist()) for channel, x in transfers.sent] == \
        [(5, [0, 0]), (5, [1, 1]), (5, [2, 2]), (5, [3, 3])]


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_too_few_values(target):
    with pytest.raises(RunError, match="infeed has nothing to take"):
        hloc.compile(LOOP, target, options=Options(transfers=given(2)))()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_nothing_is_transferred(target):
    text = """ENTRY e {
      t = token[] after-all()
      i = ((), token[]) infeed(t)
      ROOT r = token[] get-tuple-element(i), index=1 }"""
    hloc.compile(text, target)()


def test_callbacks():
    """A Python function may stand for a transfer as for a custom call."""
    sent = []
    calls = {"infeed": lambda: (np.ones(2, np.float32), np.array(7, np.int32)),
             "outfeed": lambda *_: (), "recv:2": lambda: (np.zeros(2, np.float32), np.array(0, np.uint32)),
             "send:5": lambda x: (sent.append(x.tolist()), (x, np.array(0, np.uint32)))[1]}
    grown, _ = hloc.compile(LOOP, "cpu", options=Options(custom_calls=calls))()
    assert grown.tolist() == [3, 3] and sent == [[1, 1], [2, 2], [3, 3]]


def test_files(tmp_path):
    transfers = given(3)
    np.savez(tmp_path / "in.npz", *transfers.infeed)
    np.save(tmp_path / "first.npy", transfers.received[2][0])
    out = tmp_path / "out.npz"
    result = CliRunner().invoke(cli, ["run", str(LOOP), "--target", "cpu", "--infeed", str(tmp_path / "in.npz"),
                                       "--recv", f"2={tmp_path / 'first.npy'}", "--outfeed", str(out)])
    assert result.exit_code == 0, result.output
    with np.load(out) as file:
        assert file["outfeed.4"].tolist() == [16, 26] and file["send.5.2.0"].tolist() == [16, 26]
