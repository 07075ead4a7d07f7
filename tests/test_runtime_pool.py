"""The threads of the CPU runtime (hloc/targets/cpu/runtime/pool.h), and its transposes, alone."""
import ctypes
import itertools
import threading

import numpy as np
import pytest
from native import pointer
from runtime_arguments import started

LONG = ctypes.c_long


@pytest.fixture(scope="module")
def runtime():
    yield from started()


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_turn(runtime, bits):
    """Rows become columns; what lies between rows stays as it was, and nothing behind the last one is read (there are
    only as many elements)."""
    rng, dtype = np.random.default_rng(bits), np.dtype(f"u{bits // 8}")
    sizes = [*itertools.product((1, 3, 4, 7, 8, 13), repeat=2), (128, 5), (5, 128), (128, 31), (40, 70), (33, 17), (16, 32)]
    for (rows, columns), more, apart in itertools.product(sizes, (0, 3), (0, 2)):
        source = rng.integers(0, 256, ((rows - 1) * (columns + more) + columns) * dtype.itemsize, "u1").view(dtype)
        target = rng.integers(0, 256, ((columns - 1) * (rows + apart) + rows) * dtype.itemsize, "u1").view(dtype)
        want = target.copy()
        for r, c in np.ndindex(rows, columns):
            want[c * (rows + apart) + r] = source[r * (columns + more) + c]
        getattr(runtime, f"hloc_transpose_{bits}")(pointer(source), LONG(columns + more), pointer(target), LONG(rows + apart),
                                              LONG(rows), LONG(columns))
        np.testing.assert_array_equal(target, want, f"{rows} x {columns}, {more} and {apart} between rows")


def test_pool_runs_every_range_once(runtime):
    for n, grain in ((0, 1), (1, 1), (1000, 7), (100000, 1), (5, 100)):
        counts = np.zeros(max(n, 1), np.int32)
        runtime.count_all(pointer(counts), LONG(n), LONG(grain))
        assert (counts[:n] == 1).all()


def test_pool_serves_several_threads(runtime):
    """A second caller does its work alone while the first has the pool."""
    arrays = [np.zeros(20000, np.int32) for _ in range(4)]

    def repeat(counts):
        for _ in range(50):
            runtime.count_all(pointer(counts), LONG(counts.size), LONG(100))

    threads = [threading.Thread(target=repeat, args=(a,)) for a in arrays]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all((a == 50).all() for a in arrays)


def test_pool_restarts(runtime):
    runtime.hloc_pool_stop()
    assert runtime.hloc_pool_threads() == 1
    runtime.hloc_pool_start(3, 200)
    test_pool_runs_every_range_once(runtime)


def test_no_bytes_of_scratch(runtime):
    """A thread that has asked for nothing yet gets an address: NULL means that memory is exhausted."""
    scratch = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)(("hloc_scratch", runtime))
    found = []
    thread = threading.Thread(target=lambda: found.append(scratch(1, 0)))
    thread.start()
    thread.join()
    assert found[0] is not None
