"""What a program allocates, counted by functions that stand before malloc and mmap: what `hloc memory` said before."""
from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from hloc.targets.cpu.building import toolchain

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc, whose malloc they are counted before")

COUNTER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t), __libc_free(void *);
enum { LEAST = 2048 };                                    /* Python's own objects are smaller */
static _Atomic long live, peak;
static _Atomic int counts;

static void add(long bytes) {
  long now = atomic_fetch_add(&live, bytes) + bytes, most = peak;
  while (now > most && !atomic_compare_exchange_weak(&peak, &most, now)) {}
}
static void *taken(void *p) {
  if (counts && p && malloc_usable_size(p) >= LEAST) add((long)malloc_usable_size(p));
  return p;
}
static void given(void *p) {
  if (counts && p && malloc_usable_size(p) >= LEAST) add(-(long)malloc_usable_size(p));
}
void count_start(void) { live = peak = 0, counts = 1; }
long count_stop(void) { counts = 0; return peak; }
void *malloc(size_t n) { return taken(__libc_malloc(n)); }
void *calloc(size_t n, size_t m) { return taken(__libc_calloc(n, m)); }
void *realloc(void *p, size_t n) { given(p); return taken(__libc_realloc(p, n)); }
void free(void *p) { given(p); __libc_free(p); }
void *aligned_alloc(size_t a, size_t n) { return taken(__libc_memalign(a, n)); }
int posix_memalign(void **p, size_t a, size_t n) { return (*p = taken(__libc_memalign(a, n))) ? 0 : 12; }
void *mmap(void *at, size_t n, int protection, int flags, int file, off_t offset) {
  static void *(*next)(void *, size_t, int, int, int, off_t);
  if (!next) next = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
  void *p = next(at, n, protection, flags, file, offset);
  if (counts && p != MAP_FAILED && (flags & MAP_ANONYMOUS)) add((long)n);
  return p;
}
"""
PROGRAM = """
import ctypes, gc, json, sys
import hloc
from hloc.api import optimized_plan
from hloc.inputs.sensible import sensible_arrays
from hloc.kernels.memory import memory_use
from hloc.targets import find

count = ctypes.CDLL(sys.argv[1])
count.count_stop.restype = ctypes.c_long
path = sys.argv[2]
target, module = find("cpu"), hloc.load(path)
use = memory_use(optimized_plan(hloc.load(path), target)[0], target.machine, target.workspace)
arrays = sensible_arrays(module)
hloc.compile(module, target="cpu")(*arrays)           # compiled, threads started, roots of unity made
hloc.compile(SMALL, target="cpu")
gc.collect()

def counted(function):
    count.count_start()
    result = function()
    return count.count_stop(), result

loads = []
for _ in range(3):                   # the least: other threads of Python may allocate at the same time
    exe = None
    load, exe = counted(lambda: hloc.compile(module, target="cpu"))
    start, _ = counted(lambda: exe.backend)
    loads.append(load + start)
first, results = counted(lambda: exe(*arrays))
del results
second, _ = counted(lambda: exe(*arrays))
print(json.dumps({"arena": use.arena, "results": use.results, "scratch": use.scratch, "load": min(loads),
                  "first": first, "second": second}))
"""
SMALL = "HloModule s\\nENTRY e { x = f32[8] parameter(0)\\n ROOT r = f32[8] add(x, x) }"
MODULE = """HloModule m
less { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT r = pred[] compare(a, b), direction=LT }
ENTRY e {
  x = f32[1,56,56,64] parameter(0)
  w = f32[3,3,64,64] parameter(1)
  y = f32[64,2000] parameter(2)
  c = f32[1,56,56,64] convolution(x, w), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  p = f32[3136,64] reshape(c)
  d = f32[3136,2000] dot(p, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  s = f32[3136,2000] sort(d), dimensions={1}, to_apply=less
  f = c64[3136,1001] fft(s), fft_type=RFFT, fft_length={2000}
  i = f32[3136,1001] imag(f)
  ROOT r = f32[3136,100] slice(i), slice={[0:3136], [1:101]}
}"""
SLACK = 1 << 16                      # of Python's own: tables of the program's facts, file names


def test_a_run_takes_what_was_said(tmp_path):
    source, counter, module = tmp_path / "counter.c", tmp_path / "counter.so", tmp_path / "module.hlo"
    source.write_text(COUNTER)
    module.write_text(MODULE)
    command = toolchain.find().command
    built = subprocess.run([*command, "-O1", "-shared", "-fPIC", str(source), "-o", str(counter), "-ldl"],
                           capture_output=True, text=True, timeout=100)
    assert built.returncode == 0, built.stderr
    environment = dict(os.environ, LD_PRELOAD=str(counter), PYTHONPATH=os.pathsep.join(sys.path))
    program = PROGRAM.replace("SMALL", f'"{SMALL}"')
    ran = subprocess.run([sys.executable, "-c", program, str(counter), str(module)], capture_output=True, text=True,
                         env=environment, timeout=300)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["scratch"] > SLACK and told["arena"] > 3136 * 2000 * 4
    assert told["first"] >= told["results"]
    assert abs(told["load"] - told["arena"]) < SLACK
    assert told["first"] - told["results"] < SLACK and told["second"] < SLACK, told
