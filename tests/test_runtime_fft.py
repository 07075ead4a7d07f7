"""The Fourier transforms of the CPU runtime (hloc/targets/cpu/runtime/fft.h), by functions that hloc prints, against NumPy."""
import ctypes
import dataclasses
import math

import numpy as np
import pytest
from native import build

from hloc.kernels.ir import Buffer, Tile
from hloc.machine import Machine
from hloc.targets.cpu.tiles.fft import fft

LENGTHS = [(1,), (2,), (3,), (8,), (12,), (30,), (35,), (97,), (101,), (105,), (194,), (961,), (1024,), (1000,), (6000,),
           (4, 6), (5, 16), (6, 7), (3, 2048), (3, 4, 10)]
BATCHES = [3, 21]                                               # 21: more than a vector's lanes
KINDS = ["FFT", "IFFT", "RFFT", "IRFFT"]
POINTS = {"f32": "c64", "f64": "c128"}
IN_LINES = [("FFT", (24,)), ("RFFT", (24,)), ("RFFT", (45,))]


def name_of(kind, lengths, batch, real):
    return "_".join(map(str, (kind, *lengths, batch, real)))


@pytest.fixture(scope="module")
def transforms(tmp_path_factory):
    """A library with a function for each case: buffers of what is read and written."""
    machine = dataclasses.replace(Machine.host(), cores=3)
    cases = [(kind, lengths, batch, real) for kind in KINDS for lengths in LENGTHS for batch in BATCHES for real in POINTS]
    texts = []
    for kind, lengths, batch, real in [*cases, *((kind, lengths, 40, "f32") for kind, lengths in IN_LINES)]:
        count = batch * math.prod(lengths)
        source, target = (real if kind == only else POINTS[real] for only in ("RFFT", "IRFFT"))
        tile = Tile("k", "fft", (Buffer("in0", source, count), Buffer("out0", target, count, "write")),
                    (("kind", kind), ("batch", batch), ("lengths", lengths)))
        texts += [made.text for made in fft(tile, name_of(kind, lengths, batch, real), machine)]
    library = build("\n".join([
        '#include "pool.c"', '#include "fft_f32.c"', '#include "fft_f64.c"', "_Thread_local int hloc_out_of_memory;",
        *texts]), tmp_path_factory.mktemp("transforms"))
    library.hloc_pool_start(3, 200)
    yield library
    library.hloc_pool_stop()


def call(library, name, source, got):
    library[name]((ctypes.c_void_p * 2)(source.ctypes.data, got.ctypes.data))
    return got


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name,real,point", [("f32", np.float32, np.complex64), ("f64", np.float64, np.complex128)])
def test_fft(transforms, lengths, batch, name, real, point):
    rng, axes = np.random.default_rng(10), tuple(range(1, len(lengths) + 1))
    half = [*lengths[:-1], lengths[-1] // 2 + 1]
    z = (rng.normal(size=(batch, *lengths)) + 1j * rng.normal(size=(batch, *lengths))).astype(point)
    r = rng.normal(size=(batch, *lengths)).astype(real)
    spectrum = np.fft.rfftn(r, axes=axes).astype(point)
    for kind, source, shape, want in (
        ("FFT", z, lengths, np.fft.fftn(z, axes=axes)), ("IFFT", z, lengths, np.fft.ifftn(z, axes=axes)),
        ("RFFT", r, half, np.fft.rfftn(r, axes=axes)),
        ("IRFFT", spectrum, lengths, np.fft.irfftn(spectrum, lengths, axes)),
    ):
        got = np.empty((batch, *shape), real if kind == "IRFFT" else point)
        call(transforms, name_of(kind, lengths, batch, name), source, got)
        np.testing.assert_allclose(got, want, atol=(2e-6 if name == "f32" else 1e-14) * np.abs(want).max())


@pytest.mark.parametrize("kind,lengths", IN_LINES)
def test_nan_stays_in_its_line(transforms, kind, lengths):
    x = np.ones((40, *lengths), np.complex64 if kind == "FFT" else np.float32)
    x[17, 5] = np.nan
    got = np.empty((40, lengths[0] if kind == "FFT" else lengths[0] // 2 + 1), np.complex64)
    call(transforms, name_of(kind, lengths, 40, "f32"), x, got)
    assert np.isnan(got).any(axis=1).nonzero()[0].tolist() == [17]
