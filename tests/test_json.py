"""--json of every command that has it: one JSON value with these keys. A new command is missed here."""
import json
import sys
from contextlib import suppress

import click
import pytest

from hloc.cli.main import COMMANDS, cli, main

ADD = "HloModule add\nENTRY e {\n  x = f32[2,3] parameter(0)\n  ROOT s = f32[2,3] add(x, x)\n}\n"
KEYS = {
    "run add.hlo -t cpu": "percentiles results seconds warm_up_seconds",
    "check add.hlo -t cpu": "agrees causes error moved note result shape tolerance type unstable where",
    "bisect add.hlo -t cpu": "culprit kernels ran_kernels results step steps",
    "reduce add.hlo -o small.hlo --command false": "inputs instructions of output reasons",
    "report add.hlo -t cpu -o made.html --measure --repeat 1": "bytes collectives flops instructions instructions_read "
        "kernels launches measured other_targets output passes peak predicted problem reasons stages target",
    "graph add.hlo -o made.html --cost bytes": "costs instructions output unit",
    "extract add.hlo --around s -o part.hlo": "inputs instructions of output parameters results",
    "bundle add.hlo -o case.zip": "bytes exit_code flags inputs module output versions",
    "nans add.hlo": "origins results",
    "bench add.hlo -t cpu --seconds 0.1": "comparisons programs rounds",
    "compile add.hlo -t cpu -o made.c --time-passes": "passes stages",
    "opt add.hlo -t cpu -o made.hlo --time-passes": "passes stages",
    "diff add.hlo add.hlo": "changes counts equal header instructions matched",
    "explain add.hlo -t cpu": "edges instructions kernels loop_copies reasons",
    "memory add.hlo -t cpu": "arena at buffers constants kept live loop_copies parameters peak results scratch stacks",
    "simulate add.hlo -c dgx-h100": "bytes_sent cluster collectives communication devices exposed fits kernels mesh peak seconds target timeline traffic unknown",
    "doctor": "found get_it needed_for what",
}
CONTEXT = click.Context(cli)


@pytest.mark.parametrize("line", KEYS)
def test_keys(line, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "add.hlo").write_text(ADD)
    monkeypatch.setattr(sys, "argv", ["hloc", *line.split(), "--json"])
    with suppress(SystemExit):
        main()
    printed = capfd.readouterr()
    told = json.loads(printed.err if "--time-passes" in line else printed.out)      # stdout may be the program's text
    assert told and set(KEYS[line].split()) <= set(told[0] if isinstance(told, list) else told)


def test_a_report_of_collectives(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "a { x = f32[] parameter(0) y = f32[] parameter(1) ROOT s = f32[] add(x, y) }\nENTRY e {\n" \
           "  x = f32[8] parameter(0)\n  ROOT r = f32[8] all-reduce(x), replica_groups={{0,1}}, to_apply=a\n}\n"
    (tmp_path / "sum.hlo").write_text(text)
    monkeypatch.setattr(sys, "argv", "hloc report sum.hlo -o made.html --predict none --json".split())
    main()
    (row,) = json.loads(capfd.readouterr().out)["collectives"]
    assert row == {"opcode": "all-reduce", "axis": "", "groups": row["groups"], "instructions": 1, "bytes": 32}


def test_every_command_with_json_is_here():
    with_json = {name for name in COMMANDS
                 if any("--json" in p.opts for p in cli.get_command(CONTEXT, name).params)}
    assert with_json == {line.split()[0] for line in KEYS}
