"""The command line: what it prints, what it writes, and one clear error with the right exit code for each bad input."""
import json
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import hloc
from hloc import machine
from hloc.cli.main import COMMANDS, cli, main
from hloc.machine import Machine
from hloc.targets.cpu.building.library_kernels import GENERIC, TOPK
from hloc.targets.cpu.building.toolchain import RUNTIME
from hloc.targets.cpu.building.unit_costs import TEMPLATES
from hloc.targets.cpu.program.single_file import included
from hloc.targets.inlining import HEADERS as SHARED
from hloc.targets.inlining import inline_includes

OTHER_CPUS = ["x86-64", "haswell", "sapphirerapids"] if platform.machine() == "x86_64" else []
MODELS = Path(__file__).parent.parent / "testdata" / "models"
ADD = """HloModule add

ENTRY e {
  x = f32[2,3] parameter(0)
  y = f32[2,3] parameter(1)
  s = f32[2,3] add(x, y)
  ROOT t = f32[2,3] tanh(s)
}
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder as the working directory, with add.hlo and inputs in it."""
    monkeypatch.chdir(tmp_path)
    Path("add.hlo").write_text(ADD)
    np.save("x.npy", np.full((2, 3), 0.25, np.float32))
    return tmp_path


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `hloc ARGUMENTS`."""
    sys.argv = ["hloc", *arguments]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_run_prints_a_table_and_writes_results(here, capsys):
    code, out, _ = run(capsys, "run", "add.hlo", "-i", "x.npy", "-i", "x.npy", "-o", "r.npz", "-t", "cpu")
    assert code == 0
    assert "f32" in out and "2x3" in out and "0.462117" in out
    assert np.allclose(np.load("r.npz")["out_0"], np.tanh(0.5))


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_run_as_json(here, capsys, target):
    code, out, _ = run(capsys, "run", "add.hlo", "-i", "zeros", "--json", "-t", target)
    assert code == 0
    assert json.loads(out)["results"][0]["shape"] == [2, 3]


def test_saved_shared_object_runs(here, capsys):
    assert run(capsys, "compile", "add.hlo", "-o", "m.so")[0] == 0
    assert "m_run" in Path("m.h").read_text()
    code, out, _ = run(capsys, "run", "m.so", "-i", "x.npy", "-i", "x.npy")
    assert code == 0 and "0.462117" in out
    for flags in (["--elided", "zeros"], ["--fusion", "off"], ["--target", "reference"], ["--profile"]):
        code, _, err = run(capsys, "run", "m.so", "-i", "zeros", *flags)
        assert code == 2 and f"error: {flags[0]}" in err and "m.so is already compiled, for target cpu" in err


def test_a_fault_of_hloc_has_a_code_of_its_own(here, capsys, monkeypatch):
    monkeypatch.setattr("hloc.passes.runner.run_passes", lambda *_, **__: 1 // 0)
    code, _, err = run(capsys, "opt", "add.hlo")
    assert code == 70 and "ZeroDivisionError: this is an internal error of hloc" in err and "hint: hloc reduce" in err


def test_saved_shared_object_runs_from_c(here, capsys):
    assert run(capsys, "compile", "add.hlo", "-o", "m.so")[0] == 0
    Path("main.c").write_text("""
        #include <stdio.h>
        #include "m.h"
        int main(void) {
          float x[6] = {1, 1, 1, 1, 1, 1}, y[6] = {-1, -1, -1, -1, -1, 1}, t[6];
          const void *inputs[] = {x, y};
          void *results[] = {t};
          int error = m_run(inputs, results);
          printf("%d %.4f %.4f\\n", error, t[0], t[5]);
        }""")
    subprocess.run(["cc", "main.c", "./m.so", "-o", "main"], check=True)
    assert subprocess.run(["./main"], capture_output=True, text=True).stdout == "0 0.0000 0.9640\n"


@pytest.mark.parametrize("ending, words", [(".c", "m_execute"), (".hlo", "ENTRY"), (".cu", "__global__")])
def test_text_forms(here, capsys, ending, words):
    assert run(capsys, "compile", "add.hlo", "-o", f"m{ending}")[0] == 0
    assert words in Path(f"m{ending}").read_text()


@pytest.mark.parametrize("module", ["models/digits/model.hlo", "programs/short_rows_turned.hlo", "programs/first_of_sorted.hlo"])
def test_single_c_file_stands_alone(here, capsys, module):
    assert run(capsys, "compile", str(MODELS.parent / module), "-o", "m.c")[0] == 0
    link_alone("m.c")


def test_single_c_file_has_the_attention_of_any_cpu(here, capsys, monkeypatch):
    """Also where it is made on a CPU that multiplies pairs of bf16: with the plan of other attention."""
    monkeypatch.setattr("hloc.machine.cpu_flags", lambda: frozenset(("avx512f", "avx512bw", "avx512dq", "avx512_bf16")))
    monkeypatch.setattr("hloc.machine.has_slow_pairs", lambda: False)
    assert Machine.host().has_pairs
    assert run(capsys, "compile", str(MODELS.parent / "programs" / "attention_pairs.hlo"), "-o", "m.c")[0] == 0
    assert "m_attention(&" in Path("m.c").read_text()
    link_alone("m.c", "x86-64-v4")


def link_alone(file: str, cpu: str = "native") -> None:
    """With nothing undefined: plans fit the library kernels."""
    flags = ["-O1", f"-march={cpu}", "-fopenmp-simd", "-w", "-shared", "-fPIC", "-Wl,-z,defs"]
    subprocess.run(["cc", *flags, file, "-o", "x.so", "-lm", "-lpthread"], check=True)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("cpu", ["native", *OTHER_CPUS])
def test_all_library_kernels_can_be_in_one_file(cpu, order, tmp_path):
    """Names of files that are compiled apart else do not clash, whatever library kernels a program has."""
    units = [f.name for f in sorted(RUNTIME.glob("*.c")) if f.name not in ("call.c", "generic.c", "topk.c")]
    units += [*(f"generic.c:{name}" for name in GENERIC), *(f"topk.c:{name}" for name in TOPK)]
    files = [f"{included(unit)}\n" for unit in units[::order]]
    path = tmp_path / "all.c"
    path.write_text(inline_includes("".join(files), (RUNTIME, SHARED), TEMPLATES))
    subprocess.run(["cc", "-fsyntax-only", f"-march={cpu}", "-fopenmp-simd", "-w", str(path)], check=True)


def test_opt_prints_hlo(here, capsys):
    code, out, err = run(capsys, "opt", "add.hlo", "--time-passes")
    assert code == 0 and "ENTRY" in out and "fusion" in out and "total" in err


def test_compile_tells_the_time_of_every_stage(here, capsys):
    code, _, err = run(capsys, "compile", "add.hlo", "-o", "m.so", "--time-passes")
    table, _, units = err[err.index("  stage"):].partition("  seconds  call of the C compiler")
    stages = [line.split()[-1] for line in table.splitlines()[1:]]
    assert code == 0 and stages == ["parse", "passes", "lowering", "printing", "compiler", "total"]
    assert "unit0.c  1 kernel\n" in units and "fusion" in units


def test_the_slowest_kernels_of_the_c_compiler_are_named(here, capsys, monkeypatch):
    monkeypatch.setenv("HLOC_CACHE_DIR", str(here / "cache"))
    for compiled in (True, False):
        code, _, err = run(capsys, "run", "add.hlo", "-i", "zeros", "-t", "cpu", "--time-passes", "--json")
        units = json.loads(err)["units"]
        (kernels,) = [u["kernels"] for u in units if u["kernels"]] or [[]]
        assert code == 0 and bool(kernels) is compiled
        assert not compiled or "fusion" in kernels[0]["instruction"] and 0 < kernels[0]["estimated_seconds"]
    assert run(capsys, "compile", "add.hlo", "-o", "m.so", "--json")[0] == 2


def test_opt_dumps_after_a_pass(here, capsys):
    code, out, _ = run(capsys, "opt", "add.hlo", "--dump-after", "fusion")
    assert code == 0 and out.startswith("// after fusion") and "kind=kLoop" in out


def test_opt_reads_stdin(here):
    result = subprocess.run([sys.executable, "-m", "hloc.cli.main", "opt", "-", "--passes=dce"], input=ADD,
                            capture_output=True, text=True)
    assert result.returncode == 0 and "tanh" in result.stdout


def test_check_agrees(here, capsys):
    code, out, _ = run(capsys, "check", "add.hlo", "-t", "cpu")
    assert code == 0 and "yes" in out


def test_check_finds_a_difference(here, capsys):
    code, out, _ = run(capsys, "check", "add.hlo", "-t", "cpu", "--tolerance", "0", "-i", "random:3")
    assert code in (0, 1) and ("NO" in out) == (code == 1)


def test_check_with_a_file_of_results(here, capsys):
    run(capsys, "run", "add.hlo", "-t", "cpu", "-i", "random:3", "-o", "r.npz")
    code, out, _ = run(capsys, "check", "add.hlo", "-t", "cpu", "-i", "random:3", "--expected", "r.npz", "--fusion", "off",
                       "--layout", "column-major")
    assert code == 0 and "yes" in out
    code, out, _ = run(capsys, "check", "add.hlo", "-t", "cpu", "-i", "random:4", "--expected", "r.npz", "--json")
    (row,) = json.loads(out)
    assert code == 1 and not row["agrees"] and not row["unstable"] and row["causes"] == []


def test_check_names_the_cause_and_tests_stability_under_a_tolerance(here, capsys):
    Path("m.hlo").write_text("ENTRY e { x = f32[4] parameter(0)  h = f32[4] constant({0.25, 0.5, 0.25, 1})\n"
                             "  s = f32[4] multiply(x, h)  b = f32[] constant(1e37)  v = f32[4] broadcast(b), dimensions={}\n"
                             "  ROOT r = f32[4] multiply(s, v) }")
    np.save("small.npy", np.float32([1e-38, 2e-38, 3e-39, 1e-37]))
    code, out, _ = run(capsys, "check", "m.hlo", "-t", "cpu", "-i", "small.npy")
    assert code == 1 and "\n  flushed subnormal: cpu takes subnormal numbers for zero" in out
    code, out, _ = run(capsys, "check", "add.hlo", "-t", "cpu", "-i", "random:3", "--tolerance", "1e-12", "--json")
    (row,) = json.loads(out)
    assert code == 0 and (row["unstable"] or row["agrees"])


def test_check_on_several_devices(here, capsys):
    Path("sum.hlo").write_text("""HloModule sum, replica_count=2
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f32[3] parameter(0)
  t = f32[3] tanh(x)
  ROOT s = f32[3] all-reduce(t), replica_groups={}, to_apply=add
}""")
    for device in range(2):
        np.save(f"d.{device}.npy", np.float32([device, 1, 2]))
    code, out, _ = run(capsys, "check", "sum.hlo", "-t", "cpu", "-i", "d.{device}.npy", "--fusion", "off")
    assert code == 0 and "device 0: result.0" in out and "device 1: result.0" in out
    code, _, err = run(capsys, "check", "sum.hlo", "-t", "cpu", "--against", "xla")
    assert code == 2 and "compared with the reference evaluator only" in err


@pytest.mark.parametrize("arguments, code, words", [
    (["--expected", "nowhere.npz"], 6, "nowhere.npz"), (["--expected", "empty.npz"], 6, "empty.npz"),
    (["--expected", "x.npy", "--against", "xla"], 2, "cannot be combined"), (["--layout", "diagonal"], 2, "diagonal"),
    (["--expected", "two.npz"], 6, "gives 1 results, but 2 are expected"),
    (["--expected", "wide.npy"], 6, "result.0 is f32[2,3], but float64[2,3] is expected")])
def test_bad_calls_of_check(here, capsys, arguments, code, words):
    Path("empty.npz").write_bytes(b"")
    np.savez("two.npz", *[np.zeros((2, 3), np.float32)] * 2)
    np.save("wide.npy", np.zeros((2, 3)))
    got, out, err = run(capsys, "check", "add.hlo", "-t", "cpu", *arguments)
    assert got == code and words in err and out == "" and "Traceback" not in err


def test_layouts_that_have_a_meaning_stay(here, capsys):
    Path("b.hlo").write_text("ENTRY e { x = f32[2,3]{0,1} parameter(0)\n  ROOT b = f32[3,2]{1,0} bitcast(x) }")
    code, _, err = run(capsys, "check", "b.hlo", "-t", "cpu", "--layout", "row-major")
    assert code == 2 and "b.hlo:2:" in err and "depends on the layouts" in err


def test_doctor(capsys, monkeypatch):
    """One library of NVIDIA is there, another is not."""
    from hloc.errors import RunError
    from hloc.targets.cuda.libraries import cudnn, nccl

    def version(number):
        number._obj.value = 22809
    monkeypatch.setattr(nccl, "library", lambda: SimpleNamespace(ncclGetVersion=version))
    monkeypatch.setattr(cudnn, "library", Mock(side_effect=RunError("cuDNN is not installed", hint="pip install it")))
    code, out, _ = run(capsys, "doctor", "--json")
    rows = {row["what"]: row for row in json.loads(out)}
    assert code == 0 and "C compiler" in rows and rows["NCCL"]["found"] == "2.28.9"
    assert (rows["cuDNN"]["found"], rows["cuDNN"]["get_it"]) == ("", "pip install it")


def test_list_passes(capsys):
    code, out, _ = run(capsys, "opt", "--list-passes")
    assert code == 0 and "async_to_sync" in out and "Replaces asynchronous operations" in out


def test_no_passes_are_none(here, capsys):
    code, out, _ = run(capsys, "opt", "add.hlo", "--passes=")
    assert code == 0 and out.startswith("HloModule add\n") and "fusion" not in out


BAD_TEXT = {
    "not_hlo": ("hello, world\n", 3, ":1:"),
    "truncated": (ADD[:90], 3, ":6:"),
    "cut_in_a_name": (ADD[:ADD.index(" = f32[2,3] tanh")], 3, "the text ends early"),
    "opcode": (ADD.replace("tanh(s)", "tahn(s)"), 3, "tahn"),
    "shape": (ADD.replace("f32[2,3] add", "f32[2,4] add"), 3, "f32[2,4]"),
    "operand": (ADD.replace("add(x, y)", "add(x, z)"), 3, "z"),
    "too_large": (ADD.replace("[2,3]", "[1000000,1000000]"), 6, "GiB"),
}


@pytest.mark.parametrize("case", BAD_TEXT)
def test_bad_text(here, capsys, case):
    text, code, words = BAD_TEXT[case]
    Path("bad.hlo").write_text(text)
    got, out, err = run(capsys, "run", "bad.hlo", "-i", "zeros", "-t", "cpu")
    assert got == code and words in err and "Traceback" not in err and out == ""


def write_bad_inputs() -> None:
    np.save("double.npy", np.zeros((2, 3)))
    np.save("other.npy", np.zeros((3, 2), np.float32))
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    Path("junk.npy").write_bytes(b"not an array")
    Path("cut.npy").write_bytes(Path("x.npy").read_bytes()[:140])
    Path("half.npz").write_bytes(b"PK\3\4" + bytes(100))
    np.savez("other_order.npz", y=np.zeros((2, 3), np.float32), z=np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("inputs, code, words", [
    (["x.npy"], 6, "missing: y f32[2,3]"),
    (["x.npy", "x.npy", "x.npy"], 6, "2 inputs, but 3"),
    (["x.npy", "double.npy"], 6, "f64[2,3] was given"),
    (["x.npy", "other.npy"], 6, "f32[3,2] was given"),
    (["objects.npy"], 6, "pickled"),
    (["junk.npy"], 6, "not an .npy"),
    (["cut.npy"], 6, "cut.npy"),
    (["half.npz"], 6, "a damaged .npz file"),
    (["nowhere.npy"], 6, "no such file"),
    (["randm:3"], 6, "hint: generated inputs are"),
    (["x.npy", "x.npy", "x.npy"], 6, "x f32[2,3], y f32[2,3]"),
    (["x.npy", "double.npy"], 6, "hint: convert it: array.astype(numpy.float32)"),
    (["random:x"], 2, "whole number"),
    (["other_order.npz"], 6, "gives y to parameter x, though there is a parameter y\nhint: name all of its arrays"),
    (["x.npy", "other_order.npz"], 6, "2 inputs, but 3"),
])
def test_bad_inputs(here, capsys, inputs, code, words):
    write_bad_inputs()
    flags = [flag for name in inputs for flag in ("-i", name)]
    got, out, err = run(capsys, "run", "add.hlo", "-t", "cpu", *flags)
    assert got == code and words in err and "Traceback" not in err and out == ""


@pytest.mark.parametrize("arguments, code, words", [
    (["opt", "add.hlo", "--dump-after", "fusion", "--dump-dir", "add.hlo/x"], 6, "error: cannot make the folder add.hlo/x: Not a directory"),
    (["opt", "add.hlo", "--dump-dir", "add.hlo"], 6, "error: cannot make the folder add.hlo: File exists"),
    (["opt", "add.hlo", "--dump-after", "fusoin"], 2, "did you mean fusion?"),
    (["run", "add.hlo", "--target", "gpu"], 2, "did you mean cuda?"),
    (["run", "add.hlo", "--target", "tpu"], 2, "targets: auto, cpu, cuda"),
    (["run", "add.hlo#\u00b2"], 2, "holds no module \u00b2"),
    (["run", "add.hlo", "--recv", "\u00b2=x.npy"], 2, "write CHANNEL=FILE"),
    (["run", "page.hlo"], 3, "nothing here looks like HLO text"),
    (["run", "zeros.hlo"], 3, "byte 2 is zero\nhint: modules are HLO text"),
    (["run", "unbounded.hlo"], 4, "hint: give them a bound"),
    (["check", "native.so"], 2, "native.so is compiled code, not a module"),
    (["opt", "add.hlo", "--json"], 2, "hint: add --time-passes"),
    (["opt", "add.hlo", "--passes=nothing"], 2, "hint: hloc opt --list-passes"),
], ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_mistakes_have_their_own_words(here, capsys, arguments, code, words):
    Path("page.hlo").write_text("<html>\n<body>no</body>\n")
    Path("zeros.hlo").write_bytes(b"PK\0\0\0")
    Path("native.so").write_bytes(b"\x7fELF\2")
    Path("unbounded.hlo").write_text("ENTRY e {\n  a = f32[?] parameter(0)\n  ROOT b = f32[?] negate(a)\n}\n")
    got, out, err = run(capsys, *arguments)
    assert got == code and words in err and "Traceback" not in err and out == ""


def test_a_compiler_that_is_asked_for_is_not_replaced(here, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "/nowhere/gcc -O1")
    monkeypatch.setenv("HLOC_CACHE_DIR", str(tmp_path / "empty"))
    got, _, err = run(capsys, "run", "add.hlo", "-i", "zeros", "-t", "cpu")
    assert got == 5 and "$CC, '/nowhere/gcc -O1', is not a C compiler" in err and "hint: unset CC" in err


def test_several_inputs_after_one_option(here, capsys):
    code, out, _ = run(capsys, "run", "add.hlo", "-t", "reference", "--inputs", "x.npy", "x.npy")
    assert code == 0 and "result.0" in out


def test_module_too_large_for_memory_is_refused_with_its_place(here, capsys):
    Path("large.hlo").write_text("""HloModule m
ENTRY e {
  x = f32[] parameter(0)
  a = f32[1000000,1000000] broadcast(x), dimensions={}
  ROOT r = f32[1000000,1000000] add(a, a)
}""")
    code, out, err = run(capsys, "run", "large.hlo", "-t", "cpu", "-i", "zeros")
    assert (code, out) == (6, "") and "large.hlo:5:8: error: running this module needs 3725." in err


@pytest.mark.parametrize("arguments, code", [
    (["run", "nowhere.hlo"], 2), (["run", "add.hlo", "-t", "h1000"], 2), (["run", "nowhere.so"], 2),
    (["compile", "add.hlo", "-o", "m.xyz"], 2), (["compile", "add.hlo", "-o", "no/such/folder/m.so"], 6),
    (["opt", "add.hlo", "--passes=nothing"], 2), (["opt", "add.hlo", "--dump-after", "nothing"], 2),
    (["rnu"], 2), (["run", "add.hlo", "-o", "results.txt"], 2), (["run", "add.hlo", "--custom-call", "x"], 2),
])
def test_bad_calls(here, capsys, arguments, code):
    got, _, err = run(capsys, *arguments)
    assert got == code and err and "Traceback" not in err
    assert {p.name for p in here.iterdir()} == {"add.hlo", "x.npy"}


def test_unknown_custom_call_is_named(here, capsys):
    Path("call.hlo").write_text(ADD.replace("tanh(s)", 'custom-call(s), custom_call_target="mystery"'))
    code, _, err = run(capsys, "run", "call.hlo", "-i", "zeros", "-t", "cpu")
    assert code == 4 and "mystery" in err


CALLS = "import numpy as np\ndef double(s):\n    return s * 2\ndef wrong(s):\n    return s + np.ones(7)\n"


@pytest.mark.parametrize("module", ["calls", "./sub/calls.py"])
def test_custom_calls_are_found_in_the_working_directory_and_in_files(here, capsys, module, monkeypatch):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "calls", raising=False)
    Path("call.hlo").write_text(ADD.replace("tanh(s)", 'custom-call(s), custom_call_target="mystery"'))
    Path("sub").mkdir()
    (Path("sub") / "helper.py").write_text(CALLS)
    Path("calls.py").write_text(CALLS)
    Path("sub/calls.py").write_text("from helper import *\n")
    arguments = ["run", "call.hlo", "-i", "x.npy", "x.npy", "-t", "cpu", "--custom-call"]
    code, out, _ = run(capsys, *arguments, f"mystery={module}:double")
    assert code == 0 and "1, 1, 1, 1" in out


@pytest.mark.parametrize("place, expected, told", [
    ("calls:wrong", 6, "error: custom call 'mystery': ValueError: operands could not be broadcast together with shapes "
                       "(2,3) (7,)\n  File \"calls.py\", line 5, in wrong\n    return s + np.ones(7)\n"),
    ("./raises.py:f", 2, "ValueError: broken\n  File \"raises.py\", line 1, in <module>"),
    ("calls:np", 2, "calls.py has a module, not a function, 'np'"), ("calls:none", 2, "has no function 'none'"),
    ("none.py:f", 2, "cannot read none.py: No such file"), ("/dev/zero:f", 2, "it is a device, not a regular file"),
    ("..calls:f", 2, "..calls is not the name of a module"),
])
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_faults_of_custom_calls_are_their_authors(here, capsys, monkeypatch, place, expected, told, target):
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "calls", raising=False)
    Path("call.hlo").write_text(ADD.replace("tanh(s)", 'custom-call(s), custom_call_target="mystery"'))
    Path("calls.py").write_text(CALLS)
    Path("raises.py").write_text("raise ValueError('broken')\n")
    code, _, err = run(capsys, "run", "call.hlo", "-i", "zeros", "-t", target, "--custom-call", f"mystery={place}")
    assert code == expected and told in err and "Traceback" not in err


def test_elided_constants(here, capsys):
    """JAX's as_text() omits large constants: they can be generated, for all commands alike."""
    Path("elided.hlo").write_text("ENTRY e { x = f32[3] parameter(0)  c = f32[3] constant({...})\n"
                                  "  ROOT r = f32[3] add(x, c) }")
    code, _, error = run(capsys, "run", "elided.hlo", "--target", "cpu")
    assert code == 4 and "elided.hlo:1:" in error and "--elided sensible:0" in error
    for command in (["run"], ["check"], ["memory"], ["nans"], ["compile", "-o", "-", "--emit", "c"]):
        target = [] if command == ["nans"] else ["--target", "cpu"]
        code, _, error = run(capsys, *command, "elided.hlo", *target, "--elided", "sensible:7")
        assert code == 0 and "1 elided constant is generated (sensible:7)" in error, (command, error)
    code, _, error = run(capsys, "run", "elided.hlo", "--elided", "x.npy")
    assert code == 2 and "'x.npy' cannot fill elided constants" in error


def test_no_compiler_is_said(here, capsys, monkeypatch):
    monkeypatch.setattr("hloc.targets.cpu.building.toolchain.candidates", lambda: [])
    code, _, err = run(capsys, "run", "add.hlo", "-i", "zeros", "-t", "cpu")
    assert code == 5 and "no C compiler" in err and "ziglang" in err


def test_foreign_shared_object_is_refused(here, capsys):
    Path("junk.so").write_bytes(b"\x7fELF junk")
    code, _, err = run(capsys, "run", "junk.so")
    assert code == 6 and "hloc" in err


def test_memory(here, capsys):
    code, out, _ = run(capsys, "memory", "add.hlo", "--top", "2")
    assert code == 0
    assert "parameters" in out and "peak" in out and "... and 1 more" in out
    code, out, _ = run(capsys, "memory", "add.hlo", "--json")
    use = json.loads(out)
    assert code == 0 and (use["peak"], use["arena"], use["parameters"], use["results"]) == (72, 0, 48, 24)
    assert {b["region"] for b in use["buffers"]} == {"parameter", "result"}


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_has_examples_and_docs_name_every_option(name):
    command = cli.get_command(None, name)
    assert "Examples:" in command.epilog and f"hloc {name}" in command.epilog
    folder = Path(__file__).parent.parent / "docs" / "commands"
    page = folder / (f"{name}.md" if (folder / f"{name}.md").exists() else "setup.md")
    text = page.read_text(encoding="utf-8") + (folder / "options.md").read_text(encoding="utf-8")
    assert [o for p in command.params for o in p.opts if o.startswith("--") and o not in text] == []


@pytest.mark.parametrize("name, value, takes", [
    ("HLOC_THREADS", "all", "a whole number from 1 on"), ("HLOC_THREADS", "0", "a whole number from 1 on"),
    ("HLOC_THREADS", "²", "a whole number from 1 on"), ("HLOC_CACHE_BYTES", "2GiB", "a whole number from 0 on"),
    ("HLOC_AMX", "no", "'1' or '0'"),
])
def test_wrong_variables_of_the_environment_are_errors(here, capsys, monkeypatch, name, value, takes):
    """What HLOC_CACHE_BYTES says is read when something is put into the cache."""
    machine.has_amx.cache_clear()
    monkeypatch.setenv("HLOC_CACHE_DIR", str(here / "cache"))
    monkeypatch.setenv(name, value)
    code, _, err = run(capsys, "run", "add.hlo", "-i", "zeros", "-t", "cpu")
    assert code == 2 and f"error: {name} is {value!r}; it takes {takes}" in err
    monkeypatch.setenv(name, "")
    assert run(capsys, "run", "add.hlo", "-i", "zeros", "-t", "cpu")[0] == 0


def test_a_reader_that_goes_away_is_no_failed_comparison(here):
    """141, as of a command that SIGPIPE ends; 1 would say that results differ."""
    command = [sys.executable, "-m", "hloc", "check", "add.hlo", "-i", "zeros", "-t", "cpu", "--against", "reference"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.wait(60) == 141 and process.stderr.read() == b""


def test_no_number_is_in_no_range(here, capsys):
    code, _, err = run(capsys, "check", "add.hlo", "--tolerance", "nan")
    assert code == 2 and "nan is not in the range x>=0" in err


def test_a_byte_order_mark_is_no_text(here, capsys):
    """Editors of Windows write one."""
    Path("marked.hlo").write_bytes(b"\xef\xbb\xbf" + Path("add.hlo").read_bytes())
    code, out, err = run(capsys, "opt", "marked.hlo")
    assert (code, err) == (0, "") and out == run(capsys, "opt", "add.hlo")[1]


@pytest.mark.parametrize("command", [["extract", "--around", "s"], ["bundle"], ["reduce"]])
def test_outputs_that_are_not_printed_need_a_name(here, capsys, command):
    code, _, err = run(capsys, command[0], "add.hlo", *command[1:], "-o", "-")
    assert code == 6 and "cannot write -: this output is not printed: name a file" in err and not Path("-").exists()


def test_commands_about_kernels_say_that_the_evaluator_has_none(here, capsys):
    code, _, err = run(capsys, "memory", "add.hlo", "--target", "reference")
    assert code == 2 and "target reference evaluates HLO: it has no kernels" in err and "did you mean" not in err


def test_executables_are_keys(here):
    """Each is itself alone: a dictionary, or a cache of functions, may hold it."""
    first, second = (hloc.compile("add.hlo", target="reference") for _ in range(2))
    assert len({first, second, first}) == 2
