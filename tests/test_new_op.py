"""An elementwise op is added to a copy of hloc by one row, its C function and one example: everything knows it."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROW = """    _function("softsign", lambda x: x / (1 + np.abs(x)), "softsign", cost=11, gpu_cost=9, keeps_nans=True),
"""
FUNCTION = """HLOC_FN float hloc_softsign_f32(float x) { return x / (1.0f + HLOC_MATH_F32(fabs)(x)); }
#endif
"""
EXAMPLE = """// inputs:
//   f32[4] {0, 1, -3, nan}
// outputs:
//   f32[4] {0, 0.5, -0.75, nan}
HloModule softsign
ENTRY e {
  x = f32[4] parameter(0)
  ROOT r = f32[4] softsign(x)
}

// -----
// inputs:
//   bf16[2,3] {0, 1, -3, 7, -inf, 2}
// outputs:
//   bf16[2,3] {0, 0.5, -0.75, 0.875, nan, 0.66796875}
HloModule softsign_bf16
ENTRY e {
  x = bf16[2,3] parameter(0)
  ROOT r = bf16[2,3] softsign(x)
}
"""
# Run in the copy, where the tests' own harness finds the copied package.
CHECKS = '''
import sys
from pathlib import Path
import numpy as np
import pytest
from cuda_emulation.cases import run as run_on_gpu
from kernel_harness import MACHINE, build, collect, compare, run
from op_examples import difference, read_examples
import hloc
from hloc import api
from hloc.analysis.cost import operations
from hloc.errors import HlocError
from hloc.kernels.ir import Apply, Var
from hloc.kernels.operations import HEAVY
from hloc.kernels.schedule.row_tables import COSTLY
from hloc.kernels.text.interpreter import meaning
from hloc.targets import find
from hloc.targets.cpu.vector_loops.nan_check_elimination import KEEPS_NANS
from hloc.targets.cuda.costs.loop_work import instructions
from hloc.targets.cuda.gpus import GPUS
from hloc.ir.printer import print_module
from hloc.text import parse_module
from hloc.tools.stability import EXACT

root = Path.cwd()
assert Path(hloc.__file__).is_relative_to(root)
examples = read_examples(root / "testdata/ops/softsign.hlo")
assert len(examples) == 2
on_cpu, on_gpu = [], []
for example in examples:
    text = print_module(parse_module(example.text, "softsign"))
    assert "softsign(" in text and print_module(parse_module(text)) == text             # parser, printer
    module = api.load(example.text + "\\n")                                             # verifier
    instruction = module.entry.root
    assert operations(instruction) == 11                                               # fusion's cost
    (case,) = example.cases
    (got,) = hloc.compile(example.text + "\\n", "reference")(*case.inputs[0])           # evaluator
    assert not difference(got, case.outputs[0][0], 0)
    on_cpu += collect(example.text, "softsign", case.inputs[0])
    on_gpu += collect(example.text, "softsign", case.inputs[0], machine=GPUS["h100"])
library = build(on_cpu, root)
with pytest.MonkeyPatch.context() as patch:
    emulated = run_on_gpu(on_gpu, GPUS["h100"], patch)
for each, results in zip(on_cpu, emulated):
    for what, found in (("C", run(each, library, False)), ("CUDA C", results)):
        for actual, expected in zip(found, each.expected):
            compare(what, actual, expected)
for operand, result in (("s32[4]", "s32[4]"), ("f32[4]", "f32[5]")):
    with pytest.raises(HlocError, match="softsign"):                                     # verifier: type, shape
        api.load(f"ENTRY e {{\\n x = {operand} parameter(0)\\n ROOT r = {result} softsign(x)\\n}}\\n")
assert "softsign" in HEAVY and "softsign" in COSTLY and "softsign" in KEEPS_NANS and "softsign" not in EXACT
assert instructions(Apply("softsign", (Var("x", "f32"),), "f32")) == 9
assert meaning("softsign", ("f32",), "f32")(np.float32(1)) == 0.5
'''


def patch(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), encoding="utf-8")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
def test_a_row_a_function_and_an_example_are_an_op(tmp_path):
    skipped = shutil.ignore_patterns("__pycache__", "prebuilt")
    for folder in ("hloc", "grammar", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=skipped)
    for folder in ("testdata/ops", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "docs/support.md", tmp_path / "docs")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    patch(tmp_path / "hloc/ops/elementwise.py", "FUNCTIONS = (\n", "FUNCTIONS = (\n" + ROW)
    header = tmp_path / "hloc/targets/c/float32.h"
    header.write_text(header.read_text(encoding="utf-8").rstrip().removesuffix("#endif") + FUNCTION, encoding="utf-8")
    (tmp_path / "testdata/ops/softsign.hlo").write_text(EXAMPLE, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'tests'}",
                   "HLOC_CACHE_DIR": str(tmp_path / "cache")}

    def python(*arguments: str, **more: str) -> str:
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=environment | more, text=True,
                              capture_output=True, timeout=300)
        return done.stdout + done.stderr if done.returncode else ""
    assert python("-c", CHECKS) == ""
    page = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_support.py", "-k", "first_row")
    assert "softsign" in python(*page)                              # the table of the documentation misses it
    python(*page, HLOC_GOLDEN="1")
    assert python(*page) == "" and "`softsign`" in (tmp_path / "docs/support.md").read_text(encoding="utf-8")
