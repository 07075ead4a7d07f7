"""An element type is a row, its C format and the numbers of other formats: without these lines a copy of hloc does not
know it, with them everything does."""
from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# All that names the type, by file.
LINES = {
    "hloc/ir/types.py": ['    _row("f8e3m4", 8, "float", _small("float8_e3m4")),\n'],
    "hloc/targets/c/base.h": ["typedef unsigned char hloc_f8e3m4;\n"],
    "hloc/targets/c/narrow.h": ["HLOC_NARROW_SIGNED(f8e3m4, 3, 4, 3, 0x6fu, 0x70u, 0x78u, 0x70u)\n"
                                "HLOC_NARROW_ROUNDED(f8e3m4)\n", " f8e3m4"],
    "hloc/inputs/dlpack.py": [' (7, 8): "f8e3m4",'],
    "hloc/proto/schema.py": [" 29 f8e3m4s bytes;", " 29 F8E3M4;"],
}
NAME = "e3m4"
MODULE = """HloModule narrow
total { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e {
  x = f8e3m4[4,32] parameter(0)
  w = f8e3m4[32,4] parameter(1)
  y = f8e3m4[4,32] tanh(x)
  s = f8e3m4[4,32] add(y, x)
  d = f32[4,4] dot(s, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[] constant(0)
  f = f32[4,32] convert(s)
  t = f32[4] reduce(f, z), dimensions={1}, to_apply=total
  q = f8e3m4[4,4] convert(d)
  p = f8e3m4[] constant(-nan(0x3))
  v = f8e3m4[4,4] broadcast(p), dimensions={}
  ROOT r = (f8e3m4[4,32], f32[4], f8e3m4[4,4], f8e3m4[4,4]) tuple(s, t, q, v)
}
"""
# Run in the copy, where the tests' own harness finds the copied package.
CHECKS = '''
import sys
from pathlib import Path
import ml_dtypes
import numpy as np
import pytest
from cuda_emulation.cases import run as run_on_gpu
from kernel_harness import build, collect, compare, run
from product_types import numbers
import hloc
from hloc.inputs.dlpack import TYPES
from hloc.ir.printer import print_module
from hloc.proto import read_proto, write_proto
from hloc.text import parse_module
from hloc.targets.cuda.gpus import GPUS

root = Path.cwd()
assert Path(hloc.__file__).is_relative_to(root)
text = Path("module.hlo").read_text()
printed = print_module(parse_module(text))
assert print_module(parse_module(printed)) == printed and "-nan(0x3)" in printed             # parser, printer
assert "f8e3m4[] constant(-nan(0x3))" in print_module(read_proto(write_proto(parse_module(text)), "narrow"))  # binary
assert TYPES[7, 8] == "f8e3m4"                                                                # other libraries' arrays
inputs = [numbers("f8e3m4", n).reshape(s) for n, s in ((128, (4, 32)), (128, (32, 4)))]
expected = hloc.compile(text, "reference")(*inputs)                                           # evaluator
assert [r.dtype for r in expected] == [ml_dtypes.float8_e3m4, np.float32] + [ml_dtypes.float8_e3m4] * 2
for actual, right in zip(hloc.compile(text, "cpu")(*inputs), expected):                       # the passes, C
    compare("C", actual, right)
kernels = collect(text, "narrow", inputs, machine=GPUS["h100"])
with pytest.MonkeyPatch.context() as patch:
    for each, results in zip(kernels, run_on_gpu(kernels, GPUS["h100"], patch)):
        for actual, right in zip(results, each.expected):
            compare("CUDA C", actual, right)
'''


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++, which compiles the emulation, is not installed")
def test_a_type_is_its_lines(tmp_path):
    skipped = shutil.ignore_patterns("__pycache__", "prebuilt")
    for folder in ("hloc", "grammar", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=skipped)
    (tmp_path / "module.hlo").write_text(MODULE, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'tests'}",
                   "HLOC_CACHE_DIR": str(tmp_path / "cache")}

    def python(*arguments: str) -> str:
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, env=environment, text=True,
                              capture_output=True, timeout=300)
        return done.stdout + done.stderr if done.returncode else ""
    for name, lines in LINES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        for line in lines:
            assert text.count(line) == 1, (name, line)
            text = text.replace(line, "")
        (tmp_path / name).write_text(text, encoding="utf-8")
    left = [path for folder in ("hloc", "grammar") for path in (tmp_path / folder).rglob("*")
            if path.is_file() and NAME in path.read_text(encoding="utf-8", errors="replace").lower()]
    assert left == []
    assert "f8e3m4" in python("-m", "hloc", "opt", "module.hlo").lower()                  # no type that it knows
    for name in LINES:
        shutil.copy(ROOT / name, tmp_path / name)
    assert python("-m", "hloc", "opt", "module.hlo") == ""
    assert python("-c", CHECKS) == ""
