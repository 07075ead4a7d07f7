"""Programs that `hloc compile` writes for C: symbols, several in one program, CPUs that they are made for, the example."""
from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hloc
from hloc.api import load_compiled
from hloc.cli.main import main
from hloc.errors import RunError, UnsupportedError, UsageError
from hloc.executable import name_from
from hloc.targets.cpu.building import toolchain

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="C programs of these tests are compiled by gcc")
ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "ahead"
PROGRAMS = ROOT / "testdata" / "programs"
OUTPUT = " 0.92423  0.48984  0.46212  0.24492\n-0.76159  0.76159 -1.52319 -0.76159\n"
# Of AMD from 2012 to 2017: no CPU of today has FMA4, XOP and TBM.
LOST_CPU = "bdver4"
WARNINGS = ("-Wall", "-Werror")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The example's models, each as .so and as .c."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("encoder", "decoder"):
        exe = hloc.compile(EXAMPLE / f"{name}.hlo", "cpu", run=False)
        exe.save(folder / f"{name}.so")
        exe.save(folder / f"{name}.c")
    return folder


def cc(*arguments, cwd=None, command="gcc") -> None:
    done = subprocess.run([command, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, timeout=300)
    assert done.returncode == 0, done.stderr[:4000]


def run(capsys, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of `hloc ARGUMENTS`."""
    sys.argv = ["hloc", *map(str, arguments)]
    try:
        main()
    except SystemExit as end:
        return end.code or 0, capsys.readouterr().err
    return 0, capsys.readouterr().err


def symbols(path: Path) -> set[str]:
    """What a linker sees in a shared object."""
    done = subprocess.run(["nm", "-D", "--defined-only", str(path)], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in done.stdout.splitlines()}


# -- the example -------------------------------------------------------------------------------------------------------

@pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed; the next test compiles it by gcc")
def test_the_example_by_cmake(tmp_path):
    command = tmp_path / "hloc"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hloc.cli.main "$@"\n')
    command.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for step in (["-S", EXAMPLE, "-B", "build", f"-DHLOC={command}", "-DMARCH=x86-64-v2"], ["--build", "build"]):
        done = subprocess.run(["cmake", *map(str, step)], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    for program in ("main_c", "main_cpp"):
        assert subprocess.run([f"build/{program}"], cwd=tmp_path, capture_output=True, text=True).stdout == OUTPUT


@pytest.mark.parametrize("forms", [("so", "so"), ("c", "c"), ("so", "c")])
@pytest.mark.parametrize("language", ["c", "cpp"])
def test_two_models_in_one_program(models, tmp_path, forms, language):
    if language == "cpp" and shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    parts = []
    for name, form in zip(("encoder", "decoder"), forms):
        parts.append(models / f"{name}.{form}")
        if form == "c":
            parts[-1] = tmp_path / f"{name}.o"
            cc("-O1", *WARNINGS, "-c", models / f"{name}.c", "-o", parts[-1])
    compiler = "gcc" if language == "c" else "g++"
    cc(*WARNINGS, f"-I{models}", EXAMPLE / f"main.{language}", *parts, "-lm", "-lpthread", "-o", tmp_path / "main",
       command=compiler)
    assert subprocess.run([tmp_path / "main"], capture_output=True, text=True).stdout == OUTPUT


# -- symbols -----------------------------------------------------------------------------------------------------------

def test_a_shared_object_shows_its_own_symbols_only(models, tmp_path):
    functions = {"encoder_run", "encoder_start", "encoder_stop", "encoder_error"}
    assert symbols(models / "encoder.so") == functions | {"encoder_program"}
    cc("-fvisibility=hidden", "-shared", "-fPIC", models / "encoder.c", "-lm", "-o", tmp_path / "x.so")
    assert symbols(tmp_path / "x.so") == functions


def test_both_run_in_this_process(models):
    x = np.float32([[1, 0, -1, 0.5], [0, 2, 0, -2]])
    encoder, decoder = load_compiled(models / "encoder.so"), load_compiled(models / "decoder.so")
    y = decoder(encoder(x)[0], np.float32(2))[0]
    assert "\n".join(" ".join(f"{v:8.5f}" for v in row) for row in y) + "\n" == OUTPUT


@pytest.mark.parametrize("name, right", [("encoder", "encoder"), ("my-model.v2", "my_model_v2"), ("2nd", "m_2nd"),
                                         ("_", "m"), ("größe", "gr__e"), ("", "m"), ("x" * 200, "x" * 60)])
def test_names_of_files_become_names_of_functions(name, right):
    assert name_from(name) == right


@pytest.mark.parametrize("name", ["2nd", "a-b", "a b", "größe", "_hidden", "a" * 65, "a;b", "a\n", "*/"])
@pytest.mark.parametrize("ending", ["so", "c"])
def test_odd_names(capsys, tmp_path, name, ending):
    file = tmp_path / f"m.{ending}"
    code, said = run(capsys, "compile", EXAMPLE / "encoder.hlo", "-o", file, "--name", name)
    assert code == 2 and "is not a valid prefix for C functions" in said and said.count("error") == 1 and not file.exists()


def test_names_go_with_functions(capsys, tmp_path):
    code, said = run(capsys, "compile", EXAMPLE / "encoder.hlo", "-o", tmp_path / "m.hlo", "--name", "a")
    assert code == 2 and "m.hlo has no C functions: --name a has no effect" in said
    code, said = run(capsys, "compile", EXAMPLE / "encoder.hlo", "-o", "-", "--name", "a")
    assert code == 2 and "--name needs a file" in said


# -- the C file --------------------------------------------------------------------------------------------------------

def test_the_c_file_begins_with_the_model(models):
    text = (models / "encoder.c").read_text()
    places = [text.index(part) for part in ("int encoder_run(", "/* -- the model -- */", "void encoder_k0_",
                                            "int encoder_execute(void *const *bases, encoder_", "/* -- the library -- */", "pool.c: ", "encoder_constants[")]
    assert places == sorted(places)
    assert (models / "encoder.h").read_text().partition("\n")[2].strip() in text


@pytest.mark.parametrize("program", ["complex_products", "hostile_names", "short_rows_turned", "sorts_with_values"])
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_c_files_without_warnings(tmp_path, program, compiler):
    """Renamed and with the flags of other CPUs, too."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    hloc.compile(PROGRAMS / f"{program}.hlo", "cpu", run=False).save(tmp_path / "m.c", name="x")
    (tmp_path / "m.c").rename(tmp_path / "other.c")
    for flags in ([], ["-march=x86-64-v3", "-fopenmp-simd"]):
        cc("-O1", *WARNINGS, *flags, "-c", tmp_path / "other.c", "-o", tmp_path / "m.o", command=compiler)


def test_constants_of_a_c_file(tmp_path):
    """Bytes that C reads as something else: quotes, trigraphs, names of hloc's own, digits behind an escape."""
    data = np.frombuffer(bytes(range(256)) + b'hloc_run k0_x "??/\n\\0 \x007 */ //', np.uint8)
    shape, numbers = f"u8[{len(data)}]", ", ".join(map(str, data))
    text = f"ENTRY e {{\n c = {shape} constant({{{numbers}}}) x = {shape} parameter(0) ROOT r = {shape} add(c, x) }}"
    hloc.compile(text, "cpu", run=False).save(tmp_path / "m.c")
    cc("-shared", "-fPIC", *WARNINGS, tmp_path / "m.c", "-lm", "-o", tmp_path / "m.so")
    assert (call(tmp_path / "m.so", "m", [np.zeros(len(data), np.uint8)], np.empty_like(data)) == data).all()


def test_fast_math_is_refused(models, tmp_path):
    done = subprocess.run(["gcc", "-ffast-math", "-fsyntax-only", models / "encoder.c"], capture_output=True, text=True)
    assert done.returncode and "encoder: compile without -ffast-math" in done.stderr


def test_what_only_python_has(tmp_path):
    text = "ENTRY e {\n x = f32[2] parameter(0) ROOT c = f32[2] custom-call(x), custom_call_target=\"mine\" }"
    exe = hloc.compile(text, "cpu", run=False, options=hloc.Options(custom_calls={"mine": lambda x: x}))
    for ending in ("c", "so"):
        with pytest.raises(UnsupportedError, match=f"a .{ending} cannot hold the Python function of host call 'mine'"):
            exe.save(tmp_path / f"m.{ending}")
        assert list(tmp_path.iterdir()) == []


# -- life of a program -------------------------------------------------------------------------------------------------

def call(library: Path, name: str, inputs: list[np.ndarray], result: np.ndarray) -> np.ndarray:
    """One run, as C does it."""
    function = getattr(ctypes.CDLL(str(library)), f"{name}_run")
    pointers = [(ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays)) for arrays in (inputs, [result])]
    assert function(*pointers) == 0
    return result


LIFE = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static int (*model_run)(const void *const *, void *const *);
enum { N = 1 << 18 };
static void *runs(void *first) {
  float *x = malloc(4 * N), *y = malloc(4 * N);
  for (int i = 0; i < N; i++) x[i] = *(int *)first + i % 5;
  for (int turn = 0; turn < 5; turn++) {
    if (model_run((const void *const[]){x}, (void *const[]){y})) exit(2);
    for (int i = 0; i < N; i++) if (y[i] != 2 * x[i] + 1) exit(3);
  }
  return free(x), free(y), NULL;
}
int main(void) {
  int first[4] = {1, 20, 300, 4000}, status;
  for (int turn = 0; turn < 20; turn++) {
    void *library = dlopen("./model.so", RTLD_NOW);
    if (!library) return puts(dlerror()), 1;
    model_run = (int (*)(const void *const *, void *const *))dlsym(library, "model_run");
    void (*model_stop)(void) = (void (*)(void))dlsym(library, "model_stop");
    ((int (*)(int))dlsym(library, "model_start"))(3);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(threads + i, NULL, runs, first + i);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    if (turn % 2) model_stop();
    if (turn % 4 == 1) runs(first);
    if (turn < 4) {
      if (!fork()) { if (turn % 2) model_stop(); runs(first + 1); return 0; }
      if (wait(&status) < 0 || status) return 4;
    }
    dlclose(library);
  }
  return puts("whole"), 0;
}
"""


def test_threads_unloading_and_children(tmp_path):
    text = ("ENTRY e { x = f32[262144] parameter(0) a = f32[] constant(2) b = f32[] constant(1)\n"
            "aa = f32[262144] broadcast(a), dimensions={} bb = f32[262144] broadcast(b), dimensions={}\n"
            "m = f32[262144] multiply(x, aa) ROOT r = f32[262144] add(m, bb) }")
    hloc.compile(text, "cpu", run=False).save(tmp_path / "model.so")
    (tmp_path / "main.c").write_text(LIFE)
    cc("-O1", "main.c", "-lpthread", "-ldl", "-o", "main", cwd=tmp_path)
    done = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "whole\n")


# -- the CPU -----------------------------------------------------------------------------------------------------------

x86 = pytest.mark.skipif(os.uname().machine not in toolchain.X86, reason="this CPU is not an x86-64")


@x86
def test_the_machine_follows_march():
    assert [toolchain.machine_of(f"x86-64{v}").vector_bytes for v in ("", "-v2", "-v3", "-v4")] == [16, 16, 32, 64]
    assert toolchain.machine_of("cascadelake").dots == ("s8", "s16")
    assert toolchain.machine_of("cooperlake").slow_pairs and not toolchain.machine_of("x86-64-v3").amx
    server = toolchain.machine_of("sapphirerapids")
    assert server.amx and server.dots == ("bf16", "s8", "s16")


@x86
@pytest.mark.parametrize("march, widest", [("x86-64-v2", "xmm"), ("x86-64-v3", "ymm"), ("x86-64-v4", "zmm")])
def test_code_for_other_cpus(tmp_path, march, widest):
    """A product, by a library kernel, and an exponential: no wider registers than the CPU has, and right where it runs."""
    text = ("ENTRY e { x = f32[40,64] parameter(0) y = f32[64,48] parameter(1)\n"
            "d = f32[40,48] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
            "ROOT r = f32[40,48] exponential(d) }")
    hloc.compile(text, "cpu", run=False, options=hloc.Options(march=march)).save(tmp_path / "m.so")
    code = subprocess.run(["objdump", "-d", tmp_path / "m.so"], capture_output=True, text=True, check=True).stdout
    assert [w for w in ("xmm", "ymm", "zmm") if w in code][-1] == widest
    if toolchain.predefined(march) <= toolchain.predefined("native"):
        x, y = np.random.default_rng(0).standard_normal((2, 40, 64), np.float32)
        y = np.resize(y, (64, 48)) * np.float32(0.1)
        np.testing.assert_allclose(load_compiled(tmp_path / "m.so")(x, y)[0], np.exp(x @ y), rtol=1e-4)
        assert "wrong" not in hloc.compile(text, "cpu", options=hloc.Options(march=march)).name


@x86
@pytest.mark.parametrize("form", ["so", "c"])
def test_a_program_for_a_cpu_that_is_not_here(tmp_path, form):
    """It is refused before an instruction is run that the CPU lacks."""
    exe = hloc.compile(EXAMPLE / "encoder.hlo", "cpu", run=False, options=hloc.Options(march=LOST_CPU))
    exe.save(tmp_path / f"encoder.{form}")
    library = tmp_path / "encoder.so"
    if form == "c":
        cc("-O2", f"-march={LOST_CPU}", "-shared", "-fPIC", tmp_path / "encoder.c", "-lm", "-o", library)
    else:
        with pytest.raises(RunError, match="was compiled for bdver4: this CPU, or its system, has no "):
            load_compiled(library)
    loaded = ctypes.CDLL(str(library))
    loaded.encoder_error.restype = ctypes.c_char_p
    assert loaded.encoder_run(None, None) == loaded.encoder_start(0) == 2
    assert b"has no tbm, which encoder was compiled for" in loaded.encoder_error(2)
    loaded.encoder_stop()
    with pytest.raises(RunError, match="this CPU has no fma4, tbm, xop, which code for bdver4 may use"):
        assert exe.backend


@pytest.mark.parametrize("march", ["i-am-no-cpu", "a b", "", "-O3", "native;", "x" * 100, "x86-64-v3\n"])
def test_unknown_cpus(capsys, tmp_path, march):
    code, said = run(capsys, "compile", EXAMPLE / "encoder.hlo", "-o", tmp_path / "m.so", "--march", march)
    assert code == 2 and said.startswith("error: ") and "hint: native, x86-64-v2" in said
    assert list(tmp_path.iterdir()) == []


def test_march_is_of_the_cpu(capsys, tmp_path):
    code, said = run(capsys, "compile", EXAMPLE / "encoder.hlo", "-o", tmp_path / "m.cubin", "--march", "x86-64-v3")
    assert code == 2 and "--march is for the target cpu, not for cuda" in said
    with pytest.raises(UsageError, match="not for reference"):
        hloc.compile(EXAMPLE / "encoder.hlo", "reference", options=hloc.Options(march="x86-64-v3"))
