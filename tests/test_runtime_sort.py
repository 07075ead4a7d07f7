"""The sorts of the CPU runtime (hloc/targets/cpu/runtime/sort.h, sort_network.h) against NumPy."""
import ctypes

import numpy as np
import pytest
from native import build, pointer

LONG = ctypes.c_long
ROWS_OF_NETWORKS = (2, 3, 5, 16, 37, 64, 129, 300, 512)
NETWORK = """
#define HLOC_SORT network{n}
#define HLOC_SORT_LENGTH {n}
#define HLOC_SORT_KEY_BITS 32
#define network{n}_element argsort_element
#define network{n}_key keysort_key
#define network{n}_get argsort_get
#define network{n}_put argsort_put
#include "sort_network.h"
int sort_rows_of_{n}(const float* x, float* values, int* places, long rows) {{
  void* args[] = {{(void*)x, values, places, (void*){n}}};
  return network{n}(args, rows, {n});
}}"""
SORTS = r"""
#include "pool.c"
#include "scalar.h"
#define HLOC_SORT argsort
typedef struct { float v0; int v1; } argsort_element;
static inline int argsort_less(const argsort_element* a, const argsort_element* b) {
  return hloc_compare_lt_total_f32(a->v0, b->v0);
}
static inline void argsort_get(void* const* args, long row, long i, argsort_element* e) {
  e->v0 = ((const float*)args[0])[row * (long)args[3] + i];
  e->v1 = (int)i;
}
static inline void argsort_put(void* const* args, long row, long i, const argsort_element* e) {
  ((float*)args[1])[row * (long)args[3] + i] = e->v0;
  ((int*)args[2])[row * (long)args[3] + i] = e->v1;
}
#include "sort.h"
#define HLOC_SORT keysort
#define HLOC_SORT_KEY_BITS 32
#define keysort_element argsort_element
#define keysort_less argsort_less
#define keysort_get argsort_get
#define keysort_put argsort_put
static inline hloc_u64 keysort_key(const argsort_element* e);
#include "sort.h"
static inline hloc_u64 keysort_key(const argsort_element* e) { return hloc_sort_key_f32(e->v0); }
#define HLOC_SORT piecesort
#define HLOC_SORT_BY_PIECES 1
#define piecesort_element argsort_element
#define piecesort_less argsort_less
#define piecesort_get argsort_get
#define piecesort_put argsort_put
#include "sort.h"
#define HLOC_SORT keypiecesort
#define HLOC_SORT_BY_PIECES 1
#define HLOC_SORT_KEY_BITS 32
#define keypiecesort_element argsort_element
#define keypiecesort_less argsort_less
#define keypiecesort_get argsort_get
#define keypiecesort_put argsort_put
#define keypiecesort_key keysort_key
#include "sort.h"
int sort_rows(int by_key, int by_pieces, const float* x, float* values, int* places, long rows, long n) {
  void* args[] = {(void*)x, values, places, (void*)n};
  if (by_pieces) return by_key ? keypiecesort(args, rows, n) : piecesort(args, rows, n);
  return by_key ? keysort(args, rows, n) : argsort(args, rows, n);
}

NETWORKS
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    networks = "\n".join(NETWORK.format(n=n) for n in ROWS_OF_NETWORKS)
    library = build(SORTS.replace("NETWORKS", networks), tmp_path_factory.mktemp("sorts"))
    library.hloc_pool_start(3, 200)
    yield library
    library.hloc_pool_stop()


@pytest.mark.parametrize("by_key", [0, 1])
@pytest.mark.parametrize("by_pieces", [0, 1])
@pytest.mark.parametrize("rows,n", [(3, 1), (40, 37), (5, 5000), (1, 300000), (2, 70000)])
def test_sort(runtime, by_key, by_pieces, rows, n):
    rng = np.random.default_rng(8)
    x = rng.integers(-50, 50, (rows, n)).astype(np.float32)
    x[:, : n // 9] = rng.normal(size=(rows, n // 9))
    values, places = np.empty_like(x), np.empty((rows, n), np.int32)
    assert runtime.sort_rows(by_key, by_pieces, pointer(x), pointer(values), pointer(places), LONG(rows), LONG(n)) == 0
    want = np.argsort(x + np.float32(0), axis=1, kind="stable")
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, 1))


@pytest.mark.parametrize("n", ROWS_OF_NETWORKS)
@pytest.mark.parametrize("rows", [1, 15, 16, 100])
def test_sort_by_networks(runtime, rows, n):
    """Equals keep their order; blocks of rows are full or not."""
    rng = np.random.default_rng(n)
    x = rng.integers(-20, 20, (rows, n)).astype(np.float32)
    x[:, : n // 3] = rng.normal(size=(rows, n // 3))
    values, places = np.empty_like(x), np.empty((rows, n), np.int32)
    assert getattr(runtime, f"sort_rows_of_{n}")(pointer(x), pointer(values), pointer(places), LONG(rows)) == 0
    want = np.argsort(x, axis=1, kind="stable")
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, 1))


def test_sort_keeps_the_total_order(runtime):
    x = np.array([[np.nan, 0.0, -0.0, -np.inf, np.inf, -1.0, -np.nan] * 20], np.float32)
    for by_key in (0, 1):
        values, places = np.empty_like(x), np.empty(x.shape, np.int32)
        runtime.sort_rows(by_key, int(x.size > 65536), pointer(x), pointer(values), pointer(places), LONG(1), LONG(x.size))
        want = np.repeat(np.array([-np.nan, -np.inf, -1.0, -0.0, 0.0, np.inf, np.nan], np.float32), 20)
        assert (np.signbit(values[0]) == np.signbit(want)).all()
        np.testing.assert_array_equal(values[0], want)
