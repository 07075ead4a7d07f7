"""What a file may hold: gzip, logs, several modules, protos, StableHLO; and what `hloc convert` makes of it."""
import gc
import gzip
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import hloc
from hloc.cli.main import main
from hloc.errors import HlocError, UsageError
from hloc.proto import write_proto
from hloc.sources import module_of, module_parts, without_log_prefixes

PROTOS = Path(__file__).parent.parent / "testdata" / "proto"
THREE = """HloModule first
ENTRY e {
  x = f32[3] parameter(0)
  ROOT r = f32[3] tanh(x)
}

// -----

HloModule second
ENTRY e {
  x = f32[3] parameter(0)
  ROOT r = f32[3] negate(x)
}
HloModule third
ENTRY e { ROOT c = f32[2] constant({1, 2}) }
"""
PREFIXES = {"absl": "I0000 00:00:1700000000.000000    1234 hlo_pass_pipeline.cc:12] ",
            "glog": "I0521 12:04:45.883483 1509 service.cc:186] ",
            "tensorflow": "2024-01-31 12:04:45.883483: I xla/service/service.cc:186] "}


def log_of(text: str, prefix: str) -> str:
    lines = "".join(prefix + line + "\n" for line in text.splitlines())
    return f"starting\n{prefix}HLO before passes:\n{lines}{prefix}done in 3 s\nbye\n"


@pytest.mark.parametrize("choice, name", [("1", "first"), ("2", "second"), ("third", "third")])
@pytest.mark.parametrize("prefix", ["", *PREFIXES])
def test_one_of_several(prefix, choice, name):
    text = log_of(THREE, PREFIXES[prefix]) if prefix else THREE
    assert module_of(text, "m", choice=choice).name == name


@pytest.mark.parametrize("choice, message", [(None, "m holds 3 modules:\n  1  first\n  2  second\n  3  third"),
                                             ("4", "m holds no module 4"), ("forth", "m holds no module forth")])
def test_a_choice_is_asked_for(choice, message):
    with pytest.raises(UsageError, match=message):
        module_of(THREE, "m", choice=choice)


def test_names_that_stand_twice_are_chosen_by_number():
    text = THREE.replace("second", "first")
    assert module_of(text, "m", choice="2").entry.root.opcode == "negate"
    with pytest.raises(UsageError, match="2 modules of m are called first"):
        module_of(text, "m", choice="first")


def test_places_are_those_of_the_file():
    log = log_of(THREE.replace("negate(x)", "negate(y)"), PREFIXES["absl"])
    line = next(n for n, text in enumerate(log.splitlines(), 1) if "negate(y)" in text)
    column = log.splitlines()[line - 1].index("(y)") + 2
    with pytest.raises(HlocError, match=f"m:{line}:{column}: error: y is not defined"):
        module_of(log, "m", choice="second")


def test_a_log_of_one_module():
    text = THREE[:THREE.index("//")]
    assert module_of(log_of(text, PREFIXES["absl"]), "m").name == "first"
    assert len(without_log_prefixes(log_of(text, PREFIXES["absl"]))) == len(log_of(text, PREFIXES["absl"]))


@pytest.mark.parametrize("text", [
    "// a licence\n\n// -----\nHloModule m\nENTRY e { ROOT c = f32[] constant(1) }\n// -----\n// the end\n",
    'ENTRY e { ROOT c = f32[] constant(1), metadata={op_name="\nHloModule x"} }',
    "hlo { ROOT c = f32[] constant(1) }",
    "module { ROOT c = f32[] constant(1) }",
    "ENTRY e { ROOT c = f32[] constant(1) }\n",
    "\n\nENTRY e { ROOT c = f32[] constant(1) }",
])
def test_one_module_is_one_module(text):
    assert len(module_parts(text)) == 1
    assert module_of(text, "m").entry.root.opcode == "constant"
    assert module_of(text.encode(), "m").entry.root.opcode == "constant"


def test_gzip(tmp_path):
    path = tmp_path / "m.hlo.gz"
    path.write_bytes(gzip.compress(THREE.encode()))
    assert hloc.load(f"{path}#second").name == "second"
    path.write_bytes(gzip.compress((PROTOS / "sum.hlo.pb").read_bytes()))
    assert hloc.load(path).name == "sum"
    path.write_bytes(gzip.compress(THREE.encode())[:50])
    with pytest.raises(HlocError, match="damaged gzip"):
        hloc.load(path)


def test_a_file_may_have_a_sign_in_its_name(tmp_path):
    (tmp_path / "m.hlo#2").write_text(THREE[:THREE.index("//")])
    assert hloc.load(tmp_path / "m.hlo#2").name == "first"


@pytest.mark.parametrize("name", ["sum.hlo", "sum.hlo.pb", "sum.pbtxt", "snapshot.pb"])
def test_forms_are_told_by_their_content(name, tmp_path):
    data = (PROTOS / name).read_bytes()
    assert hloc.load(PROTOS / name).name == "sum"
    assert hloc.load(data, name="data").name == "sum"
    with pytest.raises(UsageError, match="holds no module other"):
        hloc.load(PROTOS / name, choice="other")


def test_damaged_protos_are_located(tmp_path):
    data = (PROTOS / "sum.hlo.pb").read_bytes()
    with pytest.raises(HlocError, match="m.pb:byte "):
        hloc.load(data[:100], name="m.pb")
    with pytest.raises(HlocError, match="not HLO text: byte"):
        hloc.load(b"\xff" + data, name="m")


# -- StableHLO -----------------------------------------------------------------------------------------------------------

STABLEHLO = """module @f attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.negate %arg0 : tensor<2xf32>
    return %0 : tensor<2xf32>
  }
}
"""


def test_stablehlo():
    pytest.importorskip("jaxlib", reason="jaxlib is not installed")
    module = hloc.load(STABLEHLO)
    assert module.entry.root.opcode == "negate" and module.attributes["num_partitions"] == "2"
    with pytest.raises(HlocError, match=r"f.mlir:3:10: error: .*stablehlo.neg"):
        hloc.load(STABLEHLO.replace("stablehlo.negate", "stablehlo.neg"), name="f.mlir")


def test_stablehlo_without_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "jaxlib", None)
    with pytest.raises(UsageError, match=r"needs jax(.|\n)*hloc\[jax\]"):
        hloc.load(STABLEHLO)


# -- the command line ----------------------------------------------------------------------------------------------------

def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `hloc ARGUMENTS`."""
    sys.argv = ["hloc", *map(str, arguments)]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("ending", [".hlo", ".hlo.pb", ".pbtxt", ".hlo.gz", ".pb.gz", ".textproto"])
def test_convert_there_and_back(tmp_path, capsys, ending):
    file = tmp_path / f"m{ending}"
    assert run(capsys, "convert", PROTOS / "control.hlo", "-o", file)[0] == 0
    code, out, _ = run(capsys, "convert", file, "-o", "-")
    assert code == 0 and out == str(hloc.load(PROTOS / "control.hlo"))


def test_convert_prints_any_form(capsys):
    assert "opcode: \"reduce\"" in run(capsys, "convert", PROTOS / "sum.hlo", "-o", "-", "--to", "pbtxt")[1]
    code, _, err = run(capsys, "convert", PROTOS / "sum.hlo", "-o", "m.xyz")
    assert code == 2 and ".pbtxt" in err


def test_convert_says_what_is_left_out(tmp_path, capsys):
    file = tmp_path / "m.hlo"
    file.write_text("HloModule m, alias_passthrough_params=true\nENTRY e { ROOT c = f32[] constant(1) }")
    assert "no field for alias_passthrough_params: omitted" in run(capsys, "convert", file, "-o", tmp_path / "m.pb")[2]
    assert "arguments" in run(capsys, "convert", PROTOS / "snapshot.pb", "-o", tmp_path / "m.hlo")[2]


def test_run_takes_the_arguments_of_a_snapshot(capsys):
    code, out, err = run(capsys, "run", PROTOS / "snapshot.pb", "-t", "reference")
    assert code == 0 and "10" in out and "arguments in the file" in err
    code, out, _ = run(capsys, "run", PROTOS / "snapshot.pb", "-t", "reference", "-i", "zeros")
    assert code == 0 and "10" not in out


def test_commands_choose_modules(tmp_path, capsys):
    file = tmp_path / "three.hlo"
    file.write_text(THREE)
    assert "1, 2" in run(capsys, "run", file, "-m", "third", "-t", "reference")[1]
    assert "negate" in run(capsys, "opt", f"{file}#2", "--passes=dce")[1]
    code, _, err = run(capsys, "check", file)
    assert code == 2 and "holds 3 modules" in err


def test_binary_input_on_stdin():
    data = write_proto(module_of(THREE, "m", choice="1"))
    result = subprocess.run([sys.executable, "-m", "hloc.cli.main", "convert", "-", "-o", "-"], input=data,
                            capture_output=True)
    assert result.returncode == 0 and b"tanh" in result.stdout


def test_arguments_are_arrays_of_the_entry():
    values, start = hloc.load(PROTOS / "snapshot.pb").default_inputs
    assert values.dtype == np.float32 and start.shape == ()


@pytest.mark.parametrize("text", [THREE.partition("// -----")[0], "this is no module\n"], ids=["module", "error"])
@pytest.mark.parametrize("on", [True, False])
def test_the_garbage_collector_is_as_before_when_a_module_is_read(text, on):
    was_on = gc.isenabled()
    try:
        gc.enable() if on else gc.disable()
        with suppress(HlocError):
            hloc.load(text)
        assert gc.isenabled() == on
    finally:
        gc.enable() if was_on else gc.disable()
