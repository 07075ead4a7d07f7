"""$HLOC_SANITIZE: one error where its library is missing, and gaps that nothing may touch (sanitized.py runs the rest)."""
from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sanitized import environment, library

SUMS = """HloModule sums
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT r = f32[] add(a, b) }
ENTRY e { x = f32[7,5] parameter(0)  z = f32[] constant(0)  s = f32[7] reduce(x, z), dimensions={1}, to_apply=add
  b = f32[7,5] broadcast(s), dimensions={0}  d = f32[7,5] divide(x, b)  t = f32[5,7] transpose(d), dimensions={1,0}
  ROOT p = f32[5,5] dot(t, d), lhs_contracting_dims={1}, rhs_contracting_dims={0} }
"""
RUN = f"import numpy as np, ctypes, hloc; exe = hloc.compile({SUMS!r}, 'cpu'); exe(np.ones((7, 5), np.float32)); "


def run(code: str, changed: dict[str, str]) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], env={**os.environ, **changed}, capture_output=True, text=True,
                          errors="replace", timeout=300)


def test_what_is_missing_is_said(tmp_path) -> None:
    cache = {"HLOC_CACHE_DIR": str(tmp_path / "cache")}
    for named, said in (("address", "LD_PRELOAD="), ("memory", "HLOC_SANITIZE names 'memory'")):
        done = run(f"import hloc\ntry: hloc.compile({SUMS!r}, 'cpu')\nexcept hloc.HlocError as e: print(e)",
                   {**cache, "HLOC_SANITIZE": named})
        assert done.returncode == 0 and said in done.stdout, done.stderr


@pytest.mark.skipif(library() is None, reason="the C compiler has no libasan")
def test_gaps_are_watched(tmp_path) -> None:
    watched = environment(str(tmp_path / "cache"))
    assert run(RUN + "print('done')", watched).stdout == "done\n"
    done = run(RUN + "ctypes.memset(exe.backend._arena.ctypes.data, 1, 8); print('done')", watched)
    assert done.returncode and "use-after-poison" in done.stderr and not done.stdout
